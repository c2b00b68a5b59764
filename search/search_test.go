package search

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

var ctx = context.Background()

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newStore(t *testing.T) *turnstone.Store {
	t.Helper()
	e := memory.New()
	st, err := turnstone.Open(ctx, e, nil)
	must(t, err)
	t.Cleanup(func() {
		must(t, st.Close())
		must(t, e.Close())
	})
	return st
}

func newIndex(t *testing.T, path string) *Index {
	t.Helper()
	x, err := Open(path, Options{Agent: func(i *turnstone.Info) string { return i.Labels["agent"] }})
	must(t, err)
	t.Cleanup(func() { x.Close() })
	return x
}

func made(t *testing.T, st *turnstone.Store, r turnstone.Request, said ...string) *turnstone.Session {
	t.Helper()
	s, _, err := st.Create(ctx, r)
	must(t, err)
	for _, text := range said {
		says(t, s, "user", text)
	}
	return s
}

func says(t *testing.T, s *turnstone.Session, kind, text string) graph.ID {
	t.Helper()
	r, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: kind, Payload: []byte(text)}}})
	must(t, err)
	return r.Leaf
}

func synced(t *testing.T, x *Index, st *turnstone.Store) *Report {
	t.Helper()
	r, err := x.Sync(ctx, st)
	must(t, err)
	return r
}

// find returns the passages that a query finds.
func find(t *testing.T, x *Index, st *turnstone.Store, query string) []Result {
	t.Helper()
	q, err := Parse(query, time.Now())
	must(t, err)
	r, err := x.Find(ctx, st, q, FindOptions{Limit: MaxLimit, Branches: true})
	must(t, err)
	return r
}

func TestSE1_WhatAQueryFinds(t *testing.T) {
	st := newStore(t)
	must(t, st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour}))
	made(t, st, turnstone.Request{ID: "trip", Metadata: head.Metadata{Group: "app/ann", Cwd: "/home/ann/Kyoto", Model: "m1", Labels: map[string]string{"agent": "Claude", "rating": "good"}}},
		"I want to go to Zürich and to Kyoto.", `{"content":[{"type":"text","text":"The Kyoto museum is open."}]}`, "東京都へ行く οδός", "café_au_lait costs 3.50 francs")
	s := made(t, st, turnstone.Request{ID: "other", Metadata: head.Metadata{Group: "app/bob", Model: "m2"}}, "The museum in Kyoto? A museum!")
	says(t, s, "tool", "museums are listed")
	x := newIndex(t, filepath.Join(t.TempDir(), "index"))
	synced(t, x, st)
	for query, want := range map[string]int{
		"kyoto":                          3,
		"KYOTO":                          3,
		"zurich":                         1,
		"Zürich":                         1,
		"museum":                         2,
		"museum*":                        3,
		"mus* kyoto":                     2,
		`"kyoto museum"`:                 1,
		`"museum in kyoto"`:              1,
		`"in museum kyoto"`:              0,
		`"kyoto mus"`:                    0,
		"museum -open":                   1,
		`museum -"kyoto museum"`:         1,
		"museum -kyoto":                  0,
		"museum* -kyo*":                  1,
		"cafe lait":                      1,
		"3.50":                           1,
		"京都":                             1,
		"都京":                             0,
		"kyoto session:trip":             2,
		"kyoto group:app":                3,
		"kyoto group:app/ann":            2,
		"kyoto group:ap":                 0,
		"kyoto project:kyoto":            2,
		"kyoto model:m2":                 1,
		"kyoto model:m1 model:m2":        3,
		"kyoto agent:claude":             2,
		"kyoto label:rating=good":        2,
		"kyoto label:rating=bad":         0,
		"kind:tool":                      1,
		"museum* kind:tool":              1,
		"museum kind:tool":               0,
		"kyoto since:1h":                 3,
		"kyoto until:1h":                 0,
		"kyoto since:2020 until:2020-02": 0,
		`/[Mm]useums? (is|in)/`:          2,
		`/KYOTO/`:                        0,
		`kyoto /\.$/`:                    1,
		`/a\/b/`:                         0,
		"since:1600 kyoto":               3,
		`/mus\/|Kyoto museum is/`:        1,
		"東京*":                            1,
		"ΟΔΟΣ":                           1,
		"since:1h":                       6,
	} {
		if got := find(t, x, st, query); len(got) != want {
			t.Errorf("%s: %d results, want %d: %v", query, len(got), want, got)
		}
	}
	// The one that says it twice comes first, and the passage is marked.
	got := find(t, x, st, "museum")
	if got[0].Session != "other" || len(got[0].Marks) != 2 || got[0].Passage[got[0].Marks[0][0]:got[0].Marks[0][1]] != "museum" {
		t.Error(got)
	}
	long := strings.Repeat("é word ", 5000) + "the needle" + strings.Repeat(" word é", 5000)
	says(t, s, "user", long)
	synced(t, x, st)
	got = find(t, x, st, "needle")
	if len(got) != 1 || len(got[0].Passage) > 200 || got[0].Passage[got[0].Marks[0][0]:got[0].Marks[0][1]] != "needle" {
		t.Error(got)
	}
}

