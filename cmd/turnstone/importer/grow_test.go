package importer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

// Lines of a conversation in the formats that agents append to. Claude's has calls
// at the same time, a response on several lines, and a rewind.
var appended = map[string][]string{
	"plain.jsonl": {
		`{"role":"system","content":"s","timestamp":"2025-01-01T09:00:00Z"}`, `{"role":"user","content":"one","timestamp":"2025-01-01T10:00:00Z"}`,
		`{"role":"assistant","model":"m","content":"two","usage":{"prompt_tokens":3,"completion_tokens":1},"timestamp":"2025-01-01T10:00:05Z"}`,
		`{"role":"user","content":"one"}`, `{"role":"assistant","model":"n","content":"two","usage":{"prompt_tokens":5,"completion_tokens":1}}`,
		`{"role":"user","content":"three","timestamp":"2025-01-02T10:00:00Z"}`,
	},
	"pi.jsonl": {
		`{"type":"session","id":"p1","timestamp":"2025-01-01T10:00:00Z","cwd":"/x","provider":"a","modelId":"m"}`,
		`{"type":"message","timestamp":"2025-01-01T10:00:01Z","message":{"role":"user","content":"q"}}`,
		`{"type":"message","timestamp":"2025-01-01T10:00:02Z","message":{"role":"assistant","model":"m","content":[{"type":"toolCall","id":"c","name":"f","arguments":{}}],"usage":{"input":1,"output":2,"cacheRead":3,"cacheWrite":4}}}`,
		`{"type":"message","timestamp":"2025-01-01T10:00:03Z","message":{"role":"toolResult","toolCallId":"c","content":"r"}}`,
		`{"type":"message","timestamp":"2025-01-01T10:00:04Z","message":{"role":"user","content":"q"}}`,
	},
	"claude.jsonl": strings.Split(strings.TrimSpace(parallel), "\n"),
}

const parallel = `
{"type":"user","uuid":"u1","parentUuid":null,"sessionId":"c9","timestamp":"2025-01-01T10:00:00Z","cwd":"/w","message":{"role":"user","content":"look at both"}}
{"type":"assistant","uuid":"a1","parentUuid":"u1","sessionId":"c9","timestamp":"2025-01-01T10:00:01Z","message":{"id":"m1","model":"cl","content":[{"type":"text","text":"I will"}],"usage":{"input_tokens":3,"output_tokens":1}}}
{"type":"assistant","uuid":"a2","parentUuid":"a1","sessionId":"c9","timestamp":"2025-01-01T10:00:02Z","message":{"id":"m1","model":"cl","content":[{"type":"tool_use","id":"t1","name":"Read","input":{}}],"usage":{"input_tokens":3,"output_tokens":1}}}
{"type":"progress","uuid":"p1","parentUuid":"a2","sessionId":"c9","timestamp":"2025-01-01T10:00:02Z","data":{}}
{"type":"assistant","uuid":"a3","parentUuid":"a2","sessionId":"c9","timestamp":"2025-01-01T10:00:03Z","message":{"id":"m1","model":"cl","content":[{"type":"tool_use","id":"t2","name":"Read","input":{}}],"usage":{"input_tokens":3,"output_tokens":9}}}
{"type":"user","uuid":"r2","parentUuid":"a3","sessionId":"c9","timestamp":"2025-01-01T10:00:04Z","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t2","content":"second"}]}}
{"type":"user","uuid":"r1","parentUuid":"p1","sessionId":"c9","timestamp":"2025-01-01T10:00:05Z","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"first"}]}}
{"type":"file-history-snapshot","messageId":"u1","snapshot":{}}
{"type":"assistant","uuid":"a4","parentUuid":"r2","sessionId":"c9","timestamp":"2025-01-01T10:00:06Z","message":{"id":"m2","model":"cl","content":[{"type":"text","text":"done"}],"usage":{"input_tokens":4,"output_tokens":6}}}
{"type":"user","uuid":"u2","parentUuid":"a4","sessionId":"c9","timestamp":"2025-01-02T10:00:00Z","message":{"role":"user","content":"thanks"}}
{"type":"user","uuid":"u3","parentUuid":"a4","sessionId":"c9","timestamp":"2025-01-03T10:00:00Z","message":{"role":"user","content":"rather not"}}
`

// file is the content of a file of these lines.
func file(all []string) string { return strings.Join(all, "\n") + "\n" }

