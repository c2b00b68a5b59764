// Package copying makes a namespace of one database equal to that of another one.
//
//	target.go    writes to the copy, by one caller at a time
//	compare.go   finds what differs
package copying

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
	"github.com/turnstonedb/turnstone/internal/keys"
)

// ErrOtherStore says that the target holds another store than the source.
var ErrOtherStore = errors.New("turnstone: the destination holds another store")

// A Target is a namespace that is being made equal to another one.
//
// From the first write until the copy is whole, the target has a note in place of its store record, so that nobody can
// open it. Each batch guards the note and sets the next one. So only one caller can write to the target at a time: when
// another one takes over, the batches of the first one fail.
type Target struct {
	Engine    engine.Engine
	Namespace string
	Record    []byte       // the store record that the copy will have
	Run       [16]byte     // of the note; random if it is zero
	From      [16]byte     // of head.Move if the namespace is being moved
	Known     head.Formats // formats of store records that can be read

	Standing   []byte        // the store record that the target has, or nil
	Note       head.CopyNote // the note that the target has, or a zero one
	noteValue  []byte        // the value of the note, or nil
	Left       bool          // the store record that the target has says that the namespace has moved
	Unfinished bool          // the target has a note in place of its store record
	ours       bool          // and this Target has written the note
	batch      engine.Batch  // the differences that are not written yet

	Written int   // records that were written
	Bytes   int64 // of those, keys and values
	Deleted int   // records that were deleted
}

func (t *Target) storeKey() []byte { return keys.StoreKey(t.Namespace) }
func (t *Target) noteKey() []byte  { return keys.CopyingKey(t.Namespace) }

// read reads the store record and the note of the target. It returns the store record that the target has, or will have
// when a copy that was begun is finished, or nil.
func (t *Target) read(ctx context.Context) (record []byte, err error) {
	vs, err := t.Engine.Get(ctx, t.storeKey(), t.noteKey())
	if err != nil {
		return nil, err
	}
	t.Standing, t.noteValue, t.Note, t.Left, t.Unfinished = vs[0], vs[1], head.CopyNote{}, false, false
	if t.Standing != nil {
		s, err := head.DecodeStore(t.storeKey(), t.Standing, t.Known)
		if err != nil {
			return nil, codec.Corrupt(err, "store record of namespace %q in the copy", t.Namespace)
		}
		t.Left = s.Move.Phase == head.Moved
	}
	if t.noteValue == nil {
		return t.Standing, nil
	}
	if t.Note, err = head.DecodeCopyNote(t.noteKey(), t.noteValue); err != nil {
		return nil, codec.Corrupt(err, "note of the last copy, namespace %q", t.Namespace)
	}
	if t.Unfinished = len(t.Note.Store) > 0 && (t.Standing == nil || t.Left); t.Unfinished {
		return t.Note.Store, nil
	}
	return t.Standing, nil
}

// Check reads the target, and reports whether it has the source's store, or a copy of it that was begun. If it has
// anything else, the error is ErrOtherStore. It is history.ErrConflict if something else was begun there: a copy and not
// a move, or a move from another database.
func (t *Target) Check(ctx context.Context, source *head.Store) (found bool, err error) {
	for {
		record, err := t.read(ctx)
		if err != nil {
			return false, err
		}
		if record != nil {
			s, err := head.DecodeStore(t.storeKey(), record, t.Known)
			if err == nil && !s.Same(source) {
				return true, fmt.Errorf("%w (namespace %q)", ErrOtherStore, t.Namespace)
			}
			if err == nil && t.Unfinished && t.Note.From != t.From {
				return true, fmt.Errorf("%w: namespace %q is being copied there, or moved there from another database", history.ErrConflict, t.Namespace)
			}
			return true, codec.Corrupt(err, "store record of namespace %q in the copy", t.Namespace)
		}
		empty, err := t.empty(ctx)
		if empty || err != nil {
			return false, err
		}
		// The scan came after the read. Another process may have begun a copy, or made a store, between the two.
		note := t.noteValue
		again, err := t.read(ctx)
		if err != nil {
			return false, err
		}
		if again == nil && bytes.Equal(note, t.noteValue) {
			return false, fmt.Errorf("%w (namespace %q, without its store record)", ErrOtherStore, t.Namespace)
		}
	}
}

