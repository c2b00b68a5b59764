package server

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// connections are those of a server. When there are as many as may be, the one that has waited longest for its next
// request, or for the rest of the header of one, makes room for the new one: so a few who hold connections without
// asking anything shut nobody out, and the engine has descriptors left.
type connections struct {
	most int

	mu  sync.Mutex // guards the fields below
	all map[net.Conn]*connection
}

type connection struct {
	requests int       // that the server is at
	since    time.Time // when requests became 0
}

func newConnections(most int) *connections {
	return &connections{most: most, all: map[net.Conn]*connection{}}
}

// changed is called when a connection is new, and when it has ended.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.all[conn] = &connection{since: time.Now()}
		if len(c.all) > c.most {
			c.makeRoom(conn)
		}
	case http.StateClosed, http.StateHijacked:
		delete(c.all, conn)
	}
}

// makeRoom closes the connection that has been idle longest, or the new one if all others are in use. One that has just
// been used is the last to go, as the end of its answer may be on its way. The caller holds c.mu.
func (c *connections) makeRoom(newest net.Conn) {
	closed := newest
	since := time.Now()
	for conn, is := range c.all {
		if conn != newest && is.requests == 0 && is.since.Before(since) {
			closed, since = conn, is.since
		}
	}
	delete(c.all, closed)
	go closed.Close() // It may take as long as the other side likes.
}

type connectionKey struct{}

// known makes the context of a connection's requests lead to it.
func (c *connections) known(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, conn)
}

// use marks the connection of a request as in use, until done is called.
func (c *connections) use(r *http.Request) (done func()) {
	conn, _ := r.Context().Value(connectionKey{}).(net.Conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	is := c.all[conn]
	if is == nil { // A test without connections, or one that had to make room.
		return func() {}
	}
	is.requests++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		is.requests--
		is.since = time.Now()
	}
}
