package genkit_test

import (
	"context"
	"testing"

	"github.com/firebase/genkit/go/ai"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter/adaptertest"
	"github.com/turnstonedb/turnstone/adapters/genkit"
)

func TestKT4_OneStoreServesTenants(t *testing.T) {
	open := func(store turnstone.Factory) *genkit.Store[custom] {
		return genkit.NewStore[custom](store, genkit.Options{})
	}
	adaptertest.Apart(t, open, func(ctx context.Context, s *genkit.Store[custom], text string) (out []string, err error) {
		_, err = s.SaveSnapshot(ctx, "id", func(existing *snapshot) (*snapshot, error) {
			if existing == nil {
				existing = &snapshot{SessionID: "session", CreatedAt: begin, State: &state{SessionID: "session"}}
			}
			existing.State.Messages = append(existing.State.Messages, ai.NewUserTextMessage(text))
			return existing, nil
		})
		if err != nil {
			return nil, err
		}
		got, err := s.GetLatestSnapshot(ctx, "session")
		if err != nil {
			return nil, err
		}
		for _, m := range got.State.Messages {
			out = append(out, m.Text())
		}
		return out, nil
	})
}
