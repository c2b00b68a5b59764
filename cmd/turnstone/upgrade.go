package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
)

func (a *app) upgrade() *cobra.Command {
	return &cobra.Command{
		Use:   "upgrade",
		Short: "Raise the format of the store to the newest one of this version",
		Long: "Raise the format of the store to the newest one of this version. It takes a moment, whatever\n" +
			"the size of the store, and can't be undone. Older versions of Turnstone can't open the store\n" +
			"any more: stop them first. Without it a store keeps its format.",
		Example: "turnstone upgrade",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.options.Upgrade = true
			return a.with(cmd.Context(), true, func(*turnstone.Store) error {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), "the store has the newest format of this version")
				return err
			})
		},
	}
}
