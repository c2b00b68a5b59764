package turnstone

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/session"
)

// A Record is a small value that a session has under a key, beside its history: state that is not
// a turn, an entry of a queue, a lease. It belongs to no revision, and a fork does not get it.
type Record struct {
	Session string        `json:"session"` // the session's id
	Key     string        `json:"key"`
	Value   []byte        `json:"value"` // the caller's
	Version RecordVersion `json:"version"`
	Time    time.Time     `json:"time"` // when it was set
}

// A RecordVersion names one value of a record. A record gets a new version whenever it is set, even to the value
// that it has. No version recurs, not even after the record was deleted. It is 32
// lower-case hex digits that say nothing else.
type RecordVersion string

// NoRecord as RecordChange.Expect is met if there is no record of that key.
const NoRecord RecordVersion = "none"

// A RecordAction says what a RecordChange does.
type RecordAction int

const (
	SetRecord    RecordAction = iota // sets the record to the value
	DeleteRecord                     // deletes it; one that is not there is no error
	CheckRecord                      // changes nothing: the call only fails if the record is not as expected
)

// A RecordChange sets, deletes or checks one record of a session. RecordChange{Key: k, Value: v} sets it,
// whatever stands there.
type RecordChange struct {
	// Key is text without zero bytes. Records are listed in the byte order of their keys, and those of
	// all sessions by Store.Records, unless the key begins with a dot: then that list does not have it.
	Key    string       `json:"key"`
	Action RecordAction `json:"action"`
	Value  []byte       `json:"value"` // of SetRecord
	// Expect is the version that the record must have now, or NoRecord. If it is another one, the call
	// fails with a *RecordConflictError. "" expects nothing: the change is made whatever stands there.
	Expect RecordVersion `json:"expect,omitempty"`
}

// A RecordConflictError says what stands in place of the record that a change expects. It matches
// ErrRecordConflict. Nothing of the call was stored, unless the error matches ErrOutcomeUnknown as well.
type RecordConflictError struct {
	Session  string        `json:"session"`
	Key      string        `json:"key"`
	Expected RecordVersion `json:"expected"` // or NoRecord
	Version  RecordVersion `json:"version"`  // the one that stands, or NoRecord
}

func (e *RecordConflictError) Error() string {
	return fmt.Sprintf("turnstone: record %q of session %q has the version %q; %q was expected", e.Key, e.Session, e.Version, e.Expected)
}

// Is reports whether target is ErrRecordConflict.
func (e *RecordConflictError) Is(target error) bool { return target == ErrRecordConflict }

func versionOf(v session.RecordVersion) RecordVersion {
	if v == (session.RecordVersion{}) {
		return NoRecord
	}
	return RecordVersion(v.String())
}

// ChangeRecords makes all changes, or none, without a commit: the session stays at its
// revision and where it is in lists. It returns for each change the version that the record has
// then, or NoRecord. Changes of other records do not conflict with it, and neither do commits.
//
// In the common case it is one call of the engine. If it guards what this store has not seen, it is one more: the
// session's lifecycle record the first time, and records whose version is expected. An error that matches
// ErrOutcomeUnknown leaves open whether the changes stand; after any other error none does. The outcome can stay
// unknown if a reply of the engine was lost and no version tells: see RecordChange.Expect. See Commit.Records for
// changes that are made with a commit, and Store.CommitAll for those of several sessions.
func (s *Session) ChangeRecords(ctx context.Context, changes ...RecordChange) ([]RecordVersion, error) {
	store, err := s.usable(ctx)
	if err != nil {
		return nil, err
	}
	return observed(ctx, s, OpChangeRecords, s.ID(), func(ctx context.Context) ([]RecordVersion, error) {
		rs, _, err := store.commitAll(ctx, []SessionCommit{{Session: s, RecordsOnly: true, Commit: Commit{Records: changes}}})
		if err != nil {
			return nil, err
		}
		return rs[0].Records, nil
	}, func(v []RecordVersion, o *Outcome) {
		o.Items = len(v)
		for i := range changes {
			o.Bytes += int64(len(changes[i].Value))
		}
	})
}

