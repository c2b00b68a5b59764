package history_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/cache"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

var (
	ctx   = context.Background()
	space = keys.New("", [32]byte{1})
	inc   = keys.Incarnation{7}
)

// turnOf makes a turn of n nodes on top of before, with a branch. Some commits set a checkpoint part,
// some name an older leaf, and one has no nodes.
func turnOf(before *head.State, n int) history.Turn {
	r := before.Revision + 1
	t := history.Turn{Pack: graph.Pack{Revision: uint64(r)}}
	t.Commit = head.Commit{Revision: r, Previous: before.Commit, PartsAt: before.PartsAt, Time: time.Unix(1700000000, int64(r)).UTC(), Turn: fmt.Sprint("turn", r)}
	if n > 0 {
		t.Pack.Salt, t.Pack.Nodes = graph.Salt{byte(r), 1}, make([]graph.Node, n)
	}
	parent := before.Last
	for i := range t.Pack.Nodes {
		node := &t.Pack.Nodes[i]
		*node = graph.Node{Parent: parent, Kind: "text", Inline: fmt.Appendf(nil, "%d/%d", r, i)}
		switch i % 4 {
		case 1:
			node.Key = fmt.Sprint("key", r, "/", i)
			node.Attachments = []blob.Attachment{{ID: blob.ID{1}, Size: 3, MediaType: "image/png", Name: "x"}}
		case 2:
			node.Inline, node.Blob, node.Size = nil, blob.ID{byte(i)}, 9000
		case 3:
			node.Parent = t.Pack.Nodes[i-2].ID
		}
		node.Derive(t.Pack.Salt, i, nil)
		parent = node.ID
	}
	t.Complete(&t.Pack, before.Last)
	t.Leaf = t.Last
	switch r % 5 {
	case 2:
		t.PartsAt, t.Parts = r, []head.Part{{Name: "a", Blob: blob.ID{byte(r)}, Size: 5, Set: r, Whole: r}}
		t.Usage = []head.Usage{{Model: "m", Input: 7}}
	case 3:
		t.Leaf = before.Leaf
	case 4:
		t.Leaf = graph.ID{}
	}
	if t.Depth = 0; !t.Leaf.IsZero() {
		t.Depth = uint64(r)
	}
	t.NodeDigest = [32]byte{}
	if !t.Pack.Linear(t.Leaf) {
		t.NodeDigest = t.Pack.Digest()
	}
	t.ID = t.Commit.ID()
	return t
}

// historyOf makes n turns, and the states after them. The first state is that before the first turn.
func historyOf(tb testing.TB, n int) (all []history.Turn, states []head.State) {
	states = []head.State{head.Begin(inc, nil)}
	for i := range n {
		t := turnOf(&states[i], i%6)
		next, err := states[i].Then(&t.Commit, t.ID)
		if err != nil {
			tb.Fatal(err)
		}
		all, states = append(all, t), append(states, next)
	}
	return all, states
}

