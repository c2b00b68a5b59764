package commit

import (
	"context"
	"errors"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Forget removes the predecessor records of session ids that are older than head.Remembered, but for those of deleted
// sessions that vacuum has not removed yet: an erasure that goes on finds the session by them. A creation that was
// sent before is stopped by the record of forgotten ones then.
func (st *Lifecycle) Forget(ctx context.Context) error {
	var found []engine.Pair
	var lives [][]byte // the keys of the lifecycle records that they name
	before := st.Now().Add(-head.Remembered)
	for p, err := range st.Engine.Scan(ctx, st.Space.All(keys.Predecessor)) {
		var inc head.Incarnation
		var at time.Time
		if err == nil {
			if inc, at, err = head.DecodePredecessor(p.Key, p.Value); err != nil {
				err = codec.Corrupt(err, "predecessor at key %x", p.Key)
			}
		}
		if err != nil {
			return err
		}
		if at.Before(before) {
			found, lives = append(found, p), append(lives, st.Space.Life(inc))
		}
		if len(found) == forgetAtOnce {
			if err := st.forget(ctx, found, lives); err != nil {
				return err
			}
			found, lives = nil, nil
		}
	}
	return st.forget(ctx, found, lives)
}

const forgetAtOnce = 500 // records

// forget removes the predecessor records of which no deleted session is left. The next call removes what
// others change meanwhile.
func (st *Lifecycle) forget(ctx context.Context, found []engine.Pair, lives [][]byte) error {
	if len(found) == 0 {
		return nil
	}
	vs, err := st.Engine.Get(ctx, lives...)
	if err != nil {
		return err
	}
	b := engine.Batch{Reclaim: true}
	for i, p := range found {
		if vs[i] != nil {
			life, err := head.DecodeLife(lives[i], vs[i])
			if err != nil {
				return codec.Corrupt(err, "lifecycle at key %x", lives[i])
			}
			if life.State == head.Deleted {
				continue
			}
		}
		b.Guard(p.Key, p.Value)
		b.Delete(p.Key)
	}
	if b.Ops() == 0 {
		return nil
	}
	key := st.Space.Forgotten()
	b.Set(key, head.EncodeForgotten(key))
	c := history.Change{Engine: st.Engine}
	if err = c.Apply(ctx, &b); errors.Is(err, engine.ErrConflict) {
		err = nil
	}
	return c.Result(err)
}
