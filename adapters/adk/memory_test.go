package adk_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/adk/v2/memory"
	"google.golang.org/adk/v2/model"
	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adk"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// A session that is added is found by its words, as the kit's service in memory finds it, and is stored once.
func TestAD13_MemoriesAreFoundByTheirWords(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(*testing.T) turnstone.Factory) {
		store := open(t)
		sessions := adk.NewSessions(store)
		services := []memory.Service{adk.NewMemory(store, 100), memory.InMemoryService()}
		words := strings.Fields("kyoto museum train rain paper stone")
		for i := range 4 {
			made, err := sessions.Create(t.Context(), &session.CreateRequest{AppName: "a", UserID: "u/v", SessionID: fmt.Sprint("s", i)})
			if err != nil {
				t.Fatal(err)
			}
			for j := range 5 {
				text := words[(i+j)%6] + " " + words[(i*j)%6]
				e := &session.Event{ID: fmt.Sprint("e", j), Author: "user", Timestamp: time.Unix(int64(1_795_000_000+i*10+j), 0), LLMResponse: model.LLMResponse{Content: genai.NewContentFromText(text, "user")}}
				if err := sessions.AppendEvent(t.Context(), made.Session, e); err != nil {
					t.Fatal(err)
				}
			}
			for _, s := range services {
				var adding sync.WaitGroup
				for range 3 {
					adding.Go(func() {
						if err := s.AddSessionToMemory(t.Context(), made.Session); err != nil {
							t.Error(err)
						}
					})
				}
				adding.Wait()
			}
		}
		for _, query := range []string{"museum", "Rain paper", "nothing", "", "museu"} {
			var found [2][]string
			for i, s := range services {
				r, err := s.SearchMemory(t.Context(), &memory.SearchRequest{AppName: "a", UserID: "u/v", Query: query})
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range r.Memories {
					found[i] = append(found[i], fmt.Sprint(m.ID, m.Author, m.Timestamp.Unix(), m.Content.Parts[0].Text))
				}
				slices.Sort(found[i])
			}
			if !slices.Equal(found[0], found[1]) {
				t.Errorf("%q: %v, want %v", query, found[0], found[1])
			}
		}
		few, err := adk.NewMemory(store, 2).SearchMemory(t.Context(), &memory.SearchRequest{AppName: "a", UserID: "u/v", Query: "rain paper"})
		if err != nil || len(few.Memories) != 2 || !strings.Contains(few.Memories[0].Content.Parts[0].Text, "rain") {
			t.Errorf("%+v, %v", few, err)
		}
		if r, err := services[0].SearchMemory(t.Context(), &memory.SearchRequest{AppName: "a", UserID: "other", Query: "rain"}); err != nil || len(r.Memories) != 0 {
			t.Errorf("%+v, %v", r, err)
		}
		for _, err := range []error{services[0].AddSessionToMemory(t.Context(), nil), second(services[0].SearchMemory(t.Context(), &memory.SearchRequest{Query: "x"}))} {
			if err == nil {
				t.Error("nothing is refused")
			}
		}
	})
}

// Between scripts without spaces, a Latin word is found.
func TestAD13_WordsOfSeveralScripts(t *testing.T) {
	store := storetest.Memory(t)
	sessions, m := adk.NewSessions(store), adk.NewMemory(store, 0)
	made, err := sessions.Create(t.Context(), &session.CreateRequest{AppName: "a", UserID: "u"})
	if err != nil {
		t.Fatal(err)
	}
	e := &session.Event{ID: "e", Author: "user", LLMResponse: model.LLMResponse{Content: genai.NewContentFromText("私はPythonを使う。Été!", "user")}}
	if err := sessions.AppendEvent(t.Context(), made.Session, e); err != nil {
		t.Fatal(err)
	}
	if err := m.AddSessionToMemory(t.Context(), made.Session); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]int{"python": 1, "私は": 1, "été": 1, "thon": 0, "ete": 0} {
		if r, err := m.SearchMemory(t.Context(), &memory.SearchRequest{AppName: "a", UserID: "u", Query: query}); err != nil || len(r.Memories) != want {
			t.Errorf("%s: %+v, %v", query, r, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// Events that have no id, as those that no service has stored, are memories of their own; and large ones come in several
// commits.
func TestAD13_EventsWithoutIDsAndLargeOnesAreRemembered(t *testing.T) {
	sessions := session.InMemoryService()
	made, err := sessions.Create(t.Context(), &session.CreateRequest{AppName: "a", UserID: "u", SessionID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		content := genai.NewContentFromText(fmt.Sprint("picture ", i), "user")
		content.Parts = append(content.Parts, genai.NewPartFromBytes(make([]byte, 3<<20), "image/png"))
		if err := sessions.AppendEvent(t.Context(), made.Session, &session.Event{Author: "user", LLMResponse: model.LLMResponse{Content: content}}); err != nil {
			t.Fatal(err)
		}
	}
	m := adk.NewMemory(storetest.Memory(t), 100)
	for range 2 {
		if err := m.AddSessionToMemory(t.Context(), made.Session); err != nil {
			t.Fatal(err)
		}
		r, err := m.SearchMemory(t.Context(), &memory.SearchRequest{AppName: "a", UserID: "u", Query: "picture"})
		if err != nil || len(r.Memories) != 30 {
			t.Errorf("%d memories, %v", len(r.Memories), err)
		}
	}
}

// The adapter for Python deletes events so.
func TestAD13_WhatWasDeletedIsNotAddedAgain(t *testing.T) {
	sessions := session.InMemoryService()
	made, err := sessions.Create(t.Context(), &session.CreateRequest{AppName: "a", UserID: "u", SessionID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"one", "t/w%o"} {
		if err := sessions.AppendEvent(t.Context(), made.Session, &session.Event{ID: id, Author: "user", LLMResponse: model.LLMResponse{Content: genai.NewContentFromText("museum", "user")}}); err != nil {
			t.Fatal(err)
		}
	}
	store := storetest.Memory(t)
	h, _, err := store.Create(t.Context(), turnstone.Request{ID: "adk-memory/a/u"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.ChangeRecords(t.Context(), turnstone.RecordChange{Key: "deleted/t%2Fw%25o"}); err != nil {
		t.Fatal(err)
	}
	m := adk.NewMemory(store, 0)
	if err := m.AddSessionToMemory(t.Context(), made.Session); err != nil {
		t.Fatal(err)
	}
	r, err := m.SearchMemory(t.Context(), &memory.SearchRequest{AppName: "a", UserID: "u", Query: "museum"})
	if err != nil || len(r.Memories) != 1 || r.Memories[0].ID != "one" {
		t.Errorf("%+v, %v", r, err)
	}
}
