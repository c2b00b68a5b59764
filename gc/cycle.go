package gc

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file makes sure that one collector works at a time. A cycle begins by writing the
// cycle record, and each of its batches guards that record as the batch before wrote it and
// sets it anew. A cycle that another one has replaced therefore can't write any more, and
// ends with ErrSuperseded. Everything else in this package reads and writes through a cycle: see
// read.go and batch.go.

// A cycle is one pass of a collector over a store: a collection, a vacuum, or on an engine
// in memory the dry run of a collection.
//
// A cycle is used by one goroutine. It may be cut off at any point, by its context or by the
// end of the process, and nothing has to be cleaned up: its cycle record stays active, and the
// next cycle waits for it as long as patience and then takes over.
type cycle struct {
	Pass
	Report
	engine engine.Engine
	space  *keys.Space
	blobs  *blob.Store

	key      []byte        // of the cycle record
	record   []byte        // The cycle record as this cycle wrote it last. It is nil in a check, which writes nothing.
	state    cycleState    // record, decoded
	applied  time.Time     // when this cycle wrote record
	patience time.Duration // for how long other cycles wait for record to change
	began    time.Time     // by the clock of the store: it decides which uploads have expired

	phase     string // of Progress
	phaseDone int

	// only has, for a collection of one session, the candidates that this session's
	// changes have made. Nil stands for all candidates.
	only map[keys.Hash]bool
	// busy has the sessions that changed again and again, so that the index was not brought up to date with all of
	// what has ended in them.
	busy map[head.Incarnation]bool
	// again has deleted sessions that a fork no longer holds. The cycle has to look at them
	// once more.
	again map[head.Incarnation]bool
	// rechecking is set while a sweep looks again at all sessions. Candidates that this
	// makes are not added to only: other sessions than the one asked for made them.
	rechecking bool
}

// A cycleState is the content of the cycle record.
//
// The nonce says which cycle wrote the record, and the sequence number counts its batches.
// So every batch of a collector sets a value that never recurs, and an attempt with an
// unknown outcome can't take effect after the next batch:
//
//	cycle A   begin ──▶ A,0 ──▶ A,1 ──▶ A,2 ──  stalled  ── guards A,2: conflict, superseded
//	cycle B                                 └─▶ B,0 ──▶ B,1 ──▶ B,2
type cycleState struct {
	nonce   [16]byte
	seq     uint64
	active  bool   // A cycle is at work, or was cut off.
	rebuild bool   // The index is being derived anew. No blob may be deleted until the index is whole.
	last    uint64 // When the last complete cycle began, in Unix nanoseconds.

	// sessions and blobs count the sessions that live and have a bookmark, and the blobs
	// that have edges. They are second witnesses of these records: see Collector.Check.
	sessions int
	blobs    int
}

// encode returns the record of s for key.
func (s *cycleState) encode(key []byte) []byte {
	var e codec.Encoder
	e.Array(7)
	e.Bytes(s.nonce[:])
	e.Uint(s.seq)
	e.Bool(s.active)
	e.Bool(s.rebuild)
	e.Uint(s.last)
	e.Uint(uint64(s.sessions))
	e.Uint(uint64(s.blobs))
	return codec.Encode(key, keys.Cycle, e.B)
}

// decodeCycleState decodes the record of key.
func decodeCycleState(key, value []byte) (s cycleState, err error) {
	body, err := codec.Decode(key, value, keys.Cycle)
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

// lastState returns what the cycle record says. Before the first cycle there is no record,
// and lastState returns the zero state.
func lastState(key, value []byte) (cycleState, error) {
	if value == nil {
		return cycleState{}, nil
	}
	s, err := decodeCycleState(key, value)
	return s, codec.Corrupt(err, "cycle record")
}

// after returns the state that a batch sets.
func (s cycleState) after(b *batch) cycleState {
	s.seq++
	s.sessions = max(0, s.sessions+b.sessions)
	s.blobs = max(0, s.blobs+b.blobs)
	return s
}

// begin starts a cycle. It waits for a cycle that is at work, until that one ends or has
// not changed its record for as long as patience.
func (c *Collector) begin(ctx context.Context, e engine.Engine, blobs *blob.Store, o Pass, patience time.Duration) (*cycle, error) {
	cy := &cycle{Pass: o, engine: e, space: c.space, blobs: blobs, key: c.space.Cycle(), patience: patience, again: map[head.Incarnation]bool{}, busy: map[head.Incarnation]bool{}}
	var other rival
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		vs, err := e.Get(ctx, cy.key)
		if err != nil {
			return nil, err
		}
		cy.began, cy.applied = c.now(), time.Now()
		begun, err := cy.take(ctx, vs[0], &other)
		if err == nil && begun {
			return cy, nil
		}
		if err == nil {
			err = sleep(ctx, pause)
		}
		if err != nil {
			return nil, err
		}
	}
}

