package badger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/turnstonedb/turnstone/engine"
)

// A request is one Apply that the committer handles, or a function that the committer
// calls between two groups.
type request struct {
	ctx   context.Context
	batch *engine.Batch
	pause func() // called when every group is synced; nil for an Apply
	err   chan error
}

// Apply implements engine.Engine.
func (e *Engine) Apply(ctx context.Context, b *engine.Batch) error {
	if err := b.Check(e.Limits()); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := e.writable(); err != nil {
		return err
	}
	r := &request{ctx: ctx, batch: b, err: make(chan error, 1)}
	if e.commitAlone(r) {
		return <-r.err
	}
	return e.submit(r)
}

// commitAlone commits r in the goroutine of its caller, if no other request waits, and the last group of the
// committer had only one. It reports whether it did. The way through the committer wakes the committer, and
// then the caller again, which takes a writer who is alone a tenth of an Apply (docs/performance.md).
func (e *Engine) commitAlone(r *request) (committed bool) {
	if len(e.queue) > 0 || e.busy.Load() || !e.committing.TryLock() {
		return false
	}
	defer e.committing.Unlock()
	ended := false
	defer func() {
		if !ended { // In the committer's goroutine a panic ends the process. The caller may recover from it.
			e.fail(errors.New("a commit has panicked"))
		}
	}()
	select {
	case <-e.stop:
	default:
		e.commit([]*request{r}, false)
		committed = true
	}
	ended = true
	return committed
}

