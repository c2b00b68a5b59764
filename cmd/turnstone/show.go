package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/cmd/turnstone/page"
	"github.com/turnstonedb/turnstone/head"
)

// showFlags has the flags of show.
type showFlags struct {
	placeFlags
	last                 int
	kinds                []string
	since                string
	full, whole, asLines bool
	all                  bool
	html, markdown       bool
	redact               bool
}

func (a *app) show() *cobra.Command {
	var f showFlags
	c := &cobra.Command{
		Use:   "show SESSION",
		Short: "Print a session's conversation",
		Long: "Print a session's conversation: the nodes of the active path. The result of a tool names the call that it\n" +
			"answers, and long payloads are folded. Of an imported session, what the agent noted for itself and what the\n" +
			"model thought are left out, unless --all or --json is given. SESSION@REVISION and SESSION:NODE are short for\n" +
			"--at and --leaf.\n\n" +
			"With --html the output is a web page in one file to send, which runs no script and loads nothing. With --markdown it\n" +
			"is a document. --redact takes passwords and keys out of both.",
		Example: "turnstone show trip\nturnstone show trip@1\nturnstone show trip --last 2 --json\nturnstone show trip/train --last 1\n" +
			"turnstone show trip --last 2 --markdown --redact",
		Args: cobra.ExactArgs(1),
		RunE: a.in(f.run),
	}
	f.placeFlags.add(c, "show the path")
	c.Flags().IntVar(&f.last, "last", 0, "show only this number of nodes, the last ones")
	c.Flags().StringSliceVar(&f.kinds, "kind", nil, "show only nodes of these kinds, for example user,assistant")
	c.Flags().StringVar(&f.since, "since", "", "show only nodes of commits since then: a date, a time (RFC 3339), or a duration, for example 90m or 36h")
	c.Flags().BoolVar(&f.all, "all", false, "show also what the agent noted for itself and what the model thought")
	c.Flags().BoolVar(&f.full, "full", false, "show all nodes in the order of commits, those on other branches as well")
	c.Flags().BoolVar(&f.whole, "whole", false, "do not fold long payloads")
	c.Flags().BoolVar(&f.html, "html", false, "print a web page")
	c.Flags().BoolVar(&f.markdown, "markdown", false, "print Markdown")
	c.Flags().BoolVar(&f.redact, "redact", false, "replace passwords, keys and the like in a page or document")
	jsonFlag(c, &f.asLines)
	c.MarkFlagsMutuallyExclusive("html", "markdown", "json")
	a.complete(c)
	return c
}

// write prints nodes as a page or a document.
func (f *showFlags) write(w io.Writer, info *turnstone.Info, all, nodes []turnstone.Node) error {
	s := &page.Session{Info: *info, Nodes: nodes, All: all, Thoughts: f.all, Location: time.Local}
	if f.redact {
		text := func(field *string) { *field = string(importer.Redact([]byte(*field), findSecrets)) }
		for _, field := range []*string{&s.Info.Name, &s.Info.Model, &s.Info.Cwd, &s.Info.Group} {
			text(field)
		}
		s.Nodes = slices.Clone(nodes)
		for i := range s.Nodes {
			n := &s.Nodes[i]
			n.Payload = importer.Redact(n.Payload, findSecrets)
			n.Attachments = slices.Clone(n.Attachments)
			for j := range n.Attachments {
				text(&n.Attachments[j].Name)
			}
		}
	}
	if f.markdown {
		return page.WriteMarkdown(w, s)
	}
	return page.Write(w, s)
}

