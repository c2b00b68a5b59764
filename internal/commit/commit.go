// Package commit is the write path: it turns a request into one batch and applies it. [Store] commits; [Lifecycle]
// creates, forks, renames, deletes and prunes sessions, saves their metadata, tombstones nodes and keeps revisions.
//
// A commit goes through these steps:
//
//	prepare    hashes and compresses contents, and stores those that are too large for
//	           the batch ahead of it
//	assemble   makes the commit and its nodes on top of the head; it is a pure function
//	build      makes the batch, with a guard on everything that the commit relies on
//	Apply      asks the engine to apply the batch: see history.Change.Apply
//	resolve    finds out which guard was false; the commit ends, or is built anew
//
// Preparing does not depend on the head, except that a checkpoint part may be stored as a
// delta of its current version. So a commit that another one has overtaken, and that may
// follow the other one, is assembled and built again, but not prepared again.
//
// A host may commit a turn again because it does not know whether the first call succeeded.
// The repeated turn is assembled on top of the state that the first one was built on. If
// both have the same commit id, they are the same. This is why assemble is a pure function.
// If vacuum has erased a node of the first turn, the turn id alone decides.
package commit

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
)

// A Participant is one session of a call: what is committed to it, or which of its records are changed
// beside the commits of others.
type Participant struct {
	Session *history.Session // nil if Creator is set
	Request *Request
	Creator Creator // makes the session in the same batch, if it does not exist
}

// A Creator makes a session that a commit begins.
type Creator interface {
	// ID returns the session's id.
	ID() string
	// Open returns the session if it exists, and no batch. Else it returns the session as it will be, and
	// the batch that creates it, which guards that it does not exist.
	Open(ctx context.Context) (*history.Session, *engine.Batch, error)
	// Made reports whether the batch that Open returned last was applied, if the engine could not tell. The error
	// matches history.ErrMayStand if that can't be told any more.
	Made(ctx context.Context) (bool, error)
	// Abandon is called if no batch that Open returned was applied.
	Abandon(ctx context.Context)
}

// Commit stores the requests of all participants or nothing. No two of them may be the same session,
// and either all requests have a turn id or none has.
//
// In the common case it is one Apply and reads nothing: it guards the heads that the sessions saw
// last, and the marks of the blobs that the commit relies on. That the turn ids and the event keys are
// new is known from the index of each session as of that head, which is in memory; if it is not, it is
// read. When a guard is false, Commit reads the heads, what was committed meanwhile, and the marks if
// the guard was about one. Then it returns a typed error, or builds the batch anew.
//
// After an error that matches history.ErrOutcomeUnknown the commit may stand or not. After any
// other error nothing of it is visible.
func (st *Store) Commit(ctx context.Context, of ...Participant) ([]Result, []Stats, error) {
	c := call{store: st, now: st.Now(), stage: Stage{store: st}, Change: history.Change{Engine: st.Engine}}
	c.writers = c.first[:0]
	for _, p := range of {
		at := -1
		if !p.Request.RecordsOnly {
			at = len(c.writers)
			c.writers = append(c.writers, writer{call: &c, s: p.Session, in: p.Request, birth: birth{creator: p.Creator}})
			st.Random(c.writers[at].salt[:])
		}
		if len(p.Request.Records) > 0 || p.Request.RecordsOnly {
			c.keepers = append(c.keepers, newKeeper(&c, p, at))
		}
	}
	commits, replayed, err := c.attempt(ctx)
	if err != nil && !errors.Is(err, history.ErrOutcomeUnknown) || replayed {
		c.stage.Abandon(ctx)
		for _, b := range c.births() {
			b.creator.Abandon(ctx)
		}
	}
	return c.results(of, commits, replayed, err)
}

// results returns what Commit returns of each participant. commits are the results of those that
// commit.
func (c *call) results(of []Participant, commits []Result, replayed bool, err error) (out []Result, stats []Stats, _ error) {
	out, stats = make([]Result, len(of)), make([]Stats, len(of))
	writers, keepers := 0, 0
	for i, p := range of {
		if !p.Request.RecordsOnly {
			w := &c.writers[writers]
			stats[i] = Stats{Hits: w.hits, Misses: w.misses, Tells: w.head != nil && w.head.Tells()}
			if w.next != nil {
				stats[i].PackBytes = w.next.PackBytes
			}
			if err == nil {
				out[i] = commits[writers]
				out[i].Session, out[i].Created = w.s, w.born != nil && !replayed
			}
			writers++
		}
		if len(p.Request.Records) == 0 && !p.Request.RecordsOnly {
			continue
		}
		k := &c.keepers[keepers]
		if p.Request.RecordsOnly && err == nil {
			out[i].Session, out[i].Created = k.s, k.born != nil && !replayed
		}
		switch {
		case err != nil:
		case replayed:
			out[i].Records, out[i].Replayed = k.again(commits), true
		default:
			out[i].Records = k.done()
		}
		keepers++
	}
	if err != nil {
		return nil, stats, err
	}
	return out, stats, nil
}

