package turnstone

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/feed"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/verify"
)

// GC deletes the blobs that nothing refers to any more: no node of a session that lives or that an attached fork
// shares, no checkpoint of a retained or kept revision or that a fork began with, and no upload that has not expired.
// It may run at any time, beside commits and in several processes; it may be cancelled, and the next one goes on.
// Collections and vacuums take turns: see Options.TakeOverAfter. GC reads what changed since the last collection, or
// everything if o.Full is set. If that succeeds, it forgets the ids of sessions that were renamed, or that vacuum has
// removed, if they were deleted or renamed more than an hour ago, and looks after the feed: it removes changes that
// are kept no longer, and finishes a StartFeed or StopFeed that was cut off, which comes to all sessions; an error of
// that begins with "ids of deleted sessions: " or "feed: ", and comes with the report of the collection. Any other
// *damage.CorruptError says that a record is missing or damaged, or that two records contradict each other; then
// nothing more is deleted.
func (s *Store) GC(ctx context.Context, o gc.Options) (*gc.Report, error) {
	return collect(ctx, s, nil, o)
}

// GC collects as Store.GC does, but looks only at what changed in this session, and
// deletes only blobs that this freed. It leaves the feed alone. If the session was deleted or renamed since the handle
// was made, the error is ErrSessionDeleted.
func (s *Session) GC(ctx context.Context, o gc.Options) (*gc.Report, error) {
	return collect(ctx, s, s, o)
}

// collect collects the store that a call is on, or only one of its sessions if only is not nil.
func collect(ctx context.Context, on callee, only *Session, o gc.Options) (*gc.Report, error) {
	return observed(ctx, on, OpGC, only.ID(), func(ctx context.Context) (*gc.Report, error) {
		if err := checkPace("collection", o.Pace); err != nil {
			return nil, err
		}
		if o.Full && only != nil {
			return nil, invalid("collection", "Full of one session: a full collection is of all sessions")
		}
		inc, err := only.living(ctx)
		if err != nil {
			return nil, err
		}
		s, _ := on.usable(ctx)
		run := gc.Pass{Full: o.Full, Session: inc, Progress: o.Progress, Pace: o.Pace}
		if o.DryRun {
			return s.collector().Plan(ctx, run)
		}
		done, err := s.turn(ctx)
		if err != nil {
			return nil, err
		}
		defer done()
		r, err := s.collector().Run(ctx, run)
		if err == nil && only == nil { // The rest is of all sessions.
			if err = s.lifecycle.Forget(ctx); err != nil {
				err = fmt.Errorf("ids of deleted sessions: %w", err)
			}
			if ferr := feed.Tidy(ctx, s.histories, s.now()); ferr != nil {
				err = errors.Join(err, fmt.Errorf("feed: %w", ferr))
			}
		}
		return r, err
	}, func(r *gc.Report, out *Outcome) {
		if !o.DryRun {
			out.GC = r
		}
	})
}

