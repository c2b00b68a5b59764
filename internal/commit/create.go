package commit

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/feed"
	"github.com/turnstonedb/turnstone/internal/history"
)

// A CreateRequest describes a new session. The root package has checked it.
type CreateRequest struct {
	// About has the metadata. Create sets the incarnation, the parent and the times.
	About    head.About
	Parent   string   // The id of the parent, or "".
	ForkNode graph.ID // The node to fork at. The zero id stands for the leaf of ForkAt or, if that is nil, the parent's.
	// ForkAt is the parent's revision whose checkpoint an attached fork begins with, or nil: then it belongs to the node.
	ForkAt       *head.Revision
	NoCheckpoint bool // An attached fork begins without a checkpoint.
}

// Create makes the session that r describes, and returns it with a nil state. If a session has
// that id already, Create returns that one and its state, and created is false.
func (st *Lifecycle) Create(ctx context.Context, r *CreateRequest) (session *history.Session, state *history.State, created bool, err error) {
	n := creator{Lifecycle: st, request: r, stage: st.NewStage(head.Incarnation{})}
	err = history.Settle(ctx, st.Engine, func(c *history.Change) error { return n.attempt(ctx, c) })
	if mayStand := n.created || errors.Is(err, history.ErrOutcomeUnknown); !mayStand {
		n.stage.Abandon(ctx)
	}
	if err != nil {
		return nil, nil, false, err
	}
	return n.session, n.state, n.created, nil
}

// Creator returns what makes the session that r describes together with its first commit. It can be
// used for one call of Store.Commit.
func (st *Lifecycle) Creator(r *CreateRequest) Creator {
	return &creator{Lifecycle: st, request: r, stage: st.NewStage(head.Incarnation{})}
}

// ID returns the session's id.
func (n *creator) ID() string { return n.request.About.ID }

// Open implements Creator.
func (n *creator) Open(ctx context.Context) (*history.Session, *engine.Batch, error) {
	for {
		s, state, err := n.OpenSession(ctx, n.ID())
		if err == nil {
			n.Abandon(ctx)
			s.SeePlace(state.Place)
			return s, nil, nil
		}
		if !errors.Is(err, history.ErrSessionNotFound) {
			return nil, nil, err
		}
		b, err := n.fresh(ctx)
		if errors.Is(err, engine.ErrConflict) {
			continue
		}
		if err == nil {
			n.Begin(n.session.Inc)
		}
		return n.session, b, err
	}
}

// Abandon implements Creator.
func (n *creator) Abandon(ctx context.Context) { n.stage.Abandon(ctx) }

// A creator is one call of Create, with the result of its last attempt.
type creator struct {
	*Lifecycle
	request *CreateRequest
	stage   Stage  // the blobs of a fork's checkpoint
	copied  copied // what a flattened fork inherits
	session *history.Session
	state   *history.State
	created bool

	absent [][]byte  // the last attempt's guards: the id's predecessor record, and that of forgotten ones
	sent   time.Time // of the last attempt, by the store's clock
	begun  time.Time // the same by the clock of the process: the store's clock may stand still
}

// attempt is one attempt of Create. It fails with a conflict if somebody else creates a
// session of that id meanwhile, or changes the parent.
func (n *creator) attempt(ctx context.Context, c *history.Change) error {
	if c.Unknown {
		made, err := n.Made(ctx)
		if n.created = made; made || err != nil {
			return err
		}
	}
	existing, state, err := n.OpenSession(ctx, n.request.About.ID)
	if err == nil {
		n.session, n.state = existing, state
	}
	if !errors.Is(err, history.ErrSessionNotFound) {
		return err
	}
	b, err := n.fresh(ctx)
	if err != nil {
		return err
	}
	err = c.Apply(ctx, b)
	if n.created = err == nil; n.created {
		n.Begin(n.session.Inc)
	}
	return err
}

// fresh returns the batch of another attempt. The error is a conflict if the attempt has to be repeated.
func (n *creator) fresh(ctx context.Context) (*engine.Batch, error) {
	n.stage.Abandon(ctx) // what an earlier attempt stored ahead of its batch
	n.stage = n.NewStage(head.Incarnation{})
	b, err := n.batch(ctx)
	if errors.Is(err, ErrBlobGone) {
		err = engine.ErrConflict
	}
	return b, err
}

