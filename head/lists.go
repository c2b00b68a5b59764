package head

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// An Entry is the entry of a session in a list. A list has its entries in the order of their
// times, the latest first. All entries of a session have the same time, and move together. A session
// that was updated after that time is ahead of its entries. Each of its lists then has a second list
// beside it, and an entry of the session there too.
type Entry struct {
	List        keys.List
	Time        uint64 // nanoseconds since 1970
	Incarnation Incarnation
	Session     keys.Hash // of the session's id
}

// Encode returns the entry as a record.
func (e *Entry) Encode(space *keys.Space) (key, value []byte) {
	key = space.Entry(e.List, e.Time, e.Incarnation)
	return key, codec.Encode(key, keys.Entry, e.Session[:])
}

// DecodeEntry decodes what Encode encodes.
func DecodeEntry(space *keys.Space, p engine.Pair) (e Entry, err error) {
	_, fields, ok := space.Fields(p.Key)
	body, err := codec.Decode(p.Key, p.Value, keys.Entry)
	if err == nil && (!ok || len(body) != len(e.Session)) {
		err = fmt.Errorf("%w: list entry", damage.ErrMalformed)
	}
	if err != nil {
		return e, codec.Corrupt(err, "list entry at key %x", p.Key)
	}
	e.List, e.Time, e.Incarnation = keys.EntryFields(fields)
	copy(e.Session[:], body)
	return e, nil
}

// A Place says where the entries of a session are. It is a record of its own, so that whoever
// moves the entries finds them, and guards the record: two that move them exclude each other.
type Place struct {
	Time  uint64      // nanoseconds since 1970
	Ahead bool        // whether the session was updated after Time: its head and metadata say when
	Lists []keys.List // the lists of the session besides the list of all sessions, in order
}

// Encode returns p's record for key.
func (p *Place) Encode(key []byte) []byte {
	body := binary.BigEndian.AppendUint64(make([]byte, 0, 9+16*len(p.Lists)), p.Time)
	body = append(body, 0)
	if p.Ahead {
		body[8] = 1
	}
	for _, l := range p.Lists {
		body = append(body, l[:]...)
	}
	return codec.Encode(key, keys.Place, body)
}

// DecodePlace decodes the record of key.
func DecodePlace(key, value []byte) (*Place, error) {
	time, ahead, lists, err := splitPlace(key, value)
	if err != nil {
		return nil, err
	}
	p := &Place{Time: time, Ahead: ahead}
	last := keys.List{} // That is the list of all sessions, which the record does not name.
	for b := lists; len(b) > 0; b = b[16:] {
		l := keys.List(b)
		if bytes.Compare(l[:], last[:]) <= 0 {
			return nil, fmt.Errorf("%w: place in lists out of order", damage.ErrMalformed)
		}
		p.Lists, last = append(p.Lists, l), l
	}
	return p, nil
}

// splitPlace returns the time of a place, whether the session is ahead of it, and the bytes of its lists.
func splitPlace(key, value []byte) (time uint64, ahead bool, lists []byte, err error) {
	body, err := codec.Decode(key, value, keys.Place)
	if err == nil && (len(body)%16 != 9 || body[8] > 1) {
		err = fmt.Errorf("%w: place in lists", damage.ErrMalformed)
	}
	if err != nil {
		return 0, false, nil, err
	}
	return binary.BigEndian.Uint64(body), body[8] == 1, body[9:], nil
}

// Entries returns the entries of a session whose place is p. The first one is that of the list
// of all sessions.
func (p *Place) Entries(inc Incarnation, session keys.Hash) (out []Entry) {
	for _, l := range append([]keys.List{{}}, p.Lists...) {
		e := Entry{List: l, Time: p.Time, Incarnation: inc, Session: session}
		if out = append(out, e); p.Ahead {
			e.List = l.Ahead()
			out = append(out, e)
		}
	}
	return out
}

// Has reports whether a session whose place is p has the entry e.
func (p *Place) Has(e *Entry) bool {
	in := func(l keys.List) bool { return l == keys.List{} || slices.Contains(p.Lists, l) }
	return e.Time == p.Time && (in(e.List) || p.Ahead && in(e.List.Ahead()))
}

// Indexed reports whether a label of that name has a list. One whose name begins with a dot has
// none: it is a fact about the session that nobody lists sessions by, and costs no entry. A corpus
// of 433 imported sessions has 4,834 labels, and an entry of each would take 9 % of its store.
func Indexed(label string) bool { return !strings.HasPrefix(label, ".") }

// ListsOf returns the lists that a session is in besides the list of all sessions, in order: one
// for its parent, one for each indexed label, one for its group and for each group above that.
func ListsOf(space *keys.Space, a *About) (out []keys.List) {
	if a.Parent != (Incarnation{}) {
		out = append(out, keys.Children(a.Parent))
	}
	for name, value := range a.Labels {
		if Indexed(name) {
			out = append(out, space.Labelled(name, value))
		}
	}
	for group := a.Group; group != ""; {
		out = append(out, space.Grouped(group))
		group = group[:max(strings.LastIndexByte(group, '/'), 0)]
	}
	slices.SortFunc(out, func(a, b keys.List) int { return bytes.Compare(a[:], b[:]) })
	return out
}

