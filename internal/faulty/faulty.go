// Package faulty is a server that fails as it is told to. The tests of the clients in Go, Python and TypeScript all run
// the table of server/retries.jsonl against it.
package faulty

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/socket"
	"github.com/turnstonedb/turnstone/internal/wire"
	"github.com/turnstonedb/turnstone/server"
)

// What a server does with a request.
const (
	Refused = "refused" // For a moment nobody listens.
	Reset   = "reset"   // The connection ends before the request is worked on.
	Lost    = "lost"    // It ends when that has been done.
	Half    = "half"    // It ends in the middle of the answer.
	Gateway = "gateway" // A proxy answers in place of the server, when the request has been worked on.
	Restart = "restart" // The server has been restarted when the request comes, and the next fault is that of the request.
	Other   = "other"   // The request, and those that follow it, come to the other one of two servers on one store.
)

// Faults has all of them.
var Faults = []string{Refused, Reset, Lost, Half, Gateway, Restart, Other}

// PathFaults is where a client of a test says what happens to the requests that follow: as JSON, a list of faults.
const PathFaults = "/faults"

// A Server stands for two servers on one store. One of them answers all requests, until a fault makes it the other one.
// Each request has a connection of its own.
type Server struct {
	path   string
	engine engine.Engine

	mu       sync.Mutex // guards the fields below
	servers  [2]*server.Server
	now      int // index of the one that answers
	faults   []string
	listener *net.UnixListener
	ended    bool
}

// Listen returns a server that listens at the path of a socket.
func Listen(path string) (*Server, error) {
	s := &Server{path: path, engine: memory.New()}
	for i := range s.servers {
		if err := s.start(i); err != nil {
			return nil, err
		}
	}
	return s, s.listen()
}

// Close ends the server.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	_ = s.listener.Close()
	for _, one := range s.servers {
		one.Close()
	}
	_ = s.engine.Close()
}

// shared is an engine that outlives the stores on it.
type shared struct{ engine.Engine }

func (shared) Close() error { return nil }

func (s *Server) start(i int) error {
	one, err := server.New(server.Options{Open: func(ctx context.Context, _ string, _ bool) (*turnstone.Store, error) {
		return turnstone.Open(ctx, shared{s.engine}, nil)
	}})
	if err == nil {
		s.servers[i] = one
	}
	return err
}

func (s *Server) listen() error {
	_ = os.Remove(s.path)
	l, err := socket.Listen(s.path) // When it is closed the path stays, so that a connection is refused.
	if err != nil {
		return err
	}
	s.listener = l
	front := &http.Server{Handler: s}
	front.SetKeepAlivesEnabled(false)
	go func() { _ = front.Serve(l) }()
	return nil
}

// refuse closes the socket for a moment if the next fault is Refused, and reports whether it does. If servers change
// before that, it changes them too.
func (s *Server) refuse() bool {
	i := slices.IndexFunc(s.faults, func(f string) bool { return f != Restart && f != Other })
	if i < 0 || s.faults[i] != Refused {
		return false
	}
	for _, f := range s.faults[:i] {
		s.move(f)
	}
	s.faults = s.faults[i+1:]
	_ = s.listener.Close()
	time.AfterFunc(20*time.Millisecond, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.ended || s.refuse() { // Between two that are refused nobody listens, not even for a moment.
			return
		}
		if err := s.listen(); err != nil {
			panic(err)
		}
	})
	return true
}

// move makes another server the one that answers.
func (s *Server) move(fault string) {
	if fault == Other {
		s.now = 1 - s.now
		return
	}
	s.servers[s.now].Close()
	if err := s.start(s.now); err != nil {
		panic(err)
	}
}

// next returns the server that a request comes to, and what happens to the request, which is "" if nothing does.
func (s *Server) next() (*server.Server, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.refuse()
	for len(s.faults) > 0 {
		fault := s.faults[0]
		s.faults = s.faults[1:]
		if fault != Restart && fault != Other {
			return s.servers[s.now], fault
		}
		s.move(fault)
	}
	return s.servers[s.now], ""
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if r.URL.Path == PathFaults {
		s.mu.Lock()
		defer s.mu.Unlock()
		w.Header().Set(wire.HeaderCall, r.Header.Get(wire.HeaderCall)) // The transports of the clients want it.
		if err := json.Unmarshal(body, &s.faults); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
		s.refuse()
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	one, fault := s.next()
	switch fault {
	case "":
		one.ServeHTTP(w, r)
		return
	case Reset:
		panic(http.ErrAbortHandler)
	}
	answer := httptest.NewRecorder()
	one.ServeHTTP(answer, r)
	switch fault {
	case Half:
		half(w, answer.Result())
	case Gateway:
		http.Error(w, "<html>bad gateway</html>", http.StatusBadGateway)
		return
	}
	panic(http.ErrAbortHandler)
}

// half sends half of an answer.
func half(w http.ResponseWriter, answer *http.Response) {
	var whole bytes.Buffer
	body, _ := io.ReadAll(answer.Body)
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	if err := answer.Write(&whole); err != nil {
		panic(err)
	}
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	_, _ = conn.Write(whole.Bytes()[:whole.Len()/2])
	_ = conn.Close()
}
