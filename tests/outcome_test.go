package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// An alteration is a call that alters the store, and how to see what it did.
type alteration struct {
	name string
	// call is the call, on the store of outcomeStore. told is what it returned beside
	// the error, as text.
	call func(st *turnstone.Store, s *turnstone.Session) (told string, err error)
	// prepared, if set, prepares the store, and returns the call in place of call.
	prepared func(*turnstone.Store, *turnstone.Session) (func() (string, error), error)
	// want is what told is when the call did its work.
	want string
	// ahead says that the call stores what nobody sees before its work is done.
	ahead bool
}

// on returns the call on a store, which it prepares.
func (a *alteration) on(t *testing.T, st *turnstone.Store, s *turnstone.Session) (call func() (string, error)) {
	t.Helper()
	if a.prepared == nil {
		return func() (string, error) { return a.call(st, s) }
	}
	call, err := a.prepared(st, s)
	must(t, err)
	return call
}

// sessionB returns the session b of outcomeStore, and the revision that it is at.
func sessionB(st *turnstone.Store) (*turnstone.Session, head.Revision, error) {
	b, err := st.Session(ctx, "b")
	if err != nil {
		return nil, 0, err
	}
	info, err := b.Info(ctx)
	return b, info.Revision, err
}

var effects = []alteration{
	{name: "create", want: "true", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) {
		n, created, err := st.Create(ctx, turnstone.Request{ID: "new"})
		if err == nil { // the handle is of the session that stands
			if _, ierr := n.Info(ctx); !errors.Is(ierr, engine.ErrUnavailable) {
				err = ierr
			}
		}
		return fmt.Sprint(created), err
	}},
	{name: "fork", want: "true", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) {
		_, created, err := st.Create(ctx, turnstone.Request{ID: "new", Parent: "a"})
		return fmt.Sprint(created), err
	}},
	{name: "commit", want: "4", call: func(_ *turnstone.Store, s *turnstone.Session) (string, error) {
		r, err := s.Commit(ctx, turnstone.Commit{Expected: 3, Nodes: saying([]byte("more")), Checkpoint: map[string][]byte{"p": []byte("new")}})
		return fmt.Sprint(r.Revision), err
	}},
	{name: "commit that hides and keeps", want: "4", call: func(_ *turnstone.Store, s *turnstone.Session) (string, error) {
		st, err := s.Load(ctx, turnstone.Scope{})
		if err != nil {
			return "", err
		}
		r, err := s.Commit(ctx, turnstone.Commit{
			Expected: 3, OnPath: st.Nodes[0].ID, Nodes: saying([]byte("more")), Tombstone: []graph.ID{st.Nodes[1].ID}, Keep: "branch", Labels: map[string]string{"a": "b"},
		})
		return fmt.Sprint(r.Revision), err
	}},
	{name: "commit all", want: "4 1", call: func(st *turnstone.Store, s *turnstone.Session) (string, error) {
		b, at, err := sessionB(st)
		if err != nil {
			return "", err
		}
		rs, err := st.CommitAll(ctx, turnstone.SessionCommit{Session: s, Commit: turnstone.Commit{Expected: 3, Nodes: saying([]byte("more"))}},
			turnstone.SessionCommit{Session: b, Commit: turnstone.Commit{Expected: at, Nodes: saying([]byte("more"))}})
		if err != nil {
			return "", err
		}
		return fmt.Sprint(rs[0].Revision, " ", rs[1].Revision-at), nil
	}},
	{name: "commit with records", want: "4 true none", call: func(_ *turnstone.Store, s *turnstone.Session) (string, error) {
		r, err := s.Record(ctx, "r")
		if err != nil {
			return "", err
		}
		c, err := s.Commit(ctx, turnstone.Commit{Expected: 3, Nodes: saying([]byte("more")), Records: []turnstone.RecordChange{
			{Key: "r", Value: []byte("new"), Expect: r.Version}, {Key: "r/gone", Action: turnstone.DeleteRecord}, {Key: "r/new", Value: []byte("more"), Expect: turnstone.NoRecord},
		}})
		if err != nil {
			return "", err
		}
		now, err := s.Record(ctx, "r")
		if errors.Is(err, engine.ErrUnavailable) || errors.Is(err, engine.ErrUnknown) {
			return "4 true none", nil
		}
		return fmt.Sprint(c.Revision, " ", now.Version == c.Records[0], " ", c.Records[1]), err
	}},
	{name: "records", want: "true none", call: func(_ *turnstone.Store, s *turnstone.Session) (string, error) {
		r, err := s.Record(ctx, "r")
		if err != nil {
			return "", err
		}
		vs, err := s.ChangeRecords(ctx, turnstone.RecordChange{Key: "r", Value: []byte("new"), Expect: r.Version}, turnstone.RecordChange{Key: "r/gone", Action: turnstone.DeleteRecord})
		if err != nil {
			return "", err
		}
		now, err := s.Record(ctx, "r")
		if errors.Is(err, engine.ErrUnavailable) {
			return "true none", nil
		}
		return fmt.Sprint(now.Version == vs[0], " ", vs[1]), err
	}},
	{name: "records of several sessions", want: "1", call: func(st *turnstone.Store, s *turnstone.Session) (string, error) {
		b, at, err := sessionB(st)
		if err != nil {
			return "", err
		}
		rs, err := st.CommitAll(ctx, turnstone.SessionCommit{Session: s, RecordsOnly: true, Commit: turnstone.Commit{Records: []turnstone.RecordChange{{Key: "sent", Value: []byte("to b")}}}},
			turnstone.SessionCommit{Session: b, Commit: turnstone.Commit{Expected: at, Nodes: saying([]byte("more"))}})
		if err != nil {
			return "", err
		}
		return fmt.Sprint(rs[1].Revision - at), nil
	}},
	{name: "create with a commit", want: "true 1 4", call: func(st *turnstone.Store, s *turnstone.Session) (string, error) {
		rs, err := st.CommitAll(ctx,
			turnstone.SessionCommit{Create: &turnstone.Request{ID: "new"}, Commit: turnstone.Commit{Nodes: saying([]byte("first")), Records: []turnstone.RecordChange{{Key: "k"}}}},
			turnstone.SessionCommit{Session: s, Commit: turnstone.Commit{Expected: 3, Nodes: saying([]byte("more"))}})
		if err != nil {
			return "", err
		}
		return fmt.Sprint(rs[0].Created, " ", rs[0].Revision, " ", rs[1].Revision), nil
	}},
	{name: "create with records", want: "true 0 4 v", call: func(st *turnstone.Store, s *turnstone.Session) (string, error) {
		rs, err := st.CommitAll(ctx,
			turnstone.SessionCommit{Create: &turnstone.Request{ID: "new"}, RecordsOnly: true, Commit: turnstone.Commit{Records: []turnstone.RecordChange{{Key: "k", Value: []byte("v"), Expect: turnstone.NoRecord}}}},
			turnstone.SessionCommit{Session: s, Commit: turnstone.Commit{Expected: 3, Nodes: saying([]byte("more"))}})
		if err != nil {
			return "", err
		}
		return fmt.Sprint(rs[0].Created, " ", rs[0].Revision, " ", rs[1].Revision, " v"), nil
	}},
	{name: "create with records alone", want: "true", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) {
		rs, err := st.CommitAll(ctx, turnstone.SessionCommit{Create: &turnstone.Request{ID: "new", Parent: "a"}, RecordsOnly: true, Commit: turnstone.Commit{Records: []turnstone.RecordChange{{Key: "k"}}}})
		if err != nil {
			return "", err
		}
		return fmt.Sprint(rs[0].Created), nil
	}},
	{name: "create with a commit alone", want: "true 1", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) {
		rs, err := st.CommitAll(ctx, turnstone.SessionCommit{Create: &turnstone.Request{ID: "new"}, Commit: turnstone.Commit{Turn: "t", Nodes: saying([]byte("first"))}})
		if err != nil {
			return "", err
		}
		return fmt.Sprint(rs[0].Created || rs[0].Replayed, " ", rs[0].Revision), nil
	}},
	{name: "fork with a commit", want: "true 1", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) {
		rs, err := st.CommitAll(ctx, turnstone.SessionCommit{Create: &turnstone.Request{ID: "new", Parent: "a"}, Commit: turnstone.Commit{Nodes: saying([]byte("first"))}})
		if err != nil {
			return "", err
		}
		return fmt.Sprint(rs[0].Created, " ", rs[0].Revision), nil
	}},
	{name: "rewind", want: "4", call: func(_ *turnstone.Store, s *turnstone.Session) (string, error) {
		state, err := s.Load(ctx, turnstone.Scope{})
		if err != nil {
			return "", err
		}
		r, err := s.Commit(ctx, turnstone.Commit{Expected: 3, Leaf: turnstone.RefTo(state.Nodes[0].ID)})
		return fmt.Sprint(r.Revision), err
	}},
	{name: "metadata", call: func(_ *turnstone.Store, s *turnstone.Session) (string, error) {
		return "", s.SaveMetadata(ctx, head.Metadata{Name: "other", Group: "g/h", Labels: map[string]string{"l": "v"}})
	}},
	{name: "rename", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) {
		return "", rename(ctx, st, "b", "renamed")
	}},
	{name: "tombstone", call: func(_ *turnstone.Store, s *turnstone.Session) (string, error) {
		state, err := s.Load(ctx, turnstone.Scope{})
		if err != nil {
			return "", err
		}
		return "", s.Tombstone(ctx, state.Nodes[1].ID)
	}},
	{name: "prune", want: "true", call: func(_ *turnstone.Store, s *turnstone.Session) (string, error) {
		moved, err := s.Prune(ctx, 2)
		return fmt.Sprint(moved), err
	}},
	{name: "prune all", want: "1", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) {
		r, err := st.Prune(ctx, gc.PruneOptions{})
		if err != nil {
			return "", err
		}
		return fmt.Sprint(r.Sessions), err
	}},
	{name: "prune what is old", want: "0 [b f a]", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) {
		r, err := st.Prune(ctx, gc.PruneOptions{Revisions: 1, Bytes: 1})
		if err != nil {
			return "", err
		}
		return fmt.Sprint(r.Sessions, " ", r.Deleted), err
	}},
	{name: "keep", call: func(_ *turnstone.Store, s *turnstone.Session) (string, error) { return "", s.Keep(ctx, "kept", 1) }},
	{name: "release", call: func(_ *turnstone.Store, s *turnstone.Session) (string, error) { return "", s.Release(ctx, "old") }},
	{name: "keep changes longer", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) {
		return "", st.StartFeed(ctx, turnstone.FeedOptions{Keep: 2 * time.Hour})
	}},
	{name: "stop feed", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) { return "", st.StopFeed(ctx) }},
	{name: "clone", want: "3", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) {
		c, err := turnstone.Clone(ctx, st.Factory(), "a", turnstone.Request{ID: "clone"})
		if err != nil {
			return "", err
		}
		i, err := c.Info(ctx)
		if errors.Is(err, engine.ErrUnavailable) {
			return "3", nil
		}
		return fmt.Sprint(i.Revision), err
	}},
	{name: "delete", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) {
		return "", st.Delete(ctx, "b", turnstone.RefuseChildren)
	}},
	{name: "cascade", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) {
		return "", st.Delete(ctx, "a", turnstone.CascadeChildren)
	}},
	{name: "erase", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) {
		_, err := st.Erase(ctx, "b", turnstone.KeepChildren, turnstone.EraseOptions{})
		return "", err
	}},
	{name: "erase node", call: func(_ *turnstone.Store, s *turnstone.Session) (string, error) {
		state, err := s.Load(ctx, turnstone.Scope{})
		if err != nil {
			return "", err
		}
		_, err = s.Erase(ctx, turnstone.EraseOptions{}, state.Nodes[1].ID)
		return "", err
	}},
	{name: "seal", call: func(_ *turnstone.Store, s *turnstone.Session) (string, error) { return "", s.Seal(ctx) }},
	{name: "attachment", call: func(_ *turnstone.Store, s *turnstone.Session) (string, error) {
		_, err := s.PutAttachment(ctx, strings.NewReader("text"), -1, "text/plain", "")
		return "", err
	}},
	{name: "link", want: "8", call: func(_ *turnstone.Store, s *turnstone.Session) (string, error) {
		a, err := s.LinkAttachment(ctx, "b", blob.Sum(attached))
		return fmt.Sprint(a.Size), err
	}},
	{name: "unbundle", ahead: true, want: "[{c true true 0 3 0} {d true true 0 1 0}]", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) {
		return unbundled(st, newSessions(), "")
	}},
	{name: "unbundle what goes on", ahead: true, want: "[{a false true 3 5 0}]", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) {
		b, err := goneOn(st)
		if err != nil {
			return "", err
		}
		return unbundled(st, b, "")
	}},
	{name: "unbundle a branch", ahead: true, want: "[{a false true 4 8 7}]", prepared: func(st *turnstone.Store, s *turnstone.Session) (func() (string, error), error) {
		b, err := goneOn(st)
		if err == nil {
			_, err = s.Commit(ctx, turnstone.Commit{Expected: 3, Nodes: saying([]byte("here")), Checkpoint: map[string][]byte{"p": random(5000, 9)}})
		}
		return func() (string, error) { return unbundled(st, b, "other") }, err
	}},
	{name: "stored part", want: "2", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) {
		b, at, err := sessionB(st)
		if err != nil {
			return "", err
		}
		r, err := b.Commit(ctx, turnstone.Commit{Expected: at, Stored: map[string]blob.ID{"p": blob.Sum(attached)}})
		return fmt.Sprint(r.Revision), err
	}},
}

