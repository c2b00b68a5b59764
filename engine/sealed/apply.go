package sealed

import (
	"bytes"
	"context"
	"errors"
	"hash/maphash"
	"slices"
	"sync/atomic"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// Apply implements engine.Engine.
func (e *Engine) Apply(ctx context.Context, b *engine.Batch) error {
	st := e.state.Load()
	if st == nil {
		return engine.ErrClosed
	}
	if err := b.Check(e.Limits()); err != nil {
		return err
	}
	standing := make([][]byte, len(b.Guards)) // the stored values that the guards compare with, where they were read
	for {
		sealed, err := e.seal(st, b, standing)
		if err != nil {
			return err
		}
		err = e.base.Apply(ctx, sealed)
		var c *engine.ConflictError
		if !errors.As(err, &c) {
			return err
		}
		switch failed := slices.IndexFunc(sealed.Guards, func(g engine.Pair) bool { return bytes.Equal(g.Key, c.Key) }); {
		case failed < 0:
			return err
		case failed == 0: // The note: another key is used now.
			if st, err = e.look(ctx); err != nil {
				return err
			}
			clear(standing)
		case !mayHold(st, b, failed-1):
			return &engine.ConflictError{Key: bytes.Clone(b.Guards[failed-1].Key)}
		default:
			if st, err = e.readGuards(ctx, st, b.Guards, standing); err != nil {
				return err
			}
		}
	}
}

// mayHold reports whether a guard that has failed may hold all the same: because values may be encrypted with an older
// key, or because the caller has read a damaged value and guards that.
func mayHold(st *state, b *engine.Batch, failed int) bool {
	damaged := func(g engine.Pair) bool { return bytes.Equal(g.Value, codec.Forged) }
	return b.Guards[failed].Value != nil && (len(st.ids) > 1 || slices.ContainsFunc(b.Guards, damaged))
}

// seal returns the batch that is applied for b. Its first guard is the note, because with another key no other guard
// would hold. standing has the stored values for some guards; the others get what their values are encrypted to.
func (e *Engine) seal(st *state, b *engine.Batch, standing [][]byte) (*engine.Batch, error) {
	out := &engine.Batch{
		Reclaim: b.Reclaim, Guards: make([]engine.Pair, 0, len(b.Guards)+1), Sets: make([]engine.Pair, 0, len(b.Sets)+1), Deletes: make([][]byte, 0, len(b.Deletes)),
	}
	out.Guard(e.note, st.note)
	if st.note == nil && b.Ops() > 0 {
		out.Set(e.note, st.set.encodeNote(e.note, st.ids))
	}
	var err error
	if out.Guards, err = e.sealGuards(st, out.Guards, b.Guards, standing); err != nil {
		return nil, err
	}
	for _, p := range b.Sets {
		k, err := e.storedKey(st.set, p.Key)
		if err != nil {
			return nil, err
		}
		v, err := st.encrypt(k, p)
		if err != nil {
			return nil, err
		}
		out.Set(k, v)
		if slices.ContainsFunc(b.Guards, func(g engine.Pair) bool { return bytes.Equal(g.Key, p.Key) }) {
			st.recent.keep(k, p.Value, v)
		}
	}
	for _, key := range b.Deletes {
		k, err := e.storedKey(st.set, key)
		if err != nil {
			return nil, err
		}
		out.Delete(k)
	}
	return out, nil
}

// sealGuards adds to out the guards of stored values that stand for some guards. standing has the stored values for some
// of them; the others get what their values are encrypted to.
func (e *Engine) sealGuards(st *state, out, guards []engine.Pair, standing [][]byte) ([]engine.Pair, error) {
	for i, g := range guards {
		k, err := e.storedKey(st.set, g.Key)
		if err != nil {
			return nil, err
		}
		v := standing[i]
		if v == nil && g.Value != nil {
			if v = st.recent.find(k, g.Value); v == nil {
				if v, err = st.encrypt(k, g); err != nil {
					return nil, err
				}
				st.recent.keep(k, g.Value, v)
			}
		}
		out = append(out, engine.Pair{Key: k, Value: v})
	}
	return out, nil
}

// encrypt returns the value that is stored under storedKey for a pair.
func (st *state) encrypt(storedKey []byte, p engine.Pair) ([]byte, error) {
	return st.seal.EncryptDeterministically(plainValue(p), storedKey)
}

// readGuards reads the stored values at the keys of guards into standing. If a guard does not hold, the error is a
// ConflictError. If another key is used now, it leaves standing empty, and the caller seals the guards anew. It returns
// the state to go on with.
func (e *Engine) readGuards(ctx context.Context, st *state, guards []engine.Pair, standing [][]byte) (*state, error) {
	ks := make([][]byte, len(guards))
	for i, g := range guards {
		ks[i] = st.set.storedKey(g.Key)
	}
	vs, err := e.base.Get(ctx, ks...)
	if err != nil {
		return nil, err
	}
	for _, v := range vs {
		if v == nil || st.set.knows(v) {
			continue
		}
		now, err := e.look(ctx)
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(now.note, st.note) {
			clear(standing)
			return now, nil
		}
	}
	for i, g := range guards {
		plain := vs[i]
		if plain != nil {
			plain = st.set.open(ks[i], plain).Value
		}
		if !g.Holds(plain) {
			return nil, &engine.ConflictError{Key: bytes.Clone(g.Key)}
		}
	}
	copy(standing, vs)
	return st, nil
}

// recent remembers what values were encrypted to, because a batch often guards what the one before has set, such as the
// head of a session. The same value is always encrypted to the same bytes, so what is found is right even if the
// database has another value by now.
type recent [1024]atomic.Pointer[encrypted]

type encrypted struct{ storedKey, value, sealed []byte }

var recentSeed = maphash.MakeSeed()

func (r *recent) place(storedKey []byte) *atomic.Pointer[encrypted] {
	return &r[maphash.Bytes(recentSeed, storedKey)%uint64(len(r))]
}

// keep remembers a value, if it is small.
func (r *recent) keep(storedKey, value, sealed []byte) {
	const most = 1 << 10
	if len(value) <= most {
		r.place(storedKey).Store(&encrypted{bytes.Clone(storedKey), bytes.Clone(value), sealed})
	}
}

// find returns what a value was encrypted to, or nil if that is not remembered.
func (r *recent) find(storedKey, value []byte) []byte {
	if p := r.place(storedKey).Load(); p != nil && bytes.Equal(p.storedKey, storedKey) && bytes.Equal(p.value, value) {
		return p.sealed
	}
	return nil
}