// bring imports a file as it is at a moment, and what of it can't be read is left out.
func bring(t *testing.T, st *turnstone.Store, clock *importer.Clock, name, content string) importer.Result {
	t.Helper()
	convs, _ := importer.Parse(name, []byte(content))
	results := importer.Load(ctx, st, convs, importer.Options{Clock: clock})
	if len(results) != 1 || results[0].Err != nil {
		t.Fatalf("%s: %+v", name, results)
	}
	return results[0]
}

func openClocked(t *testing.T) (*turnstone.Store, *importer.Clock) {
	t.Helper()
	clock := &importer.Clock{Present: func() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }}
	st, err := turnstone.Open(ctx, memory.New(), &turnstone.Options{Now: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st, clock
}

// told is what a session says, but for how it came about.
func told(t *testing.T, st *turnstone.Store, id string) string {
	t.Helper()
	s, err := st.Session(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, scope := range []turnstone.Scope{{}, {Full: true}} {
		state, err := s.Load(ctx, scope)
		if err != nil {
			t.Fatal(err)
		}
		at := map[turnstone.NodeID]int{{}: -1}
		for i, n := range state.Nodes {
			at[n.ID] = i
			fmt.Fprintf(&b, "%d after %d: %s %s %s\n", i, at[n.Parent], n.Kind, n.Key, n.Payload)
		}
		fmt.Fprintln(&b, "leaf", at[state.Leaf])
	}
	i, err := s.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	parts, err := s.Checkpoint(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(&b, i.Name, i.Model, i.Cwd, i.Labels, i.Usage, i.Created, i.Updated)
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		fmt.Fprintf(&b, "%s %s\n", name, parts[name])
	}
	return b.String()
}

func exportedFile(t *testing.T, st *turnstone.Store, id string) string {
	t.Helper()
	s, err := st.Session(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	state, err := s.Load(ctx, turnstone.Scope{Full: true})
	if err != nil {
		t.Fatal(err)
	}
	parts, err := s.Checkpoint(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := importer.Write(&b, state, parts[importer.LayoutPart]); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestAFileThatWasTornOrHasGrownGivesTheSameSession(t *testing.T) {
	for name, all := range appended {
		st, clock := openClocked(t)
		id := bring(t, st, clock, name, file(all)).Session
		want := told(t, st, id)
		if got := exportedFile(t, st, id); got != file(all) {
			t.Errorf("%s is exported as\n%s", name, got)
		}
		for n := 1; n < len(all); n++ {
			for _, torn := range []string{"", "\n", "\n" + all[n][:len(all[n])/2], "\n" + all[n]} {
				st, clock := openClocked(t)
				bring(t, st, clock, name, strings.Join(all[:n], "\n")+torn)
				r := bring(t, st, clock, name, file(all))
				if r.Session != id || r.Outcome == importer.Imported || r.Outcome == importer.Failed {
					t.Fatalf("%s after %d lines and %q: %+v", name, n, torn, r)
				}
				if got := told(t, st, id); got != want {
					t.Fatalf("%s after %d lines and %q:\n%s\nwant\n%s", name, n, torn, got, want)
				}
				if got := exportedFile(t, st, id); got != file(all) {
					t.Errorf("%s after %d lines and %q is exported as\n%s", name, n, torn, got)
				}
				if r := bring(t, st, clock, name, file(all)); r.Outcome != importer.Unchanged || r.Commits != 0 {
					t.Errorf("%s again: %+v", name, r)
				}
				// An older snapshot changes nothing.
				if r := bring(t, st, clock, name, file(all[:n])); r.Outcome != importer.Unchanged || told(t, st, id) != want {
					t.Errorf("%s, the first %d lines: %+v", name, n, r)
				}
				verify(t, st)
			}
		}
		// Line by line, as an agent writes it.
		st, clock = openClocked(t)
		for n := range all {
			bring(t, st, clock, name, file(all[:n+1]))
		}
		if got := told(t, st, id); got != want {
			t.Errorf("%s line by line:\n%s\nwant\n%s", name, got, want)
		}
	}
}

// The real sessions of the corpus, cut where an agent might have been.
func TestRealFilesGrow(t *testing.T) {
	dir := corpus(t)
	for _, name := range []string{"claude-worktrees-ef958aa1.jsonl.gz", "claude-ccl-37f83ec9.jsonl.gz", "claude-ccl-12a546d1.jsonl.gz", "pi-before-compaction.jsonl.gz"} {
		data := read(t, filepath.Join(dir, name))
		st, clock := openClocked(t)
		id := bring(t, st, clock, name, string(data)).Session
		want := told(t, st, id)
		st, clock = openClocked(t)
		for _, part := range []int{30, 61, 100} {
			bring(t, st, clock, name, string(data[:len(data)*part/100]))
		}
		if got := told(t, st, id); got != want {
			g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
			for i := range w {
				if i >= len(g) || g[i] != w[i] {
					t.Errorf("%s: line %d is\n%.300s\nwant\n%.300s", name, i, g[min(i, len(g)-1)], w[i])
					break
				}
			}
		}
		if got := exportedFile(t, st, id); got != string(data) {
			t.Errorf("%s is exported as other bytes", name)
		}
		verify(t, st)
	}
}

func TestAnEditedFileBecomesABranch(t *testing.T) {
	for name, all := range appended {
		for at := range all {
			st, clock := openClocked(t)
			id := bring(t, st, clock, name, file(all)).Session
			before := told(t, st, id)
			edited := slices.Clone(all)
			edited[at] = strings.NewReplacer(`"q"`, `"edited"`, `"one"`, `"edited"`, `"s"`, `"edited"`, `"two"`, `"edited"`, `"three"`, `"edited"`, `"r"`, `"edited"`,
				`"arguments":{}`, `"arguments":{"a":1}`, `"/x"`, `"/y"`, `both"`, `edited"`, `I will`, `edited`, `"input":{}`, `"input":{"a":1}`, `"data":{}`, `"data":{"a":1}`,
				`second`, `edited`, `first`, `edited`, `"snapshot":{}`, `"snapshot":{"a":1}`, `done`, `edited`, `thanks`, `edited`, `rather not`, `edited`).Replace(all[at])
			if edited[at] == all[at] {
				t.Fatalf("%s:%d was not edited", name, at)
			}
			r := bring(t, st, clock, name, file(edited))
			if r.Session != id || r.Outcome != importer.Branched && r.Outcome != importer.Grown || r.Added == 0 {
				t.Fatalf("%s:%d: %+v", name, at, r)
			}
			if got := exportedFile(t, st, id); got != file(edited) {
				t.Errorf("%s:%d is exported as\n%s", name, at, got)
			}
			s, err := st.Session(ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			state, err := s.Load(ctx, turnstone.Scope{})
			if err != nil {
				t.Fatal(err)
			}
			var path []string
			for _, n := range state.Nodes {
				path = append(path, string(n.Payload))
			}
			if last := edited[len(edited)-1]; path[len(path)-1] != last {
				t.Errorf("%s:%d: the session does not end as the file does: %v", name, at, path)
			}
			full, err := s.Load(ctx, turnstone.Scope{Full: true})
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range append(slices.Clone(all), edited...) {
				if !slices.ContainsFunc(full.Nodes, func(n turnstone.Node) bool { return string(n.Payload) == l }) {
					t.Errorf("%s:%d: the graph has no %s", name, at, l)
				}
			}
			// What stands behind the edit was used once, though it is on both branches.
			i, err := s.Info(ctx)
			if err != nil {
				t.Fatal(err)
			}
			used := map[string]turnstone.Usage{}
			seen := map[string]bool{}
			for _, content := range []string{file(all), file(edited)} {
				for _, e := range parse(t, name, content)[0].Events {
					for _, u := range e.Usage {
						if !seen[string(e.Payload)] {
							sum := used[u.Model]
							sum.Add(u)
							sum.Model = u.Model
							used[u.Model] = sum
						}
					}
					seen[string(e.Payload)] = true
				}
			}
			for _, u := range i.Usage {
				if used[u.Model] != u {
					t.Errorf("%s:%d: used %+v, want %+v", name, at, u, used[u.Model])
				}
			}
			// The edit taken back is what was there before.
			nodes := len(full.Nodes)
			if r := bring(t, st, clock, name, file(all)); r.Added != 0 {
				t.Errorf("%s:%d back: %+v", name, at, r)
			}
			if full, err = s.Load(ctx, turnstone.Scope{Full: true}); err != nil || len(full.Nodes) != nodes {
				t.Errorf("%s:%d back: %d nodes, %d before, %v", name, at, len(full.Nodes), nodes, err)
			}
			if got := exportedFile(t, st, id); got != file(all) {
				t.Errorf("%s:%d back is exported as\n%s", name, at, got)
			}
			if got, _, _ := strings.Cut(told(t, st, id), "leaf"); !strings.HasPrefix(before, got) {
				t.Errorf("%s:%d back: the path is\n%s\nwant\n%s", name, at, got, before)
			}
			verify(t, st)
		}
	}
}

func TestWhatPeopleGaveASessionStaysWhenItsFileGrows(t *testing.T) {
	for name, all := range appended {
		st, clock := openClocked(t)
		id := bring(t, st, clock, name, file(all[:4])).Session
		s, err := st.Session(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SaveMetadata(ctx, turnstone.Metadata{Name: "mine", Labels: map[string]string{"rating": "good"}}); err != nil {
			t.Fatal(err)
		}
		if err := s.Keep(ctx, "v1", 1); err != nil {
			t.Fatal(err)
		}
		state, err := s.Load(ctx, turnstone.Scope{})
		if err != nil {
			t.Fatal(err)
		}
		fork, _, err := st.Create(ctx, turnstone.Request{ID: "fork", Parent: id, ForkNode: state.Nodes[1].ID})
		if err != nil {
			t.Fatal(err)
		}
		if err := st.Delete(ctx, "renamed", turnstone.KeepChildren); err != nil {
			t.Fatal(err)
		}
		if r := bring(t, st, clock, name, file(all)); r.Session != id || r.Outcome != importer.Grown {
			t.Fatalf("%+v", r)
		}
		i, err := s.Info(ctx)
		if err != nil || i.Name != "mine" || i.Labels["rating"] != "good" {
			t.Errorf("%s: %+v, %v", name, i, err)
		}
		if kept, err := s.Kept(ctx); err != nil || len(kept) != 1 || kept[0].Name != "v1" {
			t.Errorf("%s: kept %v, %v", name, kept, err)
		}
		if state, err := fork.Load(ctx, turnstone.Scope{}); err != nil || len(state.Nodes) != 2 {
			t.Errorf("%s: the fork has %d nodes, %v", name, len(state.Nodes), err)
		}
		if i, err := fork.Info(ctx); err != nil || i.Parent != id {
			t.Errorf("%s: the fork comes from %q, %v", name, i.Parent, err)
		}
	}
}

// Every revision is a turn: the path at it ends where the turn did.
func TestEveryRevisionIsATurn(t *testing.T) {
	all := appended["plain.jsonl"]
	st, clock := openClocked(t)
	id := bring(t, st, clock, "plain.jsonl", file(all[:5])).Session
	bring(t, st, clock, "plain.jsonl", file(all))
	s, err := st.Session(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range []int{3, 5, 6} {
		state, err := s.Load(ctx, turnstone.Scope{At: turnstone.Revision(at + 1)})
		if err != nil || len(state.Nodes) != want {
			t.Errorf("revision %d has %d nodes, %v", at+1, len(state.Nodes), err)
		}
	}
}

// An edited line gets a key of its own; lines that are new keep theirs.
func TestKeysOfNewLinesStay(t *testing.T) {
	all := appended["claude.jsonl"]
	st, clock := openClocked(t)
	id := bring(t, st, clock, "claude.jsonl", file(all[:9])).Session
	edited := append(slices.Clone(all[:8]), strings.Replace(all[8], "done", "edited", 1), strings.Replace(strings.Replace(all[8], `"a4"`, `"a5"`, 1), `"r2"`, `"a4"`, 1))
	bring(t, st, clock, "claude.jsonl", file(edited))
	s, err := st.Session(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	last, err := s.NodeByKey(ctx, "a5")
	if err != nil {
		t.Fatal(err)
	}
	old, err := s.NodeByKey(ctx, "a4")
	if err != nil || last.Parent == old.ID || !strings.Contains(string(old.Payload), "done") {
		t.Errorf("%s, %v", old.Payload, err)
	}
}

func TestARenamedSessionGrowsWithItsFile(t *testing.T) {
	st, clock := openClocked(t)
	all := appended["plain.jsonl"]
	bring(t, st, clock, "plain.jsonl", file(all[:3]))
	if err := st.Rename(ctx, "plain", "other"); err != nil {
		t.Fatal(err)
	}
	if r := bring(t, st, clock, "plain.jsonl", file(all)); r.Session != "other" || r.Outcome != importer.Grown {
		t.Errorf("%+v", r)
	}
}

func TestWhatWasTombstonedDoesNotComeBackWhenAFileGrows(t *testing.T) {
	for name, all := range appended {
		for dead := range 4 {
			st, clock := openClocked(t)
			id := bring(t, st, clock, name, file(all[:4])).Session
			s, err := st.Session(ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			state, err := s.Load(ctx, turnstone.Scope{Full: true})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Tombstone(ctx, state.Nodes[dead].ID); err != nil {
				t.Fatal(err)
			}
			if r := bring(t, st, clock, name, file(all)); r.Added != len(all)-4 {
				t.Fatalf("%s without node %d: %+v", name, dead, r)
			}
			if state, err = s.Load(ctx, turnstone.Scope{Full: true}); err != nil {
				t.Fatal(err)
			}
			var want []string
			for i, l := range all {
				if i != dead {
					want = append(want, l)
				}
			}
			var got []string
			for _, n := range state.Nodes {
				got = append(got, string(n.Payload))
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s without node %d:\n%s", name, dead, strings.Join(got, "\n"))
			}
			// If the file was edited as well, the import can't tell, and must not fail.
			edited := slices.Clone(all)
			edited[0] = strings.Replace(edited[0], "{", `{"edited":1,`, 1)
			bring(t, st, clock, name, file(edited))
			verify(t, st)
		}
	}
}

func TestTheFullestOfSeveralSnapshotsDecides(t *testing.T) {
	for name, all := range appended {
		st, clock := openClocked(t)
		id := bring(t, st, clock, name, file(all)).Session
		want, _, _ := strings.Cut(told(t, st, id), "leaf")
		other := slices.Clone(all[:4]) // an edited one that is shorter
		other[3] = strings.NewReplacer(`"one"`, `"edited"`, `"r"`, `"edited"`, `"data":{}`, `"data":{"a":1}`).Replace(other[3])
		holed := append(slices.Clone(all[:2]), append([]string{"{broken"}, all[3:]...)...)
		snapshots := []string{file(all[:2]), file(all), file(all[:4]) + `{"torn`, file(holed), file(other)}
		for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}, {1, 4, 0}, {4, 1, 3}} {
			for _, together := range []bool{true, false} {
				if !together && slices.Contains(order, 4) { // alone it is an edit
					continue
				}
				st, clock := openClocked(t)
				var convs []importer.Conversation
				for _, i := range order {
					cs, _ := importer.Parse(name, []byte(snapshots[i]))
					if convs = append(convs, cs...); !together {
						bring(t, st, clock, name, snapshots[i])
					}
				}
				if together {
					for _, r := range importer.Load(ctx, st, convs, importer.Options{Clock: clock}) {
						if r.Err != nil {
							t.Fatal(r.Err)
						}
					}
				}
				got, _, _ := strings.Cut(told(t, st, id), "leaf")
				if g, w := bare(got), bare(want); g != w {
					t.Errorf("%s in the order %v, together %v:\n%s\nwant\n%s", name, order, together, g, w)
				}
				if got := exportedFile(t, st, id); got != file(all) {
					t.Errorf("%s in the order %v, together %v is exported as\n%s", name, order, together, got)
				}
				if !together {
					for _, i := range order {
						if r := bring(t, st, clock, name, snapshots[i]); r.Outcome != importer.Unchanged || r.Commits != 0 {
							t.Errorf("%s, snapshot %d again: %+v", name, i, r)
						}
					}
				}
				page, err := st.List(ctx, turnstone.ListOptions{})
				if err != nil || len(page.Sessions) != 1 {
					t.Errorf("%d sessions, %v", len(page.Sessions), err)
				}
			}
		}
	}
}

// bare leaves out the keys, which tell versions of an event apart.
func bare(path string) string {
	var out []string
	for l := range strings.Lines(path) {
		_, payload, _ := strings.Cut(l, "{")
		out = append(out, payload)
	}
	return strings.Join(out, "")
}

func TestFilesThatAreCalledTheSameBecomeTwoSessions(t *testing.T) {
	st, clock := openClocked(t)
	a, b := filepath.Join(t.TempDir(), "chat.jsonl"), filepath.Join(t.TempDir(), "chat.jsonl")
	say := func(words ...string) string {
		var out []string
		for i, w := range words {
			out = append(out, fmt.Sprintf(`{"role":%q,"content":%q}`, []string{"user", "assistant"}[i%2], w))
		}
		return file(out)
	}
	one := bring(t, st, clock, a, say("hello", "hi"))
	two := bring(t, st, clock, b, say("hello", "hi"))
	if one.Session != "chat" || two.Outcome != importer.Imported || two.Session == one.Session || !strings.HasPrefix(two.Session, "chat~") {
		t.Fatalf("%+v\n%+v", one, two)
	}
	if r := bring(t, st, clock, a, say("hello", "hi", "a")); r.Session != one.Session || r.Outcome != importer.Grown {
		t.Errorf("%+v", r)
	}
	if r := bring(t, st, clock, b, say("hello", "hi", "b")); r.Session != two.Session || r.Outcome != importer.Grown {
		t.Errorf("%+v", r)
	}
	if err := st.Delete(ctx, one.Session, turnstone.KeepChildren); err != nil {
		t.Fatal(err)
	}
	if r := bring(t, st, clock, b, say("hello", "hi", "b", "b")); r.Session != two.Session {
		t.Errorf("%+v", r)
	}
	// A log that was begun anew is another conversation, and its file was compressed since.
	r := bring(t, st, clock, b, say("something else", "yes"))
	if r.Outcome != importer.Imported || r.Session == two.Session {
		t.Errorf("%+v", r)
	}
	if again := bring(t, st, clock, b+".gz", say("something else", "yes", "more")); again.Session != r.Session {
		t.Errorf("%+v", again)
	}
	if again := bring(t, st, clock, b, say("hello", "hi", "b", "b", "b")); again.Session != two.Session {
		t.Errorf("%+v", again)
	}
	// A session of a host is not taken over.
	if _, _, err := st.Create(ctx, turnstone.Request{ID: "host"}); err != nil {
		t.Fatal(err)
	}
	if r := bring(t, st, clock, "host.jsonl", say("x")); r.Session == "host" {
		t.Errorf("%+v", r)
	}
	// Standard input is known by what it continues.
	in := bring(t, st, clock, "-", say("hello", "hi"))
	if r := bring(t, st, clock, "-", say("hello", "hi", "more")); r.Session != in.Session || r.Outcome != importer.Grown {
		t.Errorf("%+v", r)
	}
	if r := bring(t, st, clock, "-", say("hello", "another")); r.Session == in.Session {
		t.Errorf("%+v", r)
	}
}

func TestAConversationsOwnIDIdentifiesIt(t *testing.T) {
	for name, all := range appended {
		if name == "plain.jsonl" {
			continue
		}
		st, clock := openClocked(t)
		one := bring(t, st, clock, filepath.Join(t.TempDir(), "a.jsonl"), file(all[:3]))
		two := bring(t, st, clock, filepath.Join(t.TempDir(), "b.jsonl"), file(all))
		if one.Session != two.Session || two.Outcome != importer.Grown {
			t.Errorf("%s: %+v, %+v", name, one, two)
		}
	}
	st := openStore(t, memory.New())
	defer st.Close()
	const id = "0b0c2f8e-5a0b-4d4e-9c59-6f1f0f4d7a11"
	chat := `{"id":"` + id + `","messages":[{"role":"user","content":"a"}]}`
	load(t, st, parse(t, filepath.Join(t.TempDir(), "a.json"), chat), importer.Options{}, importer.Imported)
	load(t, st, parse(t, filepath.Join(t.TempDir(), "b.json"), chat), importer.Options{}, importer.Unchanged)
	// Ids that a data set counts are not unique in the world, nor even in the file.
	counted := `{"id":"1","messages":[{"role":"user","content":"a"}]}` + "\n" + `{"id":"1","messages":[{"role":"user","content":"b"}]}` + "\n"
	for range 2 {
		load(t, st, parse(t, filepath.Join(t.TempDir(), "set.jsonl"), counted), importer.Options{}, importer.Imported)
	}
	page, err := st.List(ctx, turnstone.ListOptions{})
	if err != nil || len(page.Sessions) != 5 {
		t.Errorf("%d sessions, %v", len(page.Sessions), err)
	}
}

func TestReplaceDeletesAndSaysWhatIsLost(t *testing.T) {
	st, clock := openClocked(t)
	all := appended["plain.jsonl"]
	id := bring(t, st, clock, "plain.jsonl", file(all)).Session
	s, err := st.Session(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Keep(ctx, "v1", 1), s.SaveMetadata(ctx, turnstone.Metadata{Labels: map[string]string{"rating": "good"}})); err != nil {
		t.Fatal(err)
	}
	if _, _, err := st.Create(ctx, turnstone.Request{ID: "fork", Parent: id}); err != nil {
		t.Fatal(err)
	}
	convs := parse(t, "plain.jsonl", file(all[:3]))
	losses, err := importer.Losses(ctx, st, convs)
	if err != nil || len(losses) != 1 || losses[0].ID != id || losses[0].Kept != 1 || losses[0].Children != 1 || losses[0].Labels["rating"] != "good" {
		t.Fatalf("%+v, %v", losses, err)
	}
	load(t, st, convs, importer.Options{Replace: true}, importer.Replaced)
	if got := exportedFile(t, st, id); got != file(all[:3]) {
		t.Errorf("%s", got)
	}
	if losses, err = importer.Losses(ctx, st, convs); err != nil || len(losses) != 0 {
		t.Errorf("%+v, %v", losses, err)
	}
}

func TestExportIsTheFileByteForByte(t *testing.T) {
	line := `{"role":"user","content":"x"}`
	for _, content := range []string{
		line + "\n", line, "\ufeff" + line + "\n", line + "\r\n" + line + "\r\n", line + "\n\n \n" + line + "\n\n", "\n" + line + "\n", line + "\n" + line,
		"\ufeff\n" + line + "\n\t", line + "\n  ",
	} {
		st, clock := openClocked(t)
		for _, name := range []string{"x.jsonl", "x.jsonl"} {
			id := bring(t, st, clock, name, content).Session
			if got := exportedFile(t, st, id); got != content {
				t.Errorf("%q is exported as %q", content, got)
			}
		}
		// What a host commits since comes behind it.
		s, err := st.Session(ctx, "x")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("since")}}}); err != nil {
			t.Fatal(err)
		}
		want := content
		if !strings.HasSuffix(content, "\n") && !strings.HasSuffix(content, "\n\t") && !strings.HasSuffix(content, "\n  ") {
			want += "\n"
		}
		if got := exportedFile(t, st, "x"); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "since\n") {
			t.Errorf("%q is exported as %q", content, got)
		}
	}
}

// Whatever happens to a file between imports, the session reads as if the file had
// been imported once as it is now; only a file of which lines are missing at its end
// is taken for an older snapshot.
func TestAnyHistoryOfAFileGivesTheSessionOfTheFile(t *testing.T) {
	for name, all := range appended {
		for seed := range testscale.Pick[uint64](60, 40, 8) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			st, clock := openClocked(t)
			files := map[string][]string{} // by session: a file may begin anew
			for version := range 6 {
				lines := slices.Clone(all[:1+rnd.IntN(len(all))])
				for range rnd.IntN(4) {
					at := rnd.IntN(len(lines))
					switch op := rnd.IntN(3); {
					case op == 0 && len(lines) > 1 && (at > 0 || name != "pi.jsonl"):
						lines = slices.Delete(lines, at, at+1)
					case op == 1:
						lines[at] = strings.Replace(lines[at], `"content":"`, fmt.Sprintf(`"content":"%d `, rnd.IntN(3)), 1)
					case op == 2 && name == "plain.jsonl":
						lines = slices.Insert(lines, at, lines[rnd.IntN(len(lines))])
					}
				}
				if name == "claude.jsonl" && !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "sessionId") }) {
					continue // nothing says which session it is
				}
				r := bring(t, st, clock, name, file(lines))
				id, have := r.Session, files[r.Session]
				if !(len(lines) < len(have) && slices.Equal(lines, have[:len(lines)])) {
					have = lines
				}
				files[id] = have
				fresh, clock := openClocked(t)
				other := bring(t, fresh, clock, name, file(have)).Session
				got, _, _ := strings.Cut(told(t, st, id), "leaf")
				want, _, _ := strings.Cut(told(t, fresh, other), "leaf")
				if bare(got) != bare(want) {
					t.Fatalf("%s, seed %d, version %d:\n%s\nwant\n%s", name, seed, version, got, want)
				}
				if got := exportedFile(t, st, id); got != file(have) {
					t.Fatalf("%s, seed %d, version %d is exported as\n%s\nwant\n%s", name, seed, version, got, file(have))
				}
				if r := bring(t, st, clock, name, file(have)); r.Outcome != importer.Unchanged {
					t.Fatalf("%s, seed %d, version %d again: %+v", name, seed, version, r)
				}
			}
			verify(t, st)
		}
	}
}

