package search

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
)

// meaning makes vectors of texts in which each word has a direction of its own, but those that mean the same.
func meaning(model string, texts *int) *Embedding {
	return &Embedding{Model: model, Embed: func(_ context.Context, all []string) ([][]float32, error) {
		out := make([][]float32, len(all))
		for i, text := range all {
			*texts++
			out[i] = make([]float32, 16)
			for _, w := range strings.Fields(text) {
				h := fnv.New64a()
				h.Write([]byte(strings.NewReplacer("feline", "cat", "hound", "dog").Replace(w)))
				r := rand.New(rand.NewPCG(h.Sum64(), 1))
				for j := range out[i] {
					out[i][j] += float32(r.NormFloat64())
				}
			}
		}
		return out, nil
	}}
}

// embedding opens an index with an Embedding.
func embedding(t *testing.T, path string, e *Embedding) *Index {
	t.Helper()
	x, err := Open(path, Options{Embedding: e})
	must(t, err)
	t.Cleanup(func() { x.Close() })
	return x
}

// similar returns the sessions and passages of what is like a text.
func similar(t *testing.T, x *Index, st *turnstone.Store, text, query string, limit int) (out []string) {
	t.Helper()
	var q *Query
	if query != "" {
		var err error
		q, err = Parse(query, time.Now())
		must(t, err)
	}
	found, err := x.Similar(ctx, st, text, q, FindOptions{Limit: limit})
	must(t, err)
	if !slices.IsSortedFunc(found, func(a, b Result) int { return cmp.Compare(b.Score, a.Score) }) {
		t.Errorf("not in order: %v", found)
	}
	for _, r := range found {
		out = append(out, r.Session+": "+r.Passage)
	}
	return out
}

func TestSE7_ResultsAreFoundByTheirMeaning(t *testing.T) {
	st := newStore(t)
	made(t, st, turnstone.Request{ID: "a"}, "a feline sleeps", "a hound barks", "   ")
	b := made(t, st, turnstone.Request{ID: "b"}, "the tax is due")
	says(t, b, "tool", "a cat of tools")
	texts := 0
	path := filepath.Join(t.TempDir(), "index")
	plain := newIndex(t, path)
	synced(t, plain, st) // Another process, which makes no vectors.
	x := embedding(t, path, meaning("one", &texts))
	if r := synced(t, x, st); r.Embedded != 4 || texts != 4 {
		t.Errorf("%+v, %d texts", r, texts)
	}
	for _, c := range []struct{ text, query, want string }{
		{"a cat sleeps", "", "a: a feline sleeps"},
		{"dog barks", "", "a: a hound barks"},
		{"a cat sleeps", "kind:tool", "b: a cat of tools"},
		{"a cat sleeps", "session:b kind:user", "b: the tax is due"},
		{"a cat sleeps", "hound", "a: a hound barks"},
		{"a cat sleeps", "session:none", ""},
	} {
		if got := similar(t, x, st, c.text, c.query, 1); strings.Join(got, ",") != c.want {
			t.Errorf("%s, %s: %q, want %q", c.text, c.query, got, c.want)
		}
	}
	if got := similar(t, x, st, "cat", "", 10); len(got) != 4 {
		t.Errorf("%q", got)
	}
	if r := synced(t, x, st); r.Embedded != 0 {
		t.Errorf("embedded again: %+v", r)
	}
	says(t, b, "user", "a hound again")
	synced(t, plain, st)
	texts = 0
	if r := synced(t, x, st); r.Embedded != 1 || texts != 1 {
		t.Errorf("%+v, %d texts", r, texts)
	}
	last := says(t, b, "user", "the last one")
	synced(t, x, st)
	must(t, b.Tombstone(ctx, last))
	synced(t, x, st)
	says(t, b, "user", "another last one") // Its number must be a new one.
	if r := synced(t, x, st); r.Embedded != 1 {
		t.Errorf("%+v", r)
	}
	two := embedding(t, path, meaning("two", &texts))
	if _, err := two.Similar(ctx, st, "cat", nil, FindOptions{}); !errors.Is(err, ErrVectors) {
		t.Error(err)
	}
	if r := synced(t, two, st); r.Embedded != 6 {
		t.Errorf("%+v", r)
	}
	if _, err := x.Similar(ctx, st, "cat", nil, FindOptions{}); !errors.Is(err, ErrVectors) {
		t.Error(err)
	}
}

