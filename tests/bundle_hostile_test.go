package tests

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/bundle/bundletest"
)

// richStore is a store with all that a bundle can have, and its sessions.
func richStore(t *testing.T, seed uint64) (*turnstone.Store, []turnstone.Bundled) {
	_, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	p := newPast(t, st, seed)
	for range 60 {
		p.step()
	}
	var all []turnstone.Bundled
	for _, id := range p.ids {
		all = append(all, turnstone.Bundled{ID: id})
	}
	return st, all
}

// refused fails the test unless st refuses a bundle with a typed error, and has no session afterwards.
func refused(t *testing.T, st *turnstone.Store, what string, b []byte) {
	t.Helper()
	_, err := st.Unbundle(ctx, bytes.NewReader(b), turnstone.UnbundleOptions{})
	var typed *turnstone.BundleError
	if !errors.As(err, &typed) || !errors.Is(err, turnstone.ErrBundle) {
		t.Errorf("%s: %v", what, err)
	}
	if page, err := st.List(ctx, turnstone.ListOptions{}); err != nil || len(page.Sessions) > 0 {
		t.Fatal(what, page, err)
	}
}

// Damage of a bundle shows before anything of it is visible.
func TestBU3_ADamagedBundleIsRefusedAsAWhole(t *testing.T) {
	from, all := richStore(t, 3)
	b := bundleOf(t, from, all...)
	_, st := onMemory(t, nil)
	r := rand.New(rand.NewPCG(3, 3))
	for range 60 {
		cut := r.IntN(len(b))
		refused(t, st, fmt.Sprint("cut at ", cut), b[:cut])
	}
	for range 60 {
		flipped := slices.Clone(b)
		at := r.IntN(len(b))
		flipped[at] ^= 1 << r.IntN(8)
		if got, err := st.Unbundle(ctx, bytes.NewReader(flipped), turnstone.UnbundleOptions{}); err == nil {
			t.Errorf("byte %d of %d: %+v", at, len(b), got)
		}
	}
	refused(t, st, "more behind it", append(slices.Clone(b), 0))
	refused(t, st, "twice", append(slices.Clone(b), b...))

	// With a right end, too.
	frames := bundletest.Frames(t, b)
	for i, f := range frames {
		if f.Kind == 'K' || f.Kind == 'R' {
			continue // A bundle without them is a bundle.
		}
		without := slices.Delete(slices.Clone(frames), i, i+1)
		_, err := st.Unbundle(ctx, bytes.NewReader(bundletest.Bundle(without...)), turnstone.UnbundleOptions{})
		if err == nil && f.Kind != 'X' {
			t.Errorf("without frame %d of kind %c: it is accepted", i, f.Kind)
		}
		for _, info := range infosOf(t, st) {
			remove(t, st, info.ID)
		}
	}
	collect(t, st, gc.Options{})
	vacuum(t, st)
	verify(t, st)
	unbundle(t, st, b)
	verify(t, st)
	for _, s := range all {
		sameThere(t, from, st, false, s.ID)
	}
}

func infosOf(t testing.TB, st *turnstone.Store) []turnstone.Info {
	page, err := st.List(ctx, turnstone.ListOptions{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return page.Sessions
}

// Whatever is accepted leaves a store that verifies, and what is refused leaves nothing.
func FuzzUnbundle(f *testing.F) {
	e := memory.New()
	st, err := turnstone.Open(ctx, e, &turnstone.Options{NoAutoSeal: true, InlineBytes: 1, TakeOverAfter: -1})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { st.Close() })
	s, _, err := st.Create(ctx, turnstone.Request{ID: "a"})
	if err != nil {
		f.Fatal(err)
	}
	a, err := s.PutAttachment(ctx, strings.NewReader("attached"), -1, "text/plain", "a.txt")
	if err != nil {
		f.Fatal(err)
	}
	r, err := s.Commit(ctx, turnstone.Commit{
		Turn: "t", Usage: []head.Usage{{Model: "m", Input: 1}}, Checkpoint: map[string][]byte{"p": bytes.Repeat([]byte("part "), 300)}, Keep: "k",
		Nodes: []turnstone.NewNode{{Kind: "u", Key: "k", Payload: []byte("hello")}, {Kind: "u", Payload: random(6000, 1), Attachments: []blob.Attachment{a}}},
	})
	if err != nil {
		f.Fatal(err)
	}
	var first bytes.Buffer
	if _, err := st.Bundle(ctx, &first, turnstone.Bundled{ID: "a"}); err != nil {
		f.Fatal(err)
	}
	if _, err := s.Commit(ctx, turnstone.Commit{
		Expected: 1, Nodes: sayingAfter(r.Nodes[0], []byte("branch")), Checkpoint: map[string][]byte{"p": append(bytes.Repeat([]byte("part "), 300), 'x')},
		Records: []turnstone.RecordChange{{Key: "r", Value: []byte("v")}},
	}); err != nil {
		f.Fatal(err)
	}
	if _, _, err := st.Create(ctx, turnstone.Request{ID: "b", Parent: "a", ForkNode: r.Nodes[0]}); err != nil {
		f.Fatal(err)
	}
	if err := s.Tombstone(ctx, r.Nodes[1]); err != nil {
		f.Fatal(err)
	}
	for _, of := range [][]turnstone.Bundled{{{ID: "a"}}, {{ID: "b"}}, {{ID: "a"}, {ID: "b"}}, {{ID: "a", Since: 1}}} {
		var b bytes.Buffer
		if _, err := st.Bundle(ctx, &b, of...); err != nil {
			f.Fatal(err)
		}
		f.Add(bundletest.Append(nil, bundletest.Frames(f, b.Bytes())...), byte(len(of)))
	}
	f.Fuzz(func(t *testing.T, frames []byte, sections byte) {
		for _, branch := range []string{"", "other"} {
			st := openStore(t, memory.New(), &turnstone.Options{NoAutoSeal: true})
			if branch != "" { // A session has another second commit.
				unbundle(t, st, first.Bytes())
				commitTo(t, session(t, st, "a"), turnstone.Commit{Nodes: saying([]byte("here")), Checkpoint: map[string][]byte{"p": []byte("of here")}})
			}
			_, err := st.Unbundle(ctx, bytes.NewReader(bundletest.Sealed(frames, int(sections))), turnstone.UnbundleOptions{MaxBytes: 1 << 20, Branch: branch})
			if err != nil && !errors.Is(err, turnstone.ErrBundle) && !errors.Is(err, turnstone.ErrConflict) && !errors.Is(err, turnstone.ErrDiverged) {
				t.Fatal(err)
			}
			verify(t, st)
			for _, info := range infosOf(t, st) {
				_ = everythingOf(t, st, info.ID, true)
			}
			vacuum(t, st)
			verify(t, st)
		}
	})
}
