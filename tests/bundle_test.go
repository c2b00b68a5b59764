package tests

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/bundle/bundletest"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/internal/testkit"
	"github.com/turnstonedb/turnstone/push"
)

// A session in another store has everything that it has where it comes from.
func TestBU1_ABundleHasEverythingOfItsSessions(t *testing.T) {
	for seed := range randomHistories() {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			_, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
			p := newPast(t, st, seed)
			for range 20 + p.r.IntN(60) {
				p.step()
			}
			all := make([]turnstone.Bundled, len(p.ids))
			for i, id := range p.ids {
				all[i].ID = id
			}
			p.r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			_, to := onMemory(t, nil)
			unbundle(t, to, bundleOf(t, st, all...))
			sameThere(t, st, to, false, p.ids...)
			verify(t, to)
			vacuum(t, st)
			vacuum(t, to)
			// A side branch below the floor may be held by a fork there, which has a copy of it here.
			for _, id := range p.ids {
				if want, got := withoutBranches(everythingOf(t, st, id, false)), withoutBranches(everythingOf(t, to, id, false)); want != got {
					t.Errorf("session %q: got\n%s\nwant\n%s", id, got, want)
				}
			}
			verify(t, to)

			// One by one, into a store that has had other sessions before.
			_, to = onMemory(t, nil)
			for _, of := range all {
				unbundle(t, to, bundleOf(t, st, of))
				sameThere(t, st, to, false, of.ID)
			}
			verify(t, to)
		})
	}
}

// Bundles go from any engine to any other.
func TestBU1_BundlesGoBetweenAllEngines(t *testing.T) {
	stores := map[string]*turnstone.Store{}
	var names []string
	for name, start := range storetest.Engines {
		e, err := start(t)()
		must(t, err)
		t.Cleanup(func() { e.Close() })
		stores[name], names = openStore(t, e, nil), append(names, name)
	}
	slices.Sort(names)
	p := newPast(t, stores[names[0]], 11)
	for range 40 {
		p.step()
	}
	var all []turnstone.Bundled
	for _, id := range p.ids {
		all = append(all, turnstone.Bundled{ID: id})
	}
	for i, name := range names[1:] {
		unbundle(t, stores[name], bundleOf(t, stores[names[i]], all...))
		sameThere(t, stores[names[i]], stores[name], i > 0, p.ids...)
		verify(t, stores[name])
		// What has arrived goes on, and comes back.
		s := session(t, stores[name], p.ids[0])
		commitTo(t, s, turnstone.Commit{Nodes: saying([]byte(name))})
		unbundle(t, stores[names[i]], bundleOf(t, stores[name], turnstone.Bundled{ID: p.ids[0]}))
		sameThere(t, stores[name], stores[names[i]], false, p.ids[0])
		// Both go on, and one gets the branch of the other.
		before := session(t, stores[names[i]], p.ids[0])
		commitTo(t, before, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: saying([]byte("there")), Checkpoint: map[string][]byte{"p": random(5000, 1)}})
		commitTo(t, s, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: saying([]byte("here")), Checkpoint: map[string][]byte{"p": random(6000, 2)}})
		want, stands := endOf(t, before, 0), endOf(t, s, 0)
		pushed(t, stores[names[i]], stores[name], push.Options{Sessions: p.ids[:1], Branch: "theirs"})
		if got := endOf(t, s, keptAs(t, s, "theirs")); !reflect.DeepEqual(got, want) || !reflect.DeepEqual(endOf(t, s, 0), stands) {
			t.Errorf("from %s to %s: the branch ends elsewhere, or the session stands elsewhere", names[i], name)
		}
		verify(t, stores[name])
		verify(t, stores[names[i]])
	}
}