func TestSE1_WhatIsNoQueryIsRefused(t *testing.T) {
	for query, says := range map[string]string{
		"": "nothing", "  ": "nothing", "a*": "at least 2", `"open`: "missing", "/(/": "missing", "/open": "missing", "colour:red": "no field colour", "label:x": "NAME=VALUE", "kind:": "no value", "since:tomorrow": "no date", "...": "no letter", strings.Repeat("-y ", 101) + "x": "at most 100",
	} {
		_, err := Parse(query, time.Now())
		var bad *QueryError
		if !errors.As(err, &bad) || !errors.Is(err, turnstone.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", query, err)
		}
	}
	x := newIndex(t, filepath.Join(t.TempDir(), "index"))
	find(t, x, newStore(t), strings.Repeat("-y ", 99)+"x")
	q, err := Parse("a", time.Now())
	must(t, err)
	if _, err := x.Find(ctx, newStore(t), q, FindOptions{Limit: MaxLimit + 1}); !errors.Is(err, turnstone.ErrLimit) {
		t.Error(err)
	}
}

// A world is a store that is changed at random, and texts that are made of few words, so that queries find something.
type world struct {
	*testing.T
	st  *turnstone.Store
	r   *rand.Rand
	ids []string
	n   int
}

func (w *world) text() string {
	var b strings.Builder
	for range 1 + w.r.IntN(8) {
		fmt.Fprintf(&b, "w%d ", w.r.IntN(30))
	}
	w.n++
	fmt.Fprintf(&b, "number%d", w.n)
	return b.String()
}

// step makes a change at random.
func (w *world) step() {
	if len(w.ids) == 0 || w.r.IntN(10) == 0 {
		w.n++
		id := fmt.Sprintf("s%d", w.n)
		r := turnstone.Request{ID: id}
		if len(w.ids) > 0 && w.r.IntN(2) == 0 {
			r.Parent = w.ids[w.r.IntN(len(w.ids))]
			r.Detached = w.r.IntN(4) == 0
		}
		made(w.T, w.st, r)
		w.ids = append(w.ids, id)
		return
	}
	at := w.r.IntN(len(w.ids))
	s, err := w.st.Session(ctx, w.ids[at])
	must(w.T, err)
	nodes, err := s.Load(ctx, turnstone.Scope{Full: true})
	must(w.T, err)
	some := func() graph.ID { return nodes.Nodes[w.r.IntN(len(nodes.Nodes))].ID }
	switch k := w.r.IntN(20); {
	case k < 12 || len(nodes.Nodes) == 0:
		var more []turnstone.NewNode
		for range 1 + w.r.IntN(3) {
			more = append(more, turnstone.NewNode{Kind: []string{"user", "tool"}[w.r.IntN(2)], Payload: []byte(w.text())})
		}
		_, err = s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: more})
	case k < 14:
		_, err = s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Leaf: turnstone.RefTo(some())})
	case k < 16:
		err = s.Tombstone(ctx, some())
	case k < 17:
		_, err = s.Erase(ctx, turnstone.EraseOptions{}, some())
	case k < 18:
		w.n++
		to := fmt.Sprintf("s%d", w.n)
		if err = s.Rename(ctx, to); err == nil {
			w.ids[at] = to
		}
	case k < 19 && len(w.ids) > 3:
		err = s.Delete(ctx, turnstone.AnyRevision, turnstone.KeepChildren)
		w.ids = slices.Delete(w.ids, at, at+1)
	default:
		_, err = s.ChangeRecords(ctx, turnstone.RecordChange{Key: "k", Value: []byte("w1")})
	}
	must(w.T, err)
}

