package server

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// local serves the process of the server itself.
type local struct {
	begin sync.Once
	conns chan net.Conn
	http  *http.Server
}

func newLocal(s *Server) local {
	return local{conns: make(chan net.Conn), http: &http.Server{Handler: s, ReadHeaderTimeout: s.o.Patience, IdleTimeout: s.o.IdleTimeout}}
}

// Dial connects with the server from its own process: see client.Options.Dial. The server asks for tokens as it does
// on other connections, but speaks no TLS. The connections end with Close.
func (s *Server) Dial(ctx context.Context) (net.Conn, error) {
	s.local.begin.Do(func() {
		s.work(func() { _ = s.local.http.Serve(localListener{s}) }) // It always ends with an error.
	})
	outer, inner := net.Pipe()
	select {
	case s.local.conns <- inner:
		return outer, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.stopping:
		return nil, errStops
	}
}

// A localListener has the connections that Dial makes.
type localListener struct{ *Server }

// Accept implements net.Listener.
func (l localListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.local.conns:
		return c, nil
	case <-l.stopping:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. The listener ends when the server stops.
func (localListener) Close() error { return nil }

// Addr implements net.Listener.
func (localListener) Addr() net.Addr { return &net.UnixAddr{Net: "pipe"} }
