package turnstone

import (
	"context"
	"errors"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/list"
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
	q := list.Query{After: o.After, Limit: o.Limit, Keep: o.keeps}
	if o.Parent != "" {
		parent, err := s.Session(ctx, o.Parent)
		if err != nil {
			return Page{}, err
		}
		q.Parent = &parent.session.Inc
	}
	p, err := list.Sessions(ctx, s.histories, q)
	if errors.Is(err, list.ErrCursor) {
		err = invalid("list", "After is no cursor of an earlier page")
	}
	if err != nil {
		return Page{}, err
	}
	out := Page{Sessions: make([]Info, len(p.Items)), Next: p.Next}
	for i, item := range p.Items {
		out.Sessions[i] = info(item.About, item.Head)
		out.Sessions[i].Parent = item.Parent
	}
	return out, nil
}

// keeps reports whether the list is to have a session.
func (o *ListOptions) keeps(a *head.About) bool {
	if o.Checkpoint != nil && *o.Checkpoint != a.Checkpoint {
		return false
	}
	for k, v := range o.Labels {
		if got, ok := a.Labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}
