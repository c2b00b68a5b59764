// Package commit is the write path: it turns a request into one batch and applies it.
//
// A commit goes through these steps:
//
//	prepare    hashes and compresses contents, and stores those that are too large for
//	           the batch ahead of it
//	assemble   makes the commit and its nodes on top of the head; it is a pure function
//	build      makes the batch, with a guard on everything that the commit relies on
//	Apply      asks the engine to apply the batch: see package change
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

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/pack"
)

// Commit stores all of a request or nothing.
//
// In the common case it is one Apply and reads nothing: it guards the head that the session saw
// last, and the marks of the blobs that the commit relies on. That the turn id and the event keys are
// new is known from the index of the session as of that head, which is in memory; if it is not, it is
// read. When a guard is false, Commit reads the head, what was committed meanwhile, and the marks if
// the guard was about one. Then it returns a typed error, or builds the batch anew.
//
// After an error that matches change.ErrOutcomeUnknown the commit may stand or not. After any
// other error nothing of it is visible.
func (st *Store) Commit(ctx context.Context, s *history.Session, r *Request) (Result, Stats, error) {
	w := writer{s: s, in: r, store: st, now: st.Now(), Change: change.Change{Engine: st.Engine}}
	st.Random(w.salt[:])
	result, err := w.attempt(ctx)
	if err != nil && !errors.Is(err, change.ErrOutcomeUnknown) || result.Replayed {
		w.stage.Abandon(ctx)
	}
	stats := Stats{Hits: w.hits, Misses: w.misses}
	if w.head != nil {
		stats.PackBytes = w.head.PackBytes
	}
	return result, stats, err
}

// A writer is one call of Commit.
type writer struct {
	store *Store
	s     *history.Session
	in    *Request
	salt  pack.Salt
	now   time.Time

	payloads []payload           // for each of in.Nodes
	parts    map[string]*version // for each of in.Checkpoint
	prepared bool                // whether payloads and parts are set
	stage    Stage               // the blobs that the commit refers to
	attached map[string][]byte   // the session's entries of the attachments by key, nil if there is none
	grants   [][]byte            // the keys of the grants that the commit uses up

	built  *built
	batch  *engine.Batch
	head   *heads.Head // the head that the batch sets
	record []byte      // the record of head

	change.Change // whether an attempt may stand

	hits, misses int // see Stats
}

// attempt tries until the commit stands or fails.
func (w *writer) attempt(ctx context.Context) (Result, error) {
	h, record, fresh, err := current(ctx, w.s)
	if err != nil {
		return Result{}, err
	}
	for {
		err := w.checkExpected(h)
		if err == nil {
			if err := w.prepareFor(ctx, h); err != nil {
				return Result{}, err
			}
			err = w.build(ctx, h, record)
		}
		switch {
		case errors.Is(err, ErrBlobGone):
			w.prepared = false
			continue
		case isReplay(err):
			return w.resolved(err)
		case err != nil && fresh:
			return w.orReplay(ctx, h, err)
		case err != nil: // The reason may be that the head is out of date.
			if h, record, err = readRecord(ctx, w.s); err != nil {
				return Result{}, err
			}
			fresh = true
			continue
		}
		if err = w.Apply(ctx, w.batch); err == nil {
			return w.done(), nil
		}
		if !errors.Is(err, engine.ErrConflict) {
			return Result{}, err
		}
		w.s.Forget()
		if h, record, err = w.resolve(ctx, err); err != nil {
			return w.resolved(err)
		}
		fresh = true
	}
}

// checkExpected fails if the head is not at the revision that the request expects.
func (w *writer) checkExpected(h *heads.Head) error {
	if w.in.Expected != Any && h.Revision != w.in.Expected {
		return conflictOf(w.s, w.in.Expected, h)
	}
	return nil
}

// prepareFor prepares contents, unless that was done and still fits the head: somebody else may
// have committed another version of a checkpoint part meanwhile.
func (w *writer) prepareFor(ctx context.Context, h *heads.Head) error {
	for !w.prepared || !w.basesHold(h) {
		if err := w.prepare(ctx, h); err != nil {
			return err
		}
	}
	return nil
}

// resolved returns what an error of resolve says of the commit.
func (w *writer) resolved(err error) (Result, error) {
	var replay *replayed
	switch {
	case errors.Is(err, errStands):
		return w.done(), nil
	case errors.As(err, &replay):
		return replay.result, nil
	case decided(err):
		return Result{}, err
	}
	return Result{}, w.Result(err)
}

// done notes the new head and the new versions of checkpoint parts, and returns the result.
func (w *writer) done() Result {
	s, t := w.s, &w.built.turn
	s.See(w.head, w.record)
	if ix, ok := s.Indexes.Get(s.Inc); ok {
		ix.Add(t)
	}
	w.stage.applied(w.batch)
	for _, p := range w.built.parts {
		if v := w.parts[p.Name]; v != nil {
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
func (v *version) asBase(p *head.Part, content []byte) blobs.Base {
	b := blobs.Base{ID: p.Blob, Revision: uint64(p.Set), Content: content}
	switch {
	case v.delta:
		b.Deltas = v.base.Deltas + 1
	case heads.IsDelta(*p): // The commit did not change the part. Its chain has at most one delta for each revision.
		b.Deltas = int(min(p.Set-p.Whole, blobs.MaxDeltas))
	}
	return b
}

// current returns the head that was seen last, with its record. If there is none, it reads the
// head, and fresh is true.
func current(ctx context.Context, s *history.Session) (h *heads.Head, record []byte, fresh bool, err error) {
	if h, record = s.Seen(); record != nil {
		return h, record, false, nil
	}
	h, record, err = readRecord(ctx, s)
	return h, record, true, err
}

// readRecord reads the head and its record.
func readRecord(ctx context.Context, s *history.Session) (*heads.Head, []byte, error) {
	h, values, err := s.Head(ctx, s.HeadKey)
	if err != nil {
		return nil, nil, err
	}
	return h, values[0], nil
}
