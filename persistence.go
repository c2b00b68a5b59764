package turnstone

import (
	"context"
	"io"
)

// Persistence is what a runtime codes against: one session's store. *Session
// implements it; a host may implement it itself, for example over a service of
// its own, and prove it with package persistencetest.
//
// Implementations are safe for concurrent use. What Commit acknowledged is
// loaded again, by any handle, until the session is deleted; what it refused
// left no trace.
type Persistence interface {
	// ID returns the session's id.
	ID() string
	// Info returns metadata, head and totals, without reading history.
	Info(ctx context.Context) (Info, error)
	// SaveMetadata empties fields and then merges m; it moves no revision.
	SaveMetadata(ctx context.Context, m Metadata, empty ...Field) error
	// Load reads history by scope.
	Load(ctx context.Context, scope Scope) (*State, error)
	// Node returns one node, or ErrNodeNotFound.
	Node(ctx context.Context, id NodeID) (Node, error)
	// NodeByKey returns the node with the caller's key, or ErrNodeNotFound.
	NodeByKey(ctx context.Context, key string) (Node, error)
	// Checkpoint returns the checkpoint parts at a revision; 0 is the head's.
	Checkpoint(ctx context.Context, at Revision) (map[string][]byte, error)
	// Commit stores one turn, whole or not at all.
	Commit(ctx context.Context, c Commit) (Result, error)
	// Tombstone soft-deletes nodes.
	Tombstone(ctx context.Context, ids ...NodeID) error
	// GC deletes blobs that this session let go of and nothing refers to.
	GC(ctx context.Context) (*GCReport, error)
	// Vacuum removes the content of tombstoned nodes from the store's files.
	Vacuum(ctx context.Context) (*VacuumReport, error)
	// PutAttachment stores bytes for a commit to refer to.
	PutAttachment(ctx context.Context, r io.Reader, size int64, mediaType, name string) (Attachment, error)
	// ReadAttachment writes an attachment of this session to w.
	ReadAttachment(ctx context.Context, w io.Writer, id BlobID) (int64, error)
}

// Factory makes a Persistence per session on demand: one at boot, sessions by
// id per request. *Store implements it.
type Factory interface {
	// NewPersistence makes a session, or returns the one that exists with created = false.
	NewPersistence(ctx context.Context, r Request) (p Persistence, created bool, err error)
	// Persistence returns an existing session, or ErrSessionNotFound.
	Persistence(ctx context.Context, id string) (Persistence, error)
	// List returns sessions, the most recently updated first.
	List(ctx context.Context, o ListOptions) (Page, error)
	// Delete removes a session.
	Delete(ctx context.Context, id string, policy ChildPolicy) error
	// GC deletes the blobs that nothing refers to any more.
	GC(ctx context.Context, o GCOptions) (*GCReport, error)
	// Vacuum removes what is detached, and gives the space back.
	Vacuum(ctx context.Context, o VacuumOptions) (*VacuumReport, error)
}

var (
	_ Persistence = (*Session)(nil)
	_ Factory     = (*Store)(nil)
)

// NewPersistence is Create for callers of Factory.
func (s *Store) NewPersistence(ctx context.Context, r Request) (Persistence, bool, error) {
	ses, created, err := s.Create(ctx, r)
	if err != nil {
		return nil, false, err
	}
	return ses, created, nil
}

// Persistence is Session for callers of Factory.
func (s *Store) Persistence(ctx context.Context, id string) (Persistence, error) {
	ses, err := s.Session(ctx, id)
	if err != nil {
		return nil, err
	}
	return ses, nil
}