// A call is one call of Commit.
type call struct {
	store    *Store
	now      time.Time
	writers  []writer  // one for each participant that commits
	first    [1]writer // memory for the only one of most calls
	keepers  []keeper  // one for each participant that has records to change or to check
	prepared bool      // whether the contents of all requests are prepared
	stage    Stage     // the blobs that the commit refers to
	batch    *engine.Batch

	recordsFresh bool                 // this call has to read what keepers guard: what was seen before is stale
	recordsRead  bool                 // this call has read them
	random       [codec.HashSize]byte // the seed of versions, if there is no writer
	feed         []byte               // the feed's record, if records are to be changed
	tellsRecords bool                 // whether the feed has changes of records

	history.Change // whether an attempt may stand
}

// A writer makes a commit's writes for one participant. A keeper makes its writes to the participant's records.
type writer struct {
	*call
	s    *history.Session
	in   *Request
	salt graph.Salt

	birth
	bornLife []byte // the lifecycle record that the session is made with, if the commit alters that

	head   *head.Head // that the commit is built on
	record []byte     // of head
	fresh  bool       // whether head was read by this call

	payloads []payload           // for each of in.Nodes
	parts    map[string]*version // for each of in.Checkpoint and in.Stored
	attached map[string][]byte   // the session's entries of the attachments by key, nil if there is none
	grants   [][]byte            // the keys of the grants that the commit uses up

	built      *built
	next       *head.Head // the head that the batch sets
	nextRecord []byte     // of next

	hits, misses int // see Stats
}

// A birth makes the session of a participant, if it does not exist.
type birth struct {
	creator Creator       // nil for a participant whose session has to exist
	born    *engine.Batch // the batch that makes the session, or nil if it exists
}

// open finds out whether the session exists.
func (b *birth) open(ctx context.Context) (s *history.Session, err error) {
	if s, b.born, err = b.creator.Open(ctx); err != nil {
		err = &InSession{b.creator.ID(), err}
	}
	return s, err
}

// births returns the births of those participants that have a creator.
func (c *call) births() (out []*birth) {
	for i := range c.writers {
		if b := &c.writers[i].birth; b.creator != nil {
			out = append(out, b)
		}
	}
	for i := range c.keepers {
		if b := &c.keepers[i].birth; b.creator != nil {
			out = append(out, b)
		}
	}
	return out
}

// attempt tries until the commit stands or fails. It returns the results of the writers, and whether
// they are those of an earlier call.
func (c *call) attempt(ctx context.Context) (results []Result, replayed bool, err error) {
	if err := c.open(ctx); err != nil {
		return nil, false, err
	}
	for i := range c.writers {
		if err := c.writers[i].current(ctx); err != nil {
			return nil, false, err
		}
	}
	for {
		err := c.checkExpected(ctx)
		if err == nil {
			err = c.checkRecords(ctx)
		}
		if err == nil {
			if err := c.prepare(ctx); err != nil {
				return c.ended(err)
			}
			err = c.build(ctx)
		}
		switch {
		case errors.Is(err, ErrBlobGone):
			c.prepared = false
			continue
		case err != nil && c.fresh():
			return c.ended(c.orReplayed(ctx, err))
		case err != nil: // The reason may be that a head is out of date, and a turn that stands may be of a session that is gone.
			if err := c.readHeads(ctx); err != nil {
				return c.ended(err)
			}
			continue
		}
		if err = c.apply(ctx); err == nil {
			return c.done(), false, nil
		}
		if !errors.Is(err, engine.ErrConflict) {
			return c.ended(err)
		}
		for i := range c.writers {
			c.writers[i].s.Forget()
		}
		if err = c.resolve(ctx, err); err != nil {
			return c.ended(err)
		}
	}
}

// open finds out which of the sessions that the call may create exist. Those that do not are then at
// revision 0.
func (c *call) open(ctx context.Context) error {
	for i := range c.writers {
		w := &c.writers[i]
		if w.creator == nil {
			continue
		}
		var err error
		w.bornLife = nil
		if w.s, err = w.birth.open(ctx); err != nil {
			return err
		}
		if w.born != nil {
			w.head, _ = w.s.Seen()
			w.record, w.fresh = nil, true
		} else {
			w.head, w.record, w.fresh = nil, nil, false
		}
		for j := range c.keepers {
			if k := &c.keepers[j]; k.writer == i {
				k.of(w.s)
			}
		}
	}
	for i := range c.keepers {
		k := &c.keepers[i]
		if k.creator == nil {
			continue
		}
		s, err := k.birth.open(ctx)
		if err != nil {
			return err
		}
		k.of(s)
	}
	return nil
}

