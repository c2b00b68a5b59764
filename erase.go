package turnstone

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// An Erasure is the receipt of Erase.
type Erasure struct {
	Vacuum *VacuumReport `json:"vacuum"`
	// HeldBy are the sessions that still show what was to be erased: attached
	// forks, and for a node the session that they forked from. It goes when the
	// last of them is erased, or tombstones it.
	HeldBy []string `json:"heldBy"`
	// Gone are payloads, attachments and checkpoint parts that were stored as blobs
	// and are not any more.
	Gone int `json:"gone"`
	// Shared are those that are left because equal bytes belong to other sessions
	// too, which SharedBy names.
	Shared      int      `json:"shared"`
	SharedBytes int64    `json:"sharedBytes"` // as they are stored
	SharedBy    []string `json:"sharedBy"`
	// Uploads are those that are left because an upload of equal bytes waits for a
	// commit. They go when it expires, or its session is deleted.
	Uploads int `json:"uploads"`
}

// Erase deletes a session, and removes what it alone had from the store's files,
// uploads that it has not committed included: Delete, GC and Vacuum in one. It works on
// the whole store, and takes as long as Vacuum.
//
// An error that matches ErrIncomplete leaves the session deleted, and says what is left
// in the files. Erase of the same id again, as long as no other session has it, does the
// rest; so does Vacuum. A receipt of a repeated call knows of shared bytes only as far
// as the session's records were still there.
//
// Text that a host has put into other sessions as well is there still, and
// a server keeps bytes in its files for a while: see the driver's Vacuum.
func (s *Store) Erase(ctx context.Context, id string, policy ChildPolicy, progress func(Progress)) (*Erasure, error) {
	if _, err := s.usable(ctx); err != nil {
		return nil, err
	}
	if err := policy.check(); err != nil {
		return nil, err
	}
	inc, err := s.erasable(ctx, id)
	if err != nil {
		return nil, err
	}
	incs, err := s.family(ctx, inc, policy)
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
	if err := s.deleteIncarnation(ctx, inc, policy); err != nil {
		return nil, err
	}
	done := change.Change{Partly: true} // from here on an error leaves the session deleted
	v, err := s.Vacuum(ctx, VacuumOptions{Progress: progress})
	if err != nil {
		return nil, done.Result(err)
	}
	e, err := s.receipt(ctx, v, incs, blobs, func(fork *Session) (bool, error) {
		return slices.ContainsFunc(fork.session.Layers(AnyRevision), func(l history.Layer) bool { return slices.Contains(incs, l.Inc) && l.Last > 0 }), nil
	})
	if err == nil && len(e.HeldBy) == 0 {
		for _, inc := range incs {
			life, lerr := s.histories.Life(ctx, inc)
			if err = lerr; err == nil && life != nil && (life.Floor > 1 || slices.Contains(v.VacuumReport.Unfinished, inc)) {
				err = fmt.Errorf("records of the deleted session %q are left", id)
			}
			if err != nil {
				break
			}
		}
	}
	return e, done.Result(err)
}

// erasable returns the incarnation that Erase of an id is about: of the session that has
// it or, if none has, of the last one that was deleted under it.
func (s *Store) erasable(ctx context.Context, id string) (inc head.Incarnation, err error) {
	ses, err := s.Session(ctx, id)
	if err == nil {
		return ses.session.Inc, nil
	}
	if !errors.Is(err, ErrSessionNotFound) {
		return inc, err
	}
	key := s.space.Predecessor(s.space.Session(id))
	vs, gerr := s.engine.Get(ctx, key)
	if gerr != nil {
		return inc, gerr
	}
	if vs[0] == nil {
		return inc, err
	}
	if inc, gerr = head.OpenPredecessor(key, vs[0]); gerr != nil {
		return inc, codec.Corrupt(gerr, "predecessor of session %q", id)
	}
	life, gerr := s.histories.Life(ctx, inc)
	if gerr != nil {
		return inc, gerr
	}
	if life != nil && life.State == head.Live { // it was renamed
		return inc, err
	}
	return inc, nil
}

