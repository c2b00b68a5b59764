package verify

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
)

// begin puts a note of this copier in place of the target's store record, unless it has
// done so. Nobody can open the target without its store record.
func (c *copier) begin(ctx context.Context) error {
	if c.ours {
		return nil
	}
	next := head.CopyNote{Store: c.record}
	if _, err := rand.Read(next.Run[:]); err != nil {
		return err
	}
	var b engine.Batch
	b.Guard(c.storeKey, c.targetRecord)
	if c.targetRecord != nil {
		b.Delete(c.storeKey)
	}
	if err := c.apply(ctx, &b, next); err != nil {
		return err
	}
	c.unfinished, c.ours = true, true
	return nil
}

// finish writes the store record of a copy that was proven, and notes the digest of its
// heads. It does nothing if the copy has both already.
func (c *copier) finish(ctx context.Context, sum [codec.HashSize]byte) error {
	if !c.unfinished && c.note.Heads == sum {
		return nil
	}
	next := head.CopyNote{Run: c.note.Run, Batch: c.note.Batch + 1, Heads: sum}
	var b engine.Batch
	if c.unfinished || c.targetRecord == nil { // A source without sessions may differ from nothing.
		b.Guard(c.storeKey, nil)
		b.Set(c.storeKey, c.record)
	} else { // The target has all records, but no note of a copy with these heads.
		b.Guard(c.storeKey, c.record)
	}
	if err := c.apply(ctx, &b, next); err != nil {
		return err
	}
	if c.targetRecord == nil {
		c.report.Written++
		c.report.Bytes += int64(len(c.storeKey) + len(c.record))
	}
	return nil
}

// apply applies b and replaces the note by next. It fails with history.ErrConflict if
// somebody else has replaced the note.
func (c *copier) apply(ctx context.Context, b *engine.Batch, next head.CopyNote) error {
	value := next.Encode(c.noteKey)
	b.Guard(c.noteKey, c.noteValue)
	b.Set(c.noteKey, value)
	w := history.Change{Engine: c.To}
	err := w.Apply(ctx, b)
	if errors.Is(err, engine.ErrConflict) {
		err = c.resolve(ctx, &w, value)
	}
	if err != nil {
		return err
	}
	c.note, c.noteValue = next, value
	return nil
}

// resolve returns nil if a batch stands although the last attempt to apply it failed with a
// conflict: an earlier attempt, whose outcome was unknown, has applied it. value is the
// note of the batch.
func (c *copier) resolve(ctx context.Context, w *history.Change, value []byte) error {
	vs, err := c.To.Get(ctx, c.noteKey)
	if err != nil {
		return w.Result(err)
	}
	if w.Unknown && bytes.Equal(vs[0], value) {
		return nil
	}
	return fmt.Errorf("%w: somebody else writes to the copy", history.ErrConflict)
}
