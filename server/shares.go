package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone/internal/wire"
)

// A party is whom a request is charged to: the bearer of a token, and the tenants whose namespace it is about.
type party struct{ token, namespace string }

// A pool is something of which the server has so much. Nobody gets more than a share: not one token, not one
// namespace. Who asks for more than there is waits. Who waits for others of its own share keeps nobody else waiting.
type pool struct {
	what        string
	most, share int64
	queue       int64 // of one token, so many wait at most; 0 stands for any number

	mu         sync.Mutex // guards the fields below
	used       int64
	tokens     map[string]int64 // by token: what its requests have, and nothing if that is 0
	namespaces map[string]int64
	waiting    []*waiter // in the order in which they came
}

type waiter struct {
	of    party
	n     int64
	ready chan struct{} // closed when it has what it waits for
}

// newPool returns a pool of so much, of which one party gets a share at most.
func newPool(what string, most int64, share float64) *pool {
	return &pool{what: what, most: most, share: max(1, int64(float64(most)*share)), tokens: map[string]int64{}, namespaces: map[string]int64{}}
}

// within reports whether n more are in the shares of a party.
func (p *pool) within(of party, n int64) bool {
	return p.tokens[of.token]+n <= p.share && p.namespaces[of.namespace]+n <= p.share
}

// add counts n for a party, or takes them back if n is negative.
func (p *pool) add(of party, n int64) {
	p.used += n
	for _, in := range []struct {
		counts map[string]int64
		key    string
	}{{p.tokens, of.token}, {p.namespaces, of.namespace}} {
		if in.counts[in.key] += n; in.counts[in.key] == 0 {
			delete(in.counts, in.key)
		}
	}
}

// try takes n if nobody has to be waited for.
func (p *pool) try(of party, n int64) (release func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.within(of, n) || p.used+n > p.most {
		return nil, false
	}
	p.add(of, n)
	return func() { p.release(of, n) }, true
}

// acquire waits until n are there, at most for the time patience.
func (p *pool) acquire(ctx context.Context, of party, n int64, patience time.Duration) (release func(), err error) {
	if n > p.share {
		return nil, fmt.Errorf("%w: %d %s, at most %d at once", wire.ErrTooLarge, n, p.what, p.share)
	}
	p.mu.Lock()
	w := &waiter{of: of, n: n, ready: make(chan struct{})}
	others := int64(0)
	for _, o := range p.waiting {
		if o.of.token == of.token {
			others++
		}
	}
	if p.queue > 0 && others >= p.queue {
		p.mu.Unlock()
		return nil, p.busy(0)
	}
	p.waiting = append(p.waiting, w)
	p.grant()
	p.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-w.ready:
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = p.busy(patience)
	}
	if err != nil && p.leave(w) {
		return nil, err
	}
	return func() { p.release(of, n) }, nil
}

func (p *pool) busy(waited time.Duration) error {
	return fmt.Errorf("%w: at most %d %s at once, %d of them for one token or namespace; waited for %v", wire.ErrBusy, p.most, p.what, p.share, waited)
}

// leave ends a wait, and reports false if it has ended by itself.
func (p *pool) leave(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.waiting, w)
	if i < 0 {
		return false
	}
	p.waiting = slices.Delete(p.waiting, i, i+1)
	p.grant() // Those behind it may have waited for it.
	return true
}

func (p *pool) release(of party, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(of, -n)
	p.grant()
}

// grant gives those who wait what they wait for. Who is within its share and waits for the others has its turn before
// those who came later. The caller holds p.mu.
func (p *pool) grant() {
	p.waiting = slices.DeleteFunc(p.waiting, func() func(*waiter) bool {
		full := false
		return func(w *waiter) bool {
			if full || !p.within(w.of, w.n) {
				return false
			}
			if full = p.used+w.n > p.most; full {
				return false
			}
			p.add(w.of, w.n)
			close(w.ready)
			return true
		}
	}())
}
