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
	if e.state.Load() == nil {
		return engine.ErrClosed
	}
	if err := b.Check(e.Limits()); err != nil {
		return err
	}
	for i := range b.Guards {
		if err := e.check(b.Guards[i].Key); err != nil {
			return err
		}
	}
	for i := range b.Sets {
		if err := e.check(b.Sets[i].Key); err != nil {
			return err
		}
	}
	for _, k := range b.Deletes {
		if err := e.check(k); err != nil {
			return err
		}
	}
	stored := make([][]byte, len(b.Guards)) // what stands at their keys, where it is encrypted with an older key
	for {
		st := e.state.Load()
		if st.note == nil && b.Ops() > 0 { // The first batch chooses the key.
			var err error
			if st, err = e.look(ctx); err != nil {
				return err
			}
		}
		sealed, err := e.seal(st, b, stored)
		if err != nil {
			return err
		}
		err = e.base.Apply(ctx, sealed)
		var c *engine.ConflictError
		if !errors.As(err, &c) {
			return err
		}
		if bytes.Equal(c.Key, e.note) { // The key is another one now.
			if _, err := e.look(ctx); err != nil {
				return err
			}
			clear(stored)
			continue
		}
		i := slices.IndexFunc(sealed.Guards, func(g engine.Pair) bool { return bytes.Equal(g.Key, c.Key) }) - 1
		if i < 0 {
			return err
		}
		forged := func(g engine.Pair) bool { return bytes.Equal(g.Value, codec.Forged) } // what does not verify was read
		if b.Guards[i].Value == nil || !st.others && !slices.ContainsFunc(b.Guards, forged) {
			return &engine.ConflictError{Key: bytes.Clone(b.Guards[i].Key)}
		}
		if err := e.standing(ctx, b, stored); err != nil {
			return err
		}
	}
}

// seal returns what b is encrypted. stored has what a guard is to find, where that is known.
func (e *Engine) seal(st *state, b *engine.Batch, stored [][]byte) (*engine.Batch, error) {
	out := &engine.Batch{
		Reclaim: b.Reclaim, Guards: make([]engine.Pair, 0, len(b.Guards)+1), Sets: make([]engine.Pair, 0, len(b.Sets)+1), Deletes: make([][]byte, 0, len(b.Deletes)),
	}
	out.Guard(e.note, st.note) // The first one: with another key no other guard holds.
	if st.note == nil && b.Ops() > 0 {
		out.Set(e.note, st.set.encodeNote(e.note, st.writes))
	}
	for i, g := range b.Guards {
		p := engine.Pair{Key: st.set.hide(g.Key), Value: stored[i]}
		if g.Value != nil && p.Value == nil {
			var err error
			if p.Value, err = st.recent.encrypt(p.Key, g.Value, func() ([]byte, error) { return st.encrypt(g.Key, p.Key, g.Value) }); err != nil {
				return nil, err
			}
		}
		out.Guards = append(out.Guards, p)
	}
	for _, p := range b.Sets {
		k := st.set.hide(p.Key)
		v, err := st.encrypt(p.Key, k, p.Value)
		if err != nil {
			return nil, err
		}
		if out.Set(k, v); slices.ContainsFunc(b.Guards, func(g engine.Pair) bool { return bytes.Equal(g.Key, p.Key) }) {
			st.recent.keep(k, p.Value, v)
		}
	}
	for _, k := range b.Deletes {
		out.Delete(st.set.hide(k))
	}
	return out, nil
}

// encrypt encrypts the value of a key that is stored under hidden.
func (st *state) encrypt(key, hidden, value []byte) ([]byte, error) {
	return st.seal.EncryptDeterministically(plain(key, value), hidden)
}

// standing sets what is stored at the keys of b's guards. If one does not hold, the error is a ConflictError. It sets
// nothing if it can't tell.
func (e *Engine) standing(ctx context.Context, b *engine.Batch, stored [][]byte) error {
	st := e.state.Load()
	ks := make([][]byte, len(b.Guards))
	for i, g := range b.Guards {
		ks[i] = st.set.hide(g.Key)
	}
	vs, err := e.base.Get(ctx, ks...)
	if err != nil {
		return err
	}
	for _, v := range vs {
		if v == nil || st.set.knows(v) {
			continue
		}
		now, err := e.look(ctx)
		if err != nil {
			return err
		}
		if !bytes.Equal(now.note, st.note) { // The key is another one now: the caller encrypts the batch with that.
			clear(stored)
			return nil
		}
	}
	for i, g := range b.Guards {
		holds := vs[i] == nil && g.Value == nil
		if vs[i] != nil && g.Value != nil {
			holds = bytes.Equal(st.set.open(ks[i], vs[i]).Value, g.Value)
		}
		if !holds {
			return &engine.ConflictError{Key: bytes.Clone(g.Key)}
		}
	}
	copy(stored, vs)
	return nil
}

// recent has values that were encrypted, because a batch often guards what the one before has set: the head of a
// session. Encryption is a function, so it does not matter whether the value is the one that is stored.
type recent [1024]atomic.Pointer[encrypted]

type encrypted struct{ hidden, value, sealed []byte }

var recentSeed = maphash.MakeSeed()

func (r *recent) place(hidden []byte) *atomic.Pointer[encrypted] {
	return &r[maphash.Bytes(recentSeed, hidden)%uint64(len(r))]
}

// keep remembers a value, if it is small.
func (r *recent) keep(hidden, value, sealed []byte) {
	const most = 1 << 10
	if len(value) <= most {
		r.place(hidden).Store(&encrypted{bytes.Clone(hidden), bytes.Clone(value), sealed})
	}
}

// encrypt returns what stands for a value, and calls f if that is not remembered.
func (r *recent) encrypt(hidden, value []byte, f func() ([]byte, error)) ([]byte, error) {
	if p := r.place(hidden).Load(); p != nil && bytes.Equal(p.hidden, hidden) && bytes.Equal(p.value, value) {
		return p.sealed, nil
	}
	return f()
}
