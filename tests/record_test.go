package tests

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// setting returns a change that sets a record, if it is as expected.
func setting(key, value string, expect turnstone.RecordVersion) turnstone.RecordChange {
	return turnstone.RecordChange{Key: key, Value: []byte(value), Expect: expect}
}

// A change of records is one call of the engine, with a commit or without, unless a version is expected
// that the store has not seen: then the records are read before.
func TestRC10_AChangeOfRecordsIsOneCallOfTheEngine(t *testing.T) {
	e := recordCalls()
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
	a, b := create(t, st, turnstone.Request{ID: "a"}), create(t, st, turnstone.Request{ID: "b"})
	change(t, a, setting("k", "1", ""))
	commitTo(t, a, turnstone.Commit{})
	check := func(what, wantCalls, wantLetters string, guards int, f func()) {
		t.Helper()
		if calls, letters := e.during(f); calls != wantCalls || letters != wantLetters || len(e.last.Guards) != guards {
			t.Errorf("%s: %s, writes %s with %d guards; want %s, %s, %d", what, calls, letters, len(e.last.Guards), wantCalls, wantLetters, guards)
		}
	}
	var v []turnstone.RecordVersion
	check("set", "[Apply]", "Rn", 3, func() { v = change(t, a, setting("k", "2", "")) })
	check("set at a version", "[Apply]", "R", 4, func() { v = change(t, a, setting("k", "3", v[0])) })
	check("set a new one", "[Apply]", "Rn", 4, func() { change(t, a, setting("new", "", turnstone.NoRecord)) })
	check("set one that is not listed", "[Apply]", "R", 3, func() { change(t, a, setting(".own", "", "")) })
	check("check", "[Apply]", "", 3, func() {
		change(t, a, turnstone.RecordChange{Key: "k", Action: turnstone.CheckRecord, Expect: v[0]})
	})
	check("commit", "[Apply]", "psRRn", 4, func() {
		c := turnstone.Commit{Expected: 1, Nodes: saying([]byte("x")), Records: []turnstone.RecordChange{setting("k", "4", v[0]), setting("m", "", "")}}
		r, err := a.Commit(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		v = r.Records
	})
	change(t, b, setting("warm", "", ""))
	check("commit, and records of another session", "[Apply]", "psRnRn", 5, func() {
		_, err := st.CommitAll(ctx, turnstone.SessionCommit{Session: a, Commit: turnstone.Commit{Expected: 2, Nodes: saying([]byte("x")), Records: []turnstone.RecordChange{setting("o", "", "")}}},
			turnstone.SessionCommit{Session: b, RecordsOnly: true, Commit: turnstone.Commit{Records: []turnstone.RecordChange{setting("inbox/1", "", turnstone.NoRecord)}}})
		if err != nil {
			t.Fatal(err)
		}
	})
	cold := session(t, openStore(t, e, &turnstone.Options{NoAutoSeal: true}), "a")
	check("by a store that has seen nothing", "[Get Apply]", "R", 4, func() { v = change(t, cold, setting("k", "5", v[0])) })
	verify(t, st)
}

// What another store has changed since is noticed, and what it has not is not taken for a conflict.
func TestRC10_WhatAStoreHasSeenIsOnlyBelievedIfItHolds(t *testing.T) {
	e := memory.New()
	a := create(t, openStore(t, e, &turnstone.Options{NoAutoSeal: true}), turnstone.Request{ID: "s"})
	other := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
	b := session(t, other, "s")
	v := change(t, a, setting("k", "of a", ""))[0]
	w := change(t, b, setting("k", "of b", v))[0]
	if _, err := a.ChangeRecords(ctx, setting("k", "late", v)); !errors.Is(err, turnstone.ErrRecordConflict) || !strings.Contains(err.Error(), string(w)) {
		t.Errorf("%v does not name %s", err, w)
	}
	w = change(t, b, setting("k", "again", w))[0]
	v = change(t, a, setting("k", "of a", w))[0]
	// The lifecycle record that the handle has seen is another one now, and so is the head.
	commitTo(t, b, turnstone.Commit{Nodes: saying([]byte("x"))})
	if err := b.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	v = change(t, a, setting("k", "after seal", v))[0]
	create(t, other, turnstone.Request{ID: "f", Parent: "s"})
	change(t, a, turnstone.RecordChange{Key: "k", Action: turnstone.CheckRecord, Expect: v})
	change(t, b, turnstone.RecordChange{Key: "k", Action: turnstone.DeleteRecord})
	if _, err := a.Commit(ctx, turnstone.Commit{Expected: 1, Records: []turnstone.RecordChange{setting("k", "late", v)}}); !errors.Is(err, turnstone.ErrRecordConflict) {
		t.Error(err)
	}
	change(t, a, setting("k", "new", turnstone.NoRecord))
	if _, err := b.ChangeRecords(ctx, setting("k", "newer", turnstone.NoRecord)); !errors.Is(err, turnstone.ErrRecordConflict) {
		t.Error(err)
	}
	// A handle of a session that was renamed is told so, as by a commit.
	if err := rename(ctx, other, "s", "t"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.ChangeRecords(ctx, setting("k", "late", "")); !errors.Is(err, turnstone.ErrSessionDeleted) {
		t.Error(err)
	}
	if r, err := session(t, other, "t").Record(ctx, "k"); err != nil || string(r.Value) != "new" || r.Session != "t" {
		t.Errorf("%+v, %v", r, err)
	}
	page, err := other.Records(ctx, turnstone.RecordQuery{})
	if err != nil || len(page.Records) != 1 || page.Records[0].Session != "t" {
		t.Errorf("%+v, %v", page, err)
	}
	verify(t, other)
}

// After an unknown outcome a change without a commit stands if a record has the version that it gave, and
// does not if one still has the version that was expected. Otherwise nobody can tell whether somebody has
// changed the records since, and the error says so.
func TestRC11_UnknownOutcomesOfChangesAreResolved(t *testing.T) {
	for name, test := range map[string]struct {
		applied bool
		since   bool // somebody changes the record before the outcome is known
		expect  bool // a version is expected
		want    error
		value   string
	}{
		"applied":                          {applied: true, value: "mine"},
		"not applied":                      {want: turnstone.ErrOutcomeUnknown, value: "before"},
		"applied, expected":                {applied: true, expect: true, value: "mine"},
		"not applied, expected":            {expect: true, value: "mine"},
		"applied and changed":              {applied: true, since: true, want: turnstone.ErrOutcomeUnknown, value: "theirs"},
		"applied and changed, expected":    {applied: true, since: true, expect: true, want: turnstone.ErrOutcomeUnknown, value: "theirs"},
		"not applied but changed":          {since: true, want: turnstone.ErrOutcomeUnknown, value: "theirs"},
		"not applied but changed,expected": {since: true, expect: true, want: turnstone.ErrOutcomeUnknown, value: "theirs"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &enginetest.Faulty{Engine: memory.New()}
			st := openStore(t, f, &turnstone.Options{NoAutoSeal: true})
			a := create(t, st, turnstone.Request{ID: "a"})
			v := change(t, a, setting("k", "before", ""))[0]
			other := session(t, openStore(t, f.Engine, &turnstone.Options{NoAutoSeal: true}), "a")
			loseReply(f, test.applied, func() {
				if test.since {
					change(t, other, setting("k", "theirs", ""))
				}
				commitTo(t, other, turnstone.Commit{Nodes: saying([]byte("x"))})
			})
			c := setting("k", "mine", "")
			if test.expect {
				c.Expect = v
			}
			vs, err := a.ChangeRecords(ctx, c)
			if !errors.Is(err, test.want) {
				t.Errorf("%v", err)
			}
			r, rerr := a.Record(ctx, "k")
			if rerr != nil || string(r.Value) != test.value || err == nil && r.Version != vs[0] {
				t.Errorf("%q of version %s, %v; the call said %v", r.Value, r.Version, rerr, vs)
			}
		})
	}
}

// A page of the records of all sessions costs its records, however many sessions there are.
func TestRC12_APageOfAllRecordsCostsItsRecords(t *testing.T) {
	var calls [2]int
	for i, sessions := range []int{20, 2000} {
		n := 0
		e := &enginetest.Faulty{Engine: memory.New()}
		st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
		for j := range sessions {
			s := create(t, st, turnstone.Request{ID: fmt.Sprint(j)})
			change(t, s, setting(".state", "x", ""), setting("other", "", ""))
			if j < 20 {
				change(t, s, setting(fmt.Sprint("due/", j), "x", ""))
			}
		}
		e.Done = func(c enginetest.Call, _ error) { n += 1 + c.Read }
		page, err := st.Records(ctx, turnstone.RecordQuery{Prefix: "due/", Limit: 10})
		if err != nil || len(page.Records) != 10 || page.Next == "" {
			t.Fatalf("%d, %v", len(page.Records), err)
		}
		calls[i] = n
	}
	if calls[0] != calls[1] {
		t.Errorf("%d calls and keys are read among 20 sessions, %d among 2,000", calls[0], calls[1])
	}
}

// However busy a session is, its records are read and changed.
func TestR12_RecordsOfABusySession(t *testing.T) {
	f := &enginetest.Faulty{Engine: memory.New()}
	a := create(t, openStore(t, f, &turnstone.Options{NoAutoSeal: true}), turnstone.Request{ID: "a"})
	change(t, a, setting("k", "0", ""))
	busy := session(t, openStore(t, f.Engine, &turnstone.Options{NoAutoSeal: true}), "a")
	f.Plan = func(enginetest.Call) enginetest.Fault {
		commitTo(t, busy, turnstone.Commit{Nodes: saying([]byte("x")), Records: []turnstone.RecordChange{setting("other", "", "")}})
		return enginetest.Fault{}
	}
	r, err := a.Record(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	change(t, a, setting("k", "1", r.Version))
	if page, err := a.Records(ctx, turnstone.RecordQuery{}); err != nil || len(page.Records) != 2 {
		t.Errorf("%+v, %v", page, err)
	}
	if state, err := a.Load(ctx, turnstone.Scope{Records: []string{"k"}}); err != nil || string(state.Records["k"].Value) != "1" {
		t.Errorf("%+v, %v", state, err)
	}
}

// Vacuum removes the records of a deleted session, also of one that forks hold, and nobody else's.
func TestRC8_VacuumRemovesTheRecordsOfDeletedSessions(t *testing.T) {
	e, st := onMemory(t, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
	for _, id := range []string{"held", "alone", "lives"} {
		s := create(t, st, turnstone.Request{ID: id})
		commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("x"))})
		change(t, s, setting("k", id, ""), setting(".own", id, ""))
	}
	create(t, st, turnstone.Request{ID: "f", Parent: "held"})
	commitTo(t, session(t, st, "held"), turnstone.Commit{Nodes: saying([]byte("of nobody"))})
	remove(t, st, "held")
	remove(t, st, "alone")
	count := func() (n int) {
		for _, p := range pairs(t, e) {
			if p.Key[4] == 'R' || p.Key[4] == 'n' {
				n++
			}
		}
		return n
	}
	if n := count(); n != 9 {
		t.Errorf("%d values before", n)
	}
	verify(t, st)
	vacuum(t, st)
	if n := count(); n != 3 {
		t.Errorf("%d values are left, want those of one session", n)
	}
	verify(t, st)
}

