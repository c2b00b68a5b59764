package bench

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/badger"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
)

// storeOn opens a store on e. Both are closed when b ends.
func storeOn(b *testing.B, e engine.Engine) *turnstone.Store {
	b.Helper()
	b.Cleanup(func() { e.Close() })
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { st.Close() })
	return st
}

// BenchmarkGrowingList commits as a checkpointer of an agent framework does. Each session has 200 commits. A commit
// saves a list whole that has grown by a message of 400 bytes. It also saves a small part, sets two records, and
// keeps its revision under a name.
func BenchmarkGrowingList(b *testing.B) {
	const steps = 200
	var list []byte
	var versions [][]byte
	for i := range steps {
		list = fmt.Appendf(list, `{"role":"user","content":"message %d %s"},`, i, strings.Repeat(rand.Text(), 14))
		versions = append(versions, bytes.Clone(list))
	}
	for name, open := range map[string]func(dir string) (engine.Engine, error){
		"memory": func(string) (engine.Engine, error) { return memory.New(), nil },
		"badger": func(dir string) (engine.Engine, error) { return badger.Open(dir, nil) },
	} {
		b.Run(name, func(b *testing.B) {
			e, err := open(b.TempDir() + "/store")
			if err != nil {
				b.Fatal(err)
			}
			st := storeOn(b, e)
			n := 0
			for b.Loop() {
				n++
				s, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint(n)})
				if err != nil {
					b.Fatal(err)
				}
				for i, v := range versions {
					id := rand.Text()
					entry := fmt.Appendf(nil, `{"id":%q,"parent":%q,"revision":%d}`, id, id, i+1)
					if _, err := s.Commit(ctx, turnstone.Commit{
						Expected:   head.Revision(i),
						Checkpoint: map[string][]byte{"messages": v, "checkpoint": fmt.Appendf(nil, `{"v":4,"id":%q,"versions":{"messages":"%032d.%s"},"step":%d}`, id, i, id, i)},
						Records:    []turnstone.RecordChange{{Key: "c/" + id, Value: entry}, {Key: "latest", Value: entry}},
						Keep:       "latest",
					}); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(n*steps), "µs/commit")
		})
	}
}