// submit hands r to the committer and waits for the answer.
func (e *Engine) submit(r *request) error {
	select {
	case e.queue <- r:
	case <-e.stop:
		return engine.ErrClosed
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
	select {
	case err := <-r.err:
		return err
	case <-e.done: // the committer may have answered just before it returned
		select {
		case err := <-r.err:
			return err
		default:
			return engine.ErrClosed
		}
	}
}

// Writers whose group was answered come back one by one. So the committer lets them run
// before it begins the next group, until as many requests wait as the last group had, or
// gatherTime is over. Otherwise the first of them would get a sync of its own. The committer
// yields and does not sleep, because a sleep takes about a millisecond when nothing else runs.
//
// When the processors are busy with other work, a yield takes longer than several syncs. That
// is worth it before a large group. Small groups are not gathered for a while then.
const (
	gatherTime   = 50 * time.Microsecond
	gatherYields = 1000 // if that many take less than gatherTime: the time of a testing/synctest bubble stands still
	crowd        = 8    // requests that make a group large
	// After a gathering that took longer than busyTime, small groups are not gathered for
	// busyPause times as long as it took, of which busyMost counts: a process can be stopped.
	busyTime  = 10 * gatherTime
	busyMost  = 1000 * gatherTime
	busyPause = 20
)

// commitLoop is the committer. It takes the requests that wait in the queue, up to
// the size of a group, and commits them together. While syncLoop syncs one group,
// commitLoop gathers and writes the next one.
func (e *Engine) commitLoop() {
	defer close(e.done)
	defer e.syncing.Wait()
	defer close(e.toSync)
	var next *request // taken from the queue, but did not fit into the group before
	last := 0         // number of requests in the group before
	for {
		first := next
		if next = nil; first == nil {
			select {
			case first = <-e.queue:
			case <-e.stop:
				e.committing.Lock() // waits for commitAlone, which begins nothing after stop
				e.committing.Unlock()
				return
			}
		}
		next, last = e.commitNext(first, last)
	}
}

// commitNext commits one group. The group begins with first, which the caller took from the queue, and goes on with the
// requests that wait in the queue. last is the number of requests in the group before. commitNext returns the number
// of requests in this group, and the request that did not fit into it, or nil.
func (e *Engine) commitNext(first *request, last int) (next *request, n int) {
	e.busy.Store(true) // so that no caller overtakes first again and again
	e.committing.Lock()
	defer e.committing.Unlock()
	if first.pause != nil {
		e.busy.Store(false)
		e.syncing.Wait()
		first.pause()
		first.err <- nil
		return nil, last
	}
	begun := time.Now()
	wanted, yields := last, 0
	if last <= crowd && begun.Before(e.busyUntil) {
		wanted = 1
	}
	requests := []*request{first}
	size, ops := first.batch.Bytes(), first.batch.Ops()
gather:
	for {
		select {
		case r := <-e.queue:
			if r.pause != nil || size+r.batch.Bytes() > groupBytes || ops+r.batch.Ops() > groupOps {
				next = r
				break gather
			}
			requests = append(requests, r)
			size, ops = size+r.batch.Bytes(), ops+r.batch.Ops()
		default:
			if len(requests) >= wanted || yields == gatherYields || time.Since(begun) > gatherTime {
				break gather
			}
			yields++
			runtime.Gosched()
		}
	}
	if took := time.Since(begun); took > busyTime {
		e.busyUntil = begun.Add(busyPause * min(took, busyMost))
	}
	e.busy.Store(len(requests) > 1)
	e.commit(requests, next != nil || len(e.queue) > 0)
	return next, len(requests)
}

// commit applies requests in order as one group, which is one frame of the log. The
// guards of a batch see the writes of the batches before it. No request is answered
// before the whole group is durable, because a conflict may rest on a write of the same
// group or of the group before. others says whether more requests wait.
func (e *Engine) commit(requests []*request, others bool) {
	g := &group{requests: requests, results: make([]error, len(requests))}
	err := e.usable()
	if err == nil {
		err = e.write(g)
	}
	if err != nil {
		g.fail(err)
	}
	e.finish(g, others)
}

// write checks the guards of each batch of g, and writes those whose guards are true to the log
// and then to the memtable. If the disk has no space, it refuses them before they have any effect.
func (e *Engine) write(g *group) error {
	w := &e.writer
	w.begin(e.written+1, len(g.requests) > 1)
	defer w.end()
	newData := e.mayGrow()
	kept := 0 // bytes of log and memtable that stay free for batches that reclaim
	err := e.guarded(func(c *content) error {
		for i, r := range g.requests {
			if g.results[i] = r.ctx.Err(); g.results[i] != nil {
				continue
			}
			if newData != nil && !r.batch.Reclaim && r.batch.Ops() > 0 {
				g.results[i] = newData
				continue
			}
			conflict, err := w.conflict(c, e.written, r.batch)
			if err != nil {
				return err // a guard can't be read
			}
			if g.results[i] = conflict; conflict == nil {
				w.add(r.batch)
				if !r.batch.Reclaim {
					kept = reclaimReserve
				}
			}
		}
		return nil
	})
	if err != nil || len(w.writes) == 0 {
		return err
	}
	if !e.active().fits(w.cost + kept) {
		if err := e.rotate(); err != nil {
			return errors.Join(e.usable(), err) // nothing of g was written
		}
	}
	m := e.active()
	durable := uint64(0)
	if e.opts.Durability == Power {
		durable = e.acked.Load()
	}
	err = m.log.reserve(len(w.buf)-frameHeader, int64(kept))
	if err == nil {
		err = m.log.append(frameGroup, w.ts, durable, w.buf)
	}
	if err != nil {
		if err = e.stopUnlessShort("write the log", err); e.usable() != nil {
			err, g.unknown = fmt.Errorf("%w: %w", engine.ErrUnknown, err), true
		}
		return err
	}
	for _, op := range w.writes {
		m.put(w.ts, op.key, op.value)
	}
	e.written, g.ts, g.log = w.ts, w.ts, m.log
	return nil
}

// active returns the memtable that is being written. Only who holds committing replaces it.
func (e *Engine) active() *memtable {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.content.active()
}

// guarded calls f with the content as the committer sees it, which has also writes that
// are not durable.
func (e *Engine) guarded(f func(*content) error) (err error) {
	defer faults()()
	e.mu.RLock()
	defer e.mu.RUnlock()
	defer caught(&err)
	return f(&e.content)
}

// mayGrow returns an error if the engine can't take new data now.
func (e *Engine) mayGrow() error {
	if err := e.need(e.minFree); err != nil {
		return err
	}
	if given := e.flushTrouble.Load(); given != nil {
		return *given // the rest of the log is for batches that reclaim
	}
	if given := e.rewriteTrouble.Load(); given != nil && e.crowded() {
		return fmt.Errorf("engine: too many tables wait for a rewrite, which was given up: %w", *given)
	}
	return nil
}

// stopUnlessShort adds to an error of the disk what the engine was doing. If the error is not a
// shortage, it makes e refuse everything.
func (e *Engine) stopUnlessShort(what string, err error) error {
	err = fmt.Errorf("engine: %s: %w", what, mapped(err))
	if !errors.Is(err, engine.ErrNoSpace) && !errors.Is(err, engine.ErrClosed) {
		e.fail(err)
	}
	return err
}

// A groupWriter gathers the writes of a group.
type groupWriter struct {
	ts      uint64
	buf     []byte            // the frame; see appendSet
	writes  []operation       // the writes in buf, with keys and values that belong to the batches
	cost    int               // bytes that the writes take of the memtable
	pending map[string][]byte // the newest value of each key in writes
	track   bool              // pending is needed, because the group has more than one request
}

// begin begins a group. It uses the memory of the group before.
func (w *groupWriter) begin(ts uint64, track bool) {
	w.ts, w.cost, w.track = ts, 0, track
	w.buf = append(w.buf[:0], make([]byte, frameHeader)...)
	if w.pending == nil {
		w.pending = map[string][]byte{}
	}
}

// end lets go of the batches of the group.
func (w *groupWriter) end() {
	clear(w.writes)
	w.writes = w.writes[:0]
	clear(w.pending)
}

// conflict returns the conflict of the first guard of b that does not hold, or nil.
func (w *groupWriter) conflict(c *content, written uint64, b *engine.Batch) (conflict, err error) {
	for _, guard := range b.Guards {
		v, ok := w.pending[string(guard.Key)]
		if !ok {
			if v, err = c.get(guard.Key, written); err != nil {
				return nil, err
			}
		}
		if (v == nil) != (guard.Value == nil) || !bytes.Equal(v, guard.Value) {
			return &engine.ConflictError{Key: bytes.Clone(guard.Key)}, nil
		}
	}
	return nil, nil
}

// add adds the writes of a batch.
func (w *groupWriter) add(b *engine.Batch) {
	for _, p := range b.Sets {
		w.buf = appendSet(w.buf, p.Key, p.Value)
		w.write(p.Key, p.Value)
	}
	for _, k := range b.Deletes {
		w.buf = appendDelete(w.buf, k)
		w.write(k, nil)
	}
}

func (w *groupWriter) write(key, value []byte) {
	w.writes = append(w.writes, operation{key, value})
	w.cost += cost(key, value)
	if w.track {
		w.pending[string(key)] = value
	}
}
