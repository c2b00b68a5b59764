package commit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/feed"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/session"
)

// This file makes a session of what came in a bundle. The session gets a new incarnation, and its ancestors have others
// than where it comes from. Its nodes and commits keep their ids: those of nodes don't depend on the session, and the
// first commit follows the genesis that the origin says.

// An Arrival is a session, or a copy of what sessions inherit, that comes in a bundle. It is hidden until it is shown,
// or a fork that is shown holds it.
type Arrival struct {
	hidden
	held bool // a fork that was shown holds it
}

// Arrive begins an arrival. o is the origin of a session, or nil for a copy. Tombstones may have the epochs up to the
// one that is given.
func (st *Lifecycle) Arrive(ctx context.Context, o *head.Origin, epoch uint64) (*Arrival, error) {
	a := &Arrival{hidden: hidden{Lifecycle: st}}
	return a, a.begin(ctx, o, epoch)
}

// ErrRemoved says that a vacuum has removed an arrival before it was shown. It has to be written anew.
var ErrRemoved = errors.New("removed by a vacuum")

// removed returns err, or ErrRemoved if it is a conflict: only a vacuum changes what is hidden.
func removed(err error) error {
	if errors.Is(err, engine.ErrConflict) {
		return fmt.Errorf("%w: %w", ErrRemoved, err)
	}
	return err
}

// Incarnation returns the one that the arrival has got.
func (a *Arrival) Incarnation() head.Incarnation { return a.inc }

// End returns where the arrival stands after the last turn that was added.
func (a *Arrival) End() *head.State { return &a.end }

// Add adds a turn, whose commit follows the last one.
func (a *Arrival) Add(ctx context.Context, t *history.Turn) error { return removed(a.add(ctx, t)) }

// Flush stores the turns that were added.
func (a *Arrival) Flush(ctx context.Context) error { return removed(a.flush(ctx)) }

// A Stone is a tombstone of the node whose id begins with ID.
type Stone struct {
	ID [8]byte
	head.Tombstone
}

// Hide adds tombstones with their epochs, which have to be those that Arrive allows.
func (a *Arrival) Hide(ctx context.Context, stones []Stone) error {
	for some := range slices.Chunk(stones, batchEntries) {
		next, b := a.life.Next(), engine.Batch{}
		for _, s := range some {
			a.setStone(&b, s.ID, s.Tombstone, &next)
		}
		if err := a.advance(ctx, &b, next); err != nil {
			return removed(err)
		}
	}
	return nil
}

// HideNow is Hide for a copy: the tombstones have the epochs of their batches.
func (a *Arrival) HideNow(ctx context.Context, stones []Stone) error {
	by := make(map[[8]byte]head.Tombstone, len(stones))
	for _, s := range stones {
		by[s.ID] = s.Tombstone
	}
	return removed(a.hide(ctx, by))
}

// Store stores records of the arrival that nobody reads before it is shown.
func (a *Arrival) Store(ctx context.Context, pairs []engine.Pair) error {
	for len(pairs) > 0 {
		var b engine.Batch
		for len(pairs) > 0 && b.Ops() < batchEntries && b.Bytes()+len(pairs[0].Value) <= segmentBytes {
			b.Set(pairs[0].Key, pairs[0].Value)
			pairs = pairs[1:]
		}
		if err := a.advance(ctx, &b, a.life.Next()); err != nil {
			return removed(err)
		}
	}
	return nil
}

// RecordPairs returns what stores a record of an incarnation.
func (st *Lifecycle) RecordPairs(inc head.Incarnation, r *session.Record) []engine.Pair {
	key := st.Space.Record(inc, r.Key)
	pairs := []engine.Pair{{Key: key, Value: r.Encode(key)}}
	if session.RecordListed(r.Key) {
		key := st.Space.Listing(r.Key, inc)
		pairs = append(pairs, engine.Pair{Key: key, Value: session.EncodeListing(key)})
	}
	return pairs
}

// A Showing is what an arrival is shown with.
type Showing struct {
	About  head.About             // Show sets the incarnation, the parent of an attached fork, and the times that are zero.
	Origin head.Origin            // the one with which the arrival was begun
	Copy   *Arrival               // the first ancestor, if that came in the bundle as a copy
	Now    bool                   // the epoch of the last ancestor becomes the one that its lifecycle record has now
	Check  func(*head.Life) error // refuses the last ancestor by its lifecycle record, unless it is nil
	Floor  head.Revision
	Kept   []head.Kept
	Bytes  uint64 // of payloads
	Upload *blob.Upload
}