// check compares what queries find with what reading everything finds.
func (w *world) check(x *Index) {
	w.Helper()
	shown := map[graph.ID]string{}
	aside := map[graph.ID]map[string]bool{}
	for _, id := range w.ids {
		s, err := w.st.Session(ctx, id)
		must(w.T, err)
		on := map[graph.ID]bool{}
		for n, err := range s.Nodes(ctx, turnstone.Scope{}) {
			must(w.T, err)
			on[n.ID] = true
		}
		for n, err := range s.Nodes(ctx, turnstone.Scope{Full: true}) {
			must(w.T, err)
			shown[n.ID] = string(n.Payload)
			if aside[n.ID] == nil {
				aside[n.ID] = map[string]bool{}
			}
			aside[n.ID][id] = !on[n.ID]
		}
	}
	for i := range 31 {
		query := fmt.Sprintf("w%d", i)
		if i%3 == 1 {
			query = fmt.Sprintf(`"w%d w%d"`, w.r.IntN(30), w.r.IntN(30))
		}
		if i == 30 {
			query = "since:1h"
		}
		q, err := Parse(query, time.Now())
		must(w.T, err)
		want := map[graph.ID]bool{}
		for id, text := range shown {
			if _, ok := q.match(text); ok {
				want[id] = true
			}
		}
		if len(want) > MaxLimit {
			continue
		}
		got := find(w.T, x, w.st, query)
		for _, r := range got {
			if !want[r.Node] {
				w.Errorf("%s finds %q in %s, which nobody shows", query, r.Passage, r.Session)
			}
			delete(want, r.Node)
			if side, ok := aside[r.Node][r.Session]; !ok || side != r.Aside {
				w.Errorf("%s: aside %v in %s, want %v", query, r.Aside, r.Session, side)
			}
		}
		for id := range want {
			w.Errorf("%s does not find %q", query, shown[id])
		}
	}
	if w.Failed() {
		w.FailNow()
	}
}

func TestSE2_TheIndexIsAsTheStore(t *testing.T) {
	for name, start := range storetest.Engines {
		if name != "memory" && !testkit.Long() {
			continue
		}
		for _, feed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, feed %v", name, feed), func(t *testing.T) {
				e, err := start(t)()
				must(t, err)
				t.Cleanup(func() { e.Close() })
				st, err := turnstone.Open(ctx, e, nil)
				must(t, err)
				t.Cleanup(func() { st.Close() })
				rounds := testkit.Pick(40, 40, 15)
				if name == "postgres" { // each call goes to the server
					rounds = 10
				}
				asTheStore(t, st, feed, rounds)
			})
		}
	}
}

// asTheStore changes a store at random, and compares what an index finds with what the store shows.
func asTheStore(t *testing.T, st *turnstone.Store, feed bool, rounds int) {
	w := &world{T: t, st: st, r: rand.New(rand.NewPCG(1, 2))}
	if feed {
		must(t, w.st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour}))
	}
	path := filepath.Join(t.TempDir(), "index")
	x := newIndex(t, path)
	for i := range rounds {
		for range 12 {
			w.step()
		}
		switch i % 4 {
		case 1: // It is closed and opened again.
			must(t, x.Close())
			x = newIndex(t, path)
		case 2: // It is cut off.
			cut, cancel := context.WithTimeout(ctx, time.Duration(w.r.IntN(3000))*time.Microsecond)
			_, err := x.Sync(cut, w.st)
			cancel()
			if err != nil && cut.Err() == nil {
				t.Fatal(err)
			}
		case 3: // Another process does it at the same time.
			other := newIndex(t, path)
			ended := make(chan error)
			go func() {
				_, err := other.Sync(ctx, w.st)
				ended <- err
			}()
			synced(t, x, w.st)
			must(t, <-ended)
		}
		r := synced(t, x, w.st)
		if r.All == feed && i > 0 {
			t.Errorf("with the feed %v: %+v", feed, r)
		}
		w.check(x)
	}
	must(t, x.Close())
	must(t, Remove(path))
	x = newIndex(t, path)
	synced(t, x, w.st)
	w.check(x)
}

