// Package erase removes a session, or nodes, from the store's files, and writes a receipt.
//
// The caller deletes or tombstones, and vacuums. This package reads before and after: which
// incarnations and blobs are to go, who holds what is left, and which bytes stay because
// other sessions or uploads have equal ones. Nobody holds what is left and yet something is:
// then the erasure is incomplete, and the error says what is left.
package erase

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/reclaim"
	"github.com/turnstonedb/turnstone/record"
)

// A Receipt says what is left after an erasure.
type Receipt struct {
	HeldBy      []string // sessions that still show what was to go, in order
	Gone        int      // blobs that are not stored any more
	Shared      int      // blobs that other sessions have, too, and
	SharedBytes int64    // what these take as they are stored
	SharedBy    []string // the sessions, in order
	Uploads     int      // blobs that an upload keeps
}

// A Store is where an erasure reads.
type Store struct {
	history.Store
	Collector *reclaim.Collector
}

// Session erases a session and, if deletion cascades, its children and theirs. remove deletes
// the incarnation. Vacuum returns the sessions that it could not finish. After remove has
// succeeded, an error matches change.ErrIncomplete.
func (s Store) Session(ctx context.Context, id string, cascade bool, remove func(context.Context, heads.Incarnation) error, vacuum func(context.Context) ([]heads.Incarnation, error)) (*Receipt, error) {
	inc, err := s.incarnation(ctx, id)
	if err != nil {
		return nil, err
	}
	incs, err := s.family(ctx, inc, cascade)
	if err != nil {
		return nil, err
	}
	var blobs []blob.ID
	for _, inc := range incs {
		some, err := s.blobsOf(ctx, inc)
		if err != nil {
			return nil, err
		}
		blobs = append(blobs, some...)
	}
	if err := remove(ctx, inc); err != nil {
		return nil, err
	}
	done := change.Change{Partly: true} // from here on an error leaves the session deleted
	unfinished, err := vacuum(ctx)
	if err != nil {
		return nil, done.Result(err)
	}
	shares := func(l history.Layer) bool { return slices.Contains(incs, l.Inc) && l.Last > 0 }
	r, err := s.receipt(ctx, incs, blobs, func(fork *history.Session) (bool, error) {
		return slices.ContainsFunc(fork.Layers(^head.Revision(0)), shares), nil
	})
	if err != nil || len(r.HeldBy) > 0 {
		return r, done.Result(err)
	}
	for _, inc := range incs {
		life, err := s.Life(ctx, inc)
		if err == nil && life != nil && (life.Floor > 1 || slices.Contains(unfinished, inc)) {
			err = fmt.Errorf("records of the deleted session %q are left", id)
		}
		if err != nil {
			return r, done.Result(err)
		}
	}
	return r, nil
}

// Nodes erases nodes of a session. remove tombstones them. After it has succeeded, an error
// matches change.ErrIncomplete.
func (s Store) Nodes(ctx context.Context, of *history.Session, ids []graph.ID, remove, vacuum func(context.Context) error) (*Receipt, error) {
	var blobs []blob.ID
	var owners []heads.Incarnation // of the histories that the nodes are in
	for _, id := range ids {
		n, at, err := of.NodeNow(ctx, id)
		if err != nil {
			return nil, err
		}
		blobs = append(blobs, n.Blobs()...)
		if !slices.Contains(owners, at.Layer.Inc) {
			owners = append(owners, at.Layer.Inc)
		}
	}
	if err := remove(ctx); err != nil {
		return nil, err
	}
	done := change.Change{Partly: true} // from here on an error leaves the nodes tombstoned
	if err := vacuum(ctx); err != nil {
		return nil, done.Result(err)
	}
	r, err := s.receipt(ctx, owners, blobs, func(other *history.Session) (bool, error) {
		for _, id := range ids {
			if shown, err := other.Shows(ctx, id); shown || err != nil {
				return shown, err
			}
		}
		return false, nil
	})
	if err != nil || len(r.HeldBy) > 0 {
		return r, done.Result(err)
	}
	for _, id := range ids {
		n, _, err := of.NodeNow(ctx, id)
		if err == nil && !n.Erased {
			err = fmt.Errorf("the content of node %s is left", id)
		}
		if err != nil {
			return r, done.Result(err)
		}
	}
	return r, nil
}