func (f *showFlags) run(cmd *cobra.Command, args []string, st *turnstone.Store) error {
	ctx := cmd.Context()
	p, err := find(ctx, st, args[0])
	if err != nil {
		return err
	}
	scope, err := f.scope(ctx, p)
	if err != nil {
		return err
	}
	scope.Full = f.full
	if f.redact && !f.html && !f.markdown {
		return usageError{errors.New("--redact goes with --html or --markdown")}
	}
	if f.last < 0 {
		return usageError{fmt.Errorf("--last must not be negative, is %d", f.last)}
	}
	since, err := sinceTime(f.since, time.Now())
	if err != nil {
		return err
	}
	state, err := p.Load(ctx, scope)
	if err != nil {
		return err
	}
	info, err := p.Info(ctx)
	if err != nil {
		return err
	}
	r := reader{columns: width(cmd.OutOrStdout()), whole: f.whole, thoughts: true}
	all := state.Nodes
	state.Nodes = f.chosen(all, since)
	out := bufio.NewWriter(cmd.OutOrStdout())
	r.printer = printer{w: out}
	if f.asLines {
		return errors.Join(printNodes(out, lastOf(state.Nodes, f.last), ""), out.Flush())
	}
	hidden := 0
	if info.Labels[importer.FormatLabel] != "" && !f.all {
		r.thoughts = false
		hidden = len(state.Nodes)
		state.Nodes = slices.DeleteFunc(slices.Clone(state.Nodes), func(n turnstone.Node) bool { return importer.Beside(n.Kind, n.Payload) })
		hidden -= len(state.Nodes)
	}
	state.Nodes = lastOf(state.Nodes, f.last)
	if f.html || f.markdown {
		return errors.Join(f.write(out, &info, all, state.Nodes), out.Flush())
	}
	r.head(&info, state)
	if hidden > 0 {
		r.printf("hidden    %s of bookkeeping and thoughts; --all shows them\n", plural(hidden, "node"))
	}
	if int(info.Nodes) > len(all) && scope.At == 0 && scope.Leaf.IsZero() && !scope.Full && scope.After == 0 {
		r.printf("shown     %s; --full shows those on other branches, too\n", plural(len(all), "node"))
	}
	r.conversation("", all, state.Nodes)
	return errors.Join(r.err, out.Flush())
}

// placeFlags has the flags of a place in a session.
type placeFlags struct {
	at   uint64
	leaf string
}

// add adds the flags to a command that does something with the path to the place.
func (f *placeFlags) add(c *cobra.Command, does string) {
	c.Flags().Uint64Var(&f.at, "at", 0, does+" to the leaf at this revision")
	c.Flags().StringVar(&f.leaf, "leaf", "", does+" to this node, given by its key or the beginning of its id")
}

// scope returns what to load: the place p, changed by the flags.
func (f *placeFlags) scope(ctx context.Context, p place) (turnstone.Scope, error) {
	scope := p.scope
	if !p.bare && (f.at > 0 || f.leaf != "") {
		return scope, usageError{errors.New("the place has a revision or a node already: leave out --at and --leaf")}
	}
	if f.at > 0 {
		scope.At = head.Revision(f.at)
	}
	if f.leaf == "" {
		return scope, nil
	}
	var err error
	scope.Leaf, err = node(ctx, p.Session, f.leaf)
	return scope, err
}

// chosen returns the nodes that the flags choose.
func (f *showFlags) chosen(nodes []turnstone.Node, since time.Time) (out []turnstone.Node) {
	for _, n := range nodes {
		if (len(f.kinds) == 0 || slices.Contains(f.kinds, n.Kind)) && !n.Time.Before(since) {
			out = append(out, n)
		}
	}
	return out
}

// lastOf returns the last n nodes, or all if n is 0.
func lastOf(nodes []turnstone.Node, n int) []turnstone.Node {
	if n <= 0 {
		return nodes
	}
	return nodes[max(len(nodes)-n, 0):]
}

// sinceTime reads a date, a time, or how long before now a time is. Empty text is the zero time.
func sinceTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		return now.Add(-d), nil
	}
	if t, err := time.ParseInLocation("2006-01-02", text, time.Local); err == nil {
		return t, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, usageError{fmt.Errorf("--since must be a date, a time or a duration, not %q", text)}
	}
	return t, nil
}

