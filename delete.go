package turnstone

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/erase"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/lifecycle"
)

// A ChildPolicy says what Delete does with the children of a session.
type ChildPolicy int

const (
	// KeepChildren leaves them whole: attached forks keep what they share alive.
	// They have no parent any more.
	KeepChildren ChildPolicy = iota
	// RefuseChildren deletes nothing and returns ErrHasChildren.
	RefuseChildren
	// CascadeChildren deletes them too, deepest first. It is not one atomic
	// step: an error that matches ErrIncomplete leaves some deleted.
	CascadeChildren
)

// Delete removes a session from all reads and lists at once. Deleting one that
// does not exist is no error. Its data is garbage as far as no fork holds it. An
// error that matches ErrOutcomeUnknown leaves open whether the session is deleted,
// and one of CascadeChildren that matches ErrIncomplete leaves some deleted.
func (s *Store) Delete(ctx context.Context, id string, policy ChildPolicy) error {
	_, err := observed(ctx, s, OpDelete, id, func(ctx context.Context) (struct{}, error) {
		if err := policy.check(); err != nil {
			return struct{}{}, err
		}
		ses, err := s.Session(ctx, id)
		if errors.Is(err, ErrSessionNotFound) {
			return struct{}{}, nil
		}
		if err != nil {
			return struct{}{}, err
		}
		return struct{}{}, s.lifecycle.Delete(ctx, ses.session.Inc, lifecycle.Policy(policy))
	}, nil)
	return err
}

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

func erasure(v *VacuumReport, r *erase.Receipt) *Erasure {
	return &Erasure{
		Vacuum: v, HeldBy: r.HeldBy, Gone: r.Gone, Shared: r.Shared, SharedBytes: r.SharedBytes, SharedBy: r.SharedBy, Uploads: r.Uploads,
	}
}

// erasures returns where erasures read.
func (s *Store) erasures() erase.Store {
	return erase.Store{Store: s.histories, Collector: s.collector()}
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
	if err := checkSessionID(id); err != nil {
		return nil, err
	}
	inc, err := s.erasures().Incarnation(ctx, id)
	if err != nil {
		return nil, err
	}
	incs, err := s.erasures().Family(ctx, inc, policy == CascadeChildren)
	if err != nil {
		return nil, err
	}
	var blobs []blob.ID
	for _, inc := range incs {
		some, err := s.erasures().Blobs(ctx, inc)
		if err != nil {
			return nil, err
		}
		blobs = append(blobs, some...)
	}
	if err := s.lifecycle.Delete(ctx, inc, lifecycle.Policy(policy)); err != nil {
		return nil, err
	}
	done := change.Change{Partly: true} // from here on an error leaves the session deleted
	v, err := s.Vacuum(ctx, VacuumOptions{Progress: progress})
	if err != nil {
		return nil, done.Result(err)
	}
	r, err := s.erasures().Receipt(ctx, incs, blobs, func(fork *history.Session) (bool, error) {
		return slices.ContainsFunc(fork.Layers(AnyRevision), func(l history.Layer) bool { return slices.Contains(incs, l.Inc) && l.Last > 0 }), nil
	})
	e := erasure(v, r)
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
	r, err := s.store.erasures().Receipt(ctx, owners, blobs, func(other *history.Session) (bool, error) {
		for _, id := range ids {
			if shown, err := other.Shows(ctx, id); shown || err != nil {
				return shown, err
			}
		}
		return false, nil
	})
	e := erasure(v, r)
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
