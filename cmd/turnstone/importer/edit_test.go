package importer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/head"
)

func TestAnEditedFileBecomesABranch(t *testing.T) {
	for name, all := range appended {
		for at := range all {
			st, clock := openClocked(t)
			id := bring(t, st, clock, name, file(all)).Session
			before := describe(t, st, id)
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
			if got := exported(t, st, id); got != file(edited) {
				t.Errorf("%s:%d is exported as\n%s", name, at, got)
			}
			s := session(t, st, id)
			path := payloads(loaded(t, s, turnstone.Scope{}).Nodes)
			if last := edited[len(edited)-1]; path[len(path)-1] != last {
				t.Errorf("%s:%d: the session does not end as the file does: %v", name, at, path)
			}
			full := payloads(loaded(t, s, turnstone.Scope{Full: true}).Nodes)
			for _, l := range append(slices.Clone(all), edited...) {
				if !slices.Contains(full, l) {
					t.Errorf("%s:%d: the graph has no %s", name, at, l)
				}
			}
			// The events after the edit are on both branches, but their usage counts once.
			used := usage(t, name, file(all), file(edited))
			for _, u := range infoOf(t, s).Usage {
				if used[u.Model] != u {
					t.Errorf("%s:%d: used %+v, want %+v", name, at, u, used[u.Model])
				}
			}
			// When the edit is undone, the session is as before.
			if r := bring(t, st, clock, name, file(all)); r.Added != 0 {
				t.Errorf("%s:%d back: %+v", name, at, r)
			}
			if back := loaded(t, s, turnstone.Scope{Full: true}).Nodes; len(back) != len(full) {
				t.Errorf("%s:%d back: %d nodes, %d before", name, at, len(back), len(full))
			}
			if got := exported(t, st, id); got != file(all) {
				t.Errorf("%s:%d back is exported as\n%s", name, at, got)
			}
			if got := describePath(t, st, id); !strings.HasPrefix(before, got) {
				t.Errorf("%s:%d back: the path is\n%s\nwant\n%s", name, at, got, before)
			}
			verify(t, st)
		}
	}
}

// usage returns the usage of the events in several versions of a file, by model. An event
// in several versions counts once, and so does one that was edited, if it says that it used as much.
func usage(t *testing.T, name string, versions ...string) map[string]head.Usage {
	t.Helper()
	used := map[string]head.Usage{}
	seen := map[string]bool{}
	for _, content := range versions {
		for _, e := range parse(t, name, content)[0].Events {
			line := fmt.Sprint("key ", e.Key, e.Usage)
			if seen[string(e.Payload)] || e.Key != "" && seen[line] {
				continue
			}
			seen[string(e.Payload)], seen[line] = true, true
			for _, u := range e.Usage {
				sum := used[u.Model]
				sum.Add(u)
				sum.Model = u.Model
				used[u.Model] = sum
			}
		}
	}
	return used
}

// An edited line gets a key of its own; lines that are new keep theirs.
func TestKeysOfNewLinesStay(t *testing.T) {
	all := appended["claude.jsonl"]
	st, clock := openClocked(t)
	id := bring(t, st, clock, "claude.jsonl", file(all[:9])).Session
	edited := append(slices.Clone(all[:8]), strings.Replace(all[8], "done", "edited", 1), strings.Replace(strings.Replace(all[8], `"a4"`, `"a5"`, 1), `"r2"`, `"a4"`, 1))
	bring(t, st, clock, "claude.jsonl", file(edited))
	s := session(t, st, id)
	last, err := s.NodeByKey(ctx, "a5")
	if err != nil {
		t.Fatal(err)
	}
	old, err := s.NodeByKey(ctx, "a4")
	if err != nil || last.Parent == old.ID || !strings.Contains(string(old.Payload), "done") {
		t.Errorf("%s, %v", old.Payload, err)
	}
}
