package bundle

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/history"
)

// A Point is a commit of a session.
type Point struct {
	Revision head.Revision
	Commit   head.CommitID
}

func pointOf(b head.Base) Point { return Point{b.Revision, b.Commit} }

// Diverged says that a session here and the one in the bundle have gone different ways.
type Diverged struct {
	Session     string
	Here, There Point // where they stand
	Common      Point // the last commit that both have, or zero if the bundle does not have it
}

func (e *Diverged) Error() string {
	common := "before what the bundle has"
	if e.Common != (Point{}) {
		common = fmt.Sprintf("after revision %d, commit %s", e.Common.Revision, e.Common.Commit)
	}
	return fmt.Sprintf("session %q has diverged %s: here it is at revision %d, commit %s, there at %d, %s", e.Session, common, e.Here.Revision, e.Here.Commit, e.There.Revision, e.There.Commit)
}

// decide finds out, for each session of the bundle, whether it goes on from what is here.
func (r *reader) decide(ctx context.Context) error {
	for _, in := range r.sections {
		if in.copy {
			continue
		}
		if err := r.decideOn(ctx, in); err != nil {
			return r.of(in, err)
		}
	}
	return nil
}

func (r *reader) decideOn(ctx context.Context, in *incoming) error {
	before, stood := in.target, in.here
	if err := r.find(ctx, in); err != nil {
		return err
	}
	if !in.decided {
		in.from, in.decided = in.here.Revision, true
	}
	if in.target == nil {
		if in.since.Revision > 0 {
			return fmt.Errorf("%w: %q", history.ErrSessionNotFound, in.id)
		}
		return nil
	}
	moved := before == nil || before.Inc != in.target.Inc || stood != in.here
	same, err := r.agrees(ctx, in, moved)
	in.branches = false
	if err != nil || same {
		return err
	}
	err = r.divergence(ctx, in)
	var d *Diverged
	if r.options.Branch != "" && errors.As(err, &d) {
		in.branches, in.common = true, d.Common.Revision
		return nil
	}
	return err
}

// find finds the session that a section brings forward, if it exists, and where it stands.
func (r *reader) find(ctx context.Context, in *incoming) error {
	target, state, err := r.OpenSession(ctx, in.id)
	switch {
	case errors.Is(err, history.ErrSessionNotFound):
		in.target, in.here = nil, head.Base{}
		return nil
	case err != nil:
		return err
	case head.Genesis(target.Inc, target.Origin) != in.genesis:
		return fmt.Errorf("%w: another session is called %q here", commit.ErrExists, in.id)
	}
	in.target, in.here = target, state.Head.Base
	return nil
}

// agrees reports whether one of the session here and the one in the bundle is what the other was before.
func (r *reader) agrees(ctx context.Context, in *incoming, moved bool) (bool, error) {
	last := in.end.last
	switch {
	case in.here.Revision == 0:
		return true, nil
	case in.here.Revision >= last.Revision && last.Revision > 0:
		t, err := in.target.TurnAt(ctx, last.Revision)
		return err == nil && t.ID == last.Commit, err
	case last.Revision == 0:
		return true, nil
	case !moved:
		return in.meets == in.here.Commit, nil
	}
	same := false
	err := r.turnsOf(ctx, in, func(t *history.Turn) error {
		same = same || t.Revision == in.here.Revision && t.ID == in.here.Commit
		return nil
	})
	return same || in.here.Commit == in.since.Commit, err
}

// divergence returns the error that says where a session here and the one in the bundle went different ways.
func (r *reader) divergence(ctx context.Context, in *incoming) error {
	d := &Diverged{Session: in.id, Here: pointOf(in.here), There: pointOf(in.end.last)}
	if in.since.Revision > 0 {
		d.Common = pointOf(in.since)
	}
	done := errors.New("done")
	err := r.turnsOf(ctx, in, func(t *history.Turn) error {
		if t.Revision > in.here.Revision {
			return done
		}
		here, err := in.target.TurnAt(ctx, t.Revision)
		if err != nil {
			return err
		}
		if here.ID != t.ID {
			return done
		}
		d.Common = Point{t.Revision, t.ID}
		return nil
	})
	if err != nil && !errors.Is(err, done) {
		return err
	}
	return d
}

// turnsOf calls f for the turns of a section.
func (r *reader) turnsOf(ctx context.Context, of *incoming, f func(*history.Turn) error) error {
	state, err := r.start(ctx, of)
	if err != nil {
		return err
	}
	base := state.Base
	return r.each(ctx, func(in *incoming, kind byte, body []byte, _ *frameReader) error {
		if in != of || kind != kindTurns {
			return nil
		}
		turns, err := history.DecodeTurns(body, base)
		if err != nil {
			return err
		}
		for i := range turns {
			if err := f(&turns[i]); err != nil {
				return err
			}
		}
		base = turns[len(turns)-1].Base(turns[len(turns)-1].ID)
		return nil
	})
}
