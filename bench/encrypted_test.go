package bench

import (
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/pebble"
)

// BenchmarkRecordsPage lists a page of 50 records out of 10,000 whose keys begin alike, and out of 100 of them.
func BenchmarkRecordsPage(b *testing.B) {
	for _, name := range []string{"pebble", "sealed"} {
		var e engine.Engine
		e, err := pebble.Open(b.TempDir()+"/store", nil)
		if err == nil && name == "sealed" {
			e, err = encrypt(b, e)
		}
		if err != nil {
			b.Fatal(err)
		}
		st := storeOn(b, e)
		for _, of := range []int{100, 10_000} {
			s, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint("s", of)})
			if err != nil {
				b.Fatal(err)
			}
			for i := 0; i < of; i += 100 {
				var changes []turnstone.RecordChange
				for j := range 100 {
					changes = append(changes, turnstone.RecordChange{Key: fmt.Sprintf("queue-%d/%08d", of, i+j), Value: []byte(`{"what":"to do"}`)})
				}
				if _, err := s.ChangeRecords(ctx, changes...); err != nil {
					b.Fatal(err)
				}
			}
			b.Run(fmt.Sprintf("%s/of=%d", name, of), func(b *testing.B) {
				for b.Loop() {
					page, err := st.Records(ctx, turnstone.RecordQuery{Prefix: fmt.Sprintf("queue-%d/", of), Limit: 50})
					if err != nil || len(page.Records) != 50 {
						b.Fatal(len(page.Records), err)
					}
				}
			})
		}
	}
}
