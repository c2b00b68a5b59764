package turnstone

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	mathrand "math/rand/v2"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A child is a session that names another one as its parent.
type child struct {
	inc    head.Incarnation
	hash   keys.Hash
	parent head.Incarnation
}

func (s *Store) children(ctx context.Context, parent keys.Hash) ([]child, error) {
	var out []child
	for p, err := range s.engine.Scan(ctx, s.space.Of(keys.Child, parent)) {
		if err != nil {
			return nil, err
		}
		_, fields, ok := s.space.Fields(p.Key)
		body, err := codec.Open(p.Key, p.Value, keys.Child)
		if err == nil && (!ok || len(body) != 32) {
			err = fmt.Errorf("%w: child", codec.ErrMalformed)
		}
		if err != nil {
			return nil, codec.Corrupt(err, "child at key %x", p.Key)
		}
		out = append(out, child{
			inc: head.Incarnation(fields[16:]), hash: keys.Hash(body[:16]), parent: head.Incarnation(body[16:]),
		})
	}
	return out, nil
}

// A ChildPolicy says what Delete does with sessions that name the deleted one
// as their parent.
type ChildPolicy int

// Delete removes a session from all reads and lists at once. Deleting one that
// does not exist is no error. Its data is garbage as far as no fork holds it. An
// error that matches ErrOutcomeUnknown leaves open whether the session is deleted,
// and one of CascadeChildren that matches ErrIncomplete leaves some deleted.
func (s *Store) Delete(ctx context.Context, id string, policy ChildPolicy) error {
	_, err := observed(ctx, s, OpDelete, id, func(ctx context.Context) (struct{}, error) {
		if err := policy.check(); err != nil {
			return struct{}{}, err
		}
		ses, err := s.Session(ctx, id)
		if errors.Is(err, ErrSessionNotFound) {
			return struct{}{}, nil
		}
		if err != nil {
			return struct{}{}, err
		}
		return struct{}{}, s.deleteIncarnation(ctx, ses.inc, ses.hash, policy)
	}, nil)
	return err
}

// deleteIncarnation deletes one session and no other that may have its id by
// then; a rename meanwhile does not save it.
func (s *Store) deleteIncarnation(ctx context.Context, inc head.Incarnation, hash keys.Hash, policy ChildPolicy) error {
	return s.settle(ctx, func(c *change) error {
		key := s.space.About(hash)
		vs, err := s.engine.Get(ctx, key)
		if err != nil {
			return err
		}
		var about *head.About
		if vs[0] != nil {
			if about, err = head.OpenAbout(key, vs[0]); err != nil {
				return codec.Corrupt(err, "metadata of incarnation %x", inc)
			}
		}
		if about == nil || about.Incarnation != inc { // gone, or renamed
			e, err := s.moved(ctx, entry{inc: inc, hash: hash})
			if err != nil || e.at == 0 {
				return err
			}
			hash = e.hash
			return engine.ErrConflict
		}
		ses, err := s.Session(ctx, about.ID)
		if err == nil && ses.inc == inc {
			err = ses.delete(ctx, c, policy)
		} else if err == nil {
			err = engine.ErrConflict
		}
		if errors.Is(err, ErrSessionNotFound) || errors.Is(err, ErrSessionDeleted) {
			err = engine.ErrConflict // look again where it is
		}
		return err
	})
}

func (s *Session) delete(ctx context.Context, c *change, policy ChildPolicy) error {
	life, lifeRaw, err := s.life(ctx) // before the children: a fork in between conflicts
	if err != nil {
		return err
	}
	if policy != KeepChildren {
		all, err := s.store.children(ctx, s.hash)
		if err != nil {
			return err
		}
		for _, kid := range all {
			if kid.parent != s.inc {
				continue // of an earlier session of this id
			}
			if policy == RefuseChildren {
				return fmt.Errorf("%w: %q", ErrHasChildren, s.id)
			}
			if err := s.store.deleteIncarnation(ctx, kid.inc, kid.hash, policy); err != nil {
				return err
			}
			c.partly = true
		}
	}
	bucketKey := s.store.space.Bucket(s.inc)
	h, vs, err := s.readHead(ctx, s.headKey, s.aboutKey, bucketKey)
	if err != nil {
		return err
	}
	about, err := s.openAbout(vs[1])
	if err != nil {
		return err
	}
	next := life.Next()
	next.State, next.Floor = head.Deleted, h.Revision+1
	b := engine.Batch{Reclaim: true}
	b.Guard(s.headKey, vs[0])
	b.Guard(s.lifeKey, lifeRaw)
	b.Guard(bucketKey, vs[2])
	b.Delete(s.headKey)
	b.Delete(s.aboutKey)
	b.Set(s.lifeKey, next.Seal(s.lifeKey))
	s.store.removeOrder(&b, s.inc, vs[2])
	s.store.setDirty(&b, s.dirtyKey)
	s.store.setGrave(&b, s.hash)
	if about.Parent != "" {
		b.Delete(s.store.space.Child(s.store.space.Session(about.Parent), s.inc))
	}
	return c.apply(ctx, &b)
}

// setGrave says that a session of this id is gone. Creating one guards what
// stands there: a delayed attempt from before can't bring the old one back.
func (s *Store) setGrave(b *engine.Batch, id keys.Hash) {
	key := s.space.Grave(id)
	b.Set(key, codec.Seal(key, keys.Grave, binary.LittleEndian.AppendUint64(nil, mathrand.Uint64())))
}
