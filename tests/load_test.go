package tests

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// What keeps a read from its bytes is what the read reports: an error of the engine, or that
// its context was cancelled; and no damage.
func TestR10_AReadThatIsCutOffReportsNoDamage(t *testing.T) {
	mem := memory.New()
	e := &interceptor{Engine: mem}
	st := openStore(t, e, nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	chunked, parted := random(2<<20, 1), random(700<<10, 3)
	commitAt(t, s, turnstone.Commit{Checkpoint: map[string][]byte{"a": chunked}})
	commitAt(t, s, turnstone.Commit{Expected: 1, Nodes: saying(parted)})
	chunks, err := blobsOf(st).Items(ctx, blob.Sum(chunked))
	if err != nil {
		t.Fatal(err)
	}
	checkpoint := func(ctx context.Context) error { _, err := s.Checkpoint(ctx, 0); return err }
	load := func(ctx context.Context) error { _, err := s.Load(ctx, turnstone.Scope{}); return err }
	space, inc := spaceOf(st), incarnationOf(s)
	down := errors.New("network down")
	for _, c := range []struct {
		name string
		key  []byte
		read func(context.Context) error
	}{
		{"a chunk", space.Blob(space.BlobHash(chunks[0]), 0), checkpoint},
		{"a list", space.Blob(space.BlobHash(blob.Sum(chunked)), 0), checkpoint},
		{"a later part", space.Blob(space.BlobHash(blob.Sum(parted)), 1), load},
		{"a segment", space.Segment(inc, 2, 0), load},
	} {
		for _, cause := range []error{down, context.Canceled} {
			during, cancel := context.WithCancel(ctx)
			met := false
			// meet is called when a read has come to the key.
			meet := func() error {
				met = true
				if cause == down {
					return down
				}
				cancel()
				return nil
			}
			e.get = func(keys [][]byte) error {
				if slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, c.key) }) {
					return meet()
				}
				return nil
			}
			e.scan = func(engine.Range) func(engine.Pair) error {
				return func(p engine.Pair) error {
					if !bytes.Equal(p.Key, c.key) {
						return nil
					}
					if err := meet(); err != nil {
						return err
					}
					return during.Err()
				}
			}
			err := c.read(during)
			cancel()
			var corrupt *damage.CorruptError
			if !met || !errors.Is(err, cause) || errors.As(err, &corrupt) {
				t.Errorf("%s, %v: read: %v; %v", c.name, cause, met, err)
			}
		}
	}
	e.get, e.scan = nil, nil
	if l, err := s.Load(ctx, turnstone.Scope{}); err != nil || !bytes.Equal(l.Nodes[0].Payload, parted) {
		t.Error("load:", err)
	}
}

// A caller alters the state of a fork that Load returned: the next Load does not see that.
func TestWhatLoadReturnsOfAForkIsACopy(t *testing.T) {
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

// A caller alters a state that Load returned: the next commit does not store that.
func TestWhatLoadReturnsIsACopy(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	commitAt(t, s, turnstone.Commit{Nodes: saying([]byte("x")), Usage: []head.Usage{{Model: "m", Input: 1}}, Checkpoint: map[string][]byte{"a": []byte("1"), "b": []byte("2")}})
	l, err := s.Load(ctx, turnstone.Scope{})
	if err != nil {
		t.Fatal(err)
	}
	l.Usage[0].Input = 1000
	l.Parts[0], l.Parts[1] = l.Parts[1], l.Parts[0]
	commitAt(t, s, turnstone.Commit{Expected: 1, Nodes: saying([]byte("y"))})
	s2 := session(t, st, "s")
	i, err := s2.Info(ctx)
	if err != nil || i.Usage[0].Input != 1 {
		t.Fatal(i, err)
	}
}

// Nodes by key are those that the session shows: without tombstoned ones, and with the parents that
// are left, in a fork as well.
func TestR9_NodesByKeyAreThoseThatTheSessionShows(t *testing.T) {
	_, st := onMemory(t, nil)
	s := create(t, st, turnstone.Request{ID: "a"})
	keyed := func(keys ...string) (c turnstone.Commit) {
		for _, k := range keys {
			c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "k", Key: k, Payload: random(7000, uint64(len(k)))})
		}
		return c
	}
	r := commitTo(t, s, keyed("a", "bb", "ccc"))
	fork := create(t, st, turnstone.Request{ID: "f", Parent: "a"})
	own := commitTo(t, fork, keyed("dddd"))
	if err := fork.Tombstone(ctx, r.Nodes[1]); err != nil {
		t.Fatal(err)
	}
	for of, want := range map[*turnstone.Session]map[string][2]graph.ID{ // the node and its parent
		s:    {"a": {r.Nodes[0]}, "bb": {r.Nodes[1], r.Nodes[0]}, "ccc": {r.Nodes[2], r.Nodes[1]}},
		fork: {"a": {r.Nodes[0]}, "ccc": {r.Nodes[2], r.Nodes[0]}, "dddd": {own.Nodes[0], r.Nodes[2]}},
	} {
		nodes, err := of.NodesByKey(ctx, "dddd", "ccc", "bb", "a", "none", "")
		if err != nil {
			t.Fatal(err)
		}
		got := map[string][2]graph.ID{}
		for key, n := range nodes {
			got[key] = [2]graph.ID{n.ID, n.Parent}
			if len(n.Payload) != 7000 || n.Key != key {
				t.Errorf("%s: %q has %d bytes", of.ID(), n.Key, len(n.Payload))
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", of.ID(), got, want)
		}
	}
}
