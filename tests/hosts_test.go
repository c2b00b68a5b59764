package tests

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
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

func TestHosts(t *testing.T) {
	doc, err := os.ReadFile("../docs/hosts.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)\| ([a-z]+-[a-z-]+) \|$`).FindAllSubmatch(doc, -1) {
		rows[string(m[1])] = true
	}
	hostRows := map[string]func(h *host){}
	for _, of := range []map[string]func(h *host){adkRows, langgraphRows, genkitRows, lashRows} {
		maps.Copy(hostRows, of)
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
