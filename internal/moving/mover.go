package moving

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/copying"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A Report says what Move did.
type Report struct {
	Records int           // that were compared
	Written int           // that were written to the other database, again when they have changed
	Bytes   int64         // of those, keys and values
	Deleted int           // that only the other database had
	Changes int           // batches that were applied meanwhile
	Removed int           // records that were removed from the database that the namespace has left
	Paused  time.Duration // how long batches waited, in all
}

// Options say what to move.
type Options struct {
	From, To engine.Engine
	Name     string // of the other database
	Of       Namespace
	// Pause is how long batches wait at most at a time; zero stands for DefaultPause. Mostly they wait some milliseconds.
	Pause time.Duration
	// Progress, if set, is called with a phase and a number. The phases "copy" and "check" count the records that were
	// compared, "changes" counts the batches that were applied meanwhile, and "remove" the records that were removed.
	Progress func(phase string, done int)
}

const (
	// A pause begins when at most fewChanges batches were applied since the last look, or after mostLooks looks.
	fewChanges, mostLooks = 64, 50
	// mostPauses is how often one call of Move makes batches wait.
	mostPauses = 10
	// DefaultPause is that of Options.
	DefaultPause = 5 * time.Second
)

// errLate: batches should not wait longer.
var errLate = errors.New("the pause is over")

// A mover is one call of Move.
type mover struct {
	Options
	report Report
	key    []byte // of the store record
	record []byte // the store record of the source
	store  head.Store
	target copying.Target
}

// Move moves a namespace to another database while it is used. If it is interrupted, the next call goes on. The error
// matches copying.ErrOtherStore if the other database has another store, and history.ErrConflict if the namespace is
// being moved elsewhere, if another call has taken over or given up, or if batches are too many.
func Move(ctx context.Context, o Options) (*Report, error) {
	m := &mover{Options: o, key: keys.StoreKey(o.Of.Name)}
	if m.Pause = cmp.Or(m.Pause, DefaultPause); m.Progress == nil {
		m.Progress = func(string, int) {}
	}
	err := m.move(engine.ForMaintenance(ctx))
	m.report.Written, m.report.Bytes, m.report.Deleted = m.target.Written, m.target.Bytes, m.target.Deleted
	return &m.report, err
}

func (m *mover) move(ctx context.Context) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	if m.store.Move.Phase != head.Moved {
		if err := m.copy(ctx); err != nil {
			return err
		}
		if err := m.change(ctx); err != nil {
			return err
		}
	}
	if _, err := arrive(ctx, m.To, m.Of, &m.store); err != nil {
		return fmt.Errorf("database %q: %w", m.Name, err)
	}
	return m.clear(ctx)
}

// look reads the store record of the source. It fails if another mover has taken over since this one has begun.
func (m *mover) look(ctx context.Context) error {
	vs, err := m.From.Get(ctx, m.key)
	if err != nil {
		return err
	}
	s, err := decode(m.Of, vs[0])
	if err != nil {
		return err
	}
	if run := m.store.Move.Run; run != [16]byte{} && (s.Move.Run != run || s.Move.Phase == head.NotMoving) {
		return fmt.Errorf("%w: another call moves namespace %q, or has given up", history.ErrConflict, m.Of.Name)
	}
	m.record, m.store = vs[0], s
	return nil
}

// set replaces the store record of the source, if nobody else has. It does not if the error is engine.ErrConflict.
func (m *mover) set(ctx context.Context, next head.Store) error {
	value := next.Encode(m.key)
	b := engine.Batch{Guards: []engine.Pair{{Key: m.key, Value: m.record}}, Reclaim: true} // A full disk is a reason to move.
	b.Set(m.key, value)
	unknown, err := engine.ApplyUntilKnown(ctx, m.From, &b)
	if unknown && errors.Is(err, engine.ErrConflict) { // An attempt whose outcome was unknown may have been first.
		vs, failed := m.From.Get(ctx, m.key)
		if failed != nil {
			return fmt.Errorf("%w: %w", history.ErrOutcomeUnknown, failed)
		}
		if bytes.Equal(vs[0], value) {
			err = nil
		}
	}
	if err == nil {
		m.record, m.store = value, next
	}
	if unknown && err != nil && !errors.Is(err, engine.ErrConflict) {
		err = fmt.Errorf("%w: %w", history.ErrOutcomeUnknown, err)
	}
	return err
}

// begin marks the source as being copied by this mover, unless the namespace has moved already.
func (m *mover) begin(ctx context.Context) error {
	for {
		if err := m.look(ctx); err != nil {
			return err
		}
		move := &m.store.Move
		switch {
		case move.Phase == head.Moved && move.To != m.Name:
			return &engine.MovedError{Path: fmt.Sprintf("namespace %q", m.Of.Name), To: move.To}
		case move.Phase != head.NotMoving && move.To != m.Name:
			return fmt.Errorf("%w: namespace %q is being moved to %q already: go on with that, or give it up", history.ErrConflict, m.Of.Name, move.To)
		case move.Phase == head.Moved:
			return nil
		}
		next := m.store
		next.Move = head.Move{Phase: head.Copying, From: move.From, To: m.Name, Pauses: move.Pauses, Wait: uint64(m.Pause)}
		_, _ = rand.Read(next.Move.Run[:]) // It never fails.
		if next.Move.From == [16]byte{} {
			_, _ = rand.Read(next.Move.From[:])
		}
		there := m.store
		there.Move, there.Moves = head.Move{}, m.store.Moves+1
		m.target = copying.Target{Engine: m.To, Namespace: m.Of.Name, Known: m.Of.Known, Record: there.Encode(m.key), Run: next.Move.Run, From: next.Move.From}
		if found, err := m.target.Check(ctx, &m.store); err != nil {
			return err
		} else if found && !m.target.Unfinished && !m.target.Left {
			return fmt.Errorf("%w: the other database has namespace %q already: is it the same one, or a copy?", history.ErrConflict, m.Of.Name)
		}
		if err := m.set(ctx, next); !errors.Is(err, engine.ErrConflict) {
			return err
		}
	}
}

