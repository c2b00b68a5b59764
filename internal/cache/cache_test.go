package cache

import (
	"testing"
)

func TestACacheHoldsWhatWasUsedLast(t *testing.T) {
	c := New[string, int](NewBudget(10))
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
	var none *Cache[string, int]
	none.Put("a", 1, 1)
	none.Drop("a")
	if _, ok := none.Get("a"); ok {
		t.Error("a nil cache has a value")
	}
}

func TestCachesOfOneBudgetShareIt(t *testing.T) {
	b := NewBudget(10)
	first, second := New[string, int](b), New[int, string](b)
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

// Budgets of one pool lend each other what they do not use, and get it back.
func TestBudgetsLendWhatTheyDoNotUse(t *testing.T) {
	var p pool
	small, large := p.add(), p.add()
	small.Resize(4)
	large.Resize(8)
	lent, own := New[int, int](small), New[int, int](large)
	count := func(c *Cache[int, int]) (n int) {
		for k := range 20 {
			if _, ok := c.Get(k); ok {
				n++
			}
		}
		return n
	}
	for k := range 10 {
		lent.Put(k, k, 2)
	}
	if n := count(lent); n != 6 {
		t.Errorf("%d values of 2 bytes in 12", n)
	}
	for k := range 10 {
		own.Put(k, k, 2)
	}
	if n, m := count(lent), count(own); n != 2 || m != 4 {
		t.Errorf("%d and %d values of 2 bytes in 4 and 8", n, m)
	}
	if _, ok := lent.Get(9); !ok {
		t.Error("what was used last is gone")
	}
	lent.Put(11, 11, 2) // Its budget is full, so it drops its own.
	if n, m := count(lent), count(own); n != 2 || m != 4 {
		t.Errorf("%d and %d values", n, m)
	}
	if lent.Takes(3) || !lent.Takes(2) {
		t.Error("a cache takes values by its own budget")
	}
}
