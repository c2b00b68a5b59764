package verify

import (
	"context"
	"fmt"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
)

// deleted checks what is left of a deleted session: the commits below the floor of its lifecycle
// record, which are left for forks. Vacuum lowers the floor before it removes anything.
func (v *verifier) deleted(ctx context.Context, inc head.Incarnation, life *head.Life) error {
	space := v.store.Space
	originKey := space.Origin(inc)
	vs, err := v.store.Engine.Get(ctx, space.Life(inc), originKey)
	if err != nil || vs[0] == nil {
		return err
	}
	var origin *head.Origin
	if vs[1] != nil {
		if origin, err = head.DecodeOrigin(originKey, vs[1]); err != nil {
			err = codec.Corrupt(err, "origin of %s", v.name(inc))
			if endsCheck(err) {
				return err
			}
			return nil // The scan has reported it.
		}
	}
	if life.Floor <= 1 {
		return nil
	}
	if origin == nil {
		if err := v.isNoFork(ctx, inc); err != nil {
			return err
		}
	}
	// The ancestors may be gone. A fork that shares nodes of them names them itself.
	h := &history.History{Store: v.store, Inc: inc, Origin: origin, Name: v.name(inc)}
	shared := v.shared[inc]
	return v.deletedNodes(ctx, h, life.Floor-1, func(n *history.Node) bool { return shared.Has(n.Position()) })
}

// isNoFork checks that the first commit of an incarnation that has no origin is not one of
// a fork.
func (v *verifier) isNoFork(ctx context.Context, inc head.Incarnation) error {
	t, err := v.store.TurnAt(ctx, inc, 1)
	if err == nil && t.Previous != head.Genesis(inc, nil) {
		err = codec.Corrupt(fmt.Errorf("%w: its first commit is that of a fork", damage.ErrMissing), "origin of %s", v.name(inc))
	}
	return err
}
