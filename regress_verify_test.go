package turnstone

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/record"
)

func TestDeleteSparesTheNextSessionOfTheID(t *testing.T) {
	mem := memory.New()
	e := &eng{Engine: mem}
	st := open(t, e, nil)
	mk(t, st, Request{ID: "s"})
	st2 := open(t, mem, nil)
	e.apply = func(ctx context.Context, b *engine.Batch) error {
		e.apply = nil
		if err := mem.Apply(ctx, b); err != nil {
			return err
		}
		u, created, err := st2.Create(bg, Request{ID: "s"})
		if err != nil || !created {
			t.Fatal(err)
		}
		must(t, u, Commit{Nodes: node("precious")})
		return engine.ErrUnknown
	}
	if err := st.Delete(bg, "s", KeepChildren); err != nil {
		t.Error(err)
	}
	next, err := st.Session(bg, "s")
	if err != nil {
		t.Fatal("the next session of the id:", err)
	}
	if l, err := next.Load(bg, Scope{}); err != nil || len(l.Nodes) != 1 || string(l.Nodes[0].Payload) != "precious" {
		t.Errorf("the next session of the id: %+v, %v", l, err)
	}
}

// verify skips a session renamed meanwhile
func TestVerifyFollowsARename(t *testing.T) {
	for i := range 8 {
		mem := memory.New()
		e := &eng{Engine: mem}
		st := open(t, e, nil)
		s := mk(t, st, Request{ID: "s"})
		must(t, s, Commit{Nodes: node("x")})
		must(t, s, Commit{Expected: 1, Nodes: node("y")})
		k := st.space.Pack(s.session.Inc, 1, 0)
		var b engine.Batch
		b.Delete(k)
		if err := mem.Apply(bg, &b); err != nil {
			t.Fatal(err)
		}
		st2 := open(t, mem, nil)
		done := false
		e.get = func(ctx context.Context, ks ...[]byte) ([][]byte, error) {
			if len(ks) > 1 && bytes.Equal(ks[0], s.session.HeadKey) && !done {
				done = true
				if err := st2.Rename(bg, "s", string(rune('a'+i))); err != nil {
					t.Fatal(err)
				}
			}
			return mem.Get(ctx, ks...)
		}
		v, err := st.Verify(bg, VerifyOptions{})
		var damage *record.CorruptError
		if !done || err != nil || v.Sessions != 1 || len(v.Problems) != 1 || !errors.As(v.Problems[0], &damage) {
			t.Errorf("renamed: %v; %d sessions, %v, %v", done, v.Sessions, v.Problems, err)
		}
	}
}

// SealBytes at its maximum with ordinary nodes of two attachments each
func TestSealCountsKeys(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes 16,000 nodes")
	}
	st := open(t, memory.New(), &Options{NoAutoSeal: true, TakeOverAfter: -1, SealBytes: 1 << 20})
	s := mk(t, st, Request{ID: "s"})
	c := uint64(0)
	for i := range 40 {
		var n []NewNode
		for range 400 {
			c++
			key := rnd(256, c)
			for j, x := range key {
				key[j] = '!' + x%90
			}
			n = append(n, NewNode{Kind: "u", Key: string(key), Payload: []byte("hi")})
		}
		if _, err := s.Commit(bg, Commit{Expected: AnyRevision, Nodes: n}); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := s.Seal(bg); err != nil {
		t.Error(err)
	}
	if stats, err := st.Stats(bg); err != nil || stats.Sealed == 0 || stats.Loose != 0 {
		t.Errorf("%d segments are sealed and %d packs loose, %v", stats.Sealed, stats.Loose, err)
	}
}
