package turnstone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testscale"
	"github.com/turnstonedb/turnstone/record"
)

func TestTwoPartsOfEqualContentKnowTheirDepth(t *testing.T) {
	st := open(t, memory.New(), nil)
	s := mk(t, st, Request{ID: "s"})
	for i := range 64 {
		must(t, s, Commit{Expected: AnyRevision, Checkpoint: map[string][]byte{"a": doc(i)}})
	}
	must(t, s, Commit{Expected: AnyRevision, Checkpoint: map[string][]byte{"a": doc(64), "b": doc(64)}})
	must(t, s, Commit{Expected: AnyRevision, Checkpoint: map[string][]byte{"b": doc(65)}})
	parts, err := s.Checkpoint(bg, 0)
	if err != nil || !bytes.Equal(parts["a"], doc(64)) || !bytes.Equal(parts["b"], doc(65)) {
		t.Error(err)
	}
}

// A mark that changed since it was read costs a second attempt; one that is damaged
// ends the upload, which does not try for ever.
func TestAStaleMarkCostsOneMoreAttempt(t *testing.T) {
	for _, damaged := range []bool{false, true} {
		mem := memory.New()
		e := &eng{Engine: mem}
		st := open(t, e, nil)
		s := mk(t, st, Request{ID: "s"})
		content := rnd(100, 1)
		a, err := s.PutAttachment(bg, bytes.NewReader(content), -1, "", "")
		if err != nil {
			t.Fatal(err)
		}
		k := st.space.Mark(st.space.BlobHash(a.ID))
		vs, err := mem.Get(bg, k)
		if err != nil {
			t.Fatal(err)
		}
		v := bytes.Clone(vs[0])
		v[len(v)-5] ^= 1 // the last of its random bytes
		if !damaged {
			v = codec.SealTail(k, v[:len(v)-4], 0)
		}
		attempts := 0
		set := func() {
			if err := mem.Apply(bg, &engine.Batch{Sets: []engine.Pair{{Key: k, Value: v}}}); err != nil {
				t.Fatal(err)
			}
		}
		e.apply = func(c context.Context, b *engine.Batch) error {
			if attempts++; attempts == 1 {
				set()
			}
			if attempts > 100 {
				t.Fatal("it tries for ever")
			}
			return mem.Apply(c, b)
		}
		again, err := s.PutAttachment(bg, bytes.NewReader(content), -1, "", "")
		var damage *record.CorruptError
		switch {
		case damaged && !errors.As(err, &damage):
			t.Errorf("a damaged mark: %v after %d attempts", err, attempts)
		case !damaged && (err != nil || again.ID != a.ID || attempts < 2):
			t.Errorf("a stale mark: %v after %d attempts", err, attempts)
		}
	}
}

func TestSealCountsAttachments(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes 51,200 references to attachments")
	}
	for _, distinct := range testscale.Pick([]bool{false, true}, []bool{false}, []bool{false}) {
		st := open(t, memory.New(), &Options{NoAutoSeal: true, TakeOverAfter: -1})
		s := mk(t, st, Request{ID: "s"})
		var atts []blob.Attachment
		for i := range 64 {
			a, err := s.PutAttachment(bg, bytes.NewReader(rnd(100, uint64(i))), -1, "image/png", "")
			if err != nil {
				t.Fatal(err)
			}
			if !distinct {
				a.Name = fmt.Sprintf("%x", rnd(128, uint64(i+1000)))
			}
			atts = append(atts, a)
		}
		c := uint64(0)
		for i := range 40 {
			var n []NewNode
			for range 80 {
				as := atts
				if !distinct {
					as = nil
					for j := range 16 {
						a := atts[j]
						c++
						a.Name = fmt.Sprintf("%x", rnd(128, c))
						as = append(as, a)
					}
				}
				n = append(n, NewNode{Kind: "u", Payload: []byte("hi"), Attachments: as})
			}
			_, err := s.Commit(bg, Commit{Expected: AnyRevision, Nodes: n})
			if err != nil {
				t.Fatal(i, err)
			}
		}
		if err := s.Seal(bg); err != nil {
			t.Errorf("distinct %v: %v", distinct, err)
		}
		if stats, err := st.Stats(bg); err != nil || stats.Sealed == 0 || stats.Loose != 0 {
			t.Errorf("distinct %v: %d segments are sealed and %d packs loose, %v", distinct, stats.Sealed, stats.Loose, err)
		}
	}
}

