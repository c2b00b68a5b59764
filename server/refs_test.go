package server_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone/server"
)

func TestSV16_RefsAreReadWithTheirCheckpoints(t *testing.T) {
	h := serve(t, server.Options{}, nil)
	h.post("create", `{"id":"s"}`)
	h.post("commit", `{"session":"s","checkpoint":[{"name":"p","content":"one"}]}`)
	h.post("commit", `{"session":"s","expected":1,"checkpoint":[{"name":"p","content":"two"}],"keep":"k"}`)
	set := func(key, value string) string {
		text, _ := json.Marshal(value)
		var answer struct{ Versions []string }
		a := h.post("change-records", fmt.Sprintf(`{"session":"s","changes":[{"key":%q,"value":%s,"action":"set"}]}`, key, text))
		if err := json.Unmarshal([]byte(a), &answer); err != nil {
			t.Fatal(err)
		}
		return answer.Versions[0]
	}
	first := set("r/1", `{"revision":1,"beside":"w/1/","other":[]}`)
	set("r/2", `{"revision":2}`)
	for i := range 1500 { // more than a page
		set(fmt.Sprintf("w/1/%04d", i), "x")
	}
	set("w/2/", "of another one")
	type item struct {
		Ref *struct {
			Record struct{ Key, Value, Version string }
			Known  bool
			Parts  []struct{ Name, Content string }
		}
		Beside *struct{ Records []struct{ Key string } }
		End    bool
	}
	refs := func(wanted string) (out []string) {
		t.Helper()
		beside := 0
		for _, line := range strings.Split(strings.TrimSpace(h.post("refs", `{"session":"s","refs":[`+wanted+`]}`)), "\n") {
			var i item
			if err := json.Unmarshal([]byte(line), &i); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			switch {
			case i.Ref != nil:
				out = append(out, fmt.Sprint(i.Ref.Record.Key, i.Ref.Known, i.Ref.Parts))
			case i.Beside != nil:
				beside += len(i.Beside.Records)
			case i.End:
				out = append(out, fmt.Sprint("beside ", beside))
			}
		}
		return out
	}
	for wanted, want := range map[string]string{
		`{"key":"r/2"},{"key":"r/1"}`:                       `[r/2false [{p two}] r/1false [{p one}] beside 1500]`,
		`{"key":"r/1","known":"` + first + `"}`:             `[r/1true [] beside 1500]`,
		`{"key":"r/2","known":"` + first + `"},{"key":"x"}`: `[r/2false [{p two}] beside 0]`,
		``: `[beside 0]`,
	} {
		if got := fmt.Sprint(refs(wanted)); got != want {
			t.Errorf("%s: %s, want %s", wanted, got, want)
		}
	}
	// A revision that is pruned is gone; the other one is kept by name.
	h.post("prune", `{"session":"s","revisions":1}`)
	if got := fmt.Sprint(refs(`{"key":"r/1"},{"key":"r/2"}`)); got != `[r/2false [{p two}] beside 0]` {
		t.Errorf("after a prune: %s", got)
	}
	set("bad", `{"revision":"1"}`)
	set("none", `{}`)
	for _, key := range []string{"bad", "none"} {
		h.refuses("refs", `{"session":"s","refs":[{"key":"`+key+`"}]}`, "invalid", 422)
	}
	h.refuses("refs", `{"session":"s","refs":[{"key":"x"}`+strings.Repeat(`,{"key":"x"}`, 1000)+`]}`, "limit", 422)
	h.refuses("refs", `{"session":"none","refs":[]}`, "session-not-found", 404)
}
