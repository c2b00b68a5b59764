package turnstone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/pack"
	"github.com/turnstonedb/turnstone/internal/testscale"
	"github.com/turnstonedb/turnstone/record"
)

// Each test here is a bug that a review found, and stays to show that it is gone.

var bg = context.Background()

type eng struct {
	engine.Engine
	apply func(ctx context.Context, b *engine.Batch) error
	get   func(ctx context.Context, ks ...[]byte) ([][]byte, error)
	scan  func(r engine.Range)
	pair  func(p engine.Pair)
	fail  func(p engine.Pair) error // of a scan that comes to p
}

func (e *eng) Apply(ctx context.Context, b *engine.Batch) error {
	if e.apply != nil {
		return e.apply(ctx, b)
	}
	return e.Engine.Apply(ctx, b)
}

func (e *eng) Get(ctx context.Context, ks ...[]byte) ([][]byte, error) {
	if e.get != nil {
		return e.get(ctx, ks...)
	}
	return e.Engine.Get(ctx, ks...)
}

func (e *eng) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	if e.scan != nil {
		e.scan(r)
	}
	return func(yield func(engine.Pair, error) bool) {
		for p, err := range e.Engine.Scan(ctx, r) {
			if e.pair != nil && err == nil {
				e.pair(p)
			}
			if e.fail != nil && err == nil {
				if err = e.fail(p); err != nil {
					p = engine.Pair{}
				}
			}
			if !yield(p, err) {
				return
			}
		}
	}
}

