package turnstone

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/gc"
)

// Reports and progress of maintenance.
type (
	// GCReport says what a collection did.
	GCReport = gc.Report
	// Progress says how far maintenance is.
	Progress = gc.Progress
)

// A VacuumReport says what a vacuum removed.
type VacuumReport struct {
	gc.VacuumReport
	// Unfinished are the ids of sessions that changed again and again while vacuum was
	// at work on them. The next vacuum does the rest.
	Unfinished []string `json:"unfinished,omitempty"`
}

// GCOptions of GC. The zero value collects the whole store.
type GCOptions struct {
	// DryRun changes nothing and reports what would be done.
	DryRun bool
	// Full derives the collector's index anew from the commits and reports
	// whether it was right. It reads everything, and so goes with no Session.
	Full bool
	// Session, if set, looks only at what changed in this session, and deletes
	// only blobs that this freed.
	Session string
	// Progress, if set, is called from the calling goroutine. It must not collect,
	// vacuum or erase: that would wait for its own end.
	Progress func(Progress)
	// Pace is the part of the time that the collector works, between 0 and 1: the
	// rest it leaves to others. 0 means 1.
	Pace float64
}

// GC deletes the blobs that nothing refers to any more: no commit of a session
// that lives, no attached fork, no retained or kept revision, no upload that has
// not expired. It may run at any time, beside commits and in several processes;
// it may be cancelled, and the next one goes on. Collections and vacuums take turns:
// see Options.TakeOverAfter. It reads what changed since the
// last one. A *CorruptError says that something that should agree does not; then
// nothing more is deleted.
func (s *Store) GC(ctx context.Context, o GCOptions) (*GCReport, error) {
	return observed(ctx, s, OpGC, o.Session, func(ctx context.Context) (*GCReport, error) { return s.gc(ctx, o) },
		func(r *GCReport, out *Outcome) {
			if !o.DryRun {
				out.GC = r
			}
		})
}

func (s *Store) gc(ctx context.Context, o GCOptions) (*GCReport, error) {
	if err := checkPace("collection", o.Pace); err != nil {
		return nil, err
	}
	if o.Full && o.Session != "" {
		return nil, invalid("collection", "Full with the session %q: a full one is of all sessions", o.Session)
	}
	run := gc.Options{Full: o.Full, Progress: o.Progress, Pace: o.Pace}
	if o.Session != "" {
		ses, err := s.Session(ctx, o.Session)
		if err != nil {
			return nil, err
		}
		run.Session = &ses.session.Inc
	}
	if o.DryRun {
		return s.collector().Plan(ctx, run)
	}
	done, err := s.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return s.collector().Run(ctx, run)
}

func (s *Store) collector() *gc.Collector {
	return gc.New(s.engine, s.space, s.blobs, s.now, s.opts.TakeOverAfter)
}

