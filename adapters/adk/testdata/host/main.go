// Command host is a host in Go beside one in another language: `host write STORE` makes a session, artifacts and a memory
// in a store, and `host read STORE` prints as JSON what there is of the session that the other one has made.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"maps"
	"os"
	"time"

	"google.golang.org/adk/v2/artifact"
	"google.golang.org/adk/v2/memory"
	"google.golang.org/adk/v2/model"
	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adk"
	"github.com/turnstonedb/turnstone/engine/open"
)

const (
	app  = "a/b"
	user = "ann%"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: host write|read STORE")
	}
	ctx := context.Background()
	e, err := open.Open(ctx, os.Args[2], nil)
	check(err)
	defer e.Close()
	st, err := turnstone.Open(ctx, e, nil)
	check(err)
	defer st.Close()
	h := host{adk.NewSessions(st.Factory()), adk.NewArtifacts(st.Factory()), adk.NewMemory(st.Factory(), 0)}
	if os.Args[1] == "write" {
		h.write(ctx)
	} else {
		h.read(ctx, "js")
	}
}

type host struct {
	sessions  *adk.Sessions
	artifacts *adk.Artifacts
	memory    *adk.Memory
}

// write makes the session "go". Its state has types that JSON does not show, and numbers that JavaScript does not have.
func (h host) write(ctx context.Context) {
	made, err := h.sessions.Create(ctx, &session.CreateRequest{AppName: app, UserID: user, SessionID: "go", State: map[string]any{
		"f": 2.0, "i64": int64(5), "big": 1<<60 + 1, "at": time.Unix(0, 0).UTC(), "user:u": "of Go", "app:a": []any{1, nil},
	}})
	check(err)
	e := &session.Event{ID: "e1", Author: "user", InvocationID: "i1", Timestamp: time.Unix(1795899580, 492208242).UTC(), Routes: []string{"left"}, LLMResponse: model.LLMResponse{
		Content: &genai.Content{Role: "user", Parts: []*genai.Part{{Text: "The museum of Oslo"}, {InlineData: &genai.Blob{Data: []byte{255, 254}, MIMEType: "image/png"}}}},
	}}
	e.Actions.StateDelta = map[string]any{"n": 1, "user:n": 1.5}
	check(h.sessions.AppendEvent(ctx, made.Session, e))
	for _, part := range []*genai.Part{{Text: "é"}, {InlineData: &genai.Blob{Data: []byte{255, 254}, MIMEType: "image/png"}}} {
		_, err := h.artifacts.Save(ctx, &artifact.SaveRequest{AppName: app, UserID: user, SessionID: "go", FileName: "notes.txt", Part: part})
		check(err)
	}
	check(h.memory.AddSessionToMemory(ctx, made.Session))
}

// read prints the session of an id.
func (h host) read(ctx context.Context, id string) {
	got, err := h.sessions.Get(ctx, &session.GetRequest{AppName: app, UserID: user, SessionID: id})
	check(err)
	state := map[string]string{}
	for k, v := range maps.Collect(got.Session.State().All()) {
		state[k] = fmt.Sprintf("%T %v", v, v)
	}
	var events []*session.Event
	for e := range got.Session.Events().All() {
		events = append(events, e)
	}
	names, err := h.artifacts.List(ctx, &artifact.ListRequest{AppName: app, UserID: user, SessionID: id})
	check(err)
	var parts []*genai.Part
	for version := int64(1); version <= 2; version++ {
		one, err := h.artifacts.Load(ctx, &artifact.LoadRequest{AppName: app, UserID: user, SessionID: id, FileName: "notes.txt", Version: version})
		check(err)
		parts = append(parts, one.Part)
	}
	found, err := h.memory.SearchMemory(ctx, &memory.SearchRequest{AppName: app, UserID: user, Query: "museum"})
	check(err)
	var memories []string
	for _, m := range found.Memories {
		memories = append(memories, m.Content.Parts[0].Text)
	}
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{"state": state, "events": events, "artifacts": names.FileNames, "parts": parts, "memories": memories}))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
