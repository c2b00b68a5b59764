package lifecycle

import (
	"context"
	"errors"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
)

// A Request asks for a new session. The root package has checked it.
type Request struct {
	// About has the metadata. Create sets the incarnation, the parent and the times.
	About    heads.About
	Parent   string   // the id of the parent, or ""
	ForkNode graph.ID // zero: the parent's leaf
}

// Create makes the session that r describes. If one of that id exists, Create returns it,
// and its state, with created = false. The state of a new session is nil.
func (st *Store) Create(ctx context.Context, r *Request) (session *commit.Session, state *history.State, created bool, err error) {
	g := st.NewStage(heads.Incarnation{})
	err = change.Settle(ctx, st.Engine, func(c *change.Change) error {
		// A conflict is with another creator, with a change of the parent, or after
		// an unknown outcome with the call's own first attempt, which is recognized
		// by its incarnation whatever has become of the session since.
		if c.Unknown {
			vs, err := st.Engine.Get(ctx, session.LifeKey)
			if err != nil {
				return err
			}
			if created = vs[0] != nil; created {
				return nil
			}
		}
		existing, found, err := st.OpenSession(ctx, r.About.ID)
		if err == nil {
			session, state = commit.NewSession(existing), found
		}
		if !errors.Is(err, history.ErrSessionNotFound) {
			return err
		}
		g.Abandon(ctx) // what an earlier attempt stored ahead
		g = st.NewStage(heads.Incarnation{})
		b, made, err := st.create(ctx, r, &g)
		if errors.Is(err, commit.ErrBlobGone) {
			err = engine.ErrConflict
		}
		if err != nil {
			return err
		}
		session, state = made, nil
		err = c.Apply(ctx, b)
		created = err == nil
		return err
	})
	if err != nil && !errors.Is(err, change.ErrOutcomeUnknown) || err == nil && !created {
		g.Abandon(ctx)
	}
	if err != nil {
		return nil, nil, false, err
	}
	return session, state, created, nil
}

// create returns the batch that creates the session, and the session as it is when the
// batch was applied.
func (st *Store) create(ctx context.Context, r *Request, g *commit.Stage) (*engine.Batch, *commit.Session, error) {
	about := r.About
	about.Labels = merged(nil, about.Labels)
	about.Created = st.Now()
	about.Updated = about.Created
	hash := st.Space.Session(about.ID)
	var b engine.Batch
	inc, err := st.incarnation(ctx, &b, st.Space.Predecessor(hash))
	if err != nil {
		return nil, nil, err
	}
	about.Incarnation = inc
	h := heads.Head{Incarnation: inc, Updated: about.Updated}
	s := commit.NewSession(st.Session(about.ID, inc))
	if r.Parent != "" {
		if s.Origin, err = st.fork(ctx, &b, r, &about, g); err != nil {
			return nil, nil, err
		}
		if o := s.Origin; o != nil {
			h.Leaf, h.Last, h.Parts = about.ForkNode, about.ForkNode, o.Parts
			key := st.Space.Origin(inc)
			b.Set(key, o.Seal(key))
		}
	}
	h.Commit = heads.Genesis(inc, s.Origin)
	record := h.Seal(s.HeadKey)
	b.Guard(s.HeadKey, nil)
	b.Set(s.HeadKey, record)
	b.Set(s.AboutKey, about.Seal(s.AboutKey))
	life := heads.Life{Session: hash, State: heads.Live}
	b.Set(s.LifeKey, life.Seal(s.LifeKey))
	s.SeeOrderTime(heads.AddToOrder(&b, st.Space, inc, hash, about.Updated))
	s.See(&h, record)
	return &b, s, nil
}

// incarnation draws one that no session has or had, as far as it is not removed, and
// makes b guard that, and the predecessor record of the session id. A source that repeats itself
// would give two sessions one history.
func (st *Store) incarnation(ctx context.Context, b *engine.Batch, predecessor []byte) (inc heads.Incarnation, err error) {
	const draws = 8
	for range draws {
		st.Random(inc[:])
		life := st.Space.Life(inc)
		vs, err := st.Engine.Get(ctx, predecessor, life)
		if err != nil {
			return inc, err
		}
		if vs[1] == nil {
			b.Guard(predecessor, vs[0])
			b.Guard(life, nil)
			return inc, nil
		}
	}
	return inc, change.NewInvalid("options", "Random gave the incarnations of %d sessions that exist", draws)
}
