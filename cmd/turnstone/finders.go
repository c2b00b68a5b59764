package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"sync"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/ui"
	"github.com/turnstonedb/turnstone/search"
)

// maxFinders is how many namespaces have a finder at once.
const maxFinders = 16

// finders are those of the namespaces of a server. One is opened when it is asked for.
type finders struct {
	open func(ctx context.Context, namespace string) (*turnstone.Store, error)
	path func(namespace string) string // of the index; nil if there is none
	ctx  context.Context
	log  *slog.Logger

	places  chan struct{} // for searches and sums of all namespaces
	mu      sync.Mutex
	all     map[string]*heldFinder
	poked   map[string]bool // namespaces in which something was hidden or deleted
	poking  sync.WaitGroup
	closing bool
}

// A heldFinder is one that may be in use.
type heldFinder struct {
	*finder
	users int
	ready chan struct{} // closed when it is open, or err says why not
	err   error
}

// use calls f with the finder of a namespace.
func (fs *finders) use(ctx context.Context, namespace string, f func(*finder) error) error {
	fs.mu.Lock()
	if fs.closing {
		fs.mu.Unlock()
		return context.Canceled
	}
	h := fs.all[namespace]
	first := h == nil
	if first {
		h = &heldFinder{ready: make(chan struct{})}
		fs.all[namespace] = h
	}
	h.users++
	fs.mu.Unlock()
	if first {
		h.finder, h.err = fs.make(namespace)
		close(h.ready)
	}
	defer fs.leave(namespace, h)
	select {
	case <-h.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	if h.err != nil {
		return h.err
	}
	return f(h.finder)
}

func (fs *finders) make(namespace string) (*finder, error) {
	st, err := fs.open(fs.ctx, namespace)
	if err != nil {
		return nil, err
	}
	var open func() (*search.Index, error)
	if fs.path != nil {
		open = func() (*search.Index, error) { return search.Open(fs.path(namespace), indexOptions) }
	}
	return newFinder(fs.ctx, st, open, fs.places), nil
}

// leave closes finders that nobody uses, if there are too many, or one that could not be opened.
func (fs *finders) leave(namespace string, h *heldFinder) {
	fs.mu.Lock()
	h.users--
	var idle []*heldFinder
	for name, other := range fs.all {
		if other.users == 0 && (len(fs.all) > maxFinders && other != h || other.err != nil) {
			delete(fs.all, name)
			idle = append(idle, other)
		}
	}
	fs.mu.Unlock()
	for _, other := range idle {
		if other.err == nil {
			_ = other.Close() // What it has indexed is on disk.
		}
	}
}

// forget takes out of the index of a namespace what the store has forgotten, if there is an index.
func (fs *finders) forget(ctx context.Context, namespace string) error {
	if fs.path == nil {
		return nil
	}
	if _, err := os.Stat(fs.path(namespace)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return fs.use(ctx, namespace, func(f *finder) error { return f.sync(ctx) })
}

// poke makes the index of a namespace forget soon. The caller does not wait.
func (fs *finders) poke(namespace string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	_, busy := fs.poked[namespace]
	if fs.closing || fs.path == nil {
		return
	}
	fs.poked[namespace] = true
	if busy {
		return
	}
	fs.poking.Go(func() {
		for {
			fs.mu.Lock()
			if !fs.poked[namespace] {
				delete(fs.poked, namespace)
				fs.mu.Unlock()
				return
			}
			fs.poked[namespace] = false
			fs.mu.Unlock()
			if err := fs.forget(fs.ctx, namespace); err != nil && fs.ctx.Err() == nil {
				fs.log.Error("the index has what was removed until the next search", "namespace", namespace, "error", err)
			}
		}
	})
}

// Close ends what goes on. What uses a finder has ended.
func (fs *finders) Close() (err error) {
	fs.mu.Lock()
	fs.closing = true
	all := fs.all
	fs.all = map[string]*heldFinder{}
	fs.mu.Unlock()
	for _, h := range all {
		<-h.ready
		if h.finder != nil {
			h.end()
		}
	}
	fs.poking.Wait()
	for _, h := range all {
		if h.finder != nil {
			err = errors.Join(err, h.Close())
		}
	}
	return err
}

// watching is the observer of the stores of a namespace: it pokes when something was hidden or deleted.
type watching struct {
	finders   *finders
	namespace string
}

func (w watching) Begin(ctx context.Context, o turnstone.Operation) (context.Context, func(turnstone.Outcome)) {
	switch o.Name {
	case turnstone.OpTombstone, turnstone.OpDelete, turnstone.OpPrune, turnstone.OpVacuum, turnstone.OpUnbundle:
		return ctx, func(turnstone.Outcome) { w.finders.poke(w.namespace) } // also after an error: a part may be done
	}
	return ctx, nil
}

// searchIn, usageIn and forget are what the pages ask for.

func (fs *finders) searchIn(ctx context.Context, namespace, query string) (found []search.Result, err error) {
	err = fs.use(ctx, namespace, func(f *finder) error {
		found, err = f.find(ctx, query)
		return err
	})
	return found, err
}

func (fs *finders) usageIn(ctx context.Context, namespace string) (sums *ui.Usage, err error) {
	err = fs.use(ctx, namespace, func(f *finder) error {
		sums, err = f.usage(ctx)
		return err
	})
	return sums, err
}

// indexOf returns the path of the index of a namespace, beside that of the default one. A name may be longer than that
// of a file, and what SQLite keeps beside the file must not be another namespace's.
func indexOf(path, namespace string) string {
	if namespace == "" {
		return path
	}
	sum := sha256.Sum256([]byte(namespace))
	return path + "." + hex.EncodeToString(sum[:16])
}
