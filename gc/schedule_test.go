package gc_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
)

var ctx = context.Background()

// noise are bytes that no compression hides.
func noise(n int, seed uint64) []byte {
	b := make([]byte, n)
	rng := rand.New(rand.NewPCG(seed, 7))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// version is the i-th version of a checkpoint part: a delta of the one before.
func version(i int) []byte {
	return append(noise(6000, 77), noise(100, uint64(1000+i))...)
}

var epoch = time.Unix(1_700_000_000, 0)

// A world is a store that a party of a scenario has open: each has its own, as
// another process would.
type world struct {
	*turnstone.Store
	e engine.Engine
}

// open opens the store on e; what is random in it depends on seed.
func open(e engine.Engine, seed byte, later time.Duration, keep turnstone.Retention) (*world, error) {
	st, err := turnstone.Open(ctx, e, &turnstone.Options{
		NoAutoSeal: true, Now: func() time.Time { return epoch.Add(later) }, UploadTTL: time.Hour, Retention: keep,
		Random: rand.NewChaCha8([32]byte{seed}),
	})
	if err != nil {
		return nil, err
	}
	return &world{st, e}, nil
}

func (w *world) create(r turnstone.Request) (*turnstone.Session, error) {
	s, _, err := w.Create(ctx, r)
	return s, err
}

// commit commits to a session; losing to others is part of the game.
func (w *world) commit(id string, c turnstone.Commit) error {
	s, err := w.Session(ctx, id)
	if err != nil {
		return fair(err)
	}
	c.Expected = turnstone.AnyRevision
	_, err = s.Commit(ctx, c)
	return fair(err)
}

// fair returns errors that no schedule may cause.
func fair(err error) error {
	for _, ok := range []error{
		turnstone.ErrSessionNotFound, turnstone.ErrSessionDeleted, turnstone.ErrRevisionPruned, turnstone.ErrUploadExpired,
		turnstone.ErrHasChildren, turnstone.ErrNodeNotFound,
	} {
		if errors.Is(err, ok) {
			return nil
		}
	}
	return err
}

func says(payloads ...[]byte) turnstone.Commit {
	var c turnstone.Commit
	for _, p := range payloads {
		c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "u", Payload: p})
	}
	return c
}

func saves(part []byte) turnstone.Commit {
	return turnstone.Commit{Checkpoint: map[string][]byte{"p": part}}
}

// collect is a collector; another one may take over.
func collect(w *world) error {
	_, err := w.GC(ctx, turnstone.GCOptions{})
	if err != nil && strings.Contains(err.Error(), "taken over") {
		return nil
	}
	return err
}

func vacuum(w *world) error {
	_, err := w.Vacuum(ctx, turnstone.VacuumOptions{})
	if err != nil && strings.Contains(err.Error(), "taken over") {
		return nil
	}
	return err
}

// A scenario is what happens before, and parties that do their part at once.
type scenario struct {
	name   string
	before func(w *world) error
	keep   turnstone.Retention
	later  time.Duration // the clock of the parties
	actors []party
}

type party struct {
	name string
	run  func(w *world) error
}

// A lazy engine is what a store is opened on before its party takes part: opening
// is no part of the game.
type lazy struct{ engine.Engine }

// preemptions is how far TestEverySchedule goes; .ci/run asks for 3.
var preemptions = flag.Int("preemptions", 1, "explore schedules with at most so many preemptions")

func both(errs ...error) error { return errors.Join(errs...) }

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
	r, err := s.Commit(ctx, says([]byte("1"), big))
	if err == nil {
		err = s.Tombstone(ctx, r.Nodes[1])
	}
	return both(err, collect(w))
}

