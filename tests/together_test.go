package tests

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
)

// together returns a commit of one node to each session, at its revision as far as it goes by one.
func together(revision head.Revision, turn string, sessions ...*turnstone.Session) (out []turnstone.SessionCommit) {
	for _, s := range sessions {
		c := turnstone.Commit{Expected: revision, Nodes: saying(fmt.Append(nil, s.ID(), revision))}
		if turn != "" {
			c.Turn = fmt.Sprint(turn, s.ID(), revision)
		}
		out = append(out, turnstone.SessionCommit{Session: s, Commit: c})
	}
	return out
}

func TestC15_CommitsTogetherAreOneCallOfTheEngine(t *testing.T) {
	e, now := recordCalls(), time.Now() // No session gets ahead of its list entries.
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true, Now: func() time.Time { return now }})
	a, b := create(t, st, turnstone.Request{ID: "a"}), create(t, st, turnstone.Request{ID: "b"})
	for i := range head.Revision(4) {
		calls, written := e.during(func() {
			if _, err := st.CommitAll(ctx, together(i, "turn", a, b)...); err != nil {
				t.Fatal(err)
			}
		})
		if i == 0 {
			written = strings.ReplaceAll(written, "d", "") // dirty records, which the first commits of sessions write
		}
		if calls != "[Apply]" || written != "ppss" || len(e.last.Guards) != 3 || len(e.last.Deletes) != 0 {
			t.Errorf("commit %d: %s, %s, %d guards, %d deletes", i, calls, written, len(e.last.Guards), len(e.last.Deletes))
		}
	}
	verify(t, st)
}

// A blob that two of the sessions have is stored once, whether it is new or known.
func TestC15_CommitsTogetherShareBlobs(t *testing.T) {
	e, st := onMemory(t, nil)
	a, b := create(t, st, turnstone.Request{ID: "a"}), create(t, st, turnstone.Request{ID: "b"})
	large, attached := random(200_000, 1), random(300_000, 2)
	for i := range head.Revision(3) {
		parts := together(i, "", a, b)
		for j, s := range []*turnstone.Session{a, b} {
			parts[j].Nodes = append(parts[j].Nodes, turnstone.NewNode{Kind: "k", Payload: large})
			parts[j].Nodes = append(parts[j].Nodes, attaching(upload(t, s, attached))...)
			parts[j].Checkpoint = map[string][]byte{"p": large, "q": random(2_000_000, uint64(i))}
		}
		if _, err := st.CommitAll(ctx, parts...); err != nil {
			t.Fatal(err)
		}
	}
	if n := stored(t, e); n > 7_000_000 {
		t.Errorf("%d bytes are stored", n)
	}
	verify(t, st)
}

// Whatever call of the engine has an unknown outcome, applied or not: all commits stand, once.
func TestC16_UnknownOutcomesOfCommitsTogetherAreResolved(t *testing.T) {
	for _, turn := range []string{"", "turn"} {
		for _, applied := range []bool{false, true} {
			f := &enginetest.Faulty{Engine: memory.New()}
			st := openStore(t, f, &turnstone.Options{NoAutoSeal: true})
			a, b := create(t, st, turnstone.Request{ID: "a"}), create(t, st, turnstone.Request{ID: "b"})
			other := openStore(t, f, nil)
			loseReply(f, applied, func() {
				if applied { // One of them goes on before the outcome is known.
					commitTo(t, session(t, other, "b"), turnstone.Commit{Nodes: saying([]byte("later"))})
				}
			})
			rs, err := st.CommitAll(ctx, together(0, turn, a, b)...)
			if err != nil || rs[0].Revision != 1 || rs[1].Revision != 1 || rs[0].Replayed && turn == "" {
				t.Errorf("turn %q, applied %v: %+v, %v", turn, applied, rs, err)
			}
			for _, s := range []*turnstone.Session{a, b} {
				info, err := s.Info(ctx)
				if want := head.Revision(1); err != nil || info.Revision != want && (s != b || !applied || info.Revision != 2) {
					t.Errorf("turn %q, applied %v: session %s: %+v, %v", turn, applied, s.ID(), info, err)
				}
			}
			verify(t, st)
		}
	}
}

// usage names n models.
func usage(from, n int) (out []head.Usage) {
	for i := range n {
		out = append(out, head.Usage{Model: fmt.Sprint("m", from+i), Input: 1})
	}
	return out
}

