package tests

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// listed returns the ids of a page.
func listed(t *testing.T, st *turnstone.Store, o turnstone.ListOptions) (ids []string) {
	t.Helper()
	page, err := st.List(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range page.Sessions {
		ids = append(ids, i.ID)
	}
	return ids
}

// A session that is renamed while a page of the list is read is in the page.
func TestM3_ASessionThatIsRenamedMeanwhileIsListed(t *testing.T) {
	e := &interceptor{Engine: memory.New()}
	st := openStore(t, e, nil)
	create(t, st, turnstone.Request{ID: "a"})
	create(t, st, turnstone.Request{ID: "b"})
	renamed := false
	e.scan = func(engine.Range) func(engine.Pair) error {
		return func(engine.Pair) error {
			if renamed {
				return nil
			}
			renamed = true
			if err := rename(ctx, st, "b", "c"); err != nil {
				t.Error(err)
			}
			if err := rename(ctx, st, "a", "d"); err != nil {
				t.Error(err)
			}
			return nil
		}
	}
	p, err := st.List(ctx, turnstone.ListOptions{})
	if err != nil || len(p.Sessions) != 2 || !renamed {
		t.Error(len(p.Sessions), err, "renamed meanwhile:", renamed)
	}
}

// Random updates, many of them within head.MoveWindow of each other, are listed in their order at once: by all lists,
// in pages of any size, also while the clock goes back, and by a store that is opened later.
func TestM3_ListsAreInTheOrderOfUpdatesAtOnce(t *testing.T) {
	for seed := range testkit.Pick[uint64](20, 6, 2) {
		r := rand.New(rand.NewPCG(seed, 1))
		now := time.Unix(1_700_000_000, 0)
		e := memory.New()
		o := &turnstone.Options{Now: func() time.Time { return now }}
		st := openStore(t, e, o)
		about := head.Metadata{Group: "g", Labels: map[string]string{"l": "v"}}
		create(t, st, turnstone.Request{ID: "p"})
		all := map[string]*turnstone.Session{}
		updated := map[string]time.Time{}
		for i := range 40 {
			now = now.Add(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
			id := fmt.Sprint(i)
			all[id], updated[id] = create(t, st, turnstone.Request{ID: id, Metadata: about, Parent: "p", Detached: true}), now
		}
		check := func(st *turnstone.Store) {
			t.Helper()
			want := slices.SortedFunc(maps.Keys(updated), func(a, b string) int { return updated[b].Compare(updated[a]) })
			for name, o := range map[string]turnstone.ListOptions{"group": {Group: "g"}, "label": {Labels: about.Labels}, "parent": {Parent: "p"}} {
				if o.Limit = 1 + r.IntN(12); r.IntN(4) == 0 {
					o.Limit = 40
				}
				var ids []string
				for {
					p, err := st.List(ctx, o)
					if err != nil {
						t.Fatal(err)
					}
					for _, i := range p.Sessions {
						ids = append(ids, i.ID)
					}
					if o.After = p.Next; p.Next == "" {
						break
					}
				}
				if !slices.Equal(ids, want) {
					t.Fatalf("seed %d, %s, pages of %d:\n%v, want\n%v", seed, name, o.Limit, ids, want)
				}
			}
		}
		check(st)
		for range 300 {
			now = now.Add(1 + time.Duration(r.ExpFloat64()*float64(10*time.Millisecond)))
			id := fmt.Sprint(r.IntN(40))
			if r.IntN(3) == 0 {
				id = fmt.Sprint(r.IntN(3)) // Some are busy.
			}
			s := all[id]
			if r.IntN(5) == 0 {
				s = session(t, st, id) // a handle that has seen nothing
			}
			if r.IntN(3) == 0 {
				if err := s.SaveMetadata(ctx, head.Metadata{}); err != nil {
					t.Fatal(err)
				}
			} else {
				commitTo(t, s, turnstone.Commit{Expected: turnstone.AnyRevision})
			}
			updated[id] = now
			if r.IntN(3) == 0 {
				check(st)
			}
		}
		check(openStore(t, e, o))
		verify(t, st)
		now = now.Add(-time.Hour) // A clock that is set back moves nothing, and makes no time go back.
		for _, id := range []string{"0", "1", "2"} {
			commitTo(t, all[id], turnstone.Commit{Expected: turnstone.AnyRevision})
			if err := all[id].SaveMetadata(ctx, head.Metadata{}); err != nil {
				t.Fatal(err)
			}
			if i, err := all[id].Info(ctx); err != nil || !i.Updated.Equal(updated[id]) {
				t.Errorf("seed %d: %s was updated at %v, %v, want %v", seed, id, i.Updated, err, updated[id])
			}
		}
		check(st)
		verify(t, st)
		for id := range all {
			remove(t, st, id)
		}
		verify(t, st)
		for _, p := range pairs(t, e) {
			if p.Key[4] == keys.Entry && p.Key[5] != 0 {
				t.Errorf("left: %x", p.Key)
			}
		}
	}
}

// A handle moves its session in the lists that another handle has entered it in, or made it leave,
// since the handle was opened.
func TestM7_AHandleKnowsListsThatAnotherHandleChanged(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	st := openStore(t, memory.New(), &turnstone.Options{Now: func() time.Time { now = now.Add(time.Second); return now }})
	first := create(t, st, turnstone.Request{ID: "s", Metadata: head.Metadata{Group: "old"}})
	if err := session(t, st, "s").SaveMetadata(ctx, head.Metadata{Group: "new"}); err != nil {
		t.Fatal(err)
	}
	create(t, st, turnstone.Request{ID: "other", Metadata: head.Metadata{Group: "new"}})
	commitTo(t, first, turnstone.Commit{Nodes: saying([]byte("1"))})
	if ids := listed(t, st, turnstone.ListOptions{Group: "new"}); !slices.Equal(ids, []string{"s", "other"}) {
		t.Error(ids)
	}
	if ids := listed(t, st, turnstone.ListOptions{Group: "old"}); len(ids) > 0 {
		t.Error(ids)
	}
	if err := rename(ctx, st, "s", "renamed"); err != nil {
		t.Fatal(err)
	}
	if ids := listed(t, st, turnstone.ListOptions{Group: "new"}); !slices.Equal(ids, []string{"renamed", "other"}) {
		t.Error(ids)
	}
	verify(t, st)
	remove(t, st, "renamed")
	verify(t, st)
}

// A commit of the handle that saved metadata knows the new place, and so applies one batch.
func TestM7_AHandleKnowsThePlaceThatItChanged(t *testing.T) {
	now, applies := time.Unix(1_700_000_000, 0), 0
	e := &enginetest.Faulty{Engine: memory.New(), Done: func(c enginetest.Call, _ error) {
		if c.Op == "Apply" {
			applies++
		}
	}}
	st := openStore(t, e, &turnstone.Options{Now: func() time.Time { now = now.Add(time.Second); return now }})
	s := create(t, st, turnstone.Request{ID: "s"})
	if err := s.SaveMetadata(ctx, head.Metadata{Group: "g"}); err != nil {
		t.Fatal(err)
	}
	applies = 0
	if commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("1"))}); applies != 1 {
		t.Errorf("%d batches", applies)
	}
}

