package turnstone

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"maps"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/overlay"
)

// CopyOptions of Copy.
type CopyOptions struct {
	Namespace string // as in Options; others of the engine are not copied
	// Progress, if set, is called from the calling goroutine. Phases are "source"
	// and "copy", which are verified, and "records", which are compared.
	Progress func(Progress)
}

// A CopyReport says what Copy did, as far as it got.
type CopyReport struct {
	Sessions int   `json:"sessions"` // whose heads are equal at the end
	Records  int   `json:"records"`  // of the store
	Written  int   `json:"written"`  // records that the copy did not have so
	Bytes    int64 `json:"bytes"`    // of those, keys and values
	Deleted  int   `json:"deleted"`  // records that only the copy had
}

// Copy makes the store in to what the one in from is, whatever engines they are:
// it verifies the source, compares all records, writes those that differ, verifies
// the copy, and compares the commit ids of all heads. Once more, it brings a copy
// up to date; after an interruption, it goes on.
//
// A source that is damaged is a *CorruptError before anything is written. From its
// first write until it is verified the copy can't be opened (ErrUnfinishedCopy).
// The source may be written to meanwhile: what changed is copied again, three times
// at most, and then the result is ErrConflict.
func Copy(ctx context.Context, from, to engine.Engine, o CopyOptions) (*CopyReport, error) {
	c := copier{
		from: from, to: to, options: Options{Namespace: o.Namespace, MustExist: true, NoAutoSeal: true}, progress: o.Progress,
		space: engine.PrefixRange(keys.Prefix(o.Namespace)), storeKey: keys.StoreKey(o.Namespace), noteKey: keys.CopyingKey(o.Namespace),
	}
	if c.progress == nil {
		c.progress = func(Progress) {}
	}
	if err := c.check(ctx); err != nil {
		return &c.report, err
	}
	if err := c.verify(ctx, from, "source"); err != nil {
		return &c.report, err
	}
	const passes = 3
	for n := 1; ; n++ {
		changed, err := c.pass(ctx)
		if err != nil {
			return &c.report, err
		}
		err = c.prove(ctx)
		if err == nil {
			return &c.report, c.finish(ctx)
		}
		var damage *CorruptError
		if !errors.As(err, &damage) && !errors.Is(err, ErrConflict) || n > 1 && !changed {
			return &c.report, err
		}
		if n == passes {
			return &c.report, fmt.Errorf("%w: the source is being written to: copy again when it is quiet (%v)", ErrConflict, err)
		}
	}
}

type copier struct {
	from, to engine.Engine
	options  Options // of both stores
	progress func(Progress)
	report   CopyReport
	space    engine.Range

	storeKey, noteKey []byte
	record            []byte // the store record of the source
	there             []byte // that of the copy, or nil
	note              []byte // what stands under noteKey, or nil
	unfinished        bool   // the copy can't be opened
	ours              bool   // and the note is of this run
	batch             engine.Batch
}

// A copyNote is of the last copy into a store. Its run guards each batch: one
// whose outcome was unknown can't take effect when the run is over.
type copyNote struct {
	run    [16]byte
	record []byte // while the copy is not whole: the store record that it will have
}

func (n *copyNote) seal(key []byte) []byte {
	var e codec.Encoder
	e.Array(2)
	e.Bytes(n.run[:])
	e.Bytes(n.record)
	return codec.Seal(key, keys.Copying, e.B)
}

func openCopyNote(key, value []byte) (n copyNote, err error) {
	body, err := codec.Open(key, value, keys.Copying)
	if err != nil {
		return n, err
	}
	d := codec.Decoder{B: body}
	d.Shape(2)
	d.Fixed(n.run[:])
	n.record = d.Bytes()
	return n, d.Done()
}

// check refuses to overwrite another store.
func (c *copier) check(ctx context.Context) error {
	source, err := Open(ctx, c.from, &c.options)
	if err != nil {
		return err
	}
	if err := source.Close(); err != nil {
		return err
	}
	here, err := c.from.Get(ctx, c.storeKey)
	if err != nil {
		return err
	}
	c.record = here[0]
	vs, err := c.to.Get(ctx, c.storeKey, c.noteKey)
	if err != nil {
		return err
	}
	c.there, c.note = vs[0], vs[1]
	target := c.there
	if c.note != nil {
		note, err := openCopyNote(c.noteKey, c.note)
		if err != nil {
			return codec.Corrupt(err, "note of the last copy, namespace %q", c.options.Namespace)
		}
		if len(note.record) > 0 {
			target, c.unfinished = note.record, true
		}
	}
	if target != nil {
		if !bytes.Equal(target, c.record) {
			return fmt.Errorf("%w (namespace %q)", ErrOtherStore, c.options.Namespace)
		}
		return nil
	}
	first := c.space
	first.Limit = 1
	for _, err := range c.to.Scan(ctx, first) {
		if err == nil {
			err = fmt.Errorf("%w (namespace %q, without its store record)", ErrOtherStore, c.options.Namespace)
		}
		return err
	}
	return nil
}

// own reports whether key belongs to the copy itself.
func (c *copier) own(key []byte) bool {
	return bytes.Equal(key, c.storeKey) || bytes.Equal(key, c.noteKey)
}

