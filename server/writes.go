package server

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/internal/wire"
)

const (
	// rememberFor is how long a write is remembered after it has ended. Clients repeat one for half as long at most.
	rememberFor = time.Minute
	// rememberBytes is how many bytes of answers are remembered. Those of the oldest writes are forgotten first.
	rememberBytes = 64 << 20
	maxRequestID  = 128
)

// writes remembers writes by the ids that callers gave them, so that one that is repeated because its answer was lost
// is not made twice.
type writes struct {
	mu     sync.Mutex
	byID   map[writeID]*written
	oldest []*written // those that have ended, in the order in which they did
	bytes  int        // of the answers of these
}

type writeID struct{ namespace, id string }

// A written write is one that somebody has asked for.
type written struct {
	id    writeID
	done  chan struct{} // closed when it has ended
	begun bool
	sum   uint64 // hash of what was asked, once it has begun
	pins  int    // requests that are about it: it is not forgotten while there are some
	ended time.Time
	// What it ended with. Both are nil if that is forgotten.
	result []byte
	failed error

	follow followers // of an operation that takes long
}

func newWrites() writes { return writes{byID: map[writeID]*written{}} }

// pin returns the write with an id, which is not forgotten until unpin is called.
func (w *writes) pin(id writeID) (n *written, unpin func()) {
	if id.id == "" {
		return &written{done: make(chan struct{})}, func() {}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget()
	n = w.byID[id]
	if n == nil {
		n = &written{id: id, done: make(chan struct{})}
		w.byID[id] = n
	}
	n.pins++
	return n, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if n.pins--; n.pins == 0 && !n.begun && w.byID[id] == n {
			delete(w.byID, id)
		}
	}
}

// begin reports whether the write begins with this request. ok is false if it is another write.
func (w *writes) begin(n *written, sum uint64) (first, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !n.begun {
		n.begun, n.sum = true, sum
		return true, true
	}
	return false, n.sum == sum
}

// end records the result of a write. It forgets a write that failed without an effect: the client may make it again.
func (w *writes) end(n *written, result []byte, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n.result, n.failed, n.ended = result, err, time.Now()
	close(n.done)
	switch {
	case n.id.id == "":
	case err != nil && !errors.Is(err, turnstone.ErrOutcomeUnknown) && !errors.Is(err, turnstone.ErrIncomplete):
		delete(w.byID, n.id)
	default:
		w.oldest = append(w.oldest, n)
		w.bytes += len(result)
		w.forget()
	}
}

// forget removes what is old, and the answers that are too much. The caller holds w.mu.
func (w *writes) forget() {
	n := 0
	for n < len(w.oldest) && w.oldest[n].pins == 0 && time.Since(w.oldest[n].ended) > rememberFor {
		w.bytes -= len(w.oldest[n].result)
		delete(w.byID, w.oldest[n].id)
		n++
	}
	w.oldest = w.oldest[n:]
	for i := 0; w.bytes > rememberBytes && i < len(w.oldest)-1; i++ {
		w.bytes -= len(w.oldest[i].result)
		w.oldest[i].result = nil
	}
}

// pin makes the server remember the write that a request is about, before the request's body is read.
func (s *Server) pin(r *request) (unpin func(), err error) {
	id := r.Header.Get(wire.HeaderRequest)
	if len(id) > maxRequestID {
		return nil, fmt.Errorf("%w: an id of %d bytes in the header %s, at most %d are allowed", wire.ErrRequest, len(id), wire.HeaderRequest, maxRequestID)
	}
	if server := r.Header.Get(wire.HeaderServer); server != "" && server != s.id {
		return nil, fmt.Errorf("%w: this is another server than the write is for", wire.ErrRestarted)
	}
	r.write, unpin = s.writes.pin(writeID{r.space.name, id})
	return unpin, nil
}

// write begins f with run, unless the write of the request's id was begun. run reports false if the server stops.
func (s *Server) write(r *request, sum uint64, run func(func()) bool, f func(*written) ([]byte, error)) (*written, error) {
	w := r.write
	first, ok := s.writes.begin(w, sum)
	if !ok {
		return nil, fmt.Errorf("%w: the id in the header %s is that of another request", wire.ErrRequest, wire.HeaderRequest)
	}
	if w.id.id != "" {
		r.w.Header().Set(wire.HeaderRequest, w.id.id) // What follows is what the write has ended with.
	}
	if !first {
		return w, nil
	}
	begun := run(func() {
		var result []byte
		err := errPanicked
		defer func() {
			if p := recover(); p != nil {
				s.o.Logger.Error("a write has panicked", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
			}
			s.writes.end(w, result, err)
		}()
		result, err = f(w)
	})
	if !begun {
		s.writes.end(w, nil, errStops)
	}
	return w, nil
}

var errPanicked = fmt.Errorf("%w: the server has panicked", turnstone.ErrOutcomeUnknown)

// once calls f, unless a write with the request's id was begun, and returns its result. f goes on if the caller goes
// away.
func (s *Server) once(r *request, sum uint64, f func(context.Context) ([]byte, error)) ([]byte, error) {
	w, err := s.write(r, sum, s.finish, func(*written) ([]byte, error) {
		ctx, cancel := context.WithTimeout(context.Background(), s.o.WriteTimeout)
		defer cancel()
		return f(ctx)
	})
	if err != nil {
		return nil, err
	}
	<-w.done // The write counts as a request as long as it goes on.
	return s.writes.result(w)
}

// result returns the result of a write, or its error.
func (w *writes) result(n *written) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n.result == nil && n.failed == nil {
		return nil, fmt.Errorf("%w: the write was made before, and its answer is forgotten", turnstone.ErrOutcomeUnknown)
	}
	return n.result, n.failed
}