// printNodes prints nodes as JSON. side is empty except in the output of diff.
func printNodes(w io.Writer, nodes []turnstone.Node, side string) error {
	for i := range nodes {
		l := nodeLineOf(&nodes[i])
		l.Side = side
		if err := asJSON(w, l); err != nil {
			return err
		}
	}
	return nil
}

// head prints what a session is and where it stands.
func (r *reader) head(i *turnstone.Info, st *turnstone.State) {
	field := func(name, text string) { r.printf("%s\n", hang(fmt.Sprintf("%-9s ", name), text, r.columns)) }
	r.printf("session   %s\n", bold(line(i.ID, 200)))
	for _, f := range [][2]string{{"name", i.Name}, {"model", i.Model}, {"cwd", i.Cwd}, {"group", i.Group}, {"parent", i.Parent}, {"from", origins(i.Labels)}, {"labels", labels(ownLabels(i.Labels))}} {
		if f[1] != "" {
			field(f[0], line(f[1], 2000))
		}
	}
	field("revision", standing(i, st))
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

// origins says which file a session was imported from, or "".
func origins(labels map[string]string) string {
	if labels[importer.FormatLabel] == "" {
		return ""
	}
	return fmt.Sprintf("%s (%s)", labels[importer.FileLabel], labels[importer.FormatLabel])
}

// standing returns the revision and the leaf of a state, and how much the session has.
func standing(i *turnstone.Info, st *turnstone.State) string {
	leaf := "-"
	if !st.Leaf.IsZero() {
		leaf = short(st.Leaf)
	}
	now := ""
	if st.Revision != i.Revision {
		now = fmt.Sprintf(" by revision %d", i.Revision)
	}
	return fmt.Sprintf("%d, leaf %s, %s of %s%s", st.Revision, leaf, plural(i.Nodes, "node"), size(i.Bytes), now)
}

// tokens returns the tokens that were used of a model.
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
	if u.Cost > 0 {
		out += ", $" + dollars(u.Cost)
	}
	return out
}

// foldLines is how many lines of a payload are printed before the rest is folded.
const foldLines = 12

// A reader prints nodes for people.
type reader struct {
	printer
	columns int
	whole   bool // don't fold payloads
	// thoughts says that what the model thought is printed, too.
	thoughts bool
}

// conversation prints some of the nodes of a conversation, each line after a margin. all are the others as well,
// among which a result may have its call.
func (r *reader) conversation(margin string, all, nodes []turnstone.Node) {
	names := map[string]string{} // names of the tools by the ids of their calls
	answered := map[string]bool{}
	for i := range all {
		for _, c := range importer.Calls(all[i].Payload) {
			names[c.ID] = c.Name
		}
		for _, id := range importer.Answers(all[i].Payload) {
			answered[id] = true
		}
	}
	for i := range nodes {
		r.message(margin, &nodes[i], toolNotes(nodes[i].Payload, names, answered))
	}
}

// toolNotes says which calls of tools a message answers, and which of its calls have no
// answer.
func toolNotes(payload []byte, names map[string]string, answered map[string]bool) []string {
	var notes []string
	for _, id := range importer.Answers(payload) {
		if name := names[id]; name != "" {
			notes = append(notes, fmt.Sprintf("result of %s (%s)", line(name, 40), line(id, 24)))
		} else {
			notes = append(notes, fmt.Sprintf("result of %s, which is not here", line(id, 24)))
		}
	}
	for _, c := range importer.Calls(payload) {
		if c.ID != "" && !answered[c.ID] {
			notes = append(notes, fmt.Sprintf("%s (%s) has no result here", line(c.Name, 40), line(c.ID, 24)))
		}
	}
	return notes
}

