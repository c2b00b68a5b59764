// Package eino keeps the checkpoints of Eino in a store of Turnstone: of graphs, of the runner of agents, and of the
// turn loop. It works on any turnstone.Factory: a store in the process, or a client of a server. It has the methods
// of Eino's interfaces, and needs nothing else of Eino.
package eino

import (
	"context"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/head"
)

const (
	group = "eino"
	part  = "checkpoint"
)

// A CheckPointStore is a compose.CheckPointStore and an adk.CheckPointDeleter. It is safe for concurrent use.
//
// A checkpoint is a session of the store, eino/ID in the group eino, with one checkpoint part: the next version is
// stored as its difference. A prune of the store retains the last version alone. What was pruned or deleted leaves
// the disk with the next vacuum. An id has at most 507 bytes, and a checkpoint at most turnstone.MaxPart.
type CheckPointStore struct{ store turnstone.Factory }

// NewCheckPointStore returns a checkpoint store on a store of Turnstone.
func NewCheckPointStore(store turnstone.Factory) *CheckPointStore { return &CheckPointStore{store} }

func sessionID(id string) string { return group + "/" + id }

// Get returns the last checkpoint of an id, and false if there is none.
func (s *CheckPointStore) Get(ctx context.Context, id string) (checkpoint []byte, ok bool, err error) {
	session, err := s.store.Session(ctx, sessionID(id))
	if err != nil {
		return nil, false, none(err)
	}
	parts, err := session.Checkpoint(ctx, 0)
	if err != nil {
		return nil, false, none(err)
	}
	checkpoint, ok = parts[part]
	return checkpoint, ok, nil
}

// Set stores a checkpoint in place of the one that the id has. After an error that matches
// turnstone.ErrOutcomeUnknown, set it again.
func (s *CheckPointStore) Set(ctx context.Context, id string, checkpoint []byte) error {
	_, err := s.store.CommitAll(ctx, turnstone.SessionCommit{
		Create: &turnstone.Request{ID: sessionID(id), Metadata: head.Metadata{Group: group, Retention: 1}},
		Commit: turnstone.Commit{Expected: turnstone.AnyRevision, Checkpoint: map[string][]byte{part: checkpoint}},
	})
	return err
}

// Delete deletes the checkpoint of an id. If there is none, that is no error.
func (s *CheckPointStore) Delete(ctx context.Context, id string) error {
	return s.store.Delete(ctx, sessionID(id), turnstone.KeepChildren)
}

// none returns nil for an error which says that there is no checkpoint.
func none(err error) error {
	if adapter.Gone(err) {
		return nil
	}
	return err
}
