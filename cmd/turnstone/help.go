package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// helpColumns is the width of help that is not printed on a terminal.
const helpColumns = 80

// readable makes the help of c and of its commands fit the terminal. Lines are broken
// between words.
func readable(c *cobra.Command) {
	c.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		n := width(cmd.OutOrStdout())
		if n == 0 {
			n = helpColumns
		}
		long := cmd.Long
		if long == "" {
			long = cmd.Short
		}
		cmd.SetUsageTemplate(template(cmd.UsageTemplate(), n))
		cmd.Printf("%s\n\n%s", reflow(strings.TrimRight(long, "\n "), n), cmd.UsageString())
	})
	cobra.AddTemplateFunc("hang", func(n int, label, text string) string { return hang(label, text, n) })
}

// template changes cobra's usage template t so that flags and commands are wrapped at
// n columns.
func template(t string, n int) string {
	return strings.NewReplacer(
		".FlagUsages ", fmt.Sprintf(".FlagUsagesWrapped %d ", n),
		"  {{rpad .Name .NamePadding }} {{.Short}}", fmt.Sprintf(`{{hang %d (printf "  %%s " (rpad .Name .NamePadding)) .Short}}`, n),
	).Replace(t)
}
