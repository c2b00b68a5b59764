package sealed

import (
	"bytes"
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
		r, st := r, e.state.Load()
		guards, err := e.seals(st, r.Guards)
		for err == nil {
			var c *engine.ConflictError
			for p, failed := range e.scan(ctx, st, r, guards) {
				if failed != nil && errors.As(failed, &c) {
					break
				}
				if !yield(p, failed) || failed != nil {
					return
				}
				if r.Start = engine.Successor(p.Key); r.Limit > 0 {
					if r.Limit--; r.Limit == 0 {
						return
					}
				}
			}
			if c == nil {
				return
			}
			if guards, err = e.standing(ctx, r.Guards); err == nil {
				st = e.state.Load()
			}
		}
		yield(engine.Pair{}, err)
	}
}

// seals returns the guards of stored values that stand for guards of what is encrypted.
func (e *Engine) seals(st *state, guards []engine.Pair) ([]engine.Pair, error) {
	out := make([]engine.Pair, len(guards))
	for i, g := range guards {
		k, err := e.storedKey(st.set, g.Key)
		if err != nil {
			return nil, err
		}
		out[i].Key = k
		if g.Value == nil {
			continue
		}
		if out[i].Value = st.recent.find(k, g.Value); out[i].Value == nil {
			if out[i].Value, err = st.encrypt(k, g); err != nil {
				return nil, err
			}
			st.recent.keep(k, g.Value, out[i].Value)
		}
	}
	return out, nil
}

// standing returns guards of the stored values that stand at the keys of some guards, if those hold.
func (e *Engine) standing(ctx context.Context, guards []engine.Pair) ([]engine.Pair, error) {
	st := e.state.Load()
	ks := make([][]byte, len(guards))
	for i, g := range guards {
		ks[i] = st.set.storedKey(g.Key)
	}
	vs, err := e.base.Get(ctx, ks...)
	if err != nil {
		return nil, err
	}
	out := make([]engine.Pair, len(guards))
	for i, g := range guards {
		out[i] = engine.Pair{Key: ks[i], Value: vs[i]}
		plain := vs[i]
		if plain != nil {
			set, err := e.knowing(ctx, st.set, plain)
			if err != nil {
				return nil, err
			}
			plain = set.open(ks[i], plain).Value
		}
		if !g.Holds(plain) {
			return nil, &engine.ConflictError{Key: bytes.Clone(g.Key)}
		}
	}
	return out, nil
}
