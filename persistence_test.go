package turnstone_test

import (
	"context"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/badger"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/persistencetest"
)

// engines are those that the suite runs on; durable ones are opened by directory.
var engines = map[string]func(dir string) (engine.Engine, error){
	"memory": nil,
	"badger": func(dir string) (engine.Engine, error) { return badger.Open(dir, nil) },
	"pebble": func(dir string) (engine.Engine, error) { return pebble.Open(dir, nil) },
}

func TestPersistence(t *testing.T) {
	for name, open := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			persistencetest.Run(t, persistencetest.Config{New: func(t *testing.T, v turnstone.Validator) persistencetest.Backend {
				return backend(t, open, &turnstone.Options{Validator: v, SealBytes: 20_000})
			}})
		})
	}
}

// backend opens a store on a new engine; what is left at the end must verify.
func backend(t *testing.T, open func(string) (engine.Engine, error), o *turnstone.Options) persistencetest.Backend {
	dir := t.TempDir() + "/store"
	var e engine.Engine = memory.New()
	var st *turnstone.Store
	start := func() turnstone.Factory {
		var err error
		if open != nil {
			if e, err = open(dir); err != nil {
				t.Fatal(err)
			}
		}
		if st, err = turnstone.Open(context.Background(), e, o); err != nil {
			t.Fatal(err)
		}
		return st
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
	if open != nil {
		b.Reopen = func() turnstone.Factory { stop(); return start() }
	}
	t.Cleanup(func() {
		verify(t, st)
		stop()
	})
	return b
}

func verify(t *testing.T, st *turnstone.Store) {
	t.Helper()
	v, err := st.Verify(context.Background(), nil)
	if err != nil {
		t.Error(err)
	}
	for _, p := range v.Problems {
		t.Error(p)
	}
}
