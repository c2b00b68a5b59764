package turnstone

import (
	"context"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Rename gives the session called from the id to, atomically: lists, reads and
// commits see one or the other. Handles opened before get ErrSessionDeleted. A
// session that exists under to is ErrExists; children that name from as their
// parent make it ErrHasChildren.
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
	return s.settle(ctx, func(c *change) error {
		if c.unknown { // the conflict may be with our own first attempt
			at, err := s.moved(ctx, entry{inc: ses.inc, hash: ses.hash})
			if err != nil || at.hash == s.space.Session(to) {
				return err
			}
		}
		b, err := s.rename(ctx, ses, to)
		if err != nil {
			return err
		}
		return c.apply(ctx, b)
	})
}

func (s *Store) rename(ctx context.Context, ses *Session, to string) (*engine.Batch, error) {
	life, lifeRaw, err := ses.life(ctx)
	if err != nil {
		return nil, err
	}
	if kids, err := s.children(ctx, ses.hash); err != nil {
		return nil, err
	} else if slices.ContainsFunc(kids, func(c child) bool { return c.parent == ses.inc }) {
		return nil, fmt.Errorf("%w: %q", ErrHasChildren, ses.id)
	}
	hash := s.space.Session(to)
	headKey, aboutKey, bucketKey := s.space.Head(hash), s.space.About(hash), s.space.Bucket(ses.inc)
	h, vs, err := ses.readHead(ctx, ses.headKey, ses.aboutKey, bucketKey, headKey)
	if err != nil {
		return nil, err
	}
	if vs[3] != nil {
		return nil, fmt.Errorf("%w: %q", ErrExists, to)
	}
	about, err := ses.openAbout(vs[1])
	if err != nil {
		return nil, err
	}
	about.ID = to
	next := life.Next()
	next.Session = hash
	var b engine.Batch
	b.Guard(ses.headKey, vs[0])
	b.Guard(ses.aboutKey, vs[1])
	b.Guard(headKey, nil)
	b.Guard(ses.lifeKey, lifeRaw)
	b.Guard(bucketKey, vs[2])
	b.Delete(ses.headKey)
	b.Delete(ses.aboutKey)
	b.Set(headKey, h.Seal(headKey))
	b.Set(aboutKey, about.Seal(aboutKey))
	b.Set(ses.lifeKey, next.Seal(ses.lifeKey))
	if at, ok := s.bucketOf(ses.inc, vs[2]); ok {
		key := s.space.Order(at, ses.inc)
		b.Set(key, codec.Seal(key, keys.Order, hash[:]))
	}
	if about.Parent != "" {
		key := s.space.Child(s.space.Session(about.Parent), ses.inc)
		old, err := s.engine.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		body, err := codec.Open(key, old[0], keys.Child)
		if err != nil || len(body) != 32 {
			return nil, codec.Corrupt(err, "child entry of session %q", ses.id)
		}
		b.Set(key, codec.Seal(key, keys.Child, append(slices.Clone(hash[:]), body[16:]...)))
	}
	s.setGrave(&b, ses.hash)
	return &b, nil
}
