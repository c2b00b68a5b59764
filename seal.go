package turnstone

import (
	"context"
	"errors"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/seal"
)

// Seal seals what the session has gathered, also when it is little, and compresses
// again what was sealed in the background.
func (s *Session) Seal(ctx context.Context) error { return s.seal(ctx, true) }

// Seal seals what all sessions have gathered.
func (s *Store) Seal(ctx context.Context) error {
	if _, err := s.usable(ctx); err != nil {
		return err
	}
	var failed []error
	for o := (ListOptions{Limit: 1000}); ; {
		page, err := s.List(ctx, o)
		if err != nil {
			return err
		}
		for _, i := range page.Sessions {
			ses, err := s.Session(ctx, i.ID)
			if err == nil {
				err = ses.Seal(ctx)
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil && !errors.Is(err, ErrSessionNotFound) && !errors.Is(err, ErrSessionDeleted) {
				if len(failed) < 10 { // the others can be sealed all the same
					failed = append(failed, err)
				}
			}
		}
		if o.After = page.Next; o.After == "" {
			return errors.Join(failed...)
		}
	}
}

// sealNext is one attempt to seal the next segment of an incarnation, if it lives. It
// reports whether there may be another one. engine.ErrConflict: the session changed
// meanwhile.
func (s *Store) sealNext(ctx context.Context, inc head.Incarnation) (more bool, err error) {
	ses, err := s.byIncarnation(ctx, inc)
	if err != nil || ses == nil {
		return false, err
	}
	more, err = ses.sealOne(ctx, &change.Change{Engine: s.engine}, true)
	if errors.Is(err, ErrSessionNotFound) || errors.Is(err, ErrSessionDeleted) { // or renamed
		err = engine.ErrConflict
	}
	return more, err
}

// seal makes segments of the packs after the last full one. The rest is sealed
// too if all is set; the next run then takes that up again.
func (s *Session) seal(ctx context.Context, all bool) error {
	_, err := observed(ctx, s, OpSeal, s.ID(), func(ctx context.Context) (struct{}, error) {
		for more := true; more; {
			// After a conflict somebody else has changed the session's lifecycle.
			err := change.Settle(ctx, s.store.engine, func(c *change.Change) (err error) {
				more, err = s.sealOne(ctx, c, all)
				return err
			})
			if err != nil {
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	}, nil)
	return err
}

// sealOne seals at most one segment and reports whether there may be another.
func (s *Session) sealOne(ctx context.Context, c *change.Change, all bool) (more bool, err error) {
	sizes := seal.Sizes{Full: s.store.opts.SealBytes, Most: MaxSeal}
	sealed, more, err := sizes.Next(ctx, c, s.session.Session, s.session.Revision(), all)
	if err == nil {
		s.sealedRaw.Store(sealed)
	}
	return more, err
}

// sealLater makes the background seal the session.
func (s *Session) sealLater() {
	if s.store.opts.NoAutoSeal {
		return
	}
	s.store.sealing.Add(s.session.Inc, func(ctx context.Context) {
		err := s.seal(ctx, false)
		if l := s.store.opts.Logger; l != nil && err != nil && ctx.Err() == nil && !errors.Is(err, ErrSessionDeleted) {
			l.Error("turnstone: seal", "error", err)
		}
	})
}