func TestVerifyBesideDelete(t *testing.T) {
	mem := memory.New()
	e := &eng{Engine: mem}
	st := open(t, e, nil)
	s := mk(t, st, Request{ID: "s"})
	must(t, s, Commit{Nodes: node("x")})
	k := st.space.OrderTime(s.session.Inc)
	e.get = func(ctx context.Context, ks ...[]byte) ([][]byte, error) {
		if len(ks) == 1 && bytes.Equal(ks[0], k) {
			e.get = nil
			if err := st.Delete(bg, "s", KeepChildren); err != nil {
				t.Fatal(err)
			}
		}
		return mem.Get(ctx, ks...)
	}
	v, err := st.Verify(bg, VerifyOptions{})
	if err != nil || !v.OK() {
		t.Error(v.Problems, err)
	}
	if _, err := st.Session(bg, "s"); !errors.Is(err, ErrSessionNotFound) {
		t.Errorf("the session was not deleted meanwhile: %v", err)
	}
}

func TestVerifyBesideSeal(t *testing.T) {
	e := &small{Engine: memory.New()}
	st := open(t, e, &Options{NoAutoSeal: true, TakeOverAfter: -1, SealBytes: 1 << 20})
	s := mk(t, st, Request{ID: "s"})
	var n []NewNode
	for i := range 120 {
		n = append(n, NewNode{Kind: "u", Payload: rnd(5000, uint64(i))})
	}
	must(t, s, Commit{Turn: "T", Nodes: n})
	must(t, s, Commit{Expected: 1, Nodes: node("x")})
	must(t, s, Commit{Expected: 2, Nodes: node("x")})
	k := st.space.Pack(s.session.Inc, 1, 0)
	other, err := st.Session(bg, "s")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	e.between = func(key []byte) {
		if string(key) == string(k) {
			if seen++; seen == 2 { // first is the scan of all records
				e.between = nil
				if err := other.Seal(bg); err != nil {
					t.Error(err)
				}
			}
		}
	}
	v, err := st.Verify(bg, VerifyOptions{})
	if err != nil || !v.OK() || seen != 2 {
		t.Errorf("%v, %v; the pack was met %d times", v.Problems, err, seen)
	}
}

func TestVerifyHashesLists(t *testing.T) {
	mem := memory.New()
	st := open(t, mem, nil)
	s := mk(t, st, Request{ID: "s"})
	a, err := s.PutAttachment(bg, bytes.NewReader(rnd(2<<20, 1)), -1, "", "")
	if err != nil {
		t.Fatal(err)
	}
	must(t, s, Commit{Nodes: []NewNode{{Kind: "u", Attachments: []blob.Attachment{a}}}})
	k := st.space.Blob(st.space.BlobHash(a.ID), 0)
	vs, err := mem.Get(bg, k)
	if err != nil {
		t.Fatal(err)
	}
	body, err := codec.Open(k, vs[0], keys.Blob)
	if err != nil {
		t.Fatal(err)
	}
	refs, err := st.blobs.Items(bg, a.ID)
	if err != nil {
		t.Fatal(err)
	}
	x, y := refs[0], refs[1]
	// swap the items: ids with their sizes
	i, j := bytes.Index(body, x[:]), bytes.Index(body, y[:])
	i1 := j - i // stride
	nb := bytes.Clone(body)
	copy(nb[i-3:], body[j-3:j-3+i1])
	copy(nb[i-3+i1:], body[i-3:i-3+i1])
	var b engine.Batch
	b.Set(k, codec.Seal(k, keys.Blob, nb))
	if err := mem.Apply(bg, &b); err != nil {
		t.Fatal(err)
	}
	var w bytes.Buffer
	_, rerr := st.blobs.WriteTo(bg, &w, a.ID)
	v, err := st.Verify(bg, VerifyOptions{})
	if !errors.Is(rerr, record.ErrHash) || err != nil || len(v.Problems) != 1 || !errors.Is(v.Problems[0], record.ErrHash) {
		t.Errorf("read: %v; verify: %v, %v", rerr, v.Problems, err)
	}
}