// Somebody else makes the same commit to one of the sessions, with the same id, after an attempt that
// had no effect: that does not say that the others stand.
func TestC15_ThatOneCommitStandsSaysNothingOfTheOthers(t *testing.T) {
	f := &enginetest.Faulty{Engine: memory.New()}
	now := func() time.Time { return time.Unix(1000, 0) }
	st := openStore(t, f, &turnstone.Options{NoAutoSeal: true, Now: now})
	a, b := create(t, st, turnstone.Request{ID: "a"}), create(t, st, turnstone.Request{ID: "b"})
	other := openStore(t, f.Engine, &turnstone.Options{NoAutoSeal: true, Now: now})
	same := turnstone.Commit{Checkpoint: map[string][]byte{"state": []byte("done")}}
	f.Plan = func(c enginetest.Call) enginetest.Fault {
		if c.Op != "Apply" {
			return enginetest.Fault{}
		}
		f.Plan = nil
		commitAt(t, session(t, other, "a"), same)
		return enginetest.Fault{Err: engine.ErrUnknown}
	}
	rs, err := st.CommitAll(ctx, turnstone.SessionCommit{Session: a, Commit: same}, turnstone.SessionCommit{Session: b, Commit: turnstone.Commit{Nodes: saying([]byte("x"))}})
	var ce *turnstone.ConflictError
	if !errors.As(err, &ce) || ce.Session != "a" || errors.Is(err, turnstone.ErrOutcomeUnknown) {
		t.Errorf("%+v, %v", rs, err)
	}
	if info, err := b.Info(ctx); err != nil || info.Revision != 0 {
		t.Errorf("%+v, %v", info, err)
	}
	verify(t, st)
}

// What refuses a commit after an attempt of it turned out to have had no effect is told as it is.
func TestE1_ARefusalAfterAnUnknownOutcomeThatIsResolved(t *testing.T) {
	f := &enginetest.Faulty{Engine: memory.New()}
	st := openStore(t, f, &turnstone.Options{NoAutoSeal: true})
	a := create(t, st, turnstone.Request{ID: "a"})
	for i := range 4 {
		commitTo(t, a, turnstone.Commit{Usage: usage(60*i, 60)})
	}
	other := openStore(t, f.Engine, nil)
	f.Plan = func(c enginetest.Call) enginetest.Fault {
		if c.Op != "Apply" {
			return enginetest.Fault{}
		}
		f.Plan = nil
		commitTo(t, session(t, other, "a"), turnstone.Commit{Usage: usage(240, 16)})
		return enginetest.Fault{Err: engine.ErrUnknown}
	}
	_, err := a.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Usage: usage(300, 1)})
	var le *turnstone.LimitError
	if !errors.As(err, &le) || errors.Is(err, turnstone.ErrOutcomeUnknown) {
		t.Error(err)
	}
}

// Somebody else commits to one of the sessions before each call of the engine, or deletes it: the
// commits stand all, or none does.
func TestC15_CommitsTogetherBesideOthers(t *testing.T) {
	for name, other := range map[string]func(st *turnstone.Store){
		"commit": func(st *turnstone.Store) {
			commitTo(t, session(t, st, "b"), turnstone.Commit{Nodes: saying([]byte("other"))})
		},
		"delete": func(st *turnstone.Store) { remove(t, st, "b") },
	} {
		t.Run(name, func(t *testing.T) {
			besideEachCall(t, func(st *turnstone.Store) {
				create(t, st, turnstone.Request{ID: "a"})
				create(t, st, turnstone.Request{ID: "b"})
			}, func(st *turnstone.Store) error {
				a, err := st.Session(ctx, "a")
				if err != nil {
					return err
				}
				b, err := st.Session(ctx, "b")
				if err != nil {
					return err
				}
				_, err = st.CommitAll(ctx, together(0, "turn", a, b)...)
				return err
			}, other, func(st *turnstone.Store, _ engine.Engine, err error) error {
				info, ierr := session(t, st, "a").Info(ctx)
				if ierr != nil {
					return ierr
				}
				if stands := info.Revision == 1; stands != (err == nil) {
					return fmt.Errorf("session a is at revision %d after %v", info.Revision, err)
				}
				if err != nil && !errors.Is(err, turnstone.ErrConflict) && !errors.Is(err, turnstone.ErrSessionDeleted) && !errors.Is(err, turnstone.ErrSessionNotFound) {
					return err
				}
				return nil
			})
		})
	}
}

