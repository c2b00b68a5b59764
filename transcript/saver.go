package transcript

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// A Saver saves the history of one session some time after it changed, for hosts
// that save on every message. What is saved while a save is due takes the place
// of what was to be saved. A crash loses what is due.
type Saver struct {
	t      *Transcripts
	id     string
	delay  time.Duration
	report func(Saved, error)
	turn   chan struct{} // of one element: the right to save

	mu      sync.Mutex
	pending *Snapshot
	// retry was saved with an unknown outcome, and comes before pending: under
	// the same turn id, its usage is counted once.
	retry *Snapshot
	timer *time.Timer // nil when no save is due
	base  head.Revision
}

// Saver returns a saver for a session. A change is stored within delay, however
// fast others follow it. Report, if set, is told of every save; one that failed
// is tried again with the next change, and on Flush. It must not call Flush.
//
// If the first snapshot has a Base, the saver goes on from its own saves: one of
// somebody else in between is a *turnstone.ConflictError. After that, load, and
// save with the new Base.
func (t *Transcripts) Saver(id string, delay time.Duration, report func(Saved, error)) *Saver {
	s := &Saver{t: t, id: id, delay: delay, report: report, turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	return s
}

// Save has s saved soon, and returns at once. The list of messages is copied;
// payloads, state and labels must not be changed any more.
func (s *Saver) Save(snap Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap.Messages = slices.Clone(snap.Messages)
	if s.pending == nil {
		s.pending = &Snapshot{}
	}
	s.pending.merge(snap)
	if s.timer == nil {
		s.timer = time.AfterFunc(s.delay, func() { _ = s.Flush(context.Background()) }) // it is reported
	}
}

// Flush saves what is due, and returns when it is stored. Call it before the
// program ends. A saver that is not used any more needs no closing.
func (s *Saver) Flush(ctx context.Context) error {
	if s.t == nil {
		return &turnstone.InvalidError{Where: "saver", Reason: "it was not made by Transcripts.Saver"}
	}
	select {
	case <-s.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { s.turn <- struct{}{} }()
	for {
		snap := s.take()
		if snap == nil {
			return nil
		}
		saved, err := s.t.Save(ctx, s.id, *snap)
		s.done(snap, saved, err)
		if s.report != nil {
			s.report(saved, err)
		}
		if err != nil {
			return err
		}
	}
}

// done takes note of how the save of snap went.
func (s *Saver) done(snap *Snapshot, saved Saved, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if snap.Base != 0 && saved.Revision != 0 {
		s.base = saved.Revision
	}
	switch {
	case err == nil:
	case errors.Is(err, turnstone.ErrOutcomeUnknown):
		s.retry = snap
	default:
		if s.pending != nil { // what came meanwhile is newer
			snap.merge(*s.pending)
		}
		s.pending = snap
	}
}

// take returns what is to be saved next, and sets the timer back.
func (s *Saver) take() *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	snap := s.retry
	if s.retry = nil; snap == nil {
		snap, s.pending = s.pending, nil
	}
	if snap == nil {
		return nil
	}
	if snap.Base != 0 {
		snap.Base = max(snap.Base, s.base)
	}
	if snap.Turn == "" {
		snap.Turn = "saver " + rand.Text()
	}
	return snap
}