// newSessions is a bundle of a session and of a fork of another one, which is not in it.
var newSessions = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	err := elsewhere(func(st *turnstone.Store) error {
		ids := []string{"c", "parent", "d"}
		for i, id := range ids {
			r := turnstone.Request{ID: id}
			if id == "d" {
				r.Parent = "parent"
			}
			s, _, err := st.Create(ctx, r)
			if err != nil {
				return err
			}
			for j := range 3 - i {
				if _, err := s.Commit(ctx, turnstone.Commit{
					Expected: head.Revision(j), Nodes: saying(random(6000+j, uint64(i))), Checkpoint: map[string][]byte{"p": append(random(5000, 1), byte(j))},
					Records: []turnstone.RecordChange{{Key: "r", Value: []byte{byte(j)}}},
				}); err != nil {
					return err
				}
			}
		}
		_, err := st.Bundle(ctx, &b, turnstone.Bundled{ID: "c"}, turnstone.Bundled{ID: "d"})
		return err
	})
	if err != nil {
		panic(err)
	}
	return b.Bytes()
})

// elsewhere calls f with another store.
func elsewhere(f func(*turnstone.Store) error) error {
	st, err := turnstone.Open(ctx, memory.New(), &turnstone.Options{NoAutoSeal: true})
	if err != nil {
		return err
	}
	return errors.Join(f(st), st.Close())
}

