package turnstone

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
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
	Progress func(Progress)
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
// A source that is damaged is a *CorruptError before anything is written. A target
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
	run := replicate.Copy{
		From: from, To: to, Namespace: o.Namespace, Overwrite: o.Overwrite,
		Open: func(ctx context.Context, e engine.Engine) error {
			st, err := openCopy(ctx, e, &o)
			if err != nil {
				return err
			}
			return st.Close()
		},
		Verify: func(ctx context.Context, e engine.Engine, phase string) error { return verifyCopy(ctx, e, &o, phase) },
		Heads:  func(ctx context.Context, e engine.Engine) (map[string]CommitID, error) { return headsOf(ctx, e, &o) },
	}
	if o.Progress != nil {
		run.Progress = func(records int) { o.Progress(Progress{Phase: "records", Done: records}) }
	}
	r, err := run.Run(ctx)
	return (*CopyReport)(r), err
}

// openCopy opens the source or the target of a copy.
func openCopy(ctx context.Context, e engine.Engine, o *CopyOptions) (*Store, error) {
	return Open(ctx, e, &Options{Namespace: o.Namespace, MustExist: true, NoAutoSeal: true})
}

// verifyCopy verifies the source or the target of a copy. phase says which.
func verifyCopy(ctx context.Context, e engine.Engine, o *CopyOptions, phase string) (err error) {
	st, err := openCopy(ctx, e, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	v, err := st.Verify(ctx, func(done int) {
		if o.Progress != nil {
			o.Progress(Progress{Phase: phase, Done: done})
		}
	})
	if err == nil && !v.OK() {
		err = fmt.Errorf("%s: %w", phase, v.Problems[0])
	}
	return err
}

// headsOf returns the commit ids of all sessions.
func headsOf(ctx context.Context, e engine.Engine, o *CopyOptions) (heads map[string]CommitID, err error) {
	st, err := openCopy(ctx, e, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	heads = map[string]CommitID{}
	for o := (ListOptions{Limit: 1000}); ; {
		page, err := st.List(ctx, o)
		if err != nil {
			return nil, err
		}
		for _, s := range page.Sessions {
			heads[s.ID] = s.Commit
		}
		if o.After = page.Next; o.After == "" {
			return heads, nil
		}
	}
}
