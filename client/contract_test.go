package client_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/internal/testkit"
	"github.com/turnstonedb/turnstone/persistencetest"
	"github.com/turnstonedb/turnstone/server"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

var ctx = context.Background()

// newServer returns a server of an engine.
func newServer(t *testing.T, e engine.Engine, o turnstone.Options) *server.Server {
	t.Helper()
	s, err := server.New(server.Options{Open: func(ctx context.Context, namespace string, _ bool) (*turnstone.Store, error) {
		o := o
		o.Namespace = namespace
		return turnstone.Open(ctx, e, &o)
	}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// serve serves an engine on a Unix socket until stop is called, and closes the engine then.
func serve(t *testing.T, path string, e engine.Engine, o turnstone.Options) (stop func()) {
	t.Helper()
	s := newServer(t, e, o)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.Serve(ctx, l); err != nil {
			t.Error(err)
		}
	}()
	return func() {
		cancel()
		<-ended
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

func connect(t *testing.T, path string) *client.Client {
	t.Helper()
	c, err := client.Open(ctx, "unix:"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// SV1: a client is a Persistence and a Factory.
func TestSV1_Contract(t *testing.T) {
	for name, start := range storetest.Engines {
		t.Run(name, func(t *testing.T) {
			if !testkit.Pick(true, true, false) {
				t.Skip("-short: over connections that are cut alone")
			}
			storetest.Some(t, name)
			t.Parallel()
			persistencetest.Run(t, persistencetest.Config{New: func(t *testing.T, v turnstone.Validator) persistencetest.Backend {
				open := start(t)
				path := filepath.Join(t.TempDir(), "s")
				begin := func() (*client.Client, func()) {
					e, err := open()
					if err != nil {
						t.Fatal(err)
					}
					stop := serve(t, path, e, turnstone.Options{Validator: v})
					return connect(t, path), stop
				}
				c, stop := begin()
				b := persistencetest.Backend{Factory: c}
				if name != "memory" {
					b.Reopen = func() turnstone.Factory {
						c.Close()
						stop()
						c, stop = begin()
						return c
					}
				}
				t.Cleanup(func() {
					c.Close()
					stop()
				})
				return b
			}})
		})
	}
}
