package importer_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
)

// openBeside opens another store on an engine, as another process has one.
func openBeside(t *testing.T, e engine.Engine) (*turnstone.Store, *importer.Clock) {
	t.Helper()
	clock := &importer.Clock{}
	st, err := turnstone.Open(ctx, e, &turnstone.Options{Now: clock.Now, NoAutoSeal: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st, clock
}

// Another import comes before each call of the engine: of the same file, of a shorter one, and of a
// longer one. The session is that of the longest, but for its metadata, which are not saved with a commit.
func TestP1_ImportsAtTheSameTimeGiveTheSessionOfTheFullestFile(t *testing.T) {
	for name, all := range appended {
		whole, clock := openClocked(t)
		id := bring(t, whole, clock, name, file(all)).Session
		want := describeHistory(t, whole, id)
		for _, lengths := range [][2]int{{len(all), len(all)}, {len(all), len(all) / 2}, {len(all) / 2, len(all)}} {
			for at, more := 1, true; more; at++ {
				e := memory.New()
				beside, besideClock := openBeside(t, e)
				more = false
				importing := true
				var theirs importer.Result
				mine, clock := openBeside(t, &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
					if importing && c.N == at {
						more = true
						theirs = bring(t, beside, besideClock, name, file(all[:lengths[1]]))
					}
					return enginetest.Fault{}
				}})
				r := bring(t, mine, clock, name, file(all[:lengths[0]]))
				importing = false
				at := fmt.Sprintf("%s: %d lines beside %d before call %d", name, lengths[0], lengths[1], at)
				if more && r.Added+theirs.Added != len(all) {
					t.Errorf("%s: %d and %d nodes were added, of %d", at, r.Added, theirs.Added, len(all))
				}
				if more {
					if got := describeHistory(t, mine, id); got != want {
						t.Fatalf("%s:\n%s\nwant\n%s", at, got, want)
					}
					if got := exported(t, mine, id); got != file(all) {
						t.Errorf("%s: exported is\n%s", at, got)
					}
				}
				if r := bring(t, mine, clock, name, file(all)); r.Session != id || more && (r.Outcome != importer.Unchanged || r.Commits != 0) {
					t.Errorf("%s: and then %+v", at, r)
				}
				if page, err := mine.List(ctx, turnstone.ListOptions{}); err != nil || len(page.Sessions) != 1 {
					t.Errorf("%s: %v, %v", at, page.Sessions, err)
				}
				verify(t, mine)
			}
		}
	}
}

// A conversation from standard input has no identity of its own: what an import that was cut off has stored tells
// that it is the same one.
func TestP1_AnImportOfStandardInputThatWasCutOffIsFinishedByTheNext(t *testing.T) {
	all := appended["plain.jsonl"]
	for refused := 1; refused < 6; refused++ {
		st, clock, stopped := stopping(t, refused)
		convs, _ := parseFile(t, "-", []byte(file(all)))
		importer.Load(stopped(), st, convs, importer.Options{Clock: clock, BySteps: true})
		for range 2 {
			r := bring(t, st, clock, "-", file(all))
			if got := exported(t, st, r.Session); got != file(all) {
				t.Errorf("cut off at commit %d: exported is\n%s", refused, got)
			}
		}
		if page, err := st.List(ctx, turnstone.ListOptions{}); err != nil || len(page.Sessions) != 1 {
			t.Errorf("cut off at commit %d: %d sessions, %v", refused, len(page.Sessions), err)
		}
	}
}

func TestP9_AReplacementThatCanNotBeMadeDeletesNothing(t *testing.T) {
	st, clock := openClocked(t)
	all := appended["plain.jsonl"]
	id := bring(t, st, clock, "plain.jsonl", file(all)).Session
	convs := parse(t, "plain.jsonl", file(all[:3]))
	load(t, st, convs, importer.Options{Replace: true, Group: "a//b", Clock: clock}, importer.Failed)
	load(t, st, convs, importer.Options{Replace: true, Only: map[string]head.Revision{"another": 1}, Clock: clock}, importer.Failed)
	if got := exported(t, st, id); got != file(all) {
		t.Errorf("exported is\n%s", got)
	}
	// A replacement that is cut off leaves the session, and nothing else.
	for refused := 1; refused < 4; refused++ {
		st, clock, stopped := stopping(t, refused)
		id := bring(t, st, clock, "plain.jsonl", file(all[:2])).Session
		want := describe(t, st, id)
		convs := parse(t, "plain.jsonl", file(all))
		importer.Load(stopped(), st, convs, importer.Options{Replace: true, BySteps: true, Clock: clock})
		if page, err := st.List(ctx, turnstone.ListOptions{}); err != nil || len(page.Sessions) != 1 || describe(t, st, id) != want {
			t.Errorf("cut off at commit %d: %v, %v", refused, page.Sessions, err)
		}
		load(t, st, convs, importer.Options{Replace: true, Clock: clock}, importer.Replaced)
		if got := exported(t, st, id); got != file(all) {
			t.Errorf("replaced after a cut: %s", got)
		}
	}
	// What the run itself has made may be replaced: here are two snapshots of a conversation that is new.
	st, clock = openClocked(t)
	both := append(parse(t, "claude.jsonl", file(appended["claude.jsonl"][:5])), parse(t, "claude.jsonl", file(appended["claude.jsonl"]))...)
	for _, r := range importer.Load(ctx, st, both, importer.Options{Replace: true, Only: map[string]head.Revision{}, Clock: clock}) {
		if r.Err != nil {
			t.Error(r.Err)
		}
	}
}