// A change of records is made at most once: what others have done since a reply was lost stands.
func TestRC11_AChangeIsMadeAtMostOnce(t *testing.T) {
	for name, test := range map[string]struct {
		change turnstone.RecordChange
		since  func(t *testing.T, other *turnstone.Session) string // returns what has to stand
	}{
		"set, and set by another": {setting("k", "mine", ""), func(t *testing.T, other *turnstone.Session) string {
			r, err := other.Record(ctx, "k")
			if err != nil {
				t.Fatal(err)
			}
			change(t, other, setting("k", "theirs", r.Version))
			return "theirs"
		}},
		"put, and taken by another": {setting("k", "mine", turnstone.NoRecord), func(t *testing.T, other *turnstone.Session) string {
			change(t, other, turnstone.RecordChange{Key: "k", Action: turnstone.DeleteRecord})
			return ""
		}},
		"deleted, and set by another": {turnstone.RecordChange{Key: "k", Action: turnstone.DeleteRecord}, func(t *testing.T, other *turnstone.Session) string {
			change(t, other, setting("k", "theirs", turnstone.NoRecord))
			return "theirs"
		}},
	} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", late ", late), func(t *testing.T) {
				f := &enginetest.Faulty{Engine: memory.New()}
				a := create(t, openStore(t, f, &turnstone.Options{NoAutoSeal: true}), turnstone.Request{ID: "a"})
				change(t, a, setting("other", "", ""))
				other := session(t, openStore(t, f.Engine, &turnstone.Options{NoAutoSeal: true}), "a")
				if test.change.Expect != turnstone.NoRecord && test.change.Action == turnstone.SetRecord {
					change(t, other, setting("k", "before", ""))
				}
				var attempt *engine.Batch
				want := ""
				f.Plan = func(c enginetest.Call) enginetest.Fault {
					if c.Op != "Apply" || attempt != nil {
						return enginetest.Fault{}
					}
					attempt = &engine.Batch{Guards: c.Batch.Guards, Sets: c.Batch.Sets, Deletes: c.Batch.Deletes}
					return enginetest.Fault{Err: engine.ErrUnknown, Applied: !late}
				}
				if !late {
					f.Done = func(c enginetest.Call, _ error) {
						if c.Op == "Apply" {
							f.Done = nil
							want = test.since(t, other)
						}
					}
				}
				_, err := a.ChangeRecords(ctx, test.change, setting("second", "", ""))
				if err != nil && !errors.Is(err, turnstone.ErrOutcomeUnknown) {
					t.Fatal(err)
				}
				if late { // The attempt comes when the call is over. What it would do, it does not.
					change(t, other, setting("k", "theirs", ""))
					want = "theirs"
					_ = f.Engine.Apply(ctx, attempt)
				}
				if r, err := other.Record(ctx, "k"); err != nil && !errors.Is(err, turnstone.ErrRecordNotFound) || string(r.Value) != want {
					t.Errorf("%q, %v; want %q", r.Value, err, want)
				}
			})
		}
	}
}

