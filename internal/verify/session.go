package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/record"
)

// A session is one that lives, with the revision at which its head was seen last.
type session struct {
	*history.Session
	seen head.Revision
}

// readHead reads the head, and more records as they stood at the same moment.
func (s *session) readHead(ctx context.Context, more ...[]byte) (*heads.Head, [][]byte, error) {
	h, _, values, err := s.ReadHead(ctx, s.seen, more...)
	if err == nil {
		s.seen = h.Revision
	}
	return h, values, err
}

// life reads the lifecycle record.
func (s *session) life(ctx context.Context) (*heads.Life, error) {
	values, err := s.Engine.Get(ctx, s.LifeKey)
	if err != nil {
		return nil, err
	}
	return s.OpenLife(ctx, values[0])
}

// session checks one session that lives, from its head down to the bytes of its nodes.
func (v *verifier) session(ctx context.Context, ses *session) error {
	h, _, err := ses.readHead(ctx)
	if err != nil {
		return err
	}
	if err := v.ancestors(ctx, ses); err != nil {
		return err
	}
	checkpoints, err := v.checkpoints(ctx, ses)
	if err != nil {
		return err
	}
	usage, nodes := []head.Usage(nil), uint64(0)
	err = ses.Commits(ctx, 0, h.Revision, func(c *heads.Commit, _ head.CommitID) error {
		v.Commits++
		usage, nodes = head.Sum(usage, c.Usage), nodes+uint64(c.Nodes)
		if err := v.turn(ctx, ses, c); err != nil {
			return err
		}
		checkpoints.at(c)
		if c.Revision != h.Revision {
			return nil
		}
		at, err := ses.PartsAt(ctx, c)
		if err == nil && fmt.Sprint(at) != fmt.Sprint(h.Parts) {
			err = fmt.Errorf("checkpoint differs from commit %d", c.Revision)
		}
		return codec.Corrupt(err, "head of session %q", ses.ID)
	})
	if err != nil {
		return err
	}
	if err := checkpoints.check(ctx, h.Revision); err != nil {
		return err
	}
	if fmt.Sprint(usage) != fmt.Sprint(h.Usage) || nodes != h.Nodes {
		v.problem(errors.New("totals differ from the sum of the commits"), "head of session %q", ses.ID)
	}
	own := ses.Own(h.Revision)
	own.Commit = h.Commit
	if err := v.history(ctx, &ses.History, own, nil); err != nil {
		return err
	}
	if err := v.child(ctx, ses); err != nil {
		return err
	}
	return v.order(ctx, ses)
}

// deleted checks what is left of a session that was deleted: its predecessor record, and the
// history that its lifecycle record says is there for forks. A vacuum lowers that
// before it removes anything.
func (v *verifier) deleted(ctx context.Context, inc heads.Incarnation, life *heads.Life) error {
	space := v.store.Space
	originKey := space.Origin(inc)
	vs, err := v.store.Engine.Get(ctx, space.Life(inc), space.Predecessor(life.Session), originKey)
	if err != nil || vs[0] == nil {
		return err
	}
	if vs[1] == nil {
		v.problem(record.ErrMissing, "predecessor record of the deleted session of %s", v.name(inc))
	}
	var origin *heads.Origin
	if vs[2] != nil {
		origin, err = heads.OpenOrigin(originKey, vs[2])
		if errors.Is(err, record.ErrFormat) {
			return codec.Corrupt(err, "origin of %s", v.name(inc))
		}
		if err != nil {
			return nil // records has named it
		}
	}
	if life.Floor <= 1 {
		return nil
	}
	if origin == nil {
		c, _, err := v.store.CommitAt(ctx, inc, 1)
		if err == nil && c.Previous != heads.Genesis(inc, nil) {
			err = codec.Corrupt(fmt.Errorf("%w: its first commit is that of a fork", record.ErrMissing), "origin of %s", v.name(inc))
		}
		if err != nil {
			return err
		}
	}
	// Its ancestors may be gone. What a fork of it shares of them the fork names itself.
	shared, held := v.shared[inc]
	h := &history.History{Store: v.store, Inc: inc, Origin: origin, Name: v.name(inc)}
	return v.history(ctx, h, h.Own(life.Floor-1), func(n *history.Node) bool { return held && shared.Has(n.Position()) })
}

