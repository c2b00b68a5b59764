package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/engine/sealed"
	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// URLs has a function for each engine, by the engine's name. The function begins a test, and returns the URL of a new
// store on the engine. If the engine needs a server that is not there, the function skips the test.
var URLs = map[string]func(t testing.TB) string{
	"memory":   func(testing.TB) string { return "mem:" },
	"postgres": func(t testing.TB) string { return pgtest.URL(t) + "&schema=" + pgtest.Schema(t) },
}

// Embedded has, for each engine that is in a directory, a function that opens it for this process alone.
var Embedded = map[string]func(dir string) (engine.Engine, error){}

// Engines has a function for each engine, by the engine's name. The function begins a test, and returns another one that
// opens a new store. If the store is durable, calling that one again opens the same store.
var Engines = map[string]func(t *testing.T) func() (engine.Engine, error){}

func init() {
	exclusive := &open.Options{Exclusive: true}
	for _, scheme := range open.Schemes() {
		URLs[scheme] = func(t testing.TB) string { return scheme + ":" + t.TempDir() + "/store" }
		Embedded[scheme] = func(dir string) (engine.Engine, error) {
			return open.Open(context.Background(), scheme+":"+dir, exclusive)
		}
	}
	for name, url := range URLs {
		Engines[name] = func(t *testing.T) func() (engine.Engine, error) {
			u := url(t)
			return func() (engine.Engine, error) { return open.Open(context.Background(), u, exclusive) }
		}
	}
	Engines["sealed"] = func(t *testing.T) func() (engine.Engine, error) {
		ring, begin := Keyring(t, ""), Engines[open.Schemes()[0]](t)
		return func() (engine.Engine, error) {
			e, err := begin()
			if err != nil {
				return nil, err
			}
			s, err := sealed.Open(context.Background(), e, ring, "")
			if err != nil {
				return nil, errors.Join(err, e.Close())
			}
			return s, nil
		}
	}
}

// Keyring returns a new keyring that has a keyset for each namespace.
func Keyring(t testing.TB, namespaces ...string) *sealed.Keyring {
	t.Helper()
	ctx := context.Background()
	ring, err := sealed.CreateKeyring(ctx, t.TempDir()+"/keys", sealed.Key([32]byte{1}))
	for _, name := range namespaces {
		if err == nil {
			err = ring.Add(ctx, name)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

// Some skips a test of an engine that is neither in memory nor the default unless the tests run in full, and with
// -short all but that in memory: the packages of the engines have tests of their own.
func Some(t *testing.T, name string) {
	t.Helper()
	if name != "memory" && (testing.Short() || name != open.Schemes()[0] && !testkit.Long()) {
		t.Skip("on every engine with TURNSTONE_LONG=1")
	}
}
