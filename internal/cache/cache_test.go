package cache_test

import (
	"testing"

	"github.com/turnstonedb/turnstone/internal/cache"
)

func TestACacheHoldsWhatWasUsedLast(t *testing.T) {
	c := cache.New[string, int](10)
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