// What Similar finds is what comparing every text finds, through forks, tombstones, deletions and renames.
func TestSE7_SimilarFindsWhatComparingAllFinds(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	st := newStore(t)
	texts := 0
	e := meaning("m", &texts)
	x := embedding(t, filepath.Join(t.TempDir(), "index"), e)
	var sessions []*turnstone.Session
	words := strings.Fields("cat feline dog hound tax museum train rain paper stone river bread")
	sentence := func() string {
		var out []string
		for range 1 + r.IntN(6) {
			out = append(out, words[r.IntN(len(words))])
		}
		return strings.Join(out, " ") + fmt.Sprint(" n", r.IntN(1000))
	}
	for step := range 120 {
		switch i := r.IntN(10); {
		case len(sessions) < 3 || i == 0:
			q := turnstone.Request{ID: fmt.Sprint("s", step)}
			if len(sessions) > 0 && r.IntN(2) == 0 {
				q.Parent = sessions[r.IntN(len(sessions))].ID()
			}
			sessions = append(sessions, made(t, st, q))
		case i == 1:
			at := r.IntN(len(sessions))
			must(t, sessions[at].Delete(ctx, turnstone.AnyRevision, turnstone.KeepChildren))
			sessions = slices.Delete(sessions, at, at+1)
		case i == 2:
			s := sessions[r.IntN(len(sessions))]
			state, err := s.Load(ctx, turnstone.Scope{Full: true})
			must(t, err)
			if len(state.Nodes) > 0 {
				must(t, s.Tombstone(ctx, state.Nodes[r.IntN(len(state.Nodes))].ID))
			}
		default:
			says(t, sessions[r.IntN(len(sessions))], []string{"user", "tool"}[r.IntN(2)], sentence())
		}
		if step%4 != 0 {
			continue
		}
		synced(t, x, st)
		asked := sentence()
		vs, err := x.embedded(ctx, []string{asked})
		must(t, err)
		want := map[graph.ID]float64{}
		for _, s := range sessions {
			for n, err := range s.Nodes(ctx, turnstone.Scope{Full: true}) {
				must(t, err)
				ns, err := x.embedded(ctx, []string{string(n.Payload)})
				must(t, err)
				want[n.ID] = likeness(vs[0], packed(ns[0]))
			}
		}
		var scores []float64
		for _, score := range want {
			scores = append(scores, score)
		}
		slices.SortFunc(scores, func(a, b float64) int { return cmp.Compare(b, a) })
		limit := 1 + r.IntN(8)
		found, err := x.Similar(ctx, st, asked, nil, FindOptions{Limit: limit})
		must(t, err)
		if len(found) != min(limit, len(want)) {
			t.Fatalf("step %d: %d results of %d", step, len(found), len(want))
		}
		for i, f := range found {
			if math.Abs(f.Score-want[f.Node]) > 1e-6 || math.Abs(f.Score-scores[i]) > 1e-6 {
				t.Fatalf("step %d: result %d is %v, want %v", step, i, f.Score, scores[i])
			}
		}
	}
	if texts < 100 {
		t.Error("hardly anything was compared")
	}
}

