package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/head"
)

// grepFlags has the flags of grep.
type grepFlags struct {
	turnstone.ListOptions
	ignoreCase, fixed   bool
	kinds               []string
	since               string
	limit               int
	all, asLines        bool
	pattern             *regexp.Regexp
	after               time.Time
	word                []byte // which each text that matches has; may be empty
	matches, ofSessions int
}

func (a *app) grep() *cobra.Command {
	var f grepFlags
	c := &cobra.Command{
		Use:   "grep PATTERN [SESSION…]",
		Short: "Search the text of all sessions, or of some",
		Long: "Search what was said in all sessions, or in some: messages, calls of tools and their results, also those on other\n" +
			"branches. PATTERN is a regular expression (RE2), which matches within a node. What a fork inherits is searched where\n" +
			"it comes from, if that is still there and no sessions are chosen. `turnstone show SESSION:NODE` shows what leads to a node. The command reads all that it searches.",
		Example: "turnstone grep -i 'museum|train'\nturnstone grep francs --kind assistant --json",
		Args:    cobra.MinimumNArgs(1),
		RunE:    a.in(f.run),
	}
	c.Flags().BoolVarP(&f.ignoreCase, "ignore-case", "i", false, "take capital and small letters for the same")
	c.Flags().BoolVarP(&f.fixed, "fixed", "F", false, "take PATTERN as it is, not as a regular expression")
	c.Flags().StringSliceVar(&f.kinds, "kind", nil, "search only nodes of these kinds, for example user,assistant")
	c.Flags().StringVar(&f.since, "since", "", "search only nodes of commits since then: a date, a time (RFC 3339), or a duration, for example 90m or 36h")
	c.Flags().StringVar(&f.Group, "group", "", "search only sessions of this group and of those below it")
	c.Flags().StringToStringVar(&f.Labels, "label", nil, "search only sessions with this label, KEY=VALUE; if repeated, only those with all labels")
	c.Flags().IntVar(&f.limit, "limit", 3, "greatest number of nodes to show of a session; 0 shows all, as --json does by itself")
	c.Flags().BoolVar(&f.all, "all", false, "search also what the agent noted for itself and what the model thought")
	jsonFlag(c, &f.asLines)
	a.complete(c)
	return c
}

// A found is a node whose text matches.
type found struct {
	turnstone.Node
	before, match, after string // the first match, and what is around it
}

// A grepLine is a line of JSON that grep prints.
type grepLine struct {
	Session  string        `json:"session"`
	ID       string        `json:"id"` // of the node
	Kind     string        `json:"kind"`
	Key      string        `json:"key,omitempty"`
	Revision head.Revision `json:"revision"`
	Time     time.Time     `json:"time"`
	Text     string        `json:"text"` // around the match
}

func (f *grepFlags) run(cmd *cobra.Command, args []string, st *turnstone.Store) error {
	if f.limit < 0 {
		return errLimit
	}
	if f.asLines && !cmd.Flags().Changed("limit") {
		f.limit = 0
	}
	if err := f.compile(args[0]); err != nil {
		return err
	}
	var err error
	if f.after, err = sinceTime(f.since, time.Now()); err != nil {
		return err
	}
	var sessions []*turnstone.Info
	for _, id := range args[1:] {
		s, err := session(cmd.Context(), st, id)
		if err != nil {
			return err
		}
		i, err := s.Info(cmd.Context())
		if err != nil {
			return err
		}
		sessions = append(sessions, &i)
	}
	if len(args) == 1 {
		for i, err := range importer.Sessions(cmd.Context(), st, f.ListOptions) {
			if err != nil {
				return err
			}
			sessions = append(sessions, i)
		}
	}
	return f.search(cmd, st, sessions, len(args) > 1 || f.Group != "" || len(f.Labels) > 0)
}

// compile reads the pattern.
func (f *grepFlags) compile(pattern string) (err error) {
	if f.fixed {
		pattern = regexp.QuoteMeta(pattern)
	}
	if f.ignoreCase {
		pattern = "(?i)" + pattern
	}
	if f.pattern, err = regexp.Compile(pattern); err != nil {
		return usageError{err}
	}
	literal, _ := f.pattern.LiteralPrefix()
	for _, word := range letters.FindAllString(literal, -1) {
		if len(word) > len(f.word) && word != "null" {
			f.word = []byte(word)
		}
	}
	return nil
}

// letters match the words that a text has only if its payload has them. Text writes numbers and signs anew, and null for
// the arguments of a call that has none.
var letters = regexp.MustCompile(`[A-Za-z]{2,}`)

