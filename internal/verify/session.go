package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
)

// A checkedSession is a session that lives, with the revision at which its head was seen last.
type checkedSession struct {
	*history.Session
	seen head.Revision
}

// readHead reads the head, and the values of more keys as they stood at the same moment.
func (s *checkedSession) readHead(ctx context.Context, more ...[]byte) (*head.Head, [][]byte, error) {
	h, _, values, err := s.ReadHead(ctx, s.seen, more...)
	if err == nil {
		s.seen = h.Revision
	}
	return h, values, err
}

// life reads the lifecycle record.
func (s *checkedSession) life(ctx context.Context) (*head.Life, error) {
	values, err := s.Engine.Get(ctx, s.LifeKey)
	if err != nil {
		return nil, err
	}
	return s.DecodeLife(ctx, values[0])
}

// session checks a session that lives, from its head down to its nodes, and the records by
// which lists find it.
func (v *verifier) session(ctx context.Context, ses *checkedSession) error {
	h, values, err := ses.readHead(ctx, v.store.Space.Feed())
	if err != nil {
		return err
	}
	v.tells(ses, h, values[0])
	if err := v.ancestors(ctx, ses); err != nil {
		return err
	}
	if err := v.commits(ctx, ses, h); err != nil {
		return err
	}
	if err := v.liveNodes(ctx, &ses.History, h.Revision, h.Commit); err != nil {
		return err
	}
	return v.lists(ctx, ses)
}

// commits checks the chain of commits, the checkpoint parts that they set, and the head
// against their sum.
func (v *verifier) commits(ctx context.Context, ses *checkedSession, h *head.Head) error {
	checkpoints, err := v.newCheckpoints(ctx, ses)
	if err != nil {
		return err
	}
	sum := head.Begin(ses.Inc, ses.Origin)
	of := history.Revisions{Inc: ses.Inc, Name: ses.Name, Last: h.Revision, Previous: sum.Commit}
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
func same(a, b *head.State) bool { return fmt.Sprint(*a) == fmt.Sprint(*b) }

// ancestors checks that a fork's ancestors have the commits at which the fork says that
// the shared histories end. The ancestors themselves were checked before. Forks of a
// session often share an end, and each end is read once.
func (v *verifier) ancestors(ctx context.Context, ses *checkedSession) error {
	if ses.Origin == nil {
		return nil
	}
	for _, a := range ses.Origin.Ancestors {
		if a.Revision == 0 || v.checkedEnds[a] {
			continue
		}
		t, err := v.store.TurnAt(ctx, a.Incarnation, a.Revision)
		if err == nil && t.ID != a.Commit {
			err = codec.Corrupt(damage.ErrHash, "commit %d of ancestor %x", a.Revision, a.Incarnation)
		}
		if err != nil {
			return err
		}
		v.checkedEnds[a] = true // not before: an attempt that found damage may be made again
	}
	return v.depth(ctx, ses)
}

// depth checks that a fork says how long the path to its fork node is.
func (v *verifier) depth(ctx context.Context, ses *checkedSession) error {
	o := ses.Origin
	for _, a := range slices.Backward(o.Ancestors) {
		if a.Revision == 0 {
			continue // It has none of the nodes.
		}
		n, known := v.lengths[a.Incarnation][o.Node()]
		var err error
		if !known { // The check of the ancestor has found damage, or another node.
			var h *history.History
			if h, err = v.store.Open(ctx, a.Incarnation); err != nil {
				return err
			}
			err = steady(ctx, h, func() (err error) {
				n, err = h.Depth(ctx, a.Revision, o.Node())
				return err
			})
		}
		if err == nil && n != o.Depth {
			v.problem(fmt.Errorf("it says %d nodes, and there are %d", o.Depth, n), "path to the fork node of %s", ses.Name)
		}
		return err
	}
	return nil
}
