package gc_test

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// at commits a node after another one.
func at(id string, parent graph.ID, payload []byte) func(w *world) error {
	return session(id, func(w *world, s *turnstone.Session) error {
		_, err := s.Commit(w.ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "u", Parent: turnstone.RefTo(parent), Payload: payload}}})
		return err
	})
}

// nodeOf returns the leaf at a revision of a session.
func nodeOf(w *world, id string, r head.Revision) (graph.ID, error) {
	s, err := w.Session(w.ctx, id)
	if err != nil {
		return graph.ID{}, err
	}
	st, err := s.Load(w.ctx, turnstone.Scope{At: r})
	if err != nil {
		return graph.ID{}, err
	}
	return st.Leaf, nil
}

// sideBranch makes session a with a root, a side branch of one node, and a main branch.
func sideBranch(w *world) error {
	s, err := w.create(turnstone.Request{ID: "a"})
	if err != nil {
		return err
	}
	root, err := s.Commit(w.ctx, says([]byte("root")))
	if err != nil {
		return err
	}
	return both(w.commit("a", says(big)), at("a", root.Leaf, []byte("main"))(w), collect(w))
}

// eraseNode erases the leaf of a revision.
func eraseNode(id string, r head.Revision) func(w *world) error {
	return func(w *world) error {
		node, err := nodeOf(w, id, r)
		if err == nil {
			var s *turnstone.Session
			if s, err = w.Session(w.ctx, id); err == nil {
				_, err = s.Erase(w.ctx, turnstone.EraseOptions{}, node)
			}
		}
		return superseded(fair(err))
	}
}

func erase(id string, policy turnstone.ChildPolicy) func(w *world) error {
	return func(w *world) error {
		_, err := w.Erase(w.ctx, id, policy, turnstone.EraseOptions{})
		return superseded(fair(err))
	}
}

func remove(id string, policy turnstone.ChildPolicy) func(w *world) error {
	return func(w *world) error { return fair(w.Delete(w.ctx, id, policy)) }
}

func uploads(id string, content []byte) func(w *world) error {
	return session(id, func(w *world, s *turnstone.Session) error {
		a, err := s.PutAttachment(w.ctx, bytes.NewReader(content), -1, "", "")
		if err == nil {
			_, err = s.Commit(w.ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "u", Attachments: []blob.Attachment{a}}}})
		}
		return err
	})
}

func made(id string, payloads ...[]byte) func(w *world) error {
	return func(w *world) error {
		_, err := w.create(turnstone.Request{ID: id})
		for _, p := range payloads {
			err = both(err, w.commit(id, says(p)))
		}
		return err
	}
}

// twoNodes commits a turn of two nodes to session a.
func twoNodes(w *world) error { return w.commit("a", says(big, []byte("x"))) }

