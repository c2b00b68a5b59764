package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/graph"
)

// logFlags has the flags of log.
type logFlags struct {
	limit          int
	drawn, asLines bool
}

func (a *app) log() *cobra.Command {
	var f logFlags
	c := &cobra.Command{
		Use:   "log SESSION",
		Short: "List a session's commits, the last one first",
		Long: "List a session's commits, the last one first: the revision, the time, the number of nodes added, the beginning\n" +
			"of the first one, and the turn id. The lines below a commit have the checkpoint parts that it set and the tokens\n" +
			"that it used. --graph draws which commit goes on from which, with branches and attached forks.",
		Example: "turnstone log trip\nturnstone log trip --graph\nturnstone log trip/train --json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.limit < 0 {
				return errLimit
			}
			return a.with(cmd.Context(), true, func(st *turnstone.Store) error { return f.run(cmd, st, args[0]) })
		},
	}
	c.Flags().IntVarP(&f.limit, "limit", "n", 0, "greatest number of commits to show; 0 shows all")
	c.Flags().BoolVar(&f.drawn, "graph", false, "draw branches and forks")
	jsonFlag(c, &f.asLines)
	c.MarkFlagsMutuallyExclusive("graph", "json")
	a.complete(c)
	return c
}

func (f *logFlags) run(cmd *cobra.Command, st *turnstone.Store, name string) error {
	s, err := session(cmd.Context(), st, name)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(cmd.OutOrStdout())
	if f.asLines {
		return errors.Join(f.printJSON(cmd.Context(), out, s), out.Flush())
	}
	h := histories{byNode: map[graph.ID]*vertex{}}
	if err := h.add(cmd.Context(), s); err != nil {
		return err
	}
	r := reader{printer: printer{w: out}, columns: width(cmd.OutOrStdout())}
	if f.drawn {
		if err := h.addForks(cmd.Context(), st, s.ID()); err != nil {
			return err
		}
		r.graph(limited(newestFirst(h.all), f.limit), len(h.sessions) > 1)
	} else {
		slices.Reverse(h.all)
		r.list(limited(h.all, f.limit))
	}
	return errors.Join(r.err, out.Flush())
}

// limited returns the first limit elements of all; 0 means all of them.
func limited[T any](all []T, limit int) []T {
	if limit > 0 {
		return all[:min(limit, len(all))]
	}
	return all
}

func (f *logFlags) printJSON(ctx context.Context, w io.Writer, s *turnstone.Session) error {
	var all []turnstone.LogEntry
	for e, err := range s.Log(ctx, 0) {
		if err != nil {
			return err
		}
		all = append(all, e)
	}
	slices.Reverse(all)
	for _, e := range limited(all, f.limit) {
		if err := asJSON(w, commitLine{s.ID(), e}); err != nil {
			return err
		}
	}
	return nil
}

// list prints commits one below the other.
func (r *reader) list(all []*vertex) {
	for _, v := range all {
		r.printf("%s\n", v.title(r.columns, false))
		for _, d := range v.details(r.columns, 6) {
			r.printf("      %s\n", d)
		}
	}
}

// A vertex is a commit in the graph of a session and its forks.
type vertex struct {
	turnstone.LogEntry
	session string
	order   int       // the place in histories.all
	parents []*vertex // the commits that the commit goes on from
	from    string    // the node that the commit goes on from, if no vertex added it
	subject string
	back    bool // the commit moved the leaf and added nothing
}

// histories are the commits of sessions. A commit comes after those that it goes on
// from.
type histories struct {
	all      []*vertex
	sessions []string
	byNode   map[graph.ID]*vertex // the commit that added each node
}

// add adds the commits of s. The nodes of s tell which commit goes on from which.
func (h *histories) add(ctx context.Context, s *turnstone.Session) error {
	state, err := s.Load(ctx, turnstone.Scope{Full: true})
	if err != nil {
		return err
	}
	h.sessions = append(h.sessions, s.ID())
	nodes := state.Nodes
	for len(nodes) > 0 && nodes[0].Inherited {
		nodes = nodes[1:]
	}
	l := linker{histories: h, byLeaf: map[graph.ID]*vertex{}}
	for e, err := range s.Log(ctx, 0) {
		if err != nil {
			return err
		}
		if e.Revision > state.Revision {
			break // committed after the nodes were read
		}
		n := 0
		for n < len(nodes) && nodes[n].Revision == e.Revision {
			n++
		}
		l.add(s.ID(), e, nodes[:n])
		nodes = nodes[n:]
	}
	return nil
}