// Record returns the record of a key, or ErrRecordNotFound, and then a Record whose version is NoRecord: so
// the Version is what a change can expect in either case. To read several, or some as they stood
// when a history did, see Scope.Records.
func (s *Session) Record(ctx context.Context, key string) (Record, error) {
	return observed(ctx, s, OpRecords, s.ID(), func(ctx context.Context) (Record, error) {
		if err := checkRecordKeys(key); err != nil {
			return Record{}, err
		}
		_, values, err := s.session.Head(ctx, session.RecordKeys(s.session, []string{key})...)
		if err != nil {
			return Record{}, err
		}
		found, err := s.records([]string{key}, values)
		if err != nil {
			return Record{}, err
		}
		r := found[key]
		if r.Version == NoRecord {
			return r, fmt.Errorf("%w: %q of session %q", ErrRecordNotFound, key, s.ID())
		}
		return r, nil
	}, func(r Record, o *Outcome) { o.Items, o.Bytes = 1, int64(len(r.Value)) })
}

// records returns the records of keys that were read. One that is not there has the version NoRecord.
func (s *Session) records(names []string, values [][]byte) (map[string]Record, error) {
	found, err := session.DecodeRecords(s.session, names, values)
	if err != nil {
		return nil, err
	}
	out := make(map[string]Record, len(names))
	for _, name := range names {
		if r := found[name]; r != nil {
			out[name] = recordOf(r, s.ID())
		} else {
			out[name] = Record{Session: s.ID(), Key: name, Version: NoRecord}
		}
	}
	return out, nil
}

func recordOf(r *session.Record, session string) Record {
	return Record{Session: session, Key: r.Key, Value: r.Value, Version: versionOf(r.Version), Time: r.Time}
}

// RecordQuery says which records to list: those whose keys begin with Prefix, in the byte order of
// keys.
type RecordQuery struct {
	Prefix string `json:"prefix,omitempty"`
	After  string `json:"after,omitempty"` // RecordPage.Next of the page before, or ""
	Limit  int    `json:"limit,omitzero"`  // how many records a page has at most; default 50, at most MaxPage
}

// A RecordPage is a part of a list of records.
type RecordPage struct {
	Records  []Record      `json:"records"`
	Next     string        `json:"next,omitempty"`    // RecordQuery.After of the next page; "" on the last one
	Revision head.Revision `json:"revision,omitzero"` // of a session's list: where the session was at the moment that the page shows
}

// Records lists records of the session. A page shows its records as they stood at one moment, when the session
// was at RecordPage.Revision. A record that was made while the page was read may not be on it. A page ends after
// about a megabyte of values, and may have fewer records than the limit although there is a next one.
func (s *Session) Records(ctx context.Context, q RecordQuery) (RecordPage, error) {
	return listRecords(ctx, s, s.ID(), q, func(ctx context.Context, q session.RecordQuery) (*session.RecordPage, error) {
		return session.RecordsOf(ctx, s.session, q)
	})
}

// Records lists records of all sessions, for example of a queue that has an entry in each of many sessions. It
// lists them in the byte order of keys. Records with equal keys have a stable order. It leaves out keys that
// begin with a dot. A page costs only the reads of its own records, however many sessions there are. It may have
// fewer records than the limit although there is a next one: when sessions were deleted, or after about a
// megabyte.
func (s *Store) Records(ctx context.Context, q RecordQuery) (RecordPage, error) {
	return listRecords(ctx, s, "", q, func(ctx context.Context, q session.RecordQuery) (*session.RecordPage, error) {
		return session.RecordsOfStore(ctx, s.histories, q)
	})
}

// listRecords returns the page that list returns for a query.
func listRecords(ctx context.Context, on callee, session string, q RecordQuery, list func(context.Context, session.RecordQuery) (*session.RecordPage, error)) (RecordPage, error) {
	return observed(ctx, on, OpRecords, session, func(ctx context.Context) (RecordPage, error) {
		of, err := q.query()
		if err != nil {
			return RecordPage{}, err
		}
		found, err := list(ctx, of)
		if err != nil {
			return RecordPage{}, err
		}
		page := RecordPage{Next: found.Next, Revision: found.Revision}
		for _, r := range found.Items {
			page.Records = append(page.Records, recordOf(r.Record, r.Session))
		}
		return page, nil
	}, func(p RecordPage, o *Outcome) {
		o.Items = len(p.Records)
		for i := range p.Records {
			o.Bytes += int64(len(p.Records[i].Value))
		}
	})
}

// A RecordUpdate is what a watch of records has seen.
type RecordUpdate struct {
	// Records are those that were set since the values before, as they stand now, and those that were deleted, which
	// have the version NoRecord and no value.
	Records []Record `json:"records,omitempty"`
	// Anew says that the watch begins with this value, or had to begin again: what came before is void. All that stands
	// comes with this value and the next ones, up to the first without More.
	Anew bool `json:"anew,omitzero"`
	// More says that the rest comes with the next value.
	More bool `json:"more,omitzero"`
}