// goneOn returns a bundle in which the session a of st has gone on.
func goneOn(st *turnstone.Store) ([]byte, error) {
	var b, more bytes.Buffer
	if _, err := st.Bundle(ctx, &b, turnstone.Bundled{ID: "a"}); err != nil {
		return nil, err
	}
	err := elsewhere(func(st *turnstone.Store) error {
		if _, err := st.Unbundle(ctx, &b, turnstone.UnbundleOptions{}); err != nil {
			return err
		}
		s, err := st.Session(ctx, "a")
		if err != nil {
			return err
		}
		for i := range 2 {
			if _, err := s.Commit(ctx, turnstone.Commit{
				Expected: head.Revision(3 + i), Nodes: saying(random(6000, uint64(i))), Checkpoint: map[string][]byte{"p": random(5000+i, 1)}, Keep: fmt.Sprint("k", i),
				Records: []turnstone.RecordChange{{Key: "r", Value: []byte{byte(i)}}},
			}); err != nil {
				return err
			}
		}
		_, err = st.Bundle(ctx, &more, turnstone.Bundled{ID: "a", Since: 3})
		return err
	})
	return more.Bytes(), err
}

func unbundled(st *turnstone.Store, b []byte, branch string) (string, error) {
	r, err := st.Unbundle(ctx, bytes.NewReader(b), turnstone.UnbundleOptions{Branch: branch})
	if err != nil {
		return "", err
	}
	return fmt.Sprint(r.Sessions), nil
}