// Somebody goes on with the old session while the new one is made: nobody was told that this would be lost.
func TestP9_AReplacementOfWhatHasGoneOnDeletesNothing(t *testing.T) {
	e := memory.New()
	other, _ := openBeside(t, e)
	all := appended["plain.jsonl"]
	bring(t, other, &importer.Clock{}, "plain.jsonl", file(all[:2]))
	old, went := session(t, other, "plain"), false
	mine, clock := openBeside(t, &enginetest.Faulty{Engine: e, Plan: func(enginetest.Call) enginetest.Fault {
		page, err := other.List(ctx, turnstone.ListOptions{})
		if err == nil && len(page.Sessions) == 2 && !went {
			went = true
			_, err = old.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "note", Payload: []byte("precious")}}})
		}
		if err != nil {
			t.Error(err)
		}
		return enginetest.Fault{}
	}})
	r := load(t, mine, parse(t, "plain.jsonl", file(all)), importer.Options{Replace: true, Clock: clock}, importer.Failed)[0]
	page, err := mine.List(ctx, turnstone.ListOptions{})
	if !went || !errors.Is(r.Err, turnstone.ErrConflict) || err != nil || len(page.Sessions) != 1 || page.Sessions[0].ID != "plain" {
		t.Errorf("went on: %v, %+v, left are %+v, %v", went, r, page.Sessions, err)
	}
	l, err := old.Load(ctx, turnstone.Scope{Last: 1})
	if err != nil || string(l.Nodes[0].Payload) != "precious" {
		t.Errorf("what went on: %+v, %v", l, err)
	}
}

// The old session can't be deleted: it stays, and nothing else.
func TestP9_AReplacementWhoseDeletionFailsLeavesTheOldSession(t *testing.T) {
	e := memory.New()
	other, _ := openBeside(t, e)
	all := appended["plain.jsonl"]
	bring(t, other, &importer.Clock{}, "plain.jsonl", file(all[:2]))
	whole := false
	mine, clock := openBeside(t, &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
		page, err := other.List(ctx, turnstone.ListOptions{})
		if err != nil {
			t.Error(err)
		}
		for _, i := range page.Sessions {
			if i.ID != "plain" && i.Labels[importer.IdentityLabel] != "" && c.Apply > 0 && !whole {
				whole = true // What comes next is the deletion.
				return enginetest.Fault{Err: errors.New("no disk")}
			}
		}
		return enginetest.Fault{}
	}})
	r := load(t, mine, parse(t, "plain.jsonl", file(all)), importer.Options{Replace: true, Clock: clock}, importer.Failed)[0]
	page, err := other.List(ctx, turnstone.ListOptions{})
	if !whole || r.Err == nil || err != nil || len(page.Sessions) != 1 || page.Sessions[0].ID != "plain" {
		t.Errorf("%v, %+v, left are %+v, %v", whole, r, page.Sessions, err)
	}
	load(t, mine, parse(t, "plain.jsonl", file(all)), importer.Options{Replace: true, Clock: clock}, importer.Replaced)
}

// Somebody goes on with it while the question stands what may be replaced.
func TestP9_AReplacementOfMoreThanWasShownDeletesNothing(t *testing.T) {
	st, clock := openClocked(t)
	all := appended["plain.jsonl"]
	bring(t, st, clock, "plain.jsonl", file(all[:2]))
	convs := parse(t, "plain.jsonl", file(all))
	losses, err := importer.Losses(ctx, st, convs)
	if err != nil || len(losses) != 1 {
		t.Fatalf("%+v, %v", losses, err)
	}
	old := session(t, st, "plain")
	if _, err := old.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "note", Payload: []byte("precious")}}}); err != nil {
		t.Fatal(err)
	}
	only := map[string]head.Revision{losses[0].Incarnation: losses[0].Revision}
	r := load(t, st, convs, importer.Options{Replace: true, Only: only, Clock: clock}, importer.Failed)[0]
	page, err := st.List(ctx, turnstone.ListOptions{})
	if !errors.Is(r.Err, turnstone.ErrConflict) || err != nil || len(page.Sessions) != 1 || page.Sessions[0].Incarnation != losses[0].Incarnation {
		t.Errorf("%+v, left are %+v, %v", r, page.Sessions, err)
	}
	only[losses[0].Incarnation]++
	load(t, st, convs, importer.Options{Replace: true, Only: only, Clock: clock}, importer.Replaced)
}

// Somebody makes a session of the id between the deletion of the old one and the naming of the new one: both stay.
func TestP9_AReplacementWhoseIDIsTakenKeepsItsOwn(t *testing.T) {
	e := memory.New()
	other, _ := openBeside(t, e)
	all := appended["plain.jsonl"]
	bring(t, other, &importer.Clock{}, "plain.jsonl", file(all[:2]))
	taken := false
	mine, clock := openBeside(t, &enginetest.Faulty{Engine: e, Plan: func(enginetest.Call) enginetest.Fault {
		if _, err := other.Session(ctx, "plain"); errors.Is(err, turnstone.ErrSessionNotFound) && !taken {
			taken = true
			if _, _, err := other.Create(ctx, turnstone.Request{ID: "plain"}); err != nil {
				t.Error(err)
			}
		}
		return enginetest.Fault{}
	}})
	r := load(t, mine, parse(t, "plain.jsonl", file(all)), importer.Options{Replace: true, Clock: clock}, importer.Replaced)[0]
	if !taken || r.Session == "plain" || exported(t, mine, r.Session) != file(all) {
		t.Errorf("taken: %v, %+v", taken, r)
	}
	if i := infoOf(t, session(t, mine, "plain")); i.Revision != 0 {
		t.Errorf("the session that took the id: %+v", i)
	}
	if r := bring(t, mine, clock, "plain.jsonl", file(all)); r.Outcome != importer.Unchanged {
		t.Errorf("again: %+v", r)
	}
}
