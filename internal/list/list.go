// Package list lists sessions, the most recently updated first.
//
// The order of sessions by last update is an index that lags: see heads.OrderWindow. So a
// list reads entries in the order of the index, sorts what it has read by the heads, and
// is sure of a session's place once the index is a window further.
package list

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"

	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// ErrCursor: the text is no cursor of an earlier page.
var ErrCursor = errors.New("no cursor")

// A Query says which sessions to list.
type Query struct {
	After string // Page.Next of the page before, or ""
	Limit int    // sessions of the page
	// Keep reports whether the list is to have a session.
	Keep func(*heads.About) bool
	// Parent, if set, lists the children of this incarnation only.
	Parent *heads.Incarnation
}

// A Page is a part of a list.
type Page struct {
	Items []Item
	Next  string // Query.After of the next page; "" on the last one
}

// An Item is a session of a list.
type Item struct {
	Head   *heads.Head
	About  *heads.About
	Parent string // the id of its parent now, if that lives

	at uint64 // its place in the order: nanoseconds since 1970
}

// compare orders items by time, the latest first, then by incarnation.
func (a *Item) compare(b *Item) int {
	return cmp.Or(cmp.Compare(b.at, a.at), slices.Compare(a.Head.Incarnation[:], b.Head.Incarnation[:]))
}

func (a *Item) cursor() string {
	b := binary.BigEndian.AppendUint64(nil, a.at)
	return hex.EncodeToString(append(b, a.Head.Incarnation[:]...))
}

// Sessions returns a page of a list. A text that is no cursor is ErrCursor.
func Sessions(ctx context.Context, s history.Store, q Query) (*Page, error) {
	l := lister{Store: s, q: q}
	if q.After != "" {
		b, err := hex.DecodeString(q.After)
		if err != nil || len(b) != 24 {
			return nil, ErrCursor
		}
		l.cursor = &Item{at: binary.BigEndian.Uint64(b), Head: &heads.Head{Incarnation: heads.Incarnation(b[8:])}}
	}
	if q.Parent != nil {
		return l.children(ctx)
	}
	return l.all(ctx)
}

type lister struct {
	history.Store
	q      Query
	cursor *Item  // nil: from the beginning
	sorted []Item // that were read and are kept, in order
}

// all reads the order from the cursor on until a page is certain.
func (l *lister) all(ctx context.Context) (*Page, error) {
	r := l.Space.All(keys.Order)
	if l.cursor != nil {
		// A session that was updated at the cursor's time or before stands there or later.
		r.Start = l.Space.Order(l.cursor.at, heads.Incarnation{})
	}
	var batch []heads.OrderEntry
	flush := func() error {
		err := l.add(ctx, batch)
		batch = batch[:0]
		return err
	}
	size := max(l.q.Limit, 64)
	for p, err := range l.Engine.Scan(ctx, r) {
		if err != nil {
			return nil, err
		}
		e, err := heads.OpenOrder(l.Space, p)
		if err != nil {
			return nil, err
		}
		// What stands from here on was updated before e.Time + heads.OrderWindow.
		if len(batch) == size {
			if err := flush(); err != nil {
				return nil, err
			}
			if n := len(l.sorted); n > l.q.Limit && l.sorted[l.q.Limit].at >= e.Time+uint64(heads.OrderWindow) {
				return l.page(ctx)
			}
		}
		batch = append(batch, e)
	}
	if err := flush(); err != nil {
		return nil, err
	}
	return l.page(ctx)
}

// page returns the first sessions of those that were read, with the ids of their parents.
func (l *lister) page(ctx context.Context) (*Page, error) {
	n := min(l.q.Limit, len(l.sorted))
	p := &Page{Items: l.sorted[:n]}
	ids := map[heads.Incarnation]string{}
	for i := range p.Items {
		parent := p.Items[i].About.Parent
		if parent == (heads.Incarnation{}) {
			continue
		}
		id, known := ids[parent]
		if !known {
			about, err := l.About(ctx, parent)
			if err != nil {
				return nil, err
			}
			if about != nil {
				id = about.ID
			}
			ids[parent] = id
		}
		p.Items[i].Parent = id
	}
	if n < len(l.sorted) {
		p.Next = l.sorted[n-1].cursor()
	}
	return p, nil
}

// add reads the sessions of entries and keeps those that the list is to have.
func (l *lister) add(ctx context.Context, entries []heads.OrderEntry) error {
	ks := make([][]byte, 0, 2*len(entries))
	for _, e := range entries {
		ks = append(ks, l.Space.Head(e.Session), l.Space.About(e.Session))
	}
	values, err := l.Engine.Get(ctx, ks...)
	if err != nil {
		return err
	}
	var again []heads.OrderEntry
	for i, e := range entries {
		if values[2*i] == nil && values[2*i+1] == nil { // deleted meanwhile, or renamed
			moved, err := l.moved(ctx, e)
			if err != nil {
				return err
			}
			if moved != nil {
				again = append(again, *moved)
			}
			continue
		}
		h, err := heads.OpenHead(ks[2*i], values[2*i])
		if err != nil {
			return codec.Corrupt(err, "head of incarnation %x", e.Incarnation)
		}
		about, err := heads.OpenAbout(ks[2*i+1], values[2*i+1])
		if err != nil {
			return codec.Corrupt(err, "metadata of incarnation %x", e.Incarnation)
		}
		if h.Incarnation != e.Incarnation || about.Incarnation != e.Incarnation {
			continue // deleted and created again meanwhile
		}
		item := Item{Head: h, About: about}
		// The clock may have been set back: no session stands behind its time.
		item.at = max(uint64(max(about.Updated.UnixNano(), h.Updated.UnixNano())), e.Time)
		if l.cursor != nil && item.compare(l.cursor) <= 0 || !l.q.Keep(about) {
			continue
		}
		l.sorted = append(l.sorted, item)
	}
	if len(again) > 0 {
		return l.add(ctx, again)
	}
	slices.SortFunc(l.sorted, func(a, b Item) int { return a.compare(&b) })
	return nil
}

// moved returns the entry of a session that is not under the id that its entry names: after
// a rename its lifecycle record names another id. It returns nil if the session is gone.
func (l *lister) moved(ctx context.Context, e heads.OrderEntry) (*heads.OrderEntry, error) {
	life, err := l.Life(ctx, e.Incarnation)
	if err != nil || life == nil || life.State != heads.Live || life.Session == e.Session {
		return nil, err
	}
	e.Session = life.Session
	return &e, nil
}

// children reads all children of one session. There are few.
func (l *lister) children(ctx context.Context) (*Page, error) {
	incs, err := l.Children(ctx, *l.q.Parent)
	if err != nil {
		return nil, err
	}
	ks := make([][]byte, len(incs))
	for i, inc := range incs {
		ks[i] = l.Space.Life(inc)
	}
	values, err := l.Engine.Get(ctx, ks...)
	if err != nil {
		return nil, err
	}
	entries := make([]heads.OrderEntry, 0, len(incs))
	for i, inc := range incs {
		if values[i] == nil {
			continue // deleted and removed meanwhile
		}
		life, err := heads.OpenLife(ks[i], values[i])
		if err != nil {
			return nil, codec.Corrupt(err, "lifecycle of incarnation %x", inc)
		}
		if life.State == heads.Live {
			entries = append(entries, heads.OrderEntry{Incarnation: inc, Session: life.Session})
		}
	}
	if err := l.add(ctx, entries); err != nil {
		return nil, err
	}
	return l.page(ctx)
}
