package sealed

import (
	"context"
	"errors"
	"iter"

	"github.com/turnstonedb/turnstone/engine"
)

// Scan implements engine.Engine. The package comment says of which moment a list of session records is.
func (e *Engine) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	st := e.state.Load()
	if st == nil {
		return func(yield func(engine.Pair, error) bool) { yield(engine.Pair{}, engine.ErrClosed) }
	}
	if len(r.Guards) > 0 {
		return e.scanIf(ctx, r)
	}
	return e.scan(ctx, st, r, nil)
}

// scan yields the pairs of a range. guards are those of stored values.
func (e *Engine) scan(ctx context.Context, st *state, r engine.Range, guards []engine.Pair) iter.Seq2[engine.Pair, error] {
	s := &scanning{from: e.base, set: st.set, note: e.note, guards: guards, knowing: func(v []byte) (*keyset, error) { return e.knowing(ctx, st.set, v) }}
	r.Guards = nil
	return s.scan(ctx, clip(r, e.prefix))
}

// scanIf yields the pairs of a range that has guards. If these do not hold as their values are encrypted now, the values
// may be encrypted with another key, so it reads them, and goes on with those.
func (e *Engine) scanIf(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		rest, st := r, e.state.Load()
		standing := make([][]byte, len(r.Guards))
		for {
			var c *engine.ConflictError
			guards, err := e.sealGuards(st, nil, r.Guards, standing)
			if err == nil {
				if err = e.scanSome(ctx, st, &rest, guards, yield); !errors.As(err, &c) {
					if err != nil {
						yield(engine.Pair{}, err)
					}
					return
				}
				st, err = e.readGuards(ctx, st, r.Guards, standing)
			}
			if err != nil {
				yield(engine.Pair{}, err)
				return
			}
		}
	}
}

// scanSome yields the pairs of rest, and makes rest the range of those that are left.
func (e *Engine) scanSome(ctx context.Context, st *state, rest *engine.Range, guards []engine.Pair, yield func(engine.Pair, error) bool) error {
	for p, err := range e.scan(ctx, st, *rest, guards) {
		if err != nil {
			return err
		}
		if !yield(p, nil) || rest.Past(p.Key) {
			return nil
		}
	}
	return nil
}
