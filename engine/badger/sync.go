package badger

import (
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
)

// The log is synced beside the committer: one group while the next one is gathered
// and written. A group is answered when it is synced. Groups that wait together
// share a sync.

// A flight is a group on its way to the disk.
type flight struct {
	group    []*request
	verdicts []error
	ts       uint64 // when something was written,
	log      *log   // to this log
	unknown  bool   // whether it may have been written, although that failed
}

func (f *flight) fail(err error) {
	for i := range f.verdicts {
		f.verdicts[i] = err
	}
}

func (f *flight) land() {
	for i, r := range f.group {
		r.err <- f.verdicts[i]
	}
}

// launch makes f durable and answers its requests. If others wait, it goes on
// beside them.
func (e *Engine) launch(f *flight, others bool) {
	if e.opts.Durability != Power {
		e.settle(f)
		f.land()
		return
	}
	if e.inFlight.Load() == 0 && !others {
		e.sync(f)
		f.land()
		return
	}
	e.landed.Add(1)
	e.inFlight.Add(1)
	e.flights <- f
}

// syncLoop lands flights.
func (e *Engine) syncLoop() {
	for first := range e.flights {
		group := []*flight{first}
		for more := true; more; {
			select {
			case f, ok := <-e.flights:
				if more = ok; ok {
					group = append(group, f)
				}
			default:
				more = false
			}
		}
		e.sync(group...)
		for _, f := range group {
			f.land()
			e.inFlight.Add(-1)
			e.landed.Done()
		}
	}
}

// sync makes flights durable with one sync: a new log is begun when none is in
// flight. An error leaves the outcome unknown.
func (e *Engine) sync(flights ...*flight) {
	var newest *flight
	for _, f := range flights {
		if f.ts > 0 {
			newest = f
		}
	}
	if newest != nil && e.usable() == nil {
		if err := newest.log.f.SyncData(); err != nil {
			e.fail(fmt.Errorf("%w: sync of log %s: %w", engine.ErrUnknown, logName(newest.log.number), err))
		} else {
			e.settle(newest)
			// The mark is for who reads the log after a crash. The groups are
			// durable without it.
			newest.log.mark(newest.ts)
		}
	}
	failed := e.usable()
	if failed == nil {
		return
	}
	for _, f := range flights {
		if f.unknown {
			continue
		}
		if f.ts == 0 { // no effect; but what it saw may be what a sync failed on
			f.fail(failed)
		} else if f.ts > e.acked.Load() {
			f.fail(fmt.Errorf("%w: %v", engine.ErrUnknown, failed))
		}
	}
}

// settle lets readers see f.
func (e *Engine) settle(f *flight) {
	if f.ts > 0 {
		e.acked.Store(f.ts)
	}
}
