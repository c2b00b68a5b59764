package badger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/turnstonedb/turnstone/engine"
)

// A request is one Apply on its way through the committer, or a function that
// the committer runs between two groups.
type request struct {
	ctx   context.Context
	batch *engine.Batch
	pause func()
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
	if err := e.usable(); err != nil {
		return err
	}
	return e.submit(&request{ctx: ctx, batch: b, err: make(chan error, 1)})
}

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

// Those who were answered together come back one by one: after a large group
// the committer waits a moment for half as many, or the first of them would get
// a sync of their own. A group of a few never waits.
const (
	crowd       = 8
	gatherWaits = 3
	gatherWait  = 50 * time.Microsecond
)

// commitLoop is the one committer. It takes what waits in the queue, up to the
// size of a group, and commits it as one: while one group is synced, the
// next one is gathered and written.
func (e *Engine) commitLoop() {
	defer close(e.done)
	defer e.landed.Wait()
	defer close(e.flights)
	var next *request // taken from the queue, did not fit
	last := 0         // length of the group before
	for {
		first := next
		if next = nil; first == nil {
			select {
			case first = <-e.queue:
			case <-e.stop:
				return
			}
		}
		if first.pause != nil {
			e.landed.Wait()
			first.pause()
			first.err <- nil
			continue
		}
		waits := 0
		if last > crowd {
			waits = gatherWaits
		}
		group := []*request{first}
		size, ops := first.batch.Bytes(), first.batch.Ops()
	gather:
		for {
			select {
			case r := <-e.queue:
				if r.pause != nil || size+r.batch.Bytes() > groupBytes || ops+r.batch.Ops() > groupOps {
					next = r
					break gather
				}
				group = append(group, r)
				size, ops = size+r.batch.Bytes(), ops+r.batch.Ops()
			default:
				if waits == 0 || len(group) >= last/2 {
					break gather
				}
				waits--
				time.Sleep(gatherWait)
			}
		}
		last = len(group)
		e.commit(group, next != nil || len(e.queue) > 0)
	}
}

// commit applies group in order as one frame of the log: each batch's guards see
// the writes of those before it. Nobody is answered before all of them are
// durable, as a conflict may rest on a write of the same group or of the one
// before. Others says whether more requests wait.
func (e *Engine) commit(group []*request, others bool) {
	f := &flight{group: group, verdicts: make([]error, len(group))}
	err := e.usable()
	if err == nil {
		err = e.write(f)
	}
	if err != nil {
		f.fail(err)
	}
	e.launch(f, others)
}

// write logs the batches of f whose guards hold and adds them to the memtable.
// What does not fit on the disk is refused before it has any effect.
func (e *Engine) write(f *flight) error {
	g := groupWriter{ts: e.written + 1, buf: e.buf[:0]}
	g.buf = append(g.buf, make([]byte, frameRoom)...)
	if len(f.group) > 1 {
		g.pending = map[string][]byte{}
	}
	newData := e.mayGrow()
	kept := 0 // of log and memtable, for batches that reclaim
	err := e.guarded(func(c *content) error {
		for i, r := range f.group {
			if f.verdicts[i] = r.ctx.Err(); f.verdicts[i] != nil {
				continue
			}
			if newData != nil && !r.batch.Reclaim && r.batch.Ops() > 0 {
				f.verdicts[i] = newData
				continue
			}
			conflict, err := g.conflict(c, e.written, r.batch)
			if err != nil {
				return err // a guard can't be read
			}
			if f.verdicts[i] = conflict; conflict == nil {
				g.add(r.batch)
				if !r.batch.Reclaim {
					kept = reclaimReserve
				}
			}
		}
		return nil
	})
	e.buf = g.buf
	if err != nil || len(g.writes) == 0 {
		return err
	}
	if !e.active().room(g.cost + kept) {
		if err := e.rotate(); err != nil {
			return errors.Join(e.usable(), err) // nothing of f was written
		}
	}
	m := e.active()
	durable := uint64(0)
	if e.opts.Durability == Power {
		durable = e.acked.Load()
	}
	err = m.log.reserve(len(g.buf)-frameRoom, int64(kept))
	if err == nil {
		err = m.log.append(frameGroup, g.ts, durable, g.buf)
	}
	if err != nil {
		if err = e.stopUnlessShort("write the log", err); e.usable() != nil {
			err, f.unknown = fmt.Errorf("%w: %w", engine.ErrUnknown, err), true
		}
		return err
	}
	for _, w := range g.writes {
		m.put(g.ts, w.key, w.value)
	}
	e.written, f.ts, f.log = g.ts, g.ts, m.log
	return nil
}

// active is the memtable that is being written. Only the committer changes which.
func (e *Engine) active() *memtable {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.content.active()
}

// guarded runs f on the content as the committer sees it, whatever is durable.
func (e *Engine) guarded(f func(*content) error) (err error) {
	defer faults()()
	e.mu.RLock()
	defer e.mu.RUnlock()
	defer caught(&err)
	return f(&e.content)
}

// mayGrow returns why new data can't be taken now, if there is a reason.
func (e *Engine) mayGrow() error {
	if err := e.need(e.room); err != nil {
		return err
	}
	if given := e.flushTrouble.Load(); given != nil {
		return *given // what is left of the log is for batches that reclaim
	}
	if given := e.rewriteTrouble.Load(); given != nil && e.crowded() {
		return fmt.Errorf("engine: too many tables wait for a rewrite, which was given up: %w", *given)
	}
	return nil
}

// stopUnlessShort names an error of the disk. One that is not a shortage makes e
// refuse everything.
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
	buf     []byte            // the frame, see appendSet
	writes  []operation       // the same; keys and values are the batches'
	cost    int               // of the memtable
	pending map[string][]byte // newest value under each key of writes; nil for a group of one
}

// conflict returns the conflict of a guard of b that does not hold.
func (g *groupWriter) conflict(c *content, written uint64, b *engine.Batch) (conflict, err error) {
	for _, guard := range b.Guards {
		v, ok := g.pending[string(guard.Key)]
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

func (g *groupWriter) add(b *engine.Batch) {
	for _, p := range b.Sets {
		g.buf = appendSet(g.buf, p.Key, p.Value)
		g.write(p.Key, p.Value)
	}
	for _, k := range b.Deletes {
		g.buf = appendDelete(g.buf, k)
		g.write(k, nil)
	}
}

func (g *groupWriter) write(key, value []byte) {
	g.writes = append(g.writes, operation{key, value})
	g.cost += cost(key, value)
	if g.pending != nil {
		g.pending[string(key)] = value
	}
}
