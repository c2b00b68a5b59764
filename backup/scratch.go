package backup

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/zeebo/blake3"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/spill"
)

// batchBytes is how many bytes of bundles, before compression, are read into a scratch, unless they are of one family.
const batchBytes = 32 << 20

// A scratch is a temporary store that bundles are read into. The id of a session in it is made of the incarnation that
// the session has in the store of the backup.
type scratch struct {
	*turnstone.Store
	prefix string // of the ids
	n      int    // how many sessions had to make room
}

// id returns the id that a session has in the store.
func (st *scratch) id(session string) string { return st.prefix + session }

// scratch makes an empty store.
func (r *restoring) scratch(ctx context.Context) (_ *scratch, done func() error, err error) {
	e := spill.New(r.o.Dir)
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		return nil, nil, errors.Join(err, e.Close())
	}
	return &scratch{Store: st, prefix: rand.Text() + "/"}, func() error { return errors.Join(st.Close(), e.Close()) }, nil
}

// read reads a bundle into a store.
func (r *restoring) read(ctx context.Context, st *scratch, s *step) error {
	err := r.unbundle(ctx, st, s)
	if s.whole && (errors.Is(err, turnstone.ErrDiverged) || errors.Is(err, turnstone.ErrConflict)) {
		// The store that it comes from was put back to what it had been. What went on from the session as it was holds what
		// it needs.
		for _, session := range s.sessions {
			st.n++
			if err := st.rename(ctx, st.id(session), fmt.Sprint(st.prefix, st.n)); err != nil && !errors.Is(err, turnstone.ErrSessionNotFound) {
				return err
			}
		}
		err = r.unbundle(ctx, st, s)
	}
	if err != nil {
		return fmt.Errorf("%s, %d bytes at %d: %w", packPath(r.at.generation, s.at.Pack), s.at.Size, s.at.Offset, err)
	}
	return nil
}

func (st *scratch) rename(ctx context.Context, from, to string) error {
	s, err := st.Session(ctx, from)
	if err != nil {
		return err
	}
	return s.Rename(ctx, to)
}

func (r *restoring) unbundle(ctx context.Context, st *scratch, s *step) error {
	o, err := r.from.Get(ctx, packPath(r.at.generation, s.at.Pack), s.at.Offset, s.at.Size)
	if err != nil {
		return lacking(err)
	}
	defer o.Close()
	ids := map[string]string{}
	for id, session := range s.sessions {
		ids[id] = st.id(session)
	}
	hash := blake3.New()
	kept := &failing{r: o}
	_, err = st.Unbundle(ctx, io.TeeReader(kept, hash), turnstone.UnbundleOptions{IDs: ids, Exact: true, MaxBytes: s.expanded})
	if kept.err != nil {
		return kept.err
	}
	r.out.Bytes += s.at.Size
	switch {
	case err == nil && sum(hash.Sum(nil)) != s.at.Sum:
		return fmt.Errorf("%w: its hash is another one", ErrTarget)
	case err == nil, ofTheStore(ctx, err):
		return err
	}
	return fmt.Errorf("%w: %w", ErrTarget, err)
}

// ofTheStore reports whether an error is about the store, or the caller, and not about the session that is restored.
func ofTheStore(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, engine.ErrNoSpace) || errors.Is(err, engine.ErrUnavailable) || errors.Is(err, engine.ErrClosed) ||
		errors.Is(err, engine.ErrReadOnly) || errors.Is(err, turnstone.ErrOutcomeUnknown)
}

// finish compares a session that bundles have made with its entry, tombstones those of its nodes that were erased
// since, and gives it its id.
func (r *restoring) finish(ctx context.Context, st *scratch, session string) error {
	e := r.at.sessions[session]
	found, err := st.Standings(ctx, turnstone.StandingQuery{ID: st.id(session), At: []head.Revision{e.Revision}})
	if err != nil {
		return err
	}
	if len(found) != 1 || !e.standsFor(&found[0]) || r.check && e.Exact && (found[0].Revision != e.Revision || found[0].Rest != e.Rest) {
		return fmt.Errorf("%w: it is not what the run says", ErrTarget)
	}
	if nodes := r.erased.nodes[session]; len(nodes) > 0 {
		if err := hide(ctx, st, st.id(session), nodes); err != nil {
			return err
		}
	}
	return st.rename(ctx, st.id(session), r.names[session])
}

// lacking says of an object that is not there that the target is damaged.
func lacking(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrTarget, err)
	}
	return err
}
