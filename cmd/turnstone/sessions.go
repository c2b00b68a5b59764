package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
)

// errLimit is the error for a negative --limit.
var errLimit = usageError{errors.New("--limit must not be negative")}

// sessionsFlags has the flags of sessions.
type sessionsFlags struct {
	turnstone.ListOptions
	limit       int
	name, model string
	asLines     bool
}

func (a *app) sessions() *cobra.Command {
	var f sessionsFlags
	c := &cobra.Command{
		Use:     "sessions",
		Short:   "List sessions, the most recently updated first",
		Example: "turnstone sessions\nturnstone sessions --label demo=yes\nturnstone sessions --name train --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.limit < 0 {
				return errLimit
			}
			return a.with(cmd.Context(), true, func(st *turnstone.Store) error { return f.run(cmd, st) })
		},
	}
	c.Flags().IntVar(&f.limit, "limit", 50, "greatest number of sessions to show; 0 shows all")
	c.Flags().StringVar(&f.Parent, "parent", "", "list only children of this session")
	c.Flags().StringVar(&f.Group, "group", "", "list only sessions of this group and of those below it, for example app or app/user")
	c.Flags().StringToStringVar(&f.Labels, "label", nil, "list only sessions with this label, KEY=VALUE; if repeated, only those with all labels")
	c.Flags().StringVar(&f.model, "model", "", "list only sessions of this model")
	c.Flags().StringVar(&f.name, "name", "", "list only sessions with this text in their name")
	jsonFlag(c, &f.asLines)
	a.complete(c, "parent")
	return c
}

func (f *sessionsFlags) run(cmd *cobra.Command, st *turnstone.Store) error {
	out := bufio.NewWriter(cmd.OutOrStdout())
	l := f.lister(out, width(cmd.OutOrStdout()))
	shown, more := 0, false
	for i, err := range importer.Sessions(cmd.Context(), st, f.ListOptions) {
		if err != nil {
			return err
		}
		if !f.selects(i) {
			continue
		}
		if more = f.limit > 0 && shown == f.limit; more {
			break
		}
		shown++
		if err := l.print(i); err != nil {
			return err
		}
	}
	if err := errors.Join(l.end(), out.Flush()); err != nil {
		return err
	}
	if more {
		fmt.Fprintf(cmd.ErrOrStderr(), "the %d most recent; --limit 0 shows all\n", f.limit)
	}
	return nil
}

// selects reports whether the flags that List does not know select a session.
func (f *sessionsFlags) selects(i *turnstone.Info) bool {
	return (f.model == "" || i.Model == f.model) && strings.Contains(strings.ToLower(i.Name), strings.ToLower(f.name))
}

// A lister prints sessions one by one.
type lister struct {
	print func(*turnstone.Info) error
	end   func() error // prints what is left
}

// lister returns the lister for JSON or for a table. On a narrow terminal the end of a long id is left out; its
// beginning names the session as well.
func (f *sessionsFlags) lister(w io.Writer, columns int) lister {
	if f.asLines {
		return lister{func(i *turnstone.Info) error { return asJSON(w, i) }, func() error { return nil }}
	}
	longest := 60
	if columns > 0 && columns < 120 {
		longest = 37 // one more than a UUID has
	}
	t := table{least: []string{"REVISION", "PAYLOAD", "NODES"}}
	t.row("SESSION", "REVISION", "NODES", "PAYLOAD", "UPDATED", "NAME")
	return lister{func(i *turnstone.Info) error {
		t.row(line(i.ID, longest), fmt.Sprint(i.Revision), fmt.Sprint(i.Nodes), size(i.Bytes), moment(i.Updated), called(i))
		return nil
	}, func() error { return t.write(w, columns) }}
}

// called returns the name of a session and its parent.
func called(i *turnstone.Info) string {
	name := line(i.Name, 50)
	if i.Parent != "" {
		kind := "fork of "
		if i.Detached {
			kind = "child of "
		}
		name = strings.TrimSpace(name + " (" + kind + line(i.Parent, 40) + ")")
	}
	return name
}

