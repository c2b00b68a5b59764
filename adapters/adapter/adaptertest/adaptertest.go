// Package adaptertest compares a store of ours with a framework's own, by random calls: a helper for tests of adapters.
package adaptertest

import (
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// A Call makes one call of a store, with arguments that it chooses by the numbers, and returns what is to be the same for
// all stores.
type Call[S any] func(store S, r *rand.Rand) (any, error)

// Alike makes random calls of several stores, and fails the test at the first one of which they don't return the same:
// equal results (reflect.DeepEqual), or errors. Each store gets the same arguments.
func Alike[S any](t testing.TB, stores []S, steps int, seed uint64, calls map[string]Call[S]) {
	t.Helper()
	names := slices.Sorted(maps.Keys(calls))
	for step := range steps {
		name := names[rand.New(rand.NewPCG(seed, uint64(2*step))).IntN(len(names))]
		var first any
		var failed bool
		for i, s := range stores {
			result, err := calls[name](s, rand.New(rand.NewPCG(seed, uint64(2*step+1))))
			switch {
			case i == 0:
				first, failed = result, err != nil
			case failed != (err != nil) || err == nil && !reflect.DeepEqual(first, result):
				t.Fatalf("seed %d, step %d: %s of %T (failed: %v) and %T (%v):\n%+v\nand\n%+v", seed, step, name, stores[0], failed, s, err, first, result)
			}
		}
	}
}
