package gc_test

import (
	"bytes"
	"errors"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
)

// session does something with a session that may be gone by then.
func session(id string, f func(w *world, s *turnstone.Session) error) func(w *world) error {
	return func(w *world) error {
		s, err := w.Session(w.ctx, id)
		if err == nil {
			err = f(w, s)
		}
		return fair(err)
	}
}

// next commits a version of a part. The handle has the version before, so the new one is stored
// as a delta.
func next(id string, i int) func(w *world) error {
	return session(id, func(w *world, s *turnstone.Session) error {
		if _, err := s.Checkpoint(w.ctx, 0); err != nil {
			return err
		}
		c := saves(version(i))
		c.Expected = turnstone.AnyRevision
		_, err := s.Commit(w.ctx, c)
		return err
	})
}

func pruneTo(id string, keep head.Retention) func(w *world) error {
	return session(id, func(w *world, s *turnstone.Session) error { _, err := s.Prune(w.ctx, keep); return err })
}

func fork(id, parent string) func(w *world) error {
	return func(w *world) error {
		_, err := w.create(turnstone.Request{ID: id, Parent: parent})
		return fair(err)
	}
}

// reads reads a checkpoint part, and checks that it is one of the versions.
func reads(id string, versions ...int) func(w *world) error {
	return session(id, func(w *world, s *turnstone.Session) error {
		parts, err := s.Checkpoint(w.ctx, 0)
		for _, i := range versions {
			if err == nil && bytes.Equal(parts["p"], version(i)) {
				return nil
			}
		}
		if err == nil {
			err = errors.New("the checkpoint is none of those that were committed")
		}
		return err
	})
}

func all(steps ...func(w *world) error) func(w *world) error {
	return func(w *world) error {
		for _, f := range steps {
			if err := f(w); err != nil {
				return err
			}
		}
		return nil
	}
}

// chained makes session a with n versions of a part, all but the first deltas.
func chained(n int) func(w *world) error {
	return func(w *world) error {
		s, err := w.create(turnstone.Request{ID: "a"})
		for i := range n {
			if err == nil {
				c := saves(version(i))
				c.Expected = turnstone.AnyRevision
				_, err = s.Commit(w.ctx, c)
			}
		}
		return err
	}
}

var partScenarios = []scenario{
	{
		name: "a delta is committed while vacuum cuts its chain", before: all(chained(3), collect),
		actors: []party{{"commit", next("a", 3)}, {"vacuum", all(pruneTo("a", 1), vacuum)}},
	},
	{
		name: "a delta is committed while a collection drops its chain", before: all(chained(3), collect),
		actors: []party{
			{"commit", all(next("a", 3), pruneTo("a", 1))},
			{"other", func(w *world) error { return w.commit("a", saves(noise(7000, 5))) }},
			{"gc", collect},
		},
	},
	{
		name: "a version is read while its chain is cut twice", before: all(chained(3), pruneTo("a", 2), collect),
		actors: []party{{"read", reads("a", 2)}, {"vacuum", all(vacuum, pruneTo("a", 1), vacuum)}},
	},
	{
		name:   "a kept revision in a chain is released while vacuum cuts it",
		before: all(chained(4), session("a", func(w *world, s *turnstone.Session) error { return s.Keep(w.ctx, "k", 2) }), pruneTo("a", 1), collect),
		actors: []party{
			{"release", session("a", func(w *world, s *turnstone.Session) error { return s.Release(w.ctx, "k") })},
			{"vacuum", vacuum},
			{"read", session("a", func(w *world, s *turnstone.Session) error {
				parts, err := s.Checkpoint(w.ctx, 2)
				if err == nil && !bytes.Equal(parts["p"], version(1)) {
					err = errors.New("the kept checkpoint is another")
				}
				return err
			})},
		},
	},
	{
		name:   "a name moves to a commit while what it kept is pruned and vacuumed",
		before: all(chained(3), session("a", func(w *world, s *turnstone.Session) error { return s.Keep(w.ctx, "k", 2) }), pruneTo("a", 1), collect),
		actors: []party{
			{"commit", func(w *world) error {
				c := saves(version(3))
				c.Keep = "k"
				return both(w.commit("a", c), pruneTo("a", 1)(w))
			}},
			{"next", next("a", 4)},
			{"vacuum", vacuum},
		},
	},
	{
		name: "a revision in a chain is kept while it is pruned and vacuumed", before: all(chained(4), collect),
		actors: []party{
			{"keep", session("a", func(w *world, s *turnstone.Session) error { return s.Keep(w.ctx, "k", 2) })},
			{"vacuum", all(pruneTo("a", 1), vacuum)},
		},
	},
	{
		name: "a fork takes a version whole while its chain is cut", before: all(chained(3), collect),
		actors: []party{
			{"fork", all(fork("f", "a"), func(w *world) error {
				err := reads("f", 2, 3)(w)
				return err
			})},
			{"vacuum", all(pruneTo("a", 1), vacuum)},
			{"commit", next("a", 3)},
		},
	},
	{
		name: "two forks take a version whole while the parent goes", before: all(chained(2), collect),
		actors: []party{
			{"f", fork("f", "a")},
			{"g", fork("g", "a")},
			{"gone", all(func(w *world) error { return w.Delete(w.ctx, "a", turnstone.KeepChildren) }, collect)},
		},
	},
	{
		name: "a fork goes on with its parent's part while both are pruned", before: all(chained(2), fork("f", "a"), collect),
		actors: []party{
			{"fork", all(next("f", 2), pruneTo("f", 1))},
			{"parent", pruneTo("a", 1)},
			{"vacuum", vacuum},
		},
	},
	{
		name: "the index is derived anew after chains were cut", before: all(chained(3), pruneTo("a", 1), vacuum),
		actors: []party{
			{"full", func(w *world) error { _, err := w.GC(w.ctx, gc.Options{Full: true}); return superseded(err) }},
			{"commit", all(next("a", 3), pruneTo("a", 1))},
		},
	},
	{
		name: "a commit stores much ahead while its part's last version is pruned", before: all(chained(1), collect),
		actors: []party{
			{"much", session("a", func(w *world, s *turnstone.Session) error {
				_, err := s.Checkpoint(w.ctx, 0)
				if err == nil {
					c := turnstone.Commit{Expected: turnstone.AnyRevision, Checkpoint: map[string][]byte{
						"m": noise(700<<10, 5), "n": noise(700<<10, 6), "p": version(2),
					}}
					_, err = s.Commit(w.ctx, c)
				}
				return err
			})},
			{"other", all(func(w *world) error { return w.commit("a", saves(noise(3000, 99))) }, pruneTo("a", 1), collect)},
		},
	},
	{
		name: "a part is dropped and set again while its chain is vacuumed", before: all(chained(3), collect),
		actors: []party{
			{"commits", all(
				func(w *world) error { return w.commit("a", turnstone.Commit{Drop: []string{"p"}}) },
				func(w *world) error { return w.commit("a", saves(version(1))) }, next("a", 2),
			)},
			{"vacuum", all(pruneTo("a", 1), vacuum)},
		},
	},
	{
		name: "a session with a chain is deleted while vacuum cuts the chain", before: all(chained(3), pruneTo("a", 1)),
		actors: []party{
			{"delete", func(w *world) error { return w.Delete(w.ctx, "a", turnstone.KeepChildren) }},
			{"vacuum", vacuum},
		},
	},
}

func superseded(err error) error {
	if err != nil && bytes.Contains([]byte(err.Error()), []byte("taken over")) {
		return nil
	}
	return err
}
