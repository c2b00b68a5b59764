// Package replicate makes the store on one engine a copy of the store on another one.
//
// A copy writes records, not sessions. It compares all records of the source with those of
// the target, in order, and writes what differs, until a pass finds nothing. Then it
// verifies the copy and compares the heads.
//
// As long as the copy is not whole it has a note in place of its store record, so that
// nobody can open it. Each batch guards the note and sets the next one. So only one run
// writes at a time, and what a run that was taken over still writes has no effect.
package replicate

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/hash"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/list"
	"github.com/turnstonedb/turnstone/internal/namespace"
	"github.com/turnstonedb/turnstone/internal/overlay"
	"github.com/turnstonedb/turnstone/internal/reclaim"
	"github.com/turnstonedb/turnstone/internal/verify"
)

// ErrOtherStore: the target holds another store than the source.
var ErrOtherStore = errors.New("turnstone: the destination holds another store")

// A Report says what a run did, as far as it got.
type Report struct {
	Sessions int   // whose heads are equal at the end
	Records  int   // of the store
	Written  int   // records that the copy did not have so, in all passes
	Bytes    int64 // of those, keys and values
	Deleted  int   // records that only the copy had, in all passes
}

// A Copy is what is to be copied.
type Copy struct {
	From, To  engine.Engine
	Namespace string
	// Overwrite discards what was written to an earlier copy.
	Overwrite bool
	// Progress, if set, is told how far the run is: phases are "source" and "copy",
	// which are verified, and "records", which are compared.
	Progress func(phase string, done int)
}

// Run copies. The error matches ErrOtherStore, change.ErrConflict if somebody else writes
// to the copy, or the source does not come to rest, or what reading and writing fail with.
func (o *Copy) Run(ctx context.Context) (*Report, error) {
	c := copier{
		Copy: *o, space: engine.PrefixRange(keys.Prefix(o.Namespace)),
		storeKey: keys.StoreKey(o.Namespace), noteKey: keys.CopyingKey(o.Namespace),
	}
	if c.Progress == nil {
		c.Progress = func(string, int) {}
	}
	if err := c.check(ctx); err != nil {
		return &c.report, err
	}
	if err := c.verify(ctx, c.From, "source"); err != nil {
		return &c.report, err
	}
	if c.unfinished { // what another run still writes is to fail before anything is compared
		if err := c.begin(ctx); err != nil {
			return &c.report, err
		}
	}
	const passes = 4
	for range passes {
		changed, err := c.pass(ctx)
		if err != nil {
			return &c.report, err
		}
		if changed {
			continue
		}
		commits, err := c.heads(ctx, c.From)
		if err != nil {
			return &c.report, err
		}
		same, err := c.prove(ctx, commits)
		if err != nil {
			return &c.report, err
		}
		if same {
			c.report.Sessions = len(commits)
			return &c.report, c.finish(ctx, digest(commits))
		}
	}
	return &c.report, fmt.Errorf("%w: the source is being written to: copy again when it is quiet", change.ErrConflict)
}

type copier struct {
	Copy
	report Report
	space  engine.Range

	storeKey, noteKey []byte
	record            []byte // the store record of the source
	there             []byte // that of the copy, or nil
	note              heads.CopyNote
	sealed            []byte // the note, as it stands under noteKey, or nil
	unfinished        bool   // the copy can't be opened
	ours              bool   // and the note is of this run
	batch             engine.Batch
}

// digest sums up the commit ids of all heads.
func digest(commits map[string]head.CommitID) [hash.Size]byte {
	var e codec.Encoder
	for _, id := range slices.Sorted(maps.Keys(commits)) {
		e.Text(id)
		e.ID(commits[id])
	}
	return hash.Heads.Sum(e.B)
}

