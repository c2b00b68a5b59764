package trpc_test

import (
	"context"
	"testing"

	"trpc.group/trpc-go/trpc-agent-go/memory"
	"trpc.group/trpc-go/trpc-agent-go/model"
	"trpc.group/trpc-go/trpc-agent-go/session"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter/adaptertest"
	"github.com/turnstonedb/turnstone/adapters/trpc"
)

func TestKT4_OneServiceServesTenants(t *testing.T) {
	open := func(store turnstone.Factory) *trpc.Sessions { return trpc.NewSessions(store, trpc.Options{}) }
	adaptertest.Apart(t, open, func(ctx context.Context, s *trpc.Sessions, text string) (out []string, err error) {
		of, err := s.CreateSession(ctx, chat, nil)
		if err != nil {
			return nil, err
		}
		if err := s.AppendEvent(ctx, of, say(1, model.RoleUser, text, map[string][]byte{"own": []byte(text), "user:u": []byte(text)})); err != nil {
			return nil, err
		}
		if err := s.UpdateUserState(ctx, session.UserKey{AppName: chat.AppName, UserID: chat.UserID}, session.StateMap{"v": []byte(text)}); err != nil {
			return nil, err
		}
		got, err := s.GetSession(ctx, chat)
		if err != nil {
			return nil, err
		}
		for _, value := range got.State {
			out = append(out, string(value))
		}
		return append(out, texts(got)...), nil
	})
	memories := func(store turnstone.Factory) *trpc.Memory { return trpc.NewMemory(store, 0) }
	adaptertest.Apart(t, memories, func(ctx context.Context, m *trpc.Memory, text string) (out []string, err error) {
		of := memory.UserKey{AppName: "a", UserID: "u"}
		if err := m.AddMemory(ctx, of, text, nil); err != nil {
			return nil, err
		}
		all, err := m.ReadMemories(ctx, of, 0)
		for _, e := range all {
			out = append(out, e.Memory.Memory)
		}
		return out, err
	})
}
