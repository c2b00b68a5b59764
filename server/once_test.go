package server_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/server"
)

var ctx = context.Background()

const (
	request  = "Turnstone-Request"
	instance = "Turnstone-Server"
)

func TestSV2_AWriteOfOneIDIsMadeOnce(t *testing.T) {
	h := serve(t, server.Options{}, nil)
	h.post("create", `{"id":"s"}`)
	commit := `{"session":"s","expected":"any","nodes":[{"kind":"k","payload":"x"}]}`
	first := h.post("commit", commit, request, "1")
	if again := h.post("commit", commit, request, "1"); again != first {
		t.Errorf("%s, then %s", first, again)
	}
	if other := h.post("commit", commit, request, "2"); other == first {
		t.Error("another id is the same write")
	}
	h.post("commit", commit, request, "1", "Turnstone-Namespace", "") // as without
	if a := h.ask("POST", "/v1/commit", commit, request, "1", "Turnstone-Namespace", "other"); a.kind != "session-not-found" {
		t.Errorf("in another namespace: %s", a.body)
	}
	h.refuses("commit", strings.Replace(commit, `"x"`, `"y"`, 1), "request", 400, request, "1")
	h.refuses("change-records", `{"session":"s","changes":[]}`, "request", 400, request, "1")
	h.refuses("commit", commit, "request", 400, request, strings.Repeat("i", 200))
	h.refuses("commit", commit, "restarted", 409, request, "3", instance, "another")
	if got := h.post("info", `{"session":"s"}`); !strings.Contains(got, `"revision":2`) {
		t.Error(got)
	}
	// What had no effect is tried again.
	h.refuses("commit", `{"session":"t","expected":0}`, "session-not-found", 404, request, "4")
	h.post("create", `{"id":"t"}`)
	h.post("commit", `{"session":"t","expected":0}`, request, "4", instance, h.ask("GET", "/v1/", "").header.Get(instance))
}

// Many requests with one id, at once: one is made, and all get its answer.
func TestSV2_RequestsOfOneIDWaitForEachOther(t *testing.T) {
	h := serve(t, server.Options{}, nil)
	h.post("create", `{"id":"s"}`)
	var all sync.WaitGroup
	answers := make([]string, 50)
	for i := range answers {
		all.Go(func() {
			a, err := h.do("POST", "/v1/commit", strings.NewReader(`{"session":"s","expected":"any"}`), request, fmt.Sprint(i%5))
			if err != nil || a.status != 200 {
				t.Error(a, err)
			}
			answers[i] = a.body
		})
	}
	all.Wait()
	for i, a := range answers {
		if a != answers[i%5] {
			t.Errorf("%s, and %s", a, answers[i%5])
		}
	}
	if got := h.post("info", `{"session":"s"}`); !strings.Contains(got, `"revision":5`) {
		t.Error(got)
	}
}

func TestSV2_AWriteGoesOnWhenItsCallerGoesAway(t *testing.T) {
	validating, goOn := make(chan struct{}), make(chan struct{})
	h := serve(t, server.Options{}, func(h *host) {
		h.store.Validator = func(ctx context.Context, _ string, _ *turnstone.Commit) error {
			close(validating)
			<-goOn
			return ctx.Err()
		}
	})
	h.post("create", `{"id":"s"}`)
	leaving, leave := context.WithCancel(ctx)
	r, _ := http.NewRequestWithContext(leaving, "POST", h.url+"/v1/commit", strings.NewReader(`{"session":"s"}`))
	r.Header.Set(request, "1")
	gone := make(chan error)
	go func() {
		a, err := http.DefaultClient.Do(r)
		if err == nil {
			a.Body.Close()
		}
		gone <- err
	}()
	<-validating
	leave()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	close(goOn)
	if got := h.post("commit", `{"session":"s"}`, request, "1"); !strings.Contains(got, `"revision":1`) {
		t.Error(got)
	}
}

// A commit without a turn id is found again by another server on the same store, and its log does not show what it was
// found by.
func TestSV3_ACommitIsFoundByTheIDOfItsRequest(t *testing.T) {
	e := memory.New()
	hosts := make([]*host, 3)
	for i := range hosts {
		hosts[i] = serve(t, server.Options{}, func(h *host) { h.engine = e })
	}
	hosts[0].post("create", `{"id":"s"}`)
	for name, body := range map[string]string{
		"commit":     `{"session":"s","expected":"any","nodes":[{"kind":"k","payload":"x"}]}`,
		"commit-all": `{"commits":[{"session":"s","expected":"any"},{"create":{"id":"t"},"expected":"any"}]}`,
	} {
		if first := hosts[0].post(name, body, request, name); strings.Contains(first, "replayed") {
			t.Errorf("%s: %s", name, first)
		}
		if again := hosts[1].post(name, body, request, name); !strings.Contains(again, `"replayed":true`) {
			t.Errorf("%s again: %s", name, again)
		}
	}
	hosts[2].refuses("commit", `{"session":"s","expected":"any","nodes":[{"kind":"k","payload":"other"}]}`, "turn-conflict", 409, request, "commit")
	if log := hosts[1].post("log", `{"session":"s"}`); strings.Contains(log, "turn\"") || !strings.Contains(log, `"revision":2`) || strings.Contains(log, `"revision":3`) {
		t.Error(log)
	}
}
