package cache_test

import (
	"testing"

	"github.com/turnstonedb/turnstone/internal/cache"
)

func TestACacheHoldsWhatWasUsedLast(t *testing.T) {
	c := cache.New[string, int](cache.NewBudget(10))
	has := func(want ...string) {
		t.Helper()
		n := 0
		for _, k := range []string{"a", "b", "c", "d", "large"} {
			if _, ok := c.Get(k); ok {
				n++
			}
		}
		for _, k := range want {
			if _, ok := c.Get(k); !ok {
				t.Errorf("%q is gone", k)
			}
		}
		if n != len(want) {
			t.Errorf("%d values, want %v", n, want)
		}
	}
	c.Put("a", 1, 4)
	c.Put("b", 2, 4)
	has("b", "a") // a was used last
	c.Put("c", 3, 4)
	has("a", "c")
	c.Put("a", 4, 1) // smaller
	c.Put("d", 5, 4)
	has("a", "c", "d")
	if v, _ := c.Get("a"); v != 4 {
		t.Errorf("%d", v)
	}
	c.Put("a", 6, 6) // larger than half: it has no value then, and pushes nothing out
	has("c", "d")
	c.Drop("c")
	c.Drop("no such key")
	has("d")
	var none *cache.Cache[string, int]
	none.Put("a", 1, 1)
	none.Drop("a")
	if _, ok := none.Get("a"); ok {
		t.Error("a nil cache has a value")
	}
}

func TestCachesOfOneBudgetShareIt(t *testing.T) {
	b := cache.NewBudget(10)
	first, second := cache.New[string, int](b), cache.New[int, string](b)
	has := func(a, b, one, two bool) {
		t.Helper()
		_, hasA := first.Get("a")
		_, hasB := first.Get("b")
		_, hasOne := second.Get(1)
		_, hasTwo := second.Get(2)
		if got, want := [4]bool{hasA, hasB, hasOne, hasTwo}, [4]bool{a, b, one, two}; got != want {
			t.Errorf("they hold %v, want %v", got, want)
		}
	}
	first.Put("a", 1, 4)
	first.Put("b", 2, 4)
	second.Put(1, "one", 4) // pushes out what was used least recently, whose ever it is
	has(false, true, true, false)
	second.Put(2, "two", 2)
	has(false, true, true, true)
	first.Clear()
	has(false, false, true, true)
	second.Put(1, "one", 5)
	first.Put("a", 1, 3)
	has(true, false, true, true)
	b.Resize(4)
	has(false, false, false, true)
	if second.Put(1, "one", 3); second.Takes(3) || !second.Takes(2) {
		t.Error("what a cache takes does not follow its budget")
	}
	has(false, false, false, true)
	b.Resize(8)
	second.Put(1, "one", 4)
	has(false, false, true, true)
}
