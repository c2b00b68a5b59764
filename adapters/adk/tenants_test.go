package adk_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"google.golang.org/adk/v2/artifact"
	"google.golang.org/adk/v2/memory"
	"google.golang.org/adk/v2/model"
	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter/adaptertest"
	"github.com/turnstonedb/turnstone/adapters/adk"
)

func TestKT4_OneServiceServesTenants(t *testing.T) {
	adaptertest.Apart(t, adk.NewSessions, func(ctx context.Context, s *adk.Sessions, text string) (out []string, err error) {
		_, err = s.Create(ctx, &session.CreateRequest{AppName: "a", UserID: "u", SessionID: "s"})
		if err != nil && !errors.Is(err, turnstone.ErrExists) {
			return nil, err
		}
		of, err := s.Get(ctx, &session.GetRequest{AppName: "a", UserID: "u", SessionID: "s"})
		if err != nil {
			return nil, err
		}
		e := &session.Event{ID: text, Author: "user", LLMResponse: model.LLMResponse{Content: genai.NewContentFromText(text, "user")}}
		e.Actions.StateDelta = map[string]any{"own": text, "user:u": text, "app:" + text: text}
		if err := s.AppendEvent(ctx, of.Session, e); err != nil {
			return nil, err
		}
		if of, err = s.Get(ctx, &session.GetRequest{AppName: "a", UserID: "u", SessionID: "s"}); err != nil {
			return nil, err
		}
		for _, v := range of.Session.State().All() {
			out = append(out, fmt.Sprint(v))
		}
		for e := range of.Session.Events().All() {
			out = append(out, e.Content.Parts[0].Text)
		}
		return out, nil
	})
	adaptertest.Apart(t, adk.NewArtifacts, func(ctx context.Context, s *adk.Artifacts, text string) (out []string, err error) {
		_, err = s.Save(ctx, &artifact.SaveRequest{AppName: "a", UserID: "u", SessionID: "s", FileName: "f", Part: genai.NewPartFromText(text)})
		if err != nil {
			return nil, err
		}
		for version := int64(1); ; version++ {
			got, err := s.Load(ctx, &artifact.LoadRequest{AppName: "a", UserID: "u", SessionID: "s", FileName: "f", Version: version})
			if errors.Is(err, fs.ErrNotExist) {
				return out, nil
			}
			if err != nil {
				return nil, err
			}
			out = append(out, got.Part.Text)
		}
	})
	sessions := session.InMemoryService()
	open := func(store turnstone.Factory) *adk.Memory { return adk.NewMemory(store, 100) }
	adaptertest.Apart(t, open, func(ctx context.Context, m *adk.Memory, text string) (out []string, err error) {
		of, err := sessions.Create(ctx, &session.CreateRequest{AppName: "a", UserID: "u"})
		if err != nil {
			return nil, err
		}
		e := &session.Event{ID: text, Author: "user", LLMResponse: model.LLMResponse{Content: genai.NewContentFromText(text+" word", "user")}}
		if err := sessions.AppendEvent(ctx, of.Session, e); err != nil {
			return nil, err
		}
		if err := m.AddSessionToMemory(ctx, of.Session); err != nil {
			return nil, err
		}
		got, err := m.SearchMemory(ctx, &memory.SearchRequest{AppName: "a", UserID: "u", Query: "word"})
		if err != nil {
			return nil, err
		}
		for _, e := range got.Memories {
			out = append(out, e.ID)
		}
		return out, nil
	})
}