// incarnation returns the incarnation that Erase of an id is about: of the session that has
// it or, if none has, of the last one that was deleted under it.
func (s Store) incarnation(ctx context.Context, id string) (inc heads.Incarnation, err error) {
	live, _, err := s.OpenSession(ctx, id)
	if err == nil {
		return live.Inc, nil
	}
	if !errors.Is(err, history.ErrSessionNotFound) {
		return inc, err
	}
	key := s.Space.Predecessor(s.Space.Session(id))
	vs, gerr := s.Engine.Get(ctx, key)
	if gerr != nil {
		return inc, gerr
	}
	if vs[0] == nil {
		return inc, err
	}
	if inc, gerr = heads.OpenPredecessor(key, vs[0]); gerr != nil {
		return inc, codec.Corrupt(gerr, "predecessor of session %q", id)
	}
	life, gerr := s.Life(ctx, inc)
	if gerr != nil {
		return inc, gerr
	}
	if life != nil && life.State == heads.Live { // it was renamed
		return inc, err
	}
	return inc, nil
}

// family returns an incarnation and, if deletion cascades, its children and theirs.
// When Erase is repeated, children that the first call deleted are no longer listed as
// such, so forks that are deleted already and that nothing live depends on count, too.
func (s Store) family(ctx context.Context, inc heads.Incarnation, cascade bool) ([]heads.Incarnation, error) {
	out, seen := []heads.Incarnation{inc}, map[heads.Incarnation]bool{inc: true}
	for i := 0; cascade && i < len(out); i++ {
		kids, err := s.Children(ctx, out[i])
		if err != nil {
			return nil, err
		}
		forks, err := s.Forks(ctx, out[i])
		if err != nil {
			return nil, err
		}
		for _, fork := range forks {
			gone, err := s.unheld(ctx, fork)
			if err != nil {
				return nil, err
			}
			if gone {
				kids = append(kids, fork)
			}
		}
		for _, kid := range kids {
			if !seen[kid] { // a fork of a fork is a fork of the first session, too
				seen[kid] = true
				out = append(out, kid)
			}
		}
	}
	return out, nil
}

// unheld reports whether an incarnation is deleted, as are all forks of it, and vacuum has
// not removed it yet.
func (s Store) unheld(ctx context.Context, inc heads.Incarnation) (bool, error) {
	life, err := s.Life(ctx, inc)
	if err != nil || life == nil || life.State == heads.Live {
		return false, err
	}
	forks, err := s.Forks(ctx, inc)
	if err != nil {
		return false, err
	}
	for _, fork := range forks {
		life, err := s.Life(ctx, fork)
		if err != nil || life != nil && life.State == heads.Live {
			return false, err
		}
	}
	return true, nil
}

// holders returns the ids of those sessions among incs and their forks for which holds
// is true. A fork of a fork can be made meanwhile: it looks until nothing new is there.
func (s Store) holders(ctx context.Context, incs []heads.Incarnation, holds func(*history.Session) (bool, error)) (ids []string, related []heads.Incarnation, err error) {
	ids = []string{}
	seen := map[heads.Incarnation]bool{}
	for more := true; more; {
		more = false
		related = slices.Clone(incs)
		for _, inc := range incs {
			forks, err := s.Forks(ctx, inc)
			if err != nil {
				return nil, nil, err
			}
			related = append(related, forks...)
		}
		for _, inc := range related {
			if seen[inc] {
				continue
			}
			seen[inc], more = true, true
			other, _, err := s.ByIncarnation(ctx, inc)
			if err != nil || other == nil {
				if err != nil {
					return nil, nil, err
				}
				continue
			}
			held, err := holds(other)
			if errors.Is(err, history.ErrSessionDeleted) {
				held, err = false, nil
			}
			if err != nil {
				return nil, nil, err
			}
			if held {
				ids = append(ids, other.ID)
			}
		}
	}
	slices.Sort(ids)
	return ids, related, nil
}

