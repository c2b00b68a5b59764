package server_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/server"
)

// A whole history is saved with one request, which stores the difference.
func TestSV14_AWholeHistoryIsSavedWithOneRequest(t *testing.T) {
	h := serve(t, server.Options{}, nil)
	message := func(text string) string { return `{"kind":"user","payload":"` + text + `"}` }
	save := func(more, want string, texts ...string) {
		t.Helper()
		var messages []string
		for _, text := range texts {
			messages = append(messages, message(text))
		}
		if got := strings.TrimSpace(h.post("save", `{"session":"s","messages":[`+strings.Join(messages, ",")+`]`+more+`}`)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	has := func(route string, want ...string) {
		t.Helper()
		got := h.post(route, `{"session":"s"}`)
		for _, text := range want {
			if !strings.Contains(got, text) {
				t.Errorf("%s has no %s: %s", route, text, got)
			}
		}
	}
	save(`,"state":[{"name":"prompt","content":"be kind"}],"name":"n","usage":[{"model":"m","input":3}],"turn":"t"`, `{"revision":1,"kept":0,"added":2}`, "one", "two")
	save(`,"usage":[{"model":"m","input":3}],"turn":"t"`, `{"revision":1,"kept":2,"added":0}`, "one", "two") // Its answer was lost.
	has("info", `"name":"n"`, `"input":3`, `"messages":2`)
	has("checkpoint", `"be kind"`)
	save(``, `{"revision":2,"kept":2,"added":1}`, "one", "two", "three")
	save(`,"state":[]`, `{"revision":3,"kept":1,"added":1}`, "one", "other")
	has("checkpoint", `"parts":[]`)
	has("info", `"messages":2`, `"nodes":4`)
	save(`,"empty":["name"],"cwd":"/"`, `{"revision":3,"kept":2,"added":0}`, "one", "other")
	has("info", `"cwd":"/"`)
	if got := h.post("info", `{"session":"s"}`); strings.Contains(got, `"name"`) {
		t.Error(got)
	}
	h.refuses("save", `{"session":"s","base":1,"messages":[`+message("x")+`]}`, "conflict", 409)
	h.refuses("save", `{"session":"none","base":1,"messages":[`+message("x")+`]}`, "session-not-found", 404)
	h.refuses("save", `{"session":"s","messages":[{"kind":"","payload":""}]}`, "invalid", 422)
	h.refuses("save", `{"session":"","messages":[]}`, "invalid", 422)
	// A child is made by its first save.
	if got := h.post("save", `{"session":"child","new":{"parent":"s","detached":true},"messages":[`+message("own")+`]}`); !strings.Contains(got, `"added":1`) {
		t.Error(got)
	}
	if got := h.post("info", `{"session":"child"}`); !strings.Contains(got, `"parent":"s"`) || !strings.Contains(got, `"messages":1`) {
		t.Error(got)
	}
}

// compactions counts the calls of Vacuum.
type compactions struct {
	engine.Engine
	n atomic.Int64
}

func (c *compactions) Vacuum(ctx context.Context) error {
	c.n.Add(1)
	return c.Engine.Vacuum(ctx)
}

// A vacuum without compaction leaves the files to the engine.
func TestG11_AVacuumWithoutCompactionLeavesTheFiles(t *testing.T) {
	c := &compactions{Engine: memory.New()}
	h := serve(t, server.Options{}, func(h *host) { h.engine = c })
	h.post("create", `{"id":"s"}`)
	h.post("vacuum", `{"noCompaction":true}`)
	h.post("vacuum", `{"session":"s","noCompaction":true}`)
	if n := c.n.Load(); n != 0 {
		t.Errorf("%d compactions", n)
	}
	h.post("vacuum", `{}`)
	if n := c.n.Load(); n != 1 {
		t.Errorf("%d compactions", n)
	}
}
