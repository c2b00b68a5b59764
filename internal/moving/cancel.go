package moving

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/copying"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Cancel gives up a move: the namespace stays in o.From. It removes what o.To has of the copy, unless o.To is nil.
func Cancel(ctx context.Context, o Options) error {
	m := &mover{Options: o, key: keys.StoreKey(o.Of.Name)}
	m.Progress = func(string, int) {}
	ctx = engine.ForMaintenance(ctx)
	if err := m.stay(ctx); err != nil {
		return err
	}
	guard := []engine.Pair{{Key: m.key, Value: m.record}}
	_, err := remove(ctx, m.From, keys.TouchedRange(o.Of.Name), guard, m.Progress)
	if err == nil && o.To != nil {
		err = m.discard(ctx)
	}
	if errors.Is(err, engine.ErrConflict) {
		return m.begunAnew()
	}
	return err
}

func (m *mover) begunAnew() error {
	return fmt.Errorf("%w: another move of namespace %q has begun", history.ErrConflict, m.Of.Name)
}

// stay takes the move out of the store record of the source.
func (m *mover) stay(ctx context.Context) error {
	for {
		m.store = head.Store{}
		if err := m.look(ctx); err != nil {
			return err
		}
		switch m.store.Move.Phase {
		case head.Moved:
			return &engine.MovedError{Path: fmt.Sprintf("namespace %q", m.Of.Name), To: m.store.Move.To}
		case head.NotMoving:
			return nil
		}
		next := m.store
		next.Move, next.Moves = head.Move{From: m.store.Move.From}, m.store.Moves+1
		if err := m.set(ctx, next); err != nil && !errors.Is(err, engine.ErrConflict) {
			return err
		}
	}
}

// discard removes a copy whose move was given up. Its note says that the copy comes from this database. The note is read
// before the store record of the source: if that has no move then, the move of the note was given up, and the note is
// taken over only as it was read.
func (m *mover) discard(ctx context.Context) error {
	if m.store.Move.From == [16]byte{} { // There never was a move.
		return nil
	}
	m.target = copying.Target{Engine: m.To, Namespace: m.Of.Name, Known: m.Of.Known, Record: m.record, From: m.store.Move.From}
	if _, err := m.target.Check(ctx, &m.store); err != nil || !m.target.Unfinished {
		return err
	}
	if err := m.look(ctx); err != nil {
		return err
	}
	if m.store.Move.Phase != head.NotMoving {
		return m.begunAnew()
	}
	return m.target.Discard(ctx)
}