func (a *app) tree() *cobra.Command {
	var asLines bool
	c := &cobra.Command{
		Use:     "tree [SESSION]",
		Short:   "Show sessions with their forks and sub-agents",
		Long:    "Show sessions with their forks and sub-agents, the oldest first. With SESSION, show only that session and what comes\nfrom it.",
		Example: "turnstone tree",
		Args:    cobra.MaximumNArgs(1),
		RunE: a.in(func(cmd *cobra.Command, args []string, st *turnstone.Store) error {
			return runTree(cmd, st, args, asLines)
		}),
	}
	jsonFlag(c, &asLines)
	a.complete(c)
	return c
}

// runTree draws the session that args name, or all, with what comes from them.
func runTree(cmd *cobra.Command, st *turnstone.Store, args []string, asLines bool) error {
	f, err := readFamily(cmd.Context(), st)
	if err != nil {
		return err
	}
	if len(args) == 1 {
		s, err := session(cmd.Context(), st, args[0])
		if err != nil {
			return err
		}
		i, err := s.Info(cmd.Context())
		if err != nil {
			return err
		}
		f.roots = []*turnstone.Info{&i}
	}
	out := bufio.NewWriter(cmd.OutOrStdout())
	f.p, f.json = printer{w: out}, asLines
	for _, r := range f.roots {
		f.draw(r, 0, "", "")
	}
	return errors.Join(f.p.err, out.Flush())
}

// readFamily reads all sessions. Those whose parent is not in the list are roots.
func readFamily(ctx context.Context, st *turnstone.Store) (*family, error) {
	f := &family{children: map[string][]*turnstone.Info{}}
	known := map[string]bool{}
	for i, err := range importer.Sessions(ctx, st, turnstone.ListOptions{}) {
		if err != nil {
			return nil, err
		}
		known[i.ID] = true
		f.children[i.Parent] = append(f.children[i.Parent], i)
	}
	for parent, all := range f.children {
		sortByAge(all)
		if !known[parent] {
			f.roots = append(f.roots, all...)
		}
	}
	sortByAge(f.roots)
	return f, nil
}

// sortByAge sorts sessions by their creation, the oldest first.
func sortByAge(all []*turnstone.Info) {
	slices.SortFunc(all, func(a, b *turnstone.Info) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
}

// A family is sessions and what comes from them.
type family struct {
	p        printer
	children map[string][]*turnstone.Info // by parent
	roots    []*turnstone.Info
	json     bool
}

// draw prints i, whose line begins with first, and all sessions that come from it,
// whose lines begin with rest.
func (f *family) draw(i *turnstone.Info, depth int, first, rest string) {
	if f.json {
		f.printJSON(i, depth)
	} else {
		f.printLine(i, depth, first)
	}
	all := f.children[i.ID]
	for k, c := range all {
		if k == len(all)-1 {
			f.draw(c, depth+1, rest+"└─ ", rest+"   ")
		} else {
			f.draw(c, depth+1, rest+"├─ ", rest+"│  ")
		}
	}
}

func (f *family) printJSON(i *turnstone.Info, depth int) {
	if f.p.err != nil {
		return
	}
	f.p.err = asJSON(f.p.w, struct {
		Depth int `json:"depth"`
		*turnstone.Info
	}{depth, i})
}

func (f *family) printLine(i *turnstone.Info, depth int, begin string) {
	name := ""
	if i.Name != "" {
		name = "  " + line(i.Name, 50)
	}
	f.p.printf("%s%s%s  %s\n", begin, bold(line(i.ID, 60)), name, faint(fmt.Sprintf("(revision %d, %s%s)", i.Revision, plural(i.Nodes, "node"), origin(i, depth))))
}

// origin says how a session comes from its parent, if it has one. It names the parent
// only at depth 0: below that, the tree shows the parent.
func origin(i *turnstone.Info, depth int) string {
	if i.Parent == "" {
		return ""
	}
	what := ", fork"
	if i.Detached {
		what = ", child"
	}
	if !i.ForkNode.IsZero() {
		what += " at " + short(i.ForkNode)
	}
	if depth == 0 {
		what += " of " + line(i.Parent, 40)
	}
	return what
}