// MoveWindow is how old the place of a session has to be for an update to move it to the front of
// its lists. Moving it at every commit would leave so many deleted keys that a list takes 90 ms
// for its first page after a million commits of 64 sessions; with four moves a second it takes
// 1 ms. So a session that was updated at time T has entries of a time t with
// t <= T < t+MoveWindow. Lists are in the order of T all the same: the first update within the window
// notes that the session is ahead of its entries, and whoever reads a list puts such sessions where they belong.
const MoveWindow = 250 * time.Millisecond

// moved returns what an update makes of a place with the time at: its new time, and whether the session is ahead of
// that.
func moved(at uint64, ahead bool, updated time.Time) (uint64, bool) {
	n := uint64(updated.UnixNano())
	if n >= at+uint64(MoveWindow) {
		return n, false
	}
	return at, ahead || n > at
}

// relist makes b move the entries of a session from one place to another, and returns the record of the new place.
func relist(b *engine.Batch, space *keys.Space, inc Incarnation, session keys.Hash, from, to *Place) []byte {
	for _, e := range from.Entries(inc, session) {
		if !to.Has(&e) {
			b.Delete(space.Entry(e.List, e.Time, inc))
		}
	}
	return enter(b, space, inc, session, from, to)
}

// enter makes b set the record of a session's place, and those entries of the place that the session does not have from
// an earlier place. It returns the record.
func enter(b *engine.Batch, space *keys.Space, inc Incarnation, session keys.Hash, earlier, at *Place) []byte {
	for _, e := range at.Entries(inc, session) {
		if !earlier.Has(&e) {
			b.Set(e.Encode(space))
		}
	}
	key := space.Place(inc)
	value := at.Encode(key)
	b.Set(key, value)
	return value
}

// Fits reports whether p may be the place of a session that was updated last at a time.
func (p *Place) Fits(updated time.Time) bool {
	time, ahead := moved(p.Time, p.Ahead, updated)
	return time == p.Time && ahead == p.Ahead
}

// nowhere is a place without entries.
var nowhere = &Place{Time: ^uint64(0)}

// AddToLists makes b add a new session to its lists, and returns the record of its place.
func AddToLists(b *engine.Batch, space *keys.Space, a *About, session keys.Hash, now time.Time) []byte {
	return enter(b, space, a.Incarnation, session, nowhere, &Place{Time: uint64(now.UnixNano()), Lists: ListsOf(space, a)})
}

// MoveInLists makes b move a session that is updated at a time to the front of its lists, if its place is older than
// MoveWindow, or else note that the session is ahead of its entries. old is the record of the place. If old is missing
// or damaged, the session stays where it is, as nothing else says in which lists that is.
func MoveInLists(b *engine.Batch, space *keys.Space, inc Incarnation, session keys.Hash, old []byte, updated time.Time) {
	key := space.Place(inc)
	at, ahead, _, err := splitPlace(key, old)
	if err != nil {
		return
	}
	to := &Place{}
	if to.Time, to.Ahead = moved(at, ahead, updated); to.Time == at && to.Ahead == ahead { // This is nearly every commit.
		return
	}
	from, err := DecodePlace(key, old)
	if err != nil {
		return
	}
	to.Lists = from.Lists
	b.Guard(key, old)
	relist(b, space, inc, session, from, to)
}

// ChangeLists makes b enter a session in the lists that its metadata a say, and in no others. It
// moves the session as MoveInLists does. old is the record of its place; if that is missing or
// damaged, ChangeLists makes it anew. ChangeLists returns the record as it is after b.
func ChangeLists(b *engine.Batch, space *keys.Space, a *About, session keys.Hash, old []byte, updated time.Time) []byte {
	key := space.Place(a.Incarnation)
	to := &Place{Lists: ListsOf(space, a)}
	from, err := DecodePlace(key, old)
	if err != nil {
		b.Guard(key, old)
		to.Time = uint64(updated.UnixNano())
		return enter(b, space, a.Incarnation, session, nowhere, to)
	}
	to.Time, to.Ahead = moved(from.Time, from.Ahead, updated)
	if to.Time == from.Time && to.Ahead == from.Ahead && slices.Equal(to.Lists, from.Lists) {
		return old
	}
	b.Guard(key, old)
	return relist(b, space, a.Incarnation, session, from, to)
}

// RenameInLists makes the entries of a session name another session id. old is the record of its
// place. If that is missing or damaged, the entries stay: lists find the session by its lifecycle
// record then.
func RenameInLists(b *engine.Batch, space *keys.Space, inc Incarnation, session keys.Hash, old []byte) {
	key := space.Place(inc)
	b.Guard(key, old)
	if at, err := DecodePlace(key, old); err == nil {
		enter(b, space, inc, session, nowhere, at)
	}
}

// RemoveFromLists makes b take a session out of its lists. old is the record of its place.
func RemoveFromLists(b *engine.Batch, space *keys.Space, inc Incarnation, old []byte) {
	key := space.Place(inc)
	b.Guard(key, old)
	if at, err := DecodePlace(key, old); err == nil {
		for _, e := range at.Entries(inc, keys.Hash{}) {
			b.Delete(space.Entry(e.List, e.Time, inc))
		}
	}
	b.Delete(key)
}
