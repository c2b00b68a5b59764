package turnstone

import (
	"context"

	"github.com/turnstonedb/turnstone/gc"
)

// Reports and progress of maintenance.
type (
	// GCReport says what a collection did.
	GCReport = gc.Report
	// Progress says how far maintenance is.
	Progress = gc.Progress
)

// GCOptions of GC. The zero value collects the whole store.
type GCOptions struct {
	// DryRun changes nothing and reports what would be done.
	DryRun bool
	// Full derives the collector's index anew from the commits and reports
	// whether it was right. It reads everything.
	Full bool
	// Session, if set, looks only at what changed in this session, and deletes
	// only blobs that this freed.
	Session string
	// Progress, if set, is called from the calling goroutine.
	Progress func(Progress)
	// Pace is the part of the time that the collector works, between 0 and 1: the
	// rest it leaves to others. 0 means 1.
	Pace float64
}

// GC deletes the blobs that nothing refers to any more: no commit of a session
// that lives, no attached fork, no retained or kept revision, no upload that has
// not expired. It may run at any time, beside commits and in several processes;
// it may be cancelled, and the next one goes on. It reads what changed since the
// last one. A *CorruptError says that something that should agree does not; then
// nothing more is deleted.
func (s *Store) GC(ctx context.Context, o GCOptions) (*GCReport, error) {
	run := gc.Options{Full: o.Full, Progress: o.Progress, Pace: o.Pace}
	if o.Session != "" {
		ses, err := s.Session(ctx, o.Session)
		if err != nil {
			return nil, err
		}
		run.Session = &ses.inc
	}
	if o.DryRun {
		return s.collector().Plan(ctx, run)
	}
	return s.collector().Run(ctx, run)
}

func (s *Store) collector() *gc.Collector { return gc.New(s.engine, s.space, s.blobs, s.now) }
