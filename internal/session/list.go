// Every list is a range of keys: all sessions, the children of one, the sessions of a group, and
// those with a label each have entries of their own, in the order in which the sessions moved to
// the front last. A commit moves its session only now and then. One that it does not move is ahead of
// its entries by less than head.MoveWindow, and is in a second range beside each of its lists. A page
// is merged from both ranges. It reads as many entries as it has sessions, those ahead of their entries
// that were updated in the same time or less than head.MoveWindow before, and the heads and metadata of
// these sessions, however many there are beside.
//
// A list with several conditions reads the entries of one of them, and leaves out the sessions
// that do not meet the others.

package session

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A ListQuery says which sessions to list: those that meet all conditions that are set.
type ListQuery struct {
	After string // The Next of the page before, or "" for the first page.
	Limit int    // How many sessions a page has at most.

	Parent  *head.Incarnation // The session whose children are listed.
	Group   string            // The group whose sessions are listed, with those of the groups below it.
	Labels  map[string]string
	Summary *bool
}

// list returns the list that is read: the children of the parent, or else the group, or else the
// indexed label whose name is the first in byte order, or else all sessions.
func (q *ListQuery) list(space *keys.Space) keys.List {
	switch {
	case q.Parent != nil:
		return keys.Children(*q.Parent)
	case q.Group != "":
		return space.Grouped(q.Group)
	}
	for _, name := range slices.Sorted(maps.Keys(q.Labels)) {
		if head.Indexed(name) {
			return space.Labelled(name, q.Labels[name])
		}
	}
	return keys.List{}
}

// keeps reports whether a session meets the conditions. The session may have changed since the
// entry was read by which it was found.
func (q *ListQuery) keeps(a *head.About) bool {
	if q.Parent != nil && a.Parent != *q.Parent || q.Summary != nil && a.Summary != *q.Summary {
		return false
	}
	if !a.In(q.Group) {
		return false
	}
	for name, value := range q.Labels {
		if have, ok := a.Labels[name]; !ok || have != value {
			return false
		}
	}
	return true
}

// A ListPage is a part of a list.
type ListPage struct {
	Items []ListItem
	Next  string // The ListQuery.After of the next page, or "" if this is the last one.
}

// A ListItem is a session of a list.
type ListItem struct {
	Head   *head.Head
	About  *head.About
	Parent string // The id that the parent has now, or "" if there is none that lives.

	entry head.Entry
	at    place
}

// A place is where a session is in the order of a list: the one that was updated last comes first.
type place struct {
	time uint64 // of its last update, nanoseconds since 1970
	inc  head.Incarnation
}

func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(q.time, p.time), bytes.Compare(p.inc[:], q.inc[:]))
}

// cursor returns the text that stands for a place in a list.
func (p place) cursor() string {
	b := binary.BigEndian.AppendUint64(nil, p.time)
	return hex.EncodeToString(append(b, p.inc[:]...))
}

// List returns a page of a list. The error matches history.ErrInvalid if q.After is no cursor.
func List(ctx context.Context, s history.Store, q ListQuery) (*ListPage, error) {
	list := q.list(s.Space)
	l := lister{
		Store: s, q: q, list: list, first: place{time: ^uint64(0)}, ahead: map[head.Incarnation]bool{},
		rest: s.Space.Of(keys.Entry, list), restAhead: s.Space.Of(keys.Entry, list.Ahead()),
	}
	if q.After != "" {
		b, err := hex.DecodeString(q.After)
		if err != nil || len(b) != 24 {
			return nil, history.NewInvalid("list", "After is no cursor of an earlier page")
		}
		l.first = place{binary.BigEndian.Uint64(b), head.Incarnation(b[8:])}
		l.rest.Start = s.Space.Entry(list, l.first.time, l.first.inc)
		l.restAhead.Start = s.Space.Entry(list.Ahead(), l.first.time, head.Incarnation{})
	}
	p := &ListPage{}
	// One session more than the page has tells whether there is a next page. If the other
	// conditions leave sessions out, each step reads twice as many as the one before.
	for size := q.Limit + 1; len(p.Items) <= q.Limit && !l.done; size = min(2*size, 1000) {
		items, err := l.read(ctx, size)
		if err != nil {
			return nil, err
		}
		p.Items = append(p.Items, items...)
	}
	if len(p.Items) > q.Limit {
		p.Next = p.Items[q.Limit].at.cursor()
		p.Items = p.Items[:q.Limit]
	}
	return p, l.nameParents(ctx, p.Items)
}

// A lister is one call of List.
type lister struct {
	history.Store
	q     ListQuery
	list  keys.List
	first place        // the sessions before it are on pages before, or were read
	rest  engine.Range // the entries that were not read yet
	done  bool         // whether there are none

	restAhead engine.Range              // the entries of sessions that are ahead, which were not read yet
	ahead     map[head.Incarnation]bool // the sessions of those that were
	early     []ListItem                // and those of them that may belong behind entries which were not
}