// turn waits until no other collection or vacuum of this store runs. Who has the turn
// calls done.
func (s *Store) turn(ctx context.Context) (done func(), err error) {
	select {
	case s.collecting <- struct{}{}:
		return func() { <-s.collecting }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// VacuumOptions of Vacuum. The zero value vacuums the whole store.
type VacuumOptions struct {
	// Session, if set, removes content and records of this session only; the
	// engine gives space back all the same.
	Session string
	// Progress and Pace are as in GCOptions.
	Progress func(Progress)
	Pace     float64
}

// Vacuum removes what is detached: the content of nodes that every session which
// shows them has tombstoned, side branches that no retained revision leads to,
// everything of deleted sessions that no attached fork holds, checkpoint versions
// that nothing refers to and others were stored relative to. It collects what
// that frees, seals what sessions have gathered, and compresses what commits and the
// background compressed for speed. For all of this it reads what has changed since the
// last vacuum. Then it makes the engine give the space back, which takes the time and
// the space of a copy of the store: afterwards none of the removed bytes is in the
// store's files. It runs beside commits.
func (s *Store) Vacuum(ctx context.Context, o VacuumOptions) (*VacuumReport, error) {
	return observed(ctx, s, OpVacuum, o.Session, func(ctx context.Context) (*VacuumReport, error) { return s.vacuum(ctx, o) },
		func(r *VacuumReport, out *Outcome) { out.Vacuum = r })
}

func (s *Store) vacuum(ctx context.Context, o VacuumOptions) (*VacuumReport, error) {
	if err := checkPace("vacuum", o.Pace); err != nil {
		return nil, err
	}
	run := gc.Options{Progress: o.Progress, Pace: o.Pace, Seal: s.sealNext}
	if o.Session != "" {
		ses, err := s.Session(ctx, o.Session)
		if err != nil {
			return nil, err
		}
		run.Session = &ses.session.Inc
	}
	done, err := s.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	r, err := s.collector().Vacuum(ctx, run)
	if r == nil {
		return nil, err
	}
	out := &VacuumReport{VacuumReport: *r}
	for _, inc := range r.Unfinished {
		about, aerr := s.histories.About(ctx, inc)
		if aerr == nil && about != nil {
			out.Unfinished = append(out.Unfinished, about.ID)
		}
	}
	slices.Sort(out.Unfinished)
	return out, err
}

// MaintainOptions of Maintain.
type MaintainOptions struct {
	// Every is the time from the end of one run to the next collection; default a
	// minute. Collections of other processes have their turn meanwhile.
	Every time.Duration
	// VacuumEvery is the time between two vacuums; 0 means none. The first one
	// comes after this time.
	VacuumEvery time.Duration
	// Pace is the part of its time that a collection works, as in GCOptions;
	// default 0.25.
	Pace float64
	// Report, if set, is called after every run, from the goroutine of
	// maintenance. v is nil after a collection, gc after a vacuum. It must not
	// call stop or Store.Close.
	Report func(gc *GCReport, v *VacuumReport, err error)
}

// Maintain prunes and collects in the background, and vacuums if asked to, until
// stop is called or the store is closed; both wait for it to end. What a run
// could not do the next one does. Without Report, errors go to Options.Logger.
func (s *Store) Maintain(o MaintainOptions) (stop func(), err error) {
	if _, err := s.usable(context.Background()); err != nil {
		return nil, err
	}
	if o.Every == 0 {
		o.Every = time.Minute
	}
	if o.Pace == 0 {
		o.Pace = 0.25
	}
	c := checker{of: "maintenance"}
	c.positive("Every", int64(o.Every))
	if o.VacuumEvery != 0 {
		c.positive("VacuumEvery", int64(o.VacuumEvery))
	}
	if err := errors.Join(c.err, checkPace("maintenance", o.Pace)); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan struct{})
	s.background.Go(func() {
		defer close(done)
		defer cancel()
		collect := time.NewTimer(o.Every)
		defer collect.Stop()
		var vacuum <-chan time.Time
		if o.VacuumEvery > 0 {
			t := time.NewTicker(o.VacuumEvery)
			defer t.Stop()
			vacuum = t.C
		}
		for {
			var g *GCReport
			var v *VacuumReport
			var err error
			select {
			case <-ctx.Done():
				return
			case <-collect.C:
				if _, err = s.Prune(ctx); err == nil {
					g, err = s.GC(ctx, GCOptions{Pace: o.Pace})
				}
			case <-vacuum:
				v, err = s.Vacuum(ctx, VacuumOptions{Pace: o.Pace})
			}
			switch {
			case ctx.Err() != nil:
				return
			case o.Report != nil:
				o.Report(g, v, err)
			case err != nil && !errors.Is(err, gc.ErrSuperseded) && s.opts.Logger != nil:
				s.opts.Logger.Error("turnstone: maintenance", "error", err)
			}
			collect.Reset(o.Every) // from now on: others have their turn meanwhile
		}
	})
	return func() {
		cancel()
		<-done
	}, nil
}

// GC is Store.GC of this session.
func (s *Session) GC(ctx context.Context) (*GCReport, error) {
	store, err := s.usable(ctx)
	if err != nil {
		return nil, err
	}
	return store.GC(ctx, GCOptions{Session: s.session.ID})
}

// Vacuum is Store.Vacuum of this session.
func (s *Session) Vacuum(ctx context.Context) (*VacuumReport, error) {
	store, err := s.usable(ctx)
	if err != nil {
		return nil, err
	}
	return store.Vacuum(ctx, VacuumOptions{Session: s.session.ID})
}