// Whatever call of the engine fails, a call that returns no error has done its
// work and says so, and one that returns an error has changed nothing, unless the
// error matches ErrOutcomeUnknown or ErrIncomplete.
func TestE1_WhatAnErrorSaysOfEffectsIsTrue(t *testing.T) {
	testkit.OneGoroutine(t)
	faults := map[string]enginetest.Fault{
		"unavailable":      {Err: engine.ErrUnavailable},
		"unknown, applied": {Err: engine.ErrUnknown, Applied: true},
		"unknown":          {Err: engine.ErrUnknown},
		"unknown, late":    {Err: engine.ErrUnknown, Late: true},
	}
	for _, ef := range effects {
		t.Run(ef.name, func(t *testing.T) {
			t.Parallel()
			runs := 0
			// once runs the call with a plan, and reports the number of its engine calls
			// and which of them were Apply. If resolves is set, the call must succeed.
			once := func(name string, resolves bool, plan func(enginetest.Call) enginetest.Fault) (calls int, applies []int) {
				runs++
				m := outcomeStore(t)
				armed := false
				e := &enginetest.Faulty{Engine: m, Plan: func(c enginetest.Call) enginetest.Fault {
					if !armed {
						return enginetest.Fault{}
					}
					calls++
					if c.Op == "Apply" {
						applies = append(applies, calls)
					}
					c.N = calls
					return plan(c)
				}}
				st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
				s := session(t, st, "a")
				call := ef.on(t, st, s)
				before := visible(t, m)
				armed = true
				told, err := call()
				armed = false
				after := visible(t, m)
				if ef.ahead {
					after, before = strings.TrimRight(after, "xy"), strings.TrimRight(before, "xy")
				}
				changed := after != before
				open := errors.Is(err, turnstone.ErrOutcomeUnknown) || errors.Is(err, turnstone.ErrIncomplete)
				switch {
				case err == nil && (!changed || told != ef.want):
					t.Errorf("%s: no error, told %q, changed: %v", name, told, changed)
				case err != nil && resolves: // the engine answers again, so the outcome can be found out
					t.Errorf("%s: %v", name, err)
				case err != nil && changed && !open:
					t.Errorf("%s: the store was changed, and the error is %v", name, err)
				}
				verify(t, st)
				return calls, applies
			}
			calls, applies := once("no fault", true, func(enginetest.Call) enginetest.Fault { return enginetest.Fault{} })
			for n := 1; n <= calls; n++ {
				for name, f := range faults {
					i, every := n, testkit.Pick(1, 3, 23)
					if name != "unavailable" {
						i, every = slices.Index(applies, n), testkit.Pick(1, 2, 9)
					}
					if i < 0 || i%every != 0 {
						continue
					}
					once(fmt.Sprintf("call %d %s", n, name), name != "unavailable", func(c enginetest.Call) enginetest.Fault {
						if c.N == n && (c.Op == "Apply" || f.Err == engine.ErrUnavailable) {
							return f
						}
						return enginetest.Fault{}
					})
					if name == "unavailable" {
						continue
					}
					for m := n + 1; m <= n+testkit.Pick(8, 4, 1); m++ {
						for _, lasting := range []bool{false, true} {
							once(fmt.Sprintf("call %d %s, call %d unavailable, lasting: %v", n, name, m, lasting), false, func(c enginetest.Call) enginetest.Fault {
								switch {
								case c.N == n && c.Op == "Apply":
									return f
								case c.N == m || lasting && c.N > m:
									return faults["unavailable"]
								}
								return enginetest.Fault{}
							})
						}
					}
				}
			}
			t.Logf("%d runs", runs)
		})
	}
}

