package postgres_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/postgres"
	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

var ctx = context.Background()

func open(t testing.TB, schema string) *postgres.Engine {
	t.Helper()
	e, err := postgres.Open(ctx, pgtest.URL(t), &postgres.Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// stored opens a store on the database that url names.
func stored(t testing.TB, url string, o *postgres.Options) (*postgres.Engine, *turnstone.Store) {
	t.Helper()
	e, err := postgres.Open(ctx, url, o)
	if err != nil {
		t.Fatal(err)
	}
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		e.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close(); e.Close() })
	return e, st
}

func TestContract(t *testing.T) {
	url := pgtest.URL(t)
	var mu sync.Mutex
	schemas := map[string]string{} // a schema stands for a directory
	enginetest.Run(t, enginetest.Driver{
		Durable: true,
		Open: func(dir string) (engine.Engine, error) {
			mu.Lock()
			defer mu.Unlock()
			if schemas[dir] == "" {
				schemas[dir] = pgtest.Schema(t)
			}
			return postgres.Open(ctx, url, &postgres.Options{Schema: schemas[dir]})
		},
	})
}

// A page of a scan is bounded by bytes as well: what comes behind many small
// values is not read all at once.
func TestPagesAreBoundedByBytes(t *testing.T) {
	testkit.Slow(t)
	e := open(t, pgtest.Schema(t))
	const small, large, size = 2000, 60, 512 << 10
	var b engine.Batch
	for i := range small {
		b.Set(fmt.Appendf(nil, "a%04d", i), []byte("x"))
	}
	if err := e.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
	for i := range large {
		if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: fmt.Appendf(nil, "b%04d", i), Value: bytes.Repeat([]byte{byte(i)}, size)}}}); err != nil {
			t.Fatal(err)
		}
	}
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	n := 0
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		if n == small {
			runtime.GC()
			runtime.ReadMemStats(&now)
			if grown := int64(now.HeapAlloc) - int64(before.HeapAlloc); grown > 16*size {
				t.Errorf("%d bytes are held", grown)
			}
		}
		if n >= small && (len(p.Value) != size || p.Value[0] != byte(n-small)) {
			t.Fatalf("pair %d is wrong", n)
		}
		n++
	}
	if n != small+large {
		t.Errorf("%d pairs", n)
	}
	// Two at once over the same sequence.
	seq := e.Scan(ctx, engine.Range{Limit: 300})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			n := 0
			for range seq {
				n++
			}
			if n != 300 {
				t.Errorf("%d pairs", n)
			}
		})
	}
	wg.Wait()
}
