package turnstone

import (
	"context"
	"encoding/hex"
	"errors"
	"iter"
	"time"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/keys"
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

// Delete removes the session that has an id now from all reads and lists at once: see
// Session.Delete. Deleting one that does not exist is no error.
func (s *Store) Delete(ctx context.Context, id string, policy ChildPolicy) error {
	return remove(ctx, s, id, AnyRevision, policy, func(ctx context.Context) (*Session, error) {
		ses, err := s.Session(ctx, id)
		if errors.Is(err, ErrSessionNotFound) {
			return nil, nil
		}
		return ses, err
	})
}

// Delete removes this session from all reads and lists at once, also if it was renamed since
// the handle was made, and never another one that has its id by now. Deleting it again is no
// error. Its data is garbage as far as no fork holds it. An error that matches
// ErrOutcomeUnknown leaves open whether the session is deleted, and one of CascadeChildren
// that matches ErrIncomplete leaves some deleted.
//
// If the head is not at the expected revision, this session is not deleted, and the error is a *ConflictError: so nobody
// deletes what was committed to it since they looked. Children that CascadeChildren deletes go wherever they are, and a
// conflict that comes while they do also matches ErrIncomplete. AnyRevision deletes the session wherever it is. Metadata,
// and records that were changed without a commit, move no revision.
func (s *Session) Delete(ctx context.Context, expected head.Revision, policy ChildPolicy) error {
	return remove(ctx, s, s.ID(), expected, policy, func(context.Context) (*Session, error) { return s, nil })
}

// remove deletes the session that find returns, if it returns one.
func remove(ctx context.Context, on callee, id string, expected head.Revision, policy ChildPolicy, find func(context.Context) (*Session, error)) error {
	_, err := observed(ctx, on, OpDelete, id, func(ctx context.Context) (struct{}, error) {
		if err := policy.check(); err != nil {
			return struct{}{}, err
		}
		s, err := find(ctx)
		if err != nil || s == nil {
			return struct{}{}, err
		}
		defer s.store.changed(head.Incarnation{})
		_, err = s.store.lifecycle.Delete(ctx, s.session.Inc, expectedOf(expected), commit.Policy(policy))
		return struct{}{}, err
	}, nil)
	return err
}

// EraseOptions of Erase.
type EraseOptions struct {
	// Progress, if set, is told how far the vacuum is, from the calling goroutine. It
	// must not collect, vacuum or erase: that would wait for its own end.
	Progress func(gc.Progress)
	// Pace is that of the vacuum, as in gc.VacuumOptions.
	Pace float64
}

// An Erasure is the receipt of Erase.
type Erasure struct {
	Vacuum *gc.VacuumReport `json:"vacuum"`
	// HeldBy names the sessions that still show the erased content: attached forks, and for a node the session
	// that they forked from. The content goes when the last of these sessions is erased or tombstones it.
	HeldBy []string `json:"heldBy"`
	// Gone counts the payloads, attachments and checkpoint parts that were stored as blobs and no longer are.
	Gone int `json:"gone"`
	// Shared counts those that are still stored because other sessions have equal bytes. SharedBy names these
	// sessions.
	Shared      int      `json:"shared"`
	SharedBytes int64    `json:"sharedBytes"` // as they are stored
	SharedBy    []string `json:"sharedBy"`
	// Uploads counts those that are still stored because an upload of equal bytes waits for a commit. They go
	// when the upload expires or its session is deleted.
	Uploads int `json:"uploads"`
}

// erasure returns the receipt of an erasure with the report of its vacuum, or nil.
func erasure(v *gc.VacuumReport, r *gc.Receipt) *Erasure {
	if r != nil {
		r.Vacuum = v
	}
	return (*Erasure)(r)
}

// Erase deletes a session, and removes what it alone had from the store's files,
// uploads that it has not committed included: Delete, GC and Vacuum in one. It works on
// the whole store, and takes as long as Vacuum.
//
// An error that matches ErrIncomplete leaves the session deleted, and says what is left
// in the files. Erase of the same id again, as long as no other session has it, does the
// rest; so does Vacuum, but for ids in the feed. A receipt of a repeated call knows of shared bytes only as far
// as the session's records were still there.
//
// Erase does not remove text that a host has put into other sessions as well. The server of a database keeps bytes in
// its files for a while: see the driver's Vacuum.
func (s *Store) Erase(ctx context.Context, id string, policy ChildPolicy, o EraseOptions) (*Erasure, error) {
	if _, err := s.usable(ctx); err != nil {
		return nil, err
	}
	if err := policy.check(); err != nil {
		return nil, err
	}
	if err := errors.Join(checkSessionID(id), checkPace("erasure", o.Pace)); err != nil {
		return nil, err
	}
	var v *gc.VacuumReport
	run := gc.Eraser{Store: s.histories, Collector: s.collector(), Now: s.now}
	r, err := run.Session(ctx, id, policy == CascadeChildren,
		func(ctx context.Context, inc head.Incarnation) ([]head.Incarnation, error) {
			defer s.changed(head.Incarnation{})
			return s.lifecycle.Delete(ctx, inc, AnyRevision, commit.Policy(policy))
		},
		func(ctx context.Context) (unfinished []head.Incarnation, err error) {
			v, unfinished, err = vacuum(ctx, s, nil, gc.VacuumOptions{Progress: o.Progress, Pace: o.Pace})
			return unfinished, err
		})
	return erasure(v, r), err
}

// Erase tombstones nodes and removes their content from the store's files, as far
// as no other session shows it: see Erasure.HeldBy. An error that matches ErrIncomplete
// leaves the nodes tombstoned, and says what is left. Erase of the same nodes again does
// the rest; so does Vacuum.
func (s *Session) Erase(ctx context.Context, o EraseOptions, ids ...graph.ID) (*Erasure, error) {
	if _, err := s.usable(ctx); err != nil {
		return nil, err
	}
	if err := checkPace("erasure", o.Pace); err != nil {
		return nil, err
	}
	var v *gc.VacuumReport
	run := gc.Eraser{Store: s.store.histories, Collector: s.store.collector(), Now: s.store.now}
	r, err := run.Nodes(ctx, s.session, ids,
		func(ctx context.Context) error { return s.Tombstone(ctx, ids...) },
		func(ctx context.Context) (err error) {
			v, err = s.store.Vacuum(ctx, gc.VacuumOptions{Progress: o.Progress, Pace: o.Pace})
			return err
		})
	return erasure(v, r), err
}

// An Erased says that a session was erased, or a node of a session. It has nothing of what they contained.
type Erased struct {
	Incarnation string        `json:"incarnation"`   // of the session: see Standing
	Genesis     head.CommitID `json:"genesis"`       // likewise
	Node        graph.ID      `json:"node,omitzero"` // of a node; else zero
	Time        time.Time     `json:"time"`          // when it was erased last
}

// Erasures yields what Store.Erase and Session.Erase have erased in this store, in no order of time. The store keeps
// these notes for backups: what was erased must not come back with a backup of an earlier time.
func (s *Store) Erasures(ctx context.Context) iter.Seq2[Erased, error] {
	return func(yield func(Erased, error) bool) {
		_, err := s.usable(ctx)
		if err == nil {
			err = s.erasures(ctx, func(e Erased) bool { return yield(e, nil) })
		}
		if !errors.Is(err, errEnough) && err != nil {
			yield(Erased{}, public(err))
		}
	}
}

func (s *Store) erasures(ctx context.Context, yield func(Erased) bool) error {
	for p, err := range s.engine.Scan(ctx, s.space.All(keys.Erased)) {
		if err != nil {
			return err
		}
		_, fields, ok := s.space.Fields(p.Key)
		if !ok {
			return codec.Corrupt(damage.ErrMalformed, "erasure at key %x", p.Key)
		}
		at, err := head.DecodeErased(p.Key, p.Value)
		if err != nil {
			return codec.Corrupt(err, "erasure at key %x", p.Key)
		}
		inc, genesis, node := keys.ErasedFields(fields)
		if !yield(Erased{Incarnation: hex.EncodeToString(inc[:]), Genesis: genesis, Node: node, Time: at}) {
			return errEnough
		}
	}
	return nil
}
