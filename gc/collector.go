package gc

import (
	"context"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Pass of a collection or a vacuum. The zero value is for the whole store.
type Pass struct {
	// Full derives the index anew from the commits before it collects, and
	// reports whether it was right.
	Full bool
	// Session, if set, looks only at what changed in this incarnation, and
	// deletes only what that freed.
	Session *head.Incarnation
	// Progress, if set, is called from the collector's goroutine.
	Progress func(Progress)
	// Seal, if set, seals commits. For a session that was committed to, Vacuum calls it first,
	// and again as long as it returns true. Each call does one step. The error engine.ErrConflict
	// says that the session changed meanwhile.
	Seal func(context.Context, head.Incarnation) (more bool, err error)
	// Pace is the part of the time that the collector works, between 0 and 1; the rest
	// it leaves to others. 0 means 1.
	Pace float64
	// NoCompaction is that of VacuumOptions.
	NoCompaction bool
}

// A Collector collects one namespace. It holds no state: any number of them may
// exist, also in several processes. They take turns: a cycle that begins waits for one
// that is at work, and takes over from one that makes no progress.
type Collector struct {
	engine   engine.Engine
	space    *keys.Space
	blobs    *blob.Store
	now      func() time.Time
	patience time.Duration
}

// New returns a collector for the namespace of space on e. The clock decides when
// uploads expire, and nothing else. A cycle takes over from another one whose record has not
// changed for as long as patience; at once if patience is not positive. That is safe at
// any time: the other one ends with ErrSuperseded.
func New(e engine.Engine, space *keys.Space, blobs *blob.Store, now func() time.Time, patience time.Duration) *Collector {
	return &Collector{engine: e, space: space, blobs: blobs, now: now, patience: patience}
}

// Run collects. It may be cancelled at any time, and the next cycle goes on from there. If
// records that should agree do not, the error is a *damage.CorruptError, and nothing more is
// deleted: repair the record that the error names, or collect with Full.
func (c *Collector) Run(ctx context.Context, o Pass) (*Report, error) {
	cy, err := c.begin(ctx, c.engine, c.blobs, o, c.patience)
	if err != nil {
		return nil, err
	}
	err = cy.end(ctx, cy.verdict(ctx, cy.collect(ctx)))
	cy.Duration = c.now().Sub(cy.began)
	return &cy.Report, err
}

// maxPlans is how often Plan tries again because another collector was at work.
const maxPlans = 5

// Plan returns the report that Run would return, and changes nothing. It collects on an
// engine whose writes stay in memory: some hundred bytes for each blob that changed since
// the last cycle.
func (c *Collector) Plan(ctx context.Context, o Pass) (*Report, error) {
	for attempt := 0; ; attempt++ {
		before, err := c.engine.Get(ctx, c.space.Cycle())
		if err != nil {
			return nil, err
		}
		report, err := c.rehearse(ctx, o)
		if report == nil || !isCorrupt(err) {
			return report, err
		}
		// Damage may be due to a collector at work, which changed the index meanwhile.
		after, gerr := c.engine.Get(ctx, c.space.Cycle())
		if gerr != nil || string(after[0]) == string(before[0]) {
			return report, err
		}
		if attempt == maxPlans {
			return report, ErrSuperseded
		}
	}
}

// rehearse collects on an overlay of the engine. It returns no report if the collection did
// not begin.
func (c *Collector) rehearse(ctx context.Context, o Pass) (*Report, error) {
	copied := memory.NewOverlay(c.engine)
	cy, err := c.begin(ctx, copied, c.blobs.On(copied), o, 0)
	if err != nil {
		return nil, err
	}
	err = cy.collect(ctx)
	cy.Duration = c.now().Sub(cy.began)
	return &cy.Report, err
}

// Rebuilding reports whether the index is being derived anew. Until that is done, the index
// need not agree with anything.
func Rebuilding(ctx context.Context, e engine.Engine, space *keys.Space) (bool, error) {
	key := space.Cycle()
	vs, err := e.Get(ctx, key)
	if err != nil {
		return false, err
	}
	s, err := lastState(key, vs[0])
	return s.rebuild, err
}

// collect is the work of a collection: bring the index up to date, let uploads expire, and
// sweep the candidates.
func (cy *cycle) collect(ctx context.Context) error {
	if cy.Session != nil {
		cy.only = map[keys.Hash]bool{}
	}
	if cy.Full || cy.state.rebuild {
		if err := cy.rebuild(ctx); err != nil {
			return err
		}
	}
	cy.enter("sessions")
	if cy.Session != nil {
		return cy.collectSession(ctx, *cy.Session)
	}
	return cy.collectAll(ctx)
}

// collectSession brings the index up to date with one session, and sweeps the candidates
// that this made. Other sessions are looked at only by the sweep, before it deletes anything: one
// of them may refer to the same blobs. Uploads don't expire.
func (cy *cycle) collectSession(ctx context.Context, inc head.Incarnation) error {
	if err := cy.session(ctx, inc); err != nil {
		return err
	}
	if err := cy.freed(ctx); err != nil {
		return err
	}
	cy.enter("blobs")
	return cy.sweep(ctx)
}

// collectAll collects the whole store. The cycle's next batch records when the cycle began,
// for the next one to know from when on sessions may have changed.
func (cy *cycle) collectAll(ctx context.Context) error {
	if err := cy.changes(ctx, cy.state.last); err != nil {
		return err
	}
	cy.enter("uploads")
	if err := cy.uploads(ctx); err != nil {
		return err
	}
	cy.enter("blobs")
	if err := cy.sweep(ctx); err != nil {
		return err
	}
	cy.Roots += cy.state.sessions
	cy.Retained = cy.state.blobs
	cy.state.last = uint64(cy.began.UnixNano())
	return nil
}