// copy copies all records, reads them back, and copies what has changed meanwhile, until little is left.
func (m *mover) copy(ctx context.Context) error {
	if err := m.target.Begin(ctx); err != nil {
		return err
	}
	if err := m.look(ctx); err != nil { // It was given up before there was a note to be removed.
		return errors.Join(err, m.target.Discard(ctx))
	}
	for _, phase := range []string{"copy", "check"} {
		done := 0
		_, err := m.target.Compare(ctx, m.From, engine.PrefixRange(keys.Prefix(m.Of.Name)), func() error {
			if done++; done%1000 == 0 {
				m.Progress(phase, done)
			}
			return nil
		})
		if err != nil {
			return err
		}
		m.report.Records = done
		m.Progress(phase, done)
	}
	for range mostLooks {
		switch n, err := m.drain(ctx, time.Time{}); {
		case errors.Is(err, engine.ErrConflict):
			if err := m.look(ctx); err != nil {
				return err
			}
		case err != nil || n <= fewChanges:
			return err
		}
	}
	return nil
}

// change makes batches wait, copies the last changes, and then makes the one change that moves the namespace.
func (m *mover) change(ctx context.Context) error {
	for range mostPauses {
		begun := time.Now()
		err := m.pause(ctx)
		m.report.Paused += time.Since(begun)
		if err == nil {
			return nil
		}
		ended := m.endPause(ctx)
		if !errors.Is(err, engine.ErrConflict) && !errors.Is(err, errLate) {
			return err
		}
		if ended != nil {
			return ended
		}
		if _, err := m.drain(ctx, time.Time{}); err != nil && !errors.Is(err, engine.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("%w: in %d pauses of up to %v the last changes of namespace %q could not be copied: move it when less is written, or with a longer pause", history.ErrConflict, mostPauses, m.Pause, m.Of.Name)
}

// endPause lets batches go on, also if ctx has ended, unless those who wait have done so.
func (m *mover) endPause(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.Pause)
	defer cancel()
	if err := m.look(ctx); err != nil || m.store.Move.Phase != head.Paused {
		return err
	}
	next := m.store
	next.Move.Phase = head.Copying
	if err := m.set(ctx, next); !errors.Is(err, engine.ErrConflict) {
		return err
	}
	return m.look(ctx)
}

// pause makes batches wait, copies the last changes, and makes the change that moves the namespace. The error is errLate
// if that takes more than half of the time for which batches wait, and engine.ErrConflict if those have ended the pause.
func (m *mover) pause(ctx context.Context) error {
	next := m.store
	next.Move.Phase = head.Paused
	next.Move.Pauses++
	if err := m.set(ctx, next); err != nil {
		return err
	}
	for end := time.Now().Add(m.Pause / 2); ; {
		n, err := m.drain(ctx, end)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
	}
	next.Move.Phase = head.Moved
	return m.set(ctx, next)
}

// drain copies what some batches have changed, and removes their notes. It returns how many there were. The notes of
// batches that are applied meanwhile stay for the next call. If end is set and has come, drain stops with errLate.
func (m *mover) drain(ctx context.Context, end time.Time) (changes int, err error) {
	const keysAtOnce = 32
	late := func() error {
		if !end.IsZero() && time.Now().After(end) {
			return errLate
		}
		return nil
	}
	whole, begins, done, err := m.notes(ctx)
	if err != nil || len(done.Deletes) == 0 {
		return 0, err
	}
	for some := range slices.Chunk(whole, keysAtOnce) {
		if err := late(); err != nil {
			return 0, err
		}
		if err := m.target.CopyKeys(ctx, m.From, some); err != nil {
			return 0, err
		}
	}
	for _, begin := range begins {
		if _, err := m.target.Compare(ctx, m.From, engine.PrefixRange(begin), late); err != nil {
			return 0, err
		}
	}
	if _, err := engine.ApplyUntilKnown(ctx, m.From, done); err != nil {
		return 0, err
	}
	m.report.Changes += len(done.Deletes)
	m.Progress("changes", m.report.Changes)
	return len(done.Deletes), nil
}

// notes reads some notes of changes. It returns the keys that they have, what others begin with, and the batch that
// removes the notes.
func (m *mover) notes(ctx context.Context) (whole, begins [][]byte, done *engine.Batch, err error) {
	r := keys.TouchedRange(m.Of.Name)
	r.Limit = 1000
	prefix := keys.Prefix(m.Of.Name)
	done = &engine.Batch{Guards: []engine.Pair{{Key: m.key, Value: m.record}}, Reclaim: true}
	for p, err := range m.From.Scan(ctx, r) {
		if err != nil {
			return nil, nil, nil, err
		}
		note, err := head.DecodeTouched(p.Key, p.Value)
		if err != nil {
			return nil, nil, nil, codec.Corrupt(err, "note of a change, at key %x", p.Key)
		}
		for _, k := range note.Keys {
			k = append(slices.Clip(prefix), k...)
			if note.Width > 0 {
				begins = append(begins, k)
			} else {
				whole = append(whole, k)
			}
		}
		done.Delete(bytes.Clone(p.Key))
	}
	sorted := func(ks [][]byte) [][]byte {
		slices.SortFunc(ks, bytes.Compare)
		return slices.CompactFunc(ks, bytes.Equal)
	}
	return sorted(whole), sorted(begins), done, nil
}