// empty reports whether the target has no record.
func (t *Target) empty(ctx context.Context) (bool, error) {
	first := engine.PrefixRange(keys.Prefix(t.Namespace))
	first.Limit = 1
	for _, err := range t.Engine.Scan(ctx, first) {
		return false, err
	}
	return true, nil
}

// Begin puts a note of this Target in place of the store record, unless it has done so. Nobody can open the target
// without its store record. A store record that says that the namespace has moved stays: it leads those who look for the
// namespace to where it is.
func (t *Target) Begin(ctx context.Context) error {
	if t.ours {
		return nil
	}
	next := head.CopyNote{Store: t.Record, Run: t.Run, From: t.From}
	if next.Run == [16]byte{} {
		if _, err := rand.Read(next.Run[:]); err != nil {
			return err
		}
	}
	var b engine.Batch
	b.Guard(t.storeKey(), t.Standing)
	if t.Standing != nil && !t.Left {
		b.Delete(t.storeKey())
	}
	if err := t.Apply(ctx, &b, next); err != nil {
		return err
	}
	t.Unfinished, t.ours = true, true
	return nil
}

// set makes the batch write a record, or delete it if value is nil.
func (t *Target) set(key, value []byte) {
	if value == nil {
		t.batch.Delete(bytes.Clone(key))
	} else {
		t.batch.Set(bytes.Clone(key), bytes.Clone(value))
	}
}

// flushLarge applies the batch if it is large.
func (t *Target) flushLarge(ctx context.Context) error {
	const maxBytes, maxOps = 1 << 20, 5000
	if t.batch.Bytes() < maxBytes && t.batch.Ops() < maxOps {
		return nil
	}
	return t.Flush(ctx)
}

// Flush applies the batch, if there is anything in it.
func (t *Target) Flush(ctx context.Context) error {
	if t.batch.Ops() == 0 {
		return nil
	}
	if err := t.Begin(ctx); err != nil {
		return err
	}
	written, deleted, size := len(t.batch.Sets), len(t.batch.Deletes), int64(0)
	for _, p := range t.batch.Sets {
		size += int64(len(p.Key) + len(p.Value))
	}
	next := t.Note
	next.Batch++
	b := t.batch
	t.batch = engine.Batch{}
	if err := t.Apply(ctx, &b, next); err != nil {
		return err
	}
	t.Written += written
	t.Deleted += deleted
	t.Bytes += size
	return nil
}

// Discard removes the records of a copy that is not finished, and its note.
func (t *Target) Discard(ctx context.Context) error {
	if err := t.Begin(ctx); err != nil { // From now on nobody else writes to the target.
		return err
	}
	for p, err := range t.Engine.Scan(ctx, engine.PrefixRange(keys.Prefix(t.Namespace))) {
		if err != nil {
			return err
		}
		if bytes.Equal(p.Key, t.storeKey()) || bytes.Equal(p.Key, t.noteKey()) {
			continue
		}
		t.set(p.Key, nil)
		if err := t.flushLarge(ctx); err != nil {
			return err
		}
	}
	if err := t.Flush(ctx); err != nil {
		return err
	}
	b := engine.Batch{Guards: []engine.Pair{{Key: t.noteKey(), Value: t.noteValue}}}
	b.Delete(t.noteKey())
	_, err := engine.ApplyUntilKnown(ctx, t.Engine, &b)
	return err
}

// Apply applies b and replaces the note by next. The error is history.ErrConflict if somebody else has replaced the
// note.
func (t *Target) Apply(ctx context.Context, b *engine.Batch, next head.CopyNote) error {
	value := next.Encode(t.noteKey())
	b.Guard(t.noteKey(), t.noteValue)
	b.Set(t.noteKey(), value)
	w := history.Change{Engine: t.Engine}
	err := w.Apply(ctx, b)
	if errors.Is(err, engine.ErrConflict) {
		err = t.resolve(ctx, &w, value)
	}
	if err != nil {
		return err
	}
	t.Note, t.noteValue = next, value
	return nil
}

// resolve returns nil if a batch stands although the last attempt to apply it failed with a conflict: an earlier
// attempt, whose outcome was unknown, has applied it. value is the note of the batch.
func (t *Target) resolve(ctx context.Context, w *history.Change, value []byte) error {
	vs, err := t.Engine.Get(ctx, t.noteKey())
	if err != nil {
		return w.Result(err)
	}
	if w.Unknown && bytes.Equal(vs[0], value) {
		return nil
	}
	return fmt.Errorf("%w: somebody else writes to the copy", history.ErrConflict)
}
