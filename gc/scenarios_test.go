package gc_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
)

// A scenario is a store and parties that do something to it at the same time.
type scenario struct {
	name   string
	before func(w *world) error
	keep   head.Retention
	later  time.Duration // the clock of the parties
	actors []party
}

type party struct {
	name string
	run  func(w *world) error
}

var (
	big    = noise(6000, 1)
	upload = noise(270<<10, 3) // some chunks
)

// tombstoned makes a session with a node that is tombstoned.
func tombstoned(w *world) error {
	s, err := w.create(turnstone.Request{ID: "a"})
	if err != nil {
		return err
	}
	r, err := s.Commit(w.ctx, says([]byte("1"), big))
	if err == nil {
		err = s.Tombstone(w.ctx, r.Nodes[1])
	}
	return both(err, collect(w))
}

// withCheckpoint makes a session with a node and a checkpoint that are blobs.
func withCheckpoint(w *world) error {
	s, err := w.create(turnstone.Request{ID: "a"})
	if err != nil {
		return err
	}
	c := says(big)
	c.Checkpoint = map[string][]byte{"p": version(1)}
	_, err = s.Commit(w.ctx, c)
	return both(err, collect(w))
}

var scenarios = slices.Concat(blobScenarios, partScenarios, forkScenarios, recordScenarios)

