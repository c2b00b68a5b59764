// Package list lists sessions, the most recently updated first.
//
// The order of sessions by last update is an index that lags: see heads.OrderWindow. A
// commit moves its session in the index only if the entry is older than the window. So a
// list reads the entries in the order of the index, and sorts the sessions by the times in
// their heads. The place of a session is certain once the list has read the entries up to
// a window before that time.
package list

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"iter"
	"slices"

	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// ErrCursor says that Query.After is not the Next of a page.
var ErrCursor = errors.New("no cursor")

// A Query says which sessions to list.
type Query struct {
	After string // The Next of the page before, or "" for the first page.
	Limit int    // How many sessions a page has at most.
	// Keep reports whether a session belongs in the list.
	Keep func(*heads.About) bool
	// Parent, if set, is the incarnation whose children are listed, and no others.
	Parent *heads.Incarnation
}

// A Page is a part of a list.
type Page struct {
	Items []Item
	Next  string // The Query.After of the next page, or "" if this is the last one.
}

// An Item is a session of a list.
type Item struct {
	Head   *heads.Head
	About  *heads.About
	Parent string // The id that the parent has now, or "" if there is none that lives.

	at uint64 // the time of the last update, in nanoseconds since 1970
}

// compare orders items by time, the latest first, then by incarnation.
func (a *Item) compare(b *Item) int {
	return cmp.Or(cmp.Compare(b.at, a.at), slices.Compare(a.Head.Incarnation[:], b.Head.Incarnation[:]))
}

// cursor returns the text that stands for the place of an item in the list.
func (a *Item) cursor() string {
	b := binary.BigEndian.AppendUint64(nil, a.at)
	return hex.EncodeToString(append(b, a.Head.Incarnation[:]...))
}

// parseCursor returns an item with the place that a cursor stands for.
func parseCursor(cursor string) (*Item, error) {
	b, err := hex.DecodeString(cursor)
	if err != nil || len(b) != 24 {
		return nil, ErrCursor
	}
	return &Item{at: binary.BigEndian.Uint64(b), Head: &heads.Head{Incarnation: heads.Incarnation(b[8:])}}, nil
}

// Sessions returns a page of a list. The error is ErrCursor if q.After is no cursor.
func Sessions(ctx context.Context, s history.Store, q Query) (*Page, error) {
	l := lister{Store: s, q: q}
	if q.After != "" {
		var err error
		if l.after, err = parseCursor(q.After); err != nil {
			return nil, err
		}
	}
	if q.Parent != nil {
		return l.children(ctx)
	}
	return l.all(ctx)
}

// A lister is one call of Sessions.
type lister struct {
	history.Store
	q      Query
	after  *Item  // the place after which the page begins, or nil
	sorted []Item // the sessions that were read and belong in the list, in order
}

// all returns a page of all sessions. It reads the order of sessions until the place of
// every session of the page is certain.
func (l *lister) all(ctx context.Context) (*Page, error) {
	var batch []heads.OrderEntry
	size := max(l.q.Limit, 64)
	for e, err := range l.order(ctx) {
		if err != nil {
			return nil, err
		}
		if len(batch) == size {
			if err := l.add(ctx, batch); err != nil {
				return nil, err
			}
			batch = batch[:0]
			if l.certain(e) {
				return l.page(ctx)
			}
		}
		batch = append(batch, e)
	}
	if err := l.add(ctx, batch); err != nil {
		return nil, err
	}
	return l.page(ctx)
}

