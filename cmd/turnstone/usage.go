package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/cmd/turnstone/ui"
	"github.com/turnstonedb/turnstone/head"
)

// usageColumns are what usage sums up by.
var usageColumns = []string{"session", "model", "day", "project", "agent", "branch"}

// usageFlags has the flags of usage.
type usageFlags struct {
	by             []string
	group, prices  string
	asCSV, asLines bool
}

func (a *app) usage() *cobra.Command {
	var f usageFlags
	c := &cobra.Command{
		Use:   "usage [SESSION…]",
		Short: "Sum up tokens and what they cost, by model, day, session, project, agent or branch",
		Long: "Sum up the tokens that all sessions, those of a group, or the named ones used, and what they cost. A fork counts only its\n" +
			"own turns. Days are in the local time zone. The project of a session is its directory; agent and branch of git are those of\n" +
			"an imported one. Input has all tokens of prompts: those read from the provider's cache, and those written to it, are a part\n" +
			"of it, as those of thoughts are a part of output.\n\n" +
			"The cost is what the agent noted. Where it noted none, or 0, it is the list price of autumn 2026, without surcharges for\n" +
			"long or fast requests. Prices of your own are a file in the form of LiteLLM's model_prices_and_context_window.json. Models\n" +
			"without a price are named. With --json the cost is in billionths of a dollar, as in all JSON of Turnstone.",
		Example: "turnstone usage\nturnstone usage --by session,model\nturnstone usage trip --by day --csv",
		RunE: func(cmd *cobra.Command, args []string) error {
			for i, b := range f.by {
				if !slices.Contains(usageColumns, b) || slices.Contains(f.by[:i], b) {
					return usageError{fmt.Errorf("--by must be a list of %s, not %q", strings.Join(usageColumns, ", "), strings.Join(f.by, ","))}
				}
			}
			if f.group != "" && len(args) > 0 {
				return usageError{errors.New("--group is for all sessions of the group: name no session beside it")}
			}
			table, err := loadPrices(f.prices)
			if err != nil {
				return err
			}
			return a.with(cmd.Context(), true, func(st *turnstone.Store) error {
				l := ledger{by: f.by, group: f.group, prices: table, sums: map[account]*tally{}, unpriced: map[string]bool{}}
				if err := l.read(cmd.Context(), st, args); err != nil {
					return err
				}
				if len(l.unpriced) > 0 {
					fmt.Fprintf(cmd.ErrOrStderr(), "the cost lacks that of models without a price: %s\n", line(strings.Join(slices.Sorted(maps.Keys(l.unpriced)), ", "), 1000))
				}
				return f.print(cmd.OutOrStdout(), &l)
			})
		},
	}
	c.Flags().StringSliceVar(&f.by, "by", []string{"model"}, "what to sum up by: session, model, day, project, agent, branch, or several of them")
	c.Flags().StringVar(&f.group, "group", "", "sum up the sessions of this group and of those below it")
	c.Flags().StringVar(&f.prices, "prices", os.Getenv(pricesVariable), "file with the prices of models, instead of those built in; or set "+pricesVariable)
	c.Flags().BoolVar(&f.asCSV, "csv", false, "print comma-separated values (RFC 4180)")
	jsonFlag(c, &f.asLines)
	c.MarkFlagsMutuallyExclusive("csv", "json")
	a.complete(c)
	return c
}

func (f *usageFlags) print(w io.Writer, l *ledger) error {
	out := bufio.NewWriter(w)
	var err error
	switch {
	case f.asLines:
		err = l.printJSON(out)
	case f.asCSV:
		err = l.printCSV(out)
	default:
		err = l.printTable(out, width(w))
	}
	return errors.Join(err, out.Flush())
}

func (l *ledger) printJSON(w io.Writer) error {
	for _, k := range l.accounts() {
		u := usageLine{k.session, k.day, k.project, k.agent, k.branch, l.sums[k].Usage, l.sums[k].unpriced}
		u.Model = k.model
		if err := asJSON(w, u); err != nil {
			return err
		}
	}
	return nil
}