// A linker adds the commits of one session to histories, in the order of revisions.
type linker struct {
	*histories
	byLeaf   map[graph.ID]*vertex // the last commit whose leaf was the node
	previous *vertex
}

// add adds a commit, which added the given nodes.
func (l *linker) add(session string, e turnstone.LogEntry, nodes []turnstone.Node) {
	v := &vertex{LogEntry: e, session: session, order: len(l.all)}
	l.all = append(l.all, v)
	for i := range nodes {
		n := &nodes[i]
		if l.byNode[n.ID] == nil {
			l.byNode[n.ID] = v
		}
		l.link(v, n.Parent)
		if v.subject == "" {
			v.subject = line(n.Kind, 20) + ": " + line(importer.Text(n.Payload), 200)
		}
	}
	if len(v.parents) == 0 && v.subject == "" { // no node of the commit is left
		l.link(v, e.Leaf)
		if len(v.parents) == 0 && v.from == "" && l.previous != nil && !e.Leaf.IsZero() {
			v.parents = []*vertex{l.previous}
		}
	}
	v.back = e.Nodes == 0 && l.previous != nil && l.previous.Leaf != e.Leaf
	l.byLeaf[e.Leaf] = v
	l.previous = v
}

// link notes that v goes on from a node: from the commit that left the leaf there, or
// else the commit that added the node.
func (l *linker) link(v *vertex, id graph.ID) {
	p := l.byLeaf[id]
	if p == nil {
		p = l.byNode[id]
	}
	switch {
	case p == nil && !id.IsZero():
		v.from = short(id)
	case p != nil && p != v && !slices.Contains(v.parents, p):
		v.parents = append(v.parents, p)
	}
}

