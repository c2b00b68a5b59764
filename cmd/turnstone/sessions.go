package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
)

var errLimit = usageError{errors.New("--limit is not negative")}

func (a *app) sessions() *cobra.Command {
	var limit int
	var name, model string
	var asLines bool
	var o turnstone.ListOptions
	c := &cobra.Command{
		Use:     "sessions",
		Short:   "List sessions, the most recently updated first",
		Example: "turnstone sessions\nturnstone sessions --label demo=yes\nturnstone sessions --name train --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return errLimit
			}
			return a.with(cmd.Context(), true, func(st *turnstone.Store) error {
				out := bufio.NewWriter(cmd.OutOrStdout())
				p := printer{w: out}
				var t table
				room := width(cmd.OutOrStdout())
				narrow := room > 0 && room < 120
				if !asLines && !narrow {
					t.row("SESSION", "REVISION", "NODES", "PAYLOAD", "UPDATED", "NAME")
				}
				shown, more := 0, false
				for i, err := range infos(cmd.Context(), st, o) {
					if err != nil {
						return err
					}
					if model != "" && i.Model != model || !strings.Contains(strings.ToLower(i.Name), strings.ToLower(name)) {
						continue
					}
					if more = limit > 0 && shown == limit; more {
						break
					}
					shown++
					if asLines {
						if err := asJSON(out, lineOf(i)); err != nil {
							return err
						}
						continue
					}
					if narrow { // ids alone can take a line
						p.printf("%s\n", line(i.ID, room))
						for _, l := range []string{fmt.Sprintf("revision %d, %s, %s, %s", i.Revision, plural(i.Nodes, "node"), size(i.Bytes), moment(i.Updated)), called(i)} {
							if l != "" {
								p.printf("%s\n", hang("    ", l, room))
							}
						}
						continue
					}
					t.row(line(i.ID, 60), fmt.Sprint(i.Revision), fmt.Sprint(i.Nodes), size(i.Bytes), moment(i.Updated), called(i))
				}
				if err := errors.Join(p.err, t.write(out, room), out.Flush()); err != nil {
					return err
				}
				if more {
					fmt.Fprintf(cmd.ErrOrStderr(), "the %d most recent; --limit 0 shows all\n", limit)
				}
				return nil
			})
		},
	}
	c.Flags().IntVar(&limit, "limit", 50, "show at most so many; 0 shows all")
	c.Flags().StringVar(&o.Parent, "parent", "", "children of this session only")
	c.Flags().StringToStringVar(&o.Labels, "label", nil, "sessions with this label only, as KEY=VALUE; all of them, if given more than once")
	c.Flags().StringVar(&model, "model", "", "sessions of this model only")
	c.Flags().StringVar(&name, "name", "", "sessions with this text in their name only")
	jsonFlag(c, &asLines)
	a.complete(c, "parent")
	return c
}

// called is the name of a session, and what it comes from.
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
		Long:    "Show sessions with their forks and sub-agents, those that began first first. With SESSION, only what comes from it.",
		Example: "turnstone tree",
		Args:    cobra.MaximumNArgs(1),
		RunE: a.in(func(cmd *cobra.Command, args []string, st *turnstone.Store) error {
			f := family{children: map[string][]*turnstone.Info{}, json: asLines}
			known := map[string]bool{}
			for i, err := range infos(cmd.Context(), st, turnstone.ListOptions{}) {
				if err != nil {
					return err
				}
				known[i.ID] = true
				f.children[i.Parent] = append(f.children[i.Parent], i)
			}
			roots := f.children[""]
			for parent, all := range f.children {
				if parent != "" && !known[parent] { // it came or went while the list was read
					roots = append(roots, all...)
				}
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
				roots = []*turnstone.Info{&i}
			}
			for _, all := range f.children {
				older(all)
			}
			older(roots)
			out := bufio.NewWriter(cmd.OutOrStdout())
			f.p = printer{w: out}
			for _, r := range roots {
				f.draw(r, 0, "", "")
			}
			return errors.Join(f.p.err, out.Flush())
		}),
	}
	jsonFlag(c, &asLines)
	a.complete(c)
	return c
}

func older(all []*turnstone.Info) {
	slices.SortFunc(all, func(a, b *turnstone.Info) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
}

// A family of sessions is drawn.
type family struct {
	p        printer
	children map[string][]*turnstone.Info // by parent
	json     bool
}

// draw prints i, whose line begins with first, and all that comes from it, whose
// lines begin with rest.
func (f *family) draw(i *turnstone.Info, depth int, first, rest string) {
	if f.json {
		if f.p.err == nil {
			f.p.err = asJSON(f.p.w, struct {
				Depth int `json:"depth"`
				sessionLine
			}{depth, lineOf(i)})
		}
	} else {
		what := ""
		switch {
		case i.Parent == "":
		case i.Detached:
			what = "child"
		default:
			what = "fork"
		}
		if what != "" && !i.ForkNode.IsZero() {
			what += " at " + short(i.ForkNode)
		}
		if what != "" && depth == 0 {
			what += " of " + line(i.Parent, 40)
		}
		if what != "" {
			what = ", " + what
		}
		name := ""
		if i.Name != "" {
			name = "  " + line(i.Name, 50)
		}
		f.p.printf("%s%s%s  %s\n", first, bold(line(i.ID, 60)), name, faint(fmt.Sprintf("(revision %d, %s%s)", i.Revision, plural(i.Nodes, "node"), what)))
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