// ancestors checks what a fork shares of other sessions, which were checked before:
// that they end where the fork says. Most ends are the parent's own, or those of its
// origin; each is read once.
func (v *verifier) ancestors(ctx context.Context, ses *session) error {
	if ses.Origin == nil {
		return nil
	}
	for _, a := range ses.Origin.Ancestors {
		if a.Revision == 0 || v.held[a] {
			continue
		}
		v.held[a] = true
		_, id, err := v.store.CommitAt(ctx, a.Incarnation, a.Revision)
		if err == nil && id != a.Commit {
			err = codec.Corrupt(record.ErrHash, "commit %d of ancestor %x", a.Revision, a.Incarnation)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// steady runs read, again when it fails on something that maintenance may have moved
// meanwhile: what is absent is corrupt only if the lifecycle records stand as they
// stood. These are the incarnation's own and those of the ancestors that read looks at.
func steady[T any](ctx context.Context, h *history.History, read func() (T, error), ancestors ...history.Layer) (out T, err error) {
	ks := [][]byte{h.Space.Life(h.Inc)}
	for _, l := range ancestors {
		ks = append(ks, h.Space.Life(l.Inc))
	}
	for {
		before, err := h.Engine.Get(ctx, ks...)
		if err == nil && before[0] == nil {
			err = fmt.Errorf("%w: %s", history.ErrSessionDeleted, h.Name) // removed meanwhile
		}
		if err != nil {
			return out, err
		}
		out, err := read()
		var damage *record.CorruptError
		if err == nil || !errors.As(err, &damage) && !errors.Is(err, history.ErrNodeNotFound) {
			return out, err
		}
		after, aerr := h.Engine.Get(ctx, ks...)
		if aerr != nil {
			return out, aerr
		}
		if slices.EqualFunc(before, after, bytes.Equal) {
			return out, err
		}
	}
}

// turn checks the index entry of a commit's turn id.
func (v *verifier) turn(ctx context.Context, ses *session, c *heads.Commit) error {
	if c.Turn == "" {
		return nil
	}
	key := v.store.Space.Turn(ses.Inc, c.Turn)
	vs, err := v.store.Engine.Get(ctx, key)
	if err != nil {
		return err
	}
	r, err := heads.OpenTurn(key, vs[0])
	if err == nil && r != c.Revision {
		err = fmt.Errorf("points to revision %d", r)
	}
	v.problem(err, "turn %q of session %q", c.Turn, ses.ID)
	return nil
}

// child checks that a session is found among the children of its parent, where
// lists and deletions look for it.
func (v *verifier) child(ctx context.Context, ses *session) error {
	_, vs, err := ses.readHead(ctx, ses.AboutKey)
	if err != nil {
		return err
	}
	about, err := ses.OpenAbout(vs[0])
	if err != nil || about.Parent == (heads.Incarnation{}) {
		return err
	}
	key := v.store.Space.Child(about.Parent, ses.Inc)
	_, vs, err = ses.readHead(ctx, key) // at one moment: a deletion removes it
	if err != nil {
		return err
	}
	_, err = heads.OpenChild(v.store.Space, engine.Pair{Key: key, Value: vs[0]})
	if parent, perr := v.store.Life(ctx, about.Parent); perr != nil || parent == nil {
		return perr // vacuum has removed the parent, and its entries
	}
	v.problem(err, "child entry of session %q with the parent %s", ses.ID, v.name(about.Parent))
	if ses.Origin != nil && about.Parent != ses.Origin.Ancestors[len(ses.Origin.Ancestors)-1].Incarnation {
		v.problem(fmt.Errorf("%w: it forked from another session than its parent", record.ErrHash), "metadata of session %q", ses.ID)
	}
	return nil
}

// order checks that a session is where List looks for it.
func (v *verifier) order(ctx context.Context, ses *session) error {
	for range 3 { // it may move meanwhile
		timeKey := v.store.Space.OrderTime(ses.Inc)
		vs, err := v.store.Engine.Get(ctx, timeKey)
		if err != nil {
			return err
		}
		if at, ok := heads.OpenOrderTime(timeKey, vs[0]); ok {
			key := v.store.Space.Order(at, ses.Inc)
			if vs, err = v.store.Engine.Get(ctx, key); err != nil {
				return err
			}
			if entry, err := heads.OpenOrder(v.store.Space, engine.Pair{Key: key, Value: vs[0]}); err == nil && entry.Session == ses.Hash {
				return nil
			}
		}
	}
	if _, _, err := ses.readHead(ctx); err != nil {
		return err // gone meanwhile
	}
	v.problem(record.ErrMissing, "place in the order of sessions of session %q", ses.ID)
	return nil
}
