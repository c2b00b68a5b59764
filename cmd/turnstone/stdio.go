package main

import (
	"errors"
	"io"
	"net"
	"sync"
)

// errStdioEnded means that the only connection of a stdio has ended.
var errStdioEnded = errors.New("the connection has ended")

// A stdio is a net.Listener with one connection, to who has started the process.
type stdio struct {
	first chan net.Conn
	ended chan struct{} // closed when the connection was closed, and all was written
	once  sync.Once
}

// newStdio returns a listener whose connection reads in and writes to out. The connection has deadlines, which files
// need not have.
func newStdio(in io.Reader, out io.Writer) *stdio {
	s := &stdio{first: make(chan net.Conn, 1), ended: make(chan struct{})}
	conn, outer := net.Pipe()
	s.first <- conn
	go func() {
		_, _ = io.Copy(outer, in) // The server notices that nothing comes any more.
		_ = outer.Close()
	}()
	go func() {
		_, _ = io.Copy(out, outer)
		_ = s.Close()
	}()
	return s
}

// Accept implements net.Listener.
func (s *stdio) Accept() (net.Conn, error) {
	select {
	case c := <-s.first:
		return c, nil
	default:
	}
	<-s.ended
	return nil, errStdioEnded
}

// Close implements net.Listener. It does not wait for the connection.
func (s *stdio) Close() error {
	s.once.Do(func() { close(s.ended) })
	return nil
}

// Addr implements net.Listener.
func (s *stdio) Addr() net.Addr { return stdioAddr{} }

type stdioAddr struct{}

func (stdioAddr) Network() string { return "stdio" }
func (stdioAddr) String() string  { return "stdio" }