func open(t *testing.T, e engine.Engine, o *Options) *Store {
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.TakeOverAfter == 0 {
		opts.TakeOverAfter = -1 // what a test has cut off has died
	}
	st, err := Open(bg, e, &opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

func mk(t *testing.T, st *Store, r Request) *Session {
	s, _, err := st.Create(bg, r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func must(t *testing.T, s *Session, c Commit) Result {
	t.Helper()
	r, err := s.Commit(bg, c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func rnd(n int, seed uint64) []byte {
	var k [32]byte
	k[0], k[1], k[2] = byte(seed), byte(seed>>8), byte(seed>>16)
	b := make([]byte, n)
	rand.NewChaCha8(k).Read(b)
	return b
}
func node(p string) []NewNode { return []NewNode{{Kind: "u", Payload: []byte(p)}} }

func TestForkParts(t *testing.T) {
	st := open(t, memory.New(), nil)
	p := mk(t, st, Request{ID: "p"})
	for i := range 3 {
		must(t, p, Commit{Expected: AnyRevision, Nodes: node("x"), Checkpoint: map[string][]byte{"a": []byte(fmt.Sprint(i))}})
	}
	f := mk(t, st, Request{ID: "f", Parent: "p"})
	must(t, f, Commit{Nodes: node("y"), Checkpoint: map[string][]byte{"b": []byte("b")}})
	f2, err := st.Session(bg, "f")
	if err != nil {
		t.Fatal(err)
	}
	if l, err := f2.Load(bg, Scope{}); err != nil || len(l.Nodes) != 4 {
		t.Errorf("load: %+v, %v", l, err)
	}
	must(t, f2, Commit{Expected: 1, Nodes: node("y")})
	if parts, err := f2.Checkpoint(bg, 0); err != nil || string(parts["a"]) != "2" || string(parts["b"]) != "b" || len(parts) != 2 {
		t.Errorf("checkpoint: %q, %v", parts, err)
	}
}

// fork: parent set part at rev 1, fork sets nothing at rev1, part Set==1 lookups
func TestForkParts2(t *testing.T) {
	st := open(t, memory.New(), nil)
	p := mk(t, st, Request{ID: "p"})
	must(t, p, Commit{Expected: 0, Nodes: node("x"), Checkpoint: map[string][]byte{"a": []byte("A")}})
	f := mk(t, st, Request{ID: "f", Parent: "p"})
	must(t, f, Commit{Expected: 0, Nodes: node("y")})
	must(t, f, Commit{Expected: 1, Nodes: node("y"), Checkpoint: map[string][]byte{"b": []byte("B")}})
	must(t, f, Commit{Expected: 2, Nodes: node("y")})
	for r := head.Revision(1); r <= 3; r++ {
		got, err := f.Checkpoint(bg, r)
		if err != nil || string(got["a"]) != "A" {
			t.Error(r, got, err)
		}
	}
}

func doc(n int) []byte {
	b := rnd(3000, 1)
	return append(b, []byte(fmt.Sprintf("version %d", n))...)
}

func TestDepthRestart(t *testing.T) {
	e := memory.New()
	st := open(t, e, nil)
	s := mk(t, st, Request{ID: "s"})
	for i := range 50 {
		must(t, s, Commit{Expected: AnyRevision, Checkpoint: map[string][]byte{"a": doc(i)}})
	}
	st2 := open(t, e, nil) // restart
	s, err := st2.Session(bg, "s")
	if err != nil {
		t.Fatal(err)
	}
	must(t, s, Commit{Expected: AnyRevision, Nodes: node("x"), Checkpoint: map[string][]byte{"a": doc(49)}}) // unchanged
	for i := 50; i < 80; i++ {
		must(t, s, Commit{Expected: AnyRevision, Checkpoint: map[string][]byte{"a": doc(i)}})
	}
	for i := 49; i < 82; i++ {
		if _, err := s.Checkpoint(bg, head.Revision(i)); err != nil {
			t.Fatal(i, err)
		}
	}
}

func TestDepthShared(t *testing.T) {
	st := open(t, memory.New(), nil)
	s := mk(t, st, Request{ID: "s"})
	for i := range 50 {
		must(t, s, Commit{Expected: AnyRevision, Checkpoint: map[string][]byte{"a": doc(i)}})
	}
	b := mk(t, st, Request{ID: "b"})
	for i := 49; i < 80; i++ {
		must(t, b, Commit{Expected: AnyRevision, Checkpoint: map[string][]byte{"a": doc(i)}})
	}
	if _, err := b.Checkpoint(bg, 0); err != nil {
		t.Fatal(err)
	}
}

// What does not fit beside a commit is stored ahead of it, and never as a delta.
func TestDepthAhead(t *testing.T) {
	testscale.Slow(t)
	st := open(t, memory.New(), nil)
	s := mk(t, st, Request{ID: "s"})
	for i := range 70 {
		must(t, s, Commit{
			Expected:   AnyRevision,
			Nodes:      []NewNode{{Kind: "u", Payload: rnd(600<<10, uint64(2*i))}, {Kind: "u", Payload: rnd(600<<10, uint64(2*i+1))}},
			Checkpoint: map[string][]byte{"a": doc(i)},
		})
		if parts, err := s.Checkpoint(bg, 0); err != nil || !bytes.Equal(parts["a"], doc(i)) {
			t.Fatal(i, err)
		}
	}
}

func TestAttachmentFork(t *testing.T) {
	st := open(t, memory.New(), nil)
	p := mk(t, st, Request{ID: "p"})
	a, err := p.PutAttachment(bg, bytes.NewReader(rnd(100, 1)), -1, "", "")
	if err != nil {
		t.Fatal(err)
	}
	n := []NewNode{{Kind: "u", Attachments: []blob.Attachment{a}}}
	must(t, p, Commit{Expected: 0, Nodes: n})
	f := mk(t, st, Request{ID: "f", Parent: "p"})
	var w bytes.Buffer
	if _, err := f.ReadAttachment(bg, &w, a.ID); err != nil {
		t.Fatal(err)
	}
	must(t, p, Commit{Expected: 1, Nodes: n})
	if _, err := f.ReadAttachment(bg, &w, a.ID); err != nil {
		t.Fatal("after the parent's second use:", err)
	}
}

func TestManyAttachments(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes 8,300 uploads")
	}
	st := open(t, memory.New(), nil)
	p := mk(t, st, Request{ID: "p"})
	var n []NewNode
	for i := range 8300 {
		a, err := p.PutAttachment(bg, bytes.NewReader([]byte(fmt.Sprint("blob", i))), -1, "", "")
		if err != nil {
			t.Fatal(err)
		}
		if i%64 == 0 {
			n = append(n, NewNode{Kind: "u"})
		}
		n[len(n)-1].Attachments = append(n[len(n)-1].Attachments, a)
	}
	if _, err := p.Commit(bg, Commit{Nodes: n}); err != nil {
		t.Fatal(err)
	}
}

func TestAliasHead(t *testing.T) {
	e := memory.New()
	st := open(t, e, nil)
	s := mk(t, st, Request{ID: "s"})
	must(t, s, Commit{Nodes: node("x"), Usage: []head.Usage{{Model: "m", Input: 1}}, Checkpoint: map[string][]byte{"a": []byte("1"), "b": []byte("2")}})
	l, err := s.Load(bg, Scope{})
	if err != nil {
		t.Fatal(err)
	}
	l.Usage[0].Input = 1000
	l.Parts[0], l.Parts[1] = l.Parts[1], l.Parts[0]
	must(t, s, Commit{Expected: 1, Nodes: node("y")})
	s2, err := st.Session(bg, "s")
	if err != nil {
		t.Fatal("session lost:", err)
	}
	i, err := s2.Info(bg)
	if err != nil || i.Usage[0].Input != 1 {
		t.Fatal(i, err)
	}
}

func TestReplayPartsLimit(t *testing.T) {
	st := open(t, memory.New(), nil)
	s := mk(t, st, Request{ID: "s"})
	c := Commit{Expected: AnyRevision, Turn: "T", Nodes: node("x"), Checkpoint: map[string][]byte{"tmp": []byte("1")}}
	must(t, s, c)
	full := map[string][]byte{}
	for i := range 64 {
		full[fmt.Sprint("p", i)] = []byte("v")
	}
	must(t, s, Commit{Expected: AnyRevision, Drop: []string{"tmp"}, Checkpoint: full})
	r, err := s.Commit(bg, c)
	if err != nil || !r.Replayed {
		t.Fatal(r, err)
	}
}

func TestUnknownThenReadFails(t *testing.T) {
	e := &eng{Engine: memory.New()}
	st := open(t, e, nil)
	s := mk(t, st, Request{ID: "s"})
	must(t, s, Commit{Nodes: node("x")})
	ctx, cancel := context.WithCancel(bg)
	n := 0
	e.apply = func(c context.Context, b *engine.Batch) error {
		n++
		err := e.Engine.Apply(c, b)
		if n == 1 && err == nil {
			return engine.ErrUnknown
		}
		cancel() // the caller gives up while the retry is under way
		return err
	}
	_, err := s.Commit(ctx, Commit{Expected: 1, Nodes: node("y"), Turn: "t"})
	e.apply = nil
	if !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, context.Canceled) {
		t.Errorf("commit: %v", err)
	}
	if i, err := s.Info(bg); err != nil || i.Revision != 2 {
		t.Errorf("the commit stands, at revision %d, %v", i.Revision, err)
	}
}

func TestCreateUnknown(t *testing.T) {
	e := &eng{Engine: memory.New()}
	st := open(t, e, nil)
	var late *engine.Batch
	e.apply = func(c context.Context, b *engine.Batch) error {
		if late == nil {
			late = b
			return engine.ErrUnknown // still under way
		}
		return e.Engine.Apply(c, b)
	}
	mk(t, st, Request{ID: "s"})
	if err := st.Delete(bg, "s", KeepChildren); err != nil {
		t.Fatal(err)
	}
	if err := e.Engine.Apply(bg, late); !errors.Is(err, engine.ErrConflict) {
		t.Error("the first attempt, which comes late:", err)
	}
	if _, err := st.Session(bg, "s"); !errors.Is(err, ErrSessionNotFound) {
		t.Error("deleted session is back:", err)
	}
	n := 0
	e.apply = func(c context.Context, b *engine.Batch) error {
		n++
		err := e.Engine.Apply(c, b)
		if n == 1 && err == nil {
			return engine.ErrUnknown
		}
		return err
	}
	_, created, err := st.Create(bg, Request{ID: "z"})
	if !created || err != nil {
		t.Error("created", created, err)
	}
	n = 0
	if err := st.Rename(bg, "z", "zz"); err != nil {
		t.Error("rename:", err)
	}
	if n == 0 {
		t.Error("nothing was unknown")
	}
}

func TestSealTooLarge(t *testing.T) {
	testscale.Slow(t)
	st := open(t, memory.New(), &Options{NoAutoSeal: true, TakeOverAfter: -1})
	s := mk(t, st, Request{ID: "s"})
	var small, big []NewNode
	for i := range 30 {
		small = append(small, NewNode{Kind: "u", Payload: rnd(5000, uint64(i))})
	}
	for i := range 400 {
		big = append(big, NewNode{Kind: "u", Payload: rnd(5000, uint64(1000+i))})
	}
	must(t, s, Commit{Expected: AnyRevision, Nodes: small})
	must(t, s, Commit{Expected: AnyRevision, Nodes: big})
	if err := st.Seal(bg); err != nil {
		t.Error(err)
	}
	st2 := open(t, memory.New(), &Options{NoAutoSeal: true, TakeOverAfter: -1, SealBytes: MaxSeal})
	s = mk(t, st2, Request{ID: "s"})
	for i := range 30 {
		for j := range small {
			small[j].Payload = rnd(5000, uint64(5000+i*100+j))
		}
		must(t, s, Commit{Expected: AnyRevision, Nodes: small})
	}
	if err := st2.Seal(bg); err != nil {
		t.Error("SealBytes 4M:", err)
	}
}

func TestVerifyBesideCommit(t *testing.T) {
	e := &eng{Engine: memory.New()}
	st := open(t, e, &Options{NoAutoSeal: true, TakeOverAfter: -1})
	s := mk(t, st, Request{ID: "s"})
	for i := range 1200 {
		must(t, s, Commit{Expected: AnyRevision, Checkpoint: map[string][]byte{"a": []byte(fmt.Sprint(i))}})
	}
	var done atomic.Bool
	e.pair = func(p engine.Pair) {
		if l, _, _ := st.space.Fields(p.Key); l == keys.Commit && !done.Swap(true) {
			must(t, s, Commit{Expected: AnyRevision, Checkpoint: map[string][]byte{"a": []byte("new")}})
		}
	}
	v, err := st.Verify(bg, VerifyOptions{})
	if err != nil || !v.OK() || !done.Load() {
		t.Error(err, v.Problems, done.Load())
	}
}

// A session gets its first commit when Verify has read its head, which is empty.
func TestVerifyEmptySession(t *testing.T) {
	mem := memory.New()
	e := &eng{Engine: mem}
	st := open(t, e, &Options{NoAutoSeal: true, TakeOverAfter: -1})
	s := mk(t, st, Request{ID: "s"})
	committed := 0
	e.get = func(ctx context.Context, ks ...[]byte) ([][]byte, error) {
		vs, err := mem.Get(ctx, ks...)
		if slices.ContainsFunc(ks, func(k []byte) bool { return bytes.Equal(k, s.session.HeadKey) }) {
			e.get = nil
			committed++
			must(t, s, Commit{Expected: AnyRevision, Nodes: node("x")})
		}
		return vs, err
	}
	v, err := st.Verify(bg, VerifyOptions{})
	if err != nil || !v.OK() || committed != 1 {
		t.Error(err, v.Problems, committed)
	}
}

func TestVerifyShortKey(t *testing.T) {
	for _, suffix := range []string{"", "b", "mab", "sx"} {
		t.Run(suffix, func(t *testing.T) {
			e := memory.New()
			st := open(t, e, nil)
			k := append(bytes.Clone(keys.StoreKey("")[:4]), suffix...)
			var b engine.Batch
			b.Set(k, []byte("x"))
			if err := e.Apply(bg, &b); err != nil {
				t.Fatal(err)
			}
			v, err := st.Verify(bg, VerifyOptions{})
			if err != nil || len(v.Problems) != 1 || !errors.Is(v.Problems[0], record.ErrMalformed) {
				t.Errorf("verify: %v, %v", v.Problems, err)
			}
			if _, err := st.Stats(bg); !errors.Is(err, record.ErrMalformed) {
				t.Errorf("stats: %v", err)
			}
		})
	}
}

func TestTampered(t *testing.T) {
	e := memory.New()
	st := open(t, e, nil)
	s := mk(t, st, Request{ID: "s"})
	r := must(t, s, Commit{Nodes: []NewNode{{Kind: "u", Payload: []byte("true"), Key: "k"}, {Kind: "u", Payload: []byte("b"), Parent: RefNone()}}})
	seg, err := pack.SegmentAt(bg, e, st.space, s.session.Inc, 1)
	if err != nil {
		t.Fatal(err)
	}
	p := &seg.Packs[0]
	if _, err := p.Resolve(graph.ID{}); err != nil {
		t.Fatal(err)
	}
	p.Nodes[0].Inline = []byte("FAKE")
	ks, vs, err := pack.EncodeSegment(st.space, s.session.Inc, seg.Packs, graph.ID{}, codec.Fast)
	if err != nil || len(ks) != 1 {
		t.Fatal(len(ks), err)
	}
	var b engine.Batch
	b.Set(ks[0], vs[0])
	if err := e.Apply(bg, &b); err != nil {
		t.Fatal(err)
	}
	var damage *record.CorruptError
	if _, err := s.Load(bg, Scope{Full: true}); !errors.As(err, &damage) {
		t.Errorf("full: %v", err)
	}
	if _, err := s.NodeByKey(bg, "k"); !errors.As(err, &damage) {
		t.Errorf("by key: %v", err)
	}
	// The id of the altered node is another one, which was never committed.
	if n, err := s.Node(bg, r.Nodes[0]); !errors.As(err, &damage) && !errors.Is(err, ErrNodeNotFound) {
		t.Errorf("by id: %q, %v", n.Payload, err)
	}
}

func TestIndexLost(t *testing.T) {
	e := memory.New()
	st := open(t, e, nil)
	s := mk(t, st, Request{ID: "s"})
	must(t, s, Commit{Nodes: node("x")})
	r := must(t, s, Commit{Expected: 1, Nodes: node("x")})
	if err := s.Seal(bg); err != nil {
		t.Fatal(err)
	}
	var b engine.Batch
	b.Delete(st.space.Index(s.session.Inc, 2))
	if err := e.Apply(bg, &b); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Node(bg, r.Leaf); !errors.Is(err, ErrNodeNotFound) {
		t.Error(err)
	}
	if _, err := s.Load(bg, Scope{Last: 1}); err != nil { // needs no index
		t.Error(err)
	}
	if v, err := st.Verify(bg, VerifyOptions{}); err != nil || v.OK() {
		t.Error("verify does not notice", err)
	}
}

func TestListRename(t *testing.T) {
	e := &eng{Engine: memory.New()}
	st := open(t, e, nil)
	mk(t, st, Request{ID: "a"})
	mk(t, st, Request{ID: "b"})
	e.pair = func(p engine.Pair) {
		e.pair = nil
		if err := st.Rename(bg, "b", "c"); err != nil {
			t.Error(err)
		}
		if err := st.Rename(bg, "a", "d"); err != nil {
			t.Error(err)
		}
	}
	p, err := st.List(bg, ListOptions{})
	if err != nil || len(p.Sessions) != 2 || e.pair != nil {
		t.Error(len(p.Sessions), err, "renamed meanwhile:", e.pair == nil)
	}
}

func TestFarFuture(t *testing.T) {
	st := open(t, memory.New(), &Options{Now: func() time.Time { return time.Date(2150, 1, 1, 0, 0, 0, 0, time.UTC) }})
	_, _, err := st.Create(bg, Request{ID: "s"})
	if err != nil {
		t.Error(err)
	}
}

func TestForkCleared(t *testing.T) {
	st := open(t, memory.New(), nil)
	p := mk(t, st, Request{ID: "p"})
	must(t, p, Commit{Checkpoint: map[string][]byte{"a": []byte("A")}})
	f := mk(t, st, Request{ID: "f", Parent: "p"})
	c, err := f.Checkpoint(bg, 0)
	if err != nil || len(c) != 1 || string(c["a"]) != "A" {
		t.Error(c, err)
	}
}