// order yields the entries of the order of sessions, from the cursor on.
func (l *lister) order(ctx context.Context) iter.Seq2[heads.OrderEntry, error] {
	r := l.Space.All(keys.Order)
	if l.after != nil { // An entry is never later than the last update of its session.
		r.Start = l.Space.Order(l.after.at, heads.Incarnation{})
	}
	return func(yield func(heads.OrderEntry, error) bool) {
		for p, err := range l.Engine.Scan(ctx, r) {
			var e heads.OrderEntry
			if err == nil {
				e, err = heads.OpenOrder(l.Space, p)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// certain reports whether no session of entry next, or of a later one, belongs on the page.
// Each of them was updated less than a window after the time of its entry.
func (l *lister) certain(next heads.OrderEntry) bool {
	return len(l.sorted) > l.q.Limit && l.sorted[l.q.Limit].at >= next.Time+uint64(heads.OrderWindow)
}

// page returns the first sessions of those that were read, with the ids of their parents.
func (l *lister) page(ctx context.Context) (*Page, error) {
	n := min(l.q.Limit, len(l.sorted))
	p := &Page{Items: l.sorted[:n]}
	ids := map[heads.Incarnation]string{{}: ""} // The zero incarnation stands for no parent.
	for i := range p.Items {
		parent := p.Items[i].About.Parent
		if _, read := ids[parent]; !read {
			about, err := l.About(ctx, parent)
			if err != nil {
				return nil, err
			}
			ids[parent] = ""
			if about != nil {
				ids[parent] = about.ID
			}
		}
		p.Items[i].Parent = ids[parent]
	}
	if n < len(l.sorted) {
		p.Next = l.sorted[n-1].cursor()
	}
	return p, nil
}

// add reads the sessions of entries, and adds those that belong in the list.
func (l *lister) add(ctx context.Context, entries []heads.OrderEntry) error {
	for len(entries) > 0 {
		var err error
		if entries, err = l.addFound(ctx, entries); err != nil {
			return err
		}
	}
	slices.SortFunc(l.sorted, func(a, b Item) int { return a.compare(&b) })
	return nil
}

// addFound adds the sessions that have the ids which their entries name. It returns new
// entries for the sessions that were renamed.
func (l *lister) addFound(ctx context.Context, entries []heads.OrderEntry) (renamed []heads.OrderEntry, err error) {
	ks := make([][]byte, 0, 2*len(entries))
	for _, e := range entries {
		ks = append(ks, l.Space.Head(e.Session), l.Space.About(e.Session))
	}
	values, err := l.Engine.Get(ctx, ks...)
	if err != nil {
		return nil, err
	}
	for i, e := range entries {
		ks, values := ks[2*i:2*i+2], values[2*i:2*i+2]
		if values[0] == nil && values[1] == nil {
			moved, err := l.moved(ctx, e)
			if err != nil {
				return nil, err
			}
			renamed = append(renamed, moved...)
			continue
		}
		if err := l.addSession(e, ks, values); err != nil {
			return nil, err
		}
	}
	return renamed, nil
}

// addSession adds the session of an entry, if it belongs in the list. ks and values are
// those of its head and of its metadata.
func (l *lister) addSession(e heads.OrderEntry, ks, values [][]byte) error {
	h, err := heads.OpenHead(ks[0], values[0])
	if err != nil {
		return codec.Corrupt(err, "head of incarnation %x", e.Incarnation)
	}
	about, err := heads.OpenAbout(ks[1], values[1])
	if err != nil {
		return codec.Corrupt(err, "metadata of incarnation %x", e.Incarnation)
	}
	if h.Incarnation != e.Incarnation || about.Incarnation != e.Incarnation {
		return nil // The session was deleted meanwhile, and another one has its id.
	}
	item := Item{Head: h, About: about}
	// The clock may have been set back since the entry was made. A session is never listed
	// after its entry.
	item.at = max(uint64(max(about.Updated.UnixNano(), h.Time.UnixNano())), e.Time)
	if l.keeps(&item) {
		l.sorted = append(l.sorted, item)
	}
	return nil
}

// keeps reports whether a session belongs in the list and comes after the cursor.
func (l *lister) keeps(item *Item) bool {
	return (l.after == nil || item.compare(l.after) > 0) && l.q.Keep(item.About)
}

// moved returns the entry of a session that does not have the id which its entry names. If
// the session was renamed, its lifecycle record names the new id. If it was deleted, moved
// returns no entry.
func (l *lister) moved(ctx context.Context, e heads.OrderEntry) ([]heads.OrderEntry, error) {
	life, err := l.Life(ctx, e.Incarnation)
	if err != nil || life == nil || life.State != heads.Live || life.Session == e.Session {
		return nil, err
	}
	e.Session = life.Session
	return []heads.OrderEntry{e}, nil
}

// children returns a page of the children of one session. It reads all of them: there are
// few.
func (l *lister) children(ctx context.Context) (*Page, error) {
	incs, err := l.Children(ctx, *l.q.Parent)
	if err != nil {
		return nil, err
	}
	entries, err := l.entries(ctx, incs)
	if err != nil {
		return nil, err
	}
	if err := l.add(ctx, entries); err != nil {
		return nil, err
	}
	return l.page(ctx)
}

// entries returns an entry, without a time, for each of the incarnations that lives.
func (l *lister) entries(ctx context.Context, incs []heads.Incarnation) (entries []heads.OrderEntry, err error) {
	ks := make([][]byte, len(incs))
	for i, inc := range incs {
		ks[i] = l.Space.Life(inc)
	}
	values, err := l.Engine.Get(ctx, ks...)
	if err != nil {
		return nil, err
	}
	for i, inc := range incs {
		if values[i] == nil {
			continue // Vacuum has removed it meanwhile.
		}
		life, err := heads.OpenLife(ks[i], values[i])
		if err != nil {
			return nil, codec.Corrupt(err, "lifecycle of incarnation %x", inc)
		}
		if life.State == heads.Live {
			entries = append(entries, heads.OrderEntry{Incarnation: inc, Session: life.Session})
		}
	}
	return entries, nil
}
