package engine_test

import (
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/cache"
)

func TestStoresHaveWhatEnginesLeave(t *testing.T) {
	const size = 64 << 20
	m := engine.NewMemoryBudget(size)
	c := cache.New[int, int](cache.Of(m).Bases)
	room := func() (n int) { // of the half for commits, of which a cache takes values of half its size
		for c.Takes(n + 1<<16) {
			n += 1 << 16
		}
		return n * 2
	}
	whole := room()
	if whole < size/5 || whole > size/4 {
		t.Errorf("stores have %d bytes for what commits build on", whole)
	}
	back := m.Take(size / 4)
	if got := room(); got < whole*70/100 || got > whole*80/100 {
		t.Errorf("beside an engine %d, alone %d", got, whole)
	}
	all := m.Take(2 * size)
	if got := room(); got < whole*20/100 || got > whole*30/100 {
		t.Errorf("beside too many engines %d, alone %d", got, whole)
	}
	all()
	all()
	back()
	if got := room(); got != whole {
		t.Errorf("after the engines %d, before %d", got, whole)
	}
	var own *engine.MemoryBudget
	own.Take(1)()
	if own.Bytes() != engine.DefaultMemory || cache.Of(own) != cache.Of(nil) || cache.Of(own) == cache.Of(m) || engine.NewMemoryBudget(1).Bytes() != engine.MinMemory {
		t.Error("the process's own Memory, or the smallest, is not what it is said to be")
	}
}
