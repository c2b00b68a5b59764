// Package reclaim deletes what nothing reaches. A collection deletes blobs that no node, retained
// checkpoint or upload refers to, and versions of checkpoint parts that no retained revision
// needs. A vacuum also removes the records of deleted sessions and the content of tombstoned and
// pruned nodes, seals commits, and compresses blobs further. Both run beside commits; docs/gc.md
// says why that is safe.
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
// their marks, then looks again at everything that changed until then, and only then
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
// cycle.go makes sure that one collector works at a time; read.go and batch.go are how it
// reads and writes. changes.go, sessions.go and index.go find what changed and add edges;
// retain.go and release.go drop them, and detach.go derives them anew; parts.go follows
// checkpoint parts. sweep.go condemns and deletes; uploads.go lets uploads expire; full.go
// derives the index anew; check.go and check_blobs.go compare it with the commits.
// vacuum.go, remove.go, erase.go, rewrite.go, tree.go, versions.go and recompress.go are vacuum.
// The records of the index are in bookmark.go, edges.go and stale.go, those of detached references
// in vacuum.go.
package reclaim

import (
	"context"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/overlay"
)

// Options of a collection or a vacuum. The zero value is for the whole store.
type Options struct {
	// Full derives the index anew from the commits before it collects, and
	// reports whether it was right.
	Full bool
	// Session, if set, looks only at what changed in this incarnation, and
	// deletes only what that freed.
	Session *heads.Incarnation
	// Progress, if set, is called from the collector's goroutine.
	Progress func(gc.Progress)
	// Seal, if set, is what Vacuum calls first for a session that was committed to, as
	// long as it returns true. Each call takes a step; engine.ErrConflict says that the
	// session changed meanwhile.
	Seal func(context.Context, heads.Incarnation) (more bool, err error)
	// Pace is the part of the time that the collector works, between 0 and 1; the rest
	// it leaves to others. 0 means 1.
	Pace float64
}

// A Collector collects one namespace. It holds no state: any number of them may
// exist, also in several processes. They take turns: a cycle that begins waits for one
// that is at work, and takes over from one that makes no progress.
type Collector struct {
	engine   engine.Engine
	space    *keys.Space
	blobs    *blobs.Store
	now      func() time.Time
	patience time.Duration
	known    heads.Formats
}

// New returns a collector for the namespace of space on e. The clock decides when
// uploads expire, and nothing else. A cycle takes over from another one whose record has not
// changed for as long as patience; at once if patience is not positive. That is safe at
// any time: the other one ends with gc.ErrSuperseded.
func New(e engine.Engine, space *keys.Space, blobs *blobs.Store, now func() time.Time, patience time.Duration, known heads.Formats) *Collector {
	return &Collector{engine: e, space: space, blobs: blobs, now: now, patience: patience, known: known}
}

// Run collects. It may be cancelled at any time, and the next cycle goes on from there. If
// records that should agree do not, the error is a *record.CorruptError, and nothing more is
// deleted: repair the record that the error names, or collect with Full.
func (c *Collector) Run(ctx context.Context, o Options) (*gc.Report, error) {
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
func (c *Collector) Plan(ctx context.Context, o Options) (*gc.Report, error) {
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
			return report, gc.ErrSuperseded
		}
	}
}

// rehearse collects on an overlay of the engine. It returns no report if the collection did
// not begin.
func (c *Collector) rehearse(ctx context.Context, o Options) (*gc.Report, error) {
	copied := overlay.New(c.engine)
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
func (cy *cycle) collectSession(ctx context.Context, inc heads.Incarnation) error {
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
