// Package reclaim deletes what nothing reaches: blobs that no commit, fork, kept
// revision or upload refers to, and, in vacuum, the records of deleted sessions
// and the content of tombstoned nodes. It runs beside commits; docs/gc.md says
// why that is safe.
//
// # Protocol
//
// A collector keeps an index of its own: an edge from a blob to everything that
// refers to it (sessions, and lists of chunks that it is one of), and the number
// of edges of each blob under another key. The index is derived from the commits,
// and follows them session by session: a session that changed has a dirty record.
// When the index takes over a change that leaves something to vacuum, it gives the
// session a stale record, and a blob that can be stored smaller a loose record:
// vacuum reads these rather than the store. A blob that loses its last edge is a
// candidate. A sweep condemns candidates by writing their marks, then looks again
// at everything that changed until then, and only then deletes those whose marks
// are as it wrote them. A commit that relies on a blob guards its mark, and revives
// it when it is condemned. So either the collector sees the commit, or the commit
// sees the collector; no clock takes part.
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
// gc.go has the run and its record; changes.go, sessions.go and index.go find what changed and
// add edges; retain.go drops them; sweep.go condemns and deletes; uploads.go lets uploads expire;
// full.go derives the index anew; check.go compares it with the commits. vacuum.go, erase.go,
// tree.go, versions.go and pack.go are vacuum. Each kind of record has a file: bookmark.go,
// edges.go, stale.go.
package reclaim

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/apply"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/overlay"
	"github.com/turnstonedb/turnstone/record"
)

// Options of a run. The zero value collects the whole store.
type Options struct {
	// Full derives the index anew from the commits before it collects, and
	// reports whether it was right.
	Full bool
	// Session, if set, looks only at what changed in this incarnation, and
	// deletes only what that freed.
	Session *heads.Incarnation
	// Progress, if set, is called from the run's goroutine.
	Progress func(gc.Progress)
	// Seal, if set, is what Vacuum calls first for a session that was committed to, as
	// long as it returns true. Each call takes a step; engine.ErrConflict says that the
	// session changed meanwhile.
	Seal func(context.Context, heads.Incarnation) (more bool, err error)
	// Pace is the part of the time that the run works, between 0 and 1; the rest
	// it leaves to others. 0 means 1.
	Pace float64
}

// A Collector collects one namespace. It holds no state: any number of them may
// exist, also in several processes. They take turns: a run that begins waits for one
// that is at work, and takes over one that makes no progress.
type Collector struct {
	engine   engine.Engine
	space    *keys.Space
	blobs    *blobs.Store
	now      func() time.Time
	patience time.Duration
}

// New returns a collector for the namespace of space on e. The clock decides when
// uploads expire, and nothing else. A run takes over another one whose record has not
// changed for as long as patience; at once if patience is not positive. That is safe at
// any time: the other one ends with gc.ErrSuperseded.
func New(e engine.Engine, space *keys.Space, blobs *blobs.Store, now func() time.Time, patience time.Duration) *Collector {
	return &Collector{engine: e, space: space, blobs: blobs, now: now, patience: patience}
}

// A run is a collector at work.
type cycle struct {
	Options
	gc.Report
	engine engine.Engine
	space  *keys.Space
	blobs  *blobs.Store

	key, record []byte        // of the cycle record, as this run wrote it last
	state       cycleState    // what it says
	applied     time.Time     // when this run wrote it
	patience    time.Duration // for so long others wait for the record to change
	began       time.Time
	phase       string
	phaseDone   int
	only        map[keys.Hash]bool         // the candidates of Options.Session
	again       map[heads.Incarnation]bool // deleted sessions that forks have let go of
	looking     bool                       // again, at all sessions: what they free is none of these
}

// A runState is the cycle record's content. Its nonce says who collects, and its
// sequence number makes every batch of a run set a value that never recurs: an
// attempt with an unknown outcome can't take effect after the next one.
type cycleState struct {
	nonce   [16]byte
	seq     uint64
	active  bool   // the run is at work, or was cut off
	rebuild bool   // the index is being derived anew: no blob may be deleted
	last    uint64 // when the last complete run began, in nanoseconds

	sessions int // that live and have a bookmark
	blobs    int // that have edges
}

// A batch also says by how much it changes what the cycle record counts.
type batch struct {
	engine.Batch
	sessions, blobs int
}

func (s *cycleState) seal(key []byte) []byte {
	var e codec.Encoder
	e.Array(7)
	e.Bytes(s.nonce[:])
	e.Uint(s.seq)
	e.Bool(s.active)
	e.Bool(s.rebuild)
	e.Uint(s.last)
	e.Uint(uint64(s.sessions))
	e.Uint(uint64(s.blobs))
	return codec.Seal(key, keys.Cycle, e.B)
}

