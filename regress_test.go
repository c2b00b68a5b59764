package turnstone_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"

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

func TestForkParts(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	for i := range 3 {
		commitAt(t, p, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: saying([]byte("x")), Checkpoint: map[string][]byte{"a": []byte(fmt.Sprint(i))}})
	}
	f := create(t, st, turnstone.Request{ID: "f", Parent: "p"})
	commitAt(t, f, turnstone.Commit{Nodes: saying([]byte("y")), Checkpoint: map[string][]byte{"b": []byte("b")}})
	f2, err := st.Session(ctx, "f")
	if err != nil {
		t.Fatal(err)
	}
	if l, err := f2.Load(ctx, turnstone.Scope{}); err != nil || len(l.Nodes) != 4 {
		t.Errorf("load: %+v, %v", l, err)
	}
	commitAt(t, f2, turnstone.Commit{Expected: 1, Nodes: saying([]byte("y"))})
	if parts, err := f2.Checkpoint(ctx, 0); err != nil || string(parts["a"]) != "2" || string(parts["b"]) != "b" || len(parts) != 2 {
		t.Errorf("checkpoint: %q, %v", parts, err)
	}
}

// fork: parent set part at rev 1, fork sets nothing at rev1, part Set==1 lookups
func TestForkParts2(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	commitAt(t, p, turnstone.Commit{Expected: 0, Nodes: saying([]byte("x")), Checkpoint: map[string][]byte{"a": []byte("A")}})
	f := create(t, st, turnstone.Request{ID: "f", Parent: "p"})
	commitAt(t, f, turnstone.Commit{Expected: 0, Nodes: saying([]byte("y"))})
	commitAt(t, f, turnstone.Commit{Expected: 1, Nodes: saying([]byte("y")), Checkpoint: map[string][]byte{"b": []byte("B")}})
	commitAt(t, f, turnstone.Commit{Expected: 2, Nodes: saying([]byte("y"))})
	for r := head.Revision(1); r <= 3; r++ {
		got, err := f.Checkpoint(ctx, r)
		if err != nil || string(got["a"]) != "A" {
			t.Error(r, got, err)
		}
	}
}

func partVersion(n int) []byte {
	b := random(3000, 1)
	return append(b, []byte(fmt.Sprintf("version %d", n))...)
}

func TestDepthRestart(t *testing.T) {
	e := memory.New()
	st := openStore(t, e, nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	for i := range 50 {
		commitAt(t, s, turnstone.Commit{Expected: turnstone.AnyRevision, Checkpoint: map[string][]byte{"a": partVersion(i)}})
	}
	st2 := openStore(t, e, nil) // restart
	s, err := st2.Session(ctx, "s")
	if err != nil {
		t.Fatal(err)
	}
	commitAt(t, s, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: saying([]byte("x")), Checkpoint: map[string][]byte{"a": partVersion(49)}}) // unchanged
	for i := 50; i < 80; i++ {
		commitAt(t, s, turnstone.Commit{Expected: turnstone.AnyRevision, Checkpoint: map[string][]byte{"a": partVersion(i)}})
	}
	for i := 49; i < 82; i++ {
		if _, err := s.Checkpoint(ctx, head.Revision(i)); err != nil {
			t.Fatal(i, err)
		}
	}
}

func TestDepthShared(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	for i := range 50 {
		commitAt(t, s, turnstone.Commit{Expected: turnstone.AnyRevision, Checkpoint: map[string][]byte{"a": partVersion(i)}})
	}
	b := create(t, st, turnstone.Request{ID: "b"})
	for i := 49; i < 80; i++ {
		commitAt(t, b, turnstone.Commit{Expected: turnstone.AnyRevision, Checkpoint: map[string][]byte{"a": partVersion(i)}})
	}
	if _, err := b.Checkpoint(ctx, 0); err != nil {
		t.Fatal(err)
	}
}

// What does not fit beside a commit is stored ahead of it, and never as a delta.
func TestDepthAhead(t *testing.T) {
	testscale.Slow(t)
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	for i := range 70 {
		commitAt(t, s, turnstone.Commit{
			Expected:   turnstone.AnyRevision,
			Nodes:      []turnstone.NewNode{{Kind: "u", Payload: random(600<<10, uint64(2*i))}, {Kind: "u", Payload: random(600<<10, uint64(2*i+1))}},
			Checkpoint: map[string][]byte{"a": partVersion(i)},
		})
		if parts, err := s.Checkpoint(ctx, 0); err != nil || !bytes.Equal(parts["a"], partVersion(i)) {
			t.Fatal(i, err)
		}
	}
}

