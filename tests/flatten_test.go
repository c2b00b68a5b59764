package tests

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// deepest is how many ancestors a fork may have in these tests until it is flattened.
const deepest = 3

// large is a node of the second session of a family, whose payload is apart. Only the last session has
// tombstoned it.
const large = 9 + 1

// A family is a chain of forks, of which the last one has as many ancestors as a fork may have.
type family struct {
	*memory.Engine
	attachments []blob.Attachment
	keys        []string
	nodes       []graph.ID // of all sessions, also those that no fork shares
	places      []graph.ID // where the last session can be forked
}

// newFamily makes a family with all that a history can have: branches, nodes that are tombstoned,
// erased or pruned, a turn that is shared in part, attachments, payloads that are apart, event keys,
// loose and sealed turns.
func newFamily(t *testing.T) *family {
	t.Helper()
	f := &family{Engine: memory.New()}
	st := openStore(t, f.Engine, &turnstone.Options{NoAutoSeal: true})
	apart := bytes.Repeat([]byte("apart "), 30_000)
	parent, at := "", graph.ID{}
	for i := range deepest + 1 {
		id := fmt.Sprint("s", i)
		s := create(t, st, turnstone.Request{ID: id, Parent: parent, ForkNode: at})
		a := upload(t, s, random(9000+i, uint64(i)))
		f.attachments = append(f.attachments, a)
		c := turnstone.Commit{Usage: []head.Usage{{Model: "m", Input: 1}}, Turn: id}
		for j := range 4 {
			key := fmt.Sprint(id, j)
			f.keys = append(f.keys, key)
			c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "k", Key: key, Payload: []byte("said " + key)})
		}
		c.Nodes[1].Payload = append([]byte(id), apart...)
		first := commitTo(t, s, c).Nodes
		second := commitTo(t, s, turnstone.Commit{Nodes: attaching(f.attachments...)}).Nodes
		side := commitTo(t, s, turnstone.Commit{Nodes: sayingAfter(first[0], []byte("side of "+id)), Leaf: turnstone.RefTo(second[0])}).Nodes
		third := commitTo(t, s, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "k", Payload: []byte("x")}, {Kind: "k", Payload: []byte("shared")}, {Kind: "k", Payload: []byte("not shared " + id)}}}).Nodes
		f.nodes = append(append(append(append(f.nodes, first...), second...), side...), third...)
		if i%2 == 0 {
			if err := sealFast(ctx, s); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Tombstone(ctx, first[2]); err != nil {
			t.Fatal(err)
		}
		if i == 2 { // The content of what everybody has tombstoned goes, and one salt with it.
			if err := s.Tombstone(ctx, third[2]); err != nil {
				t.Fatal(err)
			}
			vacuum(t, st)
		}
		parent, at = id, third[1]
		f.places = append(f.places, second[0], third[1])
	}
	commitTo(t, session(t, st, parent), turnstone.Commit{Nodes: saying([]byte("end"))})
	if err := session(t, st, "s0").Tombstone(ctx, f.nodes[1]); err != nil { // after the forks
		t.Fatal(err)
	}
	if err := session(t, st, parent).Tombstone(ctx, f.nodes[large]); err != nil { // of s1
		t.Fatal(err)
	}
	f.places = append(f.places, graph.ID{})
	return f
}

// open opens a store on a copy of the family. Forks are flattened, if flat is set.
func (f *family) open(t *testing.T, flat bool) (*memory.Engine, *turnstone.Store) {
	t.Helper()
	e := cloned(t, f.Engine)
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
	if flat {
		flattenFrom(st, deepest)
	}
	return e, st
}

