// Package gc deletes what nothing reaches. A collection deletes blobs that no node, retained
// checkpoint or upload refers to, and versions of checkpoint parts that no retained revision
// needs. A vacuum also removes the records of deleted sessions and the content of tombstoned and
// pruned nodes, seals commits, and compresses blobs further. An erasure removes a session or some
// of its nodes in one call, and says what still shows or shares them.
//
// Users need the options and reports: see Store.GC, Store.Vacuum and Store.Erase of package turnstone.
// The collector runs beside commits; docs/gc.md says why that is safe.
//
// # Protocol
//
// A collector keeps an index of its own. It has an edge from a blob to everything that
// refers to the blob: sessions, and lists of chunks that the blob is an item of. The number
// of edges of each blob stands under another key. The index is derived from the commits
// and follows them session by session: a session that changed has a dirty record. When a
// change that the index takes over leaves something to vacuum, the collector gives the
// session a stale record, and a blob that can be stored smaller a loose record. Vacuum reads
// these records rather than the store.
//
// A blob that loses its last edge is a candidate. A sweep condemns candidates by writing
// their marks, then looks again at everything that has changed since the index was brought up to date, and only then
// deletes the candidates whose marks are as the sweep wrote them. A commit that relies on a
// blob guards the blob's mark, and revives the blob if it is condemned. So either the
// collector sees the commit, or the commit sees the collector. This does not depend on clocks.
//
//	commit ──▶ dirty record of the session
//	             │
//	             ▼  the index follows: it reads the commits since the session's bookmark
//	           edges and their numbers ──the last edge went──▶ candidate
//	             │                                               │ condemn: write its mark
//	             │                                               │ look again at what changed
//	             ▼                                               ▼
//	           stale and loose records                         delete it, if the mark is as it was
//	             │                                             written; a commit that relies on the
//	             ▼                                             blob has set it to another value
//	           vacuum: seal, erase, remove, compress
//
// # Where to read
//
// collector.go has Run and Plan, vacuum.go has Vacuum; prune.go has the options of a prune only. cycle.go makes sure
// that one collector works at a time; read.go and batch.go are how it
// reads and writes. changes.go, sessions.go and index.go find what changed and add edges;
// retain.go and release.go drop them, and detach.go derives them anew; parts.go follows
// checkpoint parts. sweep.go condemns and deletes; uploads.go lets uploads expire; full.go
// derives the index anew; check.go and check_blobs.go compare it with the commits.
// vacuum.go, remove.go, erase.go, rewrite.go, tree.go, versions.go and recompress.go are vacuum.
// The records of the index are in bookmark.go, edges.go and stale.go, those of detached references
// in vacuum.go. eraser.go, family.go, references.go, copies.go and receipt.go are erasure.
package gc

import (
	"errors"
	"time"
)

// ErrSuperseded reports that another collector has taken over. What this one did stands, and
// the next one goes on from there. Match it with errors.Is.
var ErrSuperseded = errors.New("gc: another collector has taken over")

// Options of a collection. The zero value is a collection at full speed.
type Options struct {
	// DryRun changes nothing and reports what would be done.
	DryRun bool
	// Full derives the collector's index anew from the commits and reports whether it
	// was right. It reads the whole store, and is refused for a single session.
	Full bool
	// Progress, if set, is called from the calling goroutine. It must not collect,
	// vacuum or erase: that would wait for its own end.
	Progress func(Progress)
	// Pace is the part of the time that the collector works, between 0 and 1. The rest
	// it leaves to others. 0 means 1.
	Pace float64
}

// VacuumOptions of a vacuum. The zero value is a vacuum at full speed.
type VacuumOptions struct {
	// Progress and Pace are as in Options.
	Progress func(Progress)
	Pace     float64
	// With NoCompaction the vacuum ends before the engine rewrites its files. The engine gives the space back when it
	// compacts by itself, and removed bytes may stay in the files until then. Such a vacuum costs what has changed since
	// the last one, and not a copy of the store. It frees the blobs that a prune let go of, which a collection does not.
	NoCompaction bool
}

// Progress says how far a run is.
type Progress struct {
	Phase string `json:"phase"` // "sessions", "uploads", "blobs", "records" or "engine"; of a copy "source", "records" or "copy"
	Done  int    `json:"done"`  // of what the phase is about
}

// A Report says what a collection did, or for a dry run would do.
type Report struct {
	Sessions   int           `json:"sessions"`   // sessions that had changed and were read
	Commits    int           `json:"commits"`    // commits of those sessions that were read
	Roots      int           `json:"roots"`      // sessions that live, and uploads
	Retained   int           `json:"retained"`   // blobs that something refers to
	Candidates int           `json:"candidates"` // blobs that something had ceased to refer to
	Condemned  int           `json:"condemned"`  // candidates that nothing referred to
	Revived    int           `json:"revived"`    // condemned blobs that turned out to be referred to
	Deleted    int           `json:"deleted"`    // blobs
	Bytes      int64         `json:"bytes"`      // bytes that the deleted blobs took in the store
	Expired    int           `json:"expired"`    // uploads
	Repaired   bool          `json:"repaired"`   // a full collection found the index to be wrong
	Duration   time.Duration `json:"nanoseconds"`
}

// A VacuumReport says what a vacuum removed.
type VacuumReport struct {
	Report      // of the collections before and after; Duration is of the whole
	Nodes   int `json:"nodes"`   // nodes whose content was removed: tombstoned and pruned ones, and those of deleted sessions
	Records int `json:"records"` // records of deleted sessions
	Removed int `json:"removed"` // deleted sessions of which nothing is left
	// Rewritten counts the versions of checkpoint parts that were deltas of a version
	// which no retained revision has, and are stored whole now.
	Rewritten int `json:"rewritten"`
	Packed    int `json:"packed"` // blobs compressed further than a commit has the time for
	// Unfinished are the ids of sessions that changed again and again while vacuum was
	// at work on them. The next vacuum does the rest.
	Unfinished []string `json:"unfinished,omitempty"`
}
