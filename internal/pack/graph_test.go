package pack_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/fxamacker/cbor/v2"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/pack"
	"github.com/turnstonedb/turnstone/record"
)

var (
	ctx   = context.Background()
	space = keys.New("", [32]byte{1})
	inc   = keys.Incarnation{7}
)

// packOf makes a resolved pack of n nodes in a chain after before, with a branch.
func packOf(revision uint64, n int, before graph.ID) pack.Pack {
	p := pack.Pack{Revision: revision, Salt: pack.Salt{byte(revision)}, Nodes: make([]pack.Node, n)}
	for i := range p.Nodes {
		node := &p.Nodes[i]
		*node = pack.Node{Parent: before, Kind: "text", Inline: fmt.Appendf(nil, "%d/%d", revision, i)}
		switch i % 4 {
		case 1:
			node.Key = fmt.Sprint("key", i)
			node.Attachments = []blob.Attachment{{ID: blob.ID{1}, Size: 3, MediaType: "image/png", Name: "x"}}
		case 2:
			node.Inline, node.Blob, node.Size = nil, blob.ID{byte(i)}, 9000
		case 3:
			node.Parent = p.Nodes[i-2].ID
		}
		node.Derive(p.Salt, i, nil)
		before = node.ID
	}
	return p
}

func store(t testing.TB, e engine.Engine, packs []pack.Pack, before graph.ID) {
	level := codec.Fast
	if len(packs) > 1 {
		level = codec.Best
	}
	ks, vs, err := pack.EncodeSegment(space, inc, packs, before, level)
	if err != nil {
		t.Fatal(err)
	}
	var b engine.Batch
	for i := range ks {
		b.Set(ks[i], vs[i])
	}
	if err := e.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
}

func TestSegmentsComeBackAndIDsAreDerived(t *testing.T) {
	e := memory.New()
	var want []graph.ID
	var before graph.ID
	first := graph.ID{}
	for seg := range 3 {
		var packs []pack.Pack
		start := before
		for i := range 4 {
			p := packOf(uint64(seg*10+i+1), 5, before)
			before = p.Nodes[4].ID
			for _, n := range p.Nodes {
				want = append(want, n.ID)
			}
			packs = append(packs, p)
		}
		store(t, e, packs, start)
	}
	var got []graph.ID
	last := first
	for seg, err := range pack.Segments(ctx, e, space, inc, 1, 100) {
		if err != nil {
			t.Fatal(err)
		}
		for i := range seg.Packs {
			if last, err = seg.Packs[i].Resolve(last); err != nil {
				t.Fatal(err)
			}
			for _, n := range seg.Packs[i].Nodes {
				got = append(got, n.ID)
			}
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%d ids, want %d, or they differ", len(got), len(want))
	}
	for r, first := range map[uint64]uint64{1: 1, 4: 1, 5: 11, 12: 11, 24: 21} {
		seg, err := pack.SegmentAt(ctx, e, space, inc, r)
		if r == 5 { // between two segments: no commit of it has nodes
			if !errors.Is(err, pack.ErrNoSegment) && (err != nil || seg.Packs[0].Revision != first) {
				t.Errorf("revision 5: %v", err)
			}
			continue
		}
		if err != nil || seg.Packs[0].Revision != first {
			t.Errorf("revision %d is in the segment of %d: %v", r, seg.Packs[0].Revision, err)
		}
	}
	if _, err := pack.SegmentAt(ctx, e, space, inc, 25); !errors.Is(err, pack.ErrNoSegment) {
		t.Error(err)
	}
}

// An id vouches for everything but the place where it is stored.
func TestIDsVouchForContent(t *testing.T) {
	base := pack.Node{Parent: graph.ID{1}, Kind: "k", Key: "key", Inline: []byte("payload")}
	id := func(n pack.Node, salt pack.Salt, at int) graph.ID {
		n.Derive(salt, at, nil)
		return n.ID
	}
	want := id(base, pack.Salt{1}, 0)
	for name, other := range map[string]graph.ID{
		"salt":       id(base, pack.Salt{2}, 0),
		"position":   id(base, pack.Salt{1}, 1),
		"parent":     id(pack.Node{Parent: graph.ID{2}, Kind: "k", Key: "key", Inline: base.Inline}, pack.Salt{1}, 0),
		"kind":       id(pack.Node{Parent: graph.ID{1}, Kind: "l", Key: "key", Inline: base.Inline}, pack.Salt{1}, 0),
		"key":        id(pack.Node{Parent: graph.ID{1}, Kind: "k", Inline: base.Inline}, pack.Salt{1}, 0),
		"payload":    id(pack.Node{Parent: graph.ID{1}, Kind: "k", Key: "key", Inline: []byte("Payload")}, pack.Salt{1}, 0),
		"attachment": id(pack.Node{Parent: graph.ID{1}, Kind: "k", Key: "key", Inline: base.Inline, Attachments: []blob.Attachment{{ID: blob.ID{1}}}}, pack.Salt{1}, 0),
	} {
		if other == want {
			t.Errorf("another %s has the same id", name)
		}
	}
}

func TestDamageIsNamed(t *testing.T) {
	for name, damage := range map[string]func(e engine.Engine, k []byte, v []byte) error{
		"changed": func(e engine.Engine, k, v []byte) error {
			v[len(v)/2] ^= 1
			return e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: k, Value: v}}})
		},
		"swapped": func(e engine.Engine, k, v []byte) error {
			return e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: space.Pack(inc, 99, 0), Value: v}}, Deletes: [][]byte{k}})
		},
	} {
		e := memory.New()
		store(t, e, []pack.Pack{packOf(1, 5, graph.ID{})}, graph.ID{})
		k := space.Pack(inc, 1, 0)
		vs, err := e.Get(ctx, k)
		if err != nil {
			t.Fatal(err)
		}
		if err := damage(e, k, vs[0]); err != nil {
			t.Fatal(err)
		}
		_, err = pack.SegmentAt(ctx, e, space, inc, 1)
		var ce *record.CorruptError
		if !errors.As(err, &ce) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzSegment(f *testing.F) {
	ks, vs, err := pack.EncodeSegment(space, inc, []pack.Pack{packOf(1, 5, graph.ID{})}, graph.ID{}, codec.Fast)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(vs[0][2 : len(vs[0])-4])
	f.Add([]byte{1, 1, 0, 3, 0x81, 0x83, 1})
	f.Fuzz(func(t *testing.T, body []byte) {
		e := memory.New()
		err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: ks[0], Value: codec.Seal(ks[0], keys.Pack, body)}}})
		if err != nil {
			return
		}
		for seg, err := range pack.Segments(ctx, e, space, inc, 1, 10) {
			if err != nil {
				return
			}
			for i := range seg.Packs {
				if _, err := seg.Packs[i].Resolve(graph.ID{1}); err != nil {
					return
				}
			}
		}
	})
}

