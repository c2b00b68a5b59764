package turnstone

import (
	"context"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/change"
)

// Rename gives the session called from the id to, atomically: lists, reads and
// commits see one or the other, and its children have it as their parent under the new
// id. Handles opened before get ErrSessionDeleted. A session that exists under to is
// ErrExists.
func (s *Store) Rename(ctx context.Context, from, to string) error {
	if _, err := s.usable(ctx); err != nil {
		return err
	}
	if err := checkSessionID(to); err != nil {
		return err
	}
	ses, err := s.Session(ctx, from)
	if err != nil {
		return err
	}
	return change.Settle(ctx, s.engine, func(c *change.Change) error {
		if c.Unknown { // the conflict may be with our own first attempt
			life, err := s.histories.Life(ctx, ses.session.Inc)
			if err != nil || life != nil && life.Session == s.space.Session(to) {
				return err
			}
		}
		return ses.rename(ctx, c, to)
	})
}

func (s *Session) rename(ctx context.Context, c *change.Change, to string) error {
	return c.Alter(ctx, s.session.Session, func(next *head.Life, b *engine.Batch) (needed bool, err error) {
		space := s.store.space
		hash := space.Session(to)
		headKey, aboutKey, timeKey := space.Head(hash), space.About(hash), space.OrderTime(s.session.Inc)
		h, vs, err := s.session.Head(ctx, s.session.HeadKey, s.session.AboutKey, timeKey, headKey, space.Predecessor(hash))
		if err != nil {
			return false, err
		}
		if vs[3] != nil {
			return false, fmt.Errorf("%w: %q", ErrExists, to)
		}
		about, err := s.session.OpenAbout(vs[1])
		if err != nil {
			return false, err
		}
		about.ID = to
		next.Session = hash
		b.Guard(s.session.HeadKey, vs[0])
		b.Guard(s.session.AboutKey, vs[1])
		b.Guard(headKey, nil)
		b.Guard(space.Predecessor(hash), vs[4])
		b.Guard(timeKey, vs[2])
		b.Delete(s.session.HeadKey)
		b.Delete(s.session.AboutKey)
		b.Set(headKey, h.Seal(headKey))
		b.Set(aboutKey, about.Seal(aboutKey))
		if at, ok := head.OpenOrderTime(timeKey, vs[2]); ok {
			entry := head.OrderEntry{Time: at, Incarnation: s.session.Inc, Session: hash}
			b.Set(entry.Seal(space))
		}
		key := space.Predecessor(s.session.Hash)
		b.Set(key, head.SealPredecessor(key, s.session.Inc))
		return true, nil
	})
}