// Somebody else makes the very same commit before each call of the engine, while the heads that this
// one saw are out of date: both get the same results.
func TestC16_TheSameCommitsTogetherAtOnce(t *testing.T) {
	all := func(st *turnstone.Store) (out []turnstone.SessionCommit) {
		for _, id := range []string{"a", "b", "c"} {
			s, err := st.Session(ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, turnstone.SessionCommit{Session: s, Commit: turnstone.Commit{Expected: turnstone.AnyRevision, Turn: "t", Nodes: saying([]byte(id))}})
		}
		return out
	}
	var others []turnstone.Result
	besideEachCall(t, func(st *turnstone.Store) {
		for _, id := range []string{"a", "b", "c"} {
			create(t, st, turnstone.Request{ID: id})
		}
	}, func(st *turnstone.Store) error {
		parts := all(st)
		for _, id := range []string{"b", "c"} {
			commitTo(t, session(t, st, id), turnstone.Commit{Nodes: saying([]byte("first"))})
		}
		rs, err := st.CommitAll(ctx, parts...)
		if err == nil && others != nil {
			for i := range rs {
				if rs[i].Commit != others[i].Commit {
					err = fmt.Errorf("%+v, and the other one got %+v", rs[i], others[i])
				}
			}
		}
		return err
	}, func(st *turnstone.Store) {
		var err error
		if others, err = st.CommitAll(ctx, all(st)...); err != nil {
			t.Fatal(err)
		}
	}, func(st *turnstone.Store, _ engine.Engine, err error) error {
		others = nil
		verify(t, st)
		return err
	})
}

func TestI1_CommitsTogetherThatContradictThemselves(t *testing.T) {
	_, st := onMemory(t, nil)
	_, elsewhere := onMemory(t, nil)
	a, b, foreign := create(t, st, turnstone.Request{ID: "a"}), create(t, st, turnstone.Request{ID: "b"}), create(t, elsewhere, turnstone.Request{ID: "a"})
	half := together(0, "turn", a, b)
	half[1].Turn = ""
	bad := together(0, "", a, b)
	bad[1].Nodes[0].Kind = ""
	for name, parts := range map[string][]turnstone.SessionCommit{
		"nil session":         {{}},
		"nil handle":          {{Session: (*turnstone.Session)(nil)}},
		"another store":       together(0, "", foreign),
		"one session twice":   together(0, "", a, b, session(t, st, "a")),
		"turn ids by half":    half,
		"a commit is invalid": bad,
	} {
		rs, err := st.CommitAll(ctx, parts...)
		var ie *turnstone.InvalidError
		if rs != nil || !errors.As(err, &ie) || !strings.HasPrefix(err.Error(), "commit ") && !strings.HasPrefix(ie.Where, "commit ") {
			t.Errorf("%s: %v, %v", name, rs, err)
		}
	}
	commitTo(t, b, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "k", Key: "taken"}}})
	again := together(0, "", a, b)
	again[1].Expected, again[1].Nodes[0].Key = 1, "taken"
	var ie *turnstone.InvalidError
	if _, err := st.CommitAll(ctx, again...); !errors.As(err, &ie) || !strings.Contains(err.Error(), `session "b"`) {
		t.Errorf("%T: %v", err, err)
	}
	for i := range 4 {
		commitTo(t, b, turnstone.Commit{Usage: usage(64*i, 64)})
	}
	many := together(turnstone.AnyRevision, "", a, b)
	many[1].Usage = usage(1000, 1)
	var le *turnstone.LimitError
	if _, err := st.CommitAll(ctx, many...); !errors.As(err, &le) || !strings.Contains(err.Error(), `session "b"`) {
		t.Errorf("%T: %v", err, err)
	}
	b = create(t, st, turnstone.Request{ID: "c"})
	if rs, err := st.CommitAll(ctx); err != nil || len(rs) != 0 {
		t.Errorf("no commits: %v, %v", rs, err)
	}
	for _, s := range []*turnstone.Session{a, b} {
		if info, err := s.Info(ctx); err != nil || info.Revision != 0 {
			t.Errorf("%+v, %v", info, err)
		}
	}
}

