package gc

import (
	"context"

	"github.com/turnstonedb/turnstone/engine"
)

// This file has the batches that a cycle applies. Each batch is small, so that commits do
// not wait for it long. A cycle may be cut off between any two batches, so each batch leaves
// the index in a state from which the next cycle can go on.

// A batch is a batch of a cycle. It also says by how much it changes the numbers in the
// cycle record.
type batch struct {
	engine.Batch
	sessions int // sessions that live and have a bookmark
	blobs    int // blobs that have edges
}

// batchOps bounds the writes of one batch. Work that takes more writes is spread over
// several batches.
const batchOps = 600

// A writer gathers writes that need not be applied together, and applies them in batches of
// about batchOps. A caller that wants the last writes in a batch with others takes them from
// the writer and applies them by itself.
type writer struct {
	*batch
	apply func(context.Context, *batch) error
}

// newWriter returns a writer whose batches apply applies.
func newWriter(apply func(context.Context, *batch) error) *writer {
	return &writer{batch: &batch{}, apply: apply}
}

// flushMany applies the batch if it is full. It is called after each write.
func (w *writer) flushMany(ctx context.Context) error {
	if w.Ops() < batchOps {
		return nil
	}
	return w.flush(ctx)
}

// flush applies the batch if it has any writes.
func (w *writer) flush(ctx context.Context) error {
	if w.Ops() == 0 {
		return nil
	}
	b := w.batch
	w.batch = &batch{}
	return w.apply(ctx, b)
}

// clear deletes all records of a range. It applies at least one batch.
func (cy *cycle) clear(ctx context.Context, all engine.Range) error {
	w := newWriter(cy.apply)
	for p, err := range cy.engine.Scan(ctx, all) {
		if err != nil {
			return err
		}
		w.Delete(p.Key)
		if err := w.flushMany(ctx); err != nil {
			return err
		}
	}
	return cy.apply(ctx, w.batch)
}
