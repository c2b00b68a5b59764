package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/server"
)

// SV18: a process is a client of its own server, with the rights of a token, until the server ends.
func TestSV18_AProcessIsAClientOfItsOwnServer(t *testing.T) {
	e := memory.New()
	s, err := server.New(server.Options{
		Open: func(ctx context.Context, _ string, _ bool) (*turnstone.Store, error) {
			return turnstone.Open(ctx, e, nil)
		},
		Tokens: func(token string) (server.Grant, bool) {
			return server.Grant{Scopes: []server.Scope{server.Scope(token)}, Namespaces: []string{"*"}}, token == "read" || token == "write"
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	as := func(token string) (*client.Client, error) {
		return client.Open(ctx, "", &client.Options{Token: token, Dial: s.Dial, Patience: time.Second})
	}
	writer, err := as("write")
	if err != nil {
		t.Fatal(err)
	}
	reader, err := as("read")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := as("none"); err == nil {
		t.Error("an unknown token is accepted")
	}
	p, _, err := writer.Create(ctx, turnstone.Request{ID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := reader.Create(ctx, turnstone.Request{ID: "b"}); err == nil {
		t.Error("a token for reading makes a session")
	}
	seen, err := reader.Session(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan turnstone.LogEntry)
	go func() {
		defer close(told)
		for c, err := range seen.Watch(ctx, 0) {
			if err != nil {
				return
			}
			told <- c
		}
	}()
	if _, err := p.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("hello")}}}); err != nil {
		t.Fatal(err)
	}
	if c := <-told; c.Revision != 1 {
		t.Error(c)
	}
	reader.Close()
	for range told { // The watch ends.
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.Dial(ctx); err == nil {
		t.Error("a server that has ended is connected with")
	}
	if _, err := p.Info(ctx); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("after the end: %v", err)
	}
	writer.Close()
}

// SV18: Options.Pages answers what is none of the protocol's paths.
func TestSV18_PagesAnswerOtherPaths(t *testing.T) {
	s, err := server.New(server.Options{
		Open: func(ctx context.Context, _ string, _ bool) (*turnstone.Store, error) {
			return turnstone.Open(ctx, memory.New(), nil)
		},
		Pages: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "page ", r.URL.Path) }),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for path, want := range map[string]string{"/": "page /", "/ui/x": "page /ui/x", "/v1/nothing": "no such operation", "/v1/": `"server"`, "/healthz": "ok", "/v1/list": "want POST"} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}