// A namespace that has any record but no store record is never made anew.
func TestE2_ANamespaceIsNeverMadeOverAnother(t *testing.T) {
	e, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	rich(t, st)
	vacuum(t, st)
	all := pairs(t, e)
	for name, hidden := range map[string]func(key []byte) bool{
		"store record":                     func(k []byte) bool { return k[4] == 'A' },
		"store record and all but one key": func(k []byte) bool { return !bytes.Equal(k, all[len(all)/2].Key) },
		"store record and all of a scan":   func(k []byte) bool { return k[4] != 'g' },
	} {
		t.Run(name, func(t *testing.T) {
			left := memory.New()
			var b engine.Batch
			for _, p := range all {
				if !hidden(p.Key) {
					b.Set(p.Key, p.Value)
				}
			}
			if err := left.Apply(ctx, &b); err != nil {
				t.Fatal(err)
			}
			var blind engine.Engine = left
			if strings.HasSuffix(name, "of a scan") {
				blind = blindEngine{left}
			}
			before := dump(t, left)
			for _, o := range []*turnstone.Options{nil, {MustExist: true}} {
				opened, err := turnstone.Open(ctx, blind, o)
				var corrupt *damage.CorruptError
				if !errors.As(err, &corrupt) || !strings.Contains(corrupt.Object, "store record") || !strings.Contains(err.Error(), "has a record at key") {
					t.Errorf("Open: %v, %v", opened, err)
				}
			}
			if dump(t, left) != before {
				t.Error("Open changed the engine")
			}
		})
	}
}

