package blob_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A chain of versions as commits make it: the first is a blob, the others are deltas.
type chainOf struct {
	blob.Chain
	ids  []blob.ID // by revision, from 1 on
	root func(context.Context) (blob.ID, error)
}

func versions(t *testing.T, s *blob.Store, e engine.Engine, n int) (c chainOf, contents [][]byte) {
	t.Helper()
	content := random(100_000, 1)
	id, _, err := write(s, bytes.NewReader(content), -1)
	if err != nil {
		t.Fatal(err)
	}
	c = chainOf{Chain: blob.Chain{Session: keys.Incarnation{1}, Part: keys.Hash{2}}, ids: []blob.ID{{}, id}}
	c.root = func(context.Context) (blob.ID, error) { return id, nil }
	contents = [][]byte{nil, content}
	base := &blob.Base{ID: id, Revision: 1, Content: content}
	for r := uint64(2); r <= uint64(n); r++ {
		next := bytes.Clone(base.Content)
		next[int(r)*450]++
		delta, err := blob.Delta(next, base)
		if err != nil || delta == nil {
			t.Fatal(r, err)
		}
		var b engine.Batch
		s.AddDelta(&b, c.Chain, r, base.Revision, delta)
		if err := e.Apply(ctx, &b); err != nil {
			t.Fatal(err)
		}
		base = &blob.Base{ID: blob.Sum(next), Revision: r, Deltas: base.Deltas + 1, Content: next}
		c.ids, contents = append(c.ids, base.ID), append(contents, next)
	}
	return c, contents
}

func TestVersionsAreDeltas(t *testing.T) {
	testkit.Slow(t)
	s, e := open()
	c, contents := versions(t, s, e, blob.MaxDeltas+1)
	if _, size := records(t, e); size > 160_000 {
		t.Errorf("%d versions take %d bytes", len(contents)-1, size)
	}
	for r := 2; r < len(contents); r++ {
		got, deltas, err := s.ReadVersion(ctx, c.Chain, 1, uint64(r), c.ids[r], c.root)
		if err != nil || !bytes.Equal(got, contents[r]) || deltas != r-1 {
			t.Fatalf("version %d: %d deltas, %v", r, deltas, err)
		}
	}
	last := len(contents) - 1
	base := &blob.Base{ID: c.ids[last], Revision: uint64(last), Deltas: blob.MaxDeltas, Content: contents[last]}
	if delta, err := blob.Delta(contents[last-1], base); delta != nil || err != nil {
		t.Errorf("a chain of more than %d deltas: %v", blob.MaxDeltas, err)
	}
}

// What vacuum does: a version is stored whole, in several values, and those before go.
func TestAVersionThatIsStoredWholeNeedsNoOther(t *testing.T) {
	s, e := open()
	c, contents := versions(t, s, e, 9)
	pairs := s.Whole(c.Chain, 5, contents[5])
	for i := len(pairs) - 1; i >= 0; i-- {
		if err := e.Apply(ctx, &engine.Batch{Sets: pairs[i : i+1]}); err != nil {
			t.Fatal(err)
		}
		if got, _, err := s.ReadVersion(ctx, c.Chain, 1, 9, c.ids[9], c.root); err != nil || !bytes.Equal(got, contents[9]) {
			t.Fatalf("after value %d: %v", i, err)
		}
	}
	var b engine.Batch
	for v, err := range s.Versions(ctx, c.Chain, 0, 4) {
		if err != nil {
			t.Fatal(err)
		}
		b.Deletes = append(b.Deletes, s.Keys(c.Chain, &v)...)
	}
	if err := e.Apply(ctx, &b); err != nil || len(b.Deletes) != 3 {
		t.Fatal(len(b.Deletes), err)
	}
	noRoot := func(context.Context) (blob.ID, error) { return blob.ID{}, errors.New("the root was read") }
	for r := uint64(5); r <= 9; r++ {
		got, deltas, err := s.ReadVersion(ctx, c.Chain, 1, r, c.ids[r], noRoot)
		if err != nil || !bytes.Equal(got, contents[r]) || deltas != int(r-5) {
			t.Errorf("version %d: %d deltas, %v", r, deltas, err)
		}
	}
}

func TestDamageOfAVersionIsNamed(t *testing.T) {
	s, e := open()
	c, contents := versions(t, s, e, 6)
	noise := random(1<<20, 9)
	for _, p := range s.Whole(c.Chain, 4, noise) { // of another content, in three values
		if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{p}}); err != nil {
			t.Fatal(err)
		}
	}
	var corrupt *damage.CorruptError
	if _, _, err := s.ReadVersion(ctx, c.Chain, 1, 6, c.ids[6], c.root); !errors.As(err, &corrupt) {
		t.Errorf("a version of other content: %v", err)
	}
	id := blob.Sum(noise)
	if got, _, err := s.ReadVersion(ctx, c.Chain, 1, 4, id, c.root); err != nil || !bytes.Equal(got, noise) {
		t.Fatal(err)
	}
	var pairs []engine.Pair
	for p, err := range e.Scan(ctx, space.All(keys.Version)) {
		if err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, p)
	}
	if len(pairs) != 2+3+2 {
		t.Fatalf("%d values", len(pairs))
	}
	for i, p := range pairs[2:5] {
		for name, damaged := range map[string]engine.Batch{
			"removed": {Deletes: [][]byte{p.Key}},
			"flipped": {Sets: []engine.Pair{{Key: p.Key, Value: flip(p.Value)}}},
			"swapped": {Sets: []engine.Pair{{Key: p.Key, Value: pairs[(i+1)%3+2].Value}}},
		} {
			if err := e.Apply(ctx, &damaged); err != nil {
				t.Fatal(err)
			}
			if _, _, err := s.ReadVersion(ctx, c.Chain, 1, 4, id, c.root); !errors.As(err, &corrupt) {
				t.Errorf("value %d %s: %v", i, name, err)
			}
			if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{p}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = contents
}

func FuzzVersion(f *testing.F) {
	s, e := open()
	c, _ := versions(&testing.T{}, s, e, 3)
	for p, err := range e.Scan(ctx, space.All(keys.Version)) {
		if err != nil {
			f.Fatal(err)
		}
		f.Add(p.Value[2 : len(p.Value)-4])
	}
	key := space.Version(c.Session, c.Part, 3, 0)
	f.Fuzz(func(t *testing.T, body []byte) {
		s, e := open()
		if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: key, Value: codec.Encode(key, keys.Version, body)}}}); err != nil {
			return
		}
		if content, _, err := s.ReadVersion(ctx, c.Chain, 2, 3, c.ids[3], c.root); err == nil && blob.Sum(content) != c.ids[3] {
			t.Fatal("other content was returned")
		}
	})
}

// A part of the largest size is stored as a delta that is as small as its change.
func TestTheLargestPartIsADelta(t *testing.T) {
	testkit.Slow(t)
	content := bytes.Repeat(random(1<<20, 3), 64)
	base := &blob.Base{Revision: 1, Content: content[:len(content)-100]}
	delta, err := blob.Delta(content, base)
	if err != nil || delta == nil || len(delta) > 200 {
		t.Fatalf("%d bytes, %v", len(delta), err)
	}
	if got, err := codec.Decompress(delta, base.Content, len(content)); err != nil || !bytes.Equal(got, content) {
		t.Fatal(err)
	}
	if delta, err = blob.Delta(append(content, 'x'), base); delta != nil || err != nil {
		t.Errorf("a larger one: %d bytes, %v", len(delta), err)
	}
}
