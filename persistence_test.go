package turnstone_test

import (
	"context"
	"os"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/persistencetest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// TestPersistence runs the contract of docs/contract.md on the engines of storetest.Some, on all of them in full.
func TestPersistence(t *testing.T) {
	for name, open := range storetest.Engines {
		t.Run(name, func(t *testing.T) {
			storetest.Some(t, name)
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
		storetest.Verify(t, st)
		stop()
	})
	return b
}
