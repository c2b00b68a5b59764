package tests

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/bundle/bundletest"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// randomHistories returns how many random histories a test makes.
func randomHistories() uint64 { return cmp.Or(uint64(*histories), testkit.Pick[uint64](20, 8, 4)) }

// A past is a random history of a store: sessions, forks, and what can be done to them.
type past struct {
	t     *testing.T
	r     *rand.Rand
	st    *turnstone.Store
	ids   []string
	parts map[string][]byte // the last version of each checkpoint part of each session
	n     int
}

func newPast(t *testing.T, st *turnstone.Store, seed uint64) *past {
	p := &past{t: t, r: rand.New(rand.NewPCG(seed, 47)), st: st, parts: map[string][]byte{}}
	p.create()
	return p
}

func (p *past) may(err error) {
	p.t.Helper()
	for _, of := range []error{turnstone.ErrRevisionPruned, turnstone.ErrNodeNotFound, turnstone.ErrInvalid, turnstone.ErrExists, turnstone.ErrRevisionNotFound, turnstone.ErrSessionNotFound} {
		if errors.Is(err, of) {
			return
		}
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *past) create() {
	id := fmt.Sprint("s", p.n)
	p.n++
	_, _, err := p.st.Create(ctx, turnstone.Request{ID: id, Metadata: head.Metadata{
		Name: "name of " + id, Group: "g/" + id, Labels: map[string]string{"a": id, ".b": "c"}, Custom: []byte(`{"x":1}`), HostCreated: time.Unix(int64(p.n), 0).UTC(),
	}})
	p.may(err)
	p.ids = append(p.ids, id)
}

// any returns a random session.
func (p *past) any() *turnstone.Session { return session(p.t, p.st, p.ids[p.r.IntN(len(p.ids))]) }

// node returns a random node that a session shows, or false.
func (p *past) node(s *turnstone.Session) (graph.ID, bool) {
	state, err := s.Load(ctx, turnstone.Scope{Full: true})
	p.may(err)
	if len(state.Nodes) == 0 {
		return graph.ID{}, false
	}
	return state.Nodes[p.r.IntN(len(state.Nodes))].ID, true
}

func (p *past) payload() []byte {
	switch p.r.IntN(8) {
	case 0:
		return random(6000+p.r.IntN(3000), uint64(p.r.IntN(5))) // a blob, which others have as well
	case 1:
		return bytes.Repeat([]byte{byte(p.r.IntN(3))}, p.r.IntN(20_000))
	}
	return random(p.r.IntN(200), p.r.Uint64())
}

func (p *past) commit() {
	s := p.any()
	c := turnstone.Commit{Expected: turnstone.AnyRevision}
	for range p.r.IntN(4) {
		c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "k", Payload: p.payload()})
	}
	if len(c.Nodes) > 0 && p.r.IntN(3) == 0 {
		if id, ok := p.node(s); ok {
			c.Nodes[0].Parent = turnstone.RefTo(id)
		}
	}
	if p.r.IntN(5) == 0 {
		if id, ok := p.node(s); ok {
			c.Leaf = turnstone.RefTo(id)
		}
	}
	if p.r.IntN(3) == 0 {
		p.n++
		c.Turn = fmt.Sprint("turn ", p.n)
		c.Usage = []head.Usage{{Model: fmt.Sprint("m", p.r.IntN(3)), Input: uint64(p.r.IntN(100)), Cost: 3}}
		c.Labels = map[string]string{"l": fmt.Sprint(p.r.IntN(9))}
		if len(c.Nodes) > 0 {
			c.Nodes[0].Key = fmt.Sprint("key ", p.n)
		}
	}
	if len(c.Nodes) > 0 && p.r.IntN(4) == 0 {
		size := 100 + p.r.IntN(9000)
		if p.r.IntN(6) == 0 {
			size = 900_000 // in chunks
		}
		c.Nodes[0].Attachments = []blob.Attachment{upload(p.t, s, random(size, uint64(p.r.IntN(4))))}
	}
	if p.r.IntN(2) == 0 {
		c.Checkpoint = map[string][]byte{}
		for range 1 + p.r.IntN(2) {
			name := fmt.Sprint("part", p.r.IntN(3))
			content := slices.Clone(p.parts[s.ID()+name])
			if len(content) == 0 || p.r.IntN(6) == 0 {
				content = random(3000+p.r.IntN(3000), p.r.Uint64())
			}
			content[p.r.IntN(len(content))]++
			c.Checkpoint[name], p.parts[s.ID()+name] = content, content
		}
	} else if p.r.IntN(8) == 0 {
		c.Drop = []string{"part1"}
	}
	if p.r.IntN(6) == 0 {
		p.n++
		c.Keep = fmt.Sprint("kept ", p.n)
	}
	_, err := s.Commit(ctx, c)
	p.may(err)
}

