package turnstone_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/draft"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/lease"
	"github.com/turnstonedb/turnstone/queue"
)

// A host is a store beneath what a runtime expects of its own. Its methods fail the test.
type host struct {
	*testing.T
	*turnstone.Store
	faulty *enginetest.Faulty
}

func (h *host) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

func (h *host) equal(got, want any) {
	h.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		h.Fatalf("%s, want %s", g, w)
	}
}

func (h *host) all(commits ...turnstone.SessionCommit) []turnstone.Result {
	h.Helper()
	rs, err := h.CommitAll(ctx, commits...)
	h.must(err)
	return rs
}

func (h *host) load(id string, sc turnstone.Scope) *turnstone.State {
	h.Helper()
	st, err := session(h.T, h.Store, id).Load(ctx, sc)
	h.must(err)
	return st
}

// records returns the records of a session whose keys begin with a prefix, as text.
func (h *host) records(id, prefix string) map[string]string {
	h.Helper()
	out := map[string]string{}
	page, err := session(h.T, h.Store, id).Records(ctx, turnstone.RecordQuery{Prefix: prefix})
	h.must(err)
	for _, r := range page.Records {
		out[r.Key] = string(r.Value)
	}
	return out
}

// sets returns changes that set records: key, value, key, value, ….
func sets(pairs ...string) (out []turnstone.RecordChange) {
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, turnstone.RecordChange{Key: pairs[i], Value: []byte(pairs[i+1])})
	}
	return out
}

func event(id, payload string) []turnstone.NewNode {
	return []turnstone.NewNode{{Kind: "event", Key: id, Payload: []byte(payload)}}
}

// An adk is an ADK session service.
type adk struct{ *host }

// create makes a session with a state, whose keys say by their prefix what they belong to.
func (a adk) create(id string, state map[string]string) {
	a.Helper()
	own, user, app := deltas(state)
	name := strings.Split(id, "/")
	of := func(id, group string) *turnstone.Request {
		return &turnstone.Request{ID: id, Metadata: turnstone.Metadata{Group: group}}
	}
	a.all(
		turnstone.SessionCommit{Create: of(id, name[0]+"/"+name[1]), Commit: turnstone.Commit{Records: own}},
		turnstone.SessionCommit{Create: of(name[0]+"/"+name[1], ".users"), Commit: turnstone.Commit{Expected: turnstone.AnyRevision, Records: user}},
		turnstone.SessionCommit{Create: of(name[0], ".apps"), Commit: turnstone.Commit{Expected: turnstone.AnyRevision, Records: app}})
}

// deltas sorts a state delta by what its keys belong to.
func deltas(state map[string]string) (own, user, app []turnstone.RecordChange) {
	for _, k := range slices.Sorted(maps.Keys(state)) {
		switch change := sets("state/"+k, state[k]); {
		case strings.HasPrefix(k, "temp:"):
		case strings.HasPrefix(k, "app:"):
			app = append(app, change...)
		case strings.HasPrefix(k, "user:"):
			user = append(user, change...)
		default:
			own = append(own, change...)
		}
	}
	return own, user, app
}