func TestSE7_VectorsOfWhatIsGoneLeaveNoByte(t *testing.T) {
	st := newStore(t)
	a := made(t, st, turnstone.Request{ID: "a"})
	id := says(t, a, "user", "a cat that is erased")
	made(t, st, turnstone.Request{ID: "b"}, "a dog that stays")
	dir, texts := t.TempDir(), 0
	x := embedding(t, filepath.Join(dir, "index"), meaning("m", &texts))
	synced(t, x, st)
	within := func(text string) bool {
		v, err := x.embedded(ctx, []string{text})
		must(t, err)
		entries, err := os.ReadDir(dir)
		must(t, err)
		for _, e := range entries {
			data, err := os.ReadFile(filepath.Join(dir, e.Name()))
			must(t, err)
			if bytes.Contains(data, packed(v[0])) {
				return true
			}
		}
		return false
	}
	if !within("a cat that is erased") {
		t.Fatal("the vector is not there: the test can't fail")
	}
	if _, err := a.Erase(ctx, turnstone.EraseOptions{}, id); err != nil {
		t.Fatal(err)
	}
	if got := similar(t, x, st, "cat erased", "", 10); len(got) != 1 {
		t.Errorf("before Sync: %q", got)
	}
	synced(t, x, st)
	if within("a cat that is erased") || !within("a dog that stays") {
		t.Error("the vector of what was erased is there, or another one is not")
	}
}

// If what is the most similar is gone since Sync, the next ones are found.
func TestSE7_WhatIsGoneTakesNoPlace(t *testing.T) {
	st := newStore(t)
	s := made(t, st, turnstone.Request{ID: "a"}, "a dog that stays")
	var ids []graph.ID
	for i := range 50 {
		ids = append(ids, says(t, s, "user", fmt.Sprint("a cat ", i)))
	}
	texts := 0
	x := embedding(t, filepath.Join(t.TempDir(), "index"), meaning("m", &texts))
	synced(t, x, st)
	must(t, s.Tombstone(ctx, ids...))
	if got := similar(t, x, st, "a cat", "", 1); len(got) != 1 || !strings.Contains(got[0], "stays") {
		t.Errorf("%q", got)
	}
}

// What an Embedding returns stays its own, and a vector of zeros, which is like nothing, is none.
func TestSE7_WhatAnEmbeddingReturnsIsItsOwn(t *testing.T) {
	st := newStore(t)
	made(t, st, turnstone.Request{ID: "a"}, "nothing", "something")
	kept := map[string][]float32{"nothing": {0, 0}, "something": {3, 4}}
	e := &Embedding{Embed: func(_ context.Context, texts []string) (out [][]float32, _ error) {
		for _, text := range texts {
			out = append(out, kept[text])
		}
		return out, nil
	}}
	x := embedding(t, filepath.Join(t.TempDir(), "index"), e)
	if r := synced(t, x, st); r.Embedded != 1 {
		t.Errorf("%+v", r)
	}
	for range 2 {
		if got := similar(t, x, st, "something", "", 10); len(got) != 1 {
			t.Errorf("%q", got)
		}
		if got := similar(t, x, st, "nothing", "", 10); len(got) != 0 {
			t.Errorf("%q", got)
		}
	}
	if v := kept["something"]; v[0] != 3 || v[1] != 4 {
		t.Errorf("the vector was changed: %v", v)
	}
}

// If another process makes vectors of another model meanwhile, Sync ends with an error.
func TestSE7_TwoModelsDoNotMix(t *testing.T) {
	st := newStore(t)
	s := made(t, st, turnstone.Request{ID: "a"})
	for i := range 3 * embedAtOnce {
		says(t, s, "user", fmt.Sprint("message ", i))
	}
	path, texts, calls := filepath.Join(t.TempDir(), "index"), 0, 0
	other := meaning("other", &texts)
	down := errors.New("down")
	mine := meaning("mine", &texts)
	embed := mine.Embed
	mine.Embed = func(ctx context.Context, all []string) ([][]float32, error) {
		if calls++; calls == 2 {
			good := other.Embed
			once := 0
			y := embedding(t, path, &Embedding{Model: "other", Embed: func(ctx context.Context, all []string) ([][]float32, error) {
				if once++; once > 1 {
					return nil, down
				}
				return good(ctx, all)
			}})
			if _, err := y.Sync(ctx, st); !errors.Is(err, down) {
				t.Error(err)
			}
		}
		return embed(ctx, all)
	}
	x := embedding(t, path, mine)
	if _, err := x.Sync(ctx, st); !errors.Is(err, ErrVectors) || calls != 2 {
		t.Errorf("%v after %d calls", err, calls)
	}
	if _, err := x.Similar(ctx, st, "message", nil, FindOptions{}); !errors.Is(err, ErrVectors) {
		t.Error(err)
	}
	if r := synced(t, x, st); r.Embedded != 3*embedAtOnce {
		t.Errorf("%+v", r)
	}
}