// A label whose name begins with a dot costs no entry.
func TestM9_ALabelThatBeginsWithADotHasNoEntry(t *testing.T) {
	now := time.Now()
	e, st := onMemory(t, &turnstone.Options{Now: func() time.Time { return now }})
	entries := func() (n int) {
		for _, p := range pairs(t, e) {
			if p.Key[4] == keys.Entry {
				n++
			}
		}
		return n
	}
	s := create(t, st, turnstone.Request{ID: "s", Metadata: head.Metadata{Labels: map[string]string{".fact": "1", ".": "2", "l": "v"}}})
	if n := entries(); n != 2 {
		t.Errorf("%d entries", n)
	}
	if err := s.SaveMetadata(ctx, head.Metadata{Labels: map[string]string{".other": "1", "m": "v"}}); err != nil {
		t.Fatal(err)
	}
	if n := entries(); n != 3 {
		t.Errorf("%d entries", n)
	}
	for _, name := range []string{".fact", ".", ".other", "m"} {
		info, err := s.Info(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if ids := listed(t, st, turnstone.ListOptions{Labels: map[string]string{name: info.Labels[name]}}); !slices.Equal(ids, []string{"s"}) {
			t.Errorf("%s: %v", name, ids)
		}
	}
}

// A list by a condition that few sessions meet reads the others in few calls.
func TestM9_SessionsAreLeftOutInFewCalls(t *testing.T) {
	calls := 0
	e := &enginetest.Faulty{Engine: memory.New(), Done: func(enginetest.Call, error) { calls++ }}
	st := openStore(t, e, nil)
	for i := range 3000 {
		create(t, st, turnstone.Request{ID: fmt.Sprint(i), Metadata: head.Metadata{Labels: map[string]string{".fact": fmt.Sprint(i)}}})
	}
	calls = 0
	if ids := listed(t, st, turnstone.ListOptions{Limit: 1, Labels: map[string]string{".fact": "0"}}); !slices.Equal(ids, []string{"0"}) || calls > 3*11+3 { // in steps of up to 1,000
		t.Errorf("%v, %d calls", ids, calls)
	}
}

// A page reads as much and calls the engine as often whether there are 100 sessions or 5,000: the
// first page and a later one of all sessions, of a group, of a label, and of the children of one.
func TestM8_APageCostsItsSessions(t *testing.T) {
	type cost struct{ calls, read int }
	costs := func(sessions int) map[string]cost {
		var now cost
		e := &enginetest.Faulty{Engine: memory.New(), Done: func(c enginetest.Call, _ error) {
			now.calls++
			now.read += c.Read
		}}
		st := openStore(t, e, nil)
		create(t, st, turnstone.Request{ID: "p"})
		for i := range sessions {
			m := head.Metadata{Group: "app/user", Labels: map[string]string{"l": "v"}}
			create(t, st, turnstone.Request{ID: fmt.Sprint(i), Metadata: m, Parent: "p", Detached: true})
		}
		for i := range sessions { // These are in the list of all only, before the others.
			create(t, st, turnstone.Request{ID: fmt.Sprint("other", i)})
		}
		out := map[string]cost{}
		for name, o := range map[string]turnstone.ListOptions{
			"all": {}, "group": {Group: "app"}, "label": {Labels: map[string]string{"l": "v"}}, "children": {Parent: "p"},
		} {
			for _, page := range []string{"first", "later"} {
				now = cost{}
				o.Limit = 20
				p, err := st.List(ctx, o)
				if err != nil || len(p.Sessions) != 20 || p.Next == "" {
					t.Fatal(len(p.Sessions), err)
				}
				out[page+" page of "+name] = now
				o.After = p.Next
			}
		}
		return out
	}
	few, many := costs(100), costs(5000)
	for _, name := range slices.Sorted(maps.Keys(few)) {
		t.Logf("%s: %d calls, %d records", name, few[name].calls, few[name].read)
		if few[name] != many[name] {
			t.Errorf("%s: %+v with 100 sessions, %+v with many", name, few[name], many[name])
		}
		if few[name].calls > 8 || few[name].read > 3*21+10+few[name].calls { // Each call reads the store record as well.
			t.Errorf("%s costs %+v for 20 sessions", name, few[name])
		}
	}
}

// Children that move to the front while they are scanned are deleted with their parent, and hold
// back its deletion.
func TestF6_ChildrenThatMoveMeanwhileAreFound(t *testing.T) {
	for policy, name := range map[turnstone.ChildPolicy]string{turnstone.CascadeChildren: "cascade", turnstone.RefuseChildren: "refuse"} {
		now := time.Unix(1_700_000_000, 0)
		e := &pager{Engine: memory.New()}
		st := openStore(t, e, &turnstone.Options{Now: func() time.Time { now = now.Add(time.Second); return now }})
		parent := create(t, st, turnstone.Request{ID: "p"})
		children := map[string]*turnstone.Session{}
		for _, id := range []string{"a", "b", "c"} {
			children[id] = create(t, st, turnstone.Request{ID: id, Parent: "p"})
		}
		// Whenever a scan has read the first child, the two others pass it, and "a" is never the
		// first one of the next scan.
		moves, busy := 0, false
		e.between = func(key []byte) {
			if key[4] != keys.Entry || busy || moves == 10 {
				return
			}
			list, _, inc := keys.EntryFields(key[5:])
			if list != keys.Children(incarnationOf(parent)) || incarnationOf(children["a"]) == inc {
				return
			}
			busy = true
			for _, id := range []string{"a", "b", "c"} {
				if incarnationOf(children[id]) != inc {
					_, _ = children[id].Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: saying([]byte("x"))})
				}
			}
			busy = false
			moves++
		}
		err := st.Delete(ctx, "p", policy)
		if refused := errors.Is(err, turnstone.ErrHasChildren); refused != (policy == turnstone.RefuseChildren) || !refused && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		e.between = nil
		if left := listed(t, st, turnstone.ListOptions{}); policy == turnstone.CascadeChildren && len(left) > 0 || moves == 0 {
			t.Errorf("%s: left: %v; %d moves", name, left, moves)
		}
		verify(t, st)
	}
}

