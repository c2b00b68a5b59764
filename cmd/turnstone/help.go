package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// helpColumns is how wide help is where it is not for a terminal, as in a manual.
const helpColumns = 80

// readable makes the help of c and of its commands fit the terminal: no line is
// broken within a word.
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

// template is cobra's own, with flags and the names of commands wrapped at n columns.
func template(t string, n int) string {
	return strings.NewReplacer(
		".FlagUsages ", fmt.Sprintf(".FlagUsagesWrapped %d ", n),
		"  {{rpad .Name .NamePadding }} {{.Short}}", fmt.Sprintf(`{{hang %d (printf "  %%s " (rpad .Name .NamePadding)) .Short}}`, n),
	).Replace(t)
}