func set(tb testing.TB, e engine.Engine, ks, vs [][]byte, err error) {
	tb.Helper()
	var b engine.Batch
	for i := range ks {
		b.Set(ks[i], vs[i])
	}
	if err == nil {
		err = e.Apply(ctx, &b)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// stored stores turns: those up to each of the sealed revisions in one segment, the rest loose.
func stored(tb testing.TB, all []history.Turn, states []head.State, sealed ...int) history.Reader {
	e := memory.New()
	before := 0
	for _, end := range sealed {
		s := history.Segment{First: head.Revision(before + 1), Last: head.Revision(end), Level: codec.Best, Before: states[before].Base, End: states[end], Turns: all[before:end]}
		ks, vs, err := history.EncodeSealed(space, inc, &s)
		set(tb, e, ks, vs, err)
		before = end
	}
	for i := range all[before:] {
		t := &all[before+i]
		ks, vs, err := history.EncodeTurn(space, inc, t.Body(), &t.Pack)
		set(tb, e, ks, vs, err)
	}
	return history.Reader{Engine: e, Space: space, Cache: history.NewTurnCache(cache.NewBudget(1 << 20)), Indexes: history.NewIndexes(cache.NewBudget(1 << 20)), Pages: history.NewPages(cache.NewBudget(1 << 20))}
}

func TestTurnsComeBackAndIDsAreDerived(t *testing.T) {
	all, states := historyOf(t, 40)
	r := stored(t, all, states, 10, 11, 30)
	for range 2 { // the second time from the cache
		for _, of := range [][2]int{{0, 40}, {5, 12}, {10, 11}, {29, 31}, {35, 40}} {
			next := of[0]
			err := r.Turns(ctx, history.Revisions{Inc: inc, After: head.Revision(of[0]), Last: head.Revision(of[1])}, func(got *history.Turn) error {
				want := &all[next]
				if next++; got.ID != want.ID || got.Leaf != want.Leaf || got.Last != want.Last || fmt.Sprint(got.Usage, got.Parts, got.Time, got.Turn) != fmt.Sprint(want.Usage, want.Parts, want.Time, want.Turn) {
					t.Errorf("turn %d: %+v, want %+v", next, got.Commit, want.Commit)
				}
				for i := range want.Pack.Nodes {
					if g, w := got.Pack.Nodes[i], want.Pack.Nodes[i]; g.ID != w.ID || g.Parent != w.Parent || !bytes.Equal(g.Inline, w.Inline) || g.Key != w.Key {
						t.Errorf("node %d of turn %d: %+v, want %+v", i, next, g, w)
					}
				}
				return nil
			})
			if err != nil || next != of[1] {
				t.Errorf("%v: %d, %v", of, next, err)
			}
		}
	}
	for revision, first := range map[head.Revision]head.Revision{1: 1, 10: 1, 11: 11, 12: 12, 30: 12, 31: 31, 40: 40} {
		if s, err := r.At(ctx, inc, "", revision); err != nil || s.First != first {
			t.Errorf("revision %d: %v", revision, err)
		}
	}
	if _, err := r.At(ctx, inc, "", 41); !errors.Is(err, damage.ErrMissing) {
		t.Error(err)
	}
	for _, end := range []head.Revision{10, 11, 30} {
		if s, err := r.End(ctx, inc, "", end); err != nil || fmt.Sprint(s) != fmt.Sprint(states[end]) {
			t.Errorf("end %d: %+v, want %+v: %v", end, s, states[end], err)
		}
	}
}

// Every byte of every record is changed, and every record moved to the place of another one. Nothing
// is read then, also where the cache has it.
func TestDamageIsNoticedAlsoByTheCache(t *testing.T) {
	all, states := historyOf(t, 12)
	r := stored(t, all, states, 9)
	read := func() error {
		return r.Turns(ctx, history.Revisions{Inc: inc, Last: 12, Previous: states[0].Commit}, func(*history.Turn) error { return nil })
	}
	if err := read(); err != nil {
		t.Fatal(err)
	}
	var corrupt *damage.CorruptError
	var pairs []engine.Pair
	for p := range r.Engine.Scan(ctx, space.Of(keys.Segment, inc)) {
		pairs = append(pairs, p)
	}
	for i, p := range pairs {
		for at := range p.Value {
			value := bytes.Clone(p.Value)
			value[at] ^= 4
			set(t, r.Engine, [][]byte{p.Key}, [][]byte{value}, nil)
			if err := read(); !errors.As(err, &corrupt) {
				t.Fatalf("record %d, byte %d: %v", i, at, err)
			}
		}
		set(t, r.Engine, [][]byte{p.Key}, [][]byte{pairs[(i+1)%len(pairs)].Value}, nil)
		if err := read(); !errors.As(err, &corrupt) {
			t.Errorf("another one in the place of record %d: %v", i, err)
		}
		if err := r.Engine.Apply(ctx, &engine.Batch{Deletes: [][]byte{p.Key}}); err != nil {
			t.Fatal(err)
		}
		if err := read(); !errors.As(err, &corrupt) {
			t.Errorf("without record %d: %v", i, err)
		}
		set(t, r.Engine, [][]byte{p.Key}, [][]byte{p.Value}, nil)
	}
	if err := read(); err != nil {
		t.Error(err)
	}
}

// The checksum of each record is right here, as it would be if somebody had replaced the record.
func TestTurnsOfAnotherHistoryAreNoticed(t *testing.T) {
	all, states := historyOf(t, 12)
	other, _ := historyOf(t, 12)
	for i := range other {
		other[i].Pack.Salt = graph.Salt{99}
	}
	for name, change := range map[string]func(*history.Segment){
		"payload": func(s *history.Segment) { s.Turns[1].Pack.Nodes[0].Inline = []byte("forged") },
		"key":     func(s *history.Segment) { s.Turns[1].Pack.Nodes[0].Key = "forged" },
		"salt":    func(s *history.Segment) { s.Turns[1].Pack.Salt = graph.Salt{99} },
		"turn":    func(s *history.Segment) { s.Turns[3].Commit.Turn = "forged" },
		"usage":   func(s *history.Segment) { s.Turns[3].Usage = []head.Usage{{Model: "forged"}} },
		"leaf":    func(s *history.Segment) { s.Turns[3].Leaf = graph.ID{9} },
		"before":  func(s *history.Segment) { s.Before.Commit = head.CommitID{9} },
		"end":     func(s *history.Segment) { s.End.Commit = head.CommitID{9} },
	} {
		r := stored(t, all, states, 4, 12)
		again, _ := historyOf(t, 12)
		s := history.Segment{First: 5, Last: 12, Level: codec.Best, Before: states[4].Base, End: states[12], Turns: again[4:]}
		change(&s)
		ks, vs, err := history.EncodeSealed(space, inc, &s)
		set(t, r.Engine, ks, vs, err)
		if _, err := r.At(ctx, inc, "", 6); err == nil {
			t.Errorf("another %s is read", name)
		}
	}
}

func TestAnIndexFindsEverythingByFewRecords(t *testing.T) {
	const n, step = 6000, 100
	all, states := historyOf(t, n)
	r := stored(t, all, states)
	life := head.Life{State: head.Live}
	lifeKey := space.Life(inc)
	for end := step; end <= n; end += step { // as sealing does
		s := history.Segment{First: head.Revision(end - step + 1), Last: head.Revision(end), Level: codec.Medium, Before: states[end-step].Base, End: states[end], Turns: all[end-step : end]}
		var b engine.Batch
		ks, vs, err := history.EncodeSealed(space, inc, &s)
		set(t, r.Engine, ks, vs, err)
		for _, turn := range s.Turns[:step-1] {
			b.Delete(space.Segment(inc, uint64(turn.Revision), 0))
		}
		if err := r.Append(ctx, &b, inc, &life, s.Turns); err != nil {
			t.Fatal(err)
		}
		b.Set(lifeKey, life.Encode(lifeKey))
		if err := r.Engine.Apply(ctx, &b); err != nil {
			t.Fatal(err)
		}
		if end == n/2 || end == n-step { // An index that is as old as that finds the rest all the same.
			if _, err := r.Index(ctx, inc, head.Revision(end)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(life.Runs) > 8 {
		t.Errorf("%d runs", len(life.Runs))
	}
	cold := history.Reader{Engine: r.Engine, Space: space, Indexes: history.NewIndexes(cache.NewBudget(1 << 20))}
	for _, r := range []history.Reader{r, cold} {
		ix, err := r.Index(ctx, inc, n)
		if err != nil {
			t.Fatal(err)
		}
		find := func(name history.Name, want graph.Position) {
			t.Helper()
			if got, err := r.Find(ctx, ix, name); err != nil || !slices.Contains(got, want) || len(got) > 3 && name.Kind != history.LeafEntry {
				t.Fatalf("%+v: %v, want %v: %v", name, got, want, err)
			}
		}
		for i := 0; i < n; i += 17 {
			turn := &all[i]
			at := graph.Position{Revision: uint64(turn.Revision)}
			find(history.Name{Kind: history.TurnEntry, Text: turn.Turn}, at)
			for j := range turn.Pack.Nodes {
				node := &turn.Pack.Nodes[j]
				at.Index = j
				find(history.Name{Kind: history.NodeEntry, ID: node.ID}, at)
				if node.Key != "" {
					find(history.Name{Kind: history.KeyEntry, Text: node.Key}, at)
				}
			}
			if at.Index = 0; turn.Revision%5 == 3 && len(turn.Pack.Nodes) > 0 && !turn.Leaf.IsZero() {
				find(history.Name{Kind: history.LeafEntry, ID: turn.Leaf}, at)
			}
		}
		if got, err := r.Find(ctx, ix, history.Name{Kind: history.KeyEntry, Text: "no such key"}); err != nil || len(got) > 1 {
			t.Error(got, err)
		}
	}
}

func FuzzSegment(f *testing.F) {
	all, states := historyOf(f, 5)
	r := stored(f, all, states, 4)
	for p := range r.Engine.Scan(ctx, space.Of(keys.Segment, inc)) {
		f.Add(p.Value[2 : len(p.Value)-4])
	}
	key, second := space.Segment(inc, 4, 0), space.Segment(inc, 4, 1)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, at := range [][]byte{key, second} {
			r := stored(t, all, states, 4)
			set(t, r.Engine, [][]byte{at}, [][]byte{codec.Encode(at, keys.Segment, body)}, nil)
			_ = r.Turns(ctx, history.Revisions{Inc: inc, Last: history.Unsealed}, func(*history.Turn) error { return nil })
			_, _ = r.End(ctx, inc, "", 4)
		}
	})
}

func FuzzIndex(f *testing.F) {
	all, states := historyOf(f, 5)
	r := stored(f, all, states, 4)
	life := head.Life{State: head.Live}
	var b engine.Batch
	if err := r.Append(ctx, &b, inc, &life, all); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Sets[0].Value[2 : len(b.Sets[0].Value)-4])
	key := space.Index(inc, 5, 0)
	f.Fuzz(func(t *testing.T, body []byte) {
		r := history.Reader{Engine: memory.New(), Space: space}
		set(t, r.Engine, [][]byte{key}, [][]byte{codec.Encode(key, keys.Index, body)}, nil)
		_, _ = r.Runs(ctx, inc, []head.Run{{Last: 5}})
	})
}

// BenchmarkEncodeTurn compares the encoding of a pack with what a CBOR library does
// with the same fields (and reflection).
func BenchmarkEncodeTurn(b *testing.B) {
	begin := head.Begin(inc, nil)
	turn := turnOf(&begin, 4)
	p := turn.Pack
	for i := range p.Nodes {
		p.Nodes[i].Inline = bytes.Repeat([]byte("text "), 60)
		p.Nodes[i].Blob, p.Nodes[i].Attachments = blob.ID{}, nil
	}
	body := make([]byte, 120)
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := history.EncodeTurn(space, inc, body, &p); err != nil {
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
			_     struct{} `cbor:",toarray"`
			Body  []byte
			Salt  []byte
			Nodes []node
		}
		mode, err := cbor.CoreDetEncOptions().EncMode()
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			out := packed{Body: body, Salt: p.Salt[:]}
			for i := range p.Nodes {
				n := &p.Nodes[i]
				out.Nodes = append(out.Nodes, node{Kind: n.Kind, Key: n.Key, Payload: n.Inline})
			}
			raw, err := mode.Marshal(out)
			if err != nil {
				b.Fatal(err)
			}
			codec.Encode(space.Segment(inc, 1, 0), keys.Segment, codec.Compress(nil, raw, codec.Fast))
		}
	})
}
