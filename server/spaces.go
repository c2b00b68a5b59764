package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// maxHandles bounds how many handles on sessions a namespace keeps. A handle remembers where it saw the head last.
const maxHandles = 4096

// A space is a namespace that is open.
type space struct {
	name  string
	ready chan struct{} // closed when store or err is set
	store *turnstone.Store
	err   error

	mu      sync.Mutex // guards handles
	handles map[string]handle
}

type handle struct {
	of      string
	session *turnstone.Session
}

// space returns a namespace, and opens it if it is not open. create says whether space may make a namespace that
// does not exist.
func (s *Server) space(ctx context.Context, name string, create bool) (*space, error) {
	s.mu.Lock()
	sp, known := s.spaces[name]
	switch {
	case s.spaces == nil:
		s.mu.Unlock()
		return nil, errStops
	case !known && len(s.spaces) >= s.o.MaxNamespaces:
		s.mu.Unlock()
		return nil, fmt.Errorf("%w: %d namespaces are open", wire.ErrBusy, s.o.MaxNamespaces)
	case !known:
		sp = &space{name: name, ready: make(chan struct{}), handles: map[string]handle{}}
		s.spaces[name] = sp
		s.working.Go(func() { s.open(sp, create) })
	}
	s.mu.Unlock()
	select {
	case <-sp.ready:
		return sp, sp.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// open opens a namespace, also when those who wait for it go away.
func (s *Server) open(sp *space, create bool) {
	ctx, cancel := context.WithTimeout(context.Background(), s.o.WriteTimeout)
	defer cancel()
	sp.store, sp.err = s.o.Open(ctx, sp.name, !create)
	if sp.err != nil {
		s.mu.Lock()
		delete(s.spaces, sp.name) // The next request tries again.
		s.mu.Unlock()
	}
	close(sp.ready)
}

func (sp *space) close() error {
	<-sp.ready
	if sp.err != nil {
		return nil
	}
	return sp.store.Close()
}

// find returns a handle on a session.
func (sp *space) find(ctx context.Context, t wire.Target) (*turnstone.Session, error) {
	sp.mu.Lock()
	h, known := sp.handles[t.Session]
	sp.mu.Unlock()
	if known && t.Incarnation != "" && h.of == t.Incarnation {
		return h.session, nil
	}
	session, err := sp.store.Session(ctx, t.Session)
	if err != nil {
		if t.Incarnation != "" && errors.Is(err, turnstone.ErrSessionNotFound) {
			err = fmt.Errorf("%w: %q", turnstone.ErrSessionDeleted, t.Session)
		}
		return nil, err
	}
	if t.Incarnation == "" {
		return session, nil
	}
	i, err := session.Info(ctx)
	if err != nil {
		return nil, err
	}
	sp.keep(i.Incarnation, session)
	if i.Incarnation != t.Incarnation {
		return nil, fmt.Errorf("%w: %q is the id of another one now", turnstone.ErrSessionDeleted, t.Session)
	}
	return session, nil
}

// keep remembers a handle for later requests.
func (sp *space) keep(of string, session *turnstone.Session) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if len(sp.handles) >= maxHandles {
		for id := range sp.handles { // any
			delete(sp.handles, id)
			break
		}
	}
	sp.handles[session.ID()] = handle{of, session}
}

// A health is what the last look has found. Looks are a second apart, because anybody may ask.
type health struct {
	mu   sync.Mutex
	at   time.Time
	last error
}

// healthy returns an error unless the server serves, and the default namespace can be read.
func (s *Server) healthy() error {
	if s.stopped() {
		return errStops
	}
	h := &s.looked
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.at) < time.Second {
		return h.last
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	sp, err := s.space(ctx, "", true)
	if err == nil {
		_, err = sp.store.List(ctx, turnstone.ListOptions{Limit: 1})
	}
	h.at, h.last = time.Now(), err
	return err
}
