package turnstone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

func TestTwoPartsOfEqualContentKnowTheirDepth(t *testing.T) {
	st := open(t, memory.New(), nil)
	s := mk(t, st, Request{ID: "s"})
	for i := range 64 {
		must(t, s, Commit{Expected: AnyRevision, Checkpoint: map[string][]byte{"a": doc(i)}})
	}
	must(t, s, Commit{Expected: AnyRevision, Checkpoint: map[string][]byte{"a": doc(64), "b": doc(64)}})
	must(t, s, Commit{Expected: AnyRevision, Checkpoint: map[string][]byte{"b": doc(65)}})
	_, err := s.Checkpoint(bg, 0)
	t.Log(err)
	if err != nil {
		t.Fail()
	}
}

func TestAStaleMarkCostsOneMoreAttempt(t *testing.T) {
	mem := memory.New()
	e := &eng{Engine: mem}
	st := open(t, e, nil)
	s := mk(t, st, Request{ID: "s"})
	a, err := s.PutAttachment(bg, bytes.NewReader(rnd(100, 1)), -1, "", "")
	if err != nil {
		t.Fatal(err)
	}
	k := st.space.Mark(st.space.BlobHash(a.ID))
	vs, _ := mem.Get(bg, k)
	v := bytes.Clone(vs[0])
	v[5] ^= 1
	var b engine.Batch
	b.Set(k, v)
	mem.Apply(bg, &b)
	st2 := open(t, e, nil)
	s2, _ := st2.Session(bg, "s")
	ctx, cancel := context.WithCancel(bg)
	n := 0
	e.apply = func(c context.Context, b *engine.Batch) error {
		if n++; n == 20000 {
			cancel()
		}
		return mem.Apply(c, b)
	}
	_, err = s2.PutAttachment(ctx, bytes.NewReader(rnd(100, 1)), -1, "", "")
	t.Log(n, err)
	if n > 100 {
		t.Fail()
	}
}

func TestSealCountsAttachments(t *testing.T) {
	for _, distinct := range []bool{false, true} {
		st := open(t, memory.New(), &Options{NoAutoSeal: true, TakeOverAfter: -1})
		s := mk(t, st, Request{ID: "s"})
		var atts []Attachment
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
		err := s.Seal(bg)
		t.Log(distinct, err)
		if err != nil {
			t.Fail()
		}
	}
}