// The receipt of an erasure knows children that move to the front while they are looked for.
func TestG8_AChildThatMovesMeanwhileIsInTheReceipt(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	e := &pager{Engine: memory.New()}
	st := openStore(t, e, &turnstone.Options{Now: func() time.Time { now = now.Add(time.Second); return now }})
	create(t, st, turnstone.Request{ID: "p"})
	old := create(t, st, turnstone.Request{ID: "old", Parent: "p", Detached: true}, random(6000, 1))
	create(t, st, turnstone.Request{ID: "new", Parent: "p", Detached: true}, random(6000, 2))
	e.between = func(key []byte) {
		if key[4] == keys.Entry {
			e.between = nil
			commitTo(t, old, turnstone.Commit{Expected: 1, Nodes: saying([]byte("x"))})
		}
	}
	r, err := st.Erase(ctx, "p", turnstone.CascadeChildren, turnstone.EraseOptions{})
	if err != nil || r.Gone != 2 || e.between != nil {
		t.Errorf("%+v, %v", r, err)
	}
}

// Verify reports an entry of a session that is not in the list, at another time than its place
// says, or of a session that does not exist, and lists that are not those of the metadata.
func TestVF6_VerifyChecksListsBothWays(t *testing.T) {
	now := time.Now()
	e, st := onMemory(t, &turnstone.Options{Now: func() time.Time { return now }})
	s := create(t, st, turnstone.Request{ID: "s", Metadata: head.Metadata{Group: "g"}})
	space := spaceOf(st)
	var at *head.Place
	var entry head.Entry
	var placeKey []byte
	for _, p := range pairs(t, e) {
		var err error
		switch p.Key[4] {
		case keys.Place:
			placeKey = p.Key
			at, err = head.DecodePlace(p.Key, p.Value)
		case keys.Entry:
			entry, err = head.DecodeEntry(space, p)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	verify(t, st)
	for name, harm := range map[string]func(b *engine.Batch){
		"another time": func(b *engine.Batch) {
			e := entry
			e.Time--
			b.Set(e.Encode(space))
		},
		"another list": func(b *engine.Batch) {
			e := entry
			e.List = space.Grouped("other")
			b.Set(e.Encode(space))
		},
		"another session": func(b *engine.Batch) {
			e := entry
			e.Incarnation[0]++
			b.Set(e.Encode(space))
		},
		"another id": func(b *engine.Batch) {
			e := entry
			e.Session[0]++
			b.Set(e.Encode(space))
		},
		"no entry in a list of the metadata": func(b *engine.Batch) {
			b.Set(placeKey, (&head.Place{Time: at.Time}).Encode(placeKey))
			b.Delete(space.Entry(space.Grouped("g"), at.Time, entry.Incarnation))
		},
		"too few lists": func(b *engine.Batch) { b.Set(placeKey, (&head.Place{Time: at.Time}).Encode(placeKey)) },
		"an update that the place does not know": func(b *engine.Batch) { // The entries are those of the place.
			early := *at
			early.Time -= 2
			for _, e := range at.Entries(entry.Incarnation, entry.Session) {
				b.Delete(space.Entry(e.List, e.Time, e.Incarnation))
			}
			for _, e := range early.Entries(entry.Incarnation, entry.Session) {
				b.Set(e.Encode(space))
			}
			b.Set(placeKey, early.Encode(placeKey))
		},
		"too many lists": func(b *engine.Batch) {
			p := *at
			p.Lists = append(slices.Clone(p.Lists), keys.List{0xff, 0xff, 0xff})
			b.Set(placeKey, p.Encode(placeKey))
		},
	} {
		damaged := cloned(t, e)
		var b engine.Batch
		harm(&b)
		if err := damaged.Apply(ctx, &b); err != nil {
			t.Fatal(err)
		}
		v, err := openStore(t, damaged, nil).Verify(ctx, turnstone.VerifyOptions{})
		if err != nil || v.OK() {
			t.Errorf("%s: %v, %v", name, v.Problems, err)
		}
		for _, p := range v.Problems {
			var corrupt *damage.CorruptError
			if !errors.As(p, &corrupt) || !strings.Contains(p.Error(), "session \"s\"") && name != "another session" {
				t.Errorf("%s: %v", name, p)
			}
		}
	}
	// Saving metadata makes a place anew that was lost, where the session belongs if the clock is set back too.
	now = now.Add(-time.Hour)
	if err := e.Apply(ctx, &engine.Batch{Deletes: [][]byte{placeKey}}); err != nil {
		t.Fatal(err)
	}
	if v, err := st.Verify(ctx, turnstone.VerifyOptions{}); err != nil || v.OK() {
		t.Error(err, v)
	}
	if err := s.SaveMetadata(ctx, head.Metadata{Name: "n"}); err != nil {
		t.Fatal(err)
	}
	if ids := listed(t, st, turnstone.ListOptions{Group: "g"}); !slices.Contains(ids, "s") {
		t.Error(ids)
	}
	verify(t, st)
}
