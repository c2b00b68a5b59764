package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
)

// adkRows are the rows of docs/hosts.md for Google ADK.
var adkRows = map[string]func(h *host){
	"adk-create": func(h *host) {
		a := adk{h}
		a.create("app/u/1", map[string]string{"k": "1", "user:k": "2", "app:k": "3", "temp:k": "4"})
		a.create("app/u/2", nil)
		a.equal(a.state("app/u/1"), map[string]string{"k": "1", "user:k": "2", "app:k": "3"})
		a.equal(a.state("app/u/2"), map[string]string{"user:k": "2", "app:k": "3"})
	},
	"adk-append": func(h *host) {
		a := adk{h}
		a.create("app/u/1", nil)
		delta := map[string]string{"k": "1", "user:k": "2", "app:k": "3", "temp:k": "4"}
		// A crash at any call: all of it is there, or none.
		for n := 1; ; n++ {
			copied := &host{T: h.T, faulty: &enginetest.Faulty{Engine: memory.New()}}
			copied.Store = openStore(h.T, copied.faulty, nil)
			b := adk{copied}
			b.create("app/u/1", nil)
			calls := 0
			copied.faulty.Plan = func(enginetest.Call) enginetest.Fault {
				calls++
				return enginetest.Fault{Crash: calls == n, Applied: n%2 == 0}
			}
			crashed := b.appendEvent("app/u/1", 1, event("e1", "hello"), delta) != nil
			copied.Store = openStore(h.T, copied.faulty.Engine, nil)
			there := len(b.load("app/u/1", turnstone.Scope{}).Nodes)
			b.equal(len(b.state("app/u/1")), 3*there)
			if !crashed {
				break
			}
		}
		for range 2 { // as often as it takes to know that it is stored
			h.must(a.appendEvent("app/u/1", 1, event("e1", "hello"), delta))
		}
		h.equal(len(h.load("app/u/1", turnstone.Scope{}).Nodes), 1)
		h.equal(len(a.state("app/u/1")), 3)
	},
	"adk-stale": func(h *host) {
		a := adk{h}
		a.create("app/u/1", nil)
		h.must(a.appendEvent("app/u/1", 1, event("e1", "first"), nil))
		if err := a.appendEvent("app/u/1", 1, event("e2", "late"), map[string]string{"app:k": "lost"}); !errors.Is(err, turnstone.ErrConflict) {
			h.Error(err)
		}
		h.equal(len(a.state("app/u/1")), 0)
	},
	"adk-get": func(h *host) {
		a := adk{h}
		a.create("app/u/1", nil)
		for i := range 5 {
			h.must(a.appendEvent("app/u/1", head.Revision(i+1), event(fmt.Sprint("e", i), fmt.Sprint(i)), nil))
		}
		last := h.load("app/u/1", turnstone.Scope{Last: 2}).Nodes
		h.equal(string(last[0].Payload)+string(last[1].Payload), "34")
		recent := 0
		for n, err := range session(h.T, h.Store, "app/u/1").Nodes(ctx, turnstone.Scope{Reverse: true}) { // the newest first, and no more than wanted
			h.must(err)
			if n.Time.Before(last[0].Time) {
				break
			}
			recent++
		}
		if recent < 2 {
			h.Error(recent)
		}
	},
	"adk-state": func(h *host) {
		a := adk{h}
		a.create("app/u/1", map[string]string{"k": "old"})
		h.must(a.appendEvent("app/u/1", 1, event("e", "x"), map[string]string{"k": "new"}))
		for at, want := range []string{"2 {\"k\":\"new\"}", "1 {\"k\":\"old\"}"} { // of the head, and of an earlier revision
			st := h.load("app/u/1", turnstone.Scope{At: head.Revision(at), Parts: []string{"state"}})
			h.equal(fmt.Sprint(st.Revision, " ", string(st.Contents["state"])), want)
		}
	},
	"adk-list": func(h *host) {
		a := adk{h}
		for _, id := range []string{"app/u/1", "app/u/2", "app/v/1", "other/u/1"} {
			a.create(id, nil)
		}
		page, err := h.List(ctx, turnstone.ListOptions{Group: "app/u"})
		h.must(err)
		h.equal(len(page.Sessions), 2)
		page, err = h.List(ctx, turnstone.ListOptions{Group: "app"}) // of all users
		h.must(err)
		h.equal(len(page.Sessions), 3)
	},
	"adk-delete": func(h *host) {
		a := adk{h}
		a.create("app/u/1", map[string]string{"user:k": "kept"})
		a.create("app/u/2", nil)
		for range 2 {
			h.must(h.Delete(ctx, "app/u/1", turnstone.KeepChildren))
		}
		h.equal(a.state("app/u/2"), map[string]string{"user:k": "kept"})
	},
	"adk-artifact": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "artifacts/app/u/1"})
		save := func(name string, content []byte) (version int) {
			at, err := s.PutAttachment(ctx, bytes.NewReader(content), -1, "text/plain", name)
			h.must(err)
			reference, err := json.Marshal(at)
			h.must(err)
			for version = len(h.records("artifacts/app/u/1", "artifact/"+name+"/")); ; version++ {
				_, err := s.Commit(ctx, turnstone.Commit{
					Expected: turnstone.AnyRevision,
					Nodes:    []turnstone.NewNode{{Kind: "artifact", Parent: turnstone.RefNone(), Attachments: []blob.Attachment{at}}},
					Records:  []turnstone.RecordChange{{Key: fmt.Sprintf("artifact/%s/%08d", name, version), Value: reference, Expect: turnstone.NoRecord}},
				})
				if !errors.Is(err, turnstone.ErrRecordConflict) { // somebody else saved this version
					h.must(err)
					return version
				}
			}
		}
		h.equal(fmt.Sprint(save("a", []byte("one")), save("a", []byte("two")), save("b", []byte("three"))), "0 1 0")
		versions := h.records("artifacts/app/u/1", "artifact/a/")
		h.equal(len(versions), 2)
		var at blob.Attachment
		h.must(json.Unmarshal([]byte(versions["artifact/a/00000001"]), &at))
		var w bytes.Buffer
		_, err := s.ReadAttachment(ctx, &w, at.ID)
		h.must(err)
		h.equal(w.String(), "two")
		change(h.T, s, turnstone.RecordChange{Key: "artifact/b/00000000", Action: turnstone.DeleteRecord})
		h.equal(len(h.records("artifacts/app/u/1", "artifact/")), 2)
	},
}