// The words of what was erased go, also as long as no vectors can be made.
func TestSE7_WordsGoWithoutVectors(t *testing.T) {
	st := newStore(t)
	s := made(t, st, turnstone.Request{ID: "a"}, "stays here")
	id := says(t, s, "user", "qzsecret")
	dir, down := t.TempDir(), errors.New("down")
	x := embedding(t, filepath.Join(dir, "index"), &Embedding{Embed: func(context.Context, []string) ([][]float32, error) { return nil, down }})
	for _, there := range []bool{true, false} {
		if _, err := x.Sync(ctx, st); !errors.Is(err, down) {
			t.Error(err)
		}
		found := false
		for _, name := range []string{"index", "index-wal"} {
			data, err := os.ReadFile(filepath.Join(dir, name))
			must(t, err)
			found = found || bytes.Contains(data, []byte("secret"))
		}
		if found != there {
			t.Errorf("the word is in a file: %v, want %v", found, there)
		}
		if _, err := s.Erase(ctx, turnstone.EraseOptions{}, id); err != nil && there {
			t.Fatal(err)
		}
	}
}

func TestSE7_UnusableVectorsAreRefused(t *testing.T) {
	st := newStore(t)
	s := made(t, st, turnstone.Request{ID: "a"}, "one", "two")
	path := filepath.Join(t.TempDir(), "index")
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for name, vectors := range map[string][][]float32{
		"too few": {{1}}, "different": {{1}, {1, 2}}, "empty": {{}, {}}, "NaN": {{1}, {nan}}, "infinite": {{inf}, {1}},
	} {
		x := embedding(t, path, &Embedding{Embed: func(context.Context, []string) ([][]float32, error) { return vectors, nil }})
		if r, err := x.Sync(ctx, st); !errors.Is(err, ErrVectors) || r.Embedded != 0 {
			t.Errorf("%s: %v, %+v", name, err, r)
		}
		if got := find(t, x, st, "two"); len(got) != 1 {
			t.Errorf("%s: words are not found any more", name)
		}
	}
	down := errors.New("the service is down")
	x := embedding(t, path, &Embedding{Embed: func(context.Context, []string) ([][]float32, error) { return nil, down }})
	if _, err := x.Sync(ctx, st); !errors.Is(err, down) {
		t.Error(err)
	}
	if _, err := x.Similar(ctx, st, "one", nil, FindOptions{}); !errors.Is(err, down) {
		t.Error(err)
	}
	texts := 0
	good := embedding(t, path, meaning("", &texts))
	if r := synced(t, good, st); r.Embedded != 2 {
		t.Errorf("%+v", r)
	}
	says(t, s, "user", "three")
	x = embedding(t, path, &Embedding{Embed: func(_ context.Context, all []string) ([][]float32, error) {
		return slices.Repeat([][]float32{{1, 2}}, len(all)), nil
	}})
	if _, err := x.Sync(ctx, st); !errors.Is(err, ErrVectors) {
		t.Error("vectors of two lengths:", err)
	}
	for _, text := range []string{"", " \n"} {
		if _, err := good.Similar(ctx, st, text, nil, FindOptions{}); !errors.Is(err, turnstone.ErrInvalid) {
			t.Error(err)
		}
	}
	if _, err := newIndex(t, path).Similar(ctx, st, "one", nil, FindOptions{}); !errors.Is(err, turnstone.ErrInvalid) {
		t.Error(err)
	}
	if _, err := good.Similar(ctx, st, "one", nil, FindOptions{Limit: MaxLimit + 1}); !errors.Is(err, turnstone.ErrLimit) {
		t.Error(err)
	}
}