func openCycleState(key, value []byte) (s cycleState, err error) {
	body, err := codec.Open(key, value, keys.Cycle)
	if err != nil {
		return s, err
	}
	d := codec.Decoder{B: body}
	d.Shape(7)
	d.Fixed(s.nonce[:])
	s.seq, s.active, s.rebuild, s.last = d.Uint(), d.Bool(), d.Bool(), d.Uint()
	s.sessions, s.blobs = int(d.Uint()), int(d.Uint())
	return s, d.Done()
}

// begin starts a run, after the one that is at work, if there is any.
func (c *Collector) begin(ctx context.Context, e engine.Engine, blobs *blobs.Store, o Options, patience time.Duration) (*cycle, error) {
	r := &cycle{Options: o, engine: e, space: c.space, blobs: blobs, key: c.space.Cycle(), patience: patience, again: map[heads.Incarnation]bool{}}
	var seen []byte // the record of the run at work, and
	var since time.Time
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		vs, err := e.Get(ctx, r.key)
		if err != nil {
			return nil, err
		}
		r.began, r.applied = c.now(), time.Now()
		if r.record != nil && string(vs[0]) == string(r.record) {
			return r, nil // our own attempt, whose outcome was not known
		}
		r.state = cycleState{}
		if vs[0] != nil {
			if r.state, err = openCycleState(r.key, vs[0]); err != nil {
				return nil, codec.Corrupt(err, "cycle record")
			}
		}
		if r.state.active && patience > 0 {
			if string(vs[0]) != string(seen) {
				seen, since = vs[0], time.Now()
			}
			if time.Since(since) < patience {
				if err := sleep(ctx, wait); err != nil {
					return nil, err
				}
				continue
			}
		}
		rand.Read(r.state.nonce[:])
		r.state.seq, r.state.active = 0, true
		r.record = r.state.seal(r.key)
		b := engine.Batch{Reclaim: true}
		b.Guard(r.key, vs[0])
		b.Set(r.key, r.record)
		if err = e.Apply(ctx, &b); err == nil {
			return r, nil
		}
		if !errors.Is(err, engine.ErrConflict) && !errors.Is(err, engine.ErrUnknown) {
			return nil, err
		}
		if err := sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// end lets the next run begin. err is what the run ended with.
func (cy *cycle) end(ctx context.Context, err error) error {
	if errors.Is(err, gc.ErrSuperseded) {
		return err
	}
	if err != nil { // also of a context that is done; who waits is patient if this fails
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
	}
	cy.state.active = false
	if aerr := cy.apply(ctx, &batch{}); err == nil {
		return aerr
	}
	return err
}

// beat changes the cycle record if it has not changed for some time, so that others see
// that the run makes progress.
func (cy *cycle) beat(ctx context.Context) error {
	if cy.patience <= 0 || cy.record == nil || time.Since(cy.applied) < cy.patience/4 {
		return nil
	}
	return cy.apply(ctx, &batch{})
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// apply applies b as a batch of this run. engine.ErrConflict: one of b's own
// guards was false.
func (cy *cycle) apply(ctx context.Context, b *batch) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	start := time.Now()
	next := cy.state
	next.seq++
	next.sessions, next.blobs = max(0, next.sessions+b.sessions), max(0, next.blobs+b.blobs)
	record := next.seal(cy.key)
	b.Guards = append([]engine.Pair{{Key: cy.key, Value: cy.record}}, b.Guards...)
	b.Set(cy.key, record)
	b.Reclaim = true
	unknown, err := apply.Batch(ctx, cy.engine, &b.Batch)
	if err == nil {
		cy.state, cy.record, cy.applied = next, record, time.Now()
		if cy.Pace > 0 && cy.Pace < 1 {
			return sleep(ctx, time.Duration(float64(time.Since(start))*(1-cy.Pace)/cy.Pace))
		}
		return nil
	}
	if errors.Is(err, engine.ErrUnknown) {
		return ctx.Err() // whatever has become of the batch, the next run goes on from there
	}
	var conflict *engine.ConflictError
	if !errors.As(err, &conflict) || string(conflict.Key) != string(cy.key) {
		return err
	}
	if unknown { // the conflict may be with the run's own first attempt
		vs, err := cy.engine.Get(ctx, cy.key)
		if err != nil {
			return err
		}
		if string(vs[0]) == string(record) {
			cy.state, cy.record = next, record
			return nil
		}
	}
	return gc.ErrSuperseded
}

// verdict is err, unless another collector has taken over: then what this one
// read of the index does not have to agree.
func (cy *cycle) verdict(ctx context.Context, err error) error {
	if !isCorrupt(err) {
		return err
	}
	vs, gerr := cy.engine.Get(ctx, cy.key)
	if gerr == nil && string(vs[0]) != string(cy.record) {
		return gc.ErrSuperseded
	}
	return err
}

func (cy *cycle) enter(phase string) { cy.phase, cy.phaseDone = phase, 0 }

func (cy *cycle) step(n int) {
	cy.phaseDone += n
	if cy.Progress != nil {
		cy.Progress(gc.Progress{Phase: cy.phase, Done: cy.phaseDone})
	}
}

// Run collects. It may be cancelled at any time, and the next run goes on from
// there. A disagreement between what should agree is a *record.CorruptError, and
// then nothing more is deleted: repair what it names, or run with Full.
func (c *Collector) Run(ctx context.Context, o Options) (*gc.Report, error) {
	r, err := c.begin(ctx, c.engine, c.blobs, o, c.patience)
	if err != nil {
		return nil, err
	}
	err = r.end(ctx, r.verdict(ctx, r.collect(ctx)))
	r.Duration = c.now().Sub(r.began)
	return &r.Report, err
}

// Plan is what Run would do, found out by running it on a copy of what it
// would change, in memory: it changes nothing. The copy grows with what changed
// since the last run, by some hundred bytes a blob.
func (c *Collector) Plan(ctx context.Context, o Options) (*gc.Report, error) {
	for attempt := 0; ; attempt++ {
		before, err := c.engine.Get(ctx, c.space.Cycle())
		if err != nil {
			return nil, err
		}
		copied := overlay.New(c.engine)
		r, err := c.begin(ctx, copied, c.blobs.On(copied), o, 0)
		if err != nil {
			return nil, err
		}
		err = r.collect(ctx)
		r.Duration = c.now().Sub(r.began)
		if !isCorrupt(err) {
			return &r.Report, err
		}
		// A collector at work makes what was read of the index disagree.
		after, gerr := c.engine.Get(ctx, c.space.Cycle())
		if gerr != nil || string(after[0]) == string(before[0]) {
			return &r.Report, err
		}
		if attempt == 5 {
			return &r.Report, gc.ErrSuperseded
		}
	}
}

// Rebuilding reports whether the index is being derived anew, and so does not
// have to agree with anything.
func Rebuilding(ctx context.Context, e engine.Engine, space *keys.Space) (bool, error) {
	key := space.Cycle()
	vs, err := e.Get(ctx, key)
	if err != nil || vs[0] == nil {
		return false, err
	}
	s, err := openCycleState(key, vs[0])
	return s.rebuild, codec.Corrupt(err, "cycle record")
}

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
		if err := cy.session(ctx, *cy.Session); err != nil {
			return err
		}
		if err := cy.freed(ctx); err != nil {
			return err
		}
	} else if err := cy.changes(ctx, cy.state.last); err != nil {
		return err
	}
	cy.enter("uploads")
	if cy.Session == nil {
		if err := cy.uploads(ctx); err != nil {
			return err
		}
	}
	cy.enter("blobs")
	if err := cy.sweep(ctx); err != nil {
		return err
	}
	if cy.Session != nil {
		return nil
	}
	cy.Roots += cy.state.sessions
	cy.Retained = cy.state.blobs
	cy.state.last = uint64(cy.began.UnixNano()) // with the run's next batch
	return nil
}