// A session and its first commit are one batch.
func TestC17_ACreationWithItsCommitIsOneBatch(t *testing.T) {
	e := recordCalls()
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
	for i := range 3 {
		calls, _ := e.during(func() {
			if _, err := st.CommitAll(ctx, turnstone.SessionCommit{Create: &turnstone.Request{ID: fmt.Sprint(i)}, Commit: turnstone.Commit{Turn: "t", Nodes: saying([]byte("x"))}}); err != nil {
				t.Fatal(err)
			}
		})
		if calls != "[Get Get Apply]" { // that there is no such session, and no such incarnation
			t.Error(calls)
		}
	}
	verify(t, st)
}

// A fork counts in its parent's lifecycle record, which a rewind of the parent in the same call sets as
// well, and so does a detached child. The fork begins where the parent was before.
func TestC17_AForkBesideACommitOfItsParent(t *testing.T) {
	for _, detached := range []bool{false, true} {
		e, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
		p := create(t, st, turnstone.Request{ID: "p"})
		root := commitTo(t, p, turnstone.Commit{Nodes: saying([]byte("root"))}).Nodes[0]
		part := random(40_000, 1)
		commitTo(t, p, turnstone.Commit{Nodes: saying([]byte("on")), Checkpoint: map[string][]byte{"p": part}})
		part[7]++
		commitTo(t, p, turnstone.Commit{Checkpoint: map[string][]byte{"p": part}}) // a delta, which a fork stores whole
		for i := range 3 {
			rs, err := st.CommitAll(ctx,
				turnstone.SessionCommit{Session: p, Commit: turnstone.Commit{Expected: turnstone.AnyRevision, Leaf: turnstone.RefTo(root), Nodes: []turnstone.NewNode{{Kind: "k", Parent: turnstone.RefTo(root), Payload: fmt.Append(nil, i)}}}},
				turnstone.SessionCommit{
					Create: &turnstone.Request{ID: fmt.Sprint("f", i), Parent: "p", Detached: detached},
					Commit: turnstone.Commit{Nodes: saying([]byte("first")), Checkpoint: map[string][]byte{"same": part}},
				})
			if err != nil || !rs[1].Created || rs[0].Leaf != root {
				t.Fatalf("%+v, %v", rs, err)
			}
			f := session(t, st, fmt.Sprint("f", i))
			state, err := f.Load(ctx, turnstone.Scope{})
			want := map[bool][]int{false: {3, 2, 2}, true: {1, 1, 1}}[detached][i]
			if err != nil || len(state.Nodes) != want {
				t.Errorf("fork %d: %d nodes, %v", i, len(state.Nodes), err)
			}
			if parts, err := f.Checkpoint(ctx, 0); err != nil || string(parts["same"]) != string(part) {
				t.Errorf("fork %d: %v", i, err)
			}
			verify(t, st)
		}
		remove(t, st, "p")
		vacuum(t, st)
		verify(t, st)
		for i := range 3 {
			remove(t, st, fmt.Sprint("f", i))
		}
		vacuum(t, st)
		vacuum(t, st)
		for _, p := range pairs(t, e) {
			if p.Key[4] == 'l' || p.Key[4] == 'b' {
				t.Errorf("detached %v: a record %q is left", detached, p.Key[4])
			}
		}
	}
}

