package storetest

import (
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

// A Cutter is a proxy that cuts connections off.
type Cutter struct {
	To     string                  // a server: the path of its socket, or HOST:PORT
	Budget func() (up, down int64) // bytes of a connection in each direction; negative is as many as there are
	Cuts   atomic.Int64            // connections that were cut, once for each direction
	Open   atomic.Int64            // connections
	Away   atomic.Bool             // nothing is passed on

	mu    sync.Mutex // guards conns
	conns []net.Conn
}

// CutAll cuts all connections.
func (c *Cutter) CutAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.conns {
		s.Close()
	}
}

// Listen makes c listen at a new path, which it returns.
func (c *Cutter) Listen(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c.accept(t, l)
	return path
}

// ListenTCP makes c listen at a port of this machine, and returns HOST:PORT.
func (c *Cutter) ListenTCP(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.accept(t, l)
	return l.Addr().String()
}

func (c *Cutter) accept(t *testing.T, l net.Listener) {
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
}

func (c *Cutter) pass(in net.Conn) {
	defer in.Close()
	if c.Away.Load() {
		return
	}
	network := "unix"
	if _, _, err := net.SplitHostPort(c.To); err == nil {
		network = "tcp"
	}
	out, err := net.Dial(network, c.To)
	if err != nil {
		return
	}
	defer out.Close()
	c.Open.Add(1)
	defer c.Open.Add(-1)
	c.mu.Lock()
	c.conns = append(c.conns, in, out)
	c.mu.Unlock()
	up, down := c.Budget()
	var both sync.WaitGroup
	one := func(to, from net.Conn, budget int64) {
		if budget < 0 {
			_, _ = io.Copy(to, from)
		} else if n, _ := io.CopyN(to, from, budget); n == budget {
			c.Cuts.Add(1)
		}
		to.Close()
		from.Close()
	}
	both.Go(func() { one(out, in, up) })
	both.Go(func() { one(in, out, down) })
	both.Wait()
}

// Often is a budget for a Cutter. Half of all connections end with it, somewhere in their first 3,000 bytes.
func Often() (up, down int64) {
	switch rand.IntN(4) {
	case 0:
		return rand.Int64N(3000), -1
	case 1:
		return -1, rand.Int64N(3000)
	}
	return -1, -1
}
