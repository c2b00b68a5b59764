// Package gc has the options and reports of collections and vacuums. A collection deletes blobs
// that no node, retained checkpoint or upload refers to. A vacuum also removes the records of
// deleted sessions and the content of tombstoned nodes, and gives the space back.
//
// See Store.GC and Store.Vacuum, docs/gc.md for why they are safe beside commits, and
// package internal/reclaim for the code.
package gc

import (
	"errors"
	"time"
)

// ErrSuperseded reports that another collector has taken over, or that the store was
// upgraded meanwhile. What this one did stands, and the next one goes on from there. Match it
// with errors.Is.
var ErrSuperseded = errors.New("gc: another collector has taken over, or the store was upgraded")

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
