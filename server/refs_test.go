package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
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

// hooked calls after once a ref was read.
type hooked struct {
	engine.Engine
	after func()
	armed atomic.Bool
}

func (h *hooked) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	vs, err := h.Engine.Get(ctx, keys...)
	for _, v := range vs {
		if strings.Contains(string(v), `"revision"`) && h.armed.CompareAndSwap(true, false) { // the record was read
			h.after()
		}
	}
	return vs, err
}

// A record that is moved to another revision, while the one before is pruned, is not gone.
func TestSV16_ARefThatIsMovedMeanwhileIsFound(t *testing.T) {
	e := &hooked{Engine: memory.New()}
	own, err := turnstone.Open(ctx, e.Engine, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	s, _, err := own.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	put := func(r head.Revision) {
		if _, err := s.Commit(ctx, turnstone.Commit{
			Expected: r - 1, Checkpoint: map[string][]byte{"p": []byte(fmt.Sprint(r))}, Keep: "latest",
			Records: []turnstone.RecordChange{{Key: "latest", Action: turnstone.SetRecord, Value: fmt.Appendf(nil, `{"revision":%d}`, r)}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	put(1)
	e.after = func() {
		put(2)
		if _, err := s.Prune(ctx, 1); err != nil {
			t.Error(err)
		}
	}
	sv, err := server.New(server.Options{Open: func(ctx context.Context, ns string, must bool) (*turnstone.Store, error) {
		return turnstone.Open(ctx, e, &turnstone.Options{Namespace: ns})
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer sv.Close()
	front := httptest.NewServer(sv)
	defer front.Close()
	h := &host{T: t, Server: sv, url: front.URL}
	e.armed.Store(true)
	a := h.ask("POST", "/v1/refs", `{"session":"s","refs":[{"key":"latest"}]}`)
	if !strings.Contains(a.body, `"ref"`) {
		t.Errorf("armed %v: %d %s", e.armed.Load(), a.status, a.body)
	}
	if a := h.ask("POST", "/v1/refs", `{"session":"s","refs":[{"key":"latest"}]}`); !strings.Contains(a.body, `"ref"`) {
		t.Errorf("again: %d %s", a.status, a.body)
	}
}