func TestAttachmentFork(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	a, err := p.PutAttachment(ctx, bytes.NewReader(random(100, 1)), -1, "", "")
	if err != nil {
		t.Fatal(err)
	}
	n := []turnstone.NewNode{{Kind: "u", Attachments: []blob.Attachment{a}}}
	commitAt(t, p, turnstone.Commit{Expected: 0, Nodes: n})
	f := create(t, st, turnstone.Request{ID: "f", Parent: "p"})
	var w bytes.Buffer
	if _, err := f.ReadAttachment(ctx, &w, a.ID); err != nil {
		t.Fatal(err)
	}
	commitAt(t, p, turnstone.Commit{Expected: 1, Nodes: n})
	if _, err := f.ReadAttachment(ctx, &w, a.ID); err != nil {
		t.Fatal("after the parent's second use:", err)
	}
}

func TestManyAttachments(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes 8,300 uploads")
	}
	st := openStore(t, memory.New(), nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	var n []turnstone.NewNode
	for i := range 8300 {
		a, err := p.PutAttachment(ctx, bytes.NewReader([]byte(fmt.Sprint("blob", i))), -1, "", "")
		if err != nil {
			t.Fatal(err)
		}
		if i%64 == 0 {
			n = append(n, turnstone.NewNode{Kind: "u"})
		}
		n[len(n)-1].Attachments = append(n[len(n)-1].Attachments, a)
	}
	if _, err := p.Commit(ctx, turnstone.Commit{Nodes: n}); err != nil {
		t.Fatal(err)
	}
}

func TestAliasHead(t *testing.T) {
	e := memory.New()
	st := openStore(t, e, nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	commitAt(t, s, turnstone.Commit{Nodes: saying([]byte("x")), Usage: []head.Usage{{Model: "m", Input: 1}}, Checkpoint: map[string][]byte{"a": []byte("1"), "b": []byte("2")}})
	l, err := s.Load(ctx, turnstone.Scope{})
	if err != nil {
		t.Fatal(err)
	}
	l.Usage[0].Input = 1000
	l.Parts[0], l.Parts[1] = l.Parts[1], l.Parts[0]
	commitAt(t, s, turnstone.Commit{Expected: 1, Nodes: saying([]byte("y"))})
	s2, err := st.Session(ctx, "s")
	if err != nil {
		t.Fatal("session lost:", err)
	}
	i, err := s2.Info(ctx)
	if err != nil || i.Usage[0].Input != 1 {
		t.Fatal(i, err)
	}
}

func TestReplayPartsLimit(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	c := turnstone.Commit{Expected: turnstone.AnyRevision, Turn: "T", Nodes: saying([]byte("x")), Checkpoint: map[string][]byte{"tmp": []byte("1")}}
	commitAt(t, s, c)
	full := map[string][]byte{}
	for i := range 64 {
		full[fmt.Sprint("p", i)] = []byte("v")
	}
	commitAt(t, s, turnstone.Commit{Expected: turnstone.AnyRevision, Drop: []string{"tmp"}, Checkpoint: full})
	r, err := s.Commit(ctx, c)
	if err != nil || !r.Replayed {
		t.Fatal(r, err)
	}
}

func TestSealTooLarge(t *testing.T) {
	testscale.Slow(t)
	st := openStore(t, memory.New(), &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
	s := create(t, st, turnstone.Request{ID: "s"})
	var small, big []turnstone.NewNode
	for i := range 30 {
		small = append(small, turnstone.NewNode{Kind: "u", Payload: random(5000, uint64(i))})
	}
	for i := range 400 {
		big = append(big, turnstone.NewNode{Kind: "u", Payload: random(5000, uint64(1000+i))})
	}
	commitAt(t, s, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: small})
	commitAt(t, s, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: big})
	if err := st.Seal(ctx); err != nil {
		t.Error(err)
	}
	st2 := openStore(t, memory.New(), &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1, SealBytes: turnstone.MaxSeal})
	s = create(t, st2, turnstone.Request{ID: "s"})
	for i := range 30 {
		for j := range small {
			small[j].Payload = random(5000, uint64(5000+i*100+j))
		}
		commitAt(t, s, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: small})
	}
	if err := st2.Seal(ctx); err != nil {
		t.Error("SealBytes 4M:", err)
	}
}