// addForks adds the attached forks of a session, and their forks.
func (h *histories) addForks(ctx context.Context, st *turnstone.Store, parent string) error {
	for i, err := range importer.Sessions(ctx, st, turnstone.ListOptions{Parent: parent}) {
		if err != nil {
			return err
		}
		if i.Detached || slices.Contains(h.sessions, i.ID) { // ids are used again, so that parents can form a cycle
			continue
		}
		s, err := st.Session(ctx, i.ID)
		if errors.Is(err, turnstone.ErrSessionNotFound) {
			continue // the session was deleted after it was listed
		}
		if err == nil {
			err = h.add(ctx, s)
		}
		if err == nil {
			err = h.addForks(ctx, st, i.ID)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// title returns the commit as one line for a terminal with the given number of columns;
// 0 means that the output is no terminal. If named is set, the line names the session.
func (v *vertex) title(terminal int, named bool) string {
	where := fmt.Sprintf("%4d", v.Revision)
	if named {
		where = fmt.Sprintf("%s@%d", line(v.session, 40), v.Revision)
	}
	turn := ""
	if v.Turn != "" {
		turn = "  turn " + line(v.Turn, 24)
	}
	if v.Pruned {
		turn += "  pruned"
	}
	nodes := fmt.Sprintf("%-9s ", plural(v.Nodes, "node"))
	room := 72
	if terminal > 0 {
		begin := fmt.Sprintf("%s  %s  ", where, moment(v.Time))
		room = max(terminal-columns(begin+nodes+turn), 20)
	}
	return bold(where) + "  " + moment(v.Time) + "  " + nodes + line(v.text(), room) + faint(turn)
}

// text says what the commit did.
func (v *vertex) text() string {
	switch {
	case v.back && v.Leaf.IsZero():
		return "emptied the conversation"
	case v.back:
		return "moved the leaf to " + short(v.Leaf)
	case v.Nodes == 0:
		return "added no node"
	case v.subject == "":
		return "tombstoned since"
	}
	return v.subject
}

// details returns the lines below the title. They are printed after a margin of the
// given number of columns.
func (v *vertex) details(terminal, margin int) []string {
	var out, lines []string
	if v.from != "" {
		out = append(out, "goes on from "+v.from+", which the session forked from")
	}
	for _, p := range v.Parts {
		out = append(out, fmt.Sprintf("part %s, %s", line(p.Name, 64), size(uint64(p.Size))))
	}
	for _, name := range slices.Sorted(maps.Keys(v.Labels)) {
		out = append(out, fmt.Sprintf("label %s=%s", line(name, 40), line(v.Labels[name], 80)))
	}
	for _, u := range v.Usage {
		out = append(out, "used "+tokens(u))
	}
	room := 0
	if terminal > 0 {
		room = max(terminal-margin, 20)
	}
	for _, l := range out {
		for _, l := range wrap(l, room) {
			lines = append(lines, faint(l))
		}
	}
	return lines
}

// newestFirst orders commits by time, the last one first. A commit comes after all
// commits that go on from it, whatever the clocks said.
func newestFirst(all []*vertex) []*vertex {
	children := map[*vertex]int{} // number of children that are not in out
	for _, v := range all {
		for _, p := range v.parents {
			children[p]++
		}
	}
	var ready, out []*vertex
	for _, v := range all {
		if children[v] == 0 {
			ready = append(ready, v)
		}
	}
	for len(ready) > 0 {
		v := slices.MaxFunc(ready, func(a, b *vertex) int {
			return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.order, b.order))
		})
		i := slices.Index(ready, v)
		ready = slices.Delete(ready, i, i+1)
		out = append(out, v)
		for _, p := range v.parents {
			if children[p]--; children[p] == 0 {
				ready = append(ready, p)
			}
		}
	}
	return out
}

// rails are the columns of a drawn graph. Each has the commit that it goes down to, or
// nil if the column is free.
type rails []*vertex

// draw draws the columns on one line, with sign in the column at.
func (c rails) draw(at int, sign string) string {
	var b strings.Builder
	for i, v := range c {
		switch {
		case i == at:
			b.WriteString(sign)
		case v != nil:
			b.WriteString("│")
		default:
			b.WriteString(" ")
		}
		b.WriteString(" ")
	}
	return b.String()
}

// take returns the first free column, which it gives to v. It adds one if none is free.
func (c *rails) take(v *vertex) int {
	at := slices.Index(*c, nil)
	if at < 0 {
		at = len(*c)
		*c = append(*c, nil)
	}
	(*c)[at] = v
	return at
}

// trim removes free columns at the right.
func (c *rails) trim() {
	for n := len(*c); n > 0 && (*c)[n-1] == nil; n-- {
		*c = (*c)[:n-1]
	}
}

// graph draws commits. Each is in a column that goes down to a commit that it goes on
// from.
func (r *reader) graph(all []*vertex, named bool) {
	var columns rails
	for _, v := range all {
		at := slices.Index(columns, v)
		if at < 0 {
			at = columns.take(v)
		} else {
			r.join(columns, at, v)
		}
		columns.trim()
		margin, room := columns.draw(at, "*"), 0
		if r.columns > 0 {
			room = max(r.columns-2*len(columns), 1)
		}
		r.printf("%s%s\n", margin, v.title(room, named))
		columns[at] = nil
		if len(v.parents) > 0 {
			columns[at] = v.parents[0]
		}
		for _, p := range v.parents[min(1, len(v.parents)):] { // of a commit with several branches
			if !slices.Contains(columns, p) {
				columns = append(columns, p)
				r.printf("%s\n", columns.across(at, len(columns)-1, "╮"))
			}
		}
		for _, d := range v.details(r.columns, 2*len(columns)+1) {
			r.printf("%s %s\n", columns.draw(-1, ""), d)
		}
	}
}

// join draws how the columns that go down to v come together in the first of them,
// which is at, and frees the others.
func (r *reader) join(columns rails, at int, v *vertex) {
	last := at
	for i := at + 1; i < len(columns); i++ {
		if columns[i] == v {
			last = i
		}
	}
	if last == at {
		return
	}
	r.printf("%s\n", columns.across(at, last, "╯"))
	for i := at + 1; i <= last; i++ {
		if columns[i] == v {
			columns[i] = nil
		}
	}
}

// across draws a horizontal line from the column at to the column last, where it ends
// with the sign end. Columns between them that go down to the same commit join it.
func (c rails) across(at, last int, end string) string {
	var b strings.Builder
	for i, v := range c {
		switch {
		case i == at:
			b.WriteString("├")
		case i == last:
			b.WriteString(end)
		case i > at && i < last:
			b.WriteString(crossing(v, c[at]))
		case v != nil:
			b.WriteString("│")
		default:
			b.WriteString(" ")
		}
		if i >= at && i < last {
			b.WriteString("─")
		} else {
			b.WriteString(" ")
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// crossing returns the sign for a column to v where a line from a column to joined
// crosses it.
func crossing(v, joined *vertex) string {
	switch v {
	case nil:
		return "─"
	case joined:
		return "┴"
	}
	return "┼"
}
