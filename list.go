package turnstone

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"slices"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// ListOptions says which sessions List returns. The zero value means the first
// page of all.
type ListOptions struct {
	// After is Page.Next of the page before.
	After string
	// Limit is the number of sessions of a page; default 50, at most MaxPage.
	Limit int
	// Parent keeps the children of this session only, which must exist.
	Parent string
	// Labels keeps sessions that have all of these.
	Labels map[string]string
	// Checkpoint, if set, keeps summarisation sessions only, or others only.
	Checkpoint *bool
}

// A Page is a part of a list.
type Page struct {
	Sessions []Info
	Next     string // ListOptions.After of the next page; "" on the last one
}

// List returns sessions, the most recently updated first. Pages are stable:
// going through all of them shows no session twice and misses none that was
// neither updated nor deleted meanwhile. Sessions updated in the same instant
// are ordered by incarnation.
func (s *Store) List(ctx context.Context, o ListOptions) (Page, error) {
	return observed(ctx, s, OpList, "", func(ctx context.Context) (Page, error) { return s.list(ctx, o) },
		func(p Page, out *Outcome) { out.Items = len(p.Sessions) })
}

func (s *Store) list(ctx context.Context, o ListOptions) (Page, error) {
	if o.Limit == 0 {
		o.Limit = 50
	}
	c := checker{of: "list"}
	c.positive("Limit", int64(o.Limit))
	c.limit("sessions of a page", o.Limit, MaxPage)
	if c.err != nil {
		return Page{}, c.err
	}
	l := lister{s: s, o: o}
	if o.After != "" {
		b, err := hex.DecodeString(o.After)
		if err != nil || len(b) != 24 {
			return Page{}, invalid("list", "After is no cursor of an earlier page")
		}
		l.cursor = &listed{at: binary.BigEndian.Uint64(b), inc: head.Incarnation(b[8:])}
	}
	if o.Parent != "" {
		return l.children(ctx)
	}
	return l.all(ctx)
}

// A listed session and its place in the order: by time, then incarnation.
type listed struct {
	at     uint64 // nanoseconds
	inc    head.Incarnation
	parent head.Incarnation
	info   Info // without its parent's id
}

func (a *listed) compare(b *listed) int {
	return cmp.Or(cmp.Compare(b.at, a.at), slices.Compare(a.inc[:], b.inc[:]))
}

func (a *listed) cursor() string {
	b := binary.BigEndian.AppendUint64(nil, a.at)
	return hex.EncodeToString(append(b, a.inc[:]...))
}

type lister struct {
	s      *Store
	o      ListOptions
	cursor *listed
	sorted []listed // read and kept, in order
}

// all reads the order from the cursor on until a page is certain.
func (l *lister) all(ctx context.Context) (Page, error) {
	r := l.s.space.All(keys.Order)
	if l.cursor != nil {
		// Who was updated at the cursor's time or before stands there or later.
		r.Start = l.s.space.Order(l.cursor.at, head.Incarnation{})
	}
	var batch []head.OrderEntry
	flush := func() error {
		err := l.add(ctx, batch)
		batch = batch[:0]
		return err
	}
	size := max(l.o.Limit, 64)
	for p, err := range l.s.engine.Scan(ctx, r) {
		if err != nil {
			return Page{}, err
		}
		e, err := head.OpenOrder(l.s.space, p)
		if err != nil {
			return Page{}, err
		}
		// What stands from here on was updated before e.Time + head.OrderWindow.
		if len(batch) == size {
			if err := flush(); err != nil {
				return Page{}, err
			}
			if n := len(l.sorted); n > l.o.Limit && l.sorted[l.o.Limit].at >= e.Time+uint64(head.OrderWindow) {
				return l.page(ctx)
			}
		}
		batch = append(batch, e)
	}
	if err := flush(); err != nil {
		return Page{}, err
	}
	return l.page(ctx)
}

func (l *lister) page(ctx context.Context) (Page, error) {
	n := min(l.o.Limit, len(l.sorted))
	p := Page{Sessions: make([]Info, n)}
	var parents []head.Incarnation
	for _, item := range l.sorted[:n] {
		if item.parent != (head.Incarnation{}) && !slices.Contains(parents, item.parent) {
			parents = append(parents, item.parent)
		}
	}
	ids, err := l.s.ids(ctx, parents)
	if err != nil {
		return Page{}, err
	}
	for i := range p.Sessions {
		p.Sessions[i] = l.sorted[i].info
		p.Sessions[i].Parent = ids[l.sorted[i].parent]
	}
	if n < len(l.sorted) {
		p.Next = l.sorted[n-1].cursor()
	}
	return p, nil
}

