// Package moving moves a namespace from one database to another while it is used.
//
// The store record says where the namespace is. Every batch of a store guards the record, and every read looks at it,
// so nobody can use the database that a namespace has left. Three changes of the record make a move:
//
//	copying   The mover copies all records. Each batch that is applied meanwhile notes which keys it changes, and the
//	          mover copies these again: see head.Touched.
//	paused    Batches wait. The mover copies the last changes.
//	moved     The namespace is in the other database. This change alone decides it.
//
// A mover that is killed loses nothing: batches that wait too long go back to the phase copying, and the next mover goes
// on. After the last change whoever comes first gives the other database its store record.
//
// The other database has a note of the move until then, which says where the namespace comes from. Nobody takes the note
// over who has not changed the store record there first, or seen that the move was given up. So the mover that makes the
// last change knows that its copy is there.
//
//	moving.go   the Engine of a store, which follows its namespace; scan.go has its scans
//	follow.go   finds the database that a namespace is in
//	touched.go  what a batch notes
//	mover.go    the mover; remove.go removes what it has left behind, cancel.go gives up
package moving

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// An Opener returns the database of a name. Whoever gives the Opener closes the engines.
type Opener func(ctx context.Context, name string) (engine.Engine, error)

// A Namespace is what an Engine is for.
type Namespace struct {
	Name  string
	Known head.Formats // formats of store records that can be read
	Open  Opener       // nil if there are no other databases
}

// An Engine is the database that a namespace is in. It goes on with another one when the namespace has moved there.
type Engine struct {
	of      Namespace
	key     []byte // of the store record
	at      atomic.Pointer[place]
	looking chan struct{} // holds one element while a call looks, and may change at
}

// A place is a database that the namespace is in, with the store record that was read there last.
type place struct {
	engine engine.Engine
	record []byte     // the store record
	store  head.Store // the same, decoded
	since  time.Time  // when this record was read first
	// here ends when the namespace is found in another database, by a call of leave.
	here  context.Context
	leave context.CancelFunc
}

// New returns an Engine for a namespace that is in e and has a store record. Closing the Engine closes e.
func New(e engine.Engine, of Namespace, record head.Store) *Engine {
	m := &Engine{of: of, key: keys.StoreKey(of.Name), looking: make(chan struct{}, 1)}
	m.at.Store(newPlace(e, record.Encode(m.key), record))
	return m
}

func newPlace(e engine.Engine, record []byte, s head.Store) *place {
	p := &place{engine: e, record: record, store: s, since: time.Now()}
	p.here, p.leave = context.WithCancel(context.Background())
	return p
}

// after returns the place that comes after was, in whose database a store record was read now: it is in the same database
// or, if the record says that the namespace has moved, in the other one.
func (m *Engine) after(ctx context.Context, was *place, record []byte) (*place, error) {
	s, err := decode(m.of, record)
	if err != nil {
		return nil, err
	}
	if s.Move.Phase != head.Moved {
		now := *was
		now.record, now.store, now.since = record, s, time.Now()
		return &now, nil
	}
	e, record, s, err := follow(ctx, m.of, s)
	if err != nil {
		return nil, err
	}
	return newPlace(e, record, s), nil
}

// decode decodes a store record that must exist.
func decode(of Namespace, record []byte) (s head.Store, err error) {
	if record == nil {
		err = damage.ErrMissing
	} else {
		s, err = head.DecodeStore(keys.StoreKey(of.Name), record, of.Known)
	}
	return s, codec.Corrupt(err, "store record of namespace %q", of.Name)
}