// shows returns all that a session shows.
func (f *family) shows(t *testing.T, st *turnstone.Store, id string) string {
	t.Helper()
	s := session(t, st, id)
	var out strings.Builder
	name := func(id graph.ID) string { // The salt of a commit after the fork is random.
		if i := slices.Index(f.nodes, id); i >= 0 || id.IsZero() {
			return fmt.Sprint(i)
		}
		return "new"
	}
	add := func(what string, nodes ...turnstone.Node) {
		fmt.Fprintln(&out, what)
		for _, n := range nodes {
			fmt.Fprintf(&out, " %s %s %s %q %d %.20q %v %v\n", name(n.ID), name(n.Parent), n.Kind, n.Key, len(n.Payload), n.Payload, n.Attachments, n.Inherited)
		}
	}
	for _, scope := range []turnstone.Scope{{}, {Full: true}, {Last: 2}, {Last: 9}, {At: 1}} {
		state, err := s.Load(ctx, scope)
		if err != nil {
			fmt.Fprintln(&out, scope, "fails:", errors.Is(err, turnstone.ErrRevisionNotFound))
			continue
		}
		add(fmt.Sprint(scope, state.Revision, name(state.Leaf), state.Parts, state.Usage), state.Nodes...)
	}
	for _, id := range f.nodes {
		n, err := s.Node(ctx, id)
		add(fmt.Sprint(id, errors.Is(err, turnstone.ErrNodeNotFound), err == nil), n)
		if state, err := s.Load(ctx, turnstone.Scope{Leaf: id}); err == nil {
			add("to it", state.Nodes...)
		}
	}
	for _, key := range f.keys {
		n, err := s.NodeByKey(ctx, key)
		add(fmt.Sprint(key, errors.Is(err, turnstone.ErrNodeNotFound), err == nil), n)
	}
	for _, a := range f.attachments {
		var content bytes.Buffer
		_, err := s.ReadAttachment(ctx, &content, a.ID)
		fmt.Fprintln(&out, a.ID, blob.Sum(content.Bytes()), errors.Is(err, turnstone.ErrBlobNotFound), err == nil)
	}
	for entry, err := range s.Log(ctx, 0) {
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&out, entry.Revision, entry.Turn, name(entry.Leaf), entry.Nodes, entry.Usage)
	}
	return out.String()
}

// same fails the test unless a session shows the same in two stores.
func (f *family) same(t *testing.T, what, id string, flat, deep *turnstone.Store) {
	t.Helper()
	got, want := f.shows(t, flat, id), f.shows(t, deep, id)
	for i, g := range strings.Split(got, "\n") {
		if w := strings.Split(want, "\n"); i >= len(w) || g != w[i] {
			t.Fatalf("%s: %s shows, in line %d of %d and %d,\n%s\nand not\n%s", what, id, i, strings.Count(got, "\n"), len(w), g, w[min(i, len(w)-1)])
		}
	}
}

// A flattened fork shows the same nodes as a fork that keeps all of its ancestors. This holds for its
// own forks too, after a vacuum, and when all ancestors are gone. Nothing is left when it is deleted.
func TestF9_AFlattenedForkShowsWhatItsAncestorsHad(t *testing.T) {
	f := newFamily(t)
	for i, place := range f.places {
		flatEngine, flat := f.open(t, true)
		deepEngine, deep := f.open(t, false)
		both := func(do func(st *turnstone.Store)) {
			do(flat)
			do(deep)
		}
		last := fmt.Sprint("s", deepest)
		compare := func(what string) {
			t.Helper()
			for _, id := range []string{"fork", "later", "inner"} {
				f.same(t, fmt.Sprint(what, ", place ", i), id, flat, deep)
			}
			both(func(st *turnstone.Store) { verify(t, st) })
		}
		both(func(st *turnstone.Store) {
			s := create(t, st, turnstone.Request{ID: "fork", Parent: last, ForkNode: place})
			if _, err := s.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "k", Key: f.keys[0]}}}); !errors.Is(err, turnstone.ErrInvalid) {
				t.Fatal("an inherited event key was free:", err)
			}
			commitTo(t, s, turnstone.Commit{Nodes: attaching(f.attachments[0])})
			create(t, st, turnstone.Request{ID: "later", Parent: "fork"})
			commitTo(t, session(t, st, "later"), turnstone.Commit{Nodes: saying([]byte("later"))})
			create(t, st, turnstone.Request{ID: "inner", Parent: "later", ForkNode: f.places[0]})
		})
		if n := ancestorsOf(t, flat, "fork"); n != 2 {
			t.Fatalf("the fork has %d ancestors", n)
		}
		compare("at once")
		both(func(st *turnstone.Store) { collect(t, st, gc.Options{}); vacuum(t, st); vacuum(t, st) })
		compare("after vacuum")
		both(func(st *turnstone.Store) {
			if err := session(t, st, "later").Tombstone(ctx, f.nodes[0]); err != nil {
				t.Fatal(err)
			}
			for j := range deepest + 1 {
				remove(t, st, fmt.Sprint("s", j))
			}
			vacuum(t, st)
			vacuum(t, st)
		})
		compare("without ancestors")
		both(func(st *turnstone.Store) {
			if r := collect(t, st, gc.Options{Full: true}); r.Repaired {
				t.Fatal("the index was wrong")
			}
			remove(t, st, "fork")
			remove(t, st, "inner")
			vacuum(t, st)
			if err := session(t, st, "later").Tombstone(ctx, f.nodes[len(f.nodes)-2]); err != nil && !errors.Is(err, turnstone.ErrNodeNotFound) {
				t.Fatal(err)
			}
			vacuum(t, st)
		})
		f.same(t, "alone", "later", flat, deep)
		both(func(st *turnstone.Store) {
			remove(t, st, "later")
			vacuum(t, st)
			vacuum(t, st)
			verify(t, st)
		})
		for _, e := range []*memory.Engine{flatEngine, deepEngine} {
			for letter, n := range letters(t, e) {
				if letter != 'A' && letter != 'g' && letter != 'w' {
					t.Fatalf("place %d: %d records %q are left", i, n, letter)
				}
			}
		}
	}
}

