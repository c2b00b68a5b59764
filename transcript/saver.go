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

// A Saver saves the history of one session some time after it changed. It is for
// hosts that save on every message: snapshots that come while a save is due are
// merged into one. A crash loses the snapshot that is due.
type Saver struct {
	t      *Transcripts
	id     string
	delay  time.Duration
	report func(Saved, error)
	turn   chan struct{} // holds one element; who takes it may save

	mu      sync.Mutex // guards the fields below
	pending *Snapshot  // the next snapshot to save
	// retry is a snapshot whose save had an unknown outcome. It is saved again before
	// pending, with the same turn id, so that its usage counts once.
	retry *Snapshot
	timer *time.Timer   // nil when no save is due
	base  head.Revision // the revision that the last save reached
}

// Saver returns a saver for a session. A snapshot is saved within delay, however many
// others follow. If report is not nil, the saver calls it after every save. A save that
// failed is repeated with the next snapshot and on Flush. The function report must not call Flush.
//
// If the first snapshot has a Base, each later save builds on the one before. If
// another writer commits in between, the save fails with a *turnstone.ConflictError.
// Load the history then and save with the new Base.
func (t *Transcripts) Saver(id string, delay time.Duration, report func(Saved, error)) *Saver {
	s := &Saver{t: t, id: id, delay: delay, report: report, turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	return s
}

// Save schedules a save of snap and returns at once. It copies the list of messages.
// The caller must not change payloads, state and labels any more.
func (s *Saver) Save(snap Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap.Messages = slices.Clone(snap.Messages)
	if s.pending == nil {
		s.pending = &Snapshot{}
	}
	s.pending.merge(snap)
	if s.timer == nil {
		s.timer = time.AfterFunc(s.delay, func() { _ = s.Flush(context.Background()) }) // s.report gets the error
	}
}

// Flush saves what is due and returns when it is stored. Call it before the program
// ends. A Saver need not be closed.
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

// done keeps snap for another try if its save failed.
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
		if s.pending != nil { // Save was called meanwhile
			snap.merge(*s.pending)
		}
		s.pending = snap
	}
}

// take returns the snapshot to save next, or nil, and stops the timer.
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
