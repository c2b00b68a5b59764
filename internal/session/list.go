// Every list is a range of keys: all sessions, the children of one, the sessions of a group, and
// those with a label each have entries of their own, in the order in which the sessions moved to
// the front last. A commit moves its session only now and then, so the order lags behind the
// times in the heads by less than head.MoveWindow. A page reads as many entries as it has
// sessions, and their heads and metadata, however many sessions there are beside.
//
// A list with several conditions reads the entries of one of them, and leaves out the sessions
// that do not meet the others.

package session

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

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
func (q *ListQuery) keeps(a *head.Metadata) bool {
	if q.Parent != nil && a.Parent != *q.Parent || q.Summary != nil && a.Summary != *q.Summary {
		return false
	}
	if q.Group != "" && a.Group != q.Group && !strings.HasPrefix(a.Group, q.Group+"/") {
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
	About  *head.Metadata
	Parent string // The id that the parent has now, or "" if there is none that lives.

	entry head.Entry
}

// cursor returns the text that stands for the place of an item in a list.
func (i *ListItem) cursor() string {
	b := binary.BigEndian.AppendUint64(nil, i.entry.Time)
	return hex.EncodeToString(append(b, i.entry.Incarnation[:]...))
}

// List returns a page of a list. The error matches history.ErrInvalid if q.After is no cursor.
func List(ctx context.Context, s history.Store, q ListQuery) (*ListPage, error) {
	l := lister{Store: s, q: q, rest: s.Space.Of(keys.Entry, q.list(s.Space))}
	if q.After != "" {
		b, err := hex.DecodeString(q.After)
		if err != nil || len(b) != 24 {
			return nil, history.NewInvalid("list", "After is no cursor of an earlier page")
		}
		l.rest.Start = s.Space.Entry(q.list(s.Space), binary.BigEndian.Uint64(b), head.Incarnation(b[8:]))
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
		p.Next = p.Items[q.Limit].cursor()
		p.Items = p.Items[:q.Limit]
	}
	return p, l.nameParents(ctx, p.Items)
}

// A lister is one call of List.
type lister struct {
	history.Store
	q    ListQuery
	rest engine.Range // the entries that were not read yet
	done bool         // whether there are none
}

// read reads up to n more entries, and returns their sessions, in order. It leaves out those that
// do not belong in the list or were deleted meanwhile.
func (l *lister) read(ctx context.Context, n int) ([]ListItem, error) {
	entries, err := l.entries(ctx, n)
	if err != nil {
		return nil, err
	}
	items := make([]ListItem, len(entries))
	todo := make([]*ListItem, len(entries))
	for i := range items {
		items[i].entry = entries[i]
		todo[i] = &items[i]
	}
	for len(todo) > 0 {
		if todo, err = l.open(ctx, todo); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(items, func(i ListItem) bool { return i.Head == nil || !l.q.keeps(i.About) }), nil
}

// entries reads up to n more entries.
func (l *lister) entries(ctx context.Context, n int) (out []head.Entry, err error) {
	l.rest.Limit = n
	for p, err := range l.Engine.Scan(ctx, l.rest) {
		if err != nil {
			return nil, err
		}
		e, err := head.DecodeEntry(l.Space, p)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
		l.rest.Start = engine.Successor(p.Key)
	}
	l.done = len(out) < n
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
	about, err := head.DecodeMetadata(ks[1], values[1])
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
