package turnstone_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
)

func TestGCReclaimsWhatNothingReaches(t *testing.T) {
	e := memory.New()
	now := time.Unix(1_700_000_000, 0)
	st := openStore(t, e, &turnstone.Options{Now: func() time.Time { return now }})
	commit := func(ses *turnstone.Session, c turnstone.Commit) turnstone.Result {
		t.Helper()
		c.Expected = turnstone.AnyRevision
		r, err := ses.Commit(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	create := func(r turnstone.Request) *turnstone.Session {
		t.Helper()
		ses, _, err := st.Create(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		return ses
	}
	a, b := create(turnstone.Request{ID: "a"}), create(turnstone.Request{ID: "b"})
	both, alone, part := random(20_000, 1), random(20_000, 2), random(30_000, 3)
	big := random(3<<20, 4)
	commit(a, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Payload: both}, {Kind: "u", Payload: alone}}, Checkpoint: map[string][]byte{"p": part, "big": big}})
	commit(b, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Payload: both}}})
	for i := range 10 {
		part[i*100]++
		commit(a, turnstone.Commit{Checkpoint: map[string][]byte{"p": part}})
	}
	if r := collect(t, st, gc.Options{}); r.Deleted != 0 || r.Roots != 2 || r.Commits != 12 {
		t.Errorf("all is live: %+v", r)
	}
	verify(t, st)
	if err := st.Delete(ctx, "a", turnstone.KeepChildren); err != nil {
		t.Fatal(err)
	}
	plan := collect(t, st, gc.Options{DryRun: true})
	if !holds(t, e, alone[:64]) {
		t.Fatal("a dry run deleted something")
	}
	r := collect(t, st, gc.Options{})
	if plan.Deleted != r.Deleted || plan.Bytes != r.Bytes || plan.Retained != r.Retained || r.Deleted < 13 || r.Retained != 1 {
		t.Errorf("planned %+v, did %+v", plan, r)
	}
	if holds(t, e, alone[:64]) || holds(t, e, big[:64]) || !holds(t, e, both[:64]) {
		t.Error("the wrong blobs are there")
	}
	if r := collect(t, st, gc.Options{}); r.Deleted != 0 || r.Candidates != 0 {
		t.Errorf("again: %+v", r)
	}
	if n := letters(t, e); n[keys.Mark] != 1 || n[keys.Edge] != 1 || n[keys.Count] != 1 || n[keys.Candidate] != 0 || n[keys.Upload] != 0 {
		t.Errorf("records left: %v", n)
	}
	if r := collect(t, st, gc.Options{Full: true}); r.Deleted != 0 || r.Repaired || r.Retained != 1 {
		t.Errorf("full: %+v", r)
	}
	verify(t, st)
	// What was deleted can be stored again.
	commit(b, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Payload: alone}}})
	verify(t, st)
}

func TestUploadsExpire(t *testing.T) {
	e := memory.New()
	now := time.Unix(1_700_000_000, 0)
	st := openStore(t, e, &turnstone.Options{Now: func() time.Time { return now }, UploadTTL: time.Hour})
	s, _, err := st.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	put := func(b []byte) blob.Attachment {
		t.Helper()
		a, err := s.PutAttachment(ctx, bytes.NewReader(b), -1, "", "")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	attach := func(turn string, a blob.Attachment) error {
		_, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Turn: turn, Nodes: []turnstone.NewNode{{Kind: "u", Attachments: []blob.Attachment{a}}}})
		return err
	}
	small, large := put(random(1000, 1)), put(random(2<<20, 2))
	kept := put(random(2<<20, 3))
	if err := attach("", kept); err != nil {
		t.Fatal(err)
	}
	if r := collect(t, st, gc.Options{}); r.Deleted != 0 {
		t.Errorf("%+v", r)
	}
	if err := attach("small", small); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * time.Hour)
	if r := collect(t, st, gc.Options{}); r.Deleted < 2 || r.Expired != 1 {
		t.Errorf("%+v", r)
	}
	if err := attach("", large); !errors.Is(err, turnstone.ErrUploadExpired) || !errors.Is(err, turnstone.ErrBlobNotFound) {
		t.Error(err)
	}
	if err := attach("small", small); err != nil {
		t.Error("the same turn again:", err)
	}
	if err := attach("", small); err != nil {
		t.Error("the session has it:", err)
	}
	var w bytes.Buffer
	if _, err := s.ReadAttachment(ctx, &w, kept.ID); err != nil || w.Len() != 2<<20 {
		t.Error(err)
	}
	if n := letters(t, e); n[keys.Upload] != 0 || n[keys.Candidate] != 0 {
		t.Errorf("records left: %v", n)
	}
	verify(t, st)
}

