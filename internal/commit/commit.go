// Package commit is the write path: it turns a request into one batch and applies it.
//
// A commit goes through these steps, one file each:
//
//	prepare    hashes and compresses contents, and stores those that are too large for
//	           the batch before it
//	assemble   makes the commit and its nodes on top of the head; it is a pure function
//	build      makes the batch, with a guard on everything that the commit relies on
//	Apply      asks the engine to apply the batch
//	resolve    finds out which guard was false; the commit ends, or is built anew
//
// What is prepared does not depend on the head, but for checkpoint parts, which are
// stored as deltas of the version that stands. So a commit that lost against another one
// and may be appended to it is assembled and built again, and not prepared again.
//
// assemble is pure so that a turn that comes again can be compared with what was stored
// under its turn id: assembled on top of the same state it has the same commit id.
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
	"github.com/turnstonedb/turnstone/internal/pack"
)

// Commit stores a request: all of it or nothing.
//
// The fast path is one Apply. It guards the head that the session saw last, rather than
// reading it again, the absence of the turn id, and the marks of the blobs that the commit
// relies on. When a guard is false, Commit reads what stands there. Then it ends with a
// typed error, or builds the batch anew.
//
// An error that matches change.ErrOutcomeUnknown leaves open whether the commit stands.
// After any other error nothing of it is visible.
func (st *Store) Commit(ctx context.Context, s *Session, r *Request) (Result, Stats, error) {
	w := writer{s: s, in: r, store: st, now: st.Now(), Change: change.Change{Engine: st.Engine}}
	st.Random(w.salt[:])
	result, err := w.attempt(ctx)
	if err != nil && !errors.Is(err, change.ErrOutcomeUnknown) || result.Replayed {
		w.stage.Abandon(ctx)
	}
	stats := Stats{Hits: w.hits, Misses: w.misses}
	if w.head != nil {
		stats.Raw = w.head.Raw
	}
	return result, stats, err
}

// A writer is one commit on its way.
type writer struct {
	store *Store
	s     *Session
	in    *Request
	salt  pack.Salt
	now   time.Time

	payloads []*blobs.Draft      // of in.Nodes; nil where the payload stays inline
	parts    map[string]*version // of in.Checkpoint; nil until prepared
	stage    Stage               // what the commit refers to as blobs
	attached map[string][]byte   // entries of attachments by key: nil where the session has none yet
	grants   [][]byte            // keys of the grants that uploads gave it
	keysFree bool                // no ancestor has an event key of in.Nodes

	built *built
	batch *engine.Batch
	head  *heads.Head // that the batch sets, and
	raw   []byte      // its record

	change.Change // whether an attempt may stand

	hits, misses int // parts whose last version was at hand, and not
}

// attempt tries until the commit stands or ends with an error.
func (w *writer) attempt(ctx context.Context) (Result, error) {
	s := w.s
	h, raw, fresh, err := s.current(ctx)
	if err != nil {
		return Result{}, err
	}
	for {
		if w.in.Expected != Any && h.Revision != w.in.Expected {
			if fresh {
				return w.orReplay(ctx, s.conflict(w.in.Expected, h))
			}
			if h, raw, err = s.readRecord(ctx); err != nil {
				return Result{}, err
			}
			fresh = true
			continue
		}
		if w.parts == nil {
			if err := w.prepare(ctx, h); err != nil {
				return Result{}, err
			}
		}
		if !w.basesHold(h) {
			w.parts = nil // somebody else has committed another version
			continue
		}
		if err := w.build(ctx, h, raw); errors.Is(err, ErrBlobGone) {
			w.parts = nil
			continue
		} else if err != nil {
			if !fresh { // it may be the stale head that made it fail
				if h, raw, err = s.readRecord(ctx); err != nil {
					return Result{}, err
				}
				fresh = true
				continue
			}
			return w.orReplay(ctx, err)
		}
		if err = w.Apply(ctx, w.batch); err == nil {
			return w.done(), nil
		}
		if !errors.Is(err, engine.ErrConflict) {
			return Result{}, err
		}
		s.forget()
		if h, raw, err = w.resolve(ctx, err); err != nil {
			if errors.Is(err, errStands) {
				return w.done(), nil
			}
			var replay *replayed
			if errors.As(err, &replay) {
				return replay.result, nil
			}
			if !decided(err) {
				err = w.Result(err)
			}
			return Result{}, err
		}
		fresh = true
	}
}

// done records what was committed and returns it.
func (w *writer) done() Result {
	s, c := w.s, &w.built.commit
	s.See(w.head, w.raw)
	w.stage.applied(w.batch)
	for _, p := range w.built.parts {
		if v := w.parts[p.Name]; v != nil {
			w.store.Bases.Put(s.Inc, p.Name, v.asBase(&p, w.in.Checkpoint[p.Name]))
		}
	}
	for _, name := range w.in.Drop {
		w.store.Bases.Drop(s.Inc, name)
	}
	timeKey := w.store.Space.OrderTime(s.Inc)
	for _, p := range w.batch.Sets {
		if bytes.Equal(p.Key, timeKey) {
			s.SeeOrderTime(p.Value)
		}
	}
	return Result{Revision: c.Revision, Commit: w.built.id, Leaf: c.Leaf, Nodes: w.built.ids}
}

// asBase returns the version, which stands as p, as the base of the next one.
func (v *version) asBase(p *head.Part, content []byte) blobs.Base {
	b := blobs.Base{ID: p.Blob, Revision: uint64(p.Set), Content: content}
	switch {
	case v.delta:
		b.Deltas = v.base.Deltas + 1
	case heads.IsDelta(*p): // the commit left it as it was: a delta a revision, at most
		b.Deltas = int(min(p.Set-p.Whole, blobs.MaxDeltas))
	}
	return b
}