// take makes one attempt to replace the cycle record, which is current, by one of this
// cycle. It reports whether the cycle has begun. If not, another cycle is at work, another
// one was faster, or the outcome of the attempt is unknown: the caller tries again.
func (cy *cycle) take(ctx context.Context, current []byte, other *rival) (begun bool, err error) {
	if cy.record != nil && string(current) == string(cy.record) {
		return true, nil // An earlier attempt, whose outcome was unknown, has taken effect.
	}
	if cy.state, err = lastState(cy.key, current); err != nil {
		return false, err
	}
	if cy.state.active && other.works(current, cy.patience) {
		return false, nil
	}
	// The state of the cycle before is taken over, but for who works: its numbers go on, and
	// a rebuild that was cut off has to be done again.
	rand.Read(cy.state.nonce[:])
	cy.state.seq, cy.state.active = 0, true
	cy.record = cy.state.encode(cy.key)
	b := engine.Batch{Reclaim: true}
	b.Guard(cy.key, current)
	b.Set(cy.key, cy.record)
	err = cy.engine.Apply(ctx, &b)
	if errors.Is(err, engine.ErrConflict) || errors.Is(err, engine.ErrUnknown) {
		return false, nil
	}
	return err == nil, err
}

// A rival is another cycle, which is at work, as a cycle that wants to begin sees it.
type rival struct {
	record []byte    // the rival's cycle record
	since  time.Time // when record was first seen
}

// works reports whether the rival makes progress: its record, which is current, has changed
// within the time of patience.
func (r *rival) works(current []byte, patience time.Duration) bool {
	if patience <= 0 {
		return false
	}
	if string(current) != string(r.record) {
		r.record, r.since = current, time.Now()
	}
	return time.Since(r.since) < patience
}

// end lets the next cycle begin, and returns err, with which the work of this one ended. If
// the work succeeded, end returns the error of its own batch.
func (cy *cycle) end(ctx context.Context, err error) error {
	if errors.Is(err, ErrSuperseded) {
		return err
	}
	if err != nil {
		// The context may be done, so this batch has its own. If the batch fails, other cycles
		// wait until their patience ends.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
	}
	// collect has set cy.state.last, which this batch writes, too.
	cy.state.active = false
	if aerr := cy.apply(ctx, &batch{}); err == nil {
		return aerr
	}
	return err
}

// beat changes the cycle record if it has not changed for a quarter of patience, so that
// waiting cycles see progress. Everything that may read for long calls beat between reads.
func (cy *cycle) beat(ctx context.Context) error {
	if cy.patience <= 0 || cy.record == nil || time.Since(cy.applied) < cy.patience/4 {
		return nil
	}
	return cy.apply(ctx, &batch{})
}

// apply applies b as the next batch of the cycle: b also guards the cycle record and sets it
// anew. The error is engine.ErrConflict if another guard of b was false, and
// ErrSuperseded if another cycle has begun. After an unknown outcome apply tries the same
// batch again until the outcome is known or ctx is done.
//
// The guard on the cycle record comes first, and an engine names the first guard that is
// false. A superseded cycle therefore learns that it is, whatever else has changed.
func (cy *cycle) apply(ctx context.Context, b *batch) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	start := time.Now()
	next := cy.state.after(b)
	record := next.encode(cy.key)
	b.Guards = append([]engine.Pair{{Key: cy.key, Value: cy.record}}, b.Guards...)
	b.Set(cy.key, record)
	b.Reclaim = true
	unknown, err := engine.ApplyUntilKnown(ctx, cy.engine, &b.Batch)
	switch {
	case err == nil:
		cy.state, cy.record, cy.applied = next, record, time.Now()
		return cy.rest(ctx, time.Since(start))
	case errors.Is(err, engine.ErrUnknown):
		return ctx.Err() // Whether or not the batch took effect, the next cycle goes on from there.
	case string(conflictKey(err)) != string(cy.key):
		return err
	case !unknown:
		return ErrSuperseded
	}
	// The conflict may be with this batch's own first attempt, which then took effect.
	vs, err := cy.engine.Get(ctx, cy.key)
	if err != nil {
		return err
	}
	if string(vs[0]) != string(record) {
		return ErrSuperseded
	}
	cy.state, cy.record = next, record
	return nil
}

// rest sleeps for the part of the time that Pass.Pace leaves to others, after the cycle
// has worked for some time.
func (cy *cycle) rest(ctx context.Context, worked time.Duration) error {
	if cy.Pace <= 0 || cy.Pace >= 1 {
		return nil
	}
	return sleep(ctx, time.Duration(float64(worked)*(1-cy.Pace)/cy.Pace))
}

// conflictKey returns the key of the guard that was false, or nil if err is no conflict that
// names one.
func conflictKey(err error) []byte {
	var conflict *engine.ConflictError
	if !errors.As(err, &conflict) {
		return nil
	}
	return conflict.Key
}

// verdict returns err, or ErrSuperseded if err reports damage and another cycle has begun
// meanwhile. A superseded cycle may have read records of the index at different moments, and
// such records need not agree.
func (cy *cycle) verdict(ctx context.Context, err error) error {
	if !isCorrupt(err) {
		return err
	}
	vs, gerr := cy.engine.Get(ctx, cy.key)
	if gerr == nil && string(vs[0]) != string(cy.record) {
		return ErrSuperseded
	}
	return err
}

// enter begins a phase of the progress that the cycle reports.
func (cy *cycle) enter(phase string) { cy.phase, cy.phaseDone = phase, 0 }

// step reports that n more things of the phase are done.
func (cy *cycle) step(n int) {
	cy.phaseDone += n
	if cy.Progress != nil {
		cy.Progress(Progress{Phase: cy.phase, Done: cy.phaseDone})
	}
}

// sleep waits for d, or returns the error of ctx if that ends before.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
