package moving

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
)

// Scan implements engine.Engine. Each page is read where the store record says that the namespace is there.
func (m *Engine) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		rest, p := r, m.at.Load()
		for {
			changed, err := m.scan(ctx, p, &rest, yield)
			if changed {
				p, err = m.look(ctx, p)
			}
			if err != nil {
				yield(engine.Pair{}, err)
			}
			if err != nil || !changed {
				return
			}
		}
	}
}

// scan yields the pairs of rest, and makes rest the range of those that are left. It reports true if the store record is
// another one now.
func (m *Engine) scan(ctx context.Context, p *place, rest *engine.Range, yield func(engine.Pair, error) bool) (changed bool, err error) {
	of := *rest
	of.Guards = append([]engine.Pair{{Key: m.key, Value: p.record}}, slices.Clip(rest.Guards)...)
	for pair, err := range p.engine.Scan(ctx, of) {
		var c *engine.ConflictError
		if errors.As(err, &c) && bytes.Equal(c.Key, m.key) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if !yield(pair, nil) || rest.Past(pair.Key) {
			return false, nil
		}
	}
	return false, nil
}
