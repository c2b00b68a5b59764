package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/turns"
	"github.com/turnstonedb/turnstone/record"
)

// A session is a session that lives, with the revision at which its head was seen last.
type session struct {
	*history.Session
	seen head.Revision
}

// readHead reads the head, and the values of more keys as they stood at the same moment.
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

// session checks a session that lives, from its head down to its nodes, and the records by
// which lists find it.
func (v *verifier) session(ctx context.Context, ses *session) error {
	h, _, err := ses.readHead(ctx)
	if err != nil {
		return err
	}
	if err := v.ancestors(ctx, ses); err != nil {
		return err
	}
	if err := v.commits(ctx, ses, h); err != nil {
		return err
	}
	if err := v.liveNodes(ctx, &ses.History, h.Revision, h.Commit); err != nil {
		return err
	}
	if err := v.child(ctx, ses); err != nil {
		return err
	}
	return v.order(ctx, ses)
}

// commits checks the chain of commits, the checkpoint parts that they set, and the head
// against their sum.
func (v *verifier) commits(ctx context.Context, ses *session, h *heads.Head) error {
	checkpoints, err := v.newCheckpoints(ctx, ses)
	if err != nil {
		return err
	}
	sum := heads.Begin(ses.Inc, ses.Origin)
	of := turns.Range{Inc: ses.Inc, Name: ses.Name, Last: h.Revision, Previous: sum.Commit}
	for s, err := range ses.Segments(ctx, of) {
		if err != nil {
			return err
		}
		for i := range s.Turns {
			if s.Turns[i].Revision <= sum.Revision || s.Turns[i].Revision > h.Revision {
				continue
			}
			v.Commits++
			if sum, err = sum.Then(&s.Turns[i].Commit, s.Turns[i].ID); err != nil {
				return codec.Corrupt(err, "commit %d of %s", s.Turns[i].Revision, ses.Name)
			}
			checkpoints.follow(&s.Turns[i].Commit)
		}
		if !s.Loose() && s.Last == sum.Revision && !same(&s.End, &sum) {
			v.problem(errors.New("totals or checkpoint differ from the commits"), "end of the segment with commit %d of %s", s.Last, ses.Name)
		}
	}
	if err := checkpoints.check(ctx, h.Revision); err != nil {
		return err
	}
	if h.Revision > 0 && !same(&sum, &h.State) {
		v.problem(errors.New("totals or checkpoint differ from the commits"), "head of session %q", ses.ID)
	}
	return nil
}

// same reports whether two states agree.
func same(a, b *heads.State) bool { return fmt.Sprint(*a) == fmt.Sprint(*b) }

// ancestors checks that a fork's ancestors have the commits at which the fork says that
// the shared histories end. The ancestors themselves were checked before. Forks of a
// session often share an end, and each end is read once.
func (v *verifier) ancestors(ctx context.Context, ses *session) error {
	if ses.Origin == nil {
		return nil
	}
	for _, a := range ses.Origin.Ancestors {
		if a.Revision == 0 || v.checkedEnds[a] {
			continue
		}
		t, err := v.store.TurnAt(ctx, a.Incarnation, a.Revision)
		if err == nil && t.ID != a.Commit {
			err = codec.Corrupt(record.ErrHash, "commit %d of ancestor %x", a.Revision, a.Incarnation)
		}
		if err != nil {
			return err
		}
		v.checkedEnds[a] = true // not before: an attempt that found damage may be made again
	}
	return nil
}

// child checks that a session is found among the children of its parent. Lists and
// deletions look for it there.
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
	_, vs, err = ses.readHead(ctx, key) // The head stands as long as the entry does: a deletion removes both.
	if err != nil {
		return err
	}
	_, err = heads.OpenChild(v.store.Space, engine.Pair{Key: key, Value: vs[0]})
	if parent, perr := v.store.Life(ctx, about.Parent); perr != nil || parent == nil {
		return perr // Vacuum has removed the parent with its entries.
	}
	v.problem(err, "child entry of session %q with the parent %s", ses.ID, v.name(about.Parent))
	if o := ses.Origin; o != nil && o.Ancestors[len(o.Ancestors)-1].Incarnation != about.Parent {
		v.problem(fmt.Errorf("%w: it forked from another session than its parent", record.ErrHash), "metadata of session %q", ses.ID)
	}
	return nil
}

// order checks that a session is where lists look for it. The session may move meanwhile,
// so order looks several times.
func (v *verifier) order(ctx context.Context, ses *session) error {
	const attempts = 3
	for range attempts {
		if found, err := v.inOrder(ctx, ses); found || err != nil {
			return err
		}
	}
	if _, _, err := ses.readHead(ctx); err != nil {
		return err // The session was deleted meanwhile.
	}
	v.problem(record.ErrMissing, "place in the order of sessions of session %q", ses.ID)
	return nil
}

// inOrder reports whether a session is in the order of sessions, at its own time.
func (v *verifier) inOrder(ctx context.Context, ses *session) (bool, error) {
	timeKey := v.store.Space.OrderTime(ses.Inc)
	value, err := v.get(ctx, timeKey)
	if err != nil {
		return false, err
	}
	at, ok := heads.OpenOrderTime(timeKey, value)
	if !ok {
		return false, nil
	}
	key := v.store.Space.Order(at, ses.Inc)
	if value, err = v.get(ctx, key); err != nil {
		return false, err
	}
	entry, err := heads.OpenOrder(v.store.Space, engine.Pair{Key: key, Value: value})
	return err == nil && entry.Session == ses.Hash, nil
}