// ancestorsOf returns how many ancestors a session has.
func ancestorsOf(t *testing.T, st *turnstone.Store, id string) int {
	t.Helper()
	o, err := historiesOf(st).Origin(ctx, incarnationOf(session(t, st, id)))
	if err != nil || o == nil {
		t.Fatal(o, err)
	}
	return len(o.Ancestors)
}

// Forks of one session share a copy. One that has tombstones does not share its own: a vacuum may have
// erased in it what the session shows.
func TestF9_ForksOfOneSessionShareACopy(t *testing.T) {
	f := newFamily(t)
	e, st := f.open(t, true)
	last := fmt.Sprint("s", deepest)
	before := letters(t, e)['l']
	for i := range 3 {
		create(t, st, turnstone.Request{ID: fmt.Sprint("fork", i), Parent: last})
	}
	if got := letters(t, e)['l'] - before; got != 4 {
		t.Errorf("3 forks have %d incarnations", got)
	}
	for i := range 3 {
		if err := session(t, st, fmt.Sprint("fork", i)).Tombstone(ctx, f.nodes[0]); err != nil {
			t.Fatal(err)
		}
	}
	vacuum(t, st)
	s := create(t, st, turnstone.Request{ID: "fork3", Parent: last})
	if n, err := s.Node(ctx, f.nodes[0]); err != nil || string(n.Payload) != "said s00" {
		t.Error(n, err)
	}
	if got := letters(t, e)['l'] - before; got != 6 {
		t.Errorf("4 forks have %d incarnations", got)
	}
	verify(t, st)
}

// A fork at a node that it inherits in a copy has no checkpoint to begin with, unless the checkpoint
// was empty there.
func TestF9_CheckpointsInACopyArePruned(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	flattenFrom(st, 1)
	s := create(t, st, turnstone.Request{ID: "0"})
	empty := commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("a"))}).Leaf
	full := commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("b")), Checkpoint: map[string][]byte{"p": []byte("1")}}).Leaf
	commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("c")), Checkpoint: map[string][]byte{"p": []byte("2")}})
	create(t, st, turnstone.Request{ID: "1", Parent: "0"}, []byte("d"))
	flat := create(t, st, turnstone.Request{ID: "2", Parent: "1"}, []byte("e"))
	at := create(t, st, turnstone.Request{ID: "3", Parent: "1", ForkNode: full})
	for s, want := range map[*turnstone.Session]string{flat: "2", at: "1"} {
		if parts, err := s.Checkpoint(ctx, 0); err != nil || string(parts["p"]) != want {
			t.Error(parts, err, want)
		}
	}
	if s, _, err := st.Create(ctx, turnstone.Request{ID: "4", Parent: "2", ForkNode: empty}); err != nil {
		t.Error(err)
	} else if parts, err := s.Checkpoint(ctx, 0); err != nil || len(parts) != 0 {
		t.Error(parts, err)
	}
	if _, _, err := st.Create(ctx, turnstone.Request{ID: "5", Parent: "2", ForkNode: full}); !errors.Is(err, turnstone.ErrRevisionPruned) {
		t.Error(err)
	}
	verify(t, st)
}

// A fork that is flattened begins with a checkpoint that is still retained when the fork is made.
func TestF9_ACheckpointIsPrunedBeforeTheForkOrNot(t *testing.T) {
	made, refused := 0, 0
	for n, came := 1, true; came; n++ {
		came = false
		e, st := onMemory(t, nil)
		s := create(t, st, turnstone.Request{ID: "0"})
		node := commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("a")), Checkpoint: map[string][]byte{"p": random(9000, 1)}}).Leaf
		commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("b")), Checkpoint: map[string][]byte{"p": random(9000, 2)}})
		create(t, st, turnstone.Request{ID: "1", Parent: "0"}, []byte("c"))
		faulty := &enginetest.Faulty{Engine: e}
		forking := openStore(t, faulty, nil)
		flattenFrom(forking, 1)
		faulty.Plan = before(n, func() {
			came = true
			prune(t, s, 1)
			collect(t, st, gc.Options{})
		})
		_, _, err := forking.Create(ctx, turnstone.Request{ID: "2", Parent: "1", ForkNode: node})
		verify(t, st)
		if errors.Is(err, turnstone.ErrRevisionPruned) {
			refused++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		vacuum(t, st)
		if parts, err := session(t, st, "2").Checkpoint(ctx, 0); err != nil || !bytes.Equal(parts["p"], random(9000, 1)) {
			t.Fatalf("pruned before call %d: %v", n, err)
		}
		made++
	}
	if made < 1 || refused < 2 {
		t.Errorf("%d forks were made, %d refused", made, refused)
	}
}

