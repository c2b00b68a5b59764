package eino_test

import (
	"context"
	"testing"

	"github.com/turnstonedb/turnstone/adapters/adapter/adaptertest"
	"github.com/turnstonedb/turnstone/adapters/eino"
)

func TestKT4_OneCheckPointStoreServesTenants(t *testing.T) {
	adaptertest.Apart(t, eino.NewCheckPointStore, func(ctx context.Context, s *eino.CheckPointStore, text string) ([]string, error) {
		if err := s.Set(ctx, "id", []byte(text)); err != nil {
			return nil, err
		}
		got, _, err := s.Get(ctx, "id")
		return []string{string(got)}, err
	})
}