// living returns the incarnation of a session that lives. That of no session is nil.
func (s *Session) living(ctx context.Context) (*head.Incarnation, error) {
	if s == nil {
		return nil, nil
	}
	if _, _, err := s.session.Head(ctx); err != nil {
		return nil, err
	}
	return &s.session.Inc, nil
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

// Vacuum removes what is detached: the content of nodes that every session which shows them has tombstoned, side
// branches that no retained revision leads to, everything of deleted sessions that no attached fork holds, and
// versions of checkpoint parts that are kept only because later ones are deltas of them. It collects what that frees,
// seals loose commits, and compresses again what was compressed for speed. For all of this it reads what has changed
// since the last vacuum. Then it makes the engine give the space back, unless o.NoCompaction says not to: afterwards none
// of the removed bytes is in the store's files. It runs beside commits.
func (s *Store) Vacuum(ctx context.Context, o gc.VacuumOptions) (*gc.VacuumReport, error) {
	r, _, err := vacuum(ctx, s, nil, o)
	return r, err
}

// Vacuum vacuums as Store.Vacuum does, but removes content and records of this session
// only. The engine gives space back all the same. The errors are those of Session.GC.
func (s *Session) Vacuum(ctx context.Context, o gc.VacuumOptions) (*gc.VacuumReport, error) {
	r, _, err := vacuum(ctx, s, s, o)
	return r, err
}

// vacuum vacuums the store that a call is on, or only one of its sessions if only is not nil. It
// also returns the incarnations of the sessions that are not finished.
func vacuum(ctx context.Context, on callee, only *Session, o gc.VacuumOptions) (_ *gc.VacuumReport, unfinished []head.Incarnation, _ error) {
	r, err := observed(ctx, on, OpVacuum, only.ID(), func(ctx context.Context) (*gc.VacuumReport, error) {
		if err := checkPace("vacuum", o.Pace); err != nil {
			return nil, err
		}
		inc, err := only.living(ctx)
		if err != nil {
			return nil, err
		}
		s, _ := on.usable(ctx)
		done, err := s.turn(ctx)
		if err != nil {
			return nil, err
		}
		defer done()
		var r *gc.VacuumReport
		r, unfinished, err = s.collector().Vacuum(ctx, gc.Pass{Session: inc, Progress: o.Progress, Pace: o.Pace, NoCompaction: o.NoCompaction, Seal: s.sealNext})
		for _, inc := range unfinished {
			about, aerr := s.histories.About(ctx, inc)
			if aerr == nil && about != nil {
				r.Unfinished = append(r.Unfinished, about.ID)
			}
		}
		if r != nil {
			slices.Sort(r.Unfinished)
		}
		return r, err
	}, func(r *gc.VacuumReport, out *Outcome) { out.Vacuum = r })
	return r, unfinished, err
}

// MaintainOptions of Maintain.
type MaintainOptions struct {
	// Every is the time from the end of one run to the next collection; default a
	// minute. Collections of other processes have their turn meanwhile.
	Every time.Duration
	// VacuumEvery is the time between two vacuums; 0 means none. The first one
	// comes after this time.
	VacuumEvery time.Duration
	// Pace is the part of its time that a collection works, as in gc.Options;
	// default 0.25.
	Pace float64
	// ScrubEvery is the time from the beginning of one scrub to that of the next; 0 means none. A scrub that was cut
	// off is gone on with, by any process. If several processes maintain a store, one of them scrubs it. A scrub runs
	// beside collections and vacuums. See Store.Scrub.
	ScrubEvery time.Duration
	// ScrubRate is how many bytes a scrub reads in a second at most; default 16 MiB.
	ScrubRate int64
	// Prune says what to prune before each collection. Its default prunes the sessions that have a retention of their
	// own.
	Prune gc.PruneOptions
	// Report, if set, is called after each collection and vacuum, at the end of a scrub, and within ten seconds after a
	// scrub has found something. The calls come one at a time, from goroutines of maintenance. Report must not call stop
	// or Store.Close.
	Report func(Maintained)
}

// Maintained says what one run of maintenance has done. One of the reports is set, or none if the run failed.
type Maintained struct {
	GC     *gc.Report
	Vacuum *gc.VacuumReport
	Scrub  *ScrubReport
	Err    error // why the run failed; for a scrub that has found something, ScrubReport.Err
}

// Maintain prunes and collects in the background, and vacuums and scrubs if asked to, until
// stop is called or the store is closed; both wait for it to end. The next run does what a run could not do. Without
// Report, errors go to Options.Logger.
func (s *Store) Maintain(o MaintainOptions) (stop func(), err error) {
	if _, err := s.usable(context.Background()); err != nil {
		return nil, err
	}
	o.Every, o.Pace, o.ScrubRate = cmp.Or(o.Every, time.Minute), cmp.Or(o.Pace, 0.25), cmp.Or(o.ScrubRate, 16<<20)
	c := checker{of: "maintenance"}
	c.positive("Every", int64(o.Every))
	if o.VacuumEvery != 0 {
		c.positive("VacuumEvery", int64(o.VacuumEvery))
	}
	if o.ScrubEvery != 0 {
		c.positive("ScrubEvery", int64(o.ScrubEvery))
	}
	c.positive("ScrubRate", o.ScrubRate)
	if err := errors.Join(c.err, checkPace("maintenance", o.Pace), checkPrune("maintenance", &o.Prune)); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(s.ctx)
	var running sync.WaitGroup
	var telling sync.Mutex
	tell := func(m Maintained) {
		telling.Lock()
		defer telling.Unlock()
		found := m.Scrub != nil && len(m.Scrub.Problems) > 0
		switch {
		case ctx.Err() != nil && !found: // Nobody else tells what was found.
		case o.Report != nil:
			o.Report(m)
		case m.Err != nil && !errors.Is(m.Err, gc.ErrSuperseded) && s.opts.Logger != nil:
			s.opts.Logger.Error("turnstone: maintenance", "error", m.Err)
		}
	}
	loops := []func(){func() {
		maintenanceLoop(ctx, o.Every, o.VacuumEvery, func(vacuum bool) {
			var m Maintained
			began := time.Now()
			if vacuum {
				m.Vacuum, m.Err = s.Vacuum(ctx, gc.VacuumOptions{Pace: o.Pace})
				s.note(ctx, OpVacuum, began, m.Vacuum, m.Err)
			} else {
				var pruned *gc.PruneReport
				pruned, m.Err = s.Prune(ctx, o.Prune)
				if s.note(ctx, OpPrune, began, pruned, m.Err); m.Err == nil {
					began = time.Now()
					m.GC, m.Err = s.GC(ctx, gc.Options{Pace: o.Pace})
					s.note(ctx, OpGC, began, m.GC, m.Err)
				}
			}
			tell(m)
		})
	}}
	if o.ScrubEvery > 0 {
		loops = append(loops, func() { s.scrubLoop(ctx, &o, tell) })
	}
	for _, loop := range loops {
		running.Add(1)
		if !s.run(func() {
			defer running.Done()
			loop()
		}) {
			running.Done()
			cancel()
			running.Wait()
			return nil, engine.ErrClosed
		}
	}
	return func() {
		cancel()
		running.Wait()
	}, nil
}

// scrubLoop scrubs until ctx ends. It calls Scrub for a short time again and again, so that what a scrub finds is soon
// told. It waits for o.Every after a call that fails.
func (s *Store) scrubLoop(ctx context.Context, o *MaintainOptions, tell func(Maintained)) {
	for {
		r, err := s.Scrub(ctx, ScrubOptions{Every: o.ScrubEvery, Rate: o.ScrubRate, For: 10 * time.Second})
		m := Maintained{Scrub: r, Err: err}
		if r != nil && r.Err() != nil {
			m.Err = r.Err()
		}
		if m.Err != nil || r.Ended {
			tell(m)
		}
		wait := time.Minute // Then the next scrub may be due, or the process that scrubs may be gone.
		switch {
		case err != nil:
			wait = o.Every
		case r.Records > 0 && !r.Ended:
			wait = 0
		}
		select {
		case <-time.After(min(wait, max(o.ScrubEvery, time.Second))):
		case <-ctx.Done():
			return
		}
	}
}

// ScrubOptions of Scrub.
type ScrubOptions struct {
	// Every, if set, is the time from the beginning of one pass to that of the next. A call that comes earlier does
	// nothing. Nor does one that comes while another process scrubs the store.
	Every    time.Duration
	Rate     int64             // how many bytes to read in a second at most; 0 means as many as possible
	For      time.Duration     // when to end before the pass is complete; 0 means at its end
	Progress func(records int) // if set, is called from the calling goroutine with the number of records that were read
}

// A ScrubReport says what a call of Scrub has read and found, and how far the scrubbing of the store has come.
type ScrubReport struct {
	Began     time.Time `json:"began,omitzero"`     // when the pass that is at work began; zero if none is
	LastBegan time.Time `json:"lastBegan,omitzero"` // when the last complete pass began; zero before that
	LastFound uint64    `json:"lastFound"`          // how many problems that pass found, in all calls
	Ended     bool      `json:"ended"`              // the call has come to the end of a pass: LastBegan and LastFound are of that one
	Records   int       `json:"records"`            // that the call has read
	Bytes     int64     `json:"bytes"`              // of their keys and values
	Problems  []error   `json:"-"`                  // those that the call has found, each a *damage.CorruptError
	More      int       `json:"more"`               // problems beyond the first 1,000
}

// Err returns the first problem that the call has found. If the call has found none, but ends a pass in which earlier
// calls found some, the error says how many, and matches damage.ErrDamaged. Otherwise Err returns nil.
func (r *ScrubReport) Err() error {
	switch {
	case len(r.Problems) > 0:
		return r.Problems[0]
	case r.Ended && r.LastFound > 0:
		return fmt.Errorf("%w: earlier parts of the scrub that began at %v found %d problems", damage.ErrDamaged, r.LastBegan.Format(time.RFC3339), r.LastFound)
	}
	return nil
}

// Scrub reads all records of the namespace, one after the other. It verifies the checksum of each record, and the hashes
// of what segments and blobs hold. So it finds what a disk or a file system has spoilt since it was written, also in
// records that nobody else reads. What the engine can't read is a problem, too; the scrub goes on behind it. Scrub does
// not compare records with each other, as Verify does.
//
// Scrub takes little memory. It can stop at any time: the next call, in any process, goes on where it stopped. A pass
// ends when all records were read. Scrub runs beside commits and maintenance. What they write behind it is read by the
// next pass.
//
// The returned error says that Scrub could not go on. The report has what it found until then; it is nil if nothing was
// read. Such an error is that of a disk that does not answer, which the next call meets again. Scrub writes one record,
// at the beginning and the end of a call, and every ten seconds.
func (s *Store) Scrub(ctx context.Context, o ScrubOptions) (*ScrubReport, error) {
	return observed(ctx, s, OpScrub, "", func(ctx context.Context) (*ScrubReport, error) {
		if o.Every < 0 || o.Rate < 0 || o.For < 0 {
			return nil, invalid("scrub", "Every is %v, Rate %d and For %v: none may be negative", o.Every, o.Rate, o.For)
		}
		r, err := verify.Scrub(ctx, s.histories, s.holder, s.now, verify.ScrubOptions(o))
		if r == nil {
			return nil, err
		}
		return &ScrubReport{r.Began, r.LastBegan, r.LastFound, r.Ended, r.Records, r.Bytes, r.Problems, r.More}, err
	}, func(r *ScrubReport, out *Outcome) {
		out.Scrub, out.Items, out.Bytes, out.Err = r, len(r.Problems)+r.More, r.Bytes, r.Err()
	})
}

// Seal makes segments of the session's loose commits, even if they don't fill one, and compresses
// again what was sealed in the background.
func (s *Session) Seal(ctx context.Context) error { return s.seal(ctx, true) }

// Seal is Session.Seal of all sessions.
func (s *Store) Seal(ctx context.Context) error {
	if _, err := s.usable(ctx); err != nil {
		return err
	}
	var failed []error
	for about, err := range s.histories.Abouts(ctx) {
		if err != nil {
			return err
		}
		ses, err := s.byIncarnation(ctx, about.Incarnation)
		if err == nil && ses != nil {
			err = ses.Seal(ctx)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && !errors.Is(err, ErrSessionNotFound) && !errors.Is(err, ErrSessionDeleted) && len(failed) < 10 {
			failed = append(failed, err) // the others can be sealed all the same
		}
	}
	return errors.Join(failed...)
}

// sealNext tries once to seal the next segment of the session that lives with an
// incarnation, and reports whether there may be another one. The error is
// engine.ErrConflict if the session changed meanwhile.
func (s *Store) sealNext(ctx context.Context, inc head.Incarnation) (more bool, err error) {
	ses, err := s.byIncarnation(ctx, inc)
	if err != nil || ses == nil {
		return false, err
	}
	more, err = ses.sealOne(ctx, &history.Change{Engine: s.engine}, true)
	if errors.Is(err, ErrSessionNotFound) || errors.Is(err, ErrSessionDeleted) { // or renamed
		err = engine.ErrConflict
	}
	return more, err
}

// seal makes segments of the commits that are in no full segment yet. The last ones, which do
// not fill a segment, are sealed only if all is set; a later call seals them again, together
// with those that have come since.
func (s *Session) seal(ctx context.Context, all bool) error {
	_, err := observed(ctx, s, OpSeal, s.ID(), func(ctx context.Context) (struct{}, error) {
		for more := true; more; {
			// A conflict says that somebody else has changed the session's lifecycle: seal it anew.
			err := history.Settle(ctx, s.store.engine, func(c *history.Change) (err error) {
				more, err = s.sealOne(ctx, c, all)
				return err
			})
			if err != nil {
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	}, nil)
	return err
}

// sealOne seals at most one segment and reports whether there may be another.
func (s *Session) sealOne(ctx context.Context, c *history.Change, all bool) (more bool, err error) {
	current := func(ctx context.Context) (*head.Head, error) {
		h, _, err := s.session.Head(ctx)
		return h, err
	}
	sealed, more, err := s.store.sizes.Next(ctx, c, s.session, current, all)
	if err == nil {
		s.sealed.Store(&sealed)
	}
	return more, err
}

// sealLater makes the background seal the session.
func (s *Session) sealLater() {
	if s.store.opts.NoAutoSeal {
		return
	}
	s.store.sealing.Add(s.session.Inc, func(ctx context.Context) {
		err := s.seal(ctx, false)
		if l := s.store.opts.Logger; l != nil && err != nil && ctx.Err() == nil && !errors.Is(err, ErrSessionDeleted) {
			l.Error("turnstone: seal", "error", err)
		}
	})
}

// VerifyOptions of Verify.
type VerifyOptions struct {
	// Progress, if set, is called from the calling goroutine with the number of sessions
	// and blobs that are done.
	Progress func(done int)
}

// A Verification is what Verify found.
type Verification struct {
	Sessions     int     `json:"sessions"`
	Commits      int     `json:"commits"`
	Nodes        int     `json:"nodes"`
	Blobs        int     `json:"blobs"`        // stored
	Unreferenced int     `json:"unreferenced"` // blobs that nothing refers to: garbage, no damage
	Condemned    int     `json:"condemned"`    // blobs that a collector was about to delete
	Records      int     `json:"records"`      // all records, each with its checksum checked
	Problems     []error `json:"-"`
	More         int     `json:"more"` // problems beyond the first 1,000
}

// OK reports whether nothing is wrong.
func (v *Verification) OK() bool { return len(v.Problems) == 0 }

// Err returns the first problem, or nil. It may be called on nil.
func (v *Verification) Err() error {
	if v == nil || v.OK() {
		return nil
	}
	return v.Problems[0]
}

// Verify checks every hash, link, checksum and reference of the namespace. Most problems
// that it finds are a *damage.CorruptError, which names the kind of record that is missing or
// damaged and the session or blob that the record belongs to. Verify reads the whole store
// and changes nothing. It takes time and memory in proportion to the store, and reads a
// history that forks share once. It may run beside commits, and checks a session that
// changes meanwhile as the session was when Verify came to it. The returned error says
// that Verify itself could not go on. It is a *damage.FormatError, for example, when a record is
// of another version of the format, which Verify can't judge.
func (s *Store) Verify(ctx context.Context, o VerifyOptions) (*Verification, error) {
	return observed(ctx, s, OpVerify, "", func(ctx context.Context) (*Verification, error) {
		r, err := verify.Check(ctx, s.histories, s.collector(), o.Progress)
		return (*Verification)(r), err
	}, func(v *Verification, out *Outcome) {
		out.Items, out.Err = len(v.Problems)+v.More, v.Err()
	})
}

// Prune applies retention to all sessions, or to those of a group: it moves their floors, below which revisions are ErrRevisionPruned at
// once, and deletes sessions if the options say so. GC and Vacuum reclaim what that frees. A session that is
// committed to, or whose metadata are saved, while Prune is at work is not deleted. Prune returns what it has done
// beside an error as well.
func (s *Store) Prune(ctx context.Context, o gc.PruneOptions) (*gc.PruneReport, error) {
	return observed(ctx, s, OpPrune, "", func(ctx context.Context) (*gc.PruneReport, error) {
		if err := checkPrune("prune", &o); err != nil {
			return nil, err
		}
		defer s.changed(head.Incarnation{})
		return s.lifecycle.PruneAll(ctx, &o)
	}, func(r *gc.PruneReport, out *Outcome) { out.Items = r.Sessions + len(r.Deleted) })
}

func checkPrune(where string, o *gc.PruneOptions) error {
	if o.Age < 0 || o.Inactive < 0 || o.Bytes < 0 {
		return invalid(where, "Age is %v, Inactive %v and Bytes %d: none may be negative", o.Age, o.Inactive, o.Bytes)
	}
	c := checker{of: where}
	c.group(o.Group)
	return c.err
}

// Prune retains the last keep revisions of the session, and those kept by name;
// older ones are ErrRevisionPruned from now on. The floor never moves back. It
// reports whether it moved.
func (s *Session) Prune(ctx context.Context, keep head.Retention) (moved bool, err error) {
	if _, err := s.usable(ctx); err != nil {
		return false, err
	}
	return s.store.lifecycle.Prune(ctx, s.session, uint64(keep))
}

// Keep keeps revision r of the session, or the head's as Keep finds it if r is 0,
// under a name until Release. A name that keeps another revision is ErrExists; one
// that keeps the same revision is no error. Load and Checkpoint give of a kept
// revision, after pruning and vacuum, all that they gave of it before, side branches
// included. A kept revision goes with its session when that is deleted.
func (s *Session) Keep(ctx context.Context, name string, r head.Revision) error {
	if _, err := s.usable(ctx); err != nil {
		return err
	}
	c := checker{of: "kept revision"}
	c.text("name", name, 1, MaxLabel)
	if c.err != nil {
		return c.err
	}
	if err := checkRevision("kept revision", "it", r); err != nil {
		return err
	}
	return public(s.store.lifecycle.Keep(ctx, s.session, name, r))
}

// Release undoes Keep. A name that keeps no revision is no error.
func (s *Session) Release(ctx context.Context, name string) error {
	if _, err := s.usable(ctx); err != nil {
		return err
	}
	return s.store.lifecycle.Release(ctx, s.session, name)
}

// Kept returns the revisions that are kept by name, oldest first.
func (s *Session) Kept(ctx context.Context) ([]head.Kept, error) {
	if _, err := s.usable(ctx); err != nil {
		return nil, err
	}
	return history.Read(ctx, s.session, func(l *history.Lifecycles) ([]head.Kept, error) {
		refs, err := head.ReadKept(ctx, s.store.engine, s.store.space, s.session.Inc, l.Own)
		slices.SortFunc(refs, func(a, b head.Kept) int { return int(int64(a.Revision) - int64(b.Revision)) })
		return refs, err
	})
}

// maintenanceLoop calls maintain until ctx ends, one call at a time. It asks for a collection when the
// time every has passed since the last call ended, and for a vacuum at intervals of
// vacuumEvery, if that is positive.
func maintenanceLoop(ctx context.Context, every, vacuumEvery time.Duration, maintain func(vacuum bool)) {
	collect := time.NewTimer(every)
	defer collect.Stop()
	vacuum, stop := ticks(vacuumEvery)
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-collect.C:
			maintain(false)
		case <-vacuum:
			maintain(true)
		}
		if ctx.Err() != nil {
			return
		}
		collect.Reset(every) // Other processes have time for their own maintenance until then.
	}
}

// ticks returns a channel that delivers a tick at intervals of d, or never if d is not
// positive.
func ticks(d time.Duration) (c <-chan time.Time, stop func()) {
	if d <= 0 {
		return nil, func() {}
	}
	t := time.NewTicker(d)
	return t.C, t.Stop
}
