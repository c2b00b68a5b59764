package main

import (
	"bufio"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/importer"
)

func (a *app) show() *cobra.Command {
	var at uint64
	var last int
	var leaf string
	var full, whole, asLines bool
	c := &cobra.Command{
		Use:   "show SESSION",
		Short: "Print a session's conversation",
		Long: "Print a session's conversation: the active path, wrapped, each result of a tool with the call that it\n" +
			"answers, long payloads folded. SESSION@REVISION and SESSION:NODE are short for --at and --leaf.",
		Example: "turnstone show trip\nturnstone show trip@1\nturnstone show trip --last 2 --json\nturnstone show trip/train --last 1",
		Args:    cobra.ExactArgs(1),
		RunE: a.in(func(cmd *cobra.Command, args []string, st *turnstone.Store) error {
			p, err := find(cmd.Context(), st, args[0])
			if err != nil {
				return err
			}
			scope := p.scope
			scope.Last, scope.Full = last, full
			if at > 0 {
				scope.At = head.Revision(at)
			}
			if leaf != "" {
				if scope.Leaf, err = node(cmd.Context(), p.Session, leaf); err != nil {
					return err
				}
			}
			state, err := p.Load(cmd.Context(), scope)
			if err != nil {
				return err
			}
			info, err := p.Info(cmd.Context())
			if err != nil {
				return err
			}
			out := bufio.NewWriter(cmd.OutOrStdout())
			if asLines {
				for i := range state.Nodes {
					if err := asJSON(out, nodeLineOf(&state.Nodes[i])); err != nil {
						return err
					}
				}
				return out.Flush()
			}
			r := reader{printer: printer{w: out}, columns: width(cmd.OutOrStdout()), whole: whole}
			r.head(&info, state)
			if int(info.Nodes) > len(state.Nodes) && !full && last == 0 && scope.At == 0 && scope.Leaf.IsZero() {
				r.printf("shown     %s; --full shows those on other branches, too\n", plural(len(state.Nodes), "node"))
			}
			r.conversation("", state.Nodes)
			return errors.Join(r.err, out.Flush())
		}),
	}
	c.Flags().Uint64Var(&at, "at", 0, "as it was at this revision")
	c.Flags().StringVar(&leaf, "leaf", "", "the path to this node: its key, or the beginning of its id")
	c.Flags().IntVar(&last, "last", 0, "the last so many nodes only")
	c.Flags().BoolVar(&full, "full", false, "all nodes, side branches included, in the order of commits")
	c.Flags().BoolVar(&whole, "whole", false, "do not fold long payloads")
	jsonFlag(c, &asLines)
	a.complete(c)
	return c
}

// head prints what a session is.
func (r *reader) head(i *turnstone.Info, st *turnstone.State) {
	field := func(name, text string) { r.printf("%s\n", hang(fmt.Sprintf("%-9s ", name), text, r.columns)) }
	r.printf("session   %s\n", bold(line(i.ID, 200)))
	for _, f := range [][2]string{{"name", i.Name}, {"model", i.Model}, {"cwd", i.Cwd}, {"parent", i.Parent}, {"labels", labels(i.Labels)}} {
		if f[1] != "" {
			field(f[0], line(f[1], 2000))
		}
	}
	leaf := "-"
	if !st.Leaf.IsZero() {
		leaf = short(st.Leaf)
	}
	now := ""
	if st.Revision != i.Revision {
		now = fmt.Sprintf(" by revision %d", i.Revision)
	}
	field("revision", fmt.Sprintf("%d, leaf %s, %s of %s%s", st.Revision, leaf, plural(i.Nodes, "node"), size(i.Bytes), now))
	for _, part := range st.Parts {
		set := fmt.Sprintf("set by revision %d", part.Set)
		if part.Set == 0 {
			set = "inherited"
		}
		field("part", fmt.Sprintf("%s: %s, %s", line(part.Name, 64), size(uint64(part.Size)), set))
	}
	for _, u := range st.Usage {
		field("usage", tokens(u))
	}
}

// tokens writes what was used of a model.
func tokens(u head.Usage) string {
	out := fmt.Sprintf("%s: %d in, %d out", line(u.Model, 60), u.Input, u.Output)
	for _, more := range []struct {
		n    uint64
		what string
	}{{u.CachedInput, "cached"}, {u.CacheWrite, "written to cache"}, {u.Reasoning, "reasoning"}} {
		if more.n > 0 {
			out += fmt.Sprintf(", %d %s", more.n, more.what)
		}
	}
	return out
}

const foldLines = 12

// A reader prints nodes for people.
type reader struct {
	printer
	columns int
	whole   bool // nothing is folded
}

