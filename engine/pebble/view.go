package pebble

import (
	"context"
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"github.com/turnstonedb/turnstone/engine"
)

// A view is a snapshot of the store. Readers share the view of the last durable group. So a reader
// never waits for a sync, and never sees a batch that a loss of power could take away. The
// committer takes a snapshot after each group. The syncer shows it when the group is durable:
//
//	committer   | group 1, view 1 | group 2, view 2 | group 3, view 3 |
//	syncer                          | sync 1, show view 1 | sync 2 and 3, show view 3 |
//	readers     view 0                                    view 1
type view struct {
	snapshot *pebble.Snapshot
	closed   chan struct{} // closed when Pebble may drop what only the view shows

	readers int  // guarded by Engine.mu
	old     bool // a newer view is shown; guarded by Engine.mu
}

func newView(db *pebble.DB) *view {
	return &view{snapshot: db.NewSnapshot(), closed: make(chan struct{})}
}

// manyUnread is how many views that nobody reads are closed together: a goroutine for each of them
// costs a writer who is alone a twelfth of its commits.
const manyUnread = 16

// drop closes views that nobody reads. Pebble may wait for its MANIFEST then, for ever once the
// engine has failed. So nobody waits for drop.
func (e *Engine) drop(views ...*view) {
	for _, v := range views {
		_ = v.snapshot.Close() // it returns no error
		close(v.closed)
		e.mu.Lock()
		delete(e.old, v)
		e.mu.Unlock()
	}
}

// takeUnread returns the views that wait to be closed; the caller drops them.
func (e *Engine) takeUnread() []*view {
	e.mu.Lock()
	defer e.mu.Unlock()
	views := e.unread
	e.unread = nil
	return views
}

// show lets readers see g, which is durable if it has no error. It returns why the engine has
// failed, or nil.
func (e *Engine) show(g *group) (failed error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if g.view == nil {
		return e.failed
	}
	before := e.shown
	if g.err == nil {
		e.shown = g.view
	} else {
		before = g.view // which nobody is to see
	}
	before.old = true
	e.old[before] = struct{}{}
	if before.readers == 0 {
		e.unread = append(e.unread, before)
	}
	if len(e.unread) >= manyUnread {
		go e.drop(e.unread...)
		e.unread = nil
	}
	return e.failed
}

// read runs f with the view that is shown. Readers go on after the engine failed. They read
// with iterators, which take no lock that a flush or a compaction holds while it writes the MANIFEST.
func (e *Engine) read(ctx context.Context, f func(*pebble.Snapshot) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if e.dir == nil { // the zero Engine
		return engine.ErrClosed
	}
	if err := e.dir.Seen(); err != nil {
		e.fail(err)
		return err
	}
	e.mu.Lock()
	err := e.enter()
	if err == nil && errors.Is(e.failed, engine.ErrReplaced) {
		err = e.failed
		e.exit()
	}
	if err != nil {
		e.mu.Unlock()
		return err
	}
	v := e.shown
	v.readers++
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.exit()
		if v.readers--; v.readers == 0 && v.old {
			go e.drop(v)
		}
	}()
	return mapped(recovered(func() error { return f(v.snapshot) }))
}

// awaitReaders waits until nobody can read what was removed before the view that is shown now.
func (e *Engine) awaitReaders(ctx context.Context) error {
	go e.drop(e.takeUnread()...)
	e.mu.Lock()
	var before []*view
	for v := range e.old {
		before = append(before, v)
	}
	e.mu.Unlock()
	for _, v := range before {
		select {
		case <-v.closed:
		case <-ctx.Done():
			return ctx.Err()
		case <-e.down:
			return engine.ErrClosed
		}
	}
	return nil
}
