package client_test

import (
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// behind serves an engine behind a cutter, and returns a client.
func behind(t *testing.T, e engine.Engine, o turnstone.Options, budget func() (up, down int64)) (*client.Client, *storetest.Cutter) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	stop := serve(t, path, e, o)
	c := &storetest.Cutter{To: path, Budget: budget}
	cl := connect(t, c.Listen(t))
	t.Cleanup(func() {
		cl.Close()
		stop()
	})
	return cl, c
}

// lossy is a budget that loses the answer to what follows lose.
type lossy struct{ lose atomic.Bool }

func (l *lossy) budget() (up, down int64) {
	if l.lose.CompareAndSwap(true, false) {
		return -1, 0
	}
	return -1, -1
}

// unclosed is an engine that outlives its server.
type unclosed struct{ engine.Engine }

func (unclosed) Close() error { return nil }

// A short writer takes half of what it is given.
type short struct{}

func (short) Write(b []byte) (int, error) { return len(b) / 2, nil }
