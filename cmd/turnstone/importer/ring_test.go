package importer_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
)

// The parents of lines are what the file says: the line itself, one of a ring, one that comes later, or one that is
// not there.
func TestP12_WhateverParentsLinesNameEachIsImportedOnce(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 12))
		n := 1 + rnd.IntN(12)
		var lines []string
		for i := range n {
			parent, content := fmt.Sprintf("%q", fmt.Sprint("u", rnd.IntN(n+2))), `"x"`
			if rnd.IntN(5) == 0 {
				parent = "null"
			}
			kind, id := "user", ""
			switch rnd.IntN(3) {
			case 0:
				kind, id = "assistant", fmt.Sprintf(`"id":"m%d",`, rnd.IntN(3))
				content = fmt.Sprintf(`[{"type":"tool_use","id":"t%d","name":"Read","input":{}}]`, rnd.IntN(4))
			case 1:
				content = fmt.Sprintf(`[{"type":"tool_result","tool_use_id":"t%d","content":"c"}]`, rnd.IntN(4))
			}
			lines = append(lines, fmt.Sprintf(`{"type":%q,"uuid":"u%d","parentUuid":%s,"sessionId":"s%d","timestamp":"2025-01-01T10:00:%02dZ","message":{%s"role":%q,"content":%s}}`,
				kind, i, parent, seed, i, id, kind, content))
		}
		st, clock := openClocked(t)
		data := strings.Join(lines, "\n") + "\n"
		r := bring(t, st, clock, "claude.jsonl", data)
		all := loaded(t, session(t, st, r.Session), turnstone.Scope{Full: true}).Nodes
		seen := map[string]bool{}
		for _, node := range all {
			seen[node.Key] = true
		}
		if len(all) != n || len(seen) != n {
			t.Fatalf("seed %d: %d of %d lines:\n%s", seed, len(all), n, data)
		}
		if got := exported(t, st, r.Session); got != data {
			t.Errorf("seed %d: exported is\n%s", seed, got)
		}
		if r := bring(t, st, clock, "claude.jsonl", data); r.Outcome != importer.Unchanged {
			t.Errorf("seed %d again: %+v", seed, r)
		}
		verify(t, st)
	}
}
