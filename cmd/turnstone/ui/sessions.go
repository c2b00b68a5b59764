package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/internal/wire"
)

const (
	shownSessions  = 50    // of a page of the list
	lookedSessions = 5_000 // how many sessions a page of the list looks at, at most, for those that it is to show
)

// A filter says which sessions a list shows.
type filter struct {
	Text, Group, Label, Agent, Model, Parent, Since string
	since                                           time.Time
}

// A sessionList is a page of the list of sessions.
type sessionList struct {
	Filter   filter
	Sessions []sessionRow
	Next     string // the address of the next page, or ""
	Looked   int    // how many sessions were looked at, if that were too many to go on
}

// A sessionRow is a session of a list.
type sessionRow struct {
	turnstone.Info
	Agent  string
	Tokens uint64
}

func rowOf(i *turnstone.Info) sessionRow {
	row := sessionRow{Info: *i, Agent: i.Labels[importer.FormatLabel]}
	for _, u := range i.Usage {
		row.Tokens += u.Input + u.Output
	}
	return row
}

// Called returns what people call the session.
func (r sessionRow) Called() string { return cmp.Or(r.Name, r.ID) }

// sessions shows the list of sessions.
func (v *visit) sessions() error {
	f, err := v.filter()
	if err != nil {
		return err
	}
	o := turnstone.ListOptions{Group: f.Group, Parent: f.Parent, After: v.q.Get("after"), Limit: 100}
	if name, value, ok := strings.Cut(f.Label, "="); ok {
		o.Labels = map[string]string{name: value}
	}
	list := sessionList{Filter: f}
	looked := 0
	for len(list.Sessions) < shownSessions {
		o.Limit = min(o.Limit, shownSessions-len(list.Sessions)) // so that the cursor of the page is where the next one begins
		if f.selective() {
			o.Limit = 200
		}
		p, err := v.db.List(v.r.Context(), o)
		if err != nil {
			return err
		}
		looked += len(p.Sessions)
		for i := range p.Sessions {
			if f.selects(&p.Sessions[i]) {
				list.Sessions = append(list.Sessions, rowOf(&p.Sessions[i]))
			}
		}
		if o.After = p.Next; o.After == "" {
			break
		}
		if p.Sessions[len(p.Sessions)-1].Updated.Before(f.since) { // The list is in that order.
			o.After = ""
			break
		}
		if looked >= lookedSessions {
			list.Looked = looked
			break
		}
	}
	if o.After != "" {
		q := v.r.URL.Query()
		q.Set("after", o.After)
		list.Next = v.url("", q)
	}
	if v.q.Has("rows") {
		v.fragment("rows", list)
		return nil
	}
	v.render(200, "sessions", view{Title: "Sessions", Body: list})
	return nil
}

// filter reads the filter of a list of sessions.
func (v *visit) filter() (filter, error) {
	f := filter{
		Text: v.q.Get("q"), Group: v.q.Get("group"), Label: v.q.Get("label"), Agent: v.q.Get("agent"), Model: v.q.Get("model"), Parent: v.q.Get("parent"), Since: v.q.Get("since"),
	}
	if f.Label != "" && !strings.Contains(f.Label, "=") {
		return f, fmt.Errorf("%w: a label is NAME=VALUE, not %q", wire.ErrRequest, f.Label)
	}
	if f.Since != "" {
		var err error
		if f.since, err = time.Parse("2006-01-02", f.Since); err != nil {
			return f, fmt.Errorf("%w: %w", wire.ErrRequest, err)
		}
	}
	return f, nil
}

// selective reports whether the filter has a part that the store does not know.
func (f *filter) selective() bool { return f.Text != "" || f.Agent != "" || f.Model != "" }

func (f *filter) selects(i *turnstone.Info) bool {
	if i.Updated.Before(f.since) {
		return false
	}
	if f.Agent != "" && i.Labels[importer.FormatLabel] != f.Agent {
		return false
	}
	if f.Model != "" && i.Model != f.Model && !slices.ContainsFunc(i.Usage, func(u usage) bool { return u.Model == f.Model }) {
		return false
	}
	for word := range strings.FieldsSeq(strings.ToLower(f.Text)) {
		if !strings.Contains(strings.ToLower(i.Name+" "+i.ID+" "+i.Group+" "+i.Cwd), word) {
			return false
		}
	}
	return true
}