// check refuses to overwrite another store, or what was written to a copy.
func (c *copier) check(ctx context.Context) error {
	if _, err := c.open(ctx, c.From); err != nil {
		return err
	}
	here, err := c.From.Get(ctx, c.storeKey)
	if err != nil {
		return err
	}
	c.record = here[0]
	vs, err := c.To.Get(ctx, c.storeKey, c.noteKey)
	if err != nil {
		return err
	}
	c.there, c.sealed = vs[0], vs[1]
	target := c.there
	if c.sealed != nil {
		if c.note, err = heads.OpenCopyNote(c.noteKey, c.sealed); err != nil {
			return codec.Corrupt(err, "note of the last copy, namespace %q", c.Namespace)
		}
		if len(c.note.Store) > 0 && c.there == nil {
			target, c.unfinished = c.note.Store, true
		}
	}
	if target != nil && !bytes.Equal(target, c.record) {
		return fmt.Errorf("%w (namespace %q)", ErrOtherStore, c.Namespace)
	}
	if target != nil && !c.unfinished && !c.Overwrite {
		commits, err := c.heads(ctx, c.To)
		if err != nil {
			return err
		}
		if c.note.Heads != digest(commits) {
			return fmt.Errorf("%w: sessions of the copy were changed since it was made: what was written there would be lost", change.ErrConflict)
		}
	}
	if target != nil {
		return nil
	}
	first := c.space
	first.Limit = 1
	for _, err := range c.To.Scan(ctx, first) {
		if err == nil {
			err = fmt.Errorf("%w (namespace %q, without its store record)", ErrOtherStore, c.Namespace)
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
	next, stop := iter.Pull2(c.To.Scan(ctx, c.space))
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
	c.report.Records = 1 // the store record
	step()
	for p, ferr := range c.From.Scan(ctx, c.space) {
		if ferr != nil {
			return false, ferr
		}
		if c.own(p.Key) {
			continue
		}
		if c.report.Records++; c.report.Records%1000 == 0 {
			c.Progress("records", c.report.Records)
		}
		for err == nil && more && bytes.Compare(have.Key, p.Key) < 0 {
			changed = true
			if err = c.add(ctx, func(b *engine.Batch) { b.Delete(bytes.Clone(have.Key)) }); err == nil {
				step()
			}
		}
		same := more && bytes.Equal(have.Key, p.Key)
		if err == nil && (!same || !bytes.Equal(have.Value, p.Value)) {
			changed = true
			err = c.add(ctx, func(b *engine.Batch) { b.Set(bytes.Clone(p.Key), bytes.Clone(p.Value)) })
		}
		if err != nil {
			return false, err
		}
		if same {
			step()
		}
	}
	for err == nil && more {
		changed = true
		if err = c.add(ctx, func(b *engine.Batch) { b.Delete(bytes.Clone(have.Key)) }); err == nil {
			step()
		}
	}
	if err == nil {
		err = c.flush(ctx)
	}
	return changed, err
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
	written, deleted, bytes := len(c.batch.Sets), len(c.batch.Deletes), 0
	for _, p := range c.batch.Sets {
		bytes += len(p.Key) + len(p.Value)
	}
	next := c.note
	next.Batch++
	err := c.apply(ctx, &c.batch, next)
	c.batch = engine.Batch{}
	if err == nil {
		c.report.Written += written
		c.report.Deleted += deleted
		c.report.Bytes += int64(bytes)
	}
	return err
}

// begin puts a note of this run in place of the store record, without which nobody
// can open the copy.
func (c *copier) begin(ctx context.Context) error {
	if c.ours {
		return nil
	}
	next := heads.CopyNote{Store: c.record}
	if _, err := rand.Read(next.Run[:]); err != nil {
		return err
	}
	var b engine.Batch
	b.Guard(c.storeKey, c.there)
	if c.there != nil {
		b.Delete(c.storeKey)
	}
	if err := c.apply(ctx, &b, next); err != nil {
		return err
	}
	c.unfinished, c.ours = true, true
	return nil
}

// finish makes a proven copy a store.
func (c *copier) finish(ctx context.Context, sum [hash.Size]byte) error {
	if !c.unfinished && c.note.Heads == sum {
		return nil
	}
	next := heads.CopyNote{Run: c.note.Run, Batch: c.note.Batch + 1, Heads: sum}
	var b engine.Batch
	if c.unfinished {
		b.Guard(c.storeKey, nil)
		b.Set(c.storeKey, c.record)
	} else { // one that was made otherwise, or written to
		b.Guard(c.storeKey, c.record)
	}
	err := c.apply(ctx, &b, next)
	if err == nil && c.there == nil {
		c.report.Written++
		c.report.Bytes += int64(len(c.storeKey) + len(c.record))
	}
	return err
}

// apply applies b, which moves the note to next.
func (c *copier) apply(ctx context.Context, b *engine.Batch, next heads.CopyNote) error {
	sealed := next.Seal(c.noteKey)
	b.Guard(c.noteKey, c.sealed)
	b.Set(c.noteKey, sealed)
	w := change.Change{Engine: c.To}
	err := w.Apply(ctx, b)
	if errors.Is(err, engine.ErrConflict) {
		vs, gerr := c.To.Get(ctx, c.noteKey)
		if gerr != nil {
			return w.Result(gerr)
		}
		if !w.Unknown || !bytes.Equal(vs[0], sealed) { // else it is by the first attempt
			return fmt.Errorf("%w: somebody else writes to the copy", change.ErrConflict)
		}
	} else if err != nil {
		return err
	}
	c.note, c.sealed = next, sealed
	return nil
}

// prove verifies the copy, as it will be, and reports whether its heads are those.
func (c *copier) prove(ctx context.Context, commits map[string]head.CommitID) (same bool, err error) {
	whole := overlay.New(c.To)
	if err := whole.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: c.storeKey, Value: c.record}}}); err != nil {
		return false, err
	}
	if err := c.verify(ctx, whole, "copy"); err != nil {
		return false, err
	}
	got, err := c.heads(ctx, whole)
	return maps.Equal(commits, got), err
}

// open opens a store that must exist.
func (c *copier) open(ctx context.Context, e engine.Engine) (history.Store, error) {
	record, err := namespace.Open(ctx, e, c.Namespace, true, nil)
	if err != nil {
		return history.Store{}, err
	}
	return namespace.Histories(e, &record), nil
}

// verify verifies a store.
func (c *copier) verify(ctx context.Context, e engine.Engine, phase string) error {
	s, err := c.open(ctx, e)
	if err != nil {
		return err
	}
	collector := reclaim.New(e, s.Space, s.Blobs, time.Now, 0) // which only checks its index
	r, err := verify.Check(ctx, s, collector, func(done int) { c.Progress(phase, done) })
	if err == nil && len(r.Problems) > 0 {
		err = fmt.Errorf("%s: %w", phase, r.Problems[0])
	}
	return err
}

// heads returns the commit ids of all sessions.
func (c *copier) heads(ctx context.Context, e engine.Engine) (map[string]head.CommitID, error) {
	s, err := c.open(ctx, e)
	if err != nil {
		return nil, err
	}
	commits := map[string]head.CommitID{}
	for q := (list.Query{Limit: 1000, Keep: func(*heads.About) bool { return true }}); ; {
		page, err := list.Sessions(ctx, s, q)
		if err != nil {
			return nil, err
		}
		for _, item := range page.Items {
			commits[item.About.ID] = item.Head.Commit
		}
		if q.After = page.Next; q.After == "" {
			return commits, nil
		}
	}
}