var scenarios = []scenario{
	{
		name: "two commits share a blob that is garbage",
		before: func(w *world) error {
			for _, id := range []string{"a", "b", "c"} {
				if _, err := w.create(turnstone.Request{ID: id}); err != nil {
					return err
				}
			}
			return both(w.commit("a", says(big)), collect(w), w.Delete(ctx, "a", turnstone.KeepChildren))
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
			return both(w.commit("a", saves(version(1))), collect(w), w.commit("a", saves(version(2))), w.Delete(ctx, "a", turnstone.KeepChildren))
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
				s, err := w.Session(ctx, "a")
				if err == nil {
					_, err = s.Checkpoint(ctx, 0) // has version 1 at hand from here on
				}
				if err != nil {
					return fair(err)
				}
				c := saves(version(3))
				c.Expected = turnstone.AnyRevision
				_, err = s.Commit(ctx, c)
				return fair(err)
			}},
			{"other", func(w *world) error {
				err := w.commit("a", saves(noise(7000, 5)))
				if err == nil {
					_, err = w.Prune(ctx)
				}
				return fair(err)
			}},
			{"gc", collect},
		},
	},
	{
		name: "fork, delete and gc",
		before: func(w *world) error {
			s, err := w.create(turnstone.Request{ID: "a"})
			if err != nil {
				return err
			}
			c := says(big)
			c.Checkpoint = map[string][]byte{"p": version(1)}
			_, err = s.Commit(ctx, c)
			return both(err, collect(w))
		},
		actors: []party{
			{"fork", func(w *world) error {
				_, err := w.create(turnstone.Request{ID: "f", Parent: "a"})
				return fair(err)
			}},
			{"delete", func(w *world) error { return w.Delete(ctx, "a", turnstone.KeepChildren) }},
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
			{"delete", func(w *world) error { return w.Delete(ctx, "a", turnstone.KeepChildren) }},
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
			return both(err, w.Delete(ctx, "a", turnstone.KeepChildren), collect(w))
		},
		actors: []party{
			{"fork", func(w *world) error {
				_, err := w.create(turnstone.Request{ID: "g", Parent: "f"})
				return fair(err)
			}},
			{"delete", func(w *world) error { return fair(w.Delete(ctx, "f", turnstone.RefuseChildren)) }},
			{"vacuum", vacuum},
		},
	},
	{
		name: "upload, expiry and gc", later: 2 * time.Hour,
		before: func(w *world) error {
			s, err := w.create(turnstone.Request{ID: "a"})
			if err == nil {
				_, err = s.PutAttachment(ctx, bytes.NewReader(upload), -1, "", "")
			}
			return both(err, collect(w))
		},
		actors: []party{
			{"commit", func(w *world) error {
				s, err := w.Session(ctx, "a")
				if err != nil {
					return err
				}
				ref := turnstone.Attachment{ID: blobSum(upload), Size: 270 << 10}
				_, err = s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "u", Attachments: []turnstone.Attachment{ref}}}})
				return fair(err)
			}},
			{"gc", collect},
		},
	},
	{
		name: "upload of what expires", later: 2 * time.Hour,
		before: func(w *world) error {
			s, err := w.create(turnstone.Request{ID: "a"})
			if err == nil {
				_, err = s.PutAttachment(ctx, bytes.NewReader(upload), -1, "", "")
			}
			return both(err, collect(w))
		},
		actors: []party{
			{"upload", func(w *world) error {
				s, err := w.Session(ctx, "a")
				if err != nil {
					return err
				}
				a, err := s.PutAttachment(ctx, bytes.NewReader(upload), -1, "", "")
				if errors.Is(err, blobExpired) {
					return nil
				}
				if err != nil {
					return err
				}
				_, err = s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "u", Attachments: []turnstone.Attachment{a}}}})
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
				s, err := w.Session(ctx, "a")
				if err != nil {
					return err
				}
				st, err := s.Load(ctx, turnstone.Scope{At: 1})
				if err == nil {
					_, err = w.create(turnstone.Request{ID: "f", Parent: "a", ForkNode: st.Leaf})
				}
				return fair(err)
			}},
			{"load", func(w *world) error {
				s, err := w.Session(ctx, "a")
				if err == nil {
					_, err = s.Checkpoint(ctx, 2)
				}
				return fair(err)
			}},
			{"gc", func(w *world) error {
				_, err := w.Prune(ctx)
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
				s, err := w.Session(ctx, "a")
				if err == nil {
					err = s.Keep(ctx, "k", 1)
				}
				return fair(err)
			}},
			{"gc", func(w *world) error {
				_, err := w.Prune(ctx)
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
				_, err = w.Prune(ctx)
			}
			return both(err, w.Seal(ctx), collect(w))
		},
		actors: []party{
			{"read", func(w *world) error {
				s, err := w.Session(ctx, "a")
				if err != nil {
					return err
				}
				parts, err := s.Checkpoint(ctx, 0)
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
				s, err := w.Session(ctx, "a")
				if err == nil {
					err = s.Seal(ctx)
				}
				return fair(err)
			}},
			{"tombstone", func(w *world) error {
				s, err := w.Session(ctx, "a")
				if err != nil {
					return fair(err)
				}
				st, err := s.Load(ctx, turnstone.Scope{})
				if err == nil {
					err = s.Tombstone(ctx, st.Nodes[0].ID)
				}
				return fair(err)
			}},
			{"delete", func(w *world) error { return w.Delete(ctx, "a", turnstone.KeepChildren) }},
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
				s, err := w.Session(ctx, "a")
				if err == nil {
					err = s.Seal(ctx)
				}
				return fair(err)
			}},
			{"delete", func(w *world) error {
				return both(w.Delete(ctx, "a", turnstone.KeepChildren), vacuum(w))
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
			r, err := s.Commit(ctx, says([]byte("root"), []byte("side")))
			if err != nil {
				return err
			}
			c := says([]byte("main"))
			c.Expected, c.Nodes[0].Parent = 1, turnstone.At(r.Nodes[0])
			if _, err = s.Commit(ctx, c); err == nil {
				_, err = s.Prune(ctx, 1)
			}
			return both(err, w.Seal(ctx), collect(w))
		},
		actors: []party{
			{"rewind", func(w *world) error {
				s, err := w.Session(ctx, "a")
				if err != nil {
					return err
				}
				st, err := s.Load(ctx, turnstone.Scope{Full: true})
				if err != nil {
					return fair(err)
				}
				i := slices.IndexFunc(st.Nodes, func(n turnstone.Node) bool { return string(n.Payload) == "side" })
				if i < 0 {
					return nil
				}
				r, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Leaf: turnstone.At(st.Nodes[i].ID)})
				if err != nil {
					return fair(err)
				}
				st, err = s.Load(ctx, turnstone.Scope{})
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
				st, err := s.Load(ctx, turnstone.Scope{})
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
			return both(w.commit("a", says(big)), collect(w), w.Delete(ctx, "a", turnstone.KeepChildren))
		},
		actors: []party{
			{"gc1", collect},
			{"gc2", collect},
			{"b", func(w *world) error { return w.commit("b", says(big)) }},
		},
	},
}

