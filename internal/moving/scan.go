package moving

import (
	"bytes"
	"context"
	"errors"
	"iter"

	"github.com/turnstonedb/turnstone/engine"
)

// Scan implements engine.Engine. Each page is read where the store record says that the namespace is there.
func (m *Engine) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		err := error(engine.ErrClosed)
		p := m.at.Load()
		for more := p != nil; more; {
			if more, err = m.scan(ctx, p, &r, yield); more {
				p, err = m.look(ctx, p)
				more = err == nil
			}
		}
		if err != nil {
			yield(engine.Pair{}, err)
		}
	}
}

// scan yields the pairs of r, and makes r the range of those that are left. It reports true if the store record is
// another one now.
func (m *Engine) scan(ctx context.Context, p *place, r *engine.Range, yield func(engine.Pair, error) bool) (changed bool, err error) {
	of := *r
	of.If = &engine.Pair{Key: m.key, Value: p.record}
	for pair, err := range p.engine.Scan(ctx, of) {
		var c *engine.ConflictError
		if errors.As(err, &c) && bytes.Equal(c.Key, m.key) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if !yield(pair, nil) {
			return false, nil
		}
		r.Start = engine.Successor(pair.Key)
		if r.Limit > 0 {
			if r.Limit--; r.Limit == 0 {
				return false, nil
			}
		}
	}
	return false, nil
}