func TestVerifyBesideDelete(t *testing.T) {
	mem := memory.New()
	e := &eng{Engine: mem}
	st := open(t, e, nil)
	s := mk(t, st, Request{ID: "s"})
	must(t, s, Commit{Nodes: node("x")})
	other, _ := st.Session(bg, "s")
	_ = other
	k := st.space.Bucket(s.inc)
	e.get = func(ctx context.Context, ks ...[]byte) ([][]byte, error) {
		if len(ks) == 1 && bytes.Equal(ks[0], k) {
			e.get = nil
			if err := st.Delete(bg, "s", KeepChildren); err != nil {
				t.Fatal(err)
			}
		}
		return mem.Get(ctx, ks...)
	}
	v, err := st.Verify(bg, nil)
	t.Log(v.Problems, err)
	if !v.OK() {
		t.Fail()
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
	k := st.space.Pack(s.inc, 1, 0)
	other, _ := st.Session(bg, "s")
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
	v, err := st.Verify(bg, nil)
	t.Log(seen, v.Problems, err)
	if !v.OK() {
		t.Fail()
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
	must(t, s, Commit{Nodes: []NewNode{{Kind: "u", Attachments: []Attachment{a}}}})
	k := st.space.Blob(st.space.BlobHash(a.ID), 0)
	vs, _ := mem.Get(bg, k)
	body, err := codec.Open(k, vs[0], keys.Blob)
	if err != nil {
		t.Fatal(err)
	}
	refs, _ := st.blobs.Items(bg, a.ID)
	x, y := refs[0], refs[1]
	// swap the items: ids with their sizes
	i, j := bytes.Index(body, x[:]), bytes.Index(body, y[:])
	i1 := j - i // stride
	nb := bytes.Clone(body)
	copy(nb[i-3:], body[j-3:j-3+i1])
	copy(nb[i-3+i1:], body[i-3:i-3+i1])
	var b engine.Batch
	b.Set(k, codec.Seal(k, keys.Blob, nb))
	mem.Apply(bg, &b)
	var w bytes.Buffer
	_, rerr := st.blobs.WriteTo(bg, &w, a.ID)
	v, err := st.Verify(bg, nil)
	t.Log("read:", rerr, "verify:", v.Problems, err)
	if rerr != nil && v.OK() {
		t.Fail()
	}
}

func TestACancelledReadIsNoDamage(t *testing.T) {
	mem := memory.New()
	e := &eng{Engine: mem}
	st := open(t, e, nil)
	s := mk(t, st, Request{ID: "s"})
	big := rnd(2<<20, 1)
	must(t, s, Commit{Checkpoint: map[string][]byte{"a": big}})
	refs, _ := st.blobs.Items(bg, blob.Sum(big))
	k := st.space.Blob(st.space.BlobHash(refs[0]), 0)
	boom := errors.New("network down")
	e.get = func(ctx context.Context, ks ...[]byte) ([][]byte, error) {
		if bytes.Equal(ks[0], k) {
			return nil, boom
		}
		return mem.Get(ctx, ks...)
	}
	_, err := s.Checkpoint(bg, 0)
	var ce *CorruptError
	t.Log(err, errors.As(err, &ce))
	if errors.As(err, &ce) {
		t.Fail()
	}
	// cancelled
	ctx, cancel := context.WithCancel(bg)
	e.get = func(c context.Context, ks ...[]byte) ([][]byte, error) {
		if bytes.Equal(ks[0], k) {
			cancel()
		}
		return mem.Get(c, ks...)
	}
	_, err = st.blobs.Read(ctx, blob.Sum(big))
	t.Log(err, errors.As(err, &ce))
	// payload of several parts
	e.get = nil
	p := rnd(700<<10, 3)
	must(t, s, Commit{Expected: 1, Nodes: []NewNode{{Kind: "u", Payload: p}}})
	k = st.space.Blob(st.space.BlobHash(blob.Sum(p)), 1)
	e.get = func(ctx context.Context, ks ...[]byte) ([][]byte, error) {
		if bytes.Equal(ks[0], k) {
			return nil, boom
		}
		return mem.Get(ctx, ks...)
	}
	_, err = s.Load(bg, Scope{})
	t.Log(err, errors.As(err, &ce))
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
		n, _ := st2.Session(bg, "s2")
		l, lerr := n.Load(bg, Scope{})
		t.Log(op, err, errors.Is(err, ErrOutcomeUnknown), len(l.Nodes), lerr)
		if !errors.Is(err, ErrOutcomeUnknown) && len(l.Nodes) == 2 {
			t.Fail()
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
	k := st.space.Life(s.inc)
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
	pg, _ := st.List(bg, ListOptions{Parent: "q"})
	derr := st.Delete(bg, "q", RefuseChildren)
	t.Log(created, err, len(pg.Sessions), derr)
	if created && !errors.Is(derr, ErrHasChildren) {
		t.Fail()
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
			if len(ks) == 1 && bytes.Equal(ks[0], c.aboutKey) && !armed {
				armed = true
				vs, err := mem.Get(ctx, ks...)
				if op == "recreate" {
					st2.Delete(bg, "c", KeepChildren)
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
		err := st.Delete(bg, "p", CascadeChildren)
		e.get = nil
		_, cerr := st.Session(bg, "c")
		_, c2err := st.Session(bg, "c2")
		t.Log(op, armed, err, "c:", cerr, "c2:", c2err)
		if op == "recreate" && cerr != nil || op == "rename" && c2err == nil {
			t.Fail()
		}
	}
}
