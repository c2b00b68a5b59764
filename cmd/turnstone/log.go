package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/importer"
)

func (a *app) log() *cobra.Command {
	var limit int
	var drawn, asLines bool
	c := &cobra.Command{
		Use:   "log SESSION",
		Short: "List a session's commits, the last one first",
		Long: "List a session's commits, the last one first: revision, time, nodes added, how they begin, the turn id;\n" +
			"below it the leaf if it moved back, the checkpoint parts that were set, the tokens. --graph draws which\n" +
			"commit goes on from which, branches and attached forks included.",
		Example: "turnstone log trip\nturnstone log trip --graph\nturnstone log trip/train --json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return errLimit
			}
			return a.with(cmd.Context(), true, func(st *turnstone.Store) error {
				s, err := session(cmd.Context(), st, args[0])
				if err != nil {
					return err
				}
				out := bufio.NewWriter(cmd.OutOrStdout())
				if asLines {
					var all []turnstone.LogEntry
					for e, err := range s.Log(cmd.Context(), 0) {
						if err != nil {
							return err
						}
						all = append(all, e)
					}
					for i := range all {
						if limit > 0 && i == limit {
							break
						}
						if err := asJSON(out, commitLineOf(s.ID(), &all[len(all)-1-i])); err != nil {
							return err
						}
					}
					return out.Flush()
				}
				h := histories{of: map[graph.ID]*vertex{}}
				if err := h.add(cmd.Context(), s); err != nil {
					return err
				}
				if drawn {
					if err := h.forks(cmd.Context(), st, s.ID()); err != nil {
						return err
					}
				}
				r := reader{printer: printer{w: out}, columns: width(cmd.OutOrStdout())}
				if drawn {
					r.graph(newestFirst(h.all), limit, len(h.sessions) > 1)
				} else {
					for i := range h.all {
						if limit > 0 && i == limit {
							break
						}
						v := h.all[len(h.all)-1-i]
						r.printf("%s\n", v.title(r.columns, false))
						for _, d := range v.details(r.columns, 6) {
							r.printf("      %s\n", d)
						}
					}
				}
				return errors.Join(r.err, out.Flush())
			})
		},
	}
	c.Flags().IntVarP(&limit, "limit", "n", 0, "show at most so many; 0 shows all")
	c.Flags().BoolVar(&drawn, "graph", false, "draw branches and forks")
	jsonFlag(c, &asLines)
	c.MarkFlagsMutuallyExclusive("graph", "json")
	a.complete(c)
	return c
}

// A vertex is a commit in the graph of its session and the forks of that.
type vertex struct {
	turnstone.LogEntry
	session string
	order   int       // older ones first
	parents []*vertex // the commits that it goes on from
	from    string    // where it goes on from, if that is no vertex
	subject string
	back    bool // it moved the leaf and added nothing
}

// histories are the commits of sessions, older ones before those that go on
// from them.
type histories struct {
	all      []*vertex
	sessions []string
	of       map[graph.ID]*vertex // that added the node
}

// add reads the commits of s, and from its nodes which goes on from which.
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
	last := map[graph.ID]*vertex{} // where the leaf rested on a node last
	var previous *vertex
	for e, err := range s.Log(ctx, 0) {
		if err != nil {
			return err
		}
		if e.Revision > state.Revision {
			break // committed since
		}
		v := &vertex{LogEntry: e, session: s.ID(), order: len(h.all)}
		h.all = append(h.all, v)
		goesOn := func(id graph.ID) {
			p := last[id]
			if p == nil {
				p = h.of[id]
			}
			switch {
			case p == nil && !id.IsZero():
				v.from = short(id)
			case p != nil && p != v && !slices.Contains(v.parents, p):
				v.parents = append(v.parents, p)
			}
		}
		for len(nodes) > 0 && nodes[0].Revision == e.Revision {
			n := &nodes[0]
			nodes = nodes[1:]
			if h.of[n.ID] == nil {
				h.of[n.ID] = v
			}
			goesOn(n.Parent)
			if v.subject == "" {
				v.subject = line(n.Kind, 20) + ": " + line(importer.Text(n.Payload), 200)
			}
		}
		if len(v.parents) == 0 && v.subject == "" { // it added nothing that is still there
			goesOn(e.Leaf)
			if len(v.parents) == 0 && v.from == "" && previous != nil && !e.Leaf.IsZero() {
				v.parents = []*vertex{previous}
			}
		}
		v.back = e.Nodes == 0 && previous != nil && previous.Leaf != e.Leaf
		last[e.Leaf] = v
		previous = v
	}
	return nil
}

