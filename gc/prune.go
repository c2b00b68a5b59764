package gc

import "time"

// PruneOptions of a prune, and of the prunes of Store.Maintain. The zero value prunes the sessions that have a number
// of revisions of their own. A session whose own retention is to keep all is neither pruned nor deleted.
type PruneOptions struct {
	// Revisions is how many of its last revisions a session retains that has no number of its own; 0 means all.
	Revisions uint64
	// Age prunes the revisions that were committed so long ago, but for that of the head, also of sessions that have a
	// number of their own; 0 means none.
	Age time.Duration
	// Inactive deletes the sessions that were not committed to for so long, and of which neither metadata were saved
	// nor a record was set; 0 means none. Their children stay, as with KeepChildren.
	Inactive time.Duration
	// Bytes deletes those sessions that were updated least recently, so that all others together have at most so
	// many bytes of payloads and checkpoint parts, before compression; 0 means none. What is stored once for several
	// sessions counts for each. A session that retains all counts where it comes in that order, and stays.
	Bytes int64
	// DryRun changes nothing and reports what would be done.
	DryRun bool
}

// A PruneReport says what a prune did, or for a dry run would do.
type PruneReport struct {
	Sessions  int      `json:"sessions"`          // whose floor was moved
	Revisions uint64   `json:"revisions"`         // that the floors have passed; those that are kept by name can still be read
	Deleted   []string `json:"deleted,omitempty"` // the ids of the sessions that were deleted
	Bytes     uint64   `json:"bytes"`             // of their payloads and checkpoint parts, before compression
}
