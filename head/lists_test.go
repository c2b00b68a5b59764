package head_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A shelf is the lists of one session, in an engine of its own.
type shelf struct {
	t     *testing.T
	e     engine.Engine
	space *keys.Space
	inc   head.Incarnation
}

func newShelf(t *testing.T) *shelf {
	return &shelf{t, memory.New(), keys.New("", [32]byte{1}), head.Incarnation{0xaa}}
}

// do applies what f adds to a batch, and reports whether that was anything. f is given the record
// of the place.
func (s *shelf) do(f func(b *engine.Batch, old []byte)) bool {
	s.t.Helper()
	values, err := s.e.Get(s.t.Context(), s.space.Place(s.inc))
	if err != nil {
		s.t.Fatal(err)
	}
	var b engine.Batch
	f(&b, values[0])
	if b.Ops() == 0 {
		return false
	}
	if err := s.e.Apply(s.t.Context(), &b); err != nil {
		s.t.Fatal(err)
	}
	return true
}

// check checks that the engine has an entry of the session in each of the lists, at a time, and
// nothing else but the record of the place, which says so. If the session is ahead, it has two entries for each list.
func (s *shelf) check(at time.Time, ahead bool, session keys.Hash, lists ...keys.List) {
	s.t.Helper()
	want := map[head.Entry]bool{}
	for _, l := range append(lists, keys.List{}) {
		e := head.Entry{List: l, Time: uint64(at.UnixNano()), Incarnation: s.inc, Session: session}
		if want[e] = true; ahead {
			e.List = l.Ahead()
			want[e] = true
		}
	}
	var place *head.Place
	for p, err := range s.e.Scan(s.t.Context(), s.space.Everything()) {
		if err != nil {
			s.t.Fatal(err)
		}
		if s.space.Letter(p.Key) == keys.Place {
			if place, err = head.DecodePlace(p.Key, p.Value); err != nil {
				s.t.Fatal(err)
			}
			continue
		}
		e, err := head.DecodeEntry(s.space, p)
		if err != nil || !want[e] {
			s.t.Errorf("%+v, %v", e, err)
		}
		delete(want, e)
	}
	if len(want) > 0 || place == nil || len(place.Lists) != len(lists) || place.Ahead != ahead {
		s.t.Fatalf("missing: %v; place: %+v", want, place)
	}
	for _, e := range place.Entries(s.inc, session) {
		if !place.Has(&e) {
			s.t.Errorf("%+v does not have %+v", place, e)
		}
	}
}

// A session's entries follow its metadata and its updates, and nothing of an earlier place stays.
func TestEntriesFollowTheSession(t *testing.T) {
	s := newShelf(t)
	one, two := keys.Hash{1}, keys.Hash{2}
	parent := head.Incarnation{7}
	a := head.About{Incarnation: s.inc, Parent: parent, Metadata: head.Metadata{Group: "a/bc/d", Labels: map[string]string{"x": "1", "y": "2", ".fact": "3"}}}
	groups := []keys.List{s.space.Grouped("a"), s.space.Grouped("a/bc"), s.space.Grouped("a/bc/d")}
	full := append([]keys.List{keys.Children(parent), s.space.Labelled("x", "1"), s.space.Labelled("y", "2")}, groups...)
	now := when
	s.do(func(b *engine.Batch, _ []byte) { head.AddToLists(b, s.space, &a, one, now) })
	s.check(now, false, one, full...)

	move := func(at time.Time) bool {
		return s.do(func(b *engine.Batch, old []byte) { head.MoveInLists(b, s.space, s.inc, one, old, at) })
	}
	if move(now) || move(now.Add(-time.Hour)) {
		t.Error("moved at the same time, or back")
	}
	s.check(now, false, one, full...)
	if !move(now.Add(1)) {
		t.Error("the first update within the window is not noted")
	}
	s.check(now, true, one, full...)
	if move(now.Add(head.MoveWindow-1)) || move(now.Add(-time.Hour)) {
		t.Error("another update within the window, or before, wrote something")
	}
	s.check(now, true, one, full...)
	if now = now.Add(head.MoveWindow); !move(now) {
		t.Error("not moved after the window")
	}
	s.check(now, false, one, full...)

	change := func(at time.Time) bool {
		return s.do(func(b *engine.Batch, old []byte) { head.ChangeLists(b, s.space, &a, one, old, at) })
	}
	if change(now) {
		t.Error("metadata that change no list wrote entries")
	}
	a.Labels[".fact"] = "4"
	if change(now) {
		t.Error("a label that is not indexed wrote entries")
	}
	a.Group, a.Labels = "a/other", map[string]string{"x": "1"}
	change(now.Add(1)) // Within the window it stays where it is, and is ahead.
	lists := []keys.List{keys.Children(parent), s.space.Labelled("x", "1"), s.space.Grouped("a"), s.space.Grouped("a/other")}
	s.check(now, true, one, lists...)
	s.do(func(b *engine.Batch, old []byte) { head.RenameInLists(b, s.space, s.inc, two, old) })
	s.check(now, true, two, lists...)
	s.do(func(b *engine.Batch, old []byte) { head.RenameInLists(b, s.space, s.inc, one, old) })
	a.Group, now = "", now.Add(time.Second)
	change(now)
	s.check(now, false, one, lists[:2]...)

	s.do(func(b *engine.Batch, old []byte) { head.RenameInLists(b, s.space, s.inc, two, old) })
	s.check(now, false, two, lists[:2]...)
	change(now.Add(1))
	s.do(func(b *engine.Batch, old []byte) { head.RemoveFromLists(b, s.space, s.inc, old) })
	for p := range s.e.Scan(t.Context(), s.space.Everything()) {
		t.Errorf("left: %x", p.Key)
	}
}