// BenchmarkPack compares the encoding of a pack with what a CBOR library does
// with the same fields (and reflection).
func BenchmarkPack(b *testing.B) {
	p := packOf(1, 4, graph.ID{})
	for i := range p.Nodes {
		p.Nodes[i].Inline = bytes.Repeat([]byte("text "), 60)
		p.Nodes[i].Blob, p.Nodes[i].Attachments = blob.ID{}, nil
	}
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := pack.EncodeSegment(space, inc, []pack.Pack{p}, graph.ID{}, codec.Fast); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("library", func(b *testing.B) {
		type node struct {
			_       struct{} `cbor:",toarray"`
			Parent  uint64
			Kind    string
			Key     string
			Payload []byte
			Refs    []blob.Attachment
		}
		type packed struct {
			_        struct{} `cbor:",toarray"`
			Revision uint64
			Salt     []byte
			Nodes    []node
		}
		mode, err := cbor.CoreDetEncOptions().EncMode()
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			out := packed{Revision: p.Revision, Salt: p.Salt[:]}
			for i := range p.Nodes {
				n := &p.Nodes[i]
				out.Nodes = append(out.Nodes, node{Kind: n.Kind, Key: n.Key, Payload: n.Inline})
			}
			raw, err := mode.Marshal([]packed{out})
			if err != nil {
				b.Fatal(err)
			}
			codec.Seal(space.Pack(inc, 1, 0), keys.Pack, codec.Compress(nil, raw, codec.Fast))
		}
	})
}

func ExampleNode_Derive() {
	n := pack.Node{Kind: "user", Inline: []byte("hello")}
	n.Derive(pack.Salt{1}, 0, nil)
	reply := pack.Node{Parent: n.ID, Kind: "assistant", Inline: []byte("hi")}
	reply.Derive(pack.Salt{1}, 1, nil)
	fmt.Println(reply.ID != n.ID, reply.ID.IsZero())
	// Output: true false
}