// A store that somebody else makes, or copies there, while Open looks is no damage.
func TestE2_AStoreMadeMeanwhileIsNoDamage(t *testing.T) {
	source, st := onMemory(t, nil)
	create(t, st, turnstone.Request{ID: "s"}, []byte("x"))
	others := map[string]func(e engine.Engine) error{
		"opened": func(e engine.Engine) error {
			other, err := turnstone.Open(ctx, e, nil)
			if err == nil {
				_, _, err = other.Create(ctx, turnstone.Request{ID: "s"})
			}
			return err
		},
		"copied": func(e engine.Engine) error {
			_, err := turnstone.Copy(ctx, source, e, turnstone.CopyOptions{})
			return err
		},
		"copied in part": func(e engine.Engine) error {
			f := &enginetest.Faulty{Engine: e}
			applied := 0
			f.Plan = func(c enginetest.Call) enginetest.Fault {
				if c.Op == "Apply" {
					applied++
				}
				if applied > 2 {
					return enginetest.Fault{Err: engine.ErrUnavailable}
				}
				return enginetest.Fault{}
			}
			if _, err := turnstone.Copy(ctx, source, f, turnstone.CopyOptions{}); err == nil {
				return errors.New("the copy was not cut off")
			}
			return nil
		},
	}
	for name, other := range others {
		for _, mustExist := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, must exist %v", name, mustExist), func(t *testing.T) {
				for n, came := 1, true; came; n++ {
					e := memory.New()
					came = false
					watched := &enginetest.Faulty{Engine: e, Plan: before(n, func() {
						came = true
						if err := other(e); err != nil {
							t.Fatal(err)
						}
					})}
					_, err := turnstone.Open(ctx, watched, &turnstone.Options{MustExist: mustExist})
					if err != nil && !errors.Is(err, turnstone.ErrStoreNotFound) && !errors.Is(err, turnstone.ErrUnfinishedCopy) {
						t.Errorf("before call %d: %v", n, err)
					}
				}
			})
		}
	}
}

// A commit stands, nobody knows, and its session is called otherwise or belongs to a fork when
// the store looks: the outcome stays unknown.
func TestE1_AnUnknownCommitStaysUnknownAfterARename(t *testing.T) {
	for _, op := range []string{"rename", "fork and delete"} {
		mem := memory.New()
		e := &enginetest.Faulty{Engine: mem}
		st, other := openStore(t, e, nil), openStore(t, mem, nil)
		s := create(t, st, turnstone.Request{ID: "s"}, []byte("x"))
		loseOutcome(e, func() {
			if op == "rename" {
				if err := rename(ctx, other, "s", "s2"); err != nil {
					t.Fatal(err)
				}
				return
			}
			create(t, other, turnstone.Request{ID: "s2", Parent: "s"})
			remove(t, other, "s")
		})
		_, err := s.Commit(ctx, turnstone.Commit{Expected: 1, Nodes: saying([]byte("y")), Turn: "T"})
		if !errors.Is(err, turnstone.ErrOutcomeUnknown) {
			t.Errorf("%s: commit: %v", op, err)
		}
		if l, err := session(t, other, "s2").Load(ctx, turnstone.Scope{}); err != nil || len(l.Nodes) != 2 {
			t.Errorf("%s: the commit stands: %+v, %v", op, l, err)
		}
	}
}

