package turnstone_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

func TestMarksRotate(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes 8,192 uploads")
	}
	e := memory.New()
	st := openStore(t, e, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	put := func(st *turnstone.Store, i int) blob.Attachment {
		ses, err := st.Session(ctx, "p")
		if err != nil {
			t.Fatal(err)
		}
		a, err := ses.PutAttachment(ctx, bytes.NewReader([]byte(fmt.Sprint("blob", i))), -1, "", "")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	x := put(st, 0)
	for i := 1; i < 4096; i++ { // generation full: x is in it
		put(st, i)
	}
	for i := 4096; i < 4096+4095; i++ { // x is in the older one, 4095 in the newer
		put(st, i)
	}
	other := openStore(t, e, nil) // another process uploads y and z
	y, z := put(other, -1), put(other, -2)
	_, err := p.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Attachments: []blob.Attachment{x, y, z}}}})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDeltaFuzz(t *testing.T) {
	testscale.Slow(t)
	for i := range 400 {
		base := random(1+i%40, uint64(i))
		content := bytes.Repeat(base, 1+2000/len(base))
		d, err := codec.Delta(base, content)
		if err != nil {
			t.Fatal(len(base), err)
		}
		got, err := codec.Decompress(d, base, len(content))
		if err != nil || !bytes.Equal(got, content) {
			t.Fatal(len(base), err)
		}
	}
	for _, nb := range []int{1000, 100 << 10, 255 << 10, 257 << 10, 1 << 20, 5 << 20} {
		for _, nc := range testscale.Pick([]int{1000, 300 << 10, 2 << 20, 15 << 20}, []int{1000, 300 << 10, 2 << 20}, []int{1000, 300 << 10}) {
			base := random(nb, uint64(nb))
			content := make([]byte, 0, nc)
			for len(content) < nc {
				content = append(content, base[len(content)/7%nb:]...)
				content = append(content, 'x')
			}
			content = content[:nc]
			d, err := codec.Delta(base, content)
			if err != nil {
				t.Fatal(nb, nc, err)
			}
			got, err := codec.Decompress(d, base, len(content))
			if err != nil || !bytes.Equal(got, content) {
				t.Fatal(nb, nc, err)
			}
		}
	}
}

func TestSmallBasePart(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	for n := 1; n < 20; n++ {
		commitAt(t, s, turnstone.Commit{Expected: turnstone.AnyRevision, Checkpoint: map[string][]byte{"a": bytes.Repeat([]byte("z"), n)}})
		commitAt(t, s, turnstone.Commit{Expected: turnstone.AnyRevision, Checkpoint: map[string][]byte{"a": bytes.Repeat([]byte("z"), 5000+n)}})
		if c, err := s.Checkpoint(ctx, 0); err != nil || len(c["a"]) != 5000+n {
			t.Fatal(n, err)
		}
	}
}

// full scope of a fork at a node in the middle of a commit
func TestForkFull(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	r := commitAt(t, p, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Payload: []byte("1")}, {Kind: "u", Payload: []byte("2 secret")}}})
	f := create(t, st, turnstone.Request{ID: "f", Parent: "p", ForkNode: r.Nodes[0]})
	l, err := f.Load(ctx, turnstone.Scope{Full: true})
	if err != nil || len(l.Nodes) != 1 {
		t.Error(len(l.Nodes), err)
	}
	if _, err = f.Node(ctx, r.Nodes[1]); !errors.Is(err, turnstone.ErrNodeNotFound) {
		t.Error("node after the fork node:", err)
	}
	if _, err = f.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Parent: turnstone.RefTo(r.Nodes[1])}}}); !errors.Is(err, turnstone.ErrInvalid) {
		t.Error("commit onto it:", err)
	}
}

func TestOpsLimit(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	var n []turnstone.NewNode
	for i := range 4096 {
		n = append(n, turnstone.NewNode{Kind: "u", Key: fmt.Sprint(i), Payload: bytes.Repeat([]byte(fmt.Sprint(i, " ")), 1200)})
	}
	_, err := s.Commit(ctx, turnstone.Commit{Nodes: n})
	var le *turnstone.LimitError
	if !errors.As(err, &le) || le.Limit != "writes" {
		t.Error(err)
	}
}

func TestOriginAlias(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	r := commitAt(t, p, turnstone.Commit{Nodes: saying([]byte("x")), Checkpoint: map[string][]byte{"a": []byte("1")}})
	commitAt(t, p, turnstone.Commit{Expected: 1, Nodes: saying([]byte("x"))})
	f := create(t, st, turnstone.Request{ID: "f", Parent: "p", ForkNode: r.Leaf})
	commitAt(t, f, turnstone.Commit{Nodes: saying([]byte("x"))})
	commitAt(t, f, turnstone.Commit{Expected: 1, Nodes: saying([]byte("x"))})
	l, err := f.Load(ctx, turnstone.Scope{At: 1})
	if err != nil {
		t.Fatal(err)
	}
	l.Parts[0].Name = "mine"
	_, err = f.Load(ctx, turnstone.Scope{At: 1})
	if err != nil {
		t.Error(err)
	}
}
