package bench

import (
	"fmt"
	"sync"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/head"
)

// BenchmarkFirstPage reads the first page of lists: of all of 1,000 sessions that were just
// created, and of 20,000 sessions those of a label, of a group and of a parent, each of which 100
// have.
func BenchmarkFirstPage(b *testing.B) {
	few, many := onPebble(b, pebble.Process), onPebble(b, pebble.Process)
	createUsers(b, many, 20_000)
	createUsers(b, few, 1000)
	for _, c := range []struct {
		name string
		st   *turnstone.Store
		o    turnstone.ListOptions
	}{
		{"created-1000", few, turnstone.ListOptions{}},
		{"all-20000", many, turnstone.ListOptions{}},
		{"label-20000", many, turnstone.ListOptions{Labels: map[string]string{"user": "7"}}},
		{"group-20000", many, turnstone.ListOptions{Group: "app/7"}},
		{"children-20000", many, turnstone.ListOptions{Parent: "7"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				page, err := c.st.List(ctx, c.o)
				if err != nil || len(page.Sessions) != 50 {
					b.Fatal(len(page.Sessions), err)
				}
			}
		})
	}
}

// createUsers creates n sessions of 200 users in 32 goroutines. The first session of each user is the
// parent of the others.
func createUsers(b *testing.B, st *turnstone.Store, n int) {
	const workers, users = 32, 200
	create := func(i int) {
		user := fmt.Sprint(i % users)
		r := turnstone.Request{ID: fmt.Sprint(i), Metadata: head.Metadata{Group: "app/" + user, Labels: map[string]string{"user": user}}}
		if i >= users {
			r.Parent, r.Detached = user, true
		}
		if _, _, err := st.Create(ctx, r); err != nil {
			b.Error(err)
		}
	}
	for i := range users {
		create(i)
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := users + w; i < n; i += workers {
				create(i)
			}
		})
	}
	wg.Wait()
}
