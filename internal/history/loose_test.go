package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone/graph"
)

// A table finds what a map finds, the newest first, also when hashes collide or follow each other.
func TestALooseTableFindsWhatAMapFinds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var table looseTable
		model := map[uint64][]graph.Position{}
		n := rng.IntN(300)
		for i := range n {
			hash := rng.Uint64N(uint64(1 + rng.IntN(2*n+1)))
			at := graph.Position{Revision: uint64(i + 1), Index: rng.IntN(graph.MaxNodes)}
			table.entries = append(table.entries, looseEntry{hash, at.Revision*graph.MaxNodes + uint64(at.Index)})
			if 4*len(table.entries) > 3*len(table.slots) {
				table.grow()
			} else {
				table.place(len(table.entries) - 1)
			}
			model[hash] = append(model[hash], at)
		}
		check := func(table looseTable, after uint64) {
			t.Helper()
			for hash := range uint64(2*n + 3) {
				var want []graph.Position
				for _, p := range model[hash] {
					if p.Revision > after {
						want = append(want, p)
					}
				}
				slices.Reverse(want)
				if got := table.find(hash); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Fatalf("hash %d after %d of %d: %v, want %v", hash, after, n, got, want)
				}
			}
		}
		check(table, 0)
		for _, after := range []uint64{0, uint64(n / 2), uint64(n), uint64(n + 1)} {
			check(table.after(after), after)
		}
	}
}