// forks adds the attached forks of a session, and theirs.
func (h *histories) forks(ctx context.Context, st *turnstone.Store, parent string) error {
	for i, err := range infos(ctx, st, turnstone.ListOptions{Parent: parent}) {
		if err != nil {
			return err
		}
		if i.Detached || slices.Contains(h.sessions, i.ID) { // a parent is a name, and names can be given again
			continue
		}
		s, err := st.Session(ctx, i.ID)
		if errors.Is(err, turnstone.ErrSessionNotFound) {
			continue // deleted meanwhile
		}
		if err == nil {
			err = h.add(ctx, s)
		}
		if err == nil {
			err = h.forks(ctx, st, i.ID)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// title is a commit on one line of a terminal of so many columns; 0 is no terminal.
func (v *vertex) title(terminal int, named bool) string {
	where := fmt.Sprintf("%4d", v.Revision)
	if named {
		where = fmt.Sprintf("%s@%d", line(v.session, 40), v.Revision)
	}
	text := v.subject
	switch {
	case v.back && v.Leaf.IsZero():
		text = "emptied the conversation"
	case v.back:
		text = "moved the leaf to " + short(v.Leaf)
	case v.Nodes == 0:
		text = "added no node"
	case text == "":
		text = "tombstoned since"
	}
	begin := fmt.Sprintf("%s  %s  ", where, moment(v.Time))
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
		room = max(terminal-columns(begin+nodes+turn), 20)
	}
	return bold(where) + "  " + moment(v.Time) + "  " + nodes + line(text, room) + faint(turn)
}

// details are the lines below it, after a margin of so many columns.
func (v *vertex) details(terminal, margin int) []string {
	var out, lines []string
	if v.from != "" {
		out = append(out, "goes on from "+v.from+", which the session forked from")
	}
	for _, p := range v.Parts {
		out = append(out, fmt.Sprintf("part %s, %s", line(p.Name, 64), size(uint64(p.Size))))
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

// newestFirst orders commits by time, the last one first, but each after all
// that go on from it, whatever the clocks said.
func newestFirst(all []*vertex) []*vertex {
	children := map[*vertex]int{}
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
		next := 0
		for i, v := range ready {
			if c := v.Time.Compare(ready[next].Time); c > 0 || c == 0 && v.order > ready[next].order {
				next = i
			}
		}
		v := ready[next]
		ready = slices.Delete(ready, next, next+1)
		out = append(out, v)
		for _, p := range v.parents {
			if children[p]--; children[p] == 0 {
				ready = append(ready, p)
			}
		}
	}
	return out
}

// graph draws commits, each in a column that goes down to what it goes on from.
func (r *reader) graph(all []*vertex, limit int, named bool) {
	var columns []*vertex // what each column goes down to; nil: free
	rails := func(mark int, v string) string {
		var b strings.Builder
		for i, c := range columns {
			switch {
			case i == mark:
				b.WriteString(v)
			case c != nil:
				b.WriteString("│")
			default:
				b.WriteString(" ")
			}
			b.WriteString(" ")
		}
		return b.String()
	}
	for i, v := range all {
		if limit > 0 && i == limit {
			break
		}
		at := slices.Index(columns, v)
		if at < 0 {
			if at = slices.Index(columns, nil); at < 0 {
				at = len(columns)
				columns = append(columns, nil)
			}
			columns[at] = v
		} else {
			r.join(columns, at, v)
		}
		for len(columns) > 0 && columns[len(columns)-1] == nil {
			columns = columns[:len(columns)-1]
		}
		margin, room := rails(at, "*"), 0
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
				r.printf("%s\n", across(columns, at, len(columns)-1, "╮"))
			}
		}
		for _, d := range v.details(r.columns, 2*len(columns)+1) {
			r.printf("%s %s\n", rails(-1, ""), d)
		}
	}
}

// join draws how the columns that go down to v come together in the first of
// them, which is at, and frees the others.
func (r *reader) join(columns []*vertex, at int, v *vertex) {
	last := at
	for i := at + 1; i < len(columns); i++ {
		if columns[i] == v {
			last = i
		}
	}
	if last == at {
		return
	}
	r.printf("%s\n", across(columns, at, last, "╯"))
	for i := at + 1; i <= last; i++ {
		if columns[i] == v {
			columns[i] = nil
		}
	}
}

// across draws a line from the column at to the column last, which ends there.
// Columns between that go down to the same commit end in it.
func across(columns []*vertex, at, last int, end string) string {
	var b strings.Builder
	for i, c := range columns {
		within := i > at && i < last
		switch {
		case i == at:
			b.WriteString("├")
		case i == last:
			b.WriteString(end)
		case within && c != nil && c == columns[at]:
			b.WriteString("┴")
		case within && c != nil:
			b.WriteString("┼")
		case within:
			b.WriteString("─")
		case c != nil:
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