// appendEvent appends an event to the revision that its caller has seen.
func (a adk) appendEvent(id string, seen head.Revision, event []turnstone.NewNode, delta map[string]string) error {
	own, user, app := deltas(delta)
	name := strings.Split(id, "/")
	s, err := a.Session(ctx, id)
	if err != nil {
		return err
	}
	commits := []turnstone.SessionCommit{{Session: s, Commit: turnstone.Commit{Expected: seen, Nodes: event, Records: own}}}
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

// state returns what a session sees: its own, its user's and its app's.
func (a adk) state(id string) map[string]string {
	a.Helper()
	name := strings.Split(id, "/")
	out := a.records(id, "state/")
	maps.Copy(out, a.records(name[0]+"/"+name[1], "state/"))
	maps.Copy(out, a.records(name[0], "state/"))
	return out
}

// hostRows are the rows of docs/hosts.md.
var hostRows = map[string]func(h *host){
	"adk-create": func(h *host) {
		a := adk{h}
		a.create("app/u/1", map[string]string{"k": "1", "user:k": "2", "app:k": "3", "temp:k": "4"})
		a.create("app/u/2", nil)
		a.equal(a.state("app/u/1"), map[string]string{"state/k": "1", "state/user:k": "2", "state/app:k": "3"})
		a.equal(a.state("app/u/2"), map[string]string{"state/user:k": "2", "state/app:k": "3"})
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
		h.must(a.appendEvent("app/u/1", 1, event("e1", "hello"), delta))
		h.equal(h.load("app/u/1", turnstone.Scope{}).Nodes[0].Key, "e1")
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
		st := h.load("app/u/1", turnstone.Scope{Records: []string{"state/k"}})
		h.equal(fmt.Sprint(st.Revision, " ", string(st.Records["state/k"].Value)), "2 new")
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
		h.equal(a.state("app/u/2"), map[string]string{"state/user:k": "kept"})
	},
	"adk-artifact": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "app/u/1"})
		save := func(name string, content []byte) (version int) {
			at, err := s.PutAttachment(ctx, bytes.NewReader(content), -1, "text/plain", name)
			h.must(err)
			reference, err := json.Marshal(at)
			h.must(err)
			for version = len(h.records("app/u/1", "artifact/"+name+"/")); ; version++ {
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
		versions := h.records("app/u/1", "artifact/a/")
		h.equal(len(versions), 2)
		var at blob.Attachment
		h.must(json.Unmarshal([]byte(versions["artifact/a/00000001"]), &at))
		var w bytes.Buffer
		_, err := s.ReadAttachment(ctx, &w, at.ID)
		h.must(err)
		h.equal(w.String(), "two")
		change(h.T, s, turnstone.RecordChange{Key: "artifact/b/00000000", Action: turnstone.DeleteRecord})
		h.equal(len(h.records("app/u/1", "artifact/")), 2)
	},

	"langgraph-put": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "thread"})
		put(h, s, "c1", "", map[string]string{"messages": "[1]", "plan": "x"}, nil)
		put(h, s, "c2", "c1", map[string]string{"messages": "[1, 2]"}, nil)
		at := h.load("thread", turnstone.Scope{Parts: []string{"messages", "plan"}})
		h.equal(string(at.Contents["messages"])+string(at.Contents["plan"]), "[1, 2]x")
		for e, err := range s.Log(ctx, 1) {
			h.must(err)
			h.equal(len(e.Parts), 1) // the channel that did not change costs nothing
		}
		h.equal(h.records("thread", "checkpoint/"), map[string]string{"checkpoint/c1": "1", "checkpoint/c2": "2"})
	},
	"langgraph-put-again": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "thread"})
		c := turnstone.Commit{Turn: "c1", Checkpoint: map[string][]byte{"messages": []byte("[1]")}, Labels: map[string]string{"step": "0"}}
		first := commitAt(h.T, s, c)
		put(h, s, "c2", "c1", nil, nil)
		again := commitAt(h.T, s, c)
		h.equal(fmt.Sprint(again.Replayed, again.Revision, again.Commit == first.Commit), "true 1 true")
	},
	"langgraph-writes": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "thread"})
		put(h, s, "c1", "", nil, nil)
		for task := range 20 { // workers, each with a handle of its own
			worker := session(h.T, h.Store, "thread")
			change(h.T, worker, sets(fmt.Sprintf(".writes/c1/%02d/0", task), fmt.Sprint("result ", task))...)
		}
		h.equal(info(h.T, h.Store, "thread").Revision, 1)
		writes := h.records("thread", ".writes/c1/")
		h.equal(len(writes), 20)
		var done []turnstone.RecordChange
		for _, k := range slices.Sorted(maps.Keys(writes)) {
			done = append(done, turnstone.RecordChange{Key: k, Action: turnstone.DeleteRecord})
		}
		put(h, s, "c2", "c1", map[string]string{"messages": "all"}, done) // the owner's revision is still the head's
		h.equal(len(h.records("thread", ".writes/")), 0)
	},
	"langgraph-get": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "thread"})
		put(h, s, "c1", "", map[string]string{"messages": "one"}, nil)
		put(h, s, "c2", "c1", map[string]string{"messages": "two"}, nil)
		change(h.T, s, sets(".writes/c2/task/0", "pending")...)
		latest := h.load("thread", turnstone.Scope{Parts: []string{"messages"}, Records: []string{".writes/c2/task/0"}})
		h.equal(string(latest.Contents["messages"])+" "+string(latest.Records[".writes/c2/task/0"].Value), "two pending")
		var revision head.Revision
		_, err := fmt.Sscan(h.records("thread", "checkpoint/c1")["checkpoint/c1"], &revision)
		h.must(err)
		h.equal(string(h.load("thread", turnstone.Scope{At: revision, Parts: []string{"messages"}}).Contents["messages"]), "one")
	},
	"langgraph-list": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "thread"})
		parent := ""
		for i := range 5 {
			id := fmt.Sprint("c", i)
			put(h, s, id, parent, nil, nil)
			parent = id
		}
		var ids []string // the last two, the newest first
		for e, err := range s.Log(ctx, 3) {
			h.must(err)
			ids = append([]string{e.Turn + "<" + e.Labels["parent"]}, ids...)
		}
		h.equal(ids, "[c4<c3 c3<c2]")
	},
	"langgraph-branch": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "thread"})
		put(h, s, "c1", "", map[string]string{"messages": "one"}, nil)
		put(h, s, "c2", "c1", map[string]string{"messages": "two"}, nil)
		put(h, s, "c3", "c1", map[string]string{"messages": "other"}, nil)
		for r, want := range []string{"one", "two", "other"} {
			h.equal(string(h.load("thread", turnstone.Scope{At: head.Revision(r + 1), Parts: []string{"messages"}}).Contents["messages"]), want)
		}
	},
	"langgraph-delete": func(h *host) {
		create(h.T, h.Store, turnstone.Request{ID: "thread"})
		create(h.T, h.Store, turnstone.Request{ID: "thread/ns", Parent: "thread", Detached: true})
		h.must(h.Delete(ctx, "thread", turnstone.CascadeChildren))
		_, err := h.Session(ctx, "thread/ns")
		h.equal(errors.Is(err, turnstone.ErrSessionNotFound), true)
	},
	"langgraph-copy": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "thread"})
		put(h, s, "c1", "", map[string]string{"messages": "one"}, nil)
		put(h, s, "c2", "c1", map[string]string{"messages": "two"}, nil)
		copied, err := turnstone.Clone(ctx, h.Factory(), "thread", turnstone.Request{ID: "copy"})
		h.must(err)
		var ids []string
		for e, err := range copied.Log(ctx, 0) {
			h.must(err)
			ids = append(ids, e.Turn)
		}
		h.equal(ids, "[c1 c2]")
		h.equal(string(h.load("copy", turnstone.Scope{At: 1, Parts: []string{"messages"}}).Contents["messages"]), "one")
	},
	"langgraph-prune": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "thread"})
		put(h, s, "c1", "", map[string]string{"messages": "one"}, nil)
		put(h, s, "c2", "c1", map[string]string{"messages": "two"}, nil)
		prune(h.T, s, 1)
		_, err := s.Checkpoint(ctx, 1)
		h.equal(errors.Is(err, turnstone.ErrRevisionPruned), true)
		h.equal(string(h.load("thread", turnstone.Scope{Parts: []string{"messages"}}).Contents["messages"]), "two")
	},

	"genkit-save": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		tries := 0
		_, err := turnstone.Update(ctx, s, turnstone.Scope{}, func(st *turnstone.State) (turnstone.Commit, error) {
			if tries++; tries == 1 { // somebody else is first
				commitTo(h.T, s, turnstone.Commit{Nodes: saying([]byte("theirs"))})
			}
			return turnstone.Commit{Nodes: saying(fmt.Append(nil, "after ", len(st.Nodes)))}, nil
		})
		h.must(err)
		h.equal(string(h.load("s", turnstone.Scope{Last: 1}).Nodes[0].Payload), "after 1")
	},
	"genkit-get": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		snapshot(h, s, "n1", "completed", "one")
		snapshot(h, s, "n2", "completed", "two")
		var revision head.Revision
		_, err := fmt.Sscan(h.records("s", "snapshot/n1")["snapshot/n1"], &revision)
		h.must(err)
		h.equal(len(h.load("s", turnstone.Scope{At: revision}).Nodes), 1)
	},
	"genkit-latest": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		snapshot(h, s, "n1", "completed", "one")
		snapshot(h, s, "n2", "pending", "two")
		for e, err := range s.Log(ctx, info(h.T, h.Store, "s").Revision-1) {
			h.must(err)
			h.equal(e.Labels["snapshot"]+" "+e.Labels["status"], "n2 pending")
		}
		h.equal(len(h.load("s", turnstone.Scope{}).Nodes), 2)
	},
	"genkit-status": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		snapshot(h, s, "n1", "pending", "one")
		other := openStore(h.T, h.faulty, &turnstone.Options{PollEvery: time.Millisecond}) // another process
		seen := make(chan string)
		limited, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		go func() {
			defer close(seen)
			for e, err := range session(h.T, other, "s").Watch(limited, 0) {
				if err != nil {
					return
				}
				seen <- e.Labels["snapshot"] + " " + e.Labels["status"]
			}
		}()
		h.equal(<-seen, "n1 pending")
		snapshot(h, s, "n1", "completed", "")
		h.equal(<-seen, "n1 completed")
	},
	"genkit-detach": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		l, err := lease.Acquire(ctx, s, "run", lease.Options{Holder: "server 1"})
		h.must(err)
		held, stop := l.Keep(ctx)
		h.must(held.Err())
		other := openStore(h.T, h.faulty, nil)
		_, err = lease.Acquire(ctx, session(h.T, other, "s"), "run", lease.Options{Holder: "server 2"})
		var alive *lease.HeldError
		h.equal(errors.As(err, &alive), true)
		h.equal(alive.Holder, "server 1")
		stop()
		h.must(l.Release(ctx))
		_, err = lease.Acquire(ctx, session(h.T, other, "s"), "run", lease.Options{Holder: "server 2"})
		h.must(err)
	},
	"genkit-feed": func(h *host) {
		begin := startFeed(h.T, h.Store)
		snapshot(h, create(h.T, h.Store, turnstone.Request{ID: "a"}), "n1", "pending", "one")
		snapshot(h, create(h.T, h.Store, turnstone.Request{ID: "b"}), "n2", "pending", "two")
		h.equal(toldBy(h.T, h.Store, begin), "[created a committed a 1 created b committed b 1]")
	},

	"lash-lease": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		now := time.Unix(1_700_000_000, 0)
		acquire := func(holder string, steal bool) (*lease.Lease, error) {
			return lease.Acquire(ctx, s, "run", lease.Options{Holder: holder, TTL: time.Minute, Steal: steal, Now: func() time.Time { return now }})
		}
		one, err := acquire("one", false)
		h.must(err)
		_, err = acquire("two", false)
		h.equal(errors.Is(err, lease.ErrHeld), true)
		now = now.Add(50 * time.Second)
		h.must(one.Renew(ctx))
		now = now.Add(50 * time.Second)
		_, err = acquire("two", false)
		h.equal(errors.Is(err, lease.ErrHeld), true)
		now = now.Add(2 * time.Minute)
		two, err := acquire("two", false)
		h.must(err)
		three, err := acquire("three", true)
		h.must(err)
		h.equal(fmt.Sprint(one.Token(), two.Token(), three.Token()), "1 2 3")
		h.must(three.Release(ctx))
		_, err = acquire("four", false)
		h.must(err)
	},
	"lash-fence": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		stale, err := lease.Acquire(ctx, s, "run", lease.Options{})
		h.must(err)
		_, err = lease.Acquire(ctx, s, "run", lease.Options{Steal: true})
		h.must(err)
		_, err = stale.Commit(ctx, turnstone.Commit{Expected: 0, Nodes: saying([]byte("late"))})
		h.equal(errors.Is(err, lease.ErrFenced), true)
		h.equal(info(h.T, h.Store, "s").Revision, 0)
	},
	"lash-queue": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		commitTo(h.T, s, turnstone.Commit{Nodes: saying([]byte("plan")), Records: []turnstone.RecordChange{queue.PutAs("work", "w1", []byte("do it"))}})
		m, err := queue.Claim(ctx, s, "work", lease.Options{Holder: "worker"})
		h.must(err)
		h.equal(string(m.Value), "do it")
		_, err = m.Commit(ctx, turnstone.Commit{Expected: 1, Turn: m.ID, Nodes: saying([]byte("done"))})
		h.must(err)
		_, err = queue.Claim(ctx, s, "work", lease.Options{})
		h.equal(errors.Is(err, queue.ErrEmpty), true)
		h.equal(len(h.records("s", "")), 0)
	},
	"lash-retry": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		change(h.T, s, queue.Put("work", []byte("do it")))
		now := time.Unix(1_700_000_000, 0)
		o := lease.Options{TTL: time.Minute, Now: func() time.Time { return now }}
		dead, err := queue.Claim(ctx, s, "work", o)
		h.must(err)
		now = now.Add(2 * time.Minute)
		m, err := queue.Claim(ctx, s, "work", o)
		h.must(err)
		h.equal(fmt.Sprint(dead.Attempts, m.Attempts, dead.ID == m.ID), "1 2 true")
		_, err = dead.Commit(ctx, turnstone.Commit{Nodes: saying([]byte("late"))})
		h.equal(errors.Is(err, lease.ErrFenced), true)
	},
	"lash-input": func(h *host) {
		running := create(h.T, h.Store, turnstone.Request{ID: "running"})
		sender := create(h.T, h.Store, turnstone.Request{ID: "sender"})
		at := h.load("running", turnstone.Scope{}).Revision
		h.all(
			turnstone.SessionCommit{Session: sender, Commit: turnstone.Commit{Nodes: saying([]byte("asks"))}},
			turnstone.SessionCommit{Session: running, RecordsOnly: true, Commit: turnstone.Commit{Records: []turnstone.RecordChange{queue.Put("input", []byte("also this"))}}})
		commitAt(h.T, running, turnstone.Commit{Expected: at, Nodes: saying([]byte("the turn that was running"))})
		m, err := queue.Claim(ctx, running, "input", lease.Options{})
		h.must(err)
		h.equal(string(m.Value), "also this")
	},
	"lash-intent": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		a := upload(h.T, s, []byte("a file"))
		pending, err := s.Uploads(ctx)
		h.must(err)
		h.equal(fmt.Sprint(len(pending), pending[0].ID == a.ID, pending[0].Expires.After(time.Now())), "1 true true")
		_, err = s.ReadAttachment(ctx, io.Discard, a.ID)
		h.must(err)
		commitAt(h.T, s, turnstone.Commit{Nodes: attaching(a)})
		pending, err = s.Uploads(ctx)
		h.must(err)
		h.equal(len(pending), 0)
	},
	"lash-draft": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		d, err := draft.Open(ctx, s, "turn 1")
		h.must(err)
		for _, tokens := range []string{"Hello", ", ", "world"} {
			h.must(d.Append(ctx, []byte(tokens)))
		}
		d, err = draft.Open(ctx, session(h.T, h.Store, "s"), "turn 1") // after a crash
		h.must(err)
		h.equal(string(d.Content()), "Hello, world")
		commitAt(h.T, s, turnstone.Commit{Turn: "turn 1", Nodes: saying([]byte("Hello, world!")), Records: d.Done()})
		h.equal(len(h.records("s", "")), 0)
	},
	"lash-append": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		seen := commitTo(h.T, s, turnstone.Commit{Nodes: saying([]byte("one"))}).Leaf
		commitTo(h.T, s, turnstone.Commit{Nodes: saying([]byte("two"))})
		commitTo(h.T, s, turnstone.Commit{OnPath: seen, Nodes: saying([]byte("three"))})
		commitTo(h.T, s, turnstone.Commit{Leaf: turnstone.RefNone()}) // The user goes back.
		_, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, OnPath: seen, Nodes: saying([]byte("late"))})
		h.equal(errors.Is(err, turnstone.ErrConflict), true)
	},
	"lash-branches": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		root := commitTo(h.T, s, turnstone.Commit{Nodes: saying([]byte("root"))}).Leaf
		a := commitTo(h.T, s, turnstone.Commit{Nodes: saying([]byte("a")), Keep: "a"})
		b := commitTo(h.T, s, turnstone.Commit{Nodes: sayingAfter(root, []byte("b")), Keep: "b"})
		kept, err := s.Kept(ctx)
		h.must(err)
		h.equal(kept, []head.Kept{{Name: "a", Revision: a.Revision}, {Name: "b", Revision: b.Revision}})
		leaves, err := s.Leaves(ctx)
		h.must(err)
		h.equal(fmt.Sprint(leaves[0].ID, leaves[1].ID), fmt.Sprint(a.Leaf, b.Leaf))
	},
	"lash-wait": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		commitTo(h.T, s, turnstone.Commit{})
		beyond := make(chan head.Revision)
		limited, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		go func() {
			defer close(beyond)
			for e, err := range s.Watch(limited, 1) {
				if err == nil {
					beyond <- e.Revision
				}
				return
			}
		}()
		commitTo(h.T, s, turnstone.Commit{})
		h.equal(<-beyond, 2)
	},
}

