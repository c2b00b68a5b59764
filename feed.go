package turnstone

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/feed"
)

// A Change is one change of a session, as the feed of its store tells of it.
type Change struct {
	Kind        ChangeKind    `json:"kind"`
	Session     string        `json:"session,omitempty"` // the id that the session had then; empty if it was erased since
	Incarnation string        `json:"incarnation"`       // the session itself: it stays when the session is renamed, and differs when the id is given again
	Revision    head.Revision `json:"revision,omitzero"` // of a commit; Session.Log has the rest of it
	To          string        `json:"to,omitempty"`      // of ChangeRenamed: the new id
	Record      string        `json:"record,omitempty"`  // of ChangeRecord: its key; Session.Records tells what stands there now
	// Time is when it was made. Changes of one session that have the same time, or come after the clock went back, are
	// each a nanosecond later than the one before; of a record, it is that of the clock of who changed it.
	Time   time.Time `json:"time"`
	Cursor Cursor    `json:"cursor"` // of this change, to go on after it
}

// A ChangeKind says what has changed.
type ChangeKind string

// The kinds of changes.
const (
	ChangeCreated    ChangeKind = "created"
	ChangeCommitted  ChangeKind = "committed"  // one commit; it may have moved the leaf only
	ChangeSaved      ChangeKind = "saved"      // metadata, or which revisions are kept by name
	ChangeTombstoned ChangeKind = "tombstoned" // nodes, by one call or commit
	ChangeRenamed    ChangeKind = "renamed"
	ChangeDeleted    ChangeKind = "deleted"
	ChangeRecord     ChangeKind = "record" // one record that was set or deleted, if FeedOptions.Records asks for those
)

var changeKinds = map[feed.Kind]ChangeKind{
	feed.Created: ChangeCreated, feed.Committed: ChangeCommitted, feed.Saved: ChangeSaved,
	feed.Tombstoned: ChangeTombstoned, feed.Renamed: ChangeRenamed, feed.Deleted: ChangeDeleted, feed.Record: ChangeRecord,
}

// A Cursor is a place in the feed of a store. It is text without spaces, and stays valid as long as the changes after
// it are kept, in copies of the store as well.
type Cursor string

func cursorOf(id [16]byte, n uint64) Cursor {
	b := [24]byte(append(id[:], 0, 0, 0, 0, 0, 0, 0, 0))
	for i := range 8 {
		b[16+i] = byte(n >> (56 - 8*i))
	}
	return Cursor(hex.EncodeToString(b[:]))
}

func (c Cursor) parse() (id [16]byte, n uint64, err error) {
	b, err := hex.DecodeString(string(c))
	if err != nil || len(b) != 24 {
		return id, 0, invalid("watch", "%q is no cursor", string(c))
	}
	for _, d := range b[16:] {
		n = n<<8 | uint64(d)
	}
	if id = [16]byte(b); cursorOf(id, n) != c { // There is one text for each.
		return id, 0, invalid("watch", "%q is no cursor", string(c))
	}
	return id, n, nil
}

// FeedOptions say what the feed has.
type FeedOptions struct {
	// Keep is for how long a change is kept, at least a second. That time begins when somebody reads the feed, or runs
	// a collection, after the change. Then the next Store.GC removes it.
	Keep time.Duration
	// Records makes the feed have the changes of records, too: those of hosts, and those that queues, leases, drafts and
	// effects make of themselves. Each writes a small value more, so a lease that is renewed often is told often.
	Records bool
}

// StartFeed turns the feed of the store on. Once it has returned, Watch yields every commit, creation, renaming,
// deletion, tombstone and change of metadata of all sessions, in one order, and if o.Records is set the changes of
// records. A commit then writes one small value more, whichever process makes it. StartFeed writes to each session
// once. If the feed is on already, it only changes what o says.
//
// An error that matches ErrIncomplete says that StartFeed was cut off. The next StartFeed or Store.GC goes on with its
// work. If that error wraps a *damage.CorruptError, the feed is on, but the heads of the sessions that the error names
// are damaged. Nobody can commit to these sessions; the next call, or Store.GC, looks at them again. Once StartFeed
// has returned without an error, no earlier call can end the feed or change its options.
func (s *Store) StartFeed(ctx context.Context, o FeedOptions) error {
	if _, err := s.usable(ctx); err != nil {
		return err
	}
	if o.Keep < time.Second {
		return invalid("feed", "changes are to be kept for %v, which is less than a second", o.Keep)
	}
	return public(feed.Start(ctx, s.histories, o.Keep, o.Records, s.random))
}