// receipt says what is left after a vacuum: which sessions related to incs hold what was
// to go, and which blobs stay.
func (s Store) receipt(ctx context.Context, incs []heads.Incarnation, ids []blob.ID, holds func(*history.Session) (bool, error)) (*Receipt, error) {
	e := &Receipt{SharedBy: []string{}}
	var related []heads.Incarnation
	var err error
	if e.HeldBy, related, err = s.holders(ctx, incs, holds); err != nil {
		return e, err
	}
	uploads, err := s.Blobs.Uploaded(ctx)
	if err != nil {
		return e, err
	}
	by := map[string]bool{}
	slices.SortFunc(ids, func(a, b blob.ID) int { return slices.Compare(a[:], b[:]) })
	for _, id := range slices.Compact(ids) {
		hash := s.Space.BlobHash(id)
		key := s.Space.Mark(hash)
		vs, err := s.Engine.Get(ctx, key)
		if err != nil {
			return e, err
		}
		if vs[0] == nil {
			e.Gone++
			continue
		}
		m, err := blobs.OpenMark(key, vs[0])
		if err != nil {
			return e, codec.Corrupt(err, "mark of blob %s", id)
		}
		if uploads[hash] {
			e.Uploads++
		}
		users, err := s.Collector.Users(ctx, hash)
		if err != nil {
			return e, err
		}
		shared := false
		for _, inc := range users {
			other, err := s.About(ctx, inc)
			if err != nil {
				return e, err
			}
			// What is left because of HeldBy is not shared, but held.
			if other != nil && !slices.Contains(related, inc) {
				by[other.ID], shared = true, true
			}
		}
		if shared {
			e.Shared, e.SharedBytes = e.Shared+1, e.SharedBytes+m.Bytes
		}
	}
	for id := range by {
		e.SharedBy = append(e.SharedBy, id)
	}
	slices.Sort(e.SharedBy)
	return e, nil
}

// blobsOf returns the blobs that an incarnation refers to, as far as its records are
// there.
func (s Store) blobsOf(ctx context.Context, inc heads.Incarnation) ([]blob.ID, error) {
	for {
		life, err := s.Life(ctx, inc)
		if err != nil || life == nil {
			return nil, err
		}
		out, err := s.readBlobs(ctx, inc, life)
		var damage *record.CorruptError
		if err == nil || !errors.As(err, &damage) {
			return out, err
		}
		if now, lerr := s.Life(ctx, inc); lerr != nil || now != nil && *now == *life {
			return nil, errors.Join(lerr, err)
		}
	}
}

func (s Store) readBlobs(ctx context.Context, inc heads.Incarnation, life *heads.Life) ([]blob.ID, error) {
	last := life.Floor - 1 // of a deleted session
	if life.State == heads.Live {
		key := s.Space.Head(life.Session)
		vs, err := s.Engine.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		h, err := heads.OpenHead(key, vs[0])
		if err == nil && h.Incarnation != inc {
			err = record.ErrHash
		}
		if err != nil {
			return nil, codec.Corrupt(err, "head of incarnation %x", inc)
		}
		last = h.Revision
	} else if life.Floor == 0 {
		last = 0
	}
	h, err := s.Open(ctx, inc)
	if err != nil {
		return nil, err
	}
	var out []blob.ID
	if h.Origin != nil {
		for _, p := range h.Origin.Parts {
			out = append(out, p.Blob)
		}
	}
	err = h.Commits(ctx, 0, last, func(c *heads.Commit, _ head.CommitID) error {
		for _, p := range c.Parts {
			if p.Set == c.Revision && !heads.IsDelta(p) {
				out = append(out, p.Blob)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	nodes, err := h.AppendNodes(ctx, h.Own(last), 0, nil)
	for i := range nodes {
		out = append(out, nodes[i].Blobs()...)
	}
	granted, gerr := s.Blobs.Granted(ctx, inc)
	return append(out, granted...), errors.Join(err, gerr)
}