// What keeps a read from its bytes is what the read reports: an error of the engine
// or a cancelled context, and no damage.
func TestACancelledReadIsNoDamage(t *testing.T) {
	mem := memory.New()
	e := &eng{Engine: mem}
	st := open(t, e, nil)
	s := mk(t, st, Request{ID: "s"})
	chunked, parted := rnd(2<<20, 1), rnd(700<<10, 3)
	must(t, s, Commit{Checkpoint: map[string][]byte{"a": chunked}})
	must(t, s, Commit{Expected: 1, Nodes: []NewNode{{Kind: "u", Payload: parted}}})
	chunks, err := st.blobs.Items(bg, blob.Sum(chunked))
	if err != nil {
		t.Fatal(err)
	}
	boom := errors.New("network down")
	for _, c := range []struct {
		name string
		key  []byte
		read func(context.Context) error
	}{
		{"a chunk", st.space.Blob(st.space.BlobHash(chunks[0]), 0), func(ctx context.Context) error { _, err := s.Checkpoint(ctx, 0); return err }},
		{"a list", st.space.Blob(st.space.BlobHash(blob.Sum(chunked)), 0), func(ctx context.Context) error { _, err := s.Checkpoint(ctx, 0); return err }},
		{"a later part", st.space.Blob(st.space.BlobHash(blob.Sum(parted)), 1), func(ctx context.Context) error { _, err := s.Load(ctx, Scope{}); return err }},
		{"a pack", st.space.Pack(s.session.Inc, 2, 0), func(ctx context.Context) error { _, err := s.Load(ctx, Scope{}); return err }},
		{"a commit", st.space.Commit(s.session.Inc, 2), func(ctx context.Context) error { _, err := s.Load(ctx, Scope{}); return err }},
	} {
		for _, cause := range []error{boom, context.Canceled} {
			ctx, cancel := context.WithCancel(bg)
			met := false
			meet := func() {
				if met = true; cause == context.Canceled {
					cancel()
				}
			}
			e.get = func(ctx context.Context, ks ...[]byte) ([][]byte, error) {
				if slices.ContainsFunc(ks, func(k []byte) bool { return bytes.Equal(k, c.key) }) {
					if meet(); cause == boom {
						return nil, boom
					}
				}
				return mem.Get(ctx, ks...)
			}
			e.fail = func(p engine.Pair) error {
				if bytes.Equal(p.Key, c.key) {
					if meet(); cause == boom {
						return boom
					}
					return ctx.Err()
				}
				return nil
			}
			err := c.read(ctx)
			cancel()
			var damage *record.CorruptError
			if !met || !errors.Is(err, cause) || errors.As(err, &damage) {
				t.Errorf("%s, %v: read: %v; %v", c.name, cause, met, err)
			}
		}
	}
	e.get, e.fail = nil, nil
	if l, err := s.Load(bg, Scope{}); err != nil || !bytes.Equal(l.Nodes[0].Payload, parted) {
		t.Error("load:", err)
	}
}

