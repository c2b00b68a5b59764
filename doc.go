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
// What [Session.Commit] acknowledged is there after a loss of power (with the
// Badger engine's default durability); what it refused left no trace.
//
// A commit names the revision that its author loaded. If the head has moved, it fails with
// [*ConflictError]. Nothing is rebased or merged behind the caller's back: a commit goes on a
// newer head only with [AnyRevision] or [Update]. A turn that is committed again with the same
// content returns the first result, however late; other content is a [*TurnConflictError].
//
// A read verifies every hash on its way and returns all that was asked for, or
// an error: a [*record.CorruptError] names what is missing or damaged. Missing, empty
// and deleted are different things.
//
// Every limit is a constant of this package. A call that exceeds one fails with a
// [*LimitError] and changes nothing that can be read.
//
// # Beside the history
//
// A [Record] is a small value that a session has under a key: it changes in the batch of a commit, with other sessions,
// or alone, and packages lease, queue and draft are built on records. [Session.Watch] follows the commits of a session, and
// [Store.Watch] the changes of all of them.
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
// maintenance in gc, errors of damaged records in record.
//
// Start reading the code at commit.go and internal/commit, then load.go and
// internal/history. docs/design.md has a picture of the code and says why it is as it is,
// docs/gc.md says how garbage is collected, docs/format.md what every byte means.
package turnstone
