package turnstone_test

import (
	"context"
	"os"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/badger"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/engine/postgres"
	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/persistencetest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// engines are those that the suite runs on: each returns how to open a new store,
// and if it is durable to open it again. A server that is not there skips the test.
var engines = map[string]func(t *testing.T) func() (engine.Engine, error){
	"memory": func(*testing.T) func() (engine.Engine, error) {
		return func() (engine.Engine, error) { return memory.New(), nil }
	},
	"badger": func(t *testing.T) func() (engine.Engine, error) {
		dir := t.TempDir() + "/store"
		return func() (engine.Engine, error) { return badger.Open(dir, nil) }
	},
	"pebble": func(t *testing.T) func() (engine.Engine, error) {
		dir := t.TempDir() + "/store"
		return func() (engine.Engine, error) { return pebble.Open(dir, nil) }
	},
	"postgres": func(t *testing.T) func() (engine.Engine, error) {
		url, schema := pgtest.URL(t), pgtest.Schema(t)
		return func() (engine.Engine, error) { return postgres.Open(ctx, url, &postgres.Options{Schema: schema}) }
	},
}

// oneEngine skips a test of an engine other than memory with -short: the packages
// of the engines have tests of their own.
func oneEngine(t *testing.T, name string) {
	t.Helper()
	if testing.Short() && name != "memory" {
		t.Skip("-short: on memory alone")
	}
}

// TestPersistence runs the contract of docs/contract.md on every engine.
func TestPersistence(t *testing.T) {
	for name, open := range engines {
		t.Run(name, func(t *testing.T) {
			oneEngine(t, name)
			t.Parallel()
			persistencetest.Run(t, persistencetest.Config{New: func(t *testing.T, v turnstone.Validator) persistencetest.Backend {
				return backend(t, open(t), name != "memory", &turnstone.Options{Validator: v, SealBytes: 20_000})
			}})
		})
	}
}

// backend opens a store on a new engine; what is left at the end must verify.
func backend(t *testing.T, open func() (engine.Engine, error), durable bool, o *turnstone.Options) persistencetest.Backend {
	var e engine.Engine
	var st *turnstone.Store
	start := func() turnstone.Factory {
		var err error
		if e, err = open(); err != nil {
			t.Fatal(err)
		}
		if st, err = turnstone.Open(context.Background(), e, o); err != nil {
			t.Fatal(err)
		}
		return st.Factory()
	}
	stop := func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	b := persistencetest.Backend{Factory: start()}
	if durable {
		b.Reopen = func() turnstone.Factory { stop(); return start() }
	}
	t.Cleanup(func() {
		verify(t, st)
		stop()
	})
	return b
}