// An error says that nothing has changed only if no attempt can come late: here the record that was to be absent
// is there for a while.
func TestE1_ALateAttemptThatExpectedNoRecord(t *testing.T) {
	for _, commits := range []bool{false, true} {
		f := &enginetest.Faulty{Engine: memory.New()}
		a := create(t, openStore(t, f, &turnstone.Options{NoAutoSeal: true}), turnstone.Request{ID: "a"})
		change(t, a, setting("other", "", ""))
		commitTo(t, a, turnstone.Commit{})
		other := session(t, openStore(t, f.Engine, &turnstone.Options{NoAutoSeal: true}), "a")
		for fail := 0; fail < 6; fail++ {
			var attempt *engine.Batch
			gets := 0
			f.Plan = func(c enginetest.Call) enginetest.Fault {
				switch {
				case c.Op == "Apply" && attempt == nil:
					attempt = &engine.Batch{Guards: c.Batch.Guards, Sets: c.Batch.Sets, Deletes: c.Batch.Deletes}
					change(t, other, setting("k", "theirs", turnstone.NoRecord))
					return enginetest.Fault{Err: engine.ErrUnknown}
				case c.Op == "Get" && attempt != nil:
					if gets++; gets == fail {
						return enginetest.Fault{Err: engine.ErrUnavailable}
					}
				}
				return enginetest.Fault{}
			}
			before, err := other.Info(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if commits {
				_, err = a.Commit(ctx, turnstone.Commit{Expected: before.Revision, Records: []turnstone.RecordChange{setting("k", "mine", turnstone.NoRecord)}})
			} else {
				_, err = a.ChangeRecords(ctx, setting("k", "mine", turnstone.NoRecord))
			}
			f.Plan = nil
			change(t, other, turnstone.RecordChange{Key: "k", Action: turnstone.DeleteRecord})
			_ = f.Engine.Apply(ctx, attempt)
			r, rerr := other.Record(ctx, "k")
			if stands := rerr == nil; stands && !errors.Is(err, turnstone.ErrOutcomeUnknown) || err == nil {
				t.Errorf("commits %v, get %d: %v, and %q stands", commits, fail, err, r.Value)
			}
			change(t, other, turnstone.RecordChange{Key: "k", Action: turnstone.DeleteRecord})
		}
	}
}

// An unknown outcome of changes in several sessions is told by any of them.
func TestRC11_UnknownOutcomesOfSeveralSessions(t *testing.T) {
	for i := range 3 {
		f := &enginetest.Faulty{Engine: memory.New()}
		st, other := openStore(t, f, &turnstone.Options{NoAutoSeal: true}), openStore(t, f.Engine, &turnstone.Options{NoAutoSeal: true})
		var parts []turnstone.SessionCommit
		for j := range 3 {
			s := create(t, st, turnstone.Request{ID: fmt.Sprint(j)})
			parts = append(parts, turnstone.SessionCommit{Session: s, RecordsOnly: true, Commit: turnstone.Commit{Records: []turnstone.RecordChange{setting("k", "mine", "")}}})
		}
		loseReply(f, true, func() {
			for j := range 3 {
				if j != i { // Only session i still has what was set.
					change(t, session(t, other, fmt.Sprint(j)), setting("k", "theirs", ""))
				}
			}
		})
		rs, err := st.CommitAll(ctx, parts...)
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		if r, err := session(t, other, fmt.Sprint(i)).Record(ctx, "k"); err != nil || r.Version != rs[i].Records[0] {
			t.Errorf("%d: %+v, %v", i, r, err)
		}
	}
}

// A record that is lost while it is listed is noticed by all that read it by its key or from the list.
func TestR10_ALostRecordIsNoticed(t *testing.T) {
	e, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	a := create(t, st, turnstone.Request{ID: "a"})
	change(t, a, setting("q/1", "1", ""), setting("q/2", "2", ""))
	for _, letter := range []byte{'R', 'n'} {
		for _, p := range pairs(t, e) {
			if p.Key[4] != letter || !strings.Contains(string(p.Key), "q/1") {
				continue
			}
			if err := e.Apply(ctx, &engine.Batch{Deletes: [][]byte{p.Key}}); err != nil {
				t.Fatal(err)
			}
			_, one := a.Record(ctx, "q/1")
			_, load := a.Load(ctx, turnstone.Scope{Records: []string{"q/1"}})
			_, own := a.Records(ctx, turnstone.RecordQuery{})
			_, all := st.Records(ctx, turnstone.RecordQuery{})
			for what, err := range map[string]error{"Record": one, "Load": load, "Session.Records": own, "Store.Records": all} {
				unseen := letter == 'R' && what == "Session.Records" || letter == 'n' && what == "Store.Records"
				var corrupt *damage.CorruptError
				if errors.As(err, &corrupt) == unseen {
					t.Errorf("%c is lost, %s: %v", letter, what, err)
				}
			}
			if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{p}}); err != nil {
				t.Fatal(err)
			}
		}
	}
}