// build returns the scenario on a fresh engine; change may replace the engine of
// an actor by one that does something wrong.
func (sc *scenario) build(t testing.TB, change func(party string, e engine.Engine) engine.Engine) func() (enginetest.Scenario, error) {
	e := memory.New()
	w, err := open(e, 0, 0, 0)
	if err == nil {
		err = sc.before(w)
	}
	if err != nil {
		t.Fatalf("%s: %v", sc.name, err)
	}
	var start engine.Batch
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		start.Sets = append(start.Sets, p)
	}
	return func() (enginetest.Scenario, error) {
		e := memory.New()
		out := enginetest.Scenario{Engine: e, Step: func() error { return reachable(e, false) }, End: func() error { return sc.end(e) }}
		if err := e.Apply(ctx, &start); err != nil {
			return out, err
		}
		for i, p := range sc.actors {
			at := &lazy{e}
			w, err := open(at, byte(1+i), sc.later, sc.keep)
			if err != nil {
				return out, err
			}
			out.Actors = append(out.Actors, enginetest.Actor{Name: p.name, Run: func(e engine.Engine) error {
				if change != nil {
					e = change(p.name, e)
				}
				at.Engine = e
				defer w.Close()
				return p.run(w)
			}})
		}
		return out, nil
	}
}

// end collects twice, after which nothing unreachable is left and all is well.
func (sc *scenario) end(e engine.Engine) error {
	w, err := open(e, 100, sc.later+24*time.Hour, 0)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := both(vacuum(w), vacuum(w)); err != nil {
		return err
	}
	if err := reachable(e, true); err != nil {
		return err
	}
	v, err := w.Verify(ctx, nil)
	if err == nil && !v.OK() {
		err = fmt.Errorf("verify: %v", v.Problems)
	}
	return err
}

