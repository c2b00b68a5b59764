package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// A broken scanner fails whenever it reads a key of some ranges, and now and then a page before.
type broken struct {
	engine.Engine
	bad  [][2][]byte
	page int
}

var errBroken = errors.New("broken")

func (b *broken) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		var page []engine.Pair
		flush := func() bool {
			for _, p := range page {
				if !yield(p, nil) {
					return false
				}
			}
			page = nil
			return true
		}
		for p, err := range b.Engine.Scan(ctx, r) {
			if err == nil && slices.ContainsFunc(b.bad, func(of [2][]byte) bool {
				return bytes.Compare(of[0], p.Key) <= 0 && bytes.Compare(p.Key, of[1]) < 0
			}) {
				err = errBroken
			}
			if err != nil { // The pairs of this page are lost with it.
				yield(engine.Pair{}, err)
				return
			}
			if page = append(page, p); len(page) >= b.page || r.Limit == 1 {
				if !flush() {
					return
				}
			}
		}
		flush()
	}
}

// What can be read of a range is read, wherever and however often the database fails in between.
func TestAroundReadsWhatCanBeRead(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		e := memory.New()
		var keys [][]byte
		for range 1 + r.IntN(200) {
			key := make([]byte, 1+r.IntN(6))
			for i := range key {
				key[i] = []byte{0, 1, 'a', 'b', 0xfe, 0xff}[r.IntN(6)]
			}
			if err := e.Apply(t.Context(), &engine.Batch{Sets: []engine.Pair{{Key: key, Value: []byte("v")}}}); err != nil {
				t.Fatal(err)
			}
		}
		for p, err := range e.Scan(t.Context(), engine.Range{}) {
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, p.Key)
		}
		b := &broken{Engine: e, page: 1 + r.IntN(20)}
		for range r.IntN(4) {
			i := r.IntN(len(keys))
			j := min(i+r.IntN(10), len(keys)-1)
			b.bad = append(b.bad, [2][]byte{keys[i], engine.Successor(keys[j])})
		}
		var want, got []string
		for _, k := range keys {
			if !slices.ContainsFunc(b.bad, func(of [2][]byte) bool { return bytes.Compare(of[0], k) <= 0 && bytes.Compare(k, of[1]) < 0 }) {
				want = append(want, string(k))
			}
		}
		gaps := 0
		for p, err := range engine.Around(t.Context(), b, engine.Range{}, func(g engine.Gap) {
			if gaps++; !errors.Is(g.Err, errBroken) {
				t.Error(g.Err)
			}
		}) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(p.Key))
		}
		lost := 0
		for _, k := range want {
			if !slices.Contains(got, k) {
				lost++
			}
		}
		// Between two places that are damaged near to each other something may be passed over.
		if lost > 0 && len(b.bad) < 2 || !slices.IsSorted(got) || len(got)+lost != len(want) || len(b.bad) > 0 && gaps == 0 {
			t.Fatalf("seed %d: %d of %d, %d gaps, bad %x\n%q\n%q", seed, len(got), len(want), gaps, b.bad, got, want)
		}
	}
}

// A database that can't be reached has no gaps.
func TestAroundEndsWhereTheDatabaseCantBeReached(t *testing.T) {
	for _, failed := range []error{engine.ErrUnavailable, engine.ErrClosed, context.Canceled} {
		ctx, cancel := context.WithCancel(t.Context())
		if errors.Is(failed, context.Canceled) {
			cancel()
		}
		var got error
		for _, err := range engine.Around(ctx, failing{failed}, engine.Range{}, func(g engine.Gap) { t.Error(g) }) {
			got = err
		}
		cancel()
		if !errors.Is(got, failed) {
			t.Errorf("%v, not %v", got, failed)
		}
	}
}

type failing struct{ err error }

func (f failing) Scan(context.Context, engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) { yield(engine.Pair{}, fmt.Errorf("scan: %w", f.err)) }
}
