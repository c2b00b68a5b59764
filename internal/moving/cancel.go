package moving

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/copying"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Cancel gives up a move: the namespace stays in o.From. It removes what o.To has of the copy, unless o.To is nil.
func Cancel(ctx context.Context, o Options) error {
	m := &mover{Options: o, key: keys.StoreKey(o.Of.Name)}
	m.Progress = func(string, int) {}
	ctx = engine.ForMaintenance(ctx)
	for {
		m.store = head.Store{}
		if err := m.look(ctx); err != nil {
			return err
		}
		if m.store.Move.Phase == head.Moved {
			return &engine.MovedError{Path: fmt.Sprintf("namespace %q", o.Of.Name), To: m.store.Move.To}
		}
		if m.store.Move.Phase == head.NotMoving {
			break
		}
		next := m.store
		next.Move = head.Move{}
		if err := m.set(ctx, next); err != nil && !errors.Is(err, engine.ErrConflict) {
			return err
		}
	}
	if _, err := remove(ctx, m.From, keys.TouchedRange(o.Of.Name), engine.Pair{Key: m.key, Value: m.record}, m.Progress); err != nil || o.To == nil {
		return err
	}
	return m.discard(ctx)
}

// discard removes a copy that is not finished.
func (m *mover) discard(ctx context.Context) error {
	m.target = copying.Target{Engine: m.To, Namespace: m.Of.Name, Known: m.Of.Known, Record: m.record}
	if _, err := m.target.Check(ctx, &m.store); err != nil || !m.target.Unfinished {
		return err
	}
	return m.target.Discard(ctx)
}
