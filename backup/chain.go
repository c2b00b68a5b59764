package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// A step is a bundle that has to be read.
type step struct {
	run      int
	at       extent
	expanded int64             // bytes of it before compression
	whole    bool              // it needs nothing that was read before
	sessions map[string]string // those in it, by the ids that they have there
	needed   []string          // those of them that it is read for
}

func (s *step) compare(other *step) int {
	return cmp.Or(cmp.Compare(s.run, other.run), cmp.Compare(s.at.Pack, other.at.Pack), cmp.Compare(s.at.Offset, other.at.Offset))
}

// A family are sessions that have bundles in common, or that go on from each other.
type family struct {
	sessions []string // those that are to be restored
	steps    map[extent]*step
	of       map[string]map[extent]bool // the steps that each session needs
	bytes    int64                      // of the bundles before compression
}

func newFamily() *family {
	return &family{steps: map[extent]*step{}, of: map[string]map[extent]bool{}}
}

// add adds another family.
func (f *family) add(other *family) {
	f.sessions = append(f.sessions, other.sessions...)
	f.bytes += other.bytes
	maps.Copy(f.of, other.of)
	maps.Copy(f.steps, other.steps)
}

// take adds a step.
func (f *family) take(s *step) {
	mine := f.steps[s.at]
	if mine == nil {
		f.steps[s.at] = s
		return
	}
	for _, session := range s.needed {
		if !slices.Contains(mine.needed, session) {
			mine.needed = append(mine.needed, session)
		}
	}
}

// families finds out which bundles sessions need. failed are the errors of those of which that is not known.
func (r *restoring) families(ctx context.Context, sessions []string) (out []*family, failed []error, err error) {
	sets := disjoint{}
	steps := map[string]map[extent]*step{}
	for _, session := range sessions {
		of, err := r.stepsOf(ctx, session)
		if errors.Is(err, ErrTarget) {
			failed = append(failed, fmt.Errorf("session %q: %w", r.names[session], err))
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		steps[session] = of
		for at, s := range of {
			sets.join(session, at)
			for _, other := range s.needed {
				sets.join(session, other)
			}
		}
	}
	by := map[any]*family{}
	for _, session := range sessions {
		if steps[session] == nil {
			continue
		}
		f := by[sets.of(session)]
		if f == nil {
			f = newFamily()
			by[sets.of(session)] = f
			out = append(out, f)
		}
		f.sessions = append(f.sessions, session)
		f.of[session] = map[extent]bool{}
		for at, s := range steps[session] {
			f.of[session][at] = true
			if f.steps[at] == nil {
				f.bytes += s.expanded
			}
			f.take(s)
		}
	}
	return out, failed, nil
}

// disjoint are sets of sessions and of bundles (R. Tarjan, "Efficiency of a good but not linear set union algorithm",
// 1975).
type disjoint map[any]any

// of returns what stands for the set that a member is in.
func (d disjoint) of(member any) any {
	for d[member] != nil && d[member] != member {
		if up := d[d[member]]; up != nil {
			d[member] = up
		}
		member = d[member]
	}
	return member
}

func (d disjoint) join(a, b any) {
	if a, b = d.of(a), d.of(b); a != b {
		d[a] = b
	}
}

// stepsOf returns the bundles that make a session.
func (r *restoring) stepsOf(ctx context.Context, session string) (map[extent]*step, error) {
	steps := map[extent]*step{}
	needs := []*entry{r.at.sessions[session]}
	seen := map[*entry]bool{}
	before := func(session string, run int) error {
		made, err := r.made(ctx, run)
		if err != nil {
			return err
		}
		if made[session] == nil {
			return fmt.Errorf("%w: %s lacks session %s", ErrTarget, runName(r.at.generation, run), session)
		}
		needs = append(needs, made[session])
		return nil
	}
	for len(needs) > 0 {
		e := needs[len(needs)-1]
		needs = needs[:len(needs)-1]
		if e.Gone || seen[e] {
			continue
		}
		seen[e] = true
		s, err := r.step(ctx, steps, e)
		if err != nil {
			return nil, err
		}
		s.needed = append(s.needed, e.Session)
		if e.Parent != nil {
			err = before(e.Parent.Session, e.Parent.Run)
		}
		if err == nil && e.Before > 0 {
			err = before(e.Session, e.Before)
		}
		if err != nil {
			return nil, err
		}
	}
	return steps, nil
}

// step returns the step with the bundle of an entry.
func (r *restoring) step(ctx context.Context, steps map[extent]*step, e *entry) (*step, error) {
	if s := steps[e.Bundle]; s != nil {
		return s, nil
	}
	s := &step{run: e.Run, at: e.Bundle, expanded: e.Expanded, whole: e.Before == 0 && e.Parent == nil, sessions: map[string]string{e.ID: e.Session}}
	made, err := r.made(ctx, e.Run)
	if err != nil {
		return nil, err
	}
	for _, other := range made {
		if other.Bundle == e.Bundle {
			s.sessions[other.ID] = other.Session
		}
	}
	if e.Parent != nil {
		s.sessions[e.Parent.ID] = e.Parent.Session
	}
	steps[e.Bundle] = s
	return s, nil
}

// made returns the entries that a run has made.
func (r *restoring) made(ctx context.Context, run int) (map[string]*entry, error) {
	if made := r.runs[run]; made != nil {
		return made, nil
	}
	made := map[string]*entry{}
	_, _, err := readRun(ctx, r.from, r.at.generation, run, func(e *entry) error {
		if e.Run == run {
			made[e.Session] = e
		}
		return nil
	}, nil)
	if err == nil {
		r.runs[run] = made
	}
	return made, err
}