// An adk is an ADK session service.
type adk struct{ *host }

// create makes a session with a state. The prefix of a key says whether its value belongs to the session, the user or
// the app.
func (a adk) create(id string, state map[string]string) {
	a.Helper()
	own, user, app := a.deltas(nil, state)
	name := strings.Split(id, "/")
	of := func(id, group string) *turnstone.Request {
		return &turnstone.Request{ID: id, Metadata: head.Metadata{Group: group}}
	}
	a.all(
		turnstone.SessionCommit{Create: of(id, name[0]+"/"+name[1]), Commit: turnstone.Commit{Checkpoint: own}},
		turnstone.SessionCommit{Create: of(name[0]+"/"+name[1], ".users"), Commit: turnstone.Commit{Expected: turnstone.AnyRevision, Records: user}},
		turnstone.SessionCommit{Create: of(name[0], ".apps"), Commit: turnstone.Commit{Expected: turnstone.AnyRevision, Records: app}})
}

// deltas sorts a state delta by what its keys belong to. The session's own state is a part, with what it had before.
func (a adk) deltas(before, delta map[string]string) (own map[string][]byte, user, app []turnstone.RecordChange) {
	a.Helper()
	state := map[string]string{}
	maps.Copy(state, before)
	for _, k := range slices.Sorted(maps.Keys(delta)) {
		switch change := sets(k, delta[k]); {
		case strings.HasPrefix(k, "temp:"):
		case strings.HasPrefix(k, "app:"):
			app = append(app, change...)
		case strings.HasPrefix(k, "user:"):
			user = append(user, change...)
		default:
			state[k] = delta[k]
		}
	}
	part, err := json.Marshal(state)
	a.must(err)
	return map[string][]byte{"state": part}, user, app
}

// appendEvent appends an event to the revision that its caller has seen.
func (a adk) appendEvent(id string, seen head.Revision, event []turnstone.NewNode, delta map[string]string) error {
	s, err := a.Session(ctx, id)
	if err != nil {
		return err
	}
	before, err := a.own(s)
	if err != nil {
		return err
	}
	own, user, app := a.deltas(before, delta)
	name := strings.Split(id, "/")
	commits := []turnstone.SessionCommit{{Session: s, Commit: turnstone.Commit{Expected: seen, Turn: event[0].Key, Nodes: event, Checkpoint: own}}}
	for of, changes := range map[string][]turnstone.RecordChange{name[0] + "/" + name[1]: user, name[0]: app} {
		if len(changes) == 0 {
			continue
		}
		if s, err = a.Session(ctx, of); err != nil {
			return err
		}
		commits = append(commits, turnstone.SessionCommit{Session: s, RecordsOnly: true, Commit: turnstone.Commit{Records: changes}})
	}
	_, err = a.CommitAll(ctx, commits...)
	return err
}

// own returns a session's own state.
func (a adk) own(s *turnstone.Session) (state map[string]string, err error) {
	st, err := s.Load(ctx, turnstone.Scope{Parts: []string{"state"}})
	if err == nil {
		err = json.Unmarshal(st.Contents["state"], &state)
	}
	return state, err
}

// state returns what a session sees: its own state, its user's and its app's.
func (a adk) state(id string) map[string]string {
	a.Helper()
	name := strings.Split(id, "/")
	out, err := a.own(session(a.T, a.Store, id))
	a.must(err)
	maps.Copy(out, a.records(name[0]+"/"+name[1], ""))
	maps.Copy(out, a.records(name[0], ""))
	return out
}
