package turnstone

import (
	"context"
	"errors"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// An Erasure is the receipt of Erase.
type Erasure struct {
	Vacuum *VacuumReport `json:"vacuum"`
	// HeldBy are the sessions that still show what was to be erased: attached
	// forks, and for a node the session that they forked from. It goes when the
	// last of them is erased, or tombstones it.
	HeldBy []string `json:"heldBy"`
	// Shared are payloads, attachments and checkpoint parts that are left because
	// equal bytes belong to other sessions too, which SharedBy names.
	Shared      int      `json:"shared"`
	SharedBytes int64    `json:"sharedBytes"` // as they are stored
	SharedBy    []string `json:"sharedBy"`
}

// Erase deletes a session, and removes what it alone had from the store's files:
// Delete, GC and Vacuum in one. It works on the whole store, and takes as long as
// Vacuum. An error that matches ErrIncomplete leaves the session deleted and its
// content in the files: the next Vacuum removes it.
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
	ses, err := s.Session(ctx, id)
	if err != nil {
		return nil, err
	}
	blobs, err := ses.blobs(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.Delete(ctx, id, policy); err != nil {
		return nil, err
	}
	done := change{partly: true} // from here on an error leaves the session deleted
	forks, err := s.forksOf(ctx, nil, ses.inc)
	if err != nil {
		return nil, done.told(err)
	}
	e, err := s.erased(ctx, forks, blobs, progress, func(fork *Session) (bool, error) {
		return slices.ContainsFunc(fork.layers(AnyRevision), func(l layer) bool { return l.inc == ses.inc && l.last > 0 }), nil
	})
	return e, done.told(err)
}

// Erase tombstones nodes and removes their content from the store's files, as far
// as no other session shows it: see Erasure.HeldBy.
func (s *Session) Erase(ctx context.Context, progress func(Progress), ids ...NodeID) (*Erasure, error) {
	if _, err := s.usable(ctx); err != nil {
		return nil, err
	}
	h, _, err := s.readHead(ctx)
	if err != nil {
		return nil, err
	}
	var blobs []blob.ID
	var owners []head.Incarnation // of the histories that the nodes are in
	for _, id := range ids {
		n, err := s.find(ctx, h.Revision, id)
		if err != nil {
			return nil, err
		}
		blobs = append(blobs, n.Blobs()...)
		at, err := retried(ctx, s, func() (spot, error) { return s.place(ctx, h.Revision, id) })
		if err != nil {
			return nil, err
		}
		if !slices.Contains(owners, at.layer.inc) {
			owners = append(owners, at.layer.inc)
		}
	}
	if err := s.Tombstone(ctx, ids...); err != nil {
		return nil, err
	}
	done := change{partly: true} // from here on an error leaves the nodes tombstoned
	related := slices.Clone(owners)
	for _, inc := range owners { // from now on a fork does not show the nodes
		if related, err = s.store.forksOf(ctx, related, inc); err != nil {
			return nil, done.told(err)
		}
	}
	e, err := s.store.erased(ctx, related, blobs, progress, func(other *Session) (bool, error) {
		for _, id := range ids {
			if _, err := other.Node(ctx, id); !errors.Is(err, ErrNodeNotFound) {
				return err == nil, err
			}
		}
		return false, nil
	})
	return e, done.told(err)
}

// forksOf adds to out the incarnations that were attached to inc.
func (s *Store) forksOf(ctx context.Context, out []head.Incarnation, inc head.Incarnation) ([]head.Incarnation, error) {
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
	return out, nil
}

// erased vacuums and says what is left: which of the related sessions hold what
// was to go, and which blobs stay.
func (s *Store) erased(ctx context.Context, related []head.Incarnation, blobs []blob.ID, progress func(Progress), holds func(*Session) (bool, error)) (*Erasure, error) {
	v, err := s.Vacuum(ctx, VacuumOptions{Progress: progress})
	if err != nil {
		return nil, err
	}
	e := &Erasure{Vacuum: v, HeldBy: []string{}, SharedBy: []string{}}
	for _, inc := range related {
		other, err := s.byIncarnation(ctx, inc)
		if err != nil {
			return nil, err
		}
		if other == nil || slices.Contains(e.HeldBy, other.id) {
			continue
		}
		if held, err := holds(other); err != nil {
			return nil, err
		} else if held {
			e.HeldBy = append(e.HeldBy, other.id)
		}
	}
	by := map[string]bool{}
	seen := map[blob.ID]bool{}
	for _, id := range blobs {
		if seen[id] {
			continue
		}
		seen[id] = true
		hash := s.space.BlobHash(id)
		key := s.space.Mark(hash)
		vs, err := s.engine.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		if vs[0] == nil {
			continue
		}
		m, err := blob.OpenMark(key, vs[0])
		if err != nil {
			return nil, codec.Corrupt(err, "mark of blob %s", id)
		}
		shared := false
		for p, err := range s.engine.Scan(ctx, s.space.Of(keys.Edge, hash)) {
			if err != nil {
				return nil, err
			}
			_, fields, ok := s.space.Fields(p.Key)
			if !ok || fields[16] != 's' {
				continue
			}
			inc := head.Incarnation(fields[17:])
			other, err := s.byIncarnation(ctx, inc)
			if err != nil {
				return nil, err
			}
			// What is left because of HeldBy is not shared, but held.
			if other != nil && !slices.Contains(related, inc) {
				by[other.id], shared = true, true
			}
		}
		if shared {
			e.Shared, e.SharedBytes = e.Shared+1, e.SharedBytes+m.Bytes
		}
	}
	for id := range by {
		e.SharedBy = append(e.SharedBy, id)
	}
	slices.Sort(e.HeldBy)
	slices.Sort(e.SharedBy)
	return e, nil
}

// byIncarnation returns the session that lives with an incarnation, or nil.
func (s *Store) byIncarnation(ctx context.Context, inc head.Incarnation) (*Session, error) {
	key := s.space.Life(inc)
	vs, err := s.engine.Get(ctx, key)
	if err != nil || vs[0] == nil {
		return nil, err
	}
	life, err := head.OpenLife(key, vs[0])
	if err != nil {
		return nil, codec.Corrupt(err, "lifecycle of incarnation %x", inc)
	}
	if life.State != head.Live {
		return nil, nil
	}
	key = s.space.About(life.Session)
	if vs, err = s.engine.Get(ctx, key); err != nil || vs[0] == nil {
		return nil, err
	}
	about, err := head.OpenAbout(key, vs[0])
	if err != nil {
		return nil, codec.Corrupt(err, "metadata of incarnation %x", inc)
	}
	ses, err := s.Session(ctx, about.ID)
	if errors.Is(err, ErrSessionNotFound) || err == nil && ses.inc != inc {
		return nil, nil
	}
	return ses, err
}

// blobs returns the blobs that the session itself refers to.
func (s *Session) blobs(ctx context.Context) ([]blob.ID, error) {
	return retried(ctx, s, func() ([]blob.ID, error) {
		h, _, err := s.readHead(ctx)
		if err != nil {
			return nil, err
		}
		var out []blob.ID
		err = s.commits(ctx, 0, h.Revision, func(c *head.Commit, _ CommitID) error {
			for _, p := range c.Parts {
				if p.Set == c.Revision {
					out = append(out, p.Blob)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		layers := s.layers(h.Revision)
		nodes, err := s.read(ctx, layers[len(layers)-1], 0, nil)
		for i := range nodes {
			out = append(out, nodes[i].Blobs()...)
		}
		return out, err
	})
}