// What a first commit stores ahead of its batch is nobody's yet, and no collection takes it.
func TestC17_ALargeFirstCommitBesideCollections(t *testing.T) {
	f := &enginetest.Faulty{Engine: memory.New()}
	st := openStore(t, f, &turnstone.Options{NoAutoSeal: true})
	other := openStore(t, f.Engine, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
	runs := 0
	f.Plan = func(c enginetest.Call) enginetest.Fault {
		if c.Op == "Apply" {
			runs++
			collect(t, other, gc.Options{})
			collect(t, other, gc.Options{})
		}
		return enginetest.Fault{}
	}
	large := random(3_000_000, 1)
	_, err := st.CommitAll(ctx, turnstone.SessionCommit{Create: &turnstone.Request{ID: "new"}, Commit: turnstone.Commit{Nodes: saying(large), Checkpoint: map[string][]byte{"p": large[1:]}}})
	if err != nil || runs < 3 {
		t.Fatalf("%d, %v", runs, err)
	}
	f.Plan = nil
	state, err := session(t, st, "new").Load(ctx, turnstone.Scope{})
	if err != nil || string(state.Nodes[0].Payload) != string(large) {
		t.Error(err)
	}
	verify(t, st)
	// One that fails leaves nothing behind.
	if _, err := st.CommitAll(ctx, turnstone.SessionCommit{Create: &turnstone.Request{ID: "lost"}, Commit: turnstone.Commit{Expected: 3, Nodes: saying(random(3_000_000, 2))}}); !errors.Is(err, turnstone.ErrConflict) {
		t.Error(err)
	}
	collect(t, other, gc.Options{})
	collect(t, other, gc.Options{})
	if n := stored(t, f.Engine); n > 7_000_000 {
		t.Errorf("%d bytes are stored", n)
	}
}

// Somebody else makes the session, forks or deletes the parent, or forks it, just before the batch is applied.
func TestC17_WhatChangesBeforeACreationWithItsCommit(t *testing.T) {
	for name, test := range map[string]struct {
		parent string
		before func(t *testing.T, other *turnstone.Store)
		want   error
		result string // created, revision
	}{
		"the session is made": {
			before: func(t *testing.T, other *turnstone.Store) {
				commitTo(t, create(t, other, turnstone.Request{ID: "new"}), turnstone.Commit{Records: []turnstone.RecordChange{{Key: "k", Value: []byte("theirs")}}})
			}, result: "false 2",
		},
		"the session is made and deleted": {
			before: func(t *testing.T, other *turnstone.Store) {
				create(t, other, turnstone.Request{ID: "new"})
				remove(t, other, "new")
			}, result: "true 1",
		},
		"the parent is forked": {
			parent: "p", before: func(t *testing.T, other *turnstone.Store) { create(t, other, turnstone.Request{ID: "f", Parent: "p"}) }, result: "true 1",
		},
		"the parent is deleted": {
			parent: "p", before: func(t *testing.T, other *turnstone.Store) {
				remove(t, other, "p")
				vacuum(t, other)
			}, want: turnstone.ErrSessionNotFound,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := &enginetest.Faulty{Engine: memory.New()}
			st := openStore(t, f, &turnstone.Options{NoAutoSeal: true})
			other := openStore(t, f.Engine, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
			commitTo(t, create(t, st, turnstone.Request{ID: "p"}), turnstone.Commit{Nodes: saying([]byte("of the parent"))})
			f.Plan = func(c enginetest.Call) enginetest.Fault {
				if c.Op == "Apply" {
					f.Plan = nil
					test.before(t, other)
				}
				return enginetest.Fault{}
			}
			rs, err := st.CommitAll(ctx, turnstone.SessionCommit{
				Create: &turnstone.Request{ID: "new", Parent: test.parent},
				Commit: turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: saying([]byte("first")), Records: []turnstone.RecordChange{{Key: "k", Value: []byte("mine")}}},
			})
			if !errors.Is(err, test.want) {
				t.Fatal(err)
			}
			verify(t, other)
			if err != nil {
				return
			}
			if got := fmt.Sprint(rs[0].Created, " ", rs[0].Revision); got != test.result {
				t.Errorf("%s, want %s", got, test.result)
			}
			if r, err := session(t, other, "new").Record(ctx, "k"); err != nil || string(r.Value) != "mine" || r.Version != rs[0].Records[0] {
				t.Errorf("%+v, %v", r, err)
			}
			remove(t, other, "p")
			vacuum(t, other)
			verify(t, other)
		})
	}
}