func (p *past) fork() {
	s := p.any()
	r := turnstone.Request{ID: fmt.Sprint("s", p.n), Parent: s.ID(), Detached: p.r.IntN(6) == 0, Metadata: head.Metadata{Name: "fork"}}
	p.n++
	if p.r.IntN(3) > 0 {
		if id, ok := p.node(s); ok {
			r.ForkNode = id
		}
	}
	r.NoCheckpoint = !r.Detached && p.r.IntN(3) == 0
	_, created, err := p.st.Create(ctx, r)
	p.may(err)
	if created {
		p.ids = append(p.ids, r.ID)
	}
}

func (p *past) step() {
	switch n := p.r.IntN(40); {
	case n < 24:
		p.commit()
	case n < 27:
		p.fork()
	case n < 28:
		p.create()
	case n < 30:
		s := p.any()
		if id, ok := p.node(s); ok {
			p.may(s.Tombstone(ctx, id))
		}
	case n < 32:
		s := p.any()
		_, err := s.Prune(ctx, head.Retention(1+p.r.IntN(5)))
		p.may(err)
	case n < 33:
		vacuum(p.t, p.st)
	case n < 34:
		p.may(p.any().Seal(ctx))
	case n < 37:
		s := p.any()
		changes := []turnstone.RecordChange{{Key: fmt.Sprint("record ", p.r.IntN(5)), Value: random(p.r.IntN(100), p.r.Uint64())}}
		if p.r.IntN(3) == 0 {
			changes[0].Key = "." + changes[0].Key
		}
		_, err := s.ChangeRecords(ctx, changes...)
		p.may(err)
	case n < 38:
		p.may(p.any().SaveMetadata(ctx, head.Metadata{Model: fmt.Sprint("model ", p.n)}))
	case n < 39:
		if len(p.ids) > 2 {
			i := p.r.IntN(len(p.ids))
			remove(p.t, p.st, p.ids[i])
			p.ids = slices.Delete(p.ids, i, i+1)
		}
	default:
		i := p.r.IntN(len(p.ids))
		to := fmt.Sprint("renamed ", p.n)
		p.n++
		p.may(rename(ctx, p.st, p.ids[i], to))
		for _, part := range []string{"part0", "part1", "part2"} {
			p.parts[to+part] = p.parts[p.ids[i]+part]
		}
		p.ids[i] = to
	}
}

