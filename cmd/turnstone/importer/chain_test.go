package importer_test

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// dangling returns the calls on a path that have a result in the graph and none on
// the path.
func dangling(path, graph []turnstone.Node) (out []string) {
	results := func(nodes []turnstone.Node) map[string]bool {
		out := map[string]bool{}
		for _, n := range nodes {
			for _, id := range importer.Answers(n.Payload) {
				out[id] = true
			}
		}
		return out
	}
	here, anywhere := results(path), results(graph)
	for _, n := range path {
		for _, c := range importer.Calls(n.Payload) {
			if anywhere[c.ID] && !here[c.ID] {
				out = append(out, c.ID)
			}
		}
	}
	return out
}

func TestResultsOfParallelCallsAreOnTheActivePath(t *testing.T) {
	st := openStore(t, memory.New())
	defer st.Close()
	load(t, st, parse(t, "claude.jsonl", parallel), importer.Options{}, importer.Imported)
	s := session(t, st, "c9")
	path := func(sc turnstone.Scope) string { return strings.Join(keys(loaded(t, s, sc).Nodes), " ") }
	if got := path(turnstone.Scope{}); got != "u1 a1 a2 a3 r2 r1 a4 u3" {
		t.Errorf("the active path is %s", got)
	}
	u2, err := s.NodeByKey(ctx, "u2") // a message that the user took back stays a branch
	if err != nil {
		t.Fatal(err)
	}
	if got := path(turnstone.Scope{Leaf: u2.ID}); got != "u1 a1 a2 a3 r2 r1 a4 u2" {
		t.Errorf("the branch is %s", got)
	}
}

// A second result of a call, and a message between the blocks of a response, are
// branches that a user made.
func TestBranchesThatAUserMadeStay(t *testing.T) {
	const data = `{"type":"user","uuid":"u","parentUuid":null,"sessionId":"s","message":{"role":"user","content":"go"}}
{"type":"assistant","uuid":"a","parentUuid":"u","sessionId":"s","message":{"id":"m1","content":[{"type":"text","text":"x"}]}}
{"type":"assistant","uuid":"b","parentUuid":"a","sessionId":"s","message":{"id":"m1","content":[{"type":"tool_use","id":"t1","name":"f","input":{}}]}}
{"type":"user","uuid":"r1","parentUuid":"b","sessionId":"s","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"no"}]}}
{"type":"user","uuid":"r2","parentUuid":"b","sessionId":"s","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"yes"}]}}
{"type":"user","uuid":"u2","parentUuid":"r2","sessionId":"s","message":{"role":"user","content":"after"}}
{"type":"user","uuid":"u3","parentUuid":"a","sessionId":"s","message":{"role":"user","content":"between"}}
`
	parents := map[string]string{}
	all := parse(t, "s.jsonl", data)[0].Events
	for _, e := range all {
		if e.Before >= 0 {
			parents[e.Key] = all[e.Before].Key
		}
	}
	for key, want := range map[string]string{"a": "u", "b": "a", "r1": "b", "r2": "b", "u2": "r2", "u3": "a"} {
		if parents[key] != want {
			t.Errorf("%s hangs from %s, want %s", key, parents[key], want)
		}
	}
}

// A result between the lines of its response is on the path as well.
func TestAResultBetweenTheLinesOfAResponseIsOnThePath(t *testing.T) {
	const data = `{"type":"user","uuid":"u","parentUuid":null,"sessionId":"s","message":{"role":"user","content":"go"}}
{"type":"assistant","uuid":"a1","parentUuid":"u","sessionId":"s","message":{"id":"m1","content":[{"type":"tool_use","id":"t1","name":"f","input":{}}]}}
{"type":"user","uuid":"r1","parentUuid":"a1","sessionId":"s","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"1"}]}}
{"type":"assistant","uuid":"a2","parentUuid":"a1","sessionId":"s","message":{"id":"m1","content":[{"type":"tool_use","id":"t2","name":"f","input":{}}]}}
{"type":"user","uuid":"r2","parentUuid":"a2","sessionId":"s","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t2","content":"2"}]}}
{"type":"assistant","uuid":"b","parentUuid":"r2","sessionId":"s","message":{"id":"m2","content":[{"type":"text","text":"done"}]}}
`
	st, clock := openClocked(t)
	s := session(t, st, bring(t, st, clock, "s.jsonl", data).Session)
	state := loaded(t, s, turnstone.Scope{})
	if len(state.Nodes) != 6 || len(dangling(state.Nodes, state.Nodes)) > 0 {
		t.Errorf("%d nodes on the path", len(state.Nodes))
	}
}

// In real sessions, every call on an active path has its result on the path if there is
// one, and branches begin where the user went back.
func TestRealSessionsHaveNoDanglingCalls(t *testing.T) {
	testkit.Slow(t)
	dir := corpus(t)
	files, err := filepath.Glob(filepath.Join(dir, "claude-*.gz"))
	if err != nil {
		t.Fatal(err)
	}
	moved := 0
	for _, f := range files {
		convs := parse(t, f, string(read(t, f)))
		st := openStore(t, memory.New())
		for _, r := range load(t, st, convs, importer.Options{}, importer.Imported) {
			s := session(t, st, r.Session)
			active := loaded(t, s, turnstone.Scope{})
			full := loaded(t, s, turnstone.Scope{Full: true})
			if ids := dangling(active.Nodes, full.Nodes); len(ids) > 0 {
				t.Errorf("%s: no results of %v on the active path", filepath.Base(f), ids)
			}
			for _, e := range r.Conversation.Events {
				if e.Before < 0 || e.Key == "" {
					continue
				}
				in := []byte(`"parentUuid":"` + r.Conversation.Events[e.Before].Key + `"`)
				if !bytes.Contains(e.Payload, in) && !bytes.Contains(e.Payload, bytes.Replace(in, []byte(":"), []byte(": "), 1)) {
					moved++
					if e.Turn {
						t.Errorf("%s: message %s of the user was moved", filepath.Base(f), e.Key)
					}
				}
			}
		}
		st.Close()
	}
	if moved == 0 {
		t.Error("no line was chained: the corpus has calls at the same time")
	}
	t.Logf("%d lines were chained", moved)
}
