package tests

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/internal/testkit"
	"github.com/turnstonedb/turnstone/push"
)

// pushed pushes between two stores.
func pushed(t *testing.T, from, to push.Peer, o push.Options) *push.Report {
	t.Helper()
	r, err := push.Sessions(ctx, from, to, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// pushAll pushes all sessions. Those that can't go on from what is pruned in the other store are made anew there.
func pushAll(t *testing.T, from, to push.Peer, there *turnstone.Store) *push.Report {
	t.Helper()
	r, err := push.Sessions(ctx, from, to, push.Options{All: true})
	var all interface{ Unwrap() []error }
	if errors.As(err, &all) {
		for _, err := range all.Unwrap() {
			var of *turnstone.BundleError
			if !errors.Is(err, turnstone.ErrRevisionPruned) || !errors.As(err, &of) {
				t.Fatal(err)
			}
			remove(t, there, of.Session)
		}
		return pushed(t, from, to, push.Options{All: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// sameHeads fails the test unless each session of one store has the same head in the other one.
func sameHeads(t *testing.T, from, to *turnstone.Store) {
	t.Helper()
	for _, want := range infosOf(t, from) {
		got, err := session(t, to, want.ID).Info(ctx)
		if err != nil || got.Commit != want.Commit || got.Revision != want.Revision {
			t.Fatalf("session %q: %d %s, want %d %s: %v", want.ID, got.Revision, got.Commit, want.Revision, want.Commit, err)
		}
	}
}

// Sessions are pushed while they are committed to, pruned and vacuumed, on both sides.
func TestPU1_APushRunsBesideCommitsAndMaintenance(t *testing.T) {
	_, from := onMemory(t, nil)
	_, to := onMemory(t, nil)
	for i := range 5 {
		create(t, from, turnstone.Request{ID: fmt.Sprint("s", i)}, []byte("first"))
	}
	create(t, from, turnstone.Request{ID: "fork", Parent: "s0"})
	stop := make(chan struct{})
	var others sync.WaitGroup
	beside := func(f func(r *rand.Rand)) {
		others.Go(func() {
			for r := rand.New(rand.NewPCG(1, 1)); ; {
				select {
				case <-stop:
					return
				default:
					f(r)
				}
			}
		})
	}
	beside(func(r *rand.Rand) {
		s := session(t, from, fmt.Sprint("s", r.IntN(5)))
		commitTo(t, s, turnstone.Commit{
			Expected: turnstone.AnyRevision, Nodes: saying(random(r.IntN(6000), r.Uint64())), Checkpoint: map[string][]byte{"p": random(3000, uint64(r.IntN(3)))},
			Records: []turnstone.RecordChange{{Key: "r", Value: random(9, r.Uint64())}},
		})
	})
	beside(func(r *rand.Rand) {
		_, err := session(t, from, "s1").Prune(ctx, 3)
		must(t, err)
		vacuum(t, from)
		vacuum(t, to)
		time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
	})
	for range testkit.Pick(30, 15, 5) {
		if _, err := push.Sessions(ctx, from, to, push.Options{All: true}); err != nil && !errors.Is(err, turnstone.ErrRevisionPruned) {
			t.Error(err)
		}
	}
	close(stop)
	others.Wait()
	pushAll(t, from, to, to)
	sameHeads(t, from, to)
	verify(t, to)
}

// Over connections that are cut all the time sessions go from one server to another all the same, and none is there in
// part.
func TestPU2_APushGoesOnWhereItWasCutOff(t *testing.T) {
	cuts := int64(0)
	budget := func() (up, down int64) { return 1000 + rand.Int64N(50_000), 1000 + rand.Int64N(50_000) }
	for seed := range (randomHistories() + 1) / 2 {
		e, from := onMemory(t, &turnstone.Options{NoAutoSeal: true})
		other, to := onMemory(t, nil)
		source, c := storetest.Behind(t, e, budget)
		target, d := storetest.Behind(t, other, budget)
		p := newPast(t, from, seed)
		for range 2 {
			for range 5 + p.r.IntN(30) {
				p.step()
			}
			pushAll(t, source, target, to)
			sameHeads(t, from, to)
			verify(t, to)
		}
		cuts += c.Cuts.Load() + d.Cuts.Load()
	}
	if cuts < 20 {
		t.Errorf("only %d connections were cut", cuts)
	}
}

// A large session goes on in the middle, in both directions: a bundle that is cut off is not sent again from its
// beginning.
func TestPU2_ALargeSessionGoesOnInTheMiddle(t *testing.T) {
	e, from := onMemory(t, nil)
	other, to := onMemory(t, nil)
	s := create(t, from, turnstone.Request{ID: "s"})
	size := testkit.Pick(30, 30, 12) << 20
	commitTo(t, s, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "k", Attachments: []blob.Attachment{upload(t, s, random(size, 1))}}}})
	var bytes atomic.Int64
	budget := func() (int64, int64) { bytes.Add(int64(size / 5)); return int64(size / 5), int64(size / 5) }
	source, c := storetest.Behind(t, e, budget)
	target, d := storetest.Behind(t, other, budget)
	pushed(t, source, target, push.Options{All: true})
	sameThere(t, from, to, false, "s")
	if c.Cuts.Load() < 4 || d.Cuts.Load() < 4 {
		t.Errorf("%d connections were cut, and %d", c.Cuts.Load(), d.Cuts.Load())
	}
	if n := bytes.Load(); n > int64(4*size) {
		t.Errorf("up to %d bytes were sent for %d", n, size)
	}
}

func ids(t *testing.T, st *turnstone.Store) (out []string) {
	for _, i := range infosOf(t, st) {
		out = append(out, i.ID)
	}
	slices.Sort(out)
	return out
}

// A push brings what the other store lacks, and a second one nothing.
func TestPU1_APushBringsWhatIsMissing(t *testing.T) {
	for seed := range randomHistories() {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			_, from := onMemory(t, &turnstone.Options{NoAutoSeal: true})
			_, to := onMemory(t, nil)
			p := newPast(t, from, seed)
			for range 5 {
				for range 5 + p.r.IntN(20) {
					p.step()
				}
				pushAll(t, from, to, to)
				sameHeads(t, from, to)
				if r := pushed(t, from, to, push.Options{All: true}); len(r.Sessions) > 0 || r.Same != len(ids(t, from)) || r.Bytes > 0 {
					t.Fatalf("a second push brought %+v of %d", r, len(ids(t, from)))
				}
				verify(t, to)
			}
			_, to = onMemory(t, nil)
			pushed(t, from, to, push.Options{All: true})
			sameThere(t, from, to, false, ids(t, from)...)
		})
	}
}

// apart makes two stores that share sessions, each with commits of its own.
func apart(t *testing.T, seed uint64) (a, b *turnstone.Store, here, there *past) {
	_, a = onMemory(t, &turnstone.Options{NoAutoSeal: true})
	_, b = onMemory(t, &turnstone.Options{NoAutoSeal: true})
	here = newPast(t, a, seed)
	for range 30 {
		here.step()
	}
	pushed(t, a, b, push.Options{All: true})
	there = &past{t: t, r: rand.New(rand.NewPCG(seed, 48)), st: b, ids: slices.Clone(here.ids), parts: maps.Clone(here.parts), n: 10_000}
	return a, b, here, there
}

// nodesOf returns the ids of all nodes that a session shows, and their payloads.
func nodesOf(t *testing.T, s *turnstone.Session) map[graph.ID]string {
	t.Helper()
	state, err := s.Load(ctx, turnstone.Scope{Full: true})
	must(t, err)
	out := map[graph.ID]string{}
	for _, n := range state.Nodes {
		out[n.ID] = string(n.Payload)
	}
	return out
}

// An end is where a session stands for a host: its path, and its checkpoint.
type end struct {
	Leaf  graph.ID
	Parts map[string][]byte
}

func endOf(t *testing.T, s *turnstone.Session, at head.Revision) (out end) {
	t.Helper()
	state, err := s.Load(ctx, turnstone.Scope{At: at})
	must(t, err)
	out.Leaf = state.Leaf
	out.Parts, err = s.Checkpoint(ctx, at)
	must(t, err)
	return out
}

// Of two stores in which a session went on, each tells the other that it has diverged, and has both branches in the
// end.
func TestPU3_WhatHasDivergedBecomesABranch(t *testing.T) {
	for seed := range randomHistories() {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			a, b, here, there := apart(t, seed)
			for range testkit.Pick(3, 3, 1) {
				for range 15 {
					here.commit()
					there.commit()
				}
				for _, id := range here.ids {
					ours, theirs := session(t, a, id), session(t, b, id)
					before, other := endOf(t, ours, 0), endOf(t, theirs, 0)
					want := nodesOf(t, ours)
					maps.Copy(want, nodesOf(t, theirs))
					from, err := ours.Info(ctx)
					must(t, err)

					_, err = push.Sessions(ctx, b, a, push.Options{Sessions: []string{id}})
					var diverged *turnstone.DivergedError
					if !errors.As(err, &diverged) {
						must(t, err) // It has not.
						continue
					}
					if diverged.Here.Commit != from.Commit || diverged.Session != id {
						t.Fatalf("%+v, and %s is at %s", diverged, id, from.Commit)
					}
					checkCommon(t, ours, theirs, diverged.Common)

					pull := push.Options{Sessions: []string{id}, Branch: "theirs"}
					r := pushed(t, b, a, pull)
					kept := keptAs(t, ours, "theirs") // It may end there since an earlier push: commits without nodes don't come.
					if n := len(r.Sessions); n+r.Same != 1 || n == 1 && (r.Sessions[0].From != from.Revision || r.Sessions[0].Branch != kept) {
						t.Fatalf("%+v, kept %d", r, kept)
					}
					if got := nodesOf(t, ours); !maps.Equal(got, want) {
						t.Fatalf("%d nodes, want %d", len(got), len(want))
					}
					if got := endOf(t, ours, 0); !reflect.DeepEqual(got, before) {
						t.Fatal("it stands elsewhere than before")
					}
					if got := endOf(t, ours, kept); !reflect.DeepEqual(got, other) {
						t.Fatal("the branch does not end where the other one stands")
					}
					again := pushed(t, b, a, pull)
					if n := keptAs(t, ours, "theirs"); len(again.Sessions) > 0 || again.Same != 1 || n != kept {
						t.Fatalf("again: %+v, kept %d, and before %+v, kept %d", again, n, r, kept)
					}
				}
				verify(t, a)
				a, b, here, there = b, a, there, here
			}
		})
	}
}

