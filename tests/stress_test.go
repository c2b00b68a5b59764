package tests

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// Writers, readers, forks, tombstones, deletes, uploads, retention, seals, lists,
// collections and vacuums all at once; the store is compared with what each
// writer knows of its own sessions. Afterwards nothing dead is kept.
func TestG2_NothingIsLostUnderStress(t *testing.T) {
	for name, open := range storetest.Engines {
		t.Run(name, func(t *testing.T) {
			storetest.Some(t, name)
			t.Parallel()
			e, err := open(t)()
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			st := openStore(t, e, &turnstone.Options{SealBytes: 3000, UploadTTL: time.Nanosecond})
			stop := make(chan struct{})
			var background, writers sync.WaitGroup
			loop := func(f func() error) {
				background.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						if err := f(); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			loop(func() error { return st.Seal(ctx) })
			loop(func() error { _, err := st.List(ctx, turnstone.ListOptions{Limit: 7}); return err })
			superseded := func(err error) error {
				if errors.Is(err, gc.ErrSuperseded) {
					return nil
				}
				return err
			}
			loop(func() error { _, err := st.GC(ctx, gc.Options{Pace: 0.5}); return superseded(err) })
			loop(func() error {
				if _, err := st.Prune(ctx, gc.PruneOptions{Revisions: 5}); err != nil {
					return err
				}
				_, err := st.Vacuum(ctx, gc.VacuumOptions{})
				time.Sleep(10 * time.Millisecond)
				return superseded(err)
			})
			loop(func() error {
				v, err := st.Verify(ctx, turnstone.VerifyOptions{})
				if err == nil && !v.OK() {
					err = v.Problems[0]
				}
				return err
			})
			for w := range 6 {
				writers.Go(func() {
					if err := writer(st, w); err != nil {
						t.Error(err)
					}
				})
			}
			writers.Wait()
			close(stop)
			background.Wait()
			verify(t, st)
			for range 2 {
				vacuum(t, st)
			}
			if r, err := st.GC(ctx, gc.Options{Full: true}); err != nil || r.Deleted > 0 || r.Repaired {
				t.Errorf("full: %+v, %v", r, err)
			}
			v, err := st.Verify(ctx, turnstone.VerifyOptions{})
			if err != nil || !v.OK() || v.Unreferenced > 0 || v.Condemned > 0 {
				t.Errorf("%+v, %v", v, err)
			}
			n := letters(t, e)
			for _, letter := range []byte{keys.Upload, keys.Candidate, keys.Detached, keys.Dirty} {
				if n[letter] > 0 {
					t.Errorf("%d records %q are left", n[letter], letter)
				}
			}
		})
	}
}

func writer(st *turnstone.Store, w int) error {
	rng := rand.New(rand.NewPCG(uint64(w), 3))
	id := fmt.Sprint("w", w)
	s, _, err := st.Create(ctx, turnstone.Request{ID: id})
	if err != nil {
		return err
	}
	var want []string
	shared := random(7000, 1)
	for i := range testkit.Pick(60, 25, 12) {
		text := fmt.Sprint(w, "/", i)
		_, err := s.Commit(ctx, turnstone.Commit{
			Expected: turnstone.AnyRevision, Turn: text, Checkpoint: map[string][]byte{"p": append([]byte(text), shared...)},
			Nodes: []turnstone.NewNode{{Kind: "k", Payload: []byte(text)}, {Kind: "k", Payload: shared}},
		})
		if err != nil {
			return err
		}
		want = append(want, text)
		switch rng.IntN(6) {
		case 0:
			f, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint(id, "-fork", i), Parent: id})
			if err != nil {
				return err
			}
			if rng.IntN(2) == 0 {
				if err := st.Delete(ctx, f.ID(), turnstone.KeepChildren); err != nil {
					return err
				}
			}
		case 1:
			state, err := s.Load(ctx, turnstone.Scope{})
			if err != nil {
				return err
			}
			var got []string
			for _, n := range state.Nodes {
				if len(n.Payload) < 100 {
					got = append(got, string(n.Payload))
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("%s reads %v, want %v", id, got, want)
			}
		case 2:
			state, err := s.Load(ctx, turnstone.Scope{Last: 2})
			if err != nil {
				return err
			}
			if err := s.Tombstone(ctx, state.Nodes[0].ID); err != nil {
				return err
			}
			want = want[:len(want)-1]
		case 4:
			content := random(300<<10, uint64(i))
			a, err := s.PutAttachment(ctx, bytes.NewReader(content), -1, "", "")
			if errors.Is(err, blob.ErrExpired) || errors.Is(err, blob.ErrNotFound) {
				break // uploads expire at once here
			}
			if err != nil {
				return err
			}
			_, err = s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "k", Payload: shared, Attachments: []blob.Attachment{a}}}})
			if errors.Is(err, turnstone.ErrUploadExpired) {
				break
			}
			if err != nil {
				return err
			}
			var got bytes.Buffer
			if _, err := s.ReadAttachment(ctx, &got, a.ID); err != nil || !bytes.Equal(got.Bytes(), content) {
				return fmt.Errorf("attachment of %s: %w", id, err)
			}
		case 5:
			if parts, err := s.Checkpoint(ctx, 0); err != nil || !bytes.HasPrefix(parts["p"], []byte(text)) {
				return fmt.Errorf("checkpoint of %s: %w", id, err)
			}
		case 3:
			if err := s.SaveMetadata(ctx, head.Metadata{Name: text}); err != nil {
				return err
			}
		}
	}
	return nil
}