// Obligation 1 of the protocol: every schedule up to a number of preemptions
// keeps what is reachable and leaves nothing that is not.
func TestEverySchedule(t *testing.T) {
	var all enginetest.Explored
	for i := range scenarios {
		sc := &scenarios[i]
		t.Run(sc.name, func(t *testing.T) {
			bound := *preemptions
			start := time.Now()
			x, err := enginetest.Explore(bound, sc.build(t, nil))
			if err != nil {
				t.Fatal(err)
			}
			all.Schedules, all.Steps = all.Schedules+x.Schedules, all.Steps+x.Steps
			t.Logf("%d schedules with at most %d preemptions, %d steps at most, in %v", x.Schedules, bound, x.Longest, time.Since(start).Round(time.Millisecond))
		})
	}
	t.Logf("%d schedules, %d steps", all.Schedules, all.Steps)
}

// Obligation 3: the parties of every scenario, one after the other, cut off at
// every call of the engine: afterwards all is well, and nothing is left behind.
func TestCutAtEveryStep(t *testing.T) {
	cuts := 0
	for i := range scenarios {
		sc := &scenarios[i]
		t.Run(sc.name, func(t *testing.T) {
			build := sc.build(t, nil)
			for n, crashed := 1, true; crashed; n++ {
				for _, applied := range []bool{false, true} {
					run, err := build()
					if err != nil {
						t.Fatal(err)
					}
					crashed = false
					f := &enginetest.Faulty{Engine: run.Engine, Plan: func(c enginetest.Call) enginetest.Fault {
						crashed = crashed || c.N == n
						return enginetest.Fault{Crash: c.N == n, Applied: applied}
					}}
					for _, a := range run.Actors {
						if err := a.Run(f); err != nil && !errors.Is(err, engine.ErrClosed) {
							t.Fatalf("cut at call %d: %s: %v", n, a.Name, err)
						}
					}
					cuts++
					if err := both(reachable(run.Engine, false), run.End()); err != nil {
						t.Fatalf("cut at call %d, applied %v: %v", n, applied, err)
					}
				}
			}
		})
	}
	t.Logf("%d cuts", cuts)
}

// The outcome of an Apply is not known, whether it took effect at once, later or
// not at all.
func TestUnknownOutcomes(t *testing.T) {
	for i := range scenarios {
		sc := &scenarios[i]
		t.Run(sc.name, func(t *testing.T) {
			build := sc.build(t, nil)
			for n, hit := 1, true; hit; n++ {
				for _, fault := range []enginetest.Fault{{Err: engine.ErrUnknown}, {Err: engine.ErrUnknown, Applied: true}, {Err: engine.ErrUnknown, Late: true}} {
					run, err := build()
					if err != nil {
						t.Fatal(err)
					}
					hit = false
					f := &enginetest.Faulty{Engine: run.Engine, Plan: func(c enginetest.Call) enginetest.Fault {
						if hit = hit || c.Apply == n; c.Apply == n {
							return fault
						}
						return enginetest.Fault{}
					}}
					for _, a := range run.Actors {
						if err := a.Run(f); err != nil {
							t.Fatalf("%+v at apply %d: %s: %v", fault, n, a.Name, err)
						}
					}
					if err := both(reachable(run.Engine, false), run.End()); err != nil {
						t.Fatalf("%+v at apply %d: %v", fault, n, err)
					}
				}
			}
		})
	}
}