// fresh reports whether this call has read all heads.
func (c *call) fresh() bool {
	for i := range c.writers {
		if !c.writers[i].fresh {
			return false
		}
	}
	return true
}

// checkExpected fails if a head is not at the revision that its request expects, or its path does not have the node.
func (c *call) checkExpected(ctx context.Context) error {
	for i := range c.writers {
		w := &c.writers[i]
		at := conflict(w.s, w.head, w.in.Expected)
		if w.in.Expected != Any && w.head.Revision != w.in.Expected {
			return at
		}
		if w.in.OnPath.IsZero() || w.in.OnPath == w.head.Leaf {
			continue
		}
		if found, err := w.onPath(ctx, w.in.OnPath); err != nil {
			return c.in(i, err)
		} else if !found {
			at.Node = w.in.OnPath
			return at
		}
	}
	return nil
}

// current sets the head that the session saw last, with its record, or reads it.
func (w *writer) current(ctx context.Context) error {
	if w.born != nil {
		return nil
	}
	if w.head, w.record = w.s.Seen(); w.record != nil {
		return nil
	}
	return w.readHead(ctx)
}

// readHeads reads all heads.
func (c *call) readHeads(ctx context.Context) error {
	for i := range c.writers {
		if c.writers[i].born != nil {
			continue
		}
		if err := c.writers[i].readHead(ctx); err != nil {
			return err
		}
	}
	return nil
}

// readHead reads the head, and the session's place in lists.
func (w *writer) readHead(ctx context.Context) error {
	h, values, err := w.s.Head(ctx, w.s.HeadKey, w.store.Space.Place(w.s.Inc))
	if err == nil {
		w.s.SeePlace(values[1])
		w.head, w.record, w.fresh = h, values[0], true
	}
	return err
}

// prepare prepares the contents of all requests, unless that was done and still fits the heads:
// somebody else may have committed another version of a checkpoint part meanwhile.
func (c *call) prepare(ctx context.Context) error {
	for i := range c.writers {
		c.prepared = c.prepared && c.writers[i].basesHold()
	}
	if c.prepared {
		return nil
	}
	c.stage.Abandon(ctx) // An earlier attempt may have stored something ahead.
	c.stage = c.store.NewStage(c.owner())
	room := inlineBytes
	for i := range c.writers {
		if err := c.writers[i].prepare(ctx, &room); err != nil {
			return err
		}
	}
	c.prepared = true
	return nil
}

// owner returns the session that owns what is stored ahead of the batch: one that exists, or none.
func (c *call) owner() (inc head.Incarnation) {
	for i := range c.writers {
		if c.writers[i].born == nil {
			return c.writers[i].s.Inc
		}
	}
	return inc
}

// ended returns what an error says of the commit.
func (c *call) ended(err error) (_ []Result, isReplay bool, _ error) {
	var replay *replayed
	switch {
	case errors.Is(err, errStands):
		return c.done(), false, nil
	case errors.As(err, &replay):
		return replay.results, true, nil
	case decided(err):
		return nil, false, err
	}
	return nil, false, c.Result(err)
}

// done notes the new heads and the new versions of checkpoint parts, and returns the results.
func (c *call) done() []Result {
	c.stage.applied(c.batch)
	out := make([]Result, len(c.writers))
	for i := range c.writers {
		out[i] = c.writers[i].done()
	}
	return out
}

// done notes the new head and the new versions of checkpoint parts, and returns the result.
func (w *writer) done() Result {
	s, t := w.s, &w.built.turn
	s.See(w.next, w.nextRecord)
	if ix, ok := s.Indexes.Get(s.Inc); ok {
		ix.Add(t)
	}
	for _, p := range w.built.parts {
		if v := w.parts[p.Name]; v != nil && v.stored {
			w.store.Bases.Drop(s.Inc, p.Name) // Its content is not at hand.
		} else if v != nil {
			w.store.Bases.Put(s.Inc, p.Name, v.asBase(&p, w.in.Checkpoint[p.Name]))
		}
	}
	for _, name := range w.in.Drop {
		w.store.Bases.Drop(s.Inc, name)
	}
	placeKey := w.store.Space.Place(s.Inc)
	for _, p := range w.batch.Sets {
		if bytes.Equal(p.Key, placeKey) {
			s.SeePlace(p.Value)
		}
	}
	return Result{Revision: t.Revision, Commit: t.ID, Leaf: t.Leaf, Nodes: w.built.ids}
}

// asBase returns the version as a base for the next one. p is the part in the new head.
func (v *version) asBase(p *head.Part, content []byte) blob.Base {
	b := blob.Base{ID: p.Blob, Revision: uint64(p.Set), Content: content}
	switch {
	case v.delta:
		b.Deltas = v.base.Deltas + 1
	case head.IsDelta(*p): // The commit did not change the part. Its chain has at most one delta for each revision.
		b.Deltas = int(min(p.Set-p.Whole, blob.MaxDeltas))
	}
	return b
}