// A host that went on from an imported session keeps its own messages: what an agent
// notes beside its conversation does not move the session back, what it says does,
// and then the host's messages are a branch.
func TestWhatAHostCommittedSinceStays(t *testing.T) {
	st, clock := openClocked(t)
	all := appended["claude.jsonl"]
	id := bring(t, st, clock, "claude.jsonl", file(all[:9])).Session
	s, err := st.Session(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("of the host")}}})
	if err != nil {
		t.Fatal(err)
	}
	leaf := func() turnstone.NodeID {
		i, err := s.Info(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return i.Leaf
	}
	noted := append(slices.Clone(all[:9]), `{"type":"file-history-snapshot","messageId":"a4","snapshot":{}}`)
	if got := bring(t, st, clock, "claude.jsonl", file(noted)); got.Outcome != importer.Grown || leaf() != r.Leaf {
		t.Errorf("%+v", got)
	}
	if got := bring(t, st, clock, "claude.jsonl", file(all[:9])); got.Outcome != importer.Unchanged || leaf() != r.Leaf {
		t.Errorf("%+v", got)
	}
	if got := exportedFile(t, st, id); got != file(noted)+"of the host\n" {
		t.Errorf("exported as\n%s", got)
	}
	said := append(noted, all[9])
	if got := bring(t, st, clock, "claude.jsonl", file(said)); got.Outcome != importer.Branched || leaf() == r.Leaf {
		t.Errorf("%+v", got)
	}
	if _, err := s.Node(ctx, r.Leaf); err != nil {
		t.Error(err)
	}
	if got := exportedFile(t, st, id); got != file(said)+"of the host\n" {
		t.Errorf("exported as\n%s", got)
	}
}

