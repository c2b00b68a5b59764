package persistencetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// A revisionCall is a call that takes a revision, and what it says of 0, RevisionZero, the head's, one beyond it and
// AnyRevision: an error if that begins with "!".
type revisionCall struct {
	name string
	call func(*suite, turnstone.Persistence, head.Revision) (string, error)
	want [5]string
}

var revisionCalls = []revisionCall{
	{"At", func(_ *suite, p turnstone.Persistence, r head.Revision) (string, error) {
		return counted(p, turnstone.Scope{At: r})
	}, [5]string{"3", "0", "3", "!gone", "!invalid"}},
	{"After", func(_ *suite, p turnstone.Persistence, r head.Revision) (string, error) {
		return counted(p, turnstone.Scope{After: r})
	}, [5]string{"3", "!invalid", "0", "!gone", "!invalid"}},
	{"Checkpoint", func(_ *suite, p turnstone.Persistence, r head.Revision) (string, error) {
		parts, err := p.Checkpoint(ctx, r)
		return string(parts["p"]), err
	}, [5]string{"3", "", "3", "!gone", "!invalid"}},
	{"Log", func(_ *suite, p turnstone.Persistence, r head.Revision) (string, error) {
		return entries(p.Log(ctx, r))
	}, [5]string{"3", "3", "0", "!gone", "!invalid"}},
	{"Watch", func(_ *suite, p turnstone.Persistence, r head.Revision) (string, error) {
		if r != 3 {
			return entries(p.Watch(ctx, r))
		}
		waits, cancel := context.WithTimeout(ctx, 20*time.Millisecond) // at the head it would wait for ever
		defer cancel()
		text, err := entries(p.Watch(waits, r))
		if errors.Is(err, context.DeadlineExceeded) {
			text, err = "0", nil
		}
		return text, err
	}, [5]string{"3", "3", "0", "!gone", "!invalid"}},
	{"Keep", func(_ *suite, p turnstone.Persistence, r head.Revision) (string, error) {
		return "", p.Keep(ctx, fmt.Sprint("kept", uint64(r)), r)
	}, [5]string{"", "!gone", "", "!gone", "!invalid"}},
	{"ForkAt", func(s *suite, p turnstone.Persistence, r head.Revision) (string, error) {
		f, _, err := s.Factory.Create(ctx, turnstone.Request{ID: fmt.Sprint("fork", uint64(r)), Parent: p.ID(), ForkAt: r})
		if err != nil {
			return "", err
		}
		return counted(f, turnstone.Scope{})
	}, [5]string{"3", "0", "3", "!gone", "!invalid"}},
	{"Expected", func(s *suite, _ turnstone.Persistence, r head.Revision) (string, error) {
		first, _, err := s.Factory.Create(ctx, turnstone.Request{ID: fmt.Sprint("first", uint64(r))})
		if err == nil {
			_, err = first.Commit(ctx, turnstone.Commit{Expected: r, Nodes: texts("x")})
		}
		return "", err
	}, [5]string{"", "", "!conflict", "!conflict", ""}},
}

// revisions tries all calls that take a revision.
func revisions(s *suite) {
	p := s.create(turnstone.Request{ID: "a"})
	for n := range 3 {
		s.commit(p, turnstone.Commit{Expected: head.Revision(n), Nodes: texts("x"), Checkpoint: map[string][]byte{"p": fmt.Append(nil, n+1)}})
	}
	for _, c := range revisionCalls {
		for i, r := range []head.Revision{0, turnstone.RevisionZero, 3, 4, turnstone.AnyRevision} {
			got, err := c.call(s, p, r)
			switch {
			case errors.Is(err, turnstone.ErrRevisionNotFound):
				got = "!gone"
			case errors.Is(err, turnstone.ErrInvalid):
				got = "!invalid"
			case errors.Is(err, turnstone.ErrConflict):
				got = "!conflict"
			case err != nil:
				got = err.Error()
			}
			s.equal(fmt.Sprintf("%s %v", c.name, r), got, c.want[i])
		}
	}
}

// counted returns how many nodes a scope has.
func counted(p turnstone.Persistence, sc turnstone.Scope) (string, error) {
	st, err := p.Load(ctx, sc)
	if err != nil {
		return "", err
	}
	n := 0
	for _, nerr := range p.Nodes(ctx, sc) {
		if err = nerr; err == nil {
			n++
		}
	}
	if n != len(st.Nodes) {
		err = errors.Join(err, fmt.Errorf("%d nodes of Nodes, %d of Load", n, len(st.Nodes)))
	}
	return fmt.Sprint(n), err
}

// entries returns how many entries there are, and counts no more than three.
func entries(all iter.Seq2[turnstone.LogEntry, error]) (string, error) {
	n := 0
	for _, err := range all {
		if err != nil {
			return "", err
		}
		if n++; n == 3 {
			break
		}
	}
	return fmt.Sprint(n), nil
}

// scopesExclude tries the fields of a scope that do not go together.
func scopesExclude(s *suite) {
	p := s.create(turnstone.Request{ID: "a"})
	leaf := s.grow(p, 0, "1", "2")[1]
	for _, sc := range []turnstone.Scope{
		{Full: true, Last: 1}, {Full: true, After: 1}, {Last: 1, After: 1}, {Full: true, Last: 1, After: 1}, {Full: true, Leaf: leaf}, {Last: -1},
	} {
		_, err := p.Load(ctx, sc)
		s.is(err, turnstone.ErrInvalid)
		n := 0
		for _, err := range p.Nodes(ctx, sc) {
			n++
			s.is(err, turnstone.ErrInvalid)
		}
		s.equal("errors", n, 1)
	}
	for _, sc := range []turnstone.Scope{{Full: true, At: 1}, {Last: 1, At: 2, Leaf: leaf}, {After: 1, At: 2, Leaf: leaf}, {Full: true, Reverse: true}} {
		_, err := p.Load(ctx, sc)
		s.must(err)
	}
}
