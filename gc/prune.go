package gc

import "time"

// PruneOptions of a prune, and of the prunes of Store.Maintain. The zero value prunes the sessions that have a number
// of revisions of their own. A session whose own retention is to keep all is neither pruned nor deleted.
type PruneOptions struct {
	// Group prunes the sessions of a group only, and of the groups below it, as if there were no others. "" means all.
	Group string `json:"group,omitzero"`
	// Revisions is how many of its last revisions a session retains if it has no number of its own; 0 means all.
	Revisions uint64 `json:"revisions,omitzero"`
	// Age prunes the revisions that are older than this, except the head's. It also prunes sessions that have a number
	// of their own. 0 means none.
	Age time.Duration `json:"ageNanoseconds,omitzero"`
	// Inactive deletes the sessions that for this time got no commit, no metadata and no value of a record. Their
	// children stay, as with KeepChildren. 0 means none.
	Inactive time.Duration `json:"inactiveNanoseconds,omitzero"`
	// Bytes deletes the least recently updated sessions, so that all others together have at most this many bytes of
	// payloads and checkpoint parts, before compression. 0 means none. Content that is stored once for several
	// sessions counts for each of them. A session that retains all counts at its place in that order, and stays.
	Bytes int64 `json:"bytes,omitzero"`
	// DryRun changes nothing and reports what would be done.
	DryRun bool `json:"dryRun,omitzero"`
}

// A PruneReport says what a prune did, or for a dry run would do.
type PruneReport struct {
	Sessions  int      `json:"sessions"`          // whose floor was moved
	Revisions uint64   `json:"revisions"`         // that the floors have passed; those that are kept by name can still be read
	Deleted   []string `json:"deleted,omitempty"` // the ids of the sessions that were deleted
	Bytes     uint64   `json:"bytes"`             // of their payloads and checkpoint parts, before compression
}