// WatchRecords yields the records of the session whose keys begin with prefix, and then the changes of them that come:
// those that this store makes at once, those of others within Options.PollEvery. The first value comes at once, also if
// there is no record. Of several changes of one record the last one may be all that is seen. A value has about a
// megabyte at most.
//
// At each change of any record of the session, and every Options.PollEvery, WatchRecords lists the records of the prefix;
// it remembers the version of each. So the prefix should be as long as it can be, and more than MaxWatchedRecords are a
// *LimitError.
//
// The sequence ends with the first error: that of ctx, or ErrSessionDeleted when the session was deleted or renamed.
func (s *Session) WatchRecords(ctx context.Context, prefix string) iter.Seq2[RecordUpdate, error] {
	return func(yield func(RecordUpdate, error) bool) {
		store, err := s.usable(ctx)
		if err == nil {
			err = store.watchRecords(ctx, topic{s.session.Inc, true}, &recordWatch{prefix: prefix, list: s.Records, yield: yield})
		}
		if !errors.Is(err, errEnough) {
			yield(RecordUpdate{}, err)
		}
	}
}

// WatchRecords is Session.WatchRecords for the records of all sessions that Records lists.
func (s *Store) WatchRecords(ctx context.Context, prefix string) iter.Seq2[RecordUpdate, error] {
	return func(yield func(RecordUpdate, error) bool) {
		store, err := s.usable(ctx)
		if err == nil {
			err = store.watchRecords(ctx, topic{records: true}, &recordWatch{prefix: prefix, list: s.Records, yield: yield})
		}
		if !errors.Is(err, errEnough) {
			yield(RecordUpdate{}, err)
		}
	}
}

// watchRecords looks again and again, until it fails or the caller has enough.
func (s *Store) watchRecords(ctx context.Context, t topic, w *recordWatch) error {
	poll := time.NewTicker(s.opts.PollEvery)
	defer poll.Stop()
	changed, stop := s.watching(t)
	defer stop()
	for w.anew, w.known = true, map[recordID]RecordVersion{}; ; {
		if err := w.look(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-poll.C:
		}
	}
}

// A recordWatch tells its caller what has changed of the records with a prefix.
type recordWatch struct {
	prefix string
	list   func(context.Context, RecordQuery) (RecordPage, error)
	yield  func(RecordUpdate, error) bool

	anew  bool // nothing was told yet
	known map[recordID]RecordVersion
	held  []Record // that are told when it is known whether more comes
}

// A recordID names a record of the store.
type recordID struct{ session, key string }

// look lists the records, page by page, and tells of those that are not of the versions known, and of those that are
// gone.
func (w *recordWatch) look(ctx context.Context) error {
	gone := maps.Clone(w.known)
	for q := (RecordQuery{Prefix: w.prefix, Limit: MaxPage}); ; {
		page, err := w.list(ctx, q)
		if err != nil {
			return err
		}
		var set []Record
		for _, r := range page.Records {
			id := recordID{r.Session, r.Key}
			if w.known[id] != r.Version {
				set = append(set, r)
			}
			w.known[id] = r.Version
			delete(gone, id)
		}
		if n := len(w.known) - len(gone); n > MaxWatchedRecords {
			return &LimitError{Limit: "watched records", Have: int64(n), Max: MaxWatchedRecords}
		}
		if err := w.tell(set); err != nil {
			return err
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	var deleted []Record
	for id := range gone {
		deleted = append(deleted, Record{Session: id.session, Key: id.key, Version: NoRecord})
		delete(w.known, id)
	}
	slices.SortFunc(deleted, func(a, b Record) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Session, b.Session))
	})
	for part := range slices.Chunk(deleted, MaxPage) {
		if err := w.tell(part); err != nil {
			return err
		}
	}
	if len(w.held) == 0 && !w.anew {
		return nil
	}
	return w.send(false)
}

// tell sends what it was told before, if there is more.
func (w *recordWatch) tell(records []Record) (err error) {
	if len(records) > 0 && len(w.held) > 0 {
		err = w.send(true)
	}
	w.held = append(w.held, records...)
	return err
}

func (w *recordWatch) send(more bool) error {
	u := RecordUpdate{Records: w.held, Anew: w.anew, More: more}
	w.anew, w.held = false, nil
	if !w.yield(u, nil) {
		return errEnough
	}
	return nil
}

// A RecordWatcher is a Persistence or a Factory.
type RecordWatcher interface {
	WatchRecords(ctx context.Context, prefix string) iter.Seq2[RecordUpdate, error]
}