// A vacuum beside Unbundle removes what nobody sees yet, and that is written again.
func TestBU4_UnbundlingRunsBesideMaintenance(t *testing.T) {
	_, from := onMemory(t, nil)
	parent := create(t, from, turnstone.Request{ID: "parent"})
	commitTo(t, parent, partOf(0))
	commitTo(t, create(t, from, turnstone.Request{ID: "fork", Parent: "parent"}), turnstone.Commit{Nodes: saying([]byte("goes on"))})
	rich, all := richStore(t, 40)
	for _, of := range []struct {
		st  *turnstone.Store
		all []turnstone.Bundled
	}{{from, []turnstone.Bundled{{ID: "fork"}}}, {rich, all}} {
		b := bundleOf(t, of.st, of.all...)
		for name, maintain := range map[string]func(*turnstone.Store){
			"gc":     func(st *turnstone.Store) { collect(t, st, gc.Options{}) },
			"full":   func(st *turnstone.Store) { collect(t, st, gc.Options{Full: true}) },
			"vacuum": func(st *turnstone.Store) { vacuum(t, st); vacuum(t, st) },
		} {
			for n := 1; ; n += testkit.Pick(2, 1+len(of.all), 1+4*len(of.all)) {
				m := memory.New()
				beside := openStore(t, m, &turnstone.Options{NoAutoSeal: true})
				hit := false
				st := openStore(t, &enginetest.Faulty{Engine: m, Plan: func(c enginetest.Call) enginetest.Fault {
					if c.Apply == n {
						hit = true
						maintain(beside)
					}
					return enginetest.Fault{}
				}}, &turnstone.Options{NoAutoSeal: true, MustExist: true})
				// A vacuum may erase what only a fork shows that is not there yet.
				_, err := st.Unbundle(ctx, bytes.NewReader(b), turnstone.UnbundleOptions{})
				if err != nil && (name != "vacuum" || !errors.Is(err, turnstone.ErrConflict) || !errors.Is(err, turnstone.ErrIncomplete)) {
					t.Fatal(err)
				}
				if !hit {
					break
				}
				for range 3 {
					collect(t, beside, gc.Options{})
					vacuum(t, beside)
				}
				if v := verify(t, st); !v.OK() {
					t.Fatalf("%s before apply %d", name, n)
				}
				for _, s := range of.all {
					if err != nil {
						unbundle(t, st, bundleOf(t, of.st, s)) // alone
					}
					if want, got := withoutBranches(everythingOf(t, of.st, s.ID, false)), withoutBranches(everythingOf(t, st, s.ID, false)); want != got {
						t.Fatalf("%s before apply %d: session %q: got\n%s\nwant\n%s", name, n, s.ID, got, want)
					}
				}
			}
		}
	}
}

// Whatever call fails or is the last one, a session is there whole or not at all, and the next call goes on.
func TestBU4_AnInterruptedUnbundleGoesOn(t *testing.T) {
	from, all := richStore(t, 5)
	b := bundleOf(t, from, all...)
	for n := 1; ; n += testkit.Pick(2, 8, 20) {
		m := memory.New()
		openStore(t, m, &turnstone.Options{NoAutoSeal: true})
		st := openStore(t, &enginetest.Faulty{Engine: m, Plan: enginetest.CrashAfter(n)}, &turnstone.Options{NoAutoSeal: true, MustExist: true})
		_, err := st.Unbundle(ctx, bytes.NewReader(b), turnstone.UnbundleOptions{})
		again := openStore(t, m, &turnstone.Options{NoAutoSeal: true})
		verify(t, again)
		for _, i := range infosOf(t, again) {
			sameThere(t, from, again, false, i.ID)
		}
		if n%2 == 0 {
			vacuum(t, again)
		}
		unbundle(t, again, b)
		verify(t, again)
		for _, s := range all {
			sameThere(t, from, again, false, s.ID)
		}
		if err == nil {
			break
		}
	}
}

