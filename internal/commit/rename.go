package commit

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/feed"
	"github.com/turnstonedb/turnstone/internal/history"
)

// ErrExists says that the name or the id is taken.
var ErrExists = errors.New("turnstone: exists already")

// Rename gives a session another id. The error is ErrExists if a session has that id.
func (st *Lifecycle) Rename(ctx context.Context, s *history.Session, to string) error {
	return history.Settle(ctx, st.Engine, func(c *history.Change) error {
		if c.Unknown { // An earlier attempt may have renamed the session.
			life, err := st.Life(ctx, s.Inc)
			if err != nil || life != nil && life.Session == st.Space.Session(to) {
				return err
			}
		}
		return st.rename(ctx, c, s, to)
	})
}

// rename is one attempt of Rename.
func (st *Lifecycle) rename(ctx context.Context, c *history.Change, s *history.Session, to string) error {
	return c.Alter(ctx, s, func(_ *history.Lifecycles, next *head.Life, b *engine.Batch) (needed bool, err error) {
		space := st.Space
		hash := space.Session(to)
		headKey, aboutKey := space.Head(hash), space.About(hash)
		h, vs, err := s.Head(ctx, s.HeadKey, s.AboutKey, space.Place(s.Inc), headKey, space.Predecessor(hash), space.Feed())
		if err != nil {
			return false, err
		}
		if vs[3] != nil {
			return false, fmt.Errorf("%w: %q", ErrExists, to)
		}
		about, err := s.DecodeAbout(vs[1])
		if err != nil {
			return false, err
		}
		about.ID = to
		next.Session = hash
		b.Guard(s.HeadKey, vs[0])
		b.Guard(s.AboutKey, vs[1])
		b.Guard(headKey, nil)
		b.Guard(space.Predecessor(hash), vs[4])
		b.Delete(s.HeadKey)
		b.Delete(s.AboutKey)
		moved, now := *h, st.Now()
		tells, err := st.tell(b, vs[5], h, feed.Change{Kind: feed.Renamed, Session: s.ID, To: to}, next.Epoch, now)
		if err != nil {
			return false, err
		}
		if tells || h.Tells() { // What is told next comes after. If the feed is begun or ended, that may not come to the new id.
			moved.SetFed(tells, now)
		}
		b.Set(headKey, moved.Encode(headKey))
		b.Set(aboutKey, about.Encode(aboutKey))
		head.RenameInLists(b, space, s.Inc, hash, vs[2])
		key := space.Predecessor(s.Hash)
		b.Set(key, head.EncodePredecessor(key, s.Inc, now))
		return true, nil
	})
}
