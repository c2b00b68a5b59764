package gc

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// receipt reports which sessions still show erased content, and how many of the erased
// blobs are gone, shared or kept by uploads. Only incs and their forks can show the content. holds reports whether a
// session does.
func (s Eraser) receipt(ctx context.Context, incs []head.Incarnation, ids []blob.ID, holds func(*history.Session) (bool, error)) (*Receipt, error) {
	c := counter{Eraser: s, sharedBy: map[string]bool{}}
	c.SharedBy = []string{}
	var err error
	if c.HeldBy, c.related, err = s.holders(ctx, incs, holds); err != nil {
		return &c.Receipt, err
	}
	if c.uploads, err = s.Blobs.Uploaded(ctx); err != nil {
		return &c.Receipt, err
	}
	slices.SortFunc(ids, func(a, b blob.ID) int { return slices.Compare(a[:], b[:]) })
	for _, id := range slices.Compact(ids) {
		if err := c.count(ctx, id); err != nil {
			return &c.Receipt, err
		}
	}
	c.SharedBy = append(c.SharedBy, slices.Sorted(maps.Keys(c.sharedBy))...)
	return &c.Receipt, nil
}

// A counter counts the erased blobs by the reason for which they are still stored.
type counter struct {
	Eraser
	Receipt
	related  []head.Incarnation // the erased incarnations and their forks
	uploads  map[keys.Hash]bool // the blobs that an upload keeps
	sharedBy map[string]bool
}

// count adds one blob to the receipt.
func (c *counter) count(ctx context.Context, id blob.ID) error {
	hash := c.Space.BlobHash(id)
	key := c.Space.Mark(hash)
	vs, err := c.Engine.Get(ctx, key)
	if err != nil {
		return err
	}
	if vs[0] == nil {
		c.Gone++
		return nil
	}
	mark, err := blob.DecodeMark(key, vs[0])
	if err != nil {
		return codec.Corrupt(err, "mark of blob %s", id)
	}
	if c.uploads[hash] {
		c.Uploads++
	}
	others, err := c.otherUsers(ctx, hash)
	if err != nil {
		return err
	}
	if len(others) > 0 {
		c.Shared++
		c.SharedBytes += mark.Bytes
	}
	for _, other := range others {
		c.sharedBy[other] = true
	}
	return nil
}

// otherUsers returns the ids of the sessions that refer to a blob. It leaves out the related
// ones: Receipt.HeldBy names them.
func (c *counter) otherUsers(ctx context.Context, blob keys.Hash) (ids []string, err error) {
	users, err := c.Collector.Users(ctx, blob)
	if err != nil {
		return nil, err
	}
	for _, inc := range users {
		about, err := c.About(ctx, inc)
		if err != nil {
			return nil, err
		}
		if about != nil && !slices.Contains(c.related, inc) {
			ids = append(ids, about.ID)
		}
	}
	return ids, nil
}

// holders returns the ids of the sessions among incs and their forks for which holds is
// true, and all these incarnations. Somebody may fork one of the forks meanwhile, so
// holders looks until it finds no new ones.
func (s Eraser) holders(ctx context.Context, incs []head.Incarnation, holds func(*history.Session) (bool, error)) (ids []string, related []head.Incarnation, err error) {
	ids = []string{}
	seen := map[head.Incarnation]bool{}
	for found := true; found; {
		found = false
		if related, err = s.withForks(ctx, incs); err != nil {
			return nil, nil, err
		}
		for _, inc := range related {
			if seen[inc] {
				continue
			}
			seen[inc], found = true, true
			id, held, err := s.holder(ctx, inc, holds)
			if err != nil {
				return nil, nil, err
			}
			if held {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	return ids, related, nil
}

// withForks returns incarnations and their forks. A flattened fork is listed as a fork of its parent
// only, so withForks looks for the forks of the forks as well.
func (s Eraser) withForks(ctx context.Context, incs []head.Incarnation) ([]head.Incarnation, error) {
	out, seen := slices.Clone(incs), map[head.Incarnation]bool{}
	for _, inc := range incs {
		seen[inc] = true
	}
	for i := 0; i < len(out); i++ {
		forks, err := s.Forks(ctx, out[i])
		if err != nil {
			return nil, err
		}
		for _, fork := range forks {
			if !seen[fork] {
				seen[fork] = true
				out = append(out, fork)
			}
		}
	}
	return out, nil
}

// holder returns the id of the live session of an incarnation, and whether holds is
// true for it. A session that does not live holds nothing.
func (s Eraser) holder(ctx context.Context, inc head.Incarnation, holds func(*history.Session) (bool, error)) (id string, held bool, err error) {
	session, _, err := s.ByIncarnation(ctx, inc)
	if err != nil || session == nil {
		return "", false, err
	}
	held, err = holds(session)
	if errors.Is(err, history.ErrSessionDeleted) {
		return "", false, nil
	}
	return session.ID, held, err
}
