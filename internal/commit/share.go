package commit

import (
	"context"
	"slices"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// mostSiblings bounds the forks of the parent that are looked at for a copy.
const mostSiblings = 64

// shareCopy looks for a copy that another fork of the parent holds, and makes the batch hold it as
// well. It returns nil if there is none. The other fork has to live and to have no tombstones: then the
// copy has all that the parent shows, and a collector has never seen it without a fork.
func (f *forker) shareCopy(ctx context.Context, of []head.Ancestor) (*head.Ancestor, error) {
	if !slices.Equal(of, f.parent.Origin.Ancestors) {
		return nil, nil
	}
	r := f.Space.Of(keys.Fork, f.parent.Inc)
	r.Limit = mostSiblings
	for p, err := range f.Engine.Scan(ctx, r) {
		if err != nil {
			return nil, err
		}
		_, fields, ok := f.Space.Fields(p.Key)
		if !ok {
			continue
		}
		if a, err := f.copyOf(ctx, head.Incarnation(fields[16:]), of); a != nil || err != nil {
			return a, err
		}
	}
	return nil, nil
}

// copyOf is shareCopy for one fork of the parent.
func (f *forker) copyOf(ctx context.Context, fork head.Incarnation, of []head.Ancestor) (*head.Ancestor, error) {
	lifeKey := f.Space.Life(fork)
	values, err := f.Engine.Get(ctx, lifeKey)
	if err != nil || values[0] == nil {
		return nil, err
	}
	life, err := head.DecodeLife(lifeKey, values[0])
	if err != nil || life.State != head.Live || life.Stones > 0 {
		return nil, codec.Corrupt(err, "lifecycle at key %x", lifeKey)
	}
	origin, err := f.Origin(ctx, fork)
	if err != nil || origin == nil || len(origin.Ancestors) != 2 || origin.Ancestors[1].Incarnation != f.parent.Inc {
		return nil, err
	}
	a, last := origin.Ancestors[0], of[len(of)-1]
	total := head.Revision(0)
	for i := range of {
		total += of[i].Revision
	}
	if a.Revision != total || a.Nodes != 0 || a.Node != last.Node {
		return nil, nil
	}
	key := f.Space.Life(a.Incarnation)
	held, err := f.Engine.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	now, err := head.DecodeLife(key, held[0])
	if err != nil {
		return nil, codec.Corrupt(err, "lifecycle at key %x", key)
	}
	next := now.Next()
	next.Forks++
	f.batch.Guard(lifeKey, values[0])
	f.batch.Guard(key, held[0])
	f.batch.Set(key, next.Encode(key))
	return &a, nil
}