// family returns an incarnation and what Delete deletes with it, its children and theirs.
// When Erase is repeated, children that the first call deleted are no longer listed as
// such, so forks that are deleted already and that nothing live depends on count, too.
func (s *Store) family(ctx context.Context, inc head.Incarnation, policy ChildPolicy) ([]head.Incarnation, error) {
	out, seen := []head.Incarnation{inc}, map[head.Incarnation]bool{inc: true}
	for i := 0; policy == CascadeChildren && i < len(out); i++ {
		kids, err := s.children(ctx, out[i])
		if err != nil {
			return nil, err
		}
		forks, err := s.forksOf(ctx, out[i:i+1])
		if err != nil {
			return nil, err
		}
		for _, fork := range forks[1:] {
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
func (s *Store) unheld(ctx context.Context, inc head.Incarnation) (bool, error) {
	life, err := s.histories.Life(ctx, inc)
	if err != nil || life == nil || life.State == head.Live {
		return false, err
	}
	forks, err := s.forksOf(ctx, []head.Incarnation{inc})
	if err != nil {
		return false, err
	}
	for _, fork := range forks[1:] {
		life, err := s.histories.Life(ctx, fork)
		if err != nil || life != nil && life.State == head.Live {
			return false, err
		}
	}
	return true, nil
}

// Erase tombstones nodes and removes their content from the store's files, as far
// as no other session shows it: see Erasure.HeldBy. An error that matches ErrIncomplete
// leaves the nodes tombstoned, and says what is left. Erase of the same nodes again does
// the rest; so does Vacuum.
func (s *Session) Erase(ctx context.Context, progress func(Progress), ids ...NodeID) (*Erasure, error) {
	if _, err := s.usable(ctx); err != nil {
		return nil, err
	}
	var blobs []blob.ID
	var owners []head.Incarnation // of the histories that the nodes are in
	for _, id := range ids {
		n, at, err := s.nodeAt(ctx, id)
		if err != nil {
			return nil, err
		}
		blobs = append(blobs, n.Blobs()...)
		if !slices.Contains(owners, at.Layer.Inc) {
			owners = append(owners, at.Layer.Inc)
		}
	}
	if err := s.Tombstone(ctx, ids...); err != nil {
		return nil, err
	}
	done := change.Change{Partly: true} // from here on an error leaves the nodes tombstoned
	v, err := s.store.Vacuum(ctx, VacuumOptions{Progress: progress})
	if err != nil {
		return nil, done.Result(err)
	}
	e, err := s.store.receipt(ctx, v, owners, blobs, func(other *Session) (bool, error) {
		for _, id := range ids {
			if _, err := other.Node(ctx, id); !errors.Is(err, ErrNodeNotFound) {
				return err == nil, err
			}
		}
		return false, nil
	})
	if err == nil && len(e.HeldBy) == 0 {
		for _, id := range ids {
			n, _, nerr := s.nodeAt(ctx, id)
			if err = nerr; err == nil && !n.Erased {
				err = fmt.Errorf("the content of node %s is left", id)
			}
			if err != nil {
				break
			}
		}
	}
	return e, done.Result(err)
}

// nodeAt returns a node of the session's graph, whether or not it is tombstoned, and
// where it is.
func (s *Session) nodeAt(ctx context.Context, id NodeID) (n history.Node, at history.Position, err error) {
	_, err = history.Retry(ctx, s.session.Session, func() (_ struct{}, err error) {
		h, _, err := s.session.Head(ctx)
		if err == nil {
			n, at, err = s.session.Node(ctx, h.Revision, id)
		}
		return struct{}{}, err
	})
	return n, at, err
}

// forksOf returns the incarnations that were attached to any of incs, and incs.
func (s *Store) forksOf(ctx context.Context, incs []head.Incarnation) ([]head.Incarnation, error) {
	out := slices.Clone(incs)
	for _, inc := range incs {
		for p, err := range s.engine.Scan(ctx, s.space.Of(keys.Fork, inc)) {
			if err != nil {
				return nil, err
			}
			_, fields, ok := s.space.Fields(p.Key)
			if !ok {
				return nil, codec.Corrupt(codec.ErrMalformed, "fork at key %x", p.Key)
			}
			out = append(out, head.Incarnation(fields[16:]))
		}
	}
	return out, nil
}

// holders returns the ids of those sessions among incs and their forks for which holds
// is true. A fork of a fork can be made meanwhile: it looks until nothing new is there.
func (s *Store) holders(ctx context.Context, incs []head.Incarnation, holds func(*Session) (bool, error)) (ids []string, related []head.Incarnation, err error) {
	ids = []string{}
	seen := map[head.Incarnation]bool{}
	for more := true; more; {
		more = false
		if related, err = s.forksOf(ctx, incs); err != nil {
			return nil, nil, err
		}
		for _, inc := range related {
			if seen[inc] {
				continue
			}
			seen[inc], more = true, true
			other, err := s.byIncarnation(ctx, inc)
			if err != nil || other == nil {
				if err != nil {
					return nil, nil, err
				}
				continue
			}
			held, err := holds(other)
			if errors.Is(err, ErrSessionDeleted) {
				held, err = false, nil
			}
			if err != nil {
				return nil, nil, err
			}
			if held {
				ids = append(ids, other.session.ID)
			}
		}
	}
	slices.Sort(ids)
	return ids, related, nil
}

// receipt says what is left after a vacuum: which sessions related to incs hold what was
// to go, and which blobs stay.
func (s *Store) receipt(ctx context.Context, v *VacuumReport, incs []head.Incarnation, blobs []blob.ID, holds func(*Session) (bool, error)) (*Erasure, error) {
	e := &Erasure{Vacuum: v, SharedBy: []string{}}
	var related []head.Incarnation
	var err error
	if e.HeldBy, related, err = s.holders(ctx, incs, holds); err != nil {
		return e, err
	}
	uploads, err := s.uploads(ctx)
	if err != nil {
		return e, err
	}
	by := map[string]bool{}
	slices.SortFunc(blobs, func(a, b blob.ID) int { return slices.Compare(a[:], b[:]) })
	for _, id := range slices.Compact(blobs) {
		hash := s.space.BlobHash(id)
		key := s.space.Mark(hash)
		vs, err := s.engine.Get(ctx, key)
		if err != nil {
			return e, err
		}
		if vs[0] == nil {
			e.Gone++
			continue
		}
		m, err := blob.OpenMark(key, vs[0])
		if err != nil {
			return e, codec.Corrupt(err, "mark of blob %s", id)
		}
		if uploads[hash] {
			e.Uploads++
		}
		users, err := s.collector().Users(ctx, hash)
		if err != nil {
			return e, err
		}
		shared := false
		for _, inc := range users {
			other, err := s.histories.About(ctx, inc)
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

// uploads returns the blobs that uploads hold.
func (s *Store) uploads(ctx context.Context) (map[keys.Hash]bool, error) {
	out := map[keys.Hash]bool{}
	for p, err := range s.engine.Scan(ctx, s.space.All(keys.Upload)) {
		if err != nil {
			return nil, err
		}
		_, fields, ok := s.space.Fields(p.Key)
		if !ok {
			return nil, codec.Corrupt(codec.ErrMalformed, "upload at key %x", p.Key)
		}
		out[keys.Hash(fields[16:])] = true
	}
	return out, nil
}

// blobsOf returns the blobs that an incarnation refers to, as far as its records are
// there.
func (s *Store) blobsOf(ctx context.Context, inc head.Incarnation) ([]blob.ID, error) {
	for {
		life, err := s.histories.Life(ctx, inc)
		if err != nil || life == nil {
			return nil, err
		}
		out, err := s.blobsOnce(ctx, inc, life)
		var damage *CorruptError
		if err == nil || !errors.As(err, &damage) {
			return out, err
		}
		if now, lerr := s.histories.Life(ctx, inc); lerr != nil || now != nil && *now == *life {
			return nil, errors.Join(lerr, err)
		}
	}
}

func (s *Store) blobsOnce(ctx context.Context, inc head.Incarnation, life *head.Life) ([]blob.ID, error) {
	last := life.Floor - 1 // of a deleted session
	if life.State == head.Live {
		key := s.space.Head(life.Session)
		vs, err := s.engine.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		h, err := head.OpenHead(key, vs[0])
		if err == nil && h.Incarnation != inc {
			err = codec.ErrHash
		}
		if err != nil {
			return nil, codec.Corrupt(err, "head of incarnation %x", inc)
		}
		last = h.Revision
	} else if life.Floor == 0 {
		last = 0
	}
	h, err := s.histories.Open(ctx, inc)
	if err != nil {
		return nil, err
	}
	var out []blob.ID
	if h.Origin != nil {
		for _, p := range h.Origin.Parts {
			out = append(out, p.Blob)
		}
	}
	err = h.Commits(ctx, 0, last, func(c *head.Commit, _ CommitID) error {
		for _, p := range c.Parts {
			if p.Set == c.Revision && !p.IsDelta() {
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
	tickets, terr := s.tickets(ctx, inc)
	return append(out, tickets...), errors.Join(err, terr)
}

// tickets returns the attachments that a session has uploaded and not committed.
func (s *Store) tickets(ctx context.Context, inc head.Incarnation) (out []blob.ID, err error) {
	for p, err := range s.engine.Scan(ctx, s.space.Of(keys.Upload, inc)) {
		if err != nil {
			return nil, err
		}
		_, fields, ok := s.space.Fields(p.Key)
		if !ok {
			return nil, codec.Corrupt(codec.ErrMalformed, "upload at key %x", p.Key)
		}
		id, err := s.blobs.IDOf(ctx, keys.Hash(fields[16:]))
		if errors.Is(err, blob.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, id)
	}
	return out, nil
}
