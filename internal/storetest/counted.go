package storetest

import (
	"context"
	"encoding/hex"
	"iter"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// CostsWhatItReturns fails the test if a read of a session costs more, the longer its history is. grow makes a session of
// n events on the store: it calls tick before each event for the event's time and its text. Then it returns the reads,
// each of which returns few events. The store's clock shows what tick has returned last.
func CostsWhatItReturns(t *testing.T, grow func(store turnstone.Factory, n int, tick func() (time.Time, string)) map[string]func()) {
	const size = 1500    // bytes of an event, about
	const unsealed = 256 // commits that are not in a segment yet, at most; a segment has as many
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	e := &counted{Engine: memory.New()}
	store, err := turnstone.Open(context.Background(), e, &turnstone.Options{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	rng := rand.NewChaCha8([32]byte{1})
	for _, n := range []int{30, 300, 3000} {
		reads := grow(store.Factory(), n, func() (time.Time, string) {
			now = now.Add(time.Hour)
			text := make([]byte, size/2)
			_, _ = rng.Read(text) // It never fails.
			return now, hex.EncodeToString(text)
		})
		for name, read := range reads {
			e.bytes.Store(0)
			read()
			if cost := e.bytes.Load(); cost > 2*unsealed*size {
				t.Errorf("%s of %d events reads %d bytes", name, n, cost)
			}
		}
	}
}

// counted is an engine that counts the bytes of the values that are read.
type counted struct {
	engine.Engine
	bytes atomic.Int64
}

// Get implements engine.Engine.
func (c *counted) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	values, err := c.Engine.Get(ctx, keys...)
	for _, v := range values {
		c.bytes.Add(int64(len(v)))
	}
	return values, err
}

// Scan implements engine.Engine.
func (c *counted) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		for p, err := range c.Engine.Scan(ctx, r) {
			c.bytes.Add(int64(len(p.Value)))
			if !yield(p, err) {
				return
			}
		}
	}
}