// What a caller can read of a session, as text. Names says that the parent is named.
func everythingOf(t *testing.T, st *turnstone.Store, id string, parent bool) string {
	t.Helper()
	var out bytes.Buffer
	say := func(what string, v any, err error) {
		if err != nil {
			v = turnstone.KindOf(err).Name
		}
		b, jerr := json.Marshal(v)
		if jerr != nil {
			t.Fatal(jerr)
		}
		fmt.Fprintf(&out, "%s %s\n", what, b)
	}
	s := session(t, st, id)
	info, err := s.Info(ctx)
	info.Incarnation = ""
	if !parent {
		info.Parent = ""
	}
	say("info", info, err)
	clean := func(nodes []turnstone.Node) {
		for i := range nodes {
			if nodes[i].Inherited {
				nodes[i].Revision = 0 // That of an ancestor.
			}
		}
	}
	state, err := s.Load(ctx, turnstone.Scope{})
	if err == nil {
		clean(state.Nodes)
	}
	say("path", state, err)
	leaves, err := s.Leaves(ctx)
	clean(leaves)
	slices.SortFunc(leaves, func(a, b turnstone.Node) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	say("leaves", leaves, err)
	for r := range info.Revision + 1 {
		at := r
		if r == 0 {
			at = turnstone.RevisionZero
		}
		state, err := s.Load(ctx, turnstone.Scope{At: at, Full: true})
		if err == nil {
			clean(state.Nodes)
			slices.SortFunc(state.Nodes, func(a, b turnstone.Node) int { return bytes.Compare(a.ID[:], b.ID[:]) })
			for i := range state.Parts {
				state.Parts[i].Whole = 0
			}
		}
		say(fmt.Sprint("revision ", r), state, err)
		parts, err := s.Checkpoint(ctx, at)
		say("checkpoint", parts, err)
	}
	var log []any
	for e, err := range s.Log(ctx, 0) {
		if err != nil {
			say("log", nil, err)
			break
		}
		log = append(log, e)
	}
	say("log", log, nil)
	kept, err := s.Kept(ctx)
	slices.SortFunc(kept, func(a, b head.Kept) int { return strings.Compare(a.Name, b.Name) })
	say("kept", kept, err)
	records, err := s.Records(ctx, turnstone.RecordQuery{})
	records.Revision = 0
	say("records", records, err)
	all, err := s.Load(ctx, turnstone.Scope{Full: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range all.Nodes {
		for _, a := range n.Attachments {
			var content bytes.Buffer
			_, err := s.ReadAttachment(ctx, &content, a.ID)
			say("attachment "+a.ID.String(), blob.Sum(content.Bytes()), err)
		}
	}
	return out.String()
}

// withoutBranches leaves out what everythingOf says of side branches.
func withoutBranches(all string) string {
	lines := slices.DeleteFunc(strings.Split(all, "\n"), func(l string) bool {
		return strings.HasPrefix(l, "leaves ") || strings.HasPrefix(l, "revision ") || strings.HasPrefix(l, "attachment ")
	})
	return strings.Join(lines, "\n")
}

// bundleOf returns a bundle.
func bundleOf(t *testing.T, st *turnstone.Store, of ...turnstone.Bundled) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := st.Bundle(ctx, &b, of...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// unbundle reads a bundle into st.
func unbundle(t *testing.T, st *turnstone.Store, b []byte) *turnstone.UnbundleReport {
	t.Helper()
	r, err := st.Unbundle(ctx, bytes.NewReader(b), turnstone.UnbundleOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// sameThere fails the test unless sessions are the same in two stores.
func sameThere(t *testing.T, from, to *turnstone.Store, parents bool, ids ...string) {
	t.Helper()
	for _, id := range ids {
		want, got := everythingOf(t, from, id, parents), everythingOf(t, to, id, parents)
		if want == got {
			continue
		}
		a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
		for i := range a {
			if i >= len(b) || a[i] != b[i] {
				t.Errorf("session %q: got\n%.900s\nwant\n%.900s", id, b[min(i, len(b)-1)], a[i])
				break
			}
		}
	}
}

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
	for i := range 64 {
		commitTo(t, s, turnstone.Commit{Nodes: saying(bytes.Repeat([]byte{byte(i)}, 1<<20))})
	}
	b := bundleOf(t, from, turnstone.Bundled{ID: "a"})
	if len(b) > 64<<10 {
		t.Errorf("64 MiB of equal bytes take %d", len(b))
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