// Without a record that says where a session is, a commit leaves its entries alone, and saving
// metadata makes them anew.
func TestAPlaceThatIsLostIsMadeAnewFromTheMetadata(t *testing.T) {
	for _, damage := range [][]byte{nil, []byte("v\x01rubbish")} {
		s := newShelf(t)
		if damage != nil {
			s.do(func(b *engine.Batch, _ []byte) { b.Set(s.space.Place(s.inc), bytes.Clone(damage)) })
		}
		if s.do(func(b *engine.Batch, old []byte) { head.MoveInLists(b, s.space, s.inc, keys.Hash{1}, old, when) }) {
			t.Error("moved from an unknown place")
		}
		a := head.About{Incarnation: s.inc, Metadata: head.Metadata{Group: "g"}}
		s.do(func(b *engine.Batch, old []byte) { head.ChangeLists(b, s.space, &a, keys.Hash{1}, old, when) })
		s.check(when, false, keys.Hash{1}, s.space.Grouped("g"))
	}
}

// Whoever moves a session guards the record of its place, so two that move it exclude each other.
func TestWhoMovesASessionGuardsItsPlace(t *testing.T) {
	space, inc := keys.New("", [32]byte{1}), head.Incarnation{0xaa}
	key := space.Place(inc)
	old := (&head.Place{Time: 1}).Encode(key)
	a := head.About{Incarnation: inc, Metadata: head.Metadata{Group: "g"}}
	for i, f := range []func(b *engine.Batch){
		func(b *engine.Batch) { head.MoveInLists(b, space, inc, keys.Hash{1}, old, when) },
		func(b *engine.Batch) { head.ChangeLists(b, space, &a, keys.Hash{1}, old, when) },
		func(b *engine.Batch) { head.RenameInLists(b, space, inc, keys.Hash{1}, old) },
		func(b *engine.Batch) { head.RemoveFromLists(b, space, inc, old) },
	} {
		var b engine.Batch
		f(&b)
		if len(b.Guards) != 1 || !bytes.Equal(b.Guards[0].Key, key) || !bytes.Equal(b.Guards[0].Value, old) {
			t.Error(i, fmt.Sprint(b.Guards))
		}
	}
}

// An update within the window sets one entry for each list, and the one after it deletes two and sets one.
func TestWhatAnUpdateWritesOfManyLists(t *testing.T) {
	space, inc, session := keys.New("", [32]byte{1}), head.Incarnation{0xaa}, keys.Hash{1}
	a := head.About{Incarnation: inc, Metadata: head.Metadata{Labels: map[string]string{}}}
	for i := range 24 {
		a.Labels[fmt.Sprint(i)] = "x"
	}
	var b engine.Batch
	place := head.AddToLists(&b, space, &a, session, when)
	for _, c := range []struct {
		after         time.Duration
		deleted, sets int // sets are of entries, without the record of the place
	}{{1, 0, 25}, {2, 0, -1}, {head.MoveWindow, 50, 25}} {
		b = engine.Batch{}
		head.MoveInLists(&b, space, inc, session, place, when.Add(c.after))
		if len(b.Deletes) != c.deleted || len(b.Sets)-1 != c.sets {
			t.Errorf("after %v: %d deleted, %d set", c.after, len(b.Deletes), len(b.Sets)-1)
		}
		if len(b.Sets) > 0 {
			place = b.Sets[len(b.Sets)-1].Value
		}
	}
}
