package turnstone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"

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

// ErrOtherStore: where a store was to be copied to is another one.
var ErrOtherStore = errors.New("turnstone: the destination holds another store")

// Copy makes the store in to what the one in from is, whatever engines they are:
// it compares all records and writes those that differ. Once more, it brings a
// copy up to date; after an interruption, it goes on. It ends with a
// verification of the copy, and with the commit ids of all heads compared: the
// result is a *CorruptError if anything is damaged, here or there.
//
// The source may be written to meanwhile, but the copy is then of no one moment:
// run Copy again when it is quiet. Nobody may use the copy until Copy is done.
func Copy(ctx context.Context, from, to engine.Engine, o CopyOptions) (*CopyReport, error) {
	c := copier{from: from, to: to, space: engine.PrefixRange(keys.Prefix(o.Namespace)), progress: o.Progress}
	first, err := c.check(ctx, keys.StoreKey(o.Namespace), o.Namespace)
	if err != nil {
		return nil, err
	}
	if err := c.run(ctx, first); err != nil {
		return &c.report, err
	}
	return &c.report, c.prove(ctx, o.Namespace)
}

type copier struct {
	from, to engine.Engine
	space    engine.Range
	progress func(int)
	report   CopyReport

	batch engine.Batch
	last  []engine.Pair // heads, which are written when all that they lead to is there
	extra [][]byte
}

// check refuses to overwrite another store, and returns the store record if it is
// to be written.
func (c *copier) check(ctx context.Context, key []byte, namespace string) (first *engine.Pair, err error) {
	here, err := c.from.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	if here[0] == nil {
		return nil, fmt.Errorf("%w: namespace %q of the source", ErrStoreNotFound, namespace)
	}
	if _, err := openRecord(key, here[0]); err != nil {
		return nil, codec.Corrupt(err, "store record of namespace %q", namespace)
	}
	there, err := c.to.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	if there[0] != nil {
		if !bytes.Equal(there[0], here[0]) {
			return nil, fmt.Errorf("%w (namespace %q)", ErrOtherStore, namespace)
		}
		return nil, nil
	}
	// What is there without a store record is a copy that was interrupted: then
	// the source has every key of it.
	for p, err := range c.to.Scan(ctx, c.space) {
		if err != nil {
			return nil, err
		}
		vs, err := c.from.Get(ctx, p.Key)
		if err != nil {
			return nil, err
		}
		if vs[0] == nil {
			return nil, fmt.Errorf("%w (namespace %q, without its store record)", ErrOtherStore, namespace)
		}
	}
	return &engine.Pair{Key: key, Value: here[0]}, nil
}

// run writes what differs: at first what nothing leads to yet, then the heads, at
// last the store record, without which nobody can open the copy.
func (c *copier) run(ctx context.Context, first *engine.Pair) error {
	next, stop := iter.Pull2(c.to.Scan(ctx, c.space))
	defer stop()
	have, err, more := next()
	for p, ferr := range c.from.Scan(ctx, c.space) {
		if err = errors.Join(err, ferr); err != nil {
			return err
		}
		for more && bytes.Compare(have.Key, p.Key) < 0 {
			c.extra = append(c.extra, bytes.Clone(have.Key))
			if have, err, more = next(); err != nil {
				return err
			}
		}
		c.report.Records++
		if c.progress != nil && c.report.Records%1000 == 0 {
			c.progress(c.report.Records)
		}
		same := false
		if more && bytes.Equal(have.Key, p.Key) {
			same = bytes.Equal(have.Value, p.Value)
			have, err, more = next()
		}
		switch {
		case same, first != nil && bytes.Equal(p.Key, first.Key):
		case p.Key[4] == keys.Head:
			c.last = append(c.last, engine.Pair{Key: bytes.Clone(p.Key), Value: bytes.Clone(p.Value)})
		default:
			if werr := c.write(ctx, p); werr != nil {
				return werr
			}
		}
	}
	for ; more && err == nil; have, err, more = next() {
		c.extra = append(c.extra, bytes.Clone(have.Key))
	}
	if err != nil {
		return err
	}
	for _, p := range c.last {
		if err := c.write(ctx, p); err != nil {
			return err
		}
	}
	for _, k := range c.extra {
		c.report.Deleted++
		if err := c.add(ctx, func(b *engine.Batch) { b.Delete(k) }); err != nil {
			return err
		}
	}
	if err := c.flush(ctx); err != nil || first == nil {
		return err
	}
	if err := c.write(ctx, *first); err != nil {
		return err
	}
	return c.flush(ctx)
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

// flush applies the batch; after an unknown outcome again, as it only sets and
// deletes.
func (c *copier) flush(ctx context.Context) error {
	if c.batch.Ops() == 0 {
		return nil
	}
	s := Store{engine: c.to}
	_, err := s.apply(ctx, &c.batch)
	c.batch = engine.Batch{}
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
	for o := (ListOptions{Limit: 1000}); ; {
		page, err := stores[0].List(ctx, o)
		if err != nil {
			return err
		}
		for _, i := range page.Sessions {
			s, err := stores[1].Session(ctx, i.ID)
			var have Info
			if err == nil {
				have, err = s.Info(ctx)
			}
			if err != nil {
				return fmt.Errorf("copy: session %q: %w", i.ID, err)
			}
			if have.Commit != i.Commit {
				return fmt.Errorf("copy: %w: session %q was committed to meanwhile: copy again", ErrConflict, i.ID)
			}
			c.report.Sessions++
		}
		if o.After = page.Next; o.After == "" {
			break
		}
	}
	v, err := stores[1].Verify(ctx, nil)
	if err == nil && !v.OK() {
		err = v.Problems[0]
	}
	return err
}