// Sessions that have gone different ways stay as they are, and the error says where they parted.
func TestBU5_SessionsThatHaveDivergedStayAsTheyAre(t *testing.T) {
	_, here := onMemory(t, nil)
	_, there := onMemory(t, nil)
	s := create(t, there, turnstone.Request{ID: "a"}, []byte("one"), []byte("two"))
	unbundle(t, here, bundleOf(t, there, turnstone.Bundled{ID: "a"}))
	common, err := s.Info(ctx)
	must(t, err)
	commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("there"))})
	commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("there again"))})
	mine := session(t, here, "a")
	commitTo(t, mine, turnstone.Commit{Nodes: saying([]byte("here"))})
	before := everythingOf(t, here, "a", true)
	now, err := mine.Info(ctx)
	must(t, err)
	then, err := s.Info(ctx)
	must(t, err)
	want := turnstone.DivergedError{
		Session: "a", Here: turnstone.Point{Revision: 3, Commit: now.Commit}, There: turnstone.Point{Revision: 4, Commit: then.Commit},
		Common: turnstone.Point{Revision: 2, Commit: common.Commit},
	}
	for _, since := range []head.Revision{0, 1, 2} {
		b := bundleOf(t, there, turnstone.Bundled{ID: "a", Since: since})
		_, err := here.Unbundle(ctx, bytes.NewReader(b), turnstone.UnbundleOptions{})
		var diverged *turnstone.DivergedError
		if !errors.As(err, &diverged) || !errors.Is(err, turnstone.ErrDiverged) || *diverged != want {
			t.Errorf("since %d: %v, want %v", since, err, &want)
		}
		if since == 0 {
			r, err := here.Unbundle(ctx, bytes.NewReader(b), turnstone.UnbundleOptions{As: "a/theirs"})
			if err != nil || !r.Sessions[0].Created || r.Sessions[0].ID != "a/theirs" {
				t.Error(r, err)
			}
		}
	}
	if everythingOf(t, here, "a", true) != before {
		t.Error("the session was changed")
	}
	theirs, err := session(t, here, "a/theirs").Info(ctx)
	if err != nil || theirs.Commit != then.Commit {
		t.Error(theirs.Commit, err)
	}
	// One that is behind changes nothing, and another session of the id is no such session.
	if r := unbundle(t, there, bundleOf(t, there, turnstone.Bundled{ID: "a"})); r.Sessions[0].From != 4 || r.Sessions[0].To != 4 || r.Sessions[0].Created {
		t.Error(r)
	}
	old := bundleOf(t, there, turnstone.Bundled{ID: "a"})
	commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("more"))})
	if r := unbundle(t, there, old); r.Sessions[0].From != 5 || r.Sessions[0].To != 5 {
		t.Error(r)
	}
	_, third := onMemory(t, nil)
	create(t, third, turnstone.Request{ID: "a"})
	if _, err := third.Unbundle(ctx, bytes.NewReader(old), turnstone.UnbundleOptions{}); !errors.Is(err, turnstone.ErrExists) {
		t.Error(err)
	}
	_, fourth := onMemory(t, nil)
	thin := bundleOf(t, there, turnstone.Bundled{ID: "a", Since: 2})
	if _, err := fourth.Unbundle(ctx, bytes.NewReader(thin), turnstone.UnbundleOptions{}); !errors.Is(err, turnstone.ErrSessionNotFound) {
		t.Error(err)
	}
	remove(t, there, "a") // A deleted session comes back, as a new one with the old ids.
	unbundle(t, there, old)
	if i, err := session(t, there, "a").Info(ctx); err != nil || i.Commit != then.Commit {
		t.Error(i, err)
	}
	verify(t, there)
	verify(t, here)
}

// What was tombstoned is not in a bundle, but where a fork of the bundle still shows it.
func TestBU6_WhatIsHiddenIsNotInABundle(t *testing.T) {
	_, st := onMemory(t, nil)
	a := create(t, st, turnstone.Request{ID: "a"}, []byte("first"), []byte("SECRET"))
	secret := commitTo(t, a, turnstone.Commit{Nodes: attaching(upload(t, a, []byte("HIDDEN")))}).Nodes[0]
	state, err := a.Load(ctx, turnstone.Scope{})
	must(t, err)
	create(t, st, turnstone.Request{ID: "early", Parent: "a"}, []byte("goes on"))
	must(t, a.Tombstone(ctx, state.Nodes[1].ID, secret))
	create(t, st, turnstone.Request{ID: "late", Parent: "a"}, []byte("goes on"))
	commitTo(t, a, turnstone.Commit{Nodes: saying([]byte("LATER"))})
	has := func(text string, ids ...string) bool {
		var of []turnstone.Bundled
		for _, id := range ids {
			of = append(of, turnstone.Bundled{ID: id})
		}
		for _, f := range bundletest.Frames(t, bundleOf(t, st, of...)) {
			if bytes.Contains(f.Body, []byte(text)) {
				return true
			}
		}
		return false
	}
	for _, secret := range []string{"SECRET", "HIDDEN"} {
		for _, ids := range [][]string{{"a"}, {"late"}, {"a", "late"}} {
			if has(secret, ids...) {
				t.Errorf("%s is in a bundle of %v", secret, ids)
			}
		}
		if !has(secret, "early") || !has(secret, "a", "early") || !has(secret, "late", "early") {
			t.Error("a fork shows it, and has it not in the bundle")
		}
	}
	if has("LATER", "early") || has("LATER", "late") {
		t.Error("a bundle of a fork has what its parent was told later")
	}
	for _, ids := range [][]string{{"a", "early", "late"}, {"early", "late"}, {"late"}, {"early"}} {
		_, to := onMemory(t, nil)
		var of []turnstone.Bundled
		for _, id := range ids {
			of = append(of, turnstone.Bundled{ID: id})
		}
		unbundle(t, to, bundleOf(t, st, of...))
		vacuum(t, to)
		sameThere(t, st, to, len(ids) == 3, ids...)
		verify(t, to)
	}
}