func TestAnUnknownCommitStaysUnknownAfterARename(t *testing.T) {
	for _, op := range []string{"rename", "fork+delete"} {
		mem := memory.New()
		e := &eng{Engine: mem}
		st := open(t, e, nil)
		s := mk(t, st, Request{ID: "s"})
		must(t, s, Commit{Nodes: node("x")})
		st2 := open(t, mem, nil)
		e.apply = func(ctx context.Context, b *engine.Batch) error {
			e.apply = nil
			if err := mem.Apply(ctx, b); err != nil {
				return err
			}
			if op == "rename" {
				if err := st2.Rename(bg, "s", "s2"); err != nil {
					t.Fatal(err)
				}
			} else {
				mk(t, st2, Request{ID: "s2", Parent: "s"})
				if err := st2.Delete(bg, "s", KeepChildren); err != nil {
					t.Fatal(err)
				}
			}
			return engine.ErrUnknown
		}
		_, err := s.Commit(bg, Commit{Expected: 1, Nodes: node("y"), Turn: "T"})
		if !errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("%s: commit: %v", op, err)
		}
		n, err := st2.Session(bg, "s2")
		if err != nil {
			t.Fatal(err)
		}
		if l, err := n.Load(bg, Scope{}); err != nil || len(l.Nodes) != 2 {
			t.Errorf("%s: the commit stands: %+v, %v", op, l, err)
		}
	}
}

func TestAForkDoesNotSlipPastARename(t *testing.T) {
	mem := memory.New()
	e := &eng{Engine: mem}
	st := open(t, e, nil)
	s := mk(t, st, Request{ID: "p"})
	must(t, s, Commit{Nodes: node("x")})
	st2 := open(t, mem, nil)
	k := st.space.Life(s.session.Inc)
	e.get = func(ctx context.Context, ks ...[]byte) ([][]byte, error) {
		if len(ks) == 1 && bytes.Equal(ks[0], k) {
			e.get = nil
			if err := st2.Rename(bg, "p", "q"); err != nil {
				t.Fatal(err)
			}
		}
		return mem.Get(ctx, ks...)
	}
	_, created, err := st.Create(bg, Request{ID: "f", Parent: "p"})
	if created || !errors.Is(err, ErrSessionNotFound) {
		t.Errorf("a fork of the id that was renamed: %v, %v", created, err)
	}
	if page, err := st.List(bg, ListOptions{Parent: "q"}); err != nil || len(page.Sessions) != 0 {
		t.Errorf("children: %+v, %v", page, err)
	}
	if err := st.Delete(bg, "q", RefuseChildren); err != nil {
		t.Error(err)
	}
}

func TestCascadeDeletesThatChildOnly(t *testing.T) {
	for _, op := range []string{"recreate", "rename"} {
		mem := memory.New()
		e := &eng{Engine: mem}
		st := open(t, e, nil)
		mk(t, st, Request{ID: "p"})
		c := mk(t, st, Request{ID: "c", Parent: "p"})
		st2 := open(t, mem, nil)
		armed := false
		e.get = func(ctx context.Context, ks ...[]byte) ([][]byte, error) {
			if len(ks) == 1 && bytes.Equal(ks[0], c.session.AboutKey) && !armed {
				armed = true
				vs, err := mem.Get(ctx, ks...)
				if op == "recreate" {
					if err := st2.Delete(bg, "c", KeepChildren); err != nil {
						t.Fatal(err)
					}
					u, _, err := st2.Create(bg, Request{ID: "c"})
					if err != nil {
						t.Fatal(err)
					}
					must(t, u, Commit{Nodes: node("precious")})
				} else if err := st2.Rename(bg, "c", "c2"); err != nil {
					t.Fatal(err)
				}
				return vs, err
			}
			return mem.Get(ctx, ks...)
		}
		if err := st.Delete(bg, "p", CascadeChildren); err != nil || !armed {
			t.Errorf("%s: %v, %v", op, armed, err)
		}
		e.get = nil
		left, err := st.List(bg, ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, i := range left.Sessions {
			ids = append(ids, i.ID)
		}
		want := map[string][]string{"recreate": {"c"}, "rename": nil}[op] // a renamed child is a child
		if !slices.Equal(ids, want) {
			t.Errorf("%s: left are %q, not %q", op, ids, want)
		}
	}
}