// What a fork stored ahead of a commit that is refused is no upload any more.
func TestC17_ARefusedFirstCommitLeavesNoUpload(t *testing.T) {
	e, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	p := create(t, st, turnstone.Request{ID: "p"})
	part := random(3_000_000, 1)
	for i := range 2 {
		part[i]++
		commitTo(t, p, turnstone.Commit{Nodes: saying([]byte("x")), Checkpoint: map[string][]byte{"p": part}})
	}
	first := commitTo(t, p, turnstone.Commit{Nodes: saying([]byte("x"))}).Nodes[0]
	commitTo(t, p, turnstone.Commit{Nodes: saying([]byte("x"))})
	for what, c := range map[string]turnstone.Commit{
		"revision": {Expected: 5, Nodes: saying(random(3_000_000, 2))},
		"leaf":     {Leaf: turnstone.RefTo(first)},
	} {
		_, err := st.CommitAll(ctx, turnstone.SessionCommit{Create: &turnstone.Request{ID: "f", Parent: "p"}, Commit: c})
		if !errors.Is(err, turnstone.ErrConflict) && !errors.Is(err, turnstone.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
		for _, p := range pairs(t, e) {
			if p.Key[4] == 'x' && strings.Trim(string(p.Key[21:]), "\x00") == "" {
				t.Errorf("%s: an upload stands", what)
			}
		}
	}
	verify(t, st)
}

// A reply is lost, and somebody deletes what the call has made or committed to: the call takes effect once, be
// it a creation alone or with a commit.
func TestC17_AnUnknownOutcomeAndADeletion(t *testing.T) {
	committing := func(turn string) func(*turnstone.Store, *turnstone.Session) error {
		return func(st *turnstone.Store, q *turnstone.Session) error {
			_, err := st.CommitAll(ctx,
				turnstone.SessionCommit{Create: &turnstone.Request{ID: "a"}, Commit: turnstone.Commit{Turn: turn, Expected: turnstone.AnyRevision, Nodes: saying([]byte("m"))}},
				turnstone.SessionCommit{Session: q, RecordsOnly: true, Commit: turnstone.Commit{Records: []turnstone.RecordChange{{Key: "sent", Value: []byte("v")}}}})
			return err
		}
	}
	calls := map[string]func(*turnstone.Store, *turnstone.Session) error{
		"a commit": committing(""), "a turn": committing("turn"),
		"a creation with records": func(st *turnstone.Store, _ *turnstone.Session) error {
			_, err := st.CommitAll(ctx, turnstone.SessionCommit{Create: &turnstone.Request{ID: "a"}, RecordsOnly: true, Commit: turnstone.Commit{Records: []turnstone.RecordChange{{Key: "k"}}}})
			return err
		},
		"a creation": func(st *turnstone.Store, _ *turnstone.Session) error {
			_, _, err := st.Create(ctx, turnstone.Request{ID: "a"})
			return err
		},
	}
	for name, c := range map[string]struct {
		exists, vacuumed bool
		unknown          bool // whether nobody can tell
	}{
		"a session that existed": {exists: true, unknown: true},
		"a new session":          {},
		"a new session, removed": {vacuumed: true, unknown: true},
	} {
		for what, call := range calls {
			if c.exists && what == "a creation" {
				continue // It changes nothing.
			}
			f := &enginetest.Faulty{Engine: memory.New()}
			st := openStore(t, f, &turnstone.Options{NoAutoSeal: true})
			other := openStore(t, f.Engine, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
			q := create(t, st, turnstone.Request{ID: "q"})
			if c.exists {
				create(t, st, turnstone.Request{ID: "a"})
			}
			loseReply(f, true, func() {
				remove(t, other, "a")
				if c.vacuumed {
					vacuum(t, other)
				}
				change(t, session(t, other, "q"), turnstone.RecordChange{Key: "sent", Action: turnstone.DeleteRecord})
			})
			unknown := c.unknown && (c.vacuumed || what != "a creation with records") // Until a vacuum, the records tell.
			if err := call(st, q); errors.Is(err, turnstone.ErrOutcomeUnknown) != unknown || err != nil && !unknown {
				t.Errorf("%s, %s: %v", name, what, err)
			}
			if _, err := q.Record(ctx, "sent"); !errors.Is(err, turnstone.ErrRecordNotFound) {
				t.Errorf("%s, %s: what was sent came twice: %v", name, what, err)
			}
			if _, err := other.Session(ctx, "a"); !errors.Is(err, turnstone.ErrSessionNotFound) {
				t.Errorf("%s, %s: the session was made twice: %v", name, what, err)
			}
			verify(t, other)
		}
	}
}

// A commit that would have made its session is seen by who watches it, and seals it when that is due.
func TestWA1_ACommitThatCouldCreateIsWatched(t *testing.T) {
	_, st := onMemory(t, &turnstone.Options{PollEvery: 1 << 40, SealBytes: 4000})
	s := create(t, st, turnstone.Request{ID: "a"})
	commitTo(t, s, turnstone.Commit{})
	begun := make(chan bool)
	go func() {
		<-begun
		for i := range 20 {
			_, err := st.CommitAll(ctx, turnstone.SessionCommit{
				Create: &turnstone.Request{ID: "a"}, Commit: turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: saying(random(500, uint64(i)))},
			})
			if err != nil {
				t.Error(err)
			}
		}
	}()
	for e, err := range s.Watch(ctx, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Revision == 1 {
			close(begun)
		}
		if e.Revision == 21 {
			break
		}
	}
	for { // It is sealed in the background.
		stats, err := st.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if stats.Sealed > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
}
