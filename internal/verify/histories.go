package verify

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
)

// histories checks every incarnation that has a lifecycle record. It checks ancestors
// before their forks, so that the check of a fork can rely on what the fork shares.
func (v *verifier) histories(ctx context.Context) error {
	depths := v.depths()
	order := slices.SortedFunc(maps.Keys(v.lives), func(a, b head.Incarnation) int {
		return cmp.Or(cmp.Compare(depths[a], depths[b]), slices.Compare(a[:], b[:]))
	})
	for _, inc := range order {
		err := v.incarnation(ctx, inc)
		if endsCheck(err) {
			return err
		}
		if !isGone(err) {
			v.problemOf(v.name(inc), err)
		}
		v.step()
	}
	return nil
}

// depths returns the depth of each fork: 1 for a fork of a session that is no fork, 2 for a fork of such a fork, and
// so on. A flattened fork has few ancestors, but is deeper than all ancestors of its parent. Origins that are damaged
// may name each other in a circle, which counts as one step.
func (v *verifier) depths() map[head.Incarnation]int {
	out := make(map[head.Incarnation]int, len(v.parents))
	var depth func(head.Incarnation) int
	depth = func(inc head.Incarnation) int {
		parent, fork := v.parents[inc]
		if !fork {
			return 0
		}
		if _, known := out[inc]; !known {
			out[inc] = 1 // while its parent is looked at
			out[inc] = 1 + depth(parent)
		}
		return out[inc]
	}
	for inc := range v.parents {
		depth(inc)
	}
	return out
}

// incarnation checks one incarnation. If it finds damage and the lifecycle record has
// changed meanwhile, it starts over.
func (v *verifier) incarnation(ctx context.Context, inc head.Incarnation) error {
	const attempts = 4
	key := v.store.Space.Life(inc)
	for attempt := 1; ; attempt++ {
		before, err := v.get(ctx, key)
		if err != nil {
			return err
		}
		report := v.Report
		err = v.liveOrDeleted(ctx, inc)
		var corrupt *damage.CorruptError
		moved := errors.Is(err, history.ErrSessionDeleted) || errors.Is(err, history.ErrSessionNotFound) // or renamed
		if attempt == attempts || !moved && !errors.As(err, &corrupt) {
			return err
		}
		after, gerr := v.get(ctx, key)
		if gerr != nil {
			return gerr
		}
		if bytes.Equal(after, before) {
			return err
		}
		v.Report = report // The next attempt counts and reports the same again.
	}
}

// liveOrDeleted checks an incarnation as a session that lives, or as a deleted one. It
// checks nothing if vacuum has removed the incarnation.
func (v *verifier) liveOrDeleted(ctx context.Context, inc head.Incarnation) error {
	key := v.store.Space.Life(inc)
	for {
		value, err := v.get(ctx, key)
		if err != nil || value == nil {
			return err
		}
		life, err := head.DecodeLife(key, value)
		if err != nil {
			return codec.Corrupt(err, "lifecycle of %s", v.name(inc))
		}
		if life.State != head.Live {
			return v.deleted(ctx, inc, life)
		}
		ses, err := v.open(ctx, inc, life, value)
		if err == nil {
			v.Sessions++
			return v.session(ctx, ses)
		}
		now, gerr := v.get(ctx, key)
		if gerr != nil {
			return gerr
		}
		if bytes.Equal(now, value) {
			return err
		}
		// The session was renamed or deleted meanwhile, so start over.
	}
}

// open opens the live session of an incarnation, and checks that the records that
// lead to it agree. life is the incarnation's lifecycle record, and lifeValue the value
// that it was decoded from. If the record has changed, by a rename or a tombstone too, the error is
// history.ErrSessionDeleted: the caller reads the record again.
func (v *verifier) open(ctx context.Context, inc head.Incarnation, life *head.Life, lifeValue []byte) (*checkedSession, error) {
	space := v.store.Space
	headKey, aboutKey := space.Head(life.Session), space.About(life.Session)
	vs, err := v.store.Engine.Get(ctx, headKey, aboutKey, space.Life(inc))
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(vs[2], lifeValue) {
		return nil, fmt.Errorf("%w: %s", history.ErrSessionDeleted, v.name(inc))
	}
	about, err := head.DecodeAbout(aboutKey, vs[1])
	if err == nil && space.Session(about.ID) != life.Session {
		err = fmt.Errorf("%w: session %q is not found by its id", damage.ErrHash, about.ID)
	}
	if err != nil {
		return nil, codec.Corrupt(err, "metadata of %s", v.name(inc))
	}
	v.names[inc] = fmt.Sprintf("session %q", about.ID)
	if vs[0] == nil {
		return nil, codec.Corrupt(damage.ErrMissing, "head of %s", v.name(inc))
	}
	ses, state, err := v.store.OpenSession(ctx, about.ID)
	if errors.Is(err, history.ErrSessionNotFound) || err == nil && ses.Inc != inc {
		err = fmt.Errorf("%w: it is of another incarnation than %x", damage.ErrHash, inc)
		return nil, codec.Corrupt(err, "head of %s", v.name(inc))
	}
	if err != nil {
		return nil, err
	}
	return &checkedSession{ses, state.Head.Revision}, nil
}

// steady calls read by history.ReadBeside with the lifecycle records of h's incarnation and of the ancestors that read
// looks at: maintenance may move what read looks for. If the incarnation is removed, the error is
// history.ErrSessionDeleted.
func steady(ctx context.Context, h *history.History, read func() error, ancestors ...history.Layer) error {
	keys := [][]byte{h.Space.Life(h.Inc)}
	for _, l := range ancestors {
		keys = append(keys, h.Space.Life(l.Inc))
	}
	_, err := history.ReadBeside(ctx, h.Engine, keys, func(values [][]byte) (struct{}, error) {
		if values[0] == nil {
			return struct{}{}, fmt.Errorf("%w: %s", history.ErrSessionDeleted, h.Name)
		}
		return struct{}{}, read()
	})
	return err
}
