package client_test

import (
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine"
)

// A cutter is a proxy that cuts connections off.
type cutter struct {
	to     string
	budget func() (up, down int64) // bytes of a connection in each direction; negative is as many as there are
	cuts   atomic.Int64
	open   atomic.Int64
	away   atomic.Bool // nothing is passed on

	mu    sync.Mutex // guards conns
	conns []net.Conn
}

// cutAll cuts all connections.
func (c *cutter) cutAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.conns {
		s.Close()
	}
}

// listen makes c listen at a new path, which it returns.
func (c *cutter) listen(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go c.pass(in)
		}
	}()
	return path
}

func (c *cutter) pass(in net.Conn) {
	defer in.Close()
	if c.away.Load() {
		return
	}
	out, err := net.Dial("unix", c.to)
	if err != nil {
		return
	}
	defer out.Close()
	c.open.Add(1)
	defer c.open.Add(-1)
	c.mu.Lock()
	c.conns = append(c.conns, in, out)
	c.mu.Unlock()
	up, down := c.budget()
	var both sync.WaitGroup
	one := func(to, from net.Conn, budget int64) {
		if budget < 0 {
			_, _ = io.Copy(to, from)
		} else if n, _ := io.CopyN(to, from, budget); n == budget {
			c.cuts.Add(1)
		}
		to.Close()
		from.Close()
	}
	both.Go(func() { one(out, in, up) })
	both.Go(func() { one(in, out, down) })
	both.Wait()
}

// often cuts half of all connections, anywhere in the first requests and answers.
func often() (up, down int64) {
	switch rand.IntN(4) {
	case 0:
		return rand.Int64N(3000), -1
	case 1:
		return -1, rand.Int64N(3000)
	}
	return -1, -1
}

// behind serves an engine behind a cutter, and returns a client.
func behind(t *testing.T, e engine.Engine, o turnstone.Options, budget func() (up, down int64)) (*client.Client, *cutter) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	stop := serve(t, path, e, o)
	c := &cutter{to: path, budget: budget}
	cl := connect(t, c.listen(t))
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