func TestRetention(t *testing.T) {
	e := memory.New()
	st := openStore(t, e, &turnstone.Options{Retention: 3})
	s, _, err := st.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	var parts [][]byte
	for i := range 10 {
		parts = append(parts, random(9000, uint64(i)))
		if _, err := s.Commit(ctx, turnstone.Commit{Expected: head.Revision(i), Nodes: []turnstone.NewNode{{Kind: "u", Payload: fmt.Append(nil, i)}}, Checkpoint: map[string][]byte{"p": parts[i]}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(s.Keep(ctx, "good", 4), s.Keep(ctx, "good", 4), s.Keep(ctx, "head", 0)); err != nil {
		t.Fatal(err)
	}
	if err := s.Keep(ctx, "good", 5); !errors.Is(err, turnstone.ErrExists) {
		t.Error(err)
	}
	collect(t, st, gc.Options{})
	if n, err := st.Prune(ctx); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := st.Prune(ctx); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	check := func(want ...int) {
		t.Helper()
		for r := 1; r <= 10; r++ {
			got, err := s.Checkpoint(ctx, head.Revision(r))
			kept := false
			for _, w := range want {
				kept = kept || w == r
			}
			if kept && (err != nil || !bytes.Equal(got["p"], parts[r-1])) || !kept && !errors.Is(err, turnstone.ErrRevisionPruned) {
				t.Errorf("revision %d: %v", r, err)
			}
			if holds(t, e, parts[r-1][:64]) != kept {
				t.Errorf("bytes of revision %d: %v", r, !kept)
			}
		}
		if st, err := s.Load(ctx, turnstone.Scope{}); err != nil || len(st.Nodes) != 10 {
			t.Error(err)
		}
		verify(t, st)
	}
	if r := collect(t, st, gc.Options{}); r.Deleted != 6 {
		t.Errorf("%+v", r)
	}
	check(4, 8, 9, 10)
	if err := s.Keep(ctx, "lost", 5); !errors.Is(err, turnstone.ErrRevisionPruned) {
		t.Error(err)
	}
	if err := errors.Join(s.Release(ctx, "good"), s.Release(ctx, "good")); err != nil {
		t.Fatal(err)
	}
	if r := collect(t, st, gc.Options{}); r.Deleted != 1 {
		t.Errorf("%+v", r)
	}
	check(8, 9, 10)
	if r := collect(t, st, gc.Options{Full: true}); r.Deleted != 0 || r.Repaired {
		t.Errorf("%+v", r)
	}
}

func TestASessionsRetentionComesBeforeTheStores(t *testing.T) {
	st := openStore(t, memory.New(), &turnstone.Options{Retention: 2})
	for id, own := range map[string]turnstone.Retention{"default": 0, "all": turnstone.KeepAll, "four": 4} {
		s, _, err := st.Create(ctx, turnstone.Request{ID: id, Metadata: turnstone.Metadata{Retention: own}})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 6 {
			if _, err := s.Commit(ctx, turnstone.Commit{Expected: head.Revision(i), Checkpoint: map[string][]byte{"p": {byte(i)}}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n, err := st.Prune(ctx); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	for id, oldest := range map[string]head.Revision{"default": 5, "all": 1, "four": 3} {
		s, err := st.Session(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		for r := head.Revision(1); r <= 6; r++ {
			_, err := s.Checkpoint(ctx, r)
			if r >= oldest && err != nil || r < oldest && !errors.Is(err, turnstone.ErrRevisionPruned) {
				t.Errorf("%s, revision %d: %v", id, r, err)
			}
		}
	}
}

func TestWhatMaintenanceRefuses(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	s, _, err := st.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	var invalid *turnstone.InvalidError
	if _, err := s.GC(ctx, gc.Options{Full: true}); !errors.As(err, &invalid) {
		t.Errorf("a full collection of one session: %v", err)
	}
	if err := s.Keep(ctx, "", 0); !errors.As(err, &invalid) {
		t.Errorf("a kept revision without a name: %v", err)
	}
	if _, err := s.Commit(ctx, turnstone.Commit{}); err != nil {
		t.Fatal(err)
	}
	for i := range turnstone.MaxKept {
		if err := s.Keep(ctx, fmt.Sprint(i), 1); err != nil {
			t.Fatal(err)
		}
	}
	var limit *turnstone.LimitError
	if err := s.Keep(ctx, "one more", 1); !errors.As(err, &limit) {
		t.Errorf("kept revision %d: %v", turnstone.MaxKept+1, err)
	}
}
