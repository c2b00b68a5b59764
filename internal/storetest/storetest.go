// Package storetest gives tests an empty store on every engine, and one behind a server. Tests that use it have to be
// run by pgtest.Main.
package storetest

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/server"
)

// Each runs f once for each engine, and once for a server, in a subtest of that name. open opens an empty store.
func Each(t *testing.T, f func(t *testing.T, open func(*testing.T) turnstone.Factory)) {
	for name, start := range Engines {
		t.Run(name, func(t *testing.T) {
			f(t, func(t *testing.T) turnstone.Factory { return started(t, start(t)).Factory() })
		})
	}
	t.Run("server", func(t *testing.T) { f(t, Served) })
}

// Memory returns an empty store in memory.
func Memory(t *testing.T) turnstone.Factory { return URL(t, "mem:").Factory() }

// Pebble returns an empty store on Pebble, the default.
func Pebble(t *testing.T) turnstone.Factory { return URL(t, t.TempDir()).Factory() }

// URL returns the store of a URL, as package open has them.
func URL(t *testing.T, url string) *turnstone.Store {
	t.Helper()
	return started(t, func() (engine.Engine, error) { return open.Open(t.Context(), url, nil) })
}

// started returns an empty store on an engine that is closed at the end of the test.
func started(t *testing.T, open func() (engine.Engine, error)) *turnstone.Store {
	t.Helper()
	e, err := open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return On(t, e)
}

// On returns a store on an engine.
func On(t *testing.T, e engine.Engine) *turnstone.Store {
	t.Helper()
	st, err := turnstone.Open(t.Context(), e, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() }) // The engine may have been made to fail.
	return st
}

// Served returns a client of a server of an empty store in memory.
func Served(t *testing.T) turnstone.Factory {
	t.Helper()
	return connect(t, serve(t, memory.New()))
}

// Behind returns a client of a server of the store on an engine, whose connections a Cutter cuts.
func Behind(t *testing.T, e engine.Engine, budget func() (up, down int64)) (*client.Client, *Cutter) {
	t.Helper()
	c := &Cutter{To: serve(t, e), Budget: budget}
	return connect(t, c.Listen(t)), c
}

// serve serves the store on an engine, and returns the path of the socket.
func serve(t *testing.T, e engine.Engine) (path string) {
	t.Helper()
	return Serve(t, e, server.Options{})
}

// Serve serves the store on an engine, and returns the path of the socket. It sets Options.Open.
func Serve(t *testing.T, e engine.Engine, o server.Options) (path string) {
	t.Helper()
	o.Open = func(ctx context.Context, namespace string, mustExist bool) (*turnstone.Store, error) {
		return turnstone.Open(ctx, e, &turnstone.Options{Namespace: namespace, MustExist: mustExist})
	}
	s, err := server.New(o)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	serving, stop := context.WithCancel(context.Background())
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
	return path
}

func connect(t *testing.T, path string) *client.Client {
	t.Helper()
	c, err := client.Open(t.Context(), "unix:"+path, nil)
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
