package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/search"
)

// indexSuffix ends the name of an index: the index of the store in DIR is the file DIR.search.
const indexSuffix = ".search"

// indexOptions are those of all indexes of the command.
var indexOptions = search.Options{
	Text:  func(n *turnstone.Node) string { return importer.Text(n.Payload) },
	Agent: func(i *turnstone.Info) string { return i.Labels[importer.FormatLabel] },
}

// indexPath returns the path of the index, or "" if the store has no directory.
func (a *app) indexPath() string {
	dir, ok := directory(a.url)
	if !ok || a.listFile != "" || dir == "" {
		return ""
	}
	return strings.TrimRight(dir, "/") + indexSuffix
}

// index opens the index at a path, or beside the store.
func (a *app) index(path string) (*search.Index, error) {
	if path = cmp.Or(path, a.indexPath()); path == "" {
		return nil, usageError{errors.New("the store has no directory: say where the index is with --index FILE")}
	}
	if a.keyFile != "" {
		return nil, usageError{errors.New("the store is encrypted, and an index of its words would not be")}
	}
	return search.Open(path, indexOptions)
}

// searchFlags has the flags of search.
type searchFlags struct {
	index        string
	limit        int
	newest, anew bool
	asLines      bool
}

func (a *app) search() *cobra.Command {
	var f searchFlags
	c := &cobra.Command{
		Use:   "search QUERY…",
		Short: "Find words, phrases and fields in all sessions, with an index",
		Long: "Find messages, calls of tools and their results in all sessions, also on other branches. A query has words, \"phrases\",\n" +
			"prefix*, -without, /regular expressions/, kind:K, session:ID, group:G, project:P, model:M, agent:A, label:NAME=VALUE,\n" +
			"since:2026-11-01 and until:90m. All of it must be true of a message. The best of the newest matches come first.\n\n" +
			"The first search makes an index: a file beside the store, which may be removed at any time. Later ones bring it up to\n" +
			"date; with `turnstone feed on` that is quick. Commands that forget, such as erase, take the words out of it as well.\n" +
			"`turnstone grep` reads the store itself, and needs no index.",
		Example: "turnstone search flight\nturnstone search '\"a place\" kind:user since:2026'\nturnstone search 'museum*' --json",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), true, func(st *turnstone.Store) error { return a.runSearch(cmd, st, &f, strings.Join(args, " ")) })
		},
	}
	c.Flags().StringVar(&f.index, "index", "", "file of the index; default the store's directory with "+indexSuffix+" behind its name")
	c.Flags().IntVar(&f.limit, "limit", search.DefaultLimit, "greatest number of results")
	c.Flags().BoolVar(&f.newest, "newest", false, "the newest first, not the best")
	c.Flags().BoolVar(&f.anew, "anew", false, "make the index anew")
	jsonFlag(c, &f.asLines)
	return c
}

func (a *app) runSearch(cmd *cobra.Command, st *turnstone.Store, f *searchFlags, text string) (err error) {
	ctx := cmd.Context()
	q, err := search.Parse(text, time.Now())
	if err != nil {
		return err
	}
	if f.limit < 1 {
		return usageError{fmt.Errorf("--limit is at least 1, not %d", f.limit)}
	}
	if f.anew {
		if err := search.Remove(cmp.Or(f.index, a.indexPath())); err != nil {
			return err
		}
	}
	x, err := a.index(f.index)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	if _, err := x.Sync(ctx, st); err != nil {
		return err
	}
	found, err := x.Find(ctx, st, q, search.FindOptions{Limit: f.limit, Newest: f.newest, Branches: true})
	if err != nil {
		return err
	}
	out := bufio.NewWriter(cmd.OutOrStdout())
	p := printer{w: out}
	for i := range found {
		r := &found[i]
		if f.asLines {
			p.err = errors.Join(p.err, asJSON(out, r))
			continue
		}
		p.printResult(r, cmp.Or(width(cmd.OutOrStdout()), 120))
	}
	if len(found) == 0 && !f.asLines {
		return errors.Join(out.Flush(), fmt.Errorf("nothing is found"))
	}
	return errors.Join(p.err, out.Flush())
}

// printResult prints a result on two lines. The first names the session and the node, and the second is the passage.
func (p *printer) printResult(r *search.Result, terminal int) {
	aside := ""
	if r.Aside {
		aside = "  on another branch"
	}
	p.printf("%s  %s  %s  %s%s\n", bold(line(r.Session, 60)), faint(short(r.Node)), line(r.Kind, 20), faint(moment(r.Time)), faint(aside))
	var b strings.Builder
	at := 0
	for _, m := range r.Marks {
		b.WriteString(clean(r.Passage[at:m[0]]) + bold(clean(r.Passage[m[0]:m[1]])))
		at = m[1]
	}
	b.WriteString(clean(r.Passage[at:]))
	p.printf("  %s\n", strings.TrimSpace(b.String()))
}

// forgets are the commands after which the index beside the store must have nothing of what they remove.
var forgets = map[string]bool{"tombstone": true, "erase": true, "rm": true, "prune": true, "vacuum": true, "gc": true}

// forgetting makes a command bring the index beside the store up to date, if there is one.
func (a *app) forgetting(c *cobra.Command) {
	if !forgets[c.Name()] {
		return
	}
	run := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		return errors.Join(err, a.forget(context.WithoutCancel(cmd.Context())))
	}
}

// forget takes out of the index beside the store what the store has forgotten.
func (a *app) forget(ctx context.Context) error {
	if !a.indexed() {
		return nil
	}
	return a.with(ctx, true, func(st *turnstone.Store) error { return a.forgetIn(ctx, st) })
}

// indexed reports whether there is an index beside the store.
func (a *app) indexed() bool {
	path := a.indexPath()
	_, err := os.Stat(path)
	return path != "" && err == nil
}

// forgetIn is forget for a store that is open.
func (a *app) forgetIn(ctx context.Context, st *turnstone.Store) (err error) {
	if !a.indexed() {
		return nil
	}
	x, err := a.index("")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	_, err = x.Sync(ctx, st)
	return err
}