// A branch comes whole and once, whatever is done to the session before any of its batches.
func TestPU3_ABranchComesBesideWhatIsDoneToTheSession(t *testing.T) {
	_, from := onMemory(t, nil)
	s := create(t, from, turnstone.Request{ID: "s"}, []byte("common"))
	commitTo(t, s, partOf(1))
	first := bundleOf(t, from, turnstone.Bundled{ID: "s"})
	for i := range 3 {
		commitTo(t, s, turnstone.Commit{Expected: head.Revision(2 + i), Nodes: saying(random(550_000, uint64(i))), Checkpoint: map[string][]byte{"p": random(3000, uint64(i))}})
	}
	theirs := bundleOf(t, from, turnstone.Bundled{ID: "s", Since: 2})
	for name, beside := range map[string]func(*turnstone.Session, *turnstone.Store){
		"commit": func(s *turnstone.Session, _ *turnstone.Store) {
			commitTo(t, s, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: saying([]byte("beside")), Checkpoint: map[string][]byte{"p": []byte("beside")}})
		},
		"collections": func(_ *turnstone.Session, st *turnstone.Store) {
			collect(t, st, gc.Options{Full: true})
			vacuum(t, st)
		},
		"the same branch": func(_ *turnstone.Session, st *turnstone.Store) {
			_, err := st.Unbundle(ctx, bytes.NewReader(theirs), turnstone.UnbundleOptions{Branch: "theirs"})
			must(t, err)
		},
		"a prune": func(s *turnstone.Session, _ *turnstone.Store) {
			_, err := s.Prune(ctx, 1)
			must(t, err)
		},
	} {
		for n := 1; ; n += testkit.Pick(1, 2, 5) {
			m := memory.New()
			other := openStore(t, m, &turnstone.Options{NoAutoSeal: true})
			unbundle(t, other, first)
			ours := session(t, other, "s")
			commitTo(t, ours, turnstone.Commit{Expected: 2, Nodes: saying([]byte("ours")), Checkpoint: map[string][]byte{"p": []byte("ours")}})
			hit := false
			st := openStore(t, &enginetest.Faulty{Engine: m, Plan: func(c enginetest.Call) enginetest.Fault {
				if c.Apply == n && !hit {
					hit = true
					beside(ours, other)
				}
				return enginetest.Fault{}
			}}, &turnstone.Options{NoAutoSeal: true})
			r, err := st.Unbundle(ctx, bytes.NewReader(theirs), turnstone.UnbundleOptions{Branch: "theirs"})
			must(t, err)
			verify(t, other)
			want := end{Parts: map[string][]byte{"p": []byte("ours")}}
			if name == "commit" && hit {
				want.Parts["p"] = []byte("beside")
			}
			got := endOf(t, ours, 0)
			payload, err := ours.Node(ctx, got.Leaf)
			must(t, err)
			if !reflect.DeepEqual(got.Parts, want.Parts) || string(payload.Payload) != string(want.Parts["p"]) {
				t.Fatalf("%s before apply %d: it stands at %q with %q", name, n, payload.Payload, got.Parts)
			}
			if got, want := endOf(t, ours, r.Sessions[0].Branch), endOf(t, s, 0); !reflect.DeepEqual(got, want) {
				t.Fatalf("%s before apply %d: the branch ends elsewhere", name, n)
			}
			if n, want := len(nodesOf(t, ours)), 6; n != want && name != "commit" {
				t.Fatalf("%s: %d nodes, want %d", name, n, want)
			}
			if !hit {
				break
			}
		}
	}
}

// keptAs returns the revision that a name keeps.
func keptAs(t *testing.T, s *turnstone.Session, name string) head.Revision {
	t.Helper()
	kept, err := s.Kept(ctx)
	must(t, err)
	for _, k := range kept {
		if k.Name == name {
			return k.Revision
		}
	}
	t.Fatalf("nothing is kept as %q", name)
	return 0
}

// checkCommon fails the test unless a commit is the last one that two sessions share.
func checkCommon(t *testing.T, a, b *turnstone.Session, common turnstone.Point) {
	t.Helper()
	commits := func(s *turnstone.Session) (out []head.CommitID) {
		for e, err := range s.Log(ctx, 0) {
			must(t, err)
			out = append(out, e.Commit)
		}
		return out
	}
	of, other := commits(a), commits(b)
	n := 0
	for n < len(of) && n < len(other) && of[n] == other[n] {
		n++
	}
	if int(common.Revision) != n || n > 0 && common.Commit != of[n-1] {
		t.Fatalf("the last common commit is %d, not %+v", n, common)
	}
}