// StopFeed turns the feed off, and removes what is in it. Watches end. StopFeed writes to each session once.
//
// An error that matches ErrIncomplete says that StopFeed was cut off. The feed is off, unless another call has begun
// it since; the next call, or Store.GC, removes the rest. If that error wraps a *damage.CorruptError, the heads of the
// sessions that it names are damaged; the next call, or Store.GC, looks at them again. Once StopFeed has returned
// without an error, no earlier call can begin the feed.
func (s *Store) StopFeed(ctx context.Context) error {
	if _, err := s.usable(ctx); err != nil {
		return err
	}
	err := feed.Stop(ctx, s.histories)
	s.changed(head.Incarnation{}) // Watches end.
	return public(err)
}

// A Feed says what the feed of a store has.
type Feed struct {
	Begin    Cursor        `json:"begin"` // before the oldest change that is kept
	End      Cursor        `json:"end"`   // behind the last change
	Keep     time.Duration `json:"keepNanoseconds"`
	Records  bool          `json:"records,omitzero"` // changes of records are told, too
	Switches uint64        `json:"switches"`         // how often StartFeed and StopFeed have changed anything
}

// Feed returns the state of the feed. Watch after its End yields the changes from now on. To keep a view of all
// sessions, call Feed first, then read the sessions, then watch after that End. The error is ErrFeedOff if the feed is
// off.
func (s *Store) Feed(ctx context.Context) (Feed, error) {
	if _, err := s.usable(ctx); err != nil {
		return Feed{}, err
	}
	sw, end, err := s.advanceFeed(ctx)
	if err != nil {
		return Feed{}, public(err)
	}
	return Feed{Begin: cursorOf(sw.ID, end.First-1), End: cursorOf(sw.ID, end.Next-1), Keep: sw.Keep, Records: sw.Records, Switches: sw.Writes}, nil
}

// advanceFeed gives numbers to what was told. Watches of one store do so one after the other, as they would be in
// each other's way.
func (s *Store) advanceFeed(ctx context.Context) (feed.Switch, feed.End, error) {
	select {
	case s.feeding <- struct{}{}:
		defer func() { <-s.feeding }()
		return feed.Advance(ctx, s.histories, s.now())
	case <-ctx.Done():
		return feed.Switch{}, feed.End{}, ctx.Err()
	}
}

// Watch yields the changes of all sessions after a cursor, each one once, in one order, and goes on with those that
// come: of this store at once, of others within Options.PollEvery. The order of one session's commits is theirs; of
// several sessions, and of records, what was done before something else began comes before it, as far as the clocks of
// the processes agree. Watch reads the store and gathers nothing, so a slow caller costs no
// memory; to go on after a restart, begin after the cursor of the last change that was dealt with.
//
// The sequence ends with the first error: that of ctx, ErrFeedOff, or ErrCursorExpired if what follows the cursor is
// not kept any more, or the feed was turned off meanwhile: then the caller reads all sessions anew.
func (s *Store) Watch(ctx context.Context, after Cursor) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		_, err := s.usable(ctx)
		if err == nil {
			err = s.watch(ctx, after, func(c Change) bool { return yield(c, nil) })
		}
		if !errors.Is(err, errEnough) {
			yield(Change{}, public(err))
		}
	}
}

