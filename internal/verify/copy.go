// Copy has four steps:
//
//   - Check that the target is empty, or an earlier copy of the source.
//   - Verify the source.
//   - Compare all records of the source with those of the target, in order, and write those
//     that differ. Repeat this until nothing differs.
//   - Verify the target, and compare the heads.
//
// Package copying says how others are kept away from the target meanwhile.

package verify

import (
	"bytes"
	"context"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/copying"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/session"
)

// A CopyReport says what Copy did, as far as it got.
type CopyReport struct {
	Sessions int   // The sessions of the source. The target has the same heads.
	Records  int   // The records of the store.
	Written  int   // The records that were written, in all passes.
	Bytes    int64 // The keys and values of the written records.
	Deleted  int   // The records that only the target had, in all passes.
}

// CopyOptions say what to copy.
type CopyOptions struct {
	From, To  engine.Engine
	Namespace string
	Known     head.Formats // formats of stores that can be copied
	// Overwrite discards what was committed to an earlier copy.
	Overwrite bool
	// Progress, if set, is called with the phase and how far it has got. The phases
	// are "source" and "copy", which count sessions and blobs that were verified, and
	// "records", which counts records that were compared.
	Progress func(phase string, done int)
}

// Copy makes o.To a copy of o.From. The error matches copying.ErrOtherStore if the target holds
// another store. It matches history.ErrConflict if somebody else writes to the target, if
// sessions of an earlier copy were changed, or if the source is written to all the time.
func Copy(ctx context.Context, o CopyOptions) (*CopyReport, error) {
	c := copier{
		CopyOptions: o, space: engine.PrefixRange(keys.Prefix(o.Namespace)), storeKey: keys.StoreKey(o.Namespace),
		target: copying.Target{Engine: o.To, Namespace: o.Namespace, Known: o.Known},
	}
	if c.Progress == nil {
		c.Progress = func(string, int) {}
	}
	err := c.copy(ctx)
	c.report.Written += c.target.Written
	c.report.Bytes += c.target.Bytes
	c.report.Deleted = c.target.Deleted
	return &c.report, err
}

// A copier is one call of Copy.
type copier struct {
	CopyOptions
	report   CopyReport
	space    engine.Range // all keys of the namespace
	storeKey []byte
	source   head.Store // the store record of the source
	target   copying.Target
}

