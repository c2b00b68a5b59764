package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
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
	return v.lists(ctx, ses)
}

// commits checks the chain of commits, the checkpoint parts that they set, and the head
// against their sum.
func (v *verifier) commits(ctx context.Context, ses *session, h *heads.Head) error {
	checkpoints, err := v.newCheckpoints(ctx, ses)
	if err != nil {
		return err
	}
	var usage []head.Usage
	nodes, last := uint64(0), &heads.Commit{}
	err = ses.Commits(ctx, 0, h.Revision, func(c *heads.Commit, _ head.CommitID) error {
		v.Commits++
		usage, nodes, last = head.AddUsage(usage, c.Usage), nodes+uint64(c.Nodes), c
		if err := v.turn(ctx, ses, c); err != nil {
			return err
		}
		checkpoints.follow(c)
		return nil
	})
	if err != nil {
		return err
	}
	if err := checkHeadParts(ctx, ses, h, last); err != nil {
		return err
	}
	if err := checkpoints.check(ctx, h.Revision); err != nil {
		return err
	}
	if fmt.Sprint(usage) != fmt.Sprint(h.Usage) || nodes != h.Nodes {
		v.problem(errors.New("totals differ from the sum of the commits"), "head of session %q", ses.ID)
	}
	return nil
}

// checkHeadParts checks that the head has the checkpoint of the last commit. A session
// without commits has none to compare.
func checkHeadParts(ctx context.Context, ses *session, h *heads.Head, last *heads.Commit) error {
	if h.Revision == 0 {
		return nil
	}
	parts, err := ses.PartsAt(ctx, last)
	if err == nil && fmt.Sprint(parts) != fmt.Sprint(h.Parts) {
		err = fmt.Errorf("checkpoint differs from commit %d", h.Revision)
	}
	return codec.Corrupt(err, "head of session %q", ses.ID)
}

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
		_, id, err := v.store.CommitAt(ctx, a.Incarnation, a.Revision)
		if err == nil && id != a.Commit {
			err = codec.Corrupt(record.ErrHash, "commit %d of ancestor %x", a.Revision, a.Incarnation)
		}
		if err != nil {
			return err
		}
		v.checkedEnds[a] = true // not before: an attempt that found damage may be made again
	}
	return nil
}

// turn checks that a commit is found by its turn id, if it has one.
func (v *verifier) turn(ctx context.Context, ses *session, c *heads.Commit) error {
	if c.Turn == "" {
		return nil
	}
	key := v.store.Space.Turn(ses.Inc, c.Turn)
	value, err := v.get(ctx, key)
	if err != nil {
		return err
	}
	r, err := heads.OpenTurn(key, value)
	if err == nil && r != c.Revision {
		err = fmt.Errorf("points to revision %d", r)
	}
	v.problem(err, "turn %q of session %q", c.Turn, ses.ID)
	return nil
}