// message prints a node: its title and its text, wrapped.
func (r *reader) message(margin string, n *turnstone.Node, notes []string) {
	room := 0
	if r.columns > 0 {
		room = max(r.columns-2-columns(margin), 10)
	}
	r.title(margin, room, n, notes)
	text := importer.Text
	if !r.thoughts {
		text = importer.Said
	}
	lines := wrap(clean(text(n.Payload)), room)
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

// title prints the title of a node after an empty line. If the notes don't fit on the
// same line of a terminal, they follow on lines of their own.
func (r *reader) title(margin string, room int, n *turnstone.Node, notes []string) {
	where := fmt.Sprintf("revision %d", n.Revision)
	if n.Inherited {
		where += " of what it forked from"
	}
	where += "  " + moment(n.Time)
	r.printf("%s\n%s%s  %s  ", strings.TrimRight(margin, " "), margin, faint(short(n.ID)), bold(line(n.Kind, 40)))
	all := strings.Join(append([]string{where}, notes...), "  ")
	if room == 0 || columns(short(n.ID)+line(n.Kind, 40)+all)+4 <= room+2 {
		r.printf("%s\n", faint(all))
		return
	}
	r.printf("%s\n", faint(where))
	for _, l := range wrap(strings.Join(notes, "  "), room) {
		r.printf("%s  %s\n", margin, faint(l))
	}
}

func (a *app) diff() *cobra.Command {
	var whole, asLines bool
	c := &cobra.Command{
		Use:     "diff PLACE PLACE",
		Short:   "Compare two branches, revisions or sessions",
		Long:    "Compare the paths to two places. Print the last node that they have in common, and then the nodes that only one\nof them has.\n" + placeForms,
		Example: "turnstone diff trip trip/train\nturnstone diff trip@2 trip --json",
		Args:    cobra.ExactArgs(2),
		RunE: a.in(func(cmd *cobra.Command, args []string, st *turnstone.Store) error {
			d, err := compare(cmd.Context(), st, args)
			if err != nil {
				return err
			}
			out := bufio.NewWriter(cmd.OutOrStdout())
			if asLines {
				return errors.Join(d.printJSON(out), out.Flush())
			}
			r := reader{printer: printer{w: out}, columns: width(cmd.OutOrStdout()), whole: whole, thoughts: true}
			r.difference(d)
			return errors.Join(r.err, out.Flush())
		}),
	}
	c.Flags().BoolVar(&whole, "whole", false, "do not fold long payloads")
	jsonFlag(c, &asLines)
	a.complete(c)
	return c
}

// A difference compares the paths to two places.
type difference struct {
	names  []string            // the places
	common []turnstone.Node    // the beginning of the second path, up to the last node of both
	only   [2][]turnstone.Node // the rest of each path
}

// compare loads the paths to two places and finds where they part.
func compare(ctx context.Context, st *turnstone.Store, names []string) (*difference, error) {
	var paths [2][]turnstone.Node
	for i, name := range names {
		p, err := find(ctx, st, name)
		if err != nil {
			return nil, err
		}
		state, err := p.Load(ctx, p.scope)
		if err != nil {
			return nil, err
		}
		paths[i] = state.Nodes
	}
	first, second := page.Parted(paths[0], paths[1])
	return &difference{
		names: names, common: paths[1][:second],
		only: [2][]turnstone.Node{paths[0][first:], paths[1][second:]},
	}, nil
}

// printJSON prints the last common node, and then the nodes of each side.
func (d *difference) printJSON(w io.Writer) error {
	last := d.common[max(len(d.common)-1, 0):]
	return errors.Join(printNodes(w, last, "common"), printNodes(w, d.only[0], "a"), printNodes(w, d.only[1], "b"))
}

// difference prints what two paths have in common and what each has beyond that.
func (r *reader) difference(d *difference) {
	if n := len(d.common); n == 0 {
		r.printf("nothing in common\n")
	} else {
		r.printf("common  %s up to %s\n", plural(n, "node"), short(d.common[n-1].ID))
	}
	title := func(sign string, i int) string {
		return fmt.Sprintf("%s %s  %s", sign, line(d.names[i], 100), plural(len(d.only[i]), "node"))
	}
	r.printf("%s\n", red(title("---", 0)))
	r.printf("%s\n", green(title("+++", 1)))
	r.conversation("- ", slices.Concat(d.common, d.only[0]), d.only[0])
	r.conversation("+ ", slices.Concat(d.common, d.only[1]), d.only[1])
}
