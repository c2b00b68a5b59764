package badger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dgraph-io/badger/v4"

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

// cost is what the batch takes of a transaction.
func (r *request) cost() int { return r.batch.Bytes() + writeBytes*r.batch.Ops() }

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

// commitLoop is the one committer. It takes what waits in the queue, up to what
// a transaction may hold, and commits it as one: while one group is synced, the
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
		size, ops := first.cost(), first.batch.Ops()
	gather:
		for {
			select {
			case r := <-e.queue:
				if r.pause != nil || size+r.cost() > groupBytes || ops+r.batch.Ops() > groupOps {
					next = r
					break gather
				}
				group = append(group, r)
				size, ops = size+r.cost(), ops+r.batch.Ops()
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
		if e.applied += uint64(size); e.applied >= memTableSize/2 {
			e.applied = 0
			e.rewriteIfGrown()
			e.trim()
		}
	}
}

// commit applies group in order as one transaction: each batch's guards see the
// writes of those before it. Nobody is answered before all of them are durable,
// as a conflict may rest on a write of the same group or of the one before. Others
// says whether more requests wait.
func (e *Engine) commit(group []*request, others bool) {
	f := &flight{group: group, verdicts: make([]error, len(group))}
	err := e.usable()
	if err == nil {
		err = e.dir.Room()
	}
	if err == nil {
		err = e.transact(f)
	}
	if err != nil {
		f.fail(err)
	}
	e.launch(f, others)
}

func (e *Engine) transact(f *flight) (err error) {
	defer func() {
		if err != nil {
			e.recent.clear() // it has what is not written
		}
	}()
	defer caught(&err)
	txn := e.db.NewTransactionAt(e.written, true)
	defer txn.Discard()
	writes := 0
	for i, r := range f.group {
		if f.verdicts[i] = r.ctx.Err(); f.verdicts[i] != nil {
			continue
		}
		ok, err := e.apply(txn, r.batch)
		if err != nil {
			if errors.Is(err, engine.ErrCorrupt) {
				return err // a guard could not be read; the transaction is dropped
			}
			// Check has admitted the batch and the group is within bounds.
			return fmt.Errorf("%w: badger refused a write: %w", engine.ErrInvalid, errText(err))
		}
		if ok != nil {
			f.verdicts[i] = ok
			continue
		}
		writes += r.cost() + r.batch.Ops()*entryBytes
	}
	if writes == 0 {
		return nil
	}
	if err := e.beforeWrite(); err != nil {
		return err
	}
	if err := txn.CommitAt(e.written+1, nil); err != nil {
		err = fmt.Errorf("%w: badger commit: %w", engine.ErrUnknown, errText(err))
		e.fail(err)
		return err
	}
	e.written++
	f.ts = e.written
	return e.afterWrite(f, writes)
}

// apply adds b to txn, or returns the conflict that prevents it. Reads of txn
// see what earlier batches of the group wrote.
func (e *Engine) apply(txn *badger.Txn, b *engine.Batch) (conflict, err error) {
	var scratch [64]byte
	for _, g := range b.Guards {
		v, ok := e.recent.newest(g.Key)
		if !ok {
			if v, err = get(txn, append(append(scratch[:0], keyByte), g.Key...)); err != nil {
				return nil, err
			}
			if v != nil {
				e.recent.saw(e.written+1, g.Key, v) // it may be from this group
			}
		}
		if (v == nil) != (g.Value == nil) || !bytes.Equal(v, g.Value) {
			return &engine.ConflictError{Key: bytes.Clone(g.Key)}, nil
		}
	}
	// Badger keeps keys and values until the transaction has been written, and
	// the committer answers after that: values need no copy, keys one in all.
	size := b.Ops()
	for _, p := range b.Sets {
		size += len(p.Key)
	}
	for _, k := range b.Deletes {
		size += len(k)
	}
	buf := make([]byte, 0, size)
	inner := func(key []byte) []byte {
		from := len(buf)
		buf = append(append(buf, keyByte), key...)
		return buf[from:len(buf):len(buf)]
	}
	for _, p := range b.Sets {
		if err := txn.Set(inner(p.Key), p.Value); err != nil {
			return nil, err
		}
		e.recent.wrote(e.written+1, p.Key, p.Value)
	}
	for _, k := range b.Deletes {
		if err := txn.Delete(inner(k)); err != nil {
			return nil, err
		}
		e.recent.deleted(k)
	}
	return nil, nil
}