func (s *Store) watch(ctx context.Context, after Cursor, yield func(Change) bool) error {
	id, n, err := after.parse()
	if err != nil {
		return err
	}
	poll := time.NewTicker(s.opts.PollEvery)
	defer poll.Stop()
	changed, stop := s.watching(topic{})
	defer stop()
	records, stop := s.watching(topic{records: true})
	defer stop()
	for {
		sw, _, err := s.advanceFeed(ctx)
		if err != nil {
			return err
		}
		recordsChanged := records
		if !sw.Records {
			recordsChanged = nil
		}
		for {
			changes, end, err := feed.Read(ctx, s.histories, id, n)
			if err != nil {
				return err
			}
			for _, c := range changes {
				n = c.Number
				if !yield(changeOf(&c, cursorOf(id, n))) {
					return errEnough
				}
			}
			if n+1 >= end.Next {
				break
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-recordsChanged:
		case <-poll.C:
		}
	}
}

func changeOf(c *feed.Change, cursor Cursor) Change {
	out := Change{
		Kind: changeKinds[c.Kind], Session: c.Session, Incarnation: hex.EncodeToString(c.Incarnation[:]), Revision: c.Revision,
		Time: c.Time, Cursor: cursor,
	}
	if c.Kind == feed.Record {
		out.Record = c.To
	} else {
		out.To = c.To
	}
	return out
}

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
	changed, stop := store.watching(topic{inc: s.session.Inc})
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

// changed wakes those who watch a session, which has changed, and those who watch the store. While the feed is on, it
// wakes those in other processes, too. With the zero incarnation it wakes only those who watch the store, or its
// records.
func (s *Store) changed(inc head.Incarnation) {
	s.tell(topic{inc: inc})
	if inc == (head.Incarnation{}) {
		s.watched.tell(topic{records: true})
	}
}

// recordsChanged is changed for those who watch records. It wakes those in other processes whether the feed is on or not:
// who changes records alone does not look.
func (s *Store) recordsChanged(inc head.Incarnation) { s.tell(topic{inc, true}) }

func (s *Store) tell(t topic) {
	s.watched.tell(t)
	if t.records || s.lifecycle.Telling.Load() {
		s.notifier.Notify(s.textOf(t))
	}
}

// A topic is what can be watched: the changes of a session, or of its records; with the zero incarnation, those of all.
type topic struct {
	inc     head.Incarnation
	records bool
}

// ofRecords begins the text of topics of records.
const ofRecords = "r"

// textOf returns what a topic is called in notifications: its incarnation, after the namespace.
func (s *Store) textOf(t topic) string {
	text := hex.EncodeToString(s.space.Life(t.inc))
	if t.records {
		text = ofRecords + text
	}
	return text
}

// watching begins to watch a topic, as watched.add does, and returns what that returns. The first call also begins
// to listen for the notifications of other processes, until the store is closed.
func (s *Store) watching(t topic) (changed chan struct{}, stop func()) {
	s.listening.Do(func() {
		s.run(func() {
			err := s.notifier.Listen(s.ctx, s.heard)
			if l := s.opts.Logger; l != nil && err != nil && s.ctx.Err() == nil {
				l.Warn("turnstone: watches hear of other processes by polling alone", "error", err)
			}
		})
	})
	return s.watched.add(t)
}

// heard wakes those who watch what another process has notified of. An empty text says that notifications may have
// been lost: it wakes all.
func (s *Store) heard(text string) {
	if text == "" {
		s.watched.tellAll()
		return
	}
	text, records := strings.CutPrefix(text, ofRecords)
	key, err := hex.DecodeString(text)
	if _, fields, ok := s.space.Fields(key); err == nil && ok && bytes.Equal(key, s.space.Life(head.Incarnation(fields))) {
		s.watched.tell(topic{head.Incarnation(fields), records})
	}
}

// A watched says what this store watches.
type watched struct {
	mu sync.Mutex
	by map[topic]map[chan struct{}]bool
}

// add returns a channel that receives a value after each change that is of a topic, until stop is called. One value may
// stand for several changes.
func (w *watched) add(t topic) (changed chan struct{}, stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed = make(chan struct{}, 1)
	if w.by == nil {
		w.by = map[topic]map[chan struct{}]bool{}
	}
	if w.by[t] == nil {
		w.by[t] = map[chan struct{}]bool{}
	}
	w.by[t][changed] = true
	return changed, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if delete(w.by[t], changed); len(w.by[t]) == 0 {
			delete(w.by, t)
		}
	}
}

// tell wakes those who watch a topic, and those who watch the same of all sessions.
func (w *watched) tell(t topic) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, of := range []topic{t, {records: t.records}} {
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
	topics := slices.Collect(maps.Keys(w.by))
	w.mu.Unlock()
	for _, t := range topics {
		w.tell(t)
	}
}
