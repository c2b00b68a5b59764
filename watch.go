package turnstone

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/heads"
)

// Watch yields the commits of the session after a revision, as Log does, and goes on with those that come: each
// one once, in their order, whoever makes them. What this store commits is yielded at once, what others
// commit within Options.PollEvery. Watch reads the store and gathers nothing, so a slow caller costs no memory and
// misses nothing; to go on after a restart, begin after the last revision that was dealt with.
//
// The sequence ends with the first error: that of ctx, ErrSessionDeleted when the session was deleted or renamed, or
// ErrRevisionNotFound if it has not come to the revision.
func (s *Session) Watch(ctx context.Context, after head.Revision) iter.Seq2[LogEntry, error] {
	return func(yield func(LogEntry, error) bool) {
		store, err := s.usable(ctx)
		if err == nil {
			err = s.watch(ctx, store, after, func(e LogEntry) bool { return yield(e, nil) })
		}
		if !errors.Is(err, errEnough) {
			yield(LogEntry{}, err)
		}
	}
}

func (s *Session) watch(ctx context.Context, store *Store, after head.Revision, yield func(LogEntry) bool) error {
	poll := time.NewTicker(store.opts.PollEvery)
	defer poll.Stop()
	changed, stop := store.watching(s.session.Inc)
	defer stop()
	for {
		for e, err := range s.Log(ctx, after) {
			if err != nil {
				return err
			}
			if !yield(e) {
				return errEnough
			}
			after = e.Revision
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-poll.C:
		}
	}
}

// changed wakes those who watch a session, which has changed, and those who watch the store. While the feed is on, it wakes those in
// other processes, too. With the zero incarnation it wakes only those who watch the store.
func (s *Store) changed(inc heads.Incarnation) {
	s.watched.tell(inc)
	if s.notifier != nil && s.lifecycle.Telling.Load() {
		s.notifier.Notify(string(s.topic(inc)))
	}
}

// topic names a session in notifications: by its incarnation, after the namespace.
func (s *Store) topic(inc heads.Incarnation) []byte {
	return hex.AppendEncode(nil, s.space.Life(inc))
}

// watching begins to watch a session, as watched.add does, and returns what that returns. The first call also begins to listen for
// the notifications of other processes, until the store is closed.
func (s *Store) watching(inc heads.Incarnation) (changed chan struct{}, stop func()) {
	if s.notifier != nil {
		s.listening.Do(func() {
			s.run(func() {
				err := s.notifier.Listen(s.ctx, s.heard)
				if l := s.opts.Logger; l != nil && err != nil && s.ctx.Err() == nil {
					l.Warn("turnstone: watches hear of other processes by polling alone", "error", err)
				}
			})
		})
	}
	return s.watched.add(inc)
}

// heard wakes those who watch what another process has notified of. An empty topic says that notifications may have been lost: it
// wakes all.
func (s *Store) heard(topic string) {
	if topic == "" {
		s.watched.tellAll()
		return
	}
	key, err := hex.DecodeString(topic)
	if _, fields, ok := s.space.Fields(key); err == nil && ok && bytes.Equal(key, s.space.Life(heads.Incarnation(fields))) {
		s.watched.tell(heads.Incarnation(fields))
	}
}

// A watched says which sessions this store watches.
type watched struct {
	mu sync.Mutex
	by map[heads.Incarnation]map[chan struct{}]bool
}

// add returns a channel that receives a value after each commit to a session, or, for the zero incarnation, after each change of any
// session, until stop is called. One value may stand for several changes.
func (w *watched) add(inc heads.Incarnation) (changed chan struct{}, stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed = make(chan struct{}, 1)
	if w.by == nil {
		w.by = map[heads.Incarnation]map[chan struct{}]bool{}
	}
	if w.by[inc] == nil {
		w.by[inc] = map[chan struct{}]bool{}
	}
	w.by[inc][changed] = true
	return changed, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if delete(w.by[inc], changed); len(w.by[inc]) == 0 {
			delete(w.by, inc)
		}
	}
}

// tell wakes those who watch a session, and those who watch the store; with the zero incarnation, only the latter.
func (w *watched) tell(inc heads.Incarnation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, of := range []heads.Incarnation{inc, {}} {
		for changed := range w.by[of] {
			select {
			case changed <- struct{}{}:
			default: // It has been told, and has not looked yet.
			}
		}
	}
}

// tellAll wakes all who watch anything.
func (w *watched) tellAll() {
	w.mu.Lock()
	incs := slices.Collect(maps.Keys(w.by))
	w.mu.Unlock()
	for _, inc := range incs {
		w.tell(inc)
	}
}