// conversation prints nodes, each line after a margin.
func (r *reader) conversation(margin string, nodes []turnstone.Node) {
	names := map[string]string{} // of the tool calls
	answered := map[string]bool{}
	for i := range nodes {
		for _, c := range importer.Calls(nodes[i].Payload) {
			names[c.ID] = c.Name
		}
		for _, id := range importer.Answers(nodes[i].Payload) {
			answered[id] = true
		}
	}
	for i := range nodes {
		n := &nodes[i]
		var notes []string
		for _, id := range importer.Answers(n.Payload) {
			if name := names[id]; name != "" {
				notes = append(notes, fmt.Sprintf("result of %s (%s)", line(name, 40), line(id, 24)))
			} else {
				notes = append(notes, fmt.Sprintf("result of %s, which is not here", line(id, 24)))
			}
		}
		for _, c := range importer.Calls(n.Payload) {
			if c.ID != "" && !answered[c.ID] {
				notes = append(notes, fmt.Sprintf("%s (%s) has no result here", line(c.Name, 40), line(c.ID, 24)))
			}
		}
		r.message(margin, n, notes)
	}
}

// message prints a node: a line of what it is, and its text, wrapped.
func (r *reader) message(margin string, n *turnstone.Node, notes []string) {
	where := fmt.Sprintf("revision %d", n.Revision)
	if n.Inherited {
		where += " of what it forked from"
	}
	room := 0
	if r.columns > 0 {
		room = max(r.columns-2-columns(margin), 10)
	}
	title := []string{faint(short(n.ID)), bold(line(n.Kind, 40))}
	below := ""
	if all := strings.Join(append([]string{where}, notes...), "  "); room == 0 || columns(short(n.ID)+line(n.Kind, 40)+all)+4 <= room+2 {
		title = append(title, faint(all))
	} else { // where a terminal would break the title, the notes are on lines of their own
		title = append(title, faint(where))
		for _, l := range wrap(strings.Join(notes, "  "), room) {
			below += margin + "  " + faint(l) + "\n"
		}
	}
	r.printf("%s\n%s%s\n%s", strings.TrimRight(margin, " "), margin, strings.Join(title, "  "), below)
	lines := wrap(clean(importer.Text(n.Payload)), room)
	if hidden := len(lines) - foldLines; hidden > 1 && !r.whole {
		lines = append(lines[:foldLines], faint(fmt.Sprintf("… %d more lines, %s in all (--whole shows them)", hidden, size(uint64(len(n.Payload))))))
	}
	for _, l := range lines {
		r.printf("%s\n", strings.TrimRight(margin+"  "+l, " "))
	}
	for _, at := range n.Attachments {
		r.printf("%s  attachment %s  %s  %s  %s\n", margin, short(at.ID), size(uint64(at.Size)), line(at.MediaType, 40), line(at.Name, 60))
	}
}

func (a *app) diff() *cobra.Command {
	var whole, asLines bool
	c := &cobra.Command{
		Use:     "diff PLACE PLACE",
		Short:   "Compare two branches, revisions or sessions: what they share, and what each has beyond",
		Long:    "Compare the paths to two places: the node up to which they are the same, then what each has beyond.\n" + placeForms,
		Example: "turnstone diff trip trip/train\nturnstone diff trip@2 trip --json",
		Args:    cobra.ExactArgs(2),
		RunE: a.in(func(cmd *cobra.Command, args []string, st *turnstone.Store) error {
			var paths [2][]turnstone.Node
			for i, name := range args {
				p, err := find(cmd.Context(), st, name)
				if err != nil {
					return err
				}
				state, err := p.Load(cmd.Context(), p.scope)
				if err != nil {
					return err
				}
				paths[i] = state.Nodes
			}
			// Paths that part never meet again: each node has one parent. But a
			// session may have tombstoned what the other still shows.
			at := map[graph.ID]int{}
			for i, n := range paths[0] {
				at[n.ID] = i
			}
			common, ca, cb := graph.ID{}, 0, 0
			for i, n := range paths[1] {
				if j, ok := at[n.ID]; ok {
					common, ca, cb = n.ID, j+1, i+1
				}
			}
			sides := [2][]turnstone.Node{paths[0][ca:], paths[1][cb:]}
			out := bufio.NewWriter(cmd.OutOrStdout())
			if asLines {
				var last []turnstone.Node
				if cb > 0 {
					last = paths[1][cb-1 : cb]
				}
				for i, nodes := range [][]turnstone.Node{last, sides[0], sides[1]} {
					for j := range nodes {
						l := nodeLineOf(&nodes[j])
						l.Side = []string{"common", "a", "b"}[i]
						if err := asJSON(out, l); err != nil {
							return err
						}
					}
				}
				return out.Flush()
			}
			r := reader{printer: printer{w: out}, columns: width(cmd.OutOrStdout()), whole: whole}
			if cb == 0 {
				r.printf("nothing in common\n")
			} else {
				r.printf("common  %s up to %s\n", plural(cb, "node"), short(common))
			}
			for i, sign := range []string{"- ", "+ "} {
				colour := []func(string) string{red, green}[i]
				r.printf("%s\n", colour(fmt.Sprintf("%s%s  %s", strings.Repeat(sign[:1], 3)+" ", line(args[i], 100), plural(len(sides[i]), "node"))))
			}
			for i, sign := range []string{"- ", "+ "} {
				r.conversation(sign, sides[i])
			}
			return errors.Join(r.err, out.Flush())
		}),
	}
	c.Flags().BoolVar(&whole, "whole", false, "do not fold long payloads")
	jsonFlag(c, &asLines)
	a.complete(c)
	return c
}