func (c *copier) copy(ctx context.Context) error {
	if err := c.check(ctx); err != nil {
		return err
	}
	if err := c.verify(ctx, c.From, "source"); err != nil {
		return err
	}
	// Take over from another caller that may still write, before anything is compared. An
	// upgrade changes nothing but the store record, which the first batch takes away.
	if c.target.Unfinished || c.target.Standing != nil && !bytes.Equal(c.target.Standing, c.target.Record) {
		if err := c.target.Begin(ctx); err != nil {
			return err
		}
	}
	const passes = 4
	for range passes {
		if done, err := c.pass(ctx); done || err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: the source is being written to: copy again when it is quiet", history.ErrConflict)
}

// pass compares all records and writes those that differ. If none differs, it verifies the copy
// and gives it its store record. done is true if the copy then has what the source has.
func (c *copier) pass(ctx context.Context) (done bool, err error) {
	c.report.Records = 1 // the store record
	differ, err := c.target.Compare(ctx, c.From, c.space, func() error {
		if c.report.Records++; c.report.Records%1000 == 0 {
			c.Progress("records", c.report.Records)
		}
		return nil
	})
	if err != nil || differ {
		return false, err
	}
	source, err := c.contents(ctx, c.From)
	if err != nil {
		return false, err
	}
	if err := c.checkSource(ctx); err != nil {
		return false, err
	}
	if same, err := c.prove(ctx, source); err != nil || !same {
		return false, err
	}
	c.report.Sessions = len(source.commits)
	return true, c.finish(ctx, source.digest())
}

// check reads what the source and the target are. It refuses to overwrite another store, or
// what was committed to an earlier copy.
func (c *copier) check(ctx context.Context) error {
	for _, e := range []engine.Engine{c.From, c.To} {
		if vs, err := e.Get(ctx, keys.EncryptionKey(c.Namespace)); err != nil {
			return err
		} else if vs[0] != nil {
			return fmt.Errorf("%w (namespace %q)", session.ErrEncrypted, c.Namespace)
		}
	}
	if err := c.readSource(ctx); err != nil {
		return err
	}
	found, err := c.target.Check(ctx, &c.source)
	if err == nil && c.target.Left {
		return fmt.Errorf("%w: namespace %q has moved from there to another database", history.ErrConflict, c.Namespace)
	}
	if err != nil || !found || c.target.Unfinished || c.Overwrite {
		return err
	}
	return c.checkUnchanged(ctx)
}

// readSource reads the store record of the source, which must be a store.
func (c *copier) readSource(ctx context.Context) error {
	var err error
	if c.source, err = session.OpenNamespace(ctx, c.From, session.Namespace{Name: c.Namespace, MustExist: true, Known: c.Known}); err != nil {
		return err
	}
	if c.source.Move.Phase != head.NotMoving {
		return fmt.Errorf("%w: namespace %q is being moved to database %q", history.ErrConflict, c.Namespace, c.source.Move.To)
	}
	copied := c.source
	copied.Move = head.Move{} // It is about the database of the source.
	c.target.Record = copied.Encode(c.storeKey)
	return nil
}

// checkSource fails if the source was upgraded since this copy began: what was copied may be
// of the new format, and the store record that the copy would get has the old one.
func (c *copier) checkSource(ctx context.Context) error {
	vs, err := c.From.Get(ctx, c.storeKey)
	if err == nil && !bytes.Equal(vs[0], c.source.Encode(c.storeKey)) {
		err = fmt.Errorf("%w: the source was upgraded meanwhile, or is being moved: copy again", history.ErrConflict)
	}
	return err
}

// checkUnchanged refuses a target with sessions that the copy would set back: an earlier copy that was written to
// since it was made, or an original that was written to since the source was copied from it.
func (c *copier) checkUnchanged(ctx context.Context) error {
	now, err := c.contents(ctx, c.To)
	if err != nil {
		return err
	}
	noteKey := keys.CopyingKey(c.Namespace)
	vs, err := c.From.Get(ctx, noteKey)
	if err != nil {
		return err
	}
	var source head.CopyNote
	if vs[0] != nil {
		if source, err = head.DecodeCopyNote(noteKey, vs[0]); err != nil {
			return codec.Corrupt(err, "note of the last copy, namespace %q", c.Namespace)
		}
	}
	if sum := now.digest(); sum != c.target.Note.Heads && sum != source.Heads {
		return fmt.Errorf("%w: sessions of the copy were changed since it was made: what was written there would be lost", history.ErrConflict)
	}
	return nil
}

// finish writes the store record of a copy that was proven, and notes the digest of its
// heads. It does nothing if the copy has both already.
func (c *copier) finish(ctx context.Context, sum [codec.HashSize]byte) error {
	t := &c.target
	if !t.Unfinished && t.Note.Heads == sum {
		return nil
	}
	next := head.CopyNote{Run: t.Note.Run, Batch: t.Note.Batch + 1, Heads: sum}
	var b engine.Batch
	if t.Unfinished || t.Standing == nil { // A source without sessions may differ from nothing.
		b.Guard(c.storeKey, nil)
		b.Set(c.storeKey, t.Record)
	} else { // The target has all records, but no note of a copy with these heads.
		b.Guard(c.storeKey, t.Record)
	}
	if err := t.Apply(ctx, &b, next); err != nil {
		return err
	}
	if t.Standing == nil {
		c.report.Written++
		c.report.Bytes += int64(len(c.storeKey) + len(t.Record))
	}
	return nil
}