// AwaitRecords calls look until it is done or fails: at once, whenever a record of s whose key begins with prefix has
// changed, and after the time again, if look returns one. If ctx ends first, or the watch fails, the error is that one.
// If there are more than MaxWatchedRecords, AwaitRecords calls look every second.
func AwaitRecords(ctx context.Context, s RecordWatcher, prefix string, look func(ctx context.Context) (done bool, again time.Duration, err error)) error {
	if done, _, err := look(ctx); done || err != nil { // mostly there is nothing to wait for
		return err
	}
	watching, cancel := context.WithCancel(ctx)
	changed, ended := make(chan struct{}, 1), make(chan error, 1)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	watch.Go(func() {
		for _, err := range s.WatchRecords(watching, prefix) {
			if err != nil {
				ended <- err
				return
			}
			select {
			case changed <- struct{}{}:
			default: // It has not looked yet.
			}
		}
	})
	var every time.Duration
	for timer := (<-chan time.Time)(nil); ; {
		select {
		case <-changed:
		case err := <-ended:
			if !errors.Is(err, ErrLimit) {
				return err
			}
			every = time.Second
		case <-ctx.Done():
			return ctx.Err()
		case <-timer:
		}
		done, again, err := look(ctx)
		if done || err != nil {
			return err
		}
		if every > 0 && (again == 0 || again > every) {
			again = every
		}
		if timer = nil; again > 0 {
			timer = time.After(again)
		}
	}
}

// changesAny reports whether changes are more than checks.
func changesAny(changes []RecordChange) bool {
	return slices.ContainsFunc(changes, func(c RecordChange) bool { return c.Action != CheckRecord })
}

func (q *RecordQuery) query() (session.RecordQuery, error) {
	c := checker{of: "list"}
	c.recordKey("prefix", q.Prefix, 0)
	c.limit("records of a page", q.Limit, MaxPage)
	if q.Limit < 0 {
		c.invalid("Limit is %d", q.Limit)
	}
	limit := q.Limit
	if limit == 0 {
		limit = 50
	}
	return session.RecordQuery{Prefix: q.Prefix, After: q.After, Limit: limit}, c.err
}

// checkRecordKeys checks keys of records that are to be read.
func checkRecordKeys(names ...string) error {
	c := checker{of: "records"}
	c.limit("records", len(names), MaxRecords)
	for i, name := range names {
		c.at("record", i+1)
		c.recordKey("key", name, 1)
	}
	return c.err
}

func (c *checker) recordKey(what, text string, minimum int) {
	c.text(what, text, minimum, MaxRecordKey)
	if strings.ContainsRune(text, 0) {
		c.invalid("%s has a zero byte", what)
	}
}

// records checks changes of records.
func (c *checker) records(changes []RecordChange) {
	c.limit("records", len(changes), MaxRecords)
	first := make(map[string]int, len(changes))
	for i := range changes {
		ch := &changes[i]
		c.at("record", i+1)
		c.recordKey("key", ch.Key, 1)
		if j, twice := first[ch.Key]; twice {
			c.invalid("has the key of record %d", j)
		}
		first[ch.Key] = i
		c.limit("value bytes", len(ch.Value), MaxRecord)
		if _, ok := ch.Expect.expectation(); !ok {
			c.invalid("%.80q is no version of a record", string(ch.Expect))
		}
		switch {
		case ch.Action < SetRecord || ch.Action > CheckRecord:
			c.invalid("%d is none of SetRecord, DeleteRecord, CheckRecord", ch.Action)
		case ch.Action != SetRecord && ch.Value != nil:
			c.invalid("has a value, and is not set")
		case ch.Action == DeleteRecord && ch.Expect == NoRecord:
			c.invalid("is deleted, and expected not to be there")
		case ch.Action == CheckRecord && ch.Expect == "":
			c.invalid("is checked, and nothing is expected of it")
		}
	}
}

func (v RecordVersion) expectation() (e commit.Expectation, ok bool) {
	switch v {
	case "":
		return e, true
	case NoRecord:
		return commit.Expectation{Absent: true}, true
	}
	e.Version, ok = session.ParseRecordVersion(string(v))
	return e, ok && e.Version != (session.RecordVersion{})
}

// recordChanges returns what changes ask for. They were checked.
func recordChanges(changes []RecordChange) []commit.RecordChange {
	if len(changes) == 0 {
		return nil
	}
	out := make([]commit.RecordChange, len(changes))
	for i, ch := range changes {
		e, _ := ch.Expect.expectation()
		out[i] = commit.RecordChange{Key: ch.Key, Action: commit.Action(ch.Action), Value: ch.Value, Expect: e}
	}
	return out
}
