package tests

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A version of thousands of bytes that follows one of a few bytes reads back.
func TestR6_ALargePartFollowsATinyOne(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	for n := 1; n < 20; n++ {
		commitTo(t, s, turnstone.Commit{Checkpoint: map[string][]byte{"a": bytes.Repeat([]byte("z"), n)}})
		commitTo(t, s, turnstone.Commit{Checkpoint: map[string][]byte{"a": bytes.Repeat([]byte("z"), 5000+n)}})
		if c, err := s.Checkpoint(ctx, 0); err != nil || len(c["a"]) != 5000+n {
			t.Fatal(n, err)
		}
	}
}

// partVersion returns the i-th version of a part, which is stored as a delta of the one before.
func partVersion(n int) []byte {
	b := random(3000, 1)
	return append(b, []byte(fmt.Sprintf("version %d", n))...)
}

// A second part takes the content that the first one has at the 64th version of its chain, and
// goes on from there with a chain of its own.
func TestR6_TwoPartsOfEqualContentReadBackInALongChain(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	for i := range 64 {
		commitTo(t, s, turnstone.Commit{Checkpoint: map[string][]byte{"a": partVersion(i)}})
	}
	commitTo(t, s, turnstone.Commit{Checkpoint: map[string][]byte{"a": partVersion(64), "b": partVersion(64)}})
	commitTo(t, s, turnstone.Commit{Checkpoint: map[string][]byte{"b": partVersion(65)}})
	parts, err := s.Checkpoint(ctx, 0)
	if err != nil || !bytes.Equal(parts["a"], partVersion(64)) || !bytes.Equal(parts["b"], partVersion(65)) {
		t.Error(err)
	}
}

// A store that is opened in the middle of a chain of versions, and is given the last one again,
// goes on with the chain: every version reads back.
func TestR6_PartsReadBackWhenAChainGoesOnAfterARestart(t *testing.T) {
	e, st := onMemory(t, nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	for i := range 50 {
		commitTo(t, s, turnstone.Commit{Checkpoint: map[string][]byte{"a": partVersion(i)}})
	}
	s = session(t, openStore(t, e, nil), "s")                                                                         // restart
	commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("x")), Checkpoint: map[string][]byte{"a": partVersion(49)}}) // unchanged
	for i := 50; i < 80; i++ {
		commitTo(t, s, turnstone.Commit{Checkpoint: map[string][]byte{"a": partVersion(i)}})
	}
	for i := 49; i < 82; i++ {
		if _, err := s.Checkpoint(ctx, head.Revision(i)); err != nil {
			t.Fatal(i, err)
		}
	}
}

// A second session begins with a version that is deep in the chain of the first one.
func TestR6_PartsReadBackWhenTwoSessionsHaveAChain(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	for i := range 50 {
		commitTo(t, s, turnstone.Commit{Checkpoint: map[string][]byte{"a": partVersion(i)}})
	}
	b := create(t, st, turnstone.Request{ID: "b"})
	for i := 49; i < 80; i++ {
		commitTo(t, b, turnstone.Commit{Checkpoint: map[string][]byte{"a": partVersion(i)}})
	}
	if _, err := b.Checkpoint(ctx, 0); err != nil {
		t.Fatal(err)
	}
}

// A commit is so large that its part does not fit in the same batch: the part is stored ahead of
// the commit, and never as a delta.
func TestR6_PartsReadBackThatWereStoredAheadOfTheirCommit(t *testing.T) {
	testkit.Slow(t)
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

// A checkpoint that is too large for a batch is stored anew as chunks when the
// version that it was a delta of is pruned.
func TestALargeCheckpointLetsGoOfItsPrunedBase(t *testing.T) {
	testkit.Slow(t)
	e, st := onMemory(t, nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	old, now, secret := random(2<<20, 1), random(2<<20, 1), random(300, 2)
	copy(old[1<<20:], secret)
	for i, content := range [][]byte{old, now} {
		commitAt(t, s, turnstone.Commit{Expected: head.Revision(i), Checkpoint: map[string][]byte{"p": content}})
	}
	prune(t, s, 1)
	if r := vacuum(t, st); r.Rewritten != 1 || holds(t, e, secret[:64]) {
		t.Errorf("%+v", r)
	}
	if r := vacuum(t, st); r.Rewritten != 0 || r.Deleted != 0 {
		t.Errorf("again: %+v", r)
	}
	parts, err := s.Checkpoint(ctx, 0)
	if err != nil || !bytes.Equal(parts["p"], now) {
		t.Error(err)
	}
	if r := collect(t, st, gc.Options{Full: true}); r.Deleted != 0 || r.Repaired {
		t.Errorf("full: %+v", r)
	}
	if n := letters(t, e); n[keys.Upload] != 0 || n[keys.Candidate] != 0 {
		t.Errorf("records left: %v", n)
	}
	verify(t, st)
}

// The version that 700 sessions have pruned, each after it stored another one as a delta of it,
// is gone after one vacuum, and the next vacuum has nothing to do.
func TestVacuumRemovesABaseThatManyVersionsHad(t *testing.T) {
	testkit.Slow(t)
	e, st := onMemory(t, nil)
	base := random(3000, 1)
	for i := range 700 {
		s := create(t, st, turnstone.Request{ID: fmt.Sprint("s", i)})
		commitTo(t, s, turnstone.Commit{Checkpoint: map[string][]byte{"a": base}})
		if _, err := s.Checkpoint(ctx, 0); err != nil { // the base of the next version
			t.Fatal(err)
		}
		commitTo(t, s, turnstone.Commit{Checkpoint: map[string][]byte{"a": append(bytes.Clone(base[200:]), random(20, uint64(1000+i))...)}})
		prune(t, s, 1)
	}
	r := vacuum(t, st)
	t.Logf("%+v", r)
	if holds(t, e, base[:100]) {
		t.Error("base is there after a vacuum")
	}
	r = vacuum(t, st)
	if r.Rewritten != 0 || r.Deleted != 0 {
		t.Errorf("again: %+v", r)
	}
}

// A delta of any two contents, from one byte to 15 MiB, gives the second content again.
func TestADeltaOfAnySizesGivesItsContent(t *testing.T) {
	testkit.Slow(t)
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
		for _, nc := range testkit.Pick([]int{1000, 300 << 10, 2 << 20, 15 << 20}, []int{1000, 300 << 10, 2 << 20}, []int{1000, 300 << 10}) {
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

func TestR13_AVersionOfAPartTakesSpaceForWhatIsNew(t *testing.T) {
	e, st := onMemory(t, nil)
	s := create(t, st, turnstone.Request{ID: "a"})
	var list []byte
	for i := range 60 {
		list = fmt.Appendf(list, `{"role":"tool","id":"call_%d","content":"%x"},`, i, random(1500, uint64(i)))
		commitTo(t, s, turnstone.Commit{Checkpoint: map[string][]byte{"a": fmt.Appendf(nil, `{"messages":[%s],"count":%d}`, list, i)}})
	}
	deltas, n := 0, 0
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		if p.Key[4] == byte(keys.Version) {
			deltas, n = deltas+len(p.Value), n+1
		}
	}
	whole := len(codec.Compress(nil, list, codec.Best))
	if n < 55 || deltas > whole*3/2 {
		t.Errorf("%d deltas take %d bytes, the last version %d", n, deltas, whole)
	}
	if parts, err := s.Checkpoint(ctx, 60); err != nil || !bytes.Contains(parts["a"], list) {
		t.Errorf("another content: %v", err)
	}
	verify(t, st)
}
