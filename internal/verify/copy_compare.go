package verify

import (
	"bytes"
	"context"
	"iter"

	"github.com/turnstonedb/turnstone/engine"
)

// writeDifferences reads the records of source and target side by side, and makes those of
// the target equal to the source's. It sets c.changed if any differed.
func (c *copier) writeDifferences(ctx context.Context) error {
	next, stop := iter.Pull2(c.records(ctx, c.To))
	defer stop()
	target := &cursor{next: next}
	if err := target.step(); err != nil {
		return err
	}
	c.changed = false
	c.report.Records = 1 // the store record
	for p, err := range c.records(ctx, c.From) {
		if err != nil {
			return err
		}
		if c.report.Records++; c.report.Records%1000 == 0 {
			c.Progress("records", c.report.Records)
		}
		if err := c.deleteUpTo(ctx, target, p.Key); err != nil {
			return err
		}
		if err := c.setRecord(ctx, target, p); err != nil {
			return err
		}
	}
	if err := c.deleteUpTo(ctx, target, nil); err != nil {
		return err
	}
	return c.flush(ctx)
}

// records yields the records of a store in order, without its store record, its note, and its scrub record.
func (c *copier) records(ctx context.Context, e engine.Engine) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		for p, err := range e.Scan(ctx, c.space) {
			if bytes.Equal(p.Key, c.storeKey) || bytes.Equal(p.Key, c.noteKey) || bytes.Equal(p.Key, c.scrubKey) {
				continue // The scrub record is about the disk that it is on.
			}
			if !yield(p, err) {
				return
			}
		}
	}
}

// A cursor reads the records of the target.
type cursor struct {
	next func() (engine.Pair, error, bool)
	pair engine.Pair
	ok   bool // whether pair is a record; false at the end
}

// step goes to the next record.
func (c *cursor) step() (err error) {
	c.pair, err, c.ok = c.next()
	return err
}

// deleteUpTo deletes the records of the target from the cursor up to key, or all if key is
// nil, and moves the cursor there. The source has none of them.
func (c *copier) deleteUpTo(ctx context.Context, target *cursor, key []byte) error {
	for target.ok && (key == nil || bytes.Compare(target.pair.Key, key) < 0) {
		c.changed = true
		c.batch.Delete(bytes.Clone(target.pair.Key))
		if err := c.flushLarge(ctx); err != nil {
			return err
		}
		if err := target.step(); err != nil {
			return err
		}
	}
	return nil
}

// setRecord writes a record of the source if the target has another one, or none, under its
// key. It moves the cursor past the key.
func (c *copier) setRecord(ctx context.Context, target *cursor, p engine.Pair) error {
	found := target.ok && bytes.Equal(target.pair.Key, p.Key)
	if !found || !bytes.Equal(target.pair.Value, p.Value) {
		c.changed = true
		c.batch.Set(bytes.Clone(p.Key), bytes.Clone(p.Value))
		if err := c.flushLarge(ctx); err != nil {
			return err
		}
	}
	if !found {
		return nil
	}
	return target.step()
}

// flushLarge applies the batch if it is large.
func (c *copier) flushLarge(ctx context.Context) error {
	const maxBytes, maxOps = 1 << 20, 5000
	if c.batch.Bytes() < maxBytes && c.batch.Ops() < maxOps {
		return nil
	}
	return c.flush(ctx)
}

// flush applies the batch, if there is anything in it.
func (c *copier) flush(ctx context.Context) error {
	if c.batch.Ops() == 0 {
		return nil
	}
	if err := c.begin(ctx); err != nil {
		return err
	}
	written, deleted, size := len(c.batch.Sets), len(c.batch.Deletes), int64(0)
	for _, p := range c.batch.Sets {
		size += int64(len(p.Key) + len(p.Value))
	}
	next := c.note
	next.Batch++
	err := c.apply(ctx, &c.batch, next)
	c.batch = engine.Batch{}
	if err != nil {
		return err
	}
	c.report.Written += written
	c.report.Deleted += deleted
	c.report.Bytes += size
	return nil
}
