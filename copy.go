package turnstone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// CopyOptions of Copy.
type CopyOptions struct {
	Namespace string // as in Options
	// Progress, if set, is called with the number of records compared so far,
	// from the calling goroutine.
	Progress func(records int)
}

// A CopyReport says what Copy did.
type CopyReport struct {
	Sessions int   `json:"sessions"` // whose heads are equal at the end
	Records  int   `json:"records"`  // of the store
	Written  int   `json:"written"`  // records that the copy did not have so
	Bytes    int64 `json:"bytes"`    // of those, keys and values
	Deleted  int   `json:"deleted"`  // records that only the copy had
}

// Copy makes the store in to what the one in from is, whatever engines they are:
// it compares all records and writes those that differ. Once more, it brings a
// copy up to date; after an interruption, it goes on. It ends with a
// verification of the copy, and with the commit ids of all heads compared: the
// result is a *CorruptError if anything is damaged, here or there.
//
// From its first write to its last the copy can't be opened. The source may be
// written to meanwhile, but the copy is then of no one moment: run Copy again
// when it is quiet.
func Copy(ctx context.Context, from, to engine.Engine, o CopyOptions) (*CopyReport, error) {
	c := copier{
		from: from, to: to, progress: o.Progress, space: engine.PrefixRange(keys.Prefix(o.Namespace)),
		storeKey: keys.StoreKey(o.Namespace), copyingKey: keys.CopyingKey(o.Namespace),
	}
	if err := c.check(ctx, o.Namespace); err != nil {
		return nil, err
	}
	if err := c.run(ctx); err != nil {
		return &c.report, err
	}
	return &c.report, c.prove(ctx, o.Namespace)
}

type copier struct {
	from, to engine.Engine
	progress func(int)
	report   CopyReport
	space    engine.Range

	storeKey, copyingKey []byte
	record               []byte // the store record, of both
	fresh                bool   // there was nothing
	begun                bool   // the copy can't be opened
	batch                engine.Batch
}

// check refuses to overwrite another store.
func (c *copier) check(ctx context.Context, namespace string) error {
	here, err := c.from.Get(ctx, c.storeKey)
	if err != nil {
		return err
	}
	if here[0] == nil {
		return fmt.Errorf("%w: namespace %q of the source", ErrStoreNotFound, namespace)
	}
	if _, err := openRecord(c.storeKey, here[0]); err != nil {
		return codec.Corrupt(err, "store record of namespace %q", namespace)
	}
	c.record = here[0]
	there, err := c.to.Get(ctx, c.storeKey, c.copyingKey)
	if err != nil {
		return err
	}
	c.begun = there[1] != nil // and was interrupted
	for _, record := range there {
		if record != nil && !bytes.Equal(record, c.record) {
			return fmt.Errorf("%w (namespace %q)", ErrOtherStore, namespace)
		}
	}
	if there[0] != nil || there[1] != nil {
		return nil
	}
	first := c.space
	first.Limit = 1
	for _, err := range c.to.Scan(ctx, first) {
		if err == nil {
			err = fmt.Errorf("%w (namespace %q, without its store record)", ErrOtherStore, namespace)
		}
		return err
	}
	c.fresh = true
	return nil
}

