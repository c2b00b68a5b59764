package moving

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// clear removes what the database that the namespace has left still has of it, but for the store record. Each batch
// guards that record, and that nobody moves the namespace back: such a move has a note there from its first write on.
func (m *mover) clear(ctx context.Context) error {
	noteKey := keys.CopyingKey(m.Of.Name)
	vs, err := m.From.Get(ctx, noteKey)
	if err != nil {
		return err
	}
	note, err := decodeNote(m.Of, vs[0])
	if err != nil {
		return err
	}
	back := fmt.Errorf("%w: namespace %q is being moved back", history.ErrConflict, m.Of.Name)
	if len(note.Store) > 0 {
		return back
	}
	guards := []engine.Pair{{Key: m.key, Value: m.record}, {Key: noteKey}}
	if vs[0] != nil { // of a copy that is whole
		b := engine.Batch{Guards: []engine.Pair{guards[0], {Key: noteKey, Value: vs[0]}}, Reclaim: true}
		b.Delete(noteKey)
		_, err = engine.ApplyUntilKnown(ctx, m.From, &b)
	}
	if err == nil || errors.Is(err, engine.ErrConflict) {
		m.report.Removed, err = remove(ctx, m.From, engine.PrefixRange(keys.Prefix(m.Of.Name)), guards, m.Progress)
	}
	if errors.Is(err, engine.ErrConflict) {
		return back
	}
	return err
}

// remove removes the records of a range but those that guards are of. Each batch has these guards.
func remove(ctx context.Context, e engine.Engine, r engine.Range, guards []engine.Pair, progress func(phase string, done int)) (removed int, err error) {
	const atOnce = 1000
	b := engine.Batch{}
	flush := func() error {
		if len(b.Deletes) == 0 {
			return nil
		}
		b.Guards, b.Reclaim = guards, true
		if _, err := engine.ApplyUntilKnown(ctx, e, &b); err != nil {
			return err
		}
		removed += len(b.Deletes)
		progress("remove", removed)
		b = engine.Batch{}
		return nil
	}
	for p, err := range e.Scan(ctx, r) {
		if err != nil {
			return removed, err
		}
		if slices.ContainsFunc(guards, func(g engine.Pair) bool { return bytes.Equal(g.Key, p.Key) }) {
			continue
		}
		if b.Delete(bytes.Clone(p.Key)); len(b.Deletes) == atOnce {
			if err := flush(); err != nil {
				return removed, err
			}
		}
	}
	return removed, flush()
}
