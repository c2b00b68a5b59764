package badger

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/dgraph-io/badger/v4"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

const (
	writeBytes    = 24  // of a transaction, at most, for each write beside the prefix, the key and the value
	reservedBytes = 256 // of a transaction, for the counter of groups
)

// Keys in the database begin with the prefix of the engine and one of these.
const (
	pairByte  = 'k' // then the key of a pair
	groupByte = 'g' // the number of the last group
)

// A request is one Apply on its way through the committer.
type request struct {
	ctx   context.Context
	batch *engine.Batch
	err   chan error
}

// Apply implements engine.Engine.
func (e *Engine) Apply(ctx context.Context, b *engine.Batch) error {
	if err := b.Check(e.Limits()); err != nil {
		return err
	}
	if err := errors.Join(ctx.Err(), e.usable()); err != nil {
		return err
	}
	if err := e.checkSpace(ctx, b); err != nil {
		return err
	}
	r := &request{ctx: ctx, batch: b, err: make(chan error, 1)}
	select {
	case e.queue <- r:
	case <-e.stopped:
		return engine.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-r.err:
		return err
	case <-e.stopped: // the committer may have answered just before it returned
		select {
		case err := <-r.err:
			return err
		default:
			return engine.ErrClosed
		}
	}
}

// checkSpace returns an error if too little space is left for b.
func (e *Engine) checkSpace(ctx context.Context, b *engine.Batch) error {
	if e.reading {
		return engine.ErrReadOnly
	}
	if b.Ops() == 0 || e.config.InMemory {
		return nil
	}
	err := e.dir.Need(ctx, e.minFree)
	if errors.Is(err, engine.ErrReplaced) {
		e.fail(err)
		return err
	}
	if err != nil && b.Reclaim {
		err = e.dir.NeedNow(ctx, localdir.Resources{Bytes: reserveBytes, Inodes: 100, Files: minFiles})
	}
	return err
}

// commitLoop is the committer. It takes the batches that wait, up to what a transaction takes, and commits them as one:
// meanwhile those for the next group gather.
func (e *Engine) commitLoop() {
	defer close(e.stopped)
	var next *request // taken from the queue, did not fit
	for {
		first := next
		if next = nil; first == nil {
			select {
			case first = <-e.queue:
			case <-e.stop:
				return
			}
		}
		group := []*request{first}
		size, ops := e.cost(first)
		for more := true; more && next == nil; {
			select {
			case r := <-e.queue:
				s, o := e.cost(r)
				if size+s+reservedBytes > e.maxBytes || ops+o+2 > e.maxOps {
					next = r
					break
				}
				group, size, ops = append(group, r), size+s, ops+o
			default:
				more = false
			}
		}
		e.commit(group)
	}
}

// cost returns the bytes and writes that r takes of a transaction, at most.
func (e *Engine) cost(r *request) (size, ops int64) {
	ops = int64(r.batch.Ops())
	return int64(r.batch.Bytes()) + ops*int64(writeBytes+len(e.prefix)), ops
}

// conflicts is how often a group is tried again after it conflicted with a transaction of the host.
const conflicts = 100

// commit applies the batches of group in their order as one transaction, and answers them when it is durable.
func (e *Engine) commit(group []*request) {
	verdicts := make([]error, len(group))
	verdict := make(chan struct{})
	e.verdict.Store(&verdict)
	var err error
	for n := 0; err == nil; n++ {
		err = mapped(caught(func() error { return e.transact(group, verdicts) }))
		if !errors.Is(err, badger.ErrConflict) {
			break
		}
		if err = nil; n == conflicts {
			err = fmt.Errorf("%w: %d transactions of the host were in the way", engine.ErrUnavailable, n)
		}
	}
	if errors.Is(err, engine.ErrCorrupt) || errors.Is(err, engine.ErrUnknown) {
		e.fail(err)
	}
	close(verdict)
	for i, r := range group {
		if err != nil {
			verdicts[i] = err
		}
		r.err <- verdicts[i]
	}
}

// transact tries to commit group. Any error but badger.ErrConflict is the result of every batch in the group.
func (e *Engine) transact(group []*request, verdicts []error) error {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if err := e.failure(); err != nil { // a vacuum that has lost batches fails the engine while this waits
		return err
	}
	txn := e.db.NewTransaction(true)
	defer txn.Discard()
	writes := 0
	for i, r := range group {
		if verdicts[i] = r.ctx.Err(); verdicts[i] != nil {
			continue
		}
		conflict, err := e.add(txn, r.batch)
		if err != nil {
			return err
		}
		if verdicts[i] = conflict; conflict == nil {
			writes += r.batch.Ops()
		}
	}
	if writes == 0 {
		return nil
	}
	if e.witness != nil {
		e.witness.group++
		if err := txn.Set(e.inner(groupByte, nil), binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, e.witness.group), e.witness.store)); err != nil {
			return refused(err)
		}
	}
	err := txn.Commit()
	switch {
	case errors.Is(err, badger.ErrConflict):
		return err
	case errors.Is(err, badger.ErrBlockedWrites), errors.Is(err, badger.ErrDBClosed):
		return fmt.Errorf("%w: badger: %w", engine.ErrUnavailable, err)
	case err != nil:
		return fmt.Errorf("%w: badger commit: %s", engine.ErrUnknown, firstLine(err))
	}
	if gone := e.dir.Here(); gone != nil {
		e.fail(gone)
		return fmt.Errorf("%w: %w", engine.ErrUnknown, gone)
	}
	e.witness.write()
	return nil
}

// add adds b to txn, or returns the conflict that prevents it. Guards see what earlier batches of the group wrote.
func (e *Engine) add(txn *badger.Txn, b *engine.Batch) (conflict, err error) {
	for _, g := range b.Guards {
		v, err := get(txn, e.inner(pairByte, g.Key))
		if err != nil {
			return nil, err
		}
		if (v == nil) != (g.Value == nil) || !bytes.Equal(v, g.Value) {
			return &engine.ConflictError{Key: bytes.Clone(g.Key)}, nil
		}
	}
	// Badger keeps keys and values until the transaction was written, and the callers wait as long.
	for _, p := range b.Sets {
		if err := txn.Set(e.inner(pairByte, p.Key), p.Value); err != nil {
			return nil, refused(err)
		}
	}
	for _, k := range b.Deletes {
		if err := txn.Delete(e.inner(pairByte, k)); err != nil {
			return nil, refused(err)
		}
	}
	return nil, nil
}

// refused is the error of a write that Badger does not take. Check has admitted the batch, and the group is within
// bounds.
func refused(err error) error {
	return fmt.Errorf("%w: badger refuses a write: %s", engine.ErrInvalid, firstLine(err))
}

// inner returns the key in the database.
func (e *Engine) inner(kind byte, key []byte) []byte {
	b := make([]byte, 0, len(e.prefix)+1+len(key))
	return append(append(append(b, e.prefix...), kind), key...)
}