// get reads keys, in pieces: their values may be of different moments.
func (cy *cycle) get(ctx context.Context, ks ...[]byte) ([][]byte, error) {
	if err := cy.beat(ctx); err != nil {
		return nil, err
	}
	const atOnce = 2000
	var out [][]byte
	for len(ks) > 0 {
		n := min(atOnce, len(ks))
		vs, err := cy.engine.Get(ctx, ks[:n]...)
		if err != nil {
			return nil, err
		}
		if out == nil && n == len(ks) {
			return vs, nil
		}
		out, ks = append(out, vs...), ks[n:]
	}
	return out, nil
}

// openCount decodes the number of a blob's edges; there is no record of none.
func openCount(key, value []byte) (uint64, error) {
	if value == nil {
		return 0, nil
	}
	body, err := codec.Open(key, value, keys.Count)
	if err != nil {
		return 0, codec.Corrupt(err, "number of edges at key %x", key)
	}
	n, k := codec.Uvarint(body)
	if k != len(body) || n == 0 {
		return 0, codec.Corrupt(fmt.Errorf("%w: count", record.ErrMalformed), "number of edges at key %x", key)
	}
	return n, nil
}

func sealCount(key []byte, n uint64) []byte {
	return codec.Seal(key, keys.Count, binary.AppendUvarint(nil, n))
}

func isCorrupt(err error) bool {
	var damage *record.CorruptError
	return errors.As(err, &damage)
}
