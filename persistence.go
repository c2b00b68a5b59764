// Package turnstone persists the sessions of AI agents: a content-addressed
// graph store with compare-and-swap commits, on an engine of the caller's choice.
//
// # Nouns
//
// A [Store] is many sessions in one namespace of one engine. A [Session] is one
// conversation: metadata, a head and a history. Its history is a graph of nodes,
// each one immutable event (user input, assistant message, tool call, …) that
// names the one before it. A [Commit] is one turn: the nodes that it appends,
// where the leaf moves, checkpoint parts, usage; all of it or nothing. The head
// is where the session stands: a [head.Revision] that every commit increases by one,
// and the leaf, the node from which the next turn goes on. A checkpoint is named
// parts of state that the host wants back with the history, such as tools or a
// prompt. An attachment is bytes of any size that a node refers to.
//
// # Rules
//
// What [Session.Commit] acknowledged is there after a loss of power (with an engine's
// default durability, if it has files); what it refused left no trace.
//
// A commit names the revision that its author loaded. If the head has moved, it fails with
// [*ConflictError]. Nothing is rebased or merged behind the caller's back: a commit goes on a
// newer head only with [AnyRevision] or [Update]. A turn that is committed again with the same
// content returns the first result, however late; other content is a [*TurnConflictError].
//
// A read verifies every hash on its way and returns all that was asked for, or
// an error: a [*damage.CorruptError] names what is missing or damaged. Missing, empty
// and deleted are different things.
//
// Every limit is a constant of this package. A call that exceeds one fails with a
// [*LimitError] and changes nothing that can be read.
//
// # Beside the history
//
// A [Record] is a small value that a session has under a key: it changes in the batch of a commit, with other
// sessions, or alone. Packages lease, queue, draft and effect are built on records. [Session.Watch] follows the
// commits of a session, and [Store.Watch] the changes of all sessions.
//
// # Reclaiming
//
// What is deleted, tombstoned, pruned or replaced is gone from reads at once, and
// from the store's files after [Store.GC] and [Store.Vacuum]. Nothing calls them
// by itself: see [Store.Maintain]. They run beside commits, and need no pause.
//
// # Ownership
//
// The engine stays the caller's: close it after the store. Slices that are
// passed in are not kept after the call; those that are returned are the
// caller's. Handles and stores are safe for concurrent use.
//
// # Packages
//
// Types that calls take and return are in small packages: ids of nodes in graph, ids of blobs
// and attachments in blob, revisions and usage in head, options and reports of
// collection, vacuum and prune in gc, errors of damaged records, and of those of another version, in damage.
//
// Start reading the code at commit.go and internal/commit, then load.go and
// internal/history. docs/design.md has a picture of the code and says why it is as it is,
// docs/gc.md says how garbage is collected, docs/format.md what every byte means.
package turnstone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// Persistence is what a runtime codes against: one session's store. *Session
// implements it; a host may implement it itself, for example over a service of
// its own, and prove it with package persistencetest.
//
// Implementations are safe for concurrent use. What Commit acknowledged is
// loaded again, by any handle, until the session is deleted; what it refused
// left no trace.
type Persistence interface {
	Reader
	Committer
	Maintainer
}