// A commit stands, nobody knows, and the caller gives up while the store applies it again.
func TestE1_AnUnknownCommitThatIsCancelledStaysUnknown(t *testing.T) {
	e := &enginetest.Faulty{Engine: memory.New()}
	s := create(t, openStore(t, e, nil), turnstone.Request{ID: "s"}, []byte("x"))
	during, cancel := context.WithCancel(ctx)
	defer cancel()
	loseOutcome(e, func() {
		e.Done = func(c enginetest.Call, _ error) {
			if c.Op == "Apply" {
				cancel()
			}
		}
	})
	_, err := s.Commit(during, turnstone.Commit{Expected: 1, Nodes: saying([]byte("y")), Turn: "t"})
	if !errors.Is(err, turnstone.ErrOutcomeUnknown) || !errors.Is(err, context.Canceled) {
		t.Errorf("commit: %v", err)
	}
	if i, err := s.Info(ctx); err != nil || i.Revision != 2 {
		t.Errorf("the commit stands, at revision %d, %v", i.Revision, err)
	}
}

// An attempt to create a session that comes after the session was deleted does not bring it
// back. A creation and a rename whose first attempt stands say that they have done it.
func TestE1_ALateCreationBringsNothingBack(t *testing.T) {
	mem := memory.New()
	e := &enginetest.Faulty{Engine: mem}
	st := openStore(t, e, nil)
	var late *engine.Batch
	e.Plan = func(c enginetest.Call) enginetest.Fault {
		if c.Op == "Apply" && late == nil {
			late = c.Batch
			return enginetest.Fault{Err: engine.ErrUnknown} // it is on its way
		}
		return enginetest.Fault{}
	}
	create(t, st, turnstone.Request{ID: "s"})
	remove(t, st, "s")
	if err := mem.Apply(ctx, late); !errors.Is(err, engine.ErrConflict) {
		t.Error("the first attempt, which comes late:", err)
	}
	if _, err := st.Session(ctx, "s"); !errors.Is(err, turnstone.ErrSessionNotFound) {
		t.Error("deleted session is back:", err)
	}
	unknown := 0
	loseOutcome(e, func() { unknown++ })
	if _, created, err := st.Create(ctx, turnstone.Request{ID: "z"}); !created || err != nil {
		t.Error("created", created, err)
	}
	loseOutcome(e, func() { unknown++ })
	if err := rename(ctx, st, "z", "zz"); err != nil {
		t.Error("rename:", err)
	}
	if unknown != 2 {
		t.Errorf("%d outcomes were unknown", unknown)
	}
}

// Where the engine has only the room left that it keeps for batches that reclaim, what removes
// goes on, and everything else fails without effect.
func TestE3_WithoutRoomAStoreIsReadAndReclaimed(t *testing.T) {
	reclaim := []string{"tombstone", "prune", "prune all", "prune what is old", "stop feed", "keep", "release", "delete", "cascade", "erase", "erase node", "seal"}
	collect := []alteration{
		{name: "gc", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) {
			_, err := st.GC(ctx, gc.Options{Full: true})
			return "", err
		}},
		{name: "vacuum", call: func(st *turnstone.Store, _ *turnstone.Session) (string, error) {
			_, err := st.Vacuum(ctx, gc.VacuumOptions{})
			return "", err
		}},
	}
	for _, c := range append(collect, effects...) {
		e := outcomeStore(t)
		armed := false
		full := &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
			if armed && c.Op == "Apply" && c.Batch.Ops() > 0 && !c.Batch.Reclaim {
				return enginetest.Fault{Err: engine.ErrNoSpace}
			}
			return enginetest.Fault{}
		}}
		st := openStore(t, full, &turnstone.Options{NoAutoSeal: true, MustExist: true})
		call := c.on(t, st, session(t, st, "a"))
		before := visible(t, e)
		armed = true
		_, err := call()
		if slices.Contains(reclaim, c.name) || c.name == "gc" || c.name == "vacuum" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			if _, err := st.GC(ctx, gc.Options{}); err != nil {
				t.Errorf("gc after %s: %v", c.name, err)
			}
			if v, err := st.Verify(ctx, turnstone.VerifyOptions{}); err != nil || !v.OK() {
				t.Errorf("%s: %v, %v", c.name, v, err)
			}
			continue
		}
		if !errors.Is(err, engine.ErrNoSpace) {
			t.Errorf("%s: %v, want no space", c.name, err)
		}
		if visible(t, e) != before {
			t.Errorf("%s has had an effect", c.name)
		}
	}
}
