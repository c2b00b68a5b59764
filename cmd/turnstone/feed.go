package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
)

func (a *app) changes() *cobra.Command {
	var after string
	var follow, asLines bool
	c := &cobra.Command{
		Use:   "changes",
		Short: "List the changes of all sessions, in their order",
		Long: "List the changes of all sessions that the feed has, in their order: the cursor, the time, what has changed, and the\n" +
			"session. Give a cursor with --after to list what follows it. --follow goes on with the changes that come. The feed\n" +
			"is off unless `turnstone feed on` has turned it on.",
		Example: "turnstone changes",
		Args:    cobra.NoArgs,
		RunE: a.in(func(cmd *cobra.Command, _ []string, st *turnstone.Store) error {
			out := bufio.NewWriter(cmd.OutOrStdout())
			err := printChanges(cmd.Context(), out, st, turnstone.Cursor(after), follow, asLines)
			if errors.Is(err, turnstone.ErrFeedOff) {
				err = fmt.Errorf("%w: turn it on with `turnstone feed on`", err)
			}
			return errors.Join(err, out.Flush())
		}),
	}
	c.Flags().StringVar(&after, "after", "", "begin after this cursor; the default is the oldest change that is kept")
	c.Flags().BoolVar(&follow, "follow", false, "go on with the changes that come, until the command is interrupted")
	jsonFlag(c, &asLines)
	return c
}

// printChanges prints the changes after a cursor, up to the end of the feed or, if follow is set, until ctx ends.
func printChanges(ctx context.Context, out *bufio.Writer, st *turnstone.Store, after turnstone.Cursor, follow, asLines bool) error {
	f, err := st.Feed(ctx)
	if err != nil {
		return err
	}
	if after = cmp.Or(after, f.Begin); !follow && after == f.End {
		return nil
	}
	p := printer{w: out}
	for c, err := range st.Watch(ctx, after) {
		if err != nil {
			return err
		}
		if asLines {
			p.err = errors.Join(p.err, asJSON(out, c))
		} else {
			what := line(c.Session, 60)
			switch {
			case c.Session == "":
				what = "(erased)"
			case c.Revision > 0:
				what += fmt.Sprintf("@%d", c.Revision)
			case c.To != "":
				what += " to " + line(c.To, 60)
			case c.Record != "":
				what += " " + line(c.Record, 60)
			}
			p.printf("%s  %s  %-10s %s\n", faint(string(c.Cursor)), moment(c.Time), c.Kind, what)
		}
		if p.err != nil || !follow && c.Cursor == f.End {
			return p.err
		}
		if follow {
			if err := out.Flush(); err != nil {
				return err
			}
		}
	}
	return p.err
}

func (a *app) feed() *cobra.Command {
	keep, records := age(30*24*time.Hour), false
	c := &cobra.Command{
		Use:   "feed on|off",
		Short: "Turn the feed of changes on or off",
		Long: "Turn the feed of changes on or off. While it is on, every change of a session is told, to who watches the store\n" +
			"and to `turnstone changes`; a commit then writes one small value more. Changes older than --keep go with the\n" +
			"next `turnstone gc`. Turning the feed on or off writes to each session once.",
		Example:   "turnstone feed on --keep 30d",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"on", "off"},
		RunE: a.in(func(cmd *cobra.Command, args []string, st *turnstone.Store) error {
			if args[0] == "off" {
				return st.StopFeed(cmd.Context())
			}
			return st.StartFeed(cmd.Context(), turnstone.FeedOptions{Keep: time.Duration(keep), Records: records})
		}),
	}
	c.Flags().Var(&keep, "keep", "how long changes are kept, for example 36h or 30d")
	c.Flags().BoolVar(&records, "records", false, "tell the changes of records, too: of queues, leases, drafts and effects")
	return c
}
