package badger

import (
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
)

// A separate goroutine syncs the log. While it syncs one group, the committer gathers
// and writes the next one. Groups that are written meanwhile share the next sync. A group
// is answered after it is synced.

// A group is the requests that the committer commits together. It is written to the log,
// then synced, and then answered.
type group struct {
	requests []*request
	results  []error // the answer to each request
	ts       uint64  // timestamp of the group; 0 if nothing was written
	log      *log    // the log that has the group
	unknown  bool    // the write failed, but the log may have the group all the same
}

// fail gives all requests the same error.
func (g *group) fail(err error) {
	for i := range g.results {
		g.results[i] = err
	}
}

// answer gives all requests their results.
func (g *group) answer() {
	for i, r := range g.requests {
		r.err <- g.results[i]
	}
}

// finish makes g durable and answers its requests. If others wait, it leaves that to
// syncLoop and returns at once.
func (e *Engine) finish(g *group, others bool) {
	if e.opts.Durability != Power {
		e.publish(g)
		g.answer()
		return
	}
	if e.unsynced.Load() == 0 && !others {
		e.sync(g)
		g.answer()
		return
	}
	e.syncing.Add(1)
	e.unsynced.Add(1)
	e.toSync <- g
}

// syncLoop syncs and answers the groups that the committer has written.
func (e *Engine) syncLoop() {
	for first := range e.toSync {
		groups := []*group{first}
		for more := true; more; {
			select {
			case g, ok := <-e.toSync:
				if more = ok; ok {
					groups = append(groups, g)
				}
			default:
				more = false
			}
		}
		e.sync(groups...)
		for _, g := range groups {
			g.answer()
			e.unsynced.Add(-1)
			e.syncing.Done()
		}
	}
}

// sync makes groups durable with one sync. They are all in the same log, because a new
// log is begun only when every group is synced. If the sync fails, the outcome of the
// groups is unknown.
func (e *Engine) sync(groups ...*group) {
	var newest *group
	for _, g := range groups {
		if g.ts > 0 {
			newest = g
		}
	}
	if newest != nil && e.usable() == nil {
		if err := newest.log.f.SyncData(); err != nil {
			e.fail(fmt.Errorf("%w: sync of log %s: %w", engine.ErrUnknown, logName(newest.log.number), err))
		} else {
			e.publish(newest)
			// Only a reader of the log after a crash needs the mark. The groups are
			// durable without it, so its error does not matter.
			newest.log.mark(newest.ts)
		}
	}
	failed := e.usable()
	if failed == nil {
		return
	}
	for _, g := range groups {
		if g.unknown {
			continue
		}
		if g.ts == 0 { // the group has no effect, but its conflicts may rest on writes that were not synced
			g.fail(failed)
		} else if g.ts > e.acked.Load() {
			g.fail(fmt.Errorf("%w: %v", engine.ErrUnknown, failed))
		}
	}
}

// publish lets readers see g.
func (e *Engine) publish(g *group) {
	if g.ts > 0 {
		e.acked.Store(g.ts)
	}
}
