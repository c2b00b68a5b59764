package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/open"
)

func (a *app) move() *cobra.Command {
	var asLines bool
	c := &cobra.Command{
		Use:   "move FROM TO",
		Short: "Move a store to another engine or place while it is used",
		Long: "Move the store in the directory FROM to TO, all namespaces, while processes and servers go on using it. The process\n" +
			"that has FROM open copies it, and serves it from TO in the end; calls wait for a moment then. That process serves it so until it ends.\n" +
			"Who opens FROM after that is told where the store is. TO must be empty. After an interruption the store is still\n" +
			"FROM, and the same command begins anew. The old files stay in FROM: remove them when `turnstone verify` has passed on TO.",
		Example: "turnstone move copy.badger moved.pebble",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from := *a
			from.url = args[0]
			return from.withEngine(cmd.Context(), true, func(_ *turnstone.Store, e engine.Engine) error {
				m, err := open.Move(cmd.Context(), e, args[1])
				if err != nil {
					return err
				}
				if asLines {
					return asJSON(cmd.OutOrStdout(), moved{m.Pairs, m.Bytes, m.Paused})
				}
				p := printer{w: cmd.OutOrStdout()}
				p.printf("moved    %s, %s; calls waited for %v at the end\n", plural(m.Pairs, "record"), size(uint64(m.Bytes)), m.Paused.Round(100_000))
				return p.err
			})
		},
	}
	jsonFlag(c, &asLines)
	return c
}

// moved is a line of JSON about a move.
type moved struct {
	Records int           `json:"records"` // that were copied, those again that changed meanwhile
	Bytes   int64         `json:"bytes"`   // of those, keys and values
	Paused  time.Duration `json:"paused"`  // how long calls waited at the end
}
