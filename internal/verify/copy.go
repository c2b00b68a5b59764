// Copy has four steps:
//
//   - Check that the target is empty, or an earlier copy of the source.
//   - Verify the source.
//   - Compare all records of the source with those of the target, in order, and write those
//     that differ. Repeat this until nothing differs.
//   - Verify the target, and compare the heads.
//
// From its first write until the end, the target has a note in place of its store record, so
// that nobody can open it. Each batch guards the note and sets the next one. So only one
// caller can write to the target at a time: when another one takes over, the batches of the
// first one fail.

package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/session"
)

// ErrOtherStore says that the target holds another store than the source.
var ErrOtherStore = errors.New("turnstone: the destination holds another store")

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

// Copy makes o.To a copy of o.From. The error matches ErrOtherStore if the target holds
// another store. It matches history.ErrConflict if somebody else writes to the target, if
// sessions of an earlier copy were changed, or if the source is written to all the time.
func Copy(ctx context.Context, o CopyOptions) (*CopyReport, error) {
	c := copier{
		CopyOptions: o, space: engine.PrefixRange(keys.Prefix(o.Namespace)),
		storeKey: keys.StoreKey(o.Namespace), noteKey: keys.CopyingKey(o.Namespace), scrubKey: keys.ScrubKey(o.Namespace),
	}
	if c.Progress == nil {
		c.Progress = func(string, int) {}
	}
	err := c.copy(ctx)
	return &c.report, err
}

// A copier is one call of Copy.
type copier struct {
	CopyOptions
	report CopyReport
	space  engine.Range // all keys of the namespace

	storeKey, noteKey, scrubKey []byte

	record       []byte        // the store record of the source
	format       uint64        // what the store record says
	targetRecord []byte        // the store record that the target had, or nil
	note         head.CopyNote // the note of the target
	noteValue    []byte        // the value that stands under noteKey, or nil
	unfinished   bool          // the target has a note in place of its store record
	ours         bool          // and this copier has written the note
	batch        engine.Batch  // the differences that are not written yet
	changed      bool          // something differed in this pass
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
	if c.unfinished || c.targetRecord != nil && !bytes.Equal(c.targetRecord, c.record) {
		if err := c.begin(ctx); err != nil {
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
	if err := c.writeDifferences(ctx); err != nil || c.changed {
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
	target, err := c.readTarget(ctx)
	switch {
	case err != nil:
		return err
	case target == nil:
		empty := c.checkEmpty(ctx)
		if empty == nil {
			return nil
		}
		// The scan came after the read. Another process may have begun a copy, or made a store, between the two.
		store, note := c.targetRecord, c.noteValue
		if _, err := c.readTarget(ctx); err != nil {
			return err
		}
		if bytes.Equal(store, c.targetRecord) && bytes.Equal(note, c.noteValue) {
			return empty
		}
		return c.check(ctx)
	}
	same, err := c.isSource(target)
	switch {
	case err != nil:
		return err
	case !same:
		return fmt.Errorf("%w (namespace %q)", ErrOtherStore, c.Namespace)
	case c.unfinished || c.Overwrite:
		return nil
	}
	return c.checkUnchanged(ctx)
}

// readSource reads the store record of the source, which must be a store.
func (c *copier) readSource(ctx context.Context) error {
	if _, err := c.open(ctx, c.From); err != nil {
		return err
	}
	vs, err := c.From.Get(ctx, c.storeKey)
	if err != nil {
		return err
	}
	c.record = vs[0]
	s, err := head.DecodeStore(c.storeKey, c.record, c.Known)
	c.format = s.Format
	return codec.Corrupt(err, "store record of namespace %q", c.Namespace)
}

// checkSource fails if the source was upgraded since this copy began: what was copied may be
// of the new format, and the store record that the copy would get has the old one.
func (c *copier) checkSource(ctx context.Context) error {
	vs, err := c.From.Get(ctx, c.storeKey)
	if err == nil && !bytes.Equal(vs[0], c.record) {
		err = fmt.Errorf("%w: the source was upgraded meanwhile: copy again", history.ErrConflict)
	}
	return err
}

// readTarget reads the store record and the note of the target. It returns the store record
// that the target has, or will have when the copy is finished, or nil.
func (c *copier) readTarget(ctx context.Context) ([]byte, error) {
	vs, err := c.To.Get(ctx, c.storeKey, c.noteKey)
	if err != nil {
		return nil, err
	}
	c.targetRecord, c.noteValue = vs[0], vs[1]
	if c.noteValue == nil {
		return c.targetRecord, nil
	}
	if c.note, err = head.DecodeCopyNote(c.noteKey, c.noteValue); err != nil {
		return nil, codec.Corrupt(err, "note of the last copy, namespace %q", c.Namespace)
	}
	c.unfinished = c.targetRecord == nil && len(c.note.Store) > 0
	if c.unfinished {
		return c.note.Store, nil
	}
	return c.targetRecord, nil
}

// isSource reports whether a store record is that of the source, but for the format: the
// source may have been upgraded since it was copied.
func (c *copier) isSource(target []byte) (bool, error) {
	s, err := head.DecodeStore(c.storeKey, target, c.Known)
	if err != nil {
		return false, codec.Corrupt(err, "store record of namespace %q in the copy", c.Namespace)
	}
	s.Format = c.format
	return bytes.Equal(s.Encode(c.storeKey), c.record), nil
}

// checkEmpty refuses a target that has records but no store record.
func (c *copier) checkEmpty(ctx context.Context) error {
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

// checkUnchanged refuses a target with sessions that the copy would set back: an earlier copy that was written to
// since it was made, or an original that was written to since the source was copied from it.
func (c *copier) checkUnchanged(ctx context.Context) error {
	now, err := c.contents(ctx, c.To)
	if err != nil {
		return err
	}
	vs, err := c.From.Get(ctx, c.noteKey)
	if err != nil {
		return err
	}
	var source head.CopyNote
	if vs[0] != nil {
		if source, err = head.DecodeCopyNote(c.noteKey, vs[0]); err != nil {
			return codec.Corrupt(err, "note of the last copy, namespace %q", c.Namespace)
		}
	}
	if sum := now.digest(); sum != c.note.Heads && sum != source.Heads {
		return fmt.Errorf("%w: sessions of the copy were changed since it was made: what was written there would be lost", history.ErrConflict)
	}
	return nil
}