// look reads the store record again, and returns the place of now. If another call has done so since the caller was told
// of was, look returns what that one has found.
func (m *Engine) look(ctx context.Context, was *place) (*place, error) {
	select {
	case m.looking <- struct{}{}:
		defer func() { <-m.looking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if now := m.at.Load(); now != was {
		return now, nil
	}
	vs, err := was.engine.Get(ctx, m.key)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(vs[0], was.record) {
		return was, nil
	}
	now, err := m.after(ctx, was, vs[0])
	if err != nil {
		return nil, err
	}
	m.at.Store(now)
	if now.here != was.here {
		was.leave()
	}
	return now, nil
}

// holds reports whether the namespace is still in the database of p, where a store record was read now.
func (m *Engine) holds(p *place, record []byte) (bool, error) {
	if bytes.Equal(record, p.record) {
		return true, nil
	}
	s, err := decode(m.of, record)
	return s.Move.Phase != head.Moved, err
}

// Get implements engine.Engine.
func (m *Engine) Get(ctx context.Context, ks ...[]byte) ([][]byte, error) {
	p := m.at.Load()
	if len(ks) == 0 {
		return p.engine.Get(ctx)
	}
	for {
		vs, err := p.engine.Get(ctx, append(slices.Clip(ks), m.key)...)
		if err != nil {
			return nil, err
		}
		ok, err := m.holds(p, vs[len(ks)])
		if err != nil {
			return nil, err
		}
		if ok {
			return vs[:len(ks):len(ks)], nil
		}
		if p, err = m.look(ctx, p); err != nil {
			return nil, err
		}
	}
}

// Apply implements engine.Engine. While the namespace is paused it waits.
func (m *Engine) Apply(ctx context.Context, b *engine.Batch) error {
	for p := m.at.Load(); ; {
		var err error
		if p.store.Move.Phase == head.Paused {
			if p, err = m.wait(ctx, p); err != nil {
				return err
			}
			continue
		}
		err = p.engine.Apply(ctx, m.batch(p, b))
		var c *engine.ConflictError
		if !errors.As(err, &c) || !bytes.Equal(c.Key, m.key) {
			return err
		}
		was := p
		if p, err = m.look(ctx, p); err != nil {
			return err
		}
		if p == was && slices.ContainsFunc(b.Guards, func(g engine.Pair) bool { return bytes.Equal(g.Key, m.key) && !g.Holds(p.record) }) {
			return c // The guard was the caller's own.
		}
	}
}

// batch returns what is applied for b.
func (m *Engine) batch(p *place, b *engine.Batch) *engine.Batch {
	out := &engine.Batch{Reclaim: b.Reclaim, Guards: make([]engine.Pair, 0, len(b.Guards)+1), Sets: b.Sets, Deletes: b.Deletes}
	out.Guard(m.key, p.record)
	out.Guards = append(out.Guards, b.Guards...)
	if p.store.Move.Phase == head.Copying && b.Ops() > 0 {
		var id [16]byte
		_, _ = rand.Read(id[:]) // It never fails.
		key := keys.TouchedKey(m.of.Name, id)
		note := touched(b)
		out.Sets = append(slices.Clip(b.Sets), engine.Pair{Key: key, Value: note.Encode(key)})
	}
	return out
}

// lookEvery is how often those who wait look.
const lookEvery = 5 * time.Millisecond

// wait waits a moment, while batches are to wait, and reads the store record again. When batches have waited long enough
// the mover is taken for dead, and wait ends the pause.
func (m *Engine) wait(ctx context.Context, p *place) (*place, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(lookEvery):
	}
	if now := m.at.Load(); now != p || len(m.looking) > 0 { // Somebody else has looked, or does.
		return now, nil
	}
	now, err := m.look(ctx, p)
	if err != nil || now != p || time.Since(p.since) < time.Duration(p.store.Move.Wait) {
		return now, err
	}
	next := p.store
	next.Move.Phase = head.Copying
	b := engine.Batch{Guards: []engine.Pair{{Key: m.key, Value: p.record}}, Reclaim: true}
	b.Set(m.key, next.Encode(m.key))
	if err := p.engine.Apply(ctx, &b); err != nil && !errors.Is(err, engine.ErrConflict) && !errors.Is(err, engine.ErrUnknown) {
		return nil, err
	}
	return m.look(ctx, p)
}

// Vacuum implements engine.Engine.
func (m *Engine) Vacuum(ctx context.Context) error { return m.at.Load().engine.Vacuum(ctx) }

// Limits implements engine.Engine. It leaves room for the note that a batch gets while the namespace is copied.
func (m *Engine) Limits() engine.Limits {
	l := m.at.Load().engine.Limits()
	l.BatchOps--
	l.BatchBytes -= noteBytes
	return l
}

// Close implements engine.Engine.
func (m *Engine) Close() error { return m.at.Load().engine.Close() }

// Notify implements engine.Notifier. It does nothing if the database can't notify.
func (m *Engine) Notify(topic string) {
	if n, ok := m.at.Load().engine.(engine.Notifier); ok {
		n.Notify(topic)
	}
}

// Listen implements engine.Notifier. It follows the namespace. In a database that can't notify it hears nothing.
func (m *Engine) Listen(ctx context.Context, heard func(topic string)) error {
	for {
		p := m.at.Load()
		if err := p.listen(ctx, heard); p.here.Err() == nil {
			return err
		}
	}
}

// listen listens as long as the namespace is in the database.
func (p *place) listen(ctx context.Context, heard func(topic string)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.here, cancel)()
	if n, ok := p.engine.(engine.Notifier); ok {
		return n.Listen(ctx, heard)
	}
	<-ctx.Done()
	return ctx.Err()
}