// read reads up to n more entries, and those of sessions that may belong between them. It returns the sessions, in
// order. It leaves out those that do not belong in the list or were deleted meanwhile.
func (l *lister) read(ctx context.Context, n int) ([]ListItem, error) {
	l.rest.Limit = n
	items, err := l.entries(ctx, &l.rest)
	if err != nil {
		return nil, err
	}
	last := place{} // behind all others
	if l.done = len(items) < n; !l.done {
		last = items[n-1].at
		l.restAhead.End = l.Space.Entry(l.list.Ahead(), last.time-min(last.time, uint64(head.MoveWindow)), head.Incarnation{})
	} else {
		l.restAhead.End = l.Space.Of(keys.Entry, l.list.Ahead()).End
	}
	ahead, err := l.entries(ctx, &l.restAhead)
	if err != nil {
		return nil, err
	}
	for i := range ahead {
		l.ahead[ahead[i].at.inc] = true
	}
	items = slices.DeleteFunc(items, func(i ListItem) bool { return l.ahead[i.at.inc] })
	items = append(items, ahead...)
	todo := make([]*ListItem, len(items))
	for i := range items {
		todo[i] = &items[i]
	}
	for len(todo) > 0 {
		if todo, err = l.open(ctx, todo); err != nil {
			return nil, err
		}
	}
	for i := range items {
		items[i].settle(l.ahead[items[i].at.inc])
	}
	items = append(items, l.early...)
	l.early = nil
	items = slices.DeleteFunc(items, func(i ListItem) bool {
		later := !l.done && i.at.compare(last) > 0
		if later && i.Head != nil {
			l.early = append(l.early, i)
		}
		return later || i.at.compare(l.first) < 0 || i.Head == nil || !l.q.keeps(i.About)
	})
	slices.SortFunc(items, func(a, b ListItem) int { return a.at.compare(b.at) })
	l.first = last // A session that was moved to a place before since then is left out: it was updated meanwhile.
	return items, nil
}

// settle sets the place of a session that is ahead of its entries. They say where it is if it was updated again since
// they were read.
func (i *ListItem) settle(ahead bool) {
	if !ahead || i.Head == nil {
		return
	}
	updated := uint64(i.About.LastUpdate(i.Head).UnixNano())
	i.at.time = min(max(updated, i.at.time), i.at.time+uint64(head.MoveWindow)-1)
}

// entries reads more entries of a range.
func (l *lister) entries(ctx context.Context, rest *engine.Range) (out []ListItem, err error) {
	for p, err := range l.Engine.Scan(ctx, *rest) {
		if err != nil {
			return nil, err
		}
		e, err := head.DecodeEntry(l.Space, p)
		if err != nil {
			return nil, err
		}
		out = append(out, ListItem{entry: e, at: place{e.Time, e.Incarnation}})
		rest.Start = engine.Successor(p.Key)
	}
	return out, nil
}

// open reads the sessions of items under the ids that their entries name. It returns the items
// whose sessions were renamed, with the new ids. The items of sessions that were deleted stay
// empty.
func (l *lister) open(ctx context.Context, items []*ListItem) (renamed []*ListItem, err error) {
	ks := make([][]byte, 0, 2*len(items))
	for _, i := range items {
		ks = append(ks, l.Space.Head(i.entry.Session), l.Space.About(i.entry.Session))
	}
	values, err := l.Engine.Get(ctx, ks...)
	if err != nil {
		return nil, err
	}
	for n, i := range items {
		if values[2*n] == nil && values[2*n+1] == nil {
			moved, err := l.wasRenamed(ctx, &i.entry)
			if err != nil {
				return nil, err
			}
			if moved {
				renamed = append(renamed, i)
			}
			continue
		}
		if err := i.decode(ks[2*n:2*n+2], values[2*n:2*n+2]); err != nil {
			return nil, err
		}
	}
	return renamed, nil
}

// decode sets the head and the metadata of an item. It leaves the item empty if another session
// has the id by now.
func (i *ListItem) decode(ks, values [][]byte) error {
	inc := i.entry.Incarnation
	h, err := head.DecodeHead(ks[0], values[0])
	if err != nil {
		return codec.Corrupt(err, "head of incarnation %x", inc)
	}
	about, err := head.DecodeAbout(ks[1], values[1])
	if err != nil {
		return codec.Corrupt(err, "metadata of incarnation %x", inc)
	}
	if h.Incarnation == inc && about.Incarnation == inc {
		i.Head, i.About = h, about
	}
	return nil
}

// wasRenamed reports whether a session that does not have the id which its entry names was
// renamed, and sets the new id, which the lifecycle record names. Otherwise the session was
// deleted.
func (l *lister) wasRenamed(ctx context.Context, e *head.Entry) (bool, error) {
	life, err := l.Life(ctx, e.Incarnation)
	if err != nil || life == nil || life.State != head.Live || life.Session == e.Session {
		return false, err
	}
	e.Session = life.Session
	return true, nil
}

// nameParents sets the ids of the parents of items. It reads the lifecycle records of all parents
// in one call, and their metadata in another one.
func (l *lister) nameParents(ctx context.Context, items []ListItem) error {
	var parents []head.Incarnation
	ids := map[head.Incarnation]string{{}: ""} // The zero incarnation stands for no parent.
	for i := range items {
		parent := items[i].About.Parent
		if _, known := ids[parent]; !known {
			ids[parent] = ""
			parents = append(parents, parent)
		}
	}
	abouts, err := l.AboutsOf(ctx, parents)
	if err != nil {
		return err
	}
	for inc, about := range abouts {
		ids[inc] = about.ID
	}
	for i := range items {
		items[i].Parent = ids[items[i].About.Parent]
	}
	return nil
}
