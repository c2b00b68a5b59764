package postgres_test

import (
	"context"
	"sync"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/postgres"
	"github.com/turnstonedb/turnstone/internal/pgtest"
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