// A Reader reads one session. See Persistence.
type Reader interface {
	// ID returns the session's id.
	ID() string
	// Info returns metadata, head and totals, without reading history.
	Info(ctx context.Context) (Info, error)
	// Load reads history by scope.
	Load(ctx context.Context, scope Scope) (*State, error)
	// Nodes yields the nodes that Load returns, one at a time.
	Nodes(ctx context.Context, scope Scope) iter.Seq2[Node, error]
	// Node returns one node, or ErrNodeNotFound.
	Node(ctx context.Context, id graph.ID) (Node, error)
	// NodeByKey returns the node with the caller's key, or ErrNodeNotFound.
	NodeByKey(ctx context.Context, key string) (Node, error)
	// NodesByKey returns those nodes that have one of the caller's keys, by key.
	NodesByKey(ctx context.Context, keys ...string) (map[string]Node, error)
	// Leaves returns the ends of branches.
	Leaves(ctx context.Context) ([]Node, error)
	// Kept returns the revisions that are kept by name.
	Kept(ctx context.Context) ([]head.Kept, error)
	// Checkpoint returns the checkpoint parts at a revision; 0 is the head's.
	Checkpoint(ctx context.Context, at head.Revision) (map[string][]byte, error)
	// Record returns the record of a key, or ErrRecordNotFound.
	Record(ctx context.Context, key string) (Record, error)
	// Records lists records in the order of their keys.
	Records(ctx context.Context, q RecordQuery) (RecordPage, error)
	// WatchRecords yields the records whose keys begin with prefix, and the changes of them that come.
	WatchRecords(ctx context.Context, prefix string) iter.Seq2[RecordUpdate, error]
	// Log yields the commits after a revision, up to the head.
	Log(ctx context.Context, after head.Revision) iter.Seq2[LogEntry, error]
	// Watch yields the commits after a revision, and those that come.
	Watch(ctx context.Context, after head.Revision) iter.Seq2[LogEntry, error]
	// Uploads returns the attachments that wait for a commit to refer to them.
	Uploads(ctx context.Context) ([]Upload, error)
	// Attachment returns what is known of an attachment, and Attachments all that the nodes have.
	Attachment(ctx context.Context, id blob.ID) (Attached, error)
	Attachments(ctx context.Context) ([]Attached, error)
	// ReadAttachment writes an attachment of this session to w.
	ReadAttachment(ctx context.Context, w io.Writer, id blob.ID) (int64, error)
}

// A Committer changes one session. See Persistence.
type Committer interface {
	// Commit stores one turn, whole or not at all.
	Commit(ctx context.Context, c Commit) (Result, error)
	// ChangeRecords sets, deletes and checks records, all or none, without a commit.
	ChangeRecords(ctx context.Context, changes ...RecordChange) ([]RecordVersion, error)
	// SaveMetadata empties fields and then merges m; it moves no revision.
	SaveMetadata(ctx context.Context, m head.Metadata, empty ...head.Field) error
	// Tombstone soft-deletes nodes.
	Tombstone(ctx context.Context, ids ...graph.ID) error
	// Keep keeps a revision under a name, and Release ends that.
	Keep(ctx context.Context, name string, r head.Revision) error
	Release(ctx context.Context, name string) error
	// Rename gives the session another id, and Delete removes it, if its head is at the expected revision or that is
	// AnyRevision: this very session, and not another one that has its id by now.
	Rename(ctx context.Context, to string) error
	Delete(ctx context.Context, expected head.Revision, policy ChildPolicy) error
	// PutAttachment stores bytes for a commit to refer to.
	PutAttachment(ctx context.Context, r io.Reader, size int64, mediaType, name string) (blob.Attachment, error)
	// LinkAttachment takes an attachment of another session over, without its bytes.
	LinkAttachment(ctx context.Context, from string, id blob.ID) (blob.Attachment, error)
}

// A Maintainer reclaims what one session let go of. See Persistence.
type Maintainer interface {
	// GC deletes blobs that this session let go of and nothing refers to.
	GC(ctx context.Context, o gc.Options) (*gc.Report, error)
	// Vacuum removes the content of tombstoned nodes from the store's files.
	Vacuum(ctx context.Context, o gc.VacuumOptions) (*gc.VacuumReport, error)
	// Prune retains the last revisions, and those that are kept by name.
	Prune(ctx context.Context, keep head.Retention) (moved bool, err error)
	// Erase tombstones nodes and removes their content from the store's files.
	Erase(ctx context.Context, o EraseOptions, ids ...graph.ID) (*Erasure, error)
	// Seal makes segments of loose commits.
	Seal(ctx context.Context) error
}

// An Operator looks after all sessions of a Factory. The factories of a store and of package client are operators; a
// host's own need not be one.
type Operator interface {
	// Stats says what there is, and what it takes.
	Stats(ctx context.Context) (*Stats, error)
	// Verify checks every hash, link, checksum and reference.
	Verify(ctx context.Context, o VerifyOptions) (*Verification, error)
	// Prune applies retention to all sessions, or to those of a group.
	Prune(ctx context.Context, o gc.PruneOptions) (*gc.PruneReport, error)
	// Erase deletes the session that has an id now, and removes what it alone had from the store's files.
	Erase(ctx context.Context, id string, policy ChildPolicy, o EraseOptions) (*Erasure, error)
	// Seal makes segments of loose commits.
	Seal(ctx context.Context) error
	// Upgrade raises the format to the newest one.
	Upgrade(ctx context.Context) (*Upgraded, error)
}

