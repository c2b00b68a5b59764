package turnstone

import (
	"context"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/replicate"
)

// CopyOptions of Copy.
type CopyOptions struct {
	Namespace string // as in Options; others of the engine are not copied
	// Overwrite makes a copy that was written to since it was made what the source
	// is all the same: what was written there is lost.
	Overwrite bool
	// Progress, if set, is called from the calling goroutine. Phases are "source"
	// and "copy", which are verified, and "records", which are compared.
	Progress func(gc.Progress)
}

// A CopyReport says what Copy did, as far as it got.
type CopyReport struct {
	Sessions int   `json:"sessions"` // whose heads are equal at the end
	Records  int   `json:"records"`  // of the store
	Written  int   `json:"written"`  // records that the copy did not have so, in all passes
	Bytes    int64 `json:"bytes"`    // of those, keys and values
	Deleted  int   `json:"deleted"`  // records that only the copy had, in all passes
}

// Copy makes the store in to what the one in from is, whatever engines they are:
// it verifies the source, compares all records, writes those that differ, verifies
// the copy, and compares the commit ids of all heads. Once more, it brings a copy
// up to date; after an interruption, it goes on.
//
// A source that is damaged is a *record.CorruptError before anything is written. A target
// that is another store is ErrOtherStore; a copy whose sessions were changed since
// it was made is ErrConflict, unless Overwrite is set.
//
// From its first write until it is proven the copy can't be opened
// (ErrUnfinishedCopy); nobody may have it open already. The source may be written to
// meanwhile: records are compared until a pass finds nothing new, four times at
// most, and then the result is ErrConflict.
func Copy(ctx context.Context, from, to engine.Engine, o CopyOptions) (*CopyReport, error) {
	switch {
	case ctx == nil:
		return nil, invalid("context", "it is nil")
	case from == nil || to == nil:
		return nil, invalid("copy", "an engine is nil")
	}
	c := checker{of: "options"}
	if c.text("namespace", o.Namespace, 0, MaxNamespace); c.err != nil {
		return nil, c.err
	}
	options := replicate.Options{From: from, To: to, Namespace: o.Namespace, Known: heads.Known, Overwrite: o.Overwrite}
	if o.Progress != nil {
		options.Progress = func(phase string, done int) { o.Progress(gc.Progress{Phase: phase, Done: done}) }
	}
	r, err := replicate.Copy(ctx, options)
	return (*CopyReport)(r), err
}