// add reads the sessions of entries and keeps those that the list is to show.
func (l *lister) add(ctx context.Context, entries []head.OrderEntry) error {
	ks := make([][]byte, 0, 2*len(entries))
	for _, e := range entries {
		ks = append(ks, l.s.space.Head(e.Session), l.s.space.About(e.Session))
	}
	vs, err := l.s.engine.Get(ctx, ks...)
	if err != nil {
		return err
	}
	var again []head.OrderEntry
	for i, e := range entries {
		if vs[2*i] == nil && vs[2*i+1] == nil { // deleted meanwhile, or renamed
			if e, err = l.s.moved(ctx, e); err != nil {
				return err
			}
			if e.Time != 0 {
				again = append(again, e)
			}
			continue
		}
		h, err := head.OpenHead(ks[2*i], vs[2*i])
		if err != nil {
			return codec.Corrupt(err, "head of incarnation %x", e.Incarnation)
		}
		a, err := head.OpenAbout(ks[2*i+1], vs[2*i+1])
		if err != nil {
			return codec.Corrupt(err, "metadata of incarnation %x", e.Incarnation)
		}
		if h.Incarnation != e.Incarnation || a.Incarnation != e.Incarnation {
			continue // deleted and created again meanwhile
		}
		item := listed{inc: e.Incarnation, parent: a.Parent, info: info(a, h)}
		// The clock may have been set back: nobody stands behind their time.
		item.at = max(uint64(item.info.Updated.UnixNano()), e.Time)
		if l.cursor != nil && item.compare(l.cursor) <= 0 || !l.matches(&item.info) {
			continue
		}
		l.sorted = append(l.sorted, item)
	}
	if len(again) > 0 {
		return l.add(ctx, again)
	}
	slices.SortFunc(l.sorted, func(a, b listed) int { return a.compare(&b) })
	return nil
}

// moved returns where the session of an entry is now: after a rename its
// lifecycle record names another id. A session that is gone has no time.
func (s *Store) moved(ctx context.Context, e head.OrderEntry) (head.OrderEntry, error) {
	key := s.space.Life(e.Incarnation)
	vs, err := s.engine.Get(ctx, key)
	if err != nil || vs[0] == nil {
		return head.OrderEntry{}, err
	}
	life, err := head.OpenLife(key, vs[0])
	if err != nil {
		return head.OrderEntry{}, codec.Corrupt(err, "lifecycle of incarnation %x", e.Incarnation)
	}
	if life.State != head.Live || life.Session == e.Session {
		return head.OrderEntry{}, nil
	}
	e.Session, e.Time = life.Session, max(e.Time, 1)
	return e, nil
}

func (l *lister) matches(i *Info) bool {
	if l.o.Checkpoint != nil && *l.o.Checkpoint != i.Checkpoint {
		return false
	}
	for k, v := range l.o.Labels {
		if got, ok := i.Labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// children reads all children of one session; there are few.
func (l *lister) children(ctx context.Context) (Page, error) {
	parent, err := l.s.Session(ctx, l.o.Parent)
	if err != nil {
		return Page{}, err
	}
	incs, err := l.s.histories.Children(ctx, parent.session.Inc)
	if err != nil {
		return Page{}, err
	}
	ks := make([][]byte, len(incs))
	for i, inc := range incs {
		ks[i] = l.s.space.Life(inc)
	}
	vs, err := l.s.engine.Get(ctx, ks...)
	if err != nil {
		return Page{}, err
	}
	entries := make([]head.OrderEntry, 0, len(incs))
	for i, inc := range incs {
		if vs[i] == nil {
			continue // deleted and removed meanwhile
		}
		life, err := head.OpenLife(ks[i], vs[i])
		if err != nil {
			return Page{}, codec.Corrupt(err, "lifecycle of incarnation %x", inc)
		}
		if life.State == head.Live {
			entries = append(entries, head.OrderEntry{Incarnation: inc, Session: life.Session})
		}
	}
	if err := l.add(ctx, entries); err != nil {
		return Page{}, err
	}
	return l.page(ctx)
}