// A Factory makes a Persistence for each session on demand: a host has one Factory, and
// asks it for sessions by their ids. Store.Factory returns that of a store.
type Factory interface {
	// Create makes a session, or returns the one that exists with created = false.
	Create(ctx context.Context, r Request) (p Persistence, created bool, err error)
	// Session returns an existing session, or ErrSessionNotFound.
	Session(ctx context.Context, id string) (Persistence, error)
	// CommitAll stores a turn in each of several sessions of the factory, all or none.
	CommitAll(ctx context.Context, commits ...SessionCommit) ([]Result, error)
	// List returns sessions, the most recently updated first.
	List(ctx context.Context, o ListOptions) (Page, error)
	// Records lists records of all sessions, in the order of their keys.
	Records(ctx context.Context, q RecordQuery) (RecordPage, error)
	// WatchRecords yields records of all sessions, and the changes of them that come.
	WatchRecords(ctx context.Context, prefix string) iter.Seq2[RecordUpdate, error]
	// StartFeed turns the feed of changes on, and StopFeed off.
	StartFeed(ctx context.Context, o FeedOptions) error
	StopFeed(ctx context.Context) error
	// Feed returns what the feed has, and Watch yields the changes after a cursor, and those that come.
	Feed(ctx context.Context) (Feed, error)
	Watch(ctx context.Context, after Cursor) iter.Seq2[Change, error]
	// Delete removes the session that has an id now.
	Delete(ctx context.Context, id string, policy ChildPolicy) error
	// GC deletes the blobs that nothing refers to any more.
	GC(ctx context.Context, o gc.Options) (*gc.Report, error)
	// Vacuum removes what is detached, and gives the space back.
	Vacuum(ctx context.Context, o gc.VacuumOptions) (*gc.VacuumReport, error)
}

var (
	_ Persistence = (*Session)(nil)
	_ Operator    = (*Store)(nil)
)

// Factory returns the store as a Factory, for code that also works on other
// implementations.
func (s *Store) Factory() Factory { return factory{s} }

// factory is a store whose sessions are of the interface's type.
type factory struct{ *Store }

func (f factory) Create(ctx context.Context, r Request) (Persistence, bool, error) {
	s, created, err := f.Store.Create(ctx, r)
	if err != nil {
		return nil, false, err
	}
	return s, created, nil
}

func (f factory) Session(ctx context.Context, id string) (Persistence, error) {
	s, err := f.Store.Session(ctx, id)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Update loads what scope says, calls build with it, and commits what build returns at the
// revision that was loaded; it sets Commit.Expected itself. If another commit comes first,
// Update waits for a few milliseconds at random and does all of it again, until the commit
// succeeds or ctx is done, and then the error matches that of ctx. All other errors are
// returned at once: those of build, and a commit that was refused or whose outcome is
// unknown. build may be called several times, and should have no effect of its own.
//
// Set Commit.Turn if the outcome of an earlier call may be unknown. If that call has
// committed, the result is a *TurnConflictError, which names the commit, because build has
// seen the state after it; an equal commit returns the first result.
//
// The scope must be of the head's path: At and Leaf are refused with an *InvalidError.
func Update(ctx context.Context, s Persistence, scope Scope, build func(*State) (Commit, error)) (Result, error) {
	switch {
	case s == nil || build == nil:
		return Result{}, invalid("update", "the session or the function is nil")
	case scope.At != 0 || !scope.Leaf.IsZero():
		return Result{}, invalid("update", "the scope has At or Leaf: a commit goes on from the head")
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		st, err := s.Load(ctx, scope)
		if err != nil {
			return Result{}, err
		}
		c, err := build(st)
		if err != nil {
			return Result{}, err
		}
		c.Expected = st.Revision
		r, err := s.Commit(ctx, c)
		if !errors.Is(err, ErrConflict) || errors.Is(err, ErrOutcomeUnknown) {
			return r, err
		}
		var conflict *ConflictError // of a node that is not on the path that was loaded, it would be one again
		if errors.As(err, &conflict) && !conflict.Node.IsZero() && conflict.Revision == st.Revision {
			return r, err
		}
		select {
		case <-ctx.Done():
			return Result{}, fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(rand.N(wait)):
		}
	}
}