// run writes what differs. While it does, there is a note in place of the store
// record, without which nobody can open the copy.
func (c *copier) run(ctx context.Context) error {
	next, stop := iter.Pull2(c.to.Scan(ctx, c.space))
	defer stop()
	var have engine.Pair
	var err error
	more := true
	step := func() { // to the next pair of the copy that can differ
		for {
			if have, err, more = next(); err != nil || !more || !bytes.Equal(have.Key, c.storeKey) && !bytes.Equal(have.Key, c.copyingKey) {
				return
			}
		}
	}
	step()
	for p, ferr := range c.from.Scan(ctx, c.space) {
		if ferr != nil {
			return ferr
		}
		c.report.Records++
		if c.progress != nil && c.report.Records%1000 == 0 {
			c.progress(c.report.Records)
		}
		if bytes.Equal(p.Key, c.storeKey) {
			continue
		}
		for err == nil && more && bytes.Compare(have.Key, p.Key) < 0 {
			if err := c.remove(ctx, have.Key); err != nil {
				return err
			}
			step()
		}
		if err != nil {
			return err
		}
		same := more && bytes.Equal(have.Key, p.Key)
		if !same || !bytes.Equal(have.Value, p.Value) {
			if err := c.write(ctx, p); err != nil {
				return err
			}
		}
		if same {
			step()
		}
	}
	for ; err == nil && more; step() {
		if err := c.remove(ctx, have.Key); err != nil {
			return err
		}
	}
	if err == nil {
		err = c.flush(ctx)
	}
	there, gerr := c.to.Get(ctx, c.storeKey)
	if err = errors.Join(err, gerr); err != nil || !c.begun && there[0] != nil {
		return err
	}
	var b engine.Batch
	b.Set(c.storeKey, c.record)
	b.Delete(c.copyingKey)
	if c.fresh {
		c.report.Written++
		c.report.Bytes += int64(len(c.storeKey) + len(c.record))
	}
	return c.apply(ctx, &b)
}

func (c *copier) remove(ctx context.Context, key []byte) error {
	c.report.Deleted++
	return c.add(ctx, func(b *engine.Batch) { b.Delete(bytes.Clone(key)) })
}

func (c *copier) write(ctx context.Context, p engine.Pair) error {
	c.report.Written++
	c.report.Bytes += int64(len(p.Key) + len(p.Value))
	return c.add(ctx, func(b *engine.Batch) { b.Set(bytes.Clone(p.Key), bytes.Clone(p.Value)) })
}

// add puts a write into the batch, which is applied when it is large.
func (c *copier) add(ctx context.Context, f func(*engine.Batch)) error {
	f(&c.batch)
	if c.batch.Bytes() < 1<<20 && c.batch.Ops() < 5000 {
		return nil
	}
	return c.flush(ctx)
}

// flush applies the batch.
func (c *copier) flush(ctx context.Context) error {
	if c.batch.Ops() == 0 {
		return nil
	}
	if !c.begun {
		var b engine.Batch
		b.Delete(c.storeKey)
		b.Set(c.copyingKey, c.record)
		if err := c.apply(ctx, &b); err != nil {
			return err
		}
		c.begun = true
	}
	err := c.apply(ctx, &c.batch)
	c.batch = engine.Batch{}
	return err
}

// apply applies b; after an unknown outcome again, as it only sets and deletes.
func (c *copier) apply(ctx context.Context, b *engine.Batch) error {
	s := Store{engine: c.to}
	_, err := s.apply(ctx, b)
	return err
}

// prove verifies the copy, and compares the heads of both.
func (c *copier) prove(ctx context.Context, namespace string) error {
	var stores [2]*Store
	for i, e := range []engine.Engine{c.from, c.to} {
		st, err := Open(ctx, e, &Options{Namespace: namespace, MustExist: true, NoAutoSeal: true})
		if err != nil {
			return err
		}
		defer st.Close()
		stores[i] = st
	}
	var heads [2]map[string]CommitID
	for i, st := range stores {
		heads[i] = map[string]CommitID{}
		for o := (ListOptions{Limit: 1000}); ; {
			page, err := st.List(ctx, o)
			if err != nil {
				return err
			}
			for _, s := range page.Sessions {
				heads[i][s.ID] = s.Commit
			}
			if o.After = page.Next; o.After == "" {
				break
			}
		}
	}
	if !maps.Equal(heads[0], heads[1]) {
		return fmt.Errorf("copy: %w: sessions of the source were changed meanwhile: copy again", ErrConflict)
	}
	c.report.Sessions = len(heads[0])
	v, err := stores[1].Verify(ctx, nil)
	if err == nil && !v.OK() {
		err = v.Problems[0]
	}
	return err
}