// Show makes the arrival a session that everybody sees. The error is ErrExists if a session has the id, and
// history.ErrSessionNotFound if an ancestor is gone.
func (a *Arrival) Show(ctx context.Context, w *Showing) (*history.Session, error) {
	s := a.Session(w.About.ID, a.inc)
	err := history.Settle(ctx, a.Engine, func(c *history.Change) error {
		if c.Unknown {
			life, err := a.Life(ctx, a.inc)
			if err != nil || life != nil && life.State == head.Live {
				return err
			}
		}
		return a.show(ctx, c, s, w)
	})
	if err != nil {
		return nil, err
	}
	if w.Copy != nil {
		w.Copy.held = true
	}
	return s, nil
}

// show is one attempt of Show.
func (a *Arrival) show(ctx context.Context, c *history.Change, s *history.Session, w *Showing) error {
	space := a.Space
	vs, err := a.Engine.Get(ctx, s.HeadKey, space.Predecessor(s.Hash), space.Forgotten(), space.Feed(), s.LifeKey)
	if err != nil {
		return err
	}
	if vs[0] != nil {
		return fmt.Errorf("%w: %q", ErrExists, s.ID)
	}
	if !bytes.Equal(vs[4], a.record) {
		return ErrRemoved
	}
	b := &engine.Batch{}
	b.Guard(s.HeadKey, nil)
	b.Guard(space.Predecessor(s.Hash), vs[1])
	b.Guard(space.Forgotten(), vs[2])
	b.Guard(s.LifeKey, a.record)
	s.Origin = &w.Origin
	s.Origin.Ancestors = slices.Clone(w.Origin.Ancestors)
	if err := a.holdAncestors(ctx, b, s, w); err != nil {
		return err
	}
	key := space.Origin(a.inc)
	b.Set(key, s.Origin.Encode(key))
	now := a.Now()
	about := w.About
	about.Incarnation = a.inc
	if n := len(s.Origin.Ancestors); n > 0 {
		about.Parent = s.Origin.Ancestors[n-1].Incarnation
	}
	next := a.life.Next()
	next.Session, next.State, next.Floor = s.Hash, head.Live, w.Floor
	for _, k := range w.Kept {
		key := space.Ref(a.inc, k.Name)
		b.Set(key, head.EncodeKept(key, k))
		next.Refs++
	}
	b.Set(s.LifeKey, next.Encode(s.LifeKey))
	h := head.Head{Incarnation: a.inc, State: a.end, Bytes: w.Bytes, PackBytes: a.bytes}
	if h.Revision == 0 {
		h.Time = about.Created
	}
	tells, err := a.tell(b, vs[3], &h, feed.Change{Kind: feed.Created, Session: s.ID}, 0, now)
	if err != nil {
		return err
	}
	if tells {
		h.SetFed(true, now)
	}
	if w.Upload != nil {
		if err := w.Upload.Stands(ctx); err != nil {
			return Expired(err)
		}
		w.Upload.Guard(b)
	}
	b.Set(s.DirtyKey, head.EncodeDirty(s.DirtyKey))
	record := h.Encode(s.HeadKey)
	b.Set(s.HeadKey, record)
	b.Set(s.AboutKey, about.Encode(s.AboutKey))
	s.SeePlace(head.AddToLists(b, space, &about, s.Hash, about.LastUpdate(&h)))
	s.See(&h, record)
	return c.Apply(ctx, b)
}

// holdAncestors makes each ancestor keep what the session shares of it.
func (a *Arrival) holdAncestors(ctx context.Context, b *engine.Batch, s *history.Session, w *Showing) error {
	of := s.Origin.Ancestors
	if len(of) == 0 {
		return nil
	}
	ks := make([][]byte, len(of))
	for i := range of {
		ks[i] = a.Space.Life(of[i].Incarnation)
	}
	vs, err := a.Engine.Get(ctx, ks...)
	if err != nil {
		return err
	}
	for i := range of {
		inc, last := of[i].Incarnation, i == len(of)-1
		isCopy := w.Copy != nil && inc == w.Copy.inc
		if vs[i] == nil || isCopy && !w.Copy.held && !bytes.Equal(vs[i], w.Copy.record) {
			return ErrRemoved
		}
		life, err := head.DecodeLife(ks[i], vs[i])
		if err != nil {
			return codec.Corrupt(err, "lifecycle of incarnation %x", inc)
		}
		next := life.Next()
		if isCopy && !w.Copy.held {
			next.Floor = w.Copy.end.Revision + 1
			dirty := a.Space.Dirty(inc)
			b.Set(dirty, head.EncodeDirty(dirty))
		}
		if next.State == head.Deleted && next.Floor <= of[i].Revision {
			return fmt.Errorf("ancestor: %w", history.ErrSessionNotFound)
		}
		if last && w.Check != nil {
			if err := w.Check(life); err != nil {
				return err
			}
		}
		next.Forks++
		if isCopy || last && w.Now {
			of[i].Epoch = next.Epoch
		}
		b.Guard(ks[i], vs[i])
		b.Set(ks[i], next.Encode(ks[i]))
		key := a.Space.Fork(inc, a.inc)
		b.Set(key, head.EncodeFork(key, s.Hash))
	}
	return nil
}
