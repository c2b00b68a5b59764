package server

import (
	"context"
	"errors"
	"fmt"
	"sync"

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

// space returns a namespace, which it opens if it isn't.
func (s *Server) space(ctx context.Context, name string) (*space, error) {
	s.mu.Lock()
	if s.spaces == nil {
		s.mu.Unlock()
		return nil, errStops
	}
	sp, known := s.spaces[name]
	if !known {
		sp = &space{name: name, ready: make(chan struct{}), handles: map[string]handle{}}
		s.spaces[name] = sp
		s.working.Go(func() {
			// Those who wait for it may go away.
			limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.o.WriteTimeout)
			defer cancel()
			sp.store, sp.err = s.o.Open(limited, name)
			close(sp.ready)
		})
	}
	s.mu.Unlock()
	select {
	case <-sp.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if sp.err != nil {
		s.mu.Lock()
		if s.spaces[name] == sp {
			delete(s.spaces, name) // The next request tries again.
		}
		s.mu.Unlock()
		return nil, sp.err
	}
	return sp, nil
}

func (sp *space) close() error {
	<-sp.ready
	if sp.err != nil {
		return nil
	}
	return sp.store.Close()
}

// session returns a handle on the session that a request is about.
func (sp *space) session(ctx context.Context, t wire.Target) (*turnstone.Session, error) {
	sp.mu.Lock()
	h, known := sp.handles[t.Session]
	sp.mu.Unlock()
	if known && t.Of != "" && h.of == t.Of {
		return h.session, nil
	}
	session, err := sp.store.Session(ctx, t.Session)
	if err != nil {
		if t.Of != "" && errors.Is(err, turnstone.ErrSessionNotFound) {
			err = fmt.Errorf("%w: %q", turnstone.ErrSessionDeleted, t.Session)
		}
		return nil, err
	}
	if t.Of == "" {
		return session, nil
	}
	i, err := session.Info(ctx)
	if err != nil {
		return nil, err
	}
	sp.keep(i.Of, session)
	if i.Of != t.Of {
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

// healthy returns an error unless the server serves, and one of the namespaces that are open can be read. All have the same engine, as a rule.
func (s *Server) healthy(ctx context.Context) error {
	if s.stopped() {
		return errStops
	}
	s.mu.Lock()
	var some *space
	for _, sp := range s.spaces {
		some = sp
		break
	}
	s.mu.Unlock()
	if some == nil {
		return nil
	}
	select {
	case <-some.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	if some.err != nil {
		return some.err
	}
	_, err := some.store.List(ctx, turnstone.ListOptions{Limit: 1})
	return err
}
