package copying

import (
	"bytes"
	"context"
	"iter"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Compare reads the records of a range in the source and in the target side by side, and makes those of the target equal
// to the source's. It leaves out what is about one database alone. each is called for every record of the source; an
// error of it ends Compare. differ reports whether any record was another one.
func (t *Target) Compare(ctx context.Context, source engine.Engine, r engine.Range, each func() error) (differ bool, err error) {
	t.batch = engine.Batch{}
	next, stop := iter.Pull2(t.records(ctx, t.Engine, r))
	defer stop()
	c := &comparing{target: t, next: next}
	if err := c.step(); err != nil {
		return false, err
	}
	for p, err := range t.records(ctx, source, r) {
		if err != nil {
			return c.differ, err
		}
		if err := each(); err != nil {
			return c.differ, err
		}
		if err := c.deleteUpTo(ctx, p.Key); err != nil {
			return c.differ, err
		}
		if err := c.setRecord(ctx, p); err != nil {
			return c.differ, err
		}
	}
	if err := c.deleteUpTo(ctx, nil); err != nil {
		return c.differ, err
	}
	return c.differ, t.Flush(ctx)
}

// CopyKeys makes the records of some keys in the target what they are in the source.
func (t *Target) CopyKeys(ctx context.Context, source engine.Engine, ks [][]byte) error {
	t.batch = engine.Batch{}
	vs, err := source.Get(ctx, ks...)
	if err != nil {
		return err
	}
	for i, k := range ks {
		if Alone(t.Namespace, k) {
			continue
		}
		t.set(k, vs[i])
		if err := t.flushLarge(ctx); err != nil {
			return err
		}
	}
	return t.Flush(ctx)
}

// Alone reports whether a record is about the database that it is in, so that no copy has it: the store record, which
// a copy gets at the end; the note of a copy; the scrub record, which is about a disk; the note of the last maintenance;
// and notes of batches that were applied while the namespace was moved.
func Alone(namespace string, key []byte) bool {
	rest, ok := bytes.CutPrefix(key, keys.Prefix(namespace))
	if !ok || len(rest) == 0 {
		return false
	}
	switch rest[0] {
	case keys.Store, keys.Copying, keys.Scrub, keys.Maintenance, keys.Touched:
		return true
	}
	return false
}

// records yields the records of a range, in order.
func (t *Target) records(ctx context.Context, e engine.Engine, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		for p, err := range e.Scan(ctx, r) {
			if err == nil && Alone(t.Namespace, p.Key) {
				continue
			}
			if !yield(p, err) {
				return
			}
		}
	}
}

// A comparing is one call of Compare. It has a record of the target.
type comparing struct {
	target *Target
	next   func() (engine.Pair, error, bool)
	pair   engine.Pair
	ok     bool // whether pair is a record; false at the end
	differ bool
}

// step goes to the next record of the target.
func (c *comparing) step() (err error) {
	c.pair, err, c.ok = c.next()
	return err
}

// deleteUpTo deletes the records of the target up to key, or all if key is nil. The source has none of them.
func (c *comparing) deleteUpTo(ctx context.Context, key []byte) error {
	for c.ok && (key == nil || bytes.Compare(c.pair.Key, key) < 0) {
		c.differ = true
		c.target.set(c.pair.Key, nil)
		if err := c.target.flushLarge(ctx); err != nil {
			return err
		}
		if err := c.step(); err != nil {
			return err
		}
	}
	return nil
}

// setRecord writes a record of the source if the target has another one, or none, under its key. It goes past the key in
// the target.
func (c *comparing) setRecord(ctx context.Context, p engine.Pair) error {
	found := c.ok && bytes.Equal(c.pair.Key, p.Key)
	if !found || !bytes.Equal(c.pair.Value, p.Value) {
		c.differ = true
		c.target.set(p.Key, p.Value)
		if err := c.target.flushLarge(ctx); err != nil {
			return err
		}
	}
	if !found {
		return nil
	}
	return c.step()
}