func (l *ledger) printCSV(out io.Writer) error {
	w := csv.NewWriter(out)
	for _, row := range l.rows() {
		for i := range row {
			row[i] = clean(row[i])
		}
		if err := w.Write(row); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}

// printTable prints the sums and their total. Names can be long, so they come last,
// where a terminal may cut them.
func (l *ledger) printTable(w io.Writer, columns int) error {
	t := table{least: []string{"WRITTEN", "REASONING", "CACHED"}}
	for i, row := range append(l.rows(), l.total()...) {
		for j := range row {
			if i == 0 {
				row[j] = strings.ToUpper(row[j])
			}
			row[j] = line(row[j], 60)
		}
		switch cost := &row[len(row)-1]; {
		case i == 0:
			*cost = "COST"
		case *cost == "":
			*cost = "?"
		default:
			*cost = "$" + *cost
		}
		t.row(append(row[len(l.by):], row[:len(l.by)]...)...)
	}
	return t.write(w, columns)
}

// An account is the key of a sum. Fields by which the ledger does not sum are empty.
type account struct{ session, day, model, project, agent, branch string }

// column returns the field of a column.
func (k *account) column(name string) *string {
	return map[string]*string{"session": &k.session, "day": &k.day, "model": &k.model, "project": &k.project, "agent": &k.agent, "branch": &k.branch}[name]
}

// A tally is a sum of usage.
type tally struct {
	head.Usage
	unpriced bool // The cost lacks that of models without a price.
}

// A ledger sums up usage.
type ledger struct {
	by    []string // the columns by which it sums: session, day, model
	group string   // the group whose sessions it reads if none are named; "" is all
	sums  map[account]*tally

	prices   prices
	unpriced map[string]bool // models that were used, and have no price

	grown map[string]*ui.GrowthRow // if not nil, what was committed on each day
}

func (l *ledger) has(column string) bool { return slices.Contains(l.by, column) }

// add adds the usage of a session on a day.
func (l *ledger) add(i *turnstone.Info, day string, usage []head.Usage) {
	for _, u := range usage {
		all := account{i.ID, day, u.Model, i.Cwd, i.Labels[importer.FormatLabel], i.Labels[importer.BranchLabel]}
		k := account{}
		for _, name := range l.by {
			*k.column(name) = *all.column(name)
		}
		if l.sums[k] == nil {
			l.sums[k] = &tally{}
		}
		var ok bool
		if u.Cost, ok = l.prices.cost(&u); !ok {
			l.unpriced[cmp.Or(u.Model, "a model without a name")], l.sums[k].unpriced = true, true
		}
		l.sums[k].Add(u)
	}
}

// read adds up the sessions named, or all sessions of the group if there are no names.
func (l *ledger) read(ctx context.Context, st *turnstone.Store, names []string) error {
	if len(names) == 0 {
		return l.readAll(ctx, st)
	}
	seen := map[string]bool{}
	for _, name := range names {
		s, err := session(ctx, st, name)
		if err != nil {
			return err
		}
		if seen[s.ID()] {
			continue
		}
		seen[s.ID()] = true
		i, err := s.Info(ctx)
		if err != nil {
			return err
		}
		if err := l.readSession(ctx, st, &i); err != nil {
			return err
		}
	}
	return nil
}

func (l *ledger) readAll(ctx context.Context, st *turnstone.Store) error {
	for i, err := range importer.Sessions(ctx, st, turnstone.ListOptions{Group: l.group}) {
		if err != nil {
			return err
		}
		err = l.readSession(ctx, st, i)
		if errors.Is(err, turnstone.ErrSessionNotFound) || errors.Is(err, turnstone.ErrSessionDeleted) {
			continue // the session was deleted after it was listed
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readSession adds up one session. The sums of the whole session are in its Info. The log is needed for sums by day,
// and if a cost was noted, because other commits of the same model may have none.
func (l *ledger) readSession(ctx context.Context, st *turnstone.Store, i *turnstone.Info) error {
	noted := slices.ContainsFunc(i.Usage, func(u head.Usage) bool { return u.Cost > 0 })
	if !l.has("day") && !noted {
		l.add(i, "", i.Usage)
		return nil
	}
	s, err := st.Session(ctx, i.ID)
	if err != nil {
		return err
	}
	for e, err := range s.Log(ctx, 0) {
		if err != nil {
			return err
		}
		day := ""
		if l.has("day") {
			day = e.Time.Local().Format("2006-01-02")
		}
		l.add(i, day, e.Usage)
		if l.grown != nil {
			if l.grown[day] == nil {
				l.grown[day] = &ui.GrowthRow{Day: day}
			}
			l.grown[day].Commits++
			l.grown[day].Nodes += uint64(e.Nodes)
		}
	}
	return nil
}

// accounts returns the keys of the sums, ordered by day, and then by what is the larger: projects before sessions.
func (l *ledger) accounts() []account {
	out := make([]account, 0, len(l.sums))
	for k := range l.sums {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b account) int {
		return cmp.Or(cmp.Compare(a.day, b.day), cmp.Compare(a.project, b.project), cmp.Compare(a.agent, b.agent), cmp.Compare(a.branch, b.branch),
			cmp.Compare(a.session, b.session), cmp.Compare(a.model, b.model))
	})
	return out
}

// rows returns the names of the columns, and a row for each sum.
func (l *ledger) rows() [][]string {
	rows := [][]string{append(slices.Clone(l.by), "input", "output", "cached", "written", "reasoning", "dollars")}
	for _, k := range l.accounts() {
		rows = append(rows, l.row(k, l.sums[k]))
	}
	return rows
}

// total returns a row with the total, or none if there is one sum.
func (l *ledger) total() [][]string {
	if len(l.sums) == 1 {
		return nil
	}
	var sum tally
	for _, u := range l.sums {
		sum.Add(u.Usage)
		sum.unpriced = sum.unpriced || u.unpriced
	}
	row := l.row(account{}, &sum)
	if len(l.by) > 0 {
		row[0] = "total"
	}
	return [][]string{row}
}

func (l *ledger) row(k account, u *tally) []string {
	var row []string
	for _, b := range l.by {
		row = append(row, *k.column(b))
	}
	for _, n := range []uint64{u.Input, u.Output, u.CachedInput, u.CacheWrite, u.Reasoning} {
		row = append(row, fmt.Sprint(n))
	}
	cost := dollars(u.Cost)
	if u.unpriced && u.Cost == 0 {
		cost = ""
	}
	return append(row, cost)
}
