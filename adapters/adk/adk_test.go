package adk_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/adk/v2/session"
	"google.golang.org/adk/v2/session/sessiontestsuite"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adk"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/server"
)

var ctx = context.Background()

func TestMain(m *testing.M) {
	if dir := os.Getenv(agentStore); dir != "" {
		os.Exit(agentProcess(dir))
	}
	os.Exit(pgtest.Main(m))
}

// stores returns what gives a test an empty store, by the name of the engine.
func stores(t *testing.T) map[string]func(*testing.T) turnstone.Factory {
	of := func(url func(*testing.T) string) func(*testing.T) turnstone.Factory {
		return func(t *testing.T) turnstone.Factory {
			e, err := open.Open(ctx, url(t), nil)
			return storeOn(t, e, err).Factory()
		}
	}
	return map[string]func(*testing.T) turnstone.Factory{
		"memory":   of(func(*testing.T) string { return "mem:" }),
		"badger":   of(func(t *testing.T) string { return "badger:" + t.TempDir() }),
		"pebble":   of(func(t *testing.T) string { return "pebble:" + t.TempDir() }),
		"postgres": of(func(t *testing.T) string { return pgtest.URL(t) + "&schema=" + pgtest.Schema(t) }),
		"server":   served,
	}
}

func storeOn(t *testing.T, e engine.Engine, err error) *turnstone.Store {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() }) // The tests of what is durable close it themselves.
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st
}

// served returns a client of a server of a store in memory.
func served(t *testing.T) turnstone.Factory {
	e := memory.New()
	s, err := server.New(server.Options{Open: func(ctx context.Context, namespace string, mustExist bool) (*turnstone.Store, error) {
		return turnstone.Open(ctx, e, &turnstone.Options{Namespace: namespace, MustExist: mustExist})
	}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	serving, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(serving, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	c, err := client.Open(ctx, "unix:"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestAD1_TheSuiteOfTheKitPassesOnEveryEngine(t *testing.T) {
	for name, open := range stores(t) {
		t.Run(name, func(t *testing.T) {
			sessiontestsuite.RunServiceTests(t, sessiontestsuite.SuiteOptions{SupportsUserProvidedSessionID: true}, func(t *testing.T) session.Service {
				return adk.NewSessions(open(t))
			})
		})
	}
}