func TestVerifyShortKey(t *testing.T) {
	for _, suffix := range []string{"", "b", "mab", "sx"} {
		t.Run(suffix, func(t *testing.T) {
			e := memory.New()
			st := openStore(t, e, nil)
			k := append(bytes.Clone(keys.StoreKey("")[:4]), suffix...)
			var b engine.Batch
			b.Set(k, []byte("x"))
			if err := e.Apply(ctx, &b); err != nil {
				t.Fatal(err)
			}
			v, err := st.Verify(ctx, turnstone.VerifyOptions{})
			if err != nil || len(v.Problems) != 1 || !errors.Is(v.Problems[0], record.ErrMalformed) {
				t.Errorf("verify: %v, %v", v.Problems, err)
			}
			if _, err := st.Stats(ctx); !errors.Is(err, record.ErrMalformed) {
				t.Errorf("stats: %v", err)
			}
		})
	}
}

func TestTampered(t *testing.T) {
	e := memory.New()
	st := openStore(t, e, nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	r := commitAt(t, s, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Payload: []byte("true"), Key: "k"}, {Kind: "u", Payload: []byte("b"), Parent: turnstone.RefNone()}}})
	seg, err := pack.SegmentAt(ctx, e, turnstone.SpaceOf(st), turnstone.IncarnationOf(s), 1)
	if err != nil {
		t.Fatal(err)
	}
	p := &seg.Packs[0]
	if _, err := p.Resolve(graph.ID{}); err != nil {
		t.Fatal(err)
	}
	p.Nodes[0].Inline = []byte("FAKE")
	ks, vs, err := pack.EncodeSegment(turnstone.SpaceOf(st), turnstone.IncarnationOf(s), seg.Packs, graph.ID{}, codec.Fast)
	if err != nil || len(ks) != 1 {
		t.Fatal(len(ks), err)
	}
	var b engine.Batch
	b.Set(ks[0], vs[0])
	if err := e.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
	var damage *record.CorruptError
	if _, err := s.Load(ctx, turnstone.Scope{Full: true}); !errors.As(err, &damage) {
		t.Errorf("full: %v", err)
	}
	if _, err := s.NodeByKey(ctx, "k"); !errors.As(err, &damage) {
		t.Errorf("by key: %v", err)
	}
	// The id of the altered node is another one, which was never committed.
	if n, err := s.Node(ctx, r.Nodes[0]); !errors.As(err, &damage) && !errors.Is(err, turnstone.ErrNodeNotFound) {
		t.Errorf("by id: %q, %v", n.Payload, err)
	}
}

func TestIndexLost(t *testing.T) {
	e := memory.New()
	st := openStore(t, e, nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	commitAt(t, s, turnstone.Commit{Nodes: saying([]byte("x"))})
	r := commitAt(t, s, turnstone.Commit{Expected: 1, Nodes: saying([]byte("x"))})
	if err := s.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	var b engine.Batch
	b.Delete(turnstone.SpaceOf(st).Index(turnstone.IncarnationOf(s), 2))
	if err := e.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Node(ctx, r.Leaf); !errors.Is(err, turnstone.ErrNodeNotFound) {
		t.Error(err)
	}
	if _, err := s.Load(ctx, turnstone.Scope{Last: 1}); err != nil { // needs no index
		t.Error(err)
	}
	if v, err := st.Verify(ctx, turnstone.VerifyOptions{}); err != nil || v.OK() {
		t.Error("verify does not notice", err)
	}
}

func TestFarFuture(t *testing.T) {
	st := openStore(t, memory.New(), &turnstone.Options{Now: func() time.Time { return time.Date(2150, 1, 1, 0, 0, 0, 0, time.UTC) }})
	_, _, err := st.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Error(err)
	}
}

func TestForkCleared(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	commitAt(t, p, turnstone.Commit{Checkpoint: map[string][]byte{"a": []byte("A")}})
	f := create(t, st, turnstone.Request{ID: "f", Parent: "p"})
	c, err := f.Checkpoint(ctx, 0)
	if err != nil || len(c) != 1 || string(c["a"]) != "A" {
		t.Error(c, err)
	}
}