// search searches sessions, several at once, and prints what it finds in their order.
func (f *grepFlags) search(cmd *cobra.Command, st *turnstone.Store, sessions []*turnstone.Info, chosen bool) (err error) {
	ctx, cancel := context.WithCancel(cmd.Context())
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	type result struct {
		nodes []found
		more  int
		err   error
	}
	progress := bar(int64(len(sessions)), "searching", false)
	results := make(chan chan result, 2*runtime.GOMAXPROCS(0)) // so many sessions are at work or wait to be printed
	workers := make(chan struct{}, runtime.GOMAXPROCS(0))
	working.Go(func() {
		defer close(results)
		for _, i := range sessions {
			of := make(chan result, 1)
			select {
			case results <- of:
			case <-ctx.Done():
				return
			}
			workers <- struct{}{}
			working.Go(func() {
				defer func() { <-workers }()
				var r result
				r.nodes, r.more, r.err = f.in(ctx, st, i, chosen)
				of <- r
			})
		}
	})
	out := bufio.NewWriter(cmd.OutOrStdout())
	defer func() { err = errors.Join(err, out.Flush()) }()
	defer progress.Finish()
	p := printer{w: out}
	for at := 0; ; at++ {
		of, more := <-results
		if !more {
			break
		}
		r := <-of
		if progress.Add(1); r.err != nil {
			return r.err
		}
		if len(r.nodes) > 0 {
			f.print(&p, sessions[at], r.nodes, r.more, width(cmd.OutOrStdout()))
		}
		if p.err != nil {
			return p.err
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case f.matches == 0:
		return fmt.Errorf("nothing matches in %s", plural(len(sessions), "session"))
	case !f.asLines:
		p.printf("\n%s in %s\n", plural(f.matches, "node"), plural(f.ofSessions, "session"))
	}
	return p.err
}

// in searches a session. It returns the first nodes that match, and how many more there are.
func (f *grepFlags) in(ctx context.Context, st *turnstone.Store, i *turnstone.Info, chosen bool) (nodes []found, more int, err error) {
	s, err := st.SessionByIncarnation(ctx, i.Incarnation)
	if errors.Is(err, turnstone.ErrSessionNotFound) {
		return nil, 0, nil // It was deleted meanwhile.
	}
	if err != nil {
		return nil, 0, err
	}
	imported := i.Labels[importer.FormatLabel] != ""
	for n, err := range s.Nodes(ctx, turnstone.Scope{Full: true}) {
		if err != nil {
			if errors.Is(err, turnstone.ErrSessionDeleted) {
				return nodes, more, nil
			}
			return nil, 0, err
		}
		if n.Inherited && !chosen && i.Parent != "" || n.Time.Before(f.after) || len(f.kinds) > 0 && !slices.Contains(f.kinds, n.Kind) || !f.mayMatch(n.Payload) {
			continue
		}
		text := importer.Text
		if imported && !f.all {
			text = importer.Said
		}
		said := text(n.Payload)
		at := f.pattern.FindStringIndex(said)
		switch {
		case at == nil || imported && !f.all && importer.Beside(n.Kind, n.Payload):
		case f.limit > 0 && len(nodes) == f.limit:
			more++
		default:
			n.Payload = nil
			before, match, after := around(said, at[0], at[1])
			nodes = append(nodes, found{n, before, match, after})
		}
	}
	return nodes, more, nil
}

// mayMatch reports whether the text of a payload may match, without decoding it. In JSON a letter may be escaped.
func (f *grepFlags) mayMatch(payload []byte) bool {
	return bytes.Contains(payload, f.word) || bytes.Contains(payload, []byte(`\u`))
}

// print prints what was found in a session.
func (f *grepFlags) print(p *printer, i *turnstone.Info, nodes []found, more, terminal int) {
	f.matches, f.ofSessions = f.matches+len(nodes)+more, f.ofSessions+1
	if f.asLines {
		for k := range nodes {
			n := &nodes[k]
			l := grepLine{i.ID, n.ID.String(), n.Kind, n.Key, n.Revision, n.Time, n.before + n.match + n.after}
			p.err = errors.Join(p.err, asJSON(p.w, l))
		}
		return
	}
	if f.ofSessions > 1 {
		p.printf("\n")
	}
	p.printf("%s  %s\n", bold(line(i.ID, 60)), line(i.Name, 60))
	room := max(cmp.Or(terminal, 120)-4, 20)
	for k := range nodes {
		n := &nodes[k]
		before, match := flat(n.before), flat(n.match)
		for columns(before) > room/3 {
			before = "…" + string([]rune(before)[max(2, columns(before)-room/3):])
		}
		p.printf("  %s  %s  %s\n", faint(short(n.ID)), faint(moment(n.Time)), line(n.Kind, 20))
		p.printf("    %s%s%s\n", before, bold(match), cut(flat(n.after), max(room-columns(before+match), 20)))
	}
	if more > 0 {
		p.printf("  %s\n", faint(fmt.Sprintf("%d more; --limit 0 shows all", more)))
	}
}

// A match is shown up to maxMatch bytes, with up to margin bytes before and behind it.
const maxMatch, margin = 1000, 200

// around returns the match in a text, and what is around it.
func around(text string, from, to int) (before, match, after string) {
	begin, middle, end := max(from-margin, 0), min(to, from+maxMatch), min(to+margin, len(text))
	before, match, after = strings.ToValidUTF8(text[begin:from], ""), strings.ToValidUTF8(text[from:middle], ""), strings.ToValidUTF8(text[to:end], "")
	if begin > 0 {
		before = "…" + before
	}
	if middle < to {
		match += "…"
	}
	if end < len(text) {
		after += "…"
	}
	return strings.Clone(before), strings.Clone(match), strings.Clone(after)
}

var space = regexp.MustCompile(`\s+`)

// flat makes one line of a text, with the spaces at its ends.
func flat(s string) string { return clean(space.ReplaceAllString(s, " ")) }