// A bundle may be limited before it takes memory or space.
func TestBU7_ABundleExpandsToNoMoreThanItMay(t *testing.T) {
	_, from := onMemory(t, nil)
	s := create(t, from, turnstone.Request{ID: "a"})
	mebibytes := testkit.Pick(64, 64, 16)
	for i := range mebibytes {
		commitTo(t, s, turnstone.Commit{Nodes: saying(bytes.Repeat([]byte{byte(i)}, 1<<20))})
	}
	b := bundleOf(t, from, turnstone.Bundled{ID: "a"})
	if len(b) > 64<<10 {
		t.Errorf("%d MiB of bytes that repeat take %d", mebibytes, len(b))
	}
	_, st := onMemory(t, nil)
	_, err := st.Unbundle(ctx, bytes.NewReader(b), turnstone.UnbundleOptions{MaxBytes: 1 << 20})
	var limit *turnstone.LimitError
	if !errors.As(err, &limit) || limit.Max != 1<<20 || !errors.Is(err, turnstone.ErrBundle) {
		t.Error(err)
	}
	if len(infosOf(t, st)) > 0 {
		t.Error("a session is there")
	}
	unbundle(t, st, b)
	verify(t, st)
}

// What is erased while a bundle is written makes it fail, rather than be refused elsewhere.
func TestBU6_AnErasureBesideIsAConflict(t *testing.T) {
	for n := 1; ; n++ {
		m, beside := onMemory(t, &turnstone.Options{NoAutoSeal: true})
		s := create(t, beside, turnstone.Request{ID: "a"}, []byte("one"), random(9000, 1), []byte("three"))
		state, err := s.Load(ctx, turnstone.Scope{})
		must(t, err)
		armed, reads, hit := false, 0, false
		st := openStore(t, &enginetest.Faulty{Engine: m, Plan: func(c enginetest.Call) enginetest.Fault {
			if armed {
				if reads++; reads == n {
					armed, hit = false, true
					_, err := s.Erase(ctx, turnstone.EraseOptions{}, state.Nodes[1].ID)
					must(t, err)
				}
			}
			return enginetest.Fault{}
		}}, &turnstone.Options{NoAutoSeal: true})
		armed = true
		var b bytes.Buffer
		_, err = st.Bundle(ctx, &b, turnstone.Bundled{ID: "a"})
		switch {
		case err == nil:
			_, to := onMemory(t, nil)
			unbundle(t, to, b.Bytes())
			verify(t, to)
		case !errors.Is(err, turnstone.ErrConflict):
			t.Errorf("call %d: %v", n, err)
		}
		if !hit {
			break
		}
	}
}

// The same sessions are the same bytes, whatever was written before, so that a download goes on in the middle.
func TestBU1_TheSameSessionsAreTheSameBytes(t *testing.T) {
	_, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	p := newPast(t, st, 5)
	for range 40 {
		p.step()
	}
	want := map[string][]byte{}
	for range 4 {
		for _, id := range p.ids {
			b := bundleOf(t, st, turnstone.Bundled{ID: id})
			if want[id] == nil {
				want[id] = b
			}
			if !bytes.Equal(b, want[id]) {
				t.Fatalf("session %q: %d bytes, and %d before", id, len(b), len(want[id]))
			}
		}
		p.r.Shuffle(len(p.ids), func(i, j int) { p.ids[i], p.ids[j] = p.ids[j], p.ids[i] })
	}
}
