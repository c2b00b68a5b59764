package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

func (a *app) usage() *cobra.Command {
	var by []string
	var asCSV, asLines bool
	c := &cobra.Command{
		Use:   "usage [SESSION…]",
		Short: "Sum up the tokens that were used, by session, model and day",
		Long: "Sum up the tokens that were used, of all sessions or of those named, by session, model and day. A fork\n" +
			"counts its own turns only. Days are those of the local time zone.",
		Example: "turnstone usage\nturnstone usage --by session,model\nturnstone usage trip --by day --csv",
		RunE: func(cmd *cobra.Command, args []string) error {
			for i, b := range by {
				if !slices.Contains([]string{"session", "model", "day"}, b) || slices.Contains(by[:i], b) {
					return usageError{fmt.Errorf("--by is a list of session, model and day, not %q", strings.Join(by, ","))}
				}
			}
			return a.with(cmd.Context(), true, func(st *turnstone.Store) error {
				l := ledger{by: by, sums: map[account]*head.Usage{}}
				if err := l.read(cmd.Context(), st, args); err != nil {
					return err
				}
				out := bufio.NewWriter(cmd.OutOrStdout())
				var err error
				switch {
				case asLines:
					for _, k := range l.accounts() {
						u := usageLineOf(*l.sums[k])
						u.Session, u.Day, u.Model = k.session, k.day, k.model
						err = errors.Join(err, asJSON(out, u))
					}
				case asCSV:
					w := csv.NewWriter(out)
					for _, row := range l.table(false) {
						for i := range row {
							row[i] = clean(row[i])
						}
						err = errors.Join(err, w.Write(row))
					}
					w.Flush()
					err = errors.Join(err, w.Error())
				default:
					var t table
					for i, row := range l.table(true) {
						if i == 0 {
							row = strings.Split(strings.ToUpper(strings.Join(row, "\t")), "\t")
						}
						for j := range row {
							row[j] = line(row[j], 60)
						}
						// Names can be long: they come last, where they may be cut.
						t.row(append(row[len(by):], row[:len(by)]...)...)
					}
					err = t.write(out, width(cmd.OutOrStdout()))
				}
				return errors.Join(err, out.Flush())
			})
		},
	}
	c.Flags().StringSliceVar(&by, "by", []string{"model"}, "what has a line of its own: session, model, day, or several of them")
	c.Flags().BoolVar(&asCSV, "csv", false, "print comma-separated values (RFC 4180)")
	jsonFlag(c, &asLines)
	c.MarkFlagsMutuallyExclusive("csv", "json")
	a.complete(c)
	return c
}

// An account is what is summed up on one line.
type account struct{ session, day, model string }

type ledger struct {
	by   []string
	sums map[account]*head.Usage
}

func (l *ledger) has(column string) bool { return slices.Contains(l.by, column) }

func (l *ledger) add(session, day string, usage []head.Usage) {
	for _, u := range usage {
		k := account{}
		if l.has("session") {
			k.session = session
		}
		if l.has("day") {
			k.day = day
		}
		if l.has("model") {
			k.model = u.Model
		}
		if l.sums[k] == nil {
			l.sums[k] = &head.Usage{}
		}
		l.sums[k].Add(u)
	}
}

// read adds up the sessions named, or all.
func (l *ledger) read(ctx context.Context, st *turnstone.Store, names []string) error {
	one := func(s *turnstone.Session, i *turnstone.Info) error {
		if !l.has("day") {
			l.add(i.ID, "", i.Usage)
			return nil
		}
		for e, err := range s.Log(ctx, 0) {
			if err != nil {
				return err
			}
			l.add(i.ID, e.Time.Local().Format("2006-01-02"), e.Usage)
		}
		return nil
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
		if err == nil {
			err = one(s, &i)
		}
		if err != nil {
			return err
		}
	}
	if len(names) > 0 {
		return nil
	}
	for i, err := range infos(ctx, st, turnstone.ListOptions{}) {
		if err != nil {
			return err
		}
		var s *turnstone.Session
		if l.has("day") {
			if s, err = st.Session(ctx, i.ID); errors.Is(err, turnstone.ErrSessionNotFound) {
				continue // deleted meanwhile
			} else if err != nil {
				return err
			}
		}
		if err := one(s, i); err != nil && !errors.Is(err, turnstone.ErrSessionDeleted) {
			return err
		}
	}
	return nil
}

// accounts returns the keys of the sums, in order.
func (l *ledger) accounts() []account {
	out := make([]account, 0, len(l.sums))
	for k := range l.sums {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b account) int {
		return cmp.Or(cmp.Compare(a.day, b.day), cmp.Compare(a.session, b.session), cmp.Compare(a.model, b.model))
	})
	return out
}

// table returns a line of names, the sums, and if asked for their total.
func (l *ledger) table(total bool) [][]string {
	cells := func(k account, u *head.Usage) []string {
		var row []string
		for _, b := range l.by {
			row = append(row, map[string]string{"session": k.session, "day": k.day, "model": k.model}[b])
		}
		for _, n := range []uint64{u.Input, u.Output, u.CachedInput, u.CacheWrite, u.Reasoning} {
			row = append(row, fmt.Sprint(n))
		}
		return row
	}
	rows := [][]string{append(slices.Clone(l.by), "input", "output", "cached", "written", "reasoning")}
	var sum head.Usage
	for _, k := range l.accounts() {
		sum.Add(*l.sums[k])
		rows = append(rows, cells(k, l.sums[k]))
	}
	if total && len(l.sums) != 1 {
		row := cells(account{}, &sum)
		if len(l.by) > 0 {
			row[0] = "total"
		}
		rows = append(rows, row)
	}
	return rows
}
