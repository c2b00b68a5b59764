// Package lifecycle has the calls that change a session in another way than by a commit. They
// create, fork, rename and delete sessions, save their metadata, tombstone nodes, and keep
// and prune revisions.
//
// Most calls guard the session's lifecycle record and set it: see change.Alter. So they exclude
// each other, sealing and vacuum. A commit that goes on from the head's leaf does not use that
// record. Delete and Rename guard the head, too, and so exclude every commit. Create guards that
// there is no record yet; for a fork it guards and sets those of its ancestors. SaveMetadata
// guards the metadata.
package lifecycle

import "github.com/turnstonedb/turnstone/internal/commit"

// A Store is a store whose sessions can be changed.
type Store struct {
	*commit.Store
	Limits Limits
}

// Limits are the limits that depend on what a session has already.
type Limits struct {
	Ancestors int // A fork of more ancestors is flattened.
	Labels    int // How many labels a session may have.
}
