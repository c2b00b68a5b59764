package langchaingo_test

import (
	"context"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter/adaptertest"
	"github.com/turnstonedb/turnstone/adapters/langchaingo"
)

func TestKT4_OneHistoryServesTenants(t *testing.T) {
	open := func(store turnstone.Factory) *langchaingo.History { return langchaingo.NewHistory(store, "id") }
	adaptertest.Apart(t, open, func(ctx context.Context, h *langchaingo.History, text string) (out []string, err error) {
		if err := h.AddUserMessage(ctx, text); err != nil {
			return nil, err
		}
		all, err := h.Messages(ctx)
		for _, m := range all {
			out = append(out, m.GetContent())
		}
		return out, err
	})
}