func TestSE2_FollowKeepsItUpToDate(t *testing.T) {
	st := newStore(t)
	x := newIndex(t, filepath.Join(t.TempDir(), "index"))
	if err := x.Follow(ctx, st); !errors.Is(err, turnstone.ErrFeedOff) {
		t.Fatal(err)
	}
	must(t, st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour}))
	following, cancel := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- x.Follow(following, st) }()
	s := made(t, st, turnstone.Request{ID: "a"}, "hello there")
	testkit.Until(t, "it is found", func() bool { return len(find(t, x, st, "hello")) == 1 })
	leaf := says(t, s, "user", "again hello")
	testkit.Until(t, "both are found", func() bool { return len(find(t, x, st, "hello")) == 2 })
	must(t, s.Tombstone(ctx, leaf))
	if got := find(t, x, st, "again"); len(got) > 0 { // at once, whoever follows
		t.Error(got)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A fork is found where it comes from, once, and if that is deleted with the fork.
func TestSE3_ForksShareWhatTheyInherit(t *testing.T) {
	st := newStore(t)
	a := made(t, st, turnstone.Request{ID: "a"}, "shared hello")
	for _, id := range []string{"b", "c"} {
		made(t, st, turnstone.Request{ID: id, Parent: "a"}, "own "+id)
	}
	x := newIndex(t, filepath.Join(t.TempDir(), "index"))
	if r := synced(t, x, st); r.Added != 3 {
		t.Errorf("%+v", r)
	}
	if got := find(t, x, st, "hello"); len(got) != 1 || got[0].Session != "a" {
		t.Error(got)
	}
	must(t, a.Delete(ctx, turnstone.AnyRevision, turnstone.KeepChildren))
	synced(t, x, st)
	if got := find(t, x, st, "hello"); len(got) != 1 || got[0].Session == "a" {
		t.Error(got)
	}
	must(t, st.Delete(ctx, find(t, x, st, "hello")[0].Session, turnstone.KeepChildren))
	synced(t, x, st)
	if got := find(t, x, st, "hello"); len(got) != 1 {
		t.Error(got)
	}
}

// What was tombstoned, erased or deleted leaves no word in any file of the index.
func TestSE4_WhatIsGoneLeavesNoByte(t *testing.T) {
	for _, feed := range []bool{true, false} {
		st := newStore(t)
		if feed {
			must(t, st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour}))
		}
		r := rand.New(rand.NewPCG(3, 4))
		secret := func(i int) string { return fmt.Sprintf("%c%cqzsecret%02d", 'a'+i%26, 'a'+i*7%26, i) }
		var sessions []*turnstone.Session
		var ids []graph.ID
		for i := range 30 {
			s := made(t, st, turnstone.Request{ID: fmt.Sprint("s", i), Metadata: head.Metadata{Name: "Name " + secret(i+50)}})
			for range 20 {
				says(t, s, "user", fmt.Sprintf("some words w%d w%d", r.IntN(1000), r.IntN(1000)))
			}
			ids = append(ids, says(t, s, "user", "a "+secret(i)+" here"))
			sessions = append(sessions, s)
		}
		dir := t.TempDir()
		x := newIndex(t, filepath.Join(dir, "index"))
		synced(t, x, st)
		within := func(word string) bool {
			entries, err := os.ReadDir(dir)
			must(t, err)
			for _, e := range entries {
				data, err := os.ReadFile(filepath.Join(dir, e.Name()))
				must(t, err)
				if bytes.Contains(data, []byte(word[2:])) { // FTS5 stores once what a word begins with as the one before.
					return true
				}
			}
			return false
		}
		for i, forget := range []func() error{
			func() error { return sessions[0].Tombstone(ctx, ids[0]) },
			func() error { _, err := sessions[1].Erase(ctx, turnstone.EraseOptions{}, ids[1]); return err },
			func() error { return sessions[2].Delete(ctx, turnstone.AnyRevision, turnstone.KeepChildren) },
			func() error {
				_, err := st.Erase(ctx, "s3", turnstone.KeepChildren, turnstone.EraseOptions{})
				return err
			},
		} {
			if !within(secret(i)) || !within(secret(i+50)) {
				t.Fatal("the word, or the name, is not in the index: nothing is tested")
			}
			must(t, forget())
			synced(t, x, st)
			if within(secret(i)) || i > 1 && within(secret(i+50)) || len(find(t, x, st, secret(i))) > 0 {
				t.Errorf("feed %v: what was forgotten by %d is there", feed, i)
			}
			if len(find(t, x, st, secret(i+1))) != 1 {
				t.Error("what was not forgotten is gone")
			}
		}
	}
}

func TestSE5_AnIndexOfAnotherStoreIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index")
	x := newIndex(t, path)
	st := newStore(t)
	made(t, st, turnstone.Request{ID: "a"}, "hello")
	synced(t, x, st)
	other := newStore(t)
	if _, err := x.Sync(ctx, other); !errors.Is(err, ErrOther) {
		t.Error(err)
	}
	if got := find(t, x, st, "hello"); len(got) != 1 {
		t.Error(got)
	}
	must(t, x.Close())
	must(t, os.WriteFile(path, []byte(strings.Repeat("no database ", 1000)), 0o600))
	if _, err := Open(path, Options{}); err == nil {
		t.Error("a file that is no index is opened")
	}
	must(t, Remove(path))
	must(t, Remove(path))
	if i, err := os.Stat(path); err == nil {
		t.Error(i)
	}
	x = newIndex(t, path)
	synced(t, x, st)
	if got := find(t, x, st, "hello"); len(got) != 1 {
		t.Error(got)
	}
	if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 {
		t.Error(i.Mode(), err)
	}
}