// Made implements Creator. The incarnation that the attempt has drawn has a lifecycle record if it was
// made, until the session is deleted and vacuum removes it. A deletion also sets the predecessor record of
// the session id. So if that record has not changed since the attempt guarded it, the session was not made, unless there
// was time to forget the record of a deletion.
func (n *creator) Made(ctx context.Context) (bool, error) {
	vs, err := n.Engine.Get(ctx, n.session.LifeKey, n.Space.Predecessor(n.session.Hash), n.Space.Forgotten())
	if err == nil && vs[0] == nil {
		elapsed := max(n.Now().Sub(n.sent), time.Now().Round(0).Sub(n.begun))
		forgotten := elapsed > head.Remembered/2 && !bytes.Equal(vs[2], n.absent[1])
		if forgotten || !bytes.Equal(vs[1], n.absent[0]) {
			err = history.ErrMayStand
		}
	}
	return err == nil && vs[0] != nil, err
}

// batch returns the batch that creates the session. It sets n.session to the session as it
// will be once the batch is applied.
func (n *creator) batch(ctx context.Context) (*engine.Batch, error) {
	about := n.request.About
	about.Metadata = head.Metadata{} // Merge copies, and leaves out what is empty.
	about.Merge(&n.request.About.Metadata)
	about.Created = n.Now()
	about.Updated = about.Created
	hash := n.Space.Session(about.ID)
	var b engine.Batch
	inc, values, err := n.newIncarnation(ctx, &b, n.Space.Predecessor(hash), n.Space.Forgotten(), n.Space.Feed())
	if err != nil {
		return nil, err
	}
	// Round removes the monotonic clock, which stops while a machine sleeps.
	n.absent, n.sent, n.begun = values[:2], about.Created, time.Now().Round(0)
	b.Guard(n.Space.Forgotten(), values[1])
	about.Incarnation = inc
	s := n.Session(about.ID, inc)
	if n.request.Parent != "" {
		if s.Origin, err = n.fork(ctx, &b, n.request, &about, &n.stage, &n.copied); err != nil {
			return nil, err
		}
	}
	if o := s.Origin; o != nil {
		key := n.Space.Origin(inc)
		b.Set(key, o.Encode(key))
	}
	h := head.Head{Incarnation: inc, State: head.Begin(inc, s.Origin)}
	h.Time = about.Updated
	h.Collected = len(h.Parts) == 0 // A fork with a checkpoint has a dirty record: see inherit.
	tells, err := n.tell(&b, values[2], &h, feed.Change{Kind: feed.Created, Session: about.ID}, 0, about.Created)
	if err != nil {
		return nil, err
	}
	if tells {
		h.SetFed(true, about.Created)
	}
	record := h.Encode(s.HeadKey)
	b.Guard(s.HeadKey, nil)
	b.Set(s.HeadKey, record)
	b.Set(s.AboutKey, about.Encode(s.AboutKey))
	life := head.Life{Session: hash, State: head.Live}
	b.Set(s.LifeKey, life.Encode(s.LifeKey))
	s.SeePlace(head.AddToLists(&b, n.Space, &about, hash, about.Updated))
	s.See(&h, record)
	n.session, n.state = s, nil
	return &b, nil
}

// newIncarnation draws an incarnation that no session has. No deleted session had it either, unless vacuum has removed
// that session. b guards this, and also the record at the first of keys: the predecessor record of the session id.
// newIncarnation returns the values at all keys. If the source of random bytes repeated itself and nothing checked
// that, two sessions would share one history.
func (st *Lifecycle) newIncarnation(ctx context.Context, b *engine.Batch, keys ...[]byte) (inc head.Incarnation, values [][]byte, err error) {
	const draws = 8
	for range draws {
		st.Random(inc[:])
		life := st.Space.Life(inc)
		vs, err := st.Engine.Get(ctx, append([][]byte{life}, keys...)...)
		if err != nil {
			return inc, nil, err
		}
		if vs[0] == nil {
			b.Guard(keys[0], vs[1])
			b.Guard(life, nil)
			return inc, vs[1:], nil
		}
	}
	return inc, nil, history.NewInvalid("options", "Random gave the incarnations of %d sessions that exist", draws)
}
