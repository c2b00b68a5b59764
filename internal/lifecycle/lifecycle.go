// Package lifecycle is everything that happens to a session but commits: it is created and
// forked, renamed and deleted, its metadata are saved, nodes are tombstoned, revisions are
// kept and pruned.
//
// All of these but creation and metadata set the session's lifecycle record: see
// change.Alter. So they exclude each other, and sealing and vacuum, without ever delaying a
// commit.
package lifecycle

import "github.com/turnstonedb/turnstone/internal/commit"

// A Store is what sessions live in.
type Store struct {
	*commit.Store
	Limits Limits
}

// Limits are those that a call can only check when it knows the session.
type Limits struct {
	Ancestors int // that a fork has
	Kept      int // revisions that a session keeps by name
	Labels    int // of a session
}
