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
	uses  int           // requests, uploads and collections that are about it; guarded by Server.mu
	since time.Time     // when uses became 0
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
// does not exist. The caller calls leave when it is done.
func (s *Server) space(ctx context.Context, name string, create bool) (*space, error) {
	s.mu.Lock()
	sp, known := s.spaces[name]
	switch {
	case s.spaces == nil:
		s.mu.Unlock()
		return nil, errStops
	case !known && !s.makeRoom(name):
		s.mu.Unlock()
		return nil, fmt.Errorf("%w: %d namespaces are in use", wire.ErrBusy, s.o.MaxNamespaces)
	case !known:
		sp = &space{name: name, ready: make(chan struct{}), handles: map[string]handle{}}
		s.spaces[name] = sp
		s.working.Go(func() { s.open(sp, create) })
	}
	sp.uses++
	s.mu.Unlock()
	var err error
	select {
	case <-sp.ready:
		err = sp.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		s.leave(sp)
		return nil, err
	}
	return sp, nil
}

// hold makes a namespace that is in use stay open, until leave is called once more.
func (s *Server) hold(sp *space) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp.uses++
}

// work returns Server.work for what uses a namespace.
func (sp *space) work(s *Server) func(func()) bool {
	return func(f func()) bool {
		s.hold(sp)
		begun := s.work(func() {
			defer s.leave(sp)
			f()
		})
		if !begun {
			s.leave(sp)
		}
		return begun
	}
}

// leave ends a use of a namespace. It stays open until another one needs its place.
func (s *Server) leave(sp *space) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp.uses--
	sp.since = time.Now()
}

// makeRoom reports whether a namespace can be opened. If need be, it closes the one that has been idle longest, but
// never the default one. The caller holds s.mu.
func (s *Server) makeRoom(name string) bool {
	others := len(s.spaces)
	if _, open := s.spaces[""]; open {
		others--
	}
	if name == "" || others < s.o.MaxNamespaces {
		return true
	}
	var idle *space
	for _, sp := range s.spaces {
		if sp.name != "" && sp.uses == 0 && (idle == nil || sp.since.Before(idle.since)) {
			idle = sp
		}
	}
	if idle == nil {
		return false
	}
	delete(s.spaces, idle.name)
	s.working.Go(func() {
		if err := idle.close(); err != nil {
			s.o.Logger.Error("a namespace was closed", "namespace", idle.name, "error", err)
		}
	})
	return true
}

// open opens a namespace, also when those who wait for it go away.
func (s *Server) open(sp *space, create bool) {
	ctx, cancel := context.WithTimeout(context.Background(), s.o.WriteTimeout)
	defer cancel()
	sp.store, sp.err = s.o.Open(ctx, sp.name, !create)
	if sp.err != nil {
		s.mu.Lock()
		if s.spaces[sp.name] == sp {
			delete(s.spaces, sp.name) // The next request tries again.
		}
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
		defer s.leave(sp)
		_, err = sp.store.List(ctx, turnstone.ListOptions{Limit: 1})
	}
	h.at, h.last = time.Now(), err
	return err
}