// pass writes what differs, and reports whether anything did.
func (c *copier) pass(ctx context.Context) (changed bool, err error) {
	next, stop := iter.Pull2(c.to.Scan(ctx, c.space))
	defer stop()
	var have engine.Pair
	more := true
	step := func() { // to the next pair of the copy that can differ
		for {
			if have, err, more = next(); err != nil || !more || !c.own(have.Key) {
				return
			}
		}
	}
	before := c.report.Written + c.report.Deleted
	c.report.Records = 1 // the store record
	step()
	for p, ferr := range c.from.Scan(ctx, c.space) {
		if ferr != nil {
			return false, ferr
		}
		if c.own(p.Key) {
			continue
		}
		if c.report.Records++; c.report.Records%1000 == 0 {
			c.progress(Progress{Phase: "records", Done: c.report.Records})
		}
		for err == nil && more && bytes.Compare(have.Key, p.Key) < 0 {
			if err = c.remove(ctx, have.Key); err == nil {
				step()
			}
		}
		same := more && bytes.Equal(have.Key, p.Key)
		if err == nil && (!same || !bytes.Equal(have.Value, p.Value)) {
			err = c.write(ctx, p)
		}
		if err != nil {
			return false, err
		}
		if same {
			step()
		}
	}
	for err == nil && more {
		if err = c.remove(ctx, have.Key); err == nil {
			step()
		}
	}
	if err == nil {
		err = c.flush(ctx)
	}
	return c.report.Written+c.report.Deleted > before, err
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
	if err := c.begin(ctx); err != nil {
		return err
	}
	c.batch.Guard(c.noteKey, c.note)
	err := c.apply(ctx, &c.batch, c.note)
	c.batch = engine.Batch{}
	return err
}

// begin puts a note of this run in place of the store record, without which nobody
// can open the copy.
func (c *copier) begin(ctx context.Context) error {
	if c.ours {
		return nil
	}
	n := copyNote{record: c.record}
	if _, err := rand.Read(n.run[:]); err != nil {
		return err
	}
	var b engine.Batch
	b.Guard(c.storeKey, c.there)
	b.Guard(c.noteKey, c.note)
	if c.there != nil {
		b.Delete(c.storeKey)
	} else if c.note == nil {
		c.report.Written++
		c.report.Bytes += int64(len(c.storeKey) + len(c.record))
	}
	note := n.seal(c.noteKey)
	b.Set(c.noteKey, note)
	if err := c.apply(ctx, &b, note); err != nil {
		return err
	}
	c.note, c.unfinished, c.ours = note, true, true
	return nil
}

// finish makes a proven copy a store.
func (c *copier) finish(ctx context.Context) error {
	if !c.unfinished {
		return nil
	}
	if err := c.begin(ctx); err != nil {
		return err
	}
	n, err := openCopyNote(c.noteKey, c.note)
	if err != nil {
		return err
	}
	n.record = nil
	note := n.seal(c.noteKey)
	var b engine.Batch
	b.Guard(c.noteKey, c.note)
	b.Set(c.noteKey, note)
	b.Set(c.storeKey, c.record)
	return c.apply(ctx, &b, note)
}

// apply applies b, after which note stands.
func (c *copier) apply(ctx context.Context, b *engine.Batch, note []byte) error {
	s := Store{engine: c.to}
	unknown, err := s.apply(ctx, b)
	if !errors.Is(err, engine.ErrConflict) {
		return err
	}
	vs, gerr := c.to.Get(ctx, c.noteKey)
	if gerr != nil {
		return gerr
	}
	if unknown && bytes.Equal(vs[0], note) { // by the first attempt
		return nil
	}
	return fmt.Errorf("%w: somebody else writes to the copy", ErrConflict)
}

// verify verifies a store.
func (c *copier) verify(ctx context.Context, e engine.Engine, phase string) (err error) {
	st, err := Open(ctx, e, &c.options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	v, err := st.Verify(ctx, func(done int) { c.progress(Progress{Phase: phase, Done: done}) })
	if err == nil && !v.OK() {
		err = fmt.Errorf("%s: %w", phase, v.Problems[0])
	}
	return err
}

// prove compares the heads of both stores, and verifies the copy, as it will be.
func (c *copier) prove(ctx context.Context) error {
	whole := overlay.New(c.to)
	if err := whole.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: c.storeKey, Value: c.record}}}); err != nil {
		return err
	}
	want, err := c.heads(ctx, c.from)
	if err != nil {
		return err
	}
	if err := c.verify(ctx, whole, "copy"); err != nil {
		return err
	}
	got, err := c.heads(ctx, whole)
	if err != nil {
		return err
	}
	if !maps.Equal(want, got) {
		return fmt.Errorf("%w: the heads of source and copy differ", ErrConflict)
	}
	c.report.Sessions = len(want)
	return nil
}

// heads returns the commit ids of all sessions.
func (c *copier) heads(ctx context.Context, e engine.Engine) (heads map[string]CommitID, err error) {
	st, err := Open(ctx, e, &c.options)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	heads = map[string]CommitID{}
	for o := (ListOptions{Limit: 1000}); ; {
		page, err := st.List(ctx, o)
		if err != nil {
			return nil, err
		}
		for _, s := range page.Sessions {
			heads[s.ID] = s.Commit
		}
		if o.After = page.Next; o.After == "" {
			return heads, nil
		}
	}
}