var blobScenarios = []scenario{
	{
		name: "two commits share a blob that is garbage",
		before: func(w *world) error {
			for _, id := range []string{"a", "b", "c"} {
				if _, err := w.create(turnstone.Request{ID: id}); err != nil {
					return err
				}
			}
			return both(w.commit("a", says(big)), collect(w), w.Delete(w.ctx, "a", turnstone.KeepChildren))
		},
		actors: []party{
			{"gc", collect},
			{"b", func(w *world) error { return w.commit("b", says(big)) }},
			{"c", func(w *world) error { return w.commit("c", says(big)) }},
		},
	},
	{
		name: "a delta is used again while its base is condemned",
		before: func(w *world) error {
			for _, id := range []string{"a", "b"} {
				if _, err := w.create(turnstone.Request{ID: id}); err != nil {
					return err
				}
			}
			// The delta is in a commit that gc has not seen; its base is.
			return both(w.commit("a", saves(version(1))), collect(w), w.commit("a", saves(version(2))), w.Delete(w.ctx, "a", turnstone.KeepChildren))
		},
		actors: []party{
			{"gc", collect},
			{"b", func(w *world) error { return w.commit("b", saves(version(2))) }},
		},
	},
	{
		name: "a new delta on a base that retention drops", keep: 1,
		before: func(w *world) error {
			if _, err := w.create(turnstone.Request{ID: "a"}); err != nil {
				return err
			}
			return both(w.commit("a", saves(version(1))), collect(w))
		},
		actors: []party{
			{"slow", func(w *world) error {
				s, err := w.Session(w.ctx, "a")
				if err == nil {
					_, err = s.Checkpoint(w.ctx, 0) // has version 1 at hand from here on
				}
				if err != nil {
					return fair(err)
				}
				c := saves(version(3))
				c.Expected = turnstone.AnyRevision
				_, err = s.Commit(w.ctx, c)
				return fair(err)
			}},
			{"other", func(w *world) error {
				err := w.commit("a", saves(noise(7000, 5)))
				if err == nil {
					err = w.prune()
				}
				return fair(err)
			}},
			{"gc", collect},
		},
	},
	{
		name: "fork, delete and gc", before: withCheckpoint,
		actors: []party{
			{"fork", func(w *world) error {
				_, err := w.create(turnstone.Request{ID: "f", Parent: "a"})
				return fair(err)
			}},
			{"delete", func(w *world) error { return w.Delete(w.ctx, "a", turnstone.KeepChildren) }},
			{"gc", collect},
		},
	},
	{
		name: "commit, delete and gc",
		before: func(w *world) error {
			_, err := w.create(turnstone.Request{ID: "a"})
			return both(err, w.commit("a", says([]byte("1"))), collect(w))
		},
		actors: []party{
			{"commit", func(w *world) error { return w.commit("a", says(big)) }},
			{"delete", func(w *world) error { return w.Delete(w.ctx, "a", turnstone.KeepChildren) }},
			{"gc", collect},
		},
	},
	{
		name: "a fork's fork, delete and vacuum",
		before: func(w *world) error {
			_, err := w.create(turnstone.Request{ID: "a"})
			err = both(err, w.commit("a", says(big)))
			if err == nil {
				_, err = w.create(turnstone.Request{ID: "f", Parent: "a"})
			}
			return both(err, w.Delete(w.ctx, "a", turnstone.KeepChildren), collect(w))
		},
		actors: []party{
			{"fork", func(w *world) error {
				_, err := w.create(turnstone.Request{ID: "g", Parent: "f"})
				return fair(err)
			}},
			{"delete", func(w *world) error { return fair(w.Delete(w.ctx, "f", turnstone.RefuseChildren)) }},
			{"vacuum", vacuum},
		},
	},
	{
		name: "upload, expiry and gc", later: 2 * time.Hour,
		before: uploaded,
		actors: []party{
			{"commit", func(w *world) error {
				s, err := w.Session(w.ctx, "a")
				if err != nil {
					return err
				}
				ref := blob.Attachment{ID: blobSum(upload), Size: 270 << 10}
				_, err = s.Commit(w.ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "u", Attachments: []blob.Attachment{ref}}}})
				return fair(err)
			}},
			{"gc", collect},
		},
	},
	{
		name: "upload of what expires", later: 2 * time.Hour,
		before: uploaded,
		actors: []party{
			{"upload", func(w *world) error {
				s, err := w.Session(w.ctx, "a")
				if err != nil {
					return err
				}
				a, err := s.PutAttachment(w.ctx, bytes.NewReader(upload), -1, "", "")
				if errors.Is(err, blobExpired) {
					return nil
				}
				if err != nil {
					return err
				}
				_, err = s.Commit(w.ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "u", Attachments: []blob.Attachment{a}}}})
				return err // it has not expired
			}},
			{"gc", collect},
		},
	},
	{
		name: "retention against a fork at and a load of an old revision", keep: 1,
		before: func(w *world) error {
			_, err := w.create(turnstone.Request{ID: "a"})
			for i := range 3 {
				c := says([]byte(fmt.Sprint(i)))
				c.Checkpoint = map[string][]byte{"p": noise(600, uint64(i))}
				err = both(err, w.commit("a", c))
			}
			return both(err, collect(w))
		},
		actors: []party{
			{"fork", func(w *world) error {
				s, err := w.Session(w.ctx, "a")
				if err != nil {
					return err
				}
				st, err := s.Load(w.ctx, turnstone.Scope{At: 1})
				if err == nil {
					_, err = w.create(turnstone.Request{ID: "f", Parent: "a", ForkNode: st.Leaf})
				}
				return fair(err)
			}},
			{"load", func(w *world) error {
				s, err := w.Session(w.ctx, "a")
				if err == nil {
					_, err = s.Checkpoint(w.ctx, 2)
				}
				return fair(err)
			}},
			{"gc", func(w *world) error {
				err := w.prune()
				return both(err, collect(w))
			}},
		},
	},
	{
		name: "a revision is kept while it is pruned", keep: 1,
		before: func(w *world) error {
			_, err := w.create(turnstone.Request{ID: "a"})
			for i := range 3 {
				err = both(err, w.commit("a", saves(noise(600, uint64(i)))))
			}
			return both(err, collect(w))
		},
		actors: []party{
			{"keep", func(w *world) error {
				s, err := w.Session(w.ctx, "a")
				if err == nil {
					err = s.Keep(w.ctx, "k", 1)
				}
				return fair(err)
			}},
			{"gc", func(w *world) error {
				err := w.prune()
				return both(err, collect(w))
			}},
		},
	},
	{
		name: "a checkpoint is read while vacuum takes its base away", keep: 1,
		before: func(w *world) error {
			_, err := w.create(turnstone.Request{ID: "a"})
			for i := range 3 {
				err = both(err, w.commit("a", saves(version(i))))
			}
			if err == nil {
				err = w.prune()
			}
			return both(err, w.Seal(w.ctx), collect(w))
		},
		actors: []party{
			{"read", func(w *world) error {
				s, err := w.Session(w.ctx, "a")
				if err != nil {
					return err
				}
				parts, err := s.Checkpoint(w.ctx, 0)
				if err == nil && !bytes.Equal(parts["p"], version(2)) && !bytes.Equal(parts["p"], version(1)) {
					err = errors.New("the checkpoint is another")
				}
				return err
			}},
			{"vacuum", vacuum},
			{"commit", func(w *world) error { return w.commit("a", saves(version(1))) }},
		},
	},
	{
		name: "seal, load, tombstone and delete",
		before: func(w *world) error {
			_, err := w.create(turnstone.Request{ID: "a"})
			return both(err, w.commit("a", says([]byte("1"), []byte("2"))), w.commit("a", says([]byte("3"))))
		},
		actors: []party{
			{"seal", func(w *world) error {
				s, err := w.Session(w.ctx, "a")
				if err == nil {
					err = s.Seal(w.ctx)
				}
				return fair(err)
			}},
			{"tombstone", func(w *world) error {
				s, err := w.Session(w.ctx, "a")
				if err != nil {
					return fair(err)
				}
				st, err := s.Load(w.ctx, turnstone.Scope{})
				if err == nil {
					err = s.Tombstone(w.ctx, st.Nodes[0].ID)
				}
				return fair(err)
			}},
			{"delete", func(w *world) error { return w.Delete(w.ctx, "a", turnstone.KeepChildren) }},
		},
	},
	{
		name: "seal of a session that is deleted and vacuumed",
		before: func(w *world) error {
			_, err := w.create(turnstone.Request{ID: "a"})
			return both(err, w.commit("a", says([]byte("1"))), w.commit("a", says([]byte("2"))))
		},
		actors: []party{
			{"seal", func(w *world) error {
				s, err := w.Session(w.ctx, "a")
				if err == nil {
					err = s.Seal(w.ctx)
				}
				return fair(err)
			}},
			{"delete", func(w *world) error {
				return both(w.Delete(w.ctx, "a", turnstone.KeepChildren), vacuum(w))
			}},
		},
	},
	{
		name: "vacuum against a commit that rewinds to what it prunes, and a load",
		before: func(w *world) error {
			s, err := w.create(turnstone.Request{ID: "a"})
			if err != nil {
				return err
			}
			r, err := s.Commit(w.ctx, says([]byte("root"), []byte("side")))
			if err != nil {
				return err
			}
			c := says([]byte("main"))
			c.Expected, c.Nodes[0].Parent = 1, turnstone.RefTo(r.Nodes[0])
			if _, err = s.Commit(w.ctx, c); err == nil {
				_, err = s.Prune(w.ctx, 1)
			}
			return both(err, w.Seal(w.ctx), collect(w))
		},
		actors: []party{
			{"rewind", func(w *world) error {
				s, err := w.Session(w.ctx, "a")
				if err != nil {
					return err
				}
				st, err := s.Load(w.ctx, turnstone.Scope{Full: true})
				if err != nil {
					return fair(err)
				}
				i := slices.IndexFunc(st.Nodes, func(n turnstone.Node) bool { return string(n.Payload) == "side" })
				if i < 0 {
					return nil
				}
				r, err := s.Commit(w.ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Leaf: turnstone.RefTo(st.Nodes[i].ID)})
				if err != nil {
					return fair(err)
				}
				st, err = s.Load(w.ctx, turnstone.Scope{})
				if err == nil && (st.Revision != r.Revision || len(st.Nodes) != 2) {
					err = fmt.Errorf("%d nodes are on the path at revision %d", len(st.Nodes), st.Revision)
				}
				return err
			}},
			{"vacuum", vacuum},
		},
	},
	{
		name: "vacuum of tombstoned nodes against a commit", before: tombstoned,
		actors: []party{
			{"vacuum", vacuum},
			{"commit", func(w *world) error { return w.commit("a", says(big)) }},
		},
	},
	{
		name: "vacuum of tombstoned nodes against a fork and a load", before: tombstoned,
		actors: []party{
			{"vacuum", vacuum},
			{"load", func(w *world) error {
				s, err := w.create(turnstone.Request{ID: "f", Parent: "a"})
				if err != nil {
					return err
				}
				st, err := s.Load(w.ctx, turnstone.Scope{})
				if err == nil && len(st.Nodes) != 1 {
					err = fmt.Errorf("the fork shows %d nodes", len(st.Nodes))
				}
				return err
			}},
		},
	},
	{
		name: "two collectors and a commit",
		before: func(w *world) error {
			for _, id := range []string{"a", "b"} {
				if _, err := w.create(turnstone.Request{ID: id}); err != nil {
					return err
				}
			}
			return both(w.commit("a", says(big)), collect(w), w.Delete(w.ctx, "a", turnstone.KeepChildren))
		},
		actors: []party{
			{"gc1", collect},
			{"gc2", collect},
			{"b", func(w *world) error { return w.commit("b", says(big)) }},
		},
	},
}