var forkScenarios = []scenario{
	{
		name: "a fork at the head while its checkpoint is replaced and pruned",
		before: func(w *world) error {
			_, err := w.create(turnstone.Request{ID: "a"})
			return both(err, w.commit("a", saves(noise(6000, 1))), collect(w))
		},
		actors: []party{
			{"fork", all(fork("f", "a"), session("f", func(w *world, s *turnstone.Session) error { _, err := s.Checkpoint(w.ctx, 0); return err }))},
			{"other", all(func(w *world) error { return w.commit("a", saves(noise(6000, 2))) }, pruneTo("a", 1), collect)},
		},
	},
	{
		name: "a fork at a node that is pruned meanwhile", before: sideBranch,
		actors: []party{
			{"fork", func(w *world) error {
				s, err := w.Session(w.ctx, "a")
				if err != nil {
					return err
				}
				st, err := s.Load(w.ctx, turnstone.Scope{At: 2})
				if err != nil {
					return fair(err)
				}
				f, err := w.create(turnstone.Request{ID: "f", Parent: "a", ForkNode: st.Leaf})
				if err != nil {
					return fair(err)
				}
				got, err := f.Load(w.ctx, turnstone.Scope{})
				if err == nil && len(got.Nodes) != 2 {
					err = fmt.Errorf("the fork has %d nodes", len(got.Nodes))
				}
				return err
			}},
			{"vacuum", all(pruneTo("a", 1), vacuum)},
		},
	},
	{
		name: "a side branch is committed, left and pruned while vacuum runs", before: all(made("a", []byte("root")), collect),
		actors: []party{
			{"vacuum", vacuum},
			{"commits", func(w *world) error {
				root, err := nodeOf(w, "a", 1)
				return both(err, w.commit("a", says(big)), at("a", root, []byte("main"))(w), pruneTo("a", 1)(w))
			}},
		},
	},
	{
		name: "a node that its owner can't reach is erased by the only fork that shows it",
		before: all(sideBranch, func(w *world) error {
			node, err := nodeOf(w, "a", 2)
			if err == nil {
				_, err = w.create(turnstone.Request{ID: "f", Parent: "a", ForkNode: node})
			}
			return err
		}),
		actors: []party{
			{"erase", func(w *world) error {
				s, err := w.Session(w.ctx, "f")
				if err == nil {
					var st *turnstone.State
					if st, err = s.Load(w.ctx, turnstone.Scope{}); err == nil {
						_, err = s.Erase(w.ctx, turnstone.EraseOptions{}, st.Leaf)
					}
				}
				return superseded(fair(err))
			}},
			{"owner", pruneTo("a", 1)},
		},
	},
	{
		name: "a fork of a fork is made while the node that it shows is erased", before: all(made("a", big), fork("f", "a"), collect),
		actors: []party{
			{"erase", eraseNode("a", 1)},
			{"forks", all(fork("g", "f"), remove("f", turnstone.KeepChildren))},
		},
	},
	{
		name: "a session is renamed while it is erased", before: all(made("a", big), collect),
		actors: []party{
			{"erase", erase("a", turnstone.KeepChildren)},
			{"rename", func(w *world) error { return fair(w.rename("a", "b")) }},
		},
	},
	{
		name: "an id is given again while its session is erased", before: all(made("a", big), collect),
		actors: []party{
			{"erase", erase("a", turnstone.KeepChildren)},
			{"again", func(w *world) error {
				if err := w.Delete(w.ctx, "a", turnstone.KeepChildren); err != nil {
					return err
				}
				_, err := w.create(turnstone.Request{ID: "a"})
				return both(err, w.commit("a", says([]byte("another"))))
			}},
		},
	},
	{
		name: "an attachment is uploaded while its session is erased", before: all(made("a", []byte("1")), collect),
		actors: []party{
			{"upload", uploads("a", noise(3000, 8))},
			{"erase", erase("a", turnstone.KeepChildren)},
		},
	},
	{
		name: "an attachment is uploaded again while its node is erased", before: all(made("a"), uploads("a", big), collect),
		actors: []party{
			{"upload", uploads("a", big)},
			{"erase", eraseNode("a", 1)},
		},
	},
	{
		name: "a session is erased twice at once", before: all(made("a", big), fork("f", "a"), collect),
		actors: []party{
			{"one", erase("a", turnstone.KeepChildren)},
			{"two", erase("a", turnstone.KeepChildren)},
		},
	},
	{
		name: "a child is made while its parent goes with all children", before: all(made("a", big), fork("f", "a"), collect),
		actors: []party{
			{"erase", erase("a", turnstone.CascadeChildren)},
			{"child", all(fork("g", "f"), func(w *world) error { return w.commit("g", says([]byte("x"))) })},
		},
	},
	{
		name: "a parent is renamed while it is forked and the fork is deleted", before: all(made("a", big), collect),
		actors: []party{
			{"rename", func(w *world) error { return fair(w.rename("a", "b")) }},
			{"fork", all(fork("f", "a"), remove("f", turnstone.KeepChildren))},
			{"gc", collect},
		},
	},
	{
		name:   "the last fork of a deleted session goes while vacuum runs",
		before: all(made("a", big), fork("f", "a"), remove("a", turnstone.KeepChildren), collect),
		actors: []party{
			{"vacuum", vacuum},
			{"fork", remove("f", turnstone.KeepChildren)},
		},
	},
	{
		name: "a commit goes on from a tombstoned node while vacuum erases and prunes",
		before: all(sideBranch, func(w *world) error {
			node, err := nodeOf(w, "a", 2)
			return both(err, session("a", func(w *world, s *turnstone.Session) error { return s.Tombstone(w.ctx, node) })(w))
		}),
		actors: []party{
			{"commit", func(w *world) error {
				node, err := nodeOf(w, "a", 2)
				if err != nil {
					return fair(err)
				}
				return at("a", node, []byte("on"))(w)
			}},
			{"vacuum", all(pruneTo("a", 1), vacuum)},
		},
	},
	{
		name:   "a commit hides a node and moves the name of its branch while vacuum erases and prunes",
		before: all(sideBranch, session("a", func(w *world, s *turnstone.Session) error { return s.Keep(w.ctx, "k", 2) })),
		actors: []party{
			{"commit", func(w *world) error {
				node, err := nodeOf(w, "a", 2)
				if err != nil {
					return fair(err)
				}
				c := says(big)
				c.Tombstone, c.Keep = []graph.ID{node}, "k"
				return fair(w.commit("a", c))
			}},
			{"fork", func(w *world) error {
				node, err := nodeOf(w, "a", 2)
				if err == nil {
					_, err = w.create(turnstone.Request{ID: "f", Parent: "a", ForkNode: node})
				}
				return fair(err)
			}},
			{"vacuum", all(pruneTo("a", 1), vacuum)},
		},
	},
	{
		name: "two vacuums and a prune", before: sideBranch,
		actors: []party{{"one", vacuum}, {"two", vacuum}, {"prune", pruneTo("a", 1)}},
	},
	{
		name: "a node is kept by name while its branch is pruned", before: sideBranch,
		actors: []party{
			{"keep", func(w *world) error {
				return session("a", func(w *world, s *turnstone.Session) error {
					err := s.Keep(w.ctx, "k", 2)
					if err == nil {
						var st *turnstone.State
						if st, err = s.Load(w.ctx, turnstone.Scope{At: 2}); err == nil && len(st.Nodes) != 2 {
							err = errors.New("the kept revision shows less")
						}
					}
					return err
				})(w)
			}},
			{"vacuum", all(pruneTo("a", 1), vacuum)},
		},
	},
	{
		name:   "a session that was forked before its first commit is deleted while vacuum runs",
		before: all(made("a"), fork("f", "a"), twoNodes, twoNodes, twoNodes, collect),
		actors: []party{{"delete", remove("a", turnstone.KeepChildren)}, {"vacuum", vacuum}},
	},
	{
		name: "the index is derived anew after a deleted session is removed", before: all(chained(3), collect, remove("a", turnstone.KeepChildren)),
		actors: []party{
			{"vacuum", vacuum},
			{"full", func(w *world) error {
				_, err := w.GC(w.ctx, gc.Options{Full: true})
				return superseded(err)
			}},
		},
	},
}