// A history of many segments is copied in as many batches, none of which is larger than an engine takes.
func TestF9_ALongHistoryIsCopiedInPieces(t *testing.T) {
	e := memory.New()
	st := openStore(t, e, nil)
	flattenFrom(st, 1)
	s := create(t, st, turnstone.Request{ID: "0"})
	for i := range 40 {
		var c turnstone.Commit
		for j := range 20 {
			c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "k", Key: fmt.Sprint(i, " ", j), Payload: random(4000, uint64(100*i+j))})
		}
		commitTo(t, s, c)
	}
	for _, i := range []int{0, 30} { // An entry points to the first of the nodes.
		for range i {
			commitTo(t, s, turnstone.Commit{Nodes: saying(random(120_000, uint64(i)))})
		}
		commitTo(t, s, turnstone.Commit{Nodes: attaching(upload(t, s, []byte("attachment")))})
	}
	create(t, st, turnstone.Request{ID: "1", Parent: "0"}, []byte("d"))
	batches, most := 0, 0
	f := &enginetest.Faulty{Engine: e, Plan: beforeEachApply(func(b *engine.Batch) { batches, most = batches+1, max(most, b.Bytes()) })}
	forking := openStore(t, f, nil)
	flattenFrom(forking, 1)
	flat := create(t, forking, turnstone.Request{ID: "2", Parent: "1"})
	if batches < 5 || most > engine.MinLimits.BatchBytes {
		t.Errorf("%d batches of at most %d bytes", batches, most)
	}
	state, err := flat.Load(ctx, turnstone.Scope{})
	if err != nil || len(state.Nodes) != 833 || state.Revision != head.Revision(0) {
		t.Fatal(len(state.Nodes), err)
	}
	verify(t, forking)
}

// A receipt names the sessions that show erased content, also those that have it in a copy, and says
// what is gone, as if there were no copy.
func TestF9_ErasuresFollowCopies(t *testing.T) {
	f := newFamily(t)
	last := fmt.Sprint("s", deepest)
	for name, erase := range map[string]func(*turnstone.Store) (*turnstone.Erasure, error){
		"the oldest session": func(st *turnstone.Store) (*turnstone.Erasure, error) {
			return st.Erase(ctx, "s0", turnstone.KeepChildren, turnstone.EraseOptions{})
		},
		"the parent": func(st *turnstone.Store) (*turnstone.Erasure, error) {
			return st.Erase(ctx, last, turnstone.KeepChildren, turnstone.EraseOptions{})
		},
		"a session whose forks between are gone": func(st *turnstone.Store) (*turnstone.Erasure, error) {
			for _, id := range []string{"s1", "s2", last} {
				remove(t, st, id)
			}
			vacuum(t, st)
			return st.Erase(ctx, "s0", turnstone.KeepChildren, turnstone.EraseOptions{})
		},
		"all": func(st *turnstone.Store) (*turnstone.Erasure, error) {
			return st.Erase(ctx, "s0", turnstone.CascadeChildren, turnstone.EraseOptions{})
		},
		"a node, by its session": func(st *turnstone.Store) (*turnstone.Erasure, error) {
			return session(t, st, "s1").Erase(ctx, turnstone.EraseOptions{}, f.nodes[9+3])
		},
		"a node, by the fork": func(st *turnstone.Store) (*turnstone.Erasure, error) {
			return session(t, st, "later").Erase(ctx, turnstone.EraseOptions{}, f.nodes[9+3])
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, flatten := range []bool{true, false} {
				_, st := f.open(t, flatten)
				create(t, st, turnstone.Request{ID: "fork", Parent: last})
				create(t, st, turnstone.Request{ID: "early", Parent: last, ForkNode: f.places[0]}, []byte("early"))
				create(t, st, turnstone.Request{ID: "later", Parent: "fork"}, []byte("later"))
				r, err := erase(st)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, fmt.Sprint(r.HeldBy, r.Gone, r.Shared, r.SharedBy, r.Uploads))
				verify(t, st)
			}
			if got[0] != got[1] {
				t.Errorf("%s, and not %s", got[0], got[1])
			}
		})
	}
}
