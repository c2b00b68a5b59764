package tests

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// langgraphRows are the rows of docs/hosts.md for LangGraph.
var langgraphRows = map[string]func(h *host){
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