// Now and then a line is written before the line that it hangs from. A file that was
// cut between the two leads to the same path and the same export as the whole file.
func TestALineBeforeItsParentIsMendedWhenTheFileGrows(t *testing.T) {
	all := strings.Split(strings.TrimSpace(claude), "\n")[:7]
	st, clock := openClocked(t)
	id := bring(t, st, clock, "claude.jsonl", file(all)).Session
	want, _, _ := strings.Cut(told(t, st, id), "leaf")
	for n := 2; n < len(all); n++ {
		st, clock := openClocked(t)
		bring(t, st, clock, "claude.jsonl", file(all[:n]))
		bring(t, st, clock, "claude.jsonl", file(all))
		got, _, _ := strings.Cut(told(t, st, id), "leaf")
		if bare(got) != bare(want) {
			t.Errorf("after %d lines:\n%s\nwant\n%s", n, got, want)
		}
		if got := exportedFile(t, st, id); got != file(all) {
			t.Errorf("after %d lines it is exported as\n%s", n, got)
		}
		verify(t, st)
	}
}

// Forks and sub-agents in a file grow with it, each as a session of its own.
func TestForksAndSubAgentsGrowWithTheirFile(t *testing.T) {
	all := strings.Split(strings.TrimSpace(claude), "\n")
	all = append(all, `{"type":"user","uuid":"i","parentUuid":"h","sessionId":"c2","message":{"role":"user","content":"more of the fork"}}`,
		`{"type":"user","uuid":"j","parentUuid":"g","sessionId":"c1","agentId":"ag","isSidechain":true,"message":{"role":"user","content":"more of the agent"}}`)
	ids := []string{"c1", "c1/ag", "c2"}
	bring := func(st *turnstone.Store, clock *importer.Clock, content string) {
		t.Helper()
		convs, _ := importer.Parse("claude.jsonl", []byte(content))
		for _, r := range importer.Load(ctx, st, convs, importer.Options{Clock: clock}) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	read := func(st *turnstone.Store) (out string) {
		for _, id := range ids {
			path, _, _ := strings.Cut(told(t, st, id), "leaf")
			s, err := st.Session(ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			i, err := s.Info(ctx)
			if err != nil {
				t.Fatal(err)
			}
			out += fmt.Sprintln(id, i.Parent, i.Detached, i.ForkNode.IsZero(), i.Usage) + bare(path)
		}
		return out
	}
	st, clock := openClocked(t)
	bring(st, clock, file(all))
	want := read(st)
	for n := 2; n < len(all); n++ {
		st, clock := openClocked(t)
		bring(st, clock, file(all[:n])+all[n][:10])
		bring(st, clock, file(all))
		if got := read(st); got != want {
			t.Errorf("after %d lines:\n%s\nwant\n%s", n, got, want)
		}
		page, err := st.List(ctx, turnstone.ListOptions{})
		if err != nil || len(page.Sessions) != len(ids) {
			t.Errorf("after %d lines: %d sessions, %v", n, len(page.Sessions), err)
		}
		verify(t, st)
	}
}

// An import that is cut off at any commit is finished by the next one.
func TestAnImportThatWasCutOffIsFinishedByTheNext(t *testing.T) {
	for name, all := range appended {
		st, clock := openClocked(t)
		id := bring(t, st, clock, name, file(all)).Session
		want := told(t, st, id)
		for refused := range 8 {
			commits, cut := 0, context.CancelFunc(func() {})
			clock := &importer.Clock{}
			st, err := turnstone.Open(ctx, memory.New(), &turnstone.Options{Now: clock.Now, Validator: func(context.Context, string, *turnstone.Commit) error {
				if commits++; commits == refused {
					cut()
				}
				return nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			bring(t, st, clock, name, file(all[:2]))
			commits = 0
			var stopped context.Context
			stopped, cut = context.WithCancel(ctx)
			convs := parse(t, name, file(all))
			importer.Load(stopped, st, convs, importer.Options{Clock: clock, BySteps: true})
			cut()
			bring(t, st, clock, name, file(all))
			if got := told(t, st, id); got != want {
				t.Errorf("%s, cut off at commit %d:\n%s\nwant\n%s", name, refused, got, want)
			}
			verify(t, st)
			st.Close()
		}
	}
}