// put saves a checkpoint of LangGraph.
func put(h *host, s *turnstone.Session, id, parent string, channels map[string]string, done []turnstone.RecordChange) {
	h.Helper()
	at := info(h.T, h.Store, s.ID()).Revision
	c := turnstone.Commit{
		Expected: at, Turn: id, Labels: map[string]string{"parent": parent, "source": "loop"}, Checkpoint: map[string][]byte{},
		Records: append(sets("checkpoint/"+id, fmt.Sprint(at+1)), done...),
	}
	for name, content := range channels {
		c.Checkpoint[name] = []byte(content)
	}
	commitAt(h.T, s, c)
}

// snapshot saves a snapshot of Genkit, with a message or none.
func snapshot(h *host, s *turnstone.Session, id, status, message string) {
	h.Helper()
	at := info(h.T, h.Store, s.ID()).Revision
	c := turnstone.Commit{Expected: at, Labels: map[string]string{"snapshot": id, "status": status}, Records: sets("snapshot/"+id, fmt.Sprint(at+1))}
	if message != "" {
		c.Nodes = saying([]byte(message))
	}
	commitAt(h.T, s, c)
}

func TestHosts(t *testing.T) {
	doc, err := os.ReadFile("docs/hosts.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)\| ([a-z]+-[a-z-]+) \|$`).FindAllSubmatch(doc, -1) {
		rows[string(m[1])] = true
	}
	for name := range rows {
		if hostRows[name] == nil {
			t.Errorf("row %s has no test", name)
		}
	}
	for name, test := range hostRows {
		if !rows[name] {
			t.Errorf("test %s has no row", name)
		}
		t.Run(name, func(t *testing.T) {
			f := &enginetest.Faulty{Engine: memory.New()}
			var e engine.Engine = f
			st := openStore(t, e, nil)
			test(&host{T: t, Store: st, faulty: f})
			verify(t, st)
		})
	}
}
