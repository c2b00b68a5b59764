package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone/engine/open"
)

// pythonVariable is the environment variable that says which Python has the framework.
const pythonVariable = "TURNSTONE_PYTHON"

// A migration is a program that reads what a framework has in a store of its own. Only the framework knows that format,
// so the program is of its language.
type migration struct {
	framework string
	module    string // of Python
	needs     string // what has to be installed for it
}

var migrations = []migration{
	{"langgraph", "langgraph.checkpoint.base", "turnstonedb[langgraph] and langgraph-checkpoint-sqlite or langgraph-checkpoint-postgres"},
	{"agents", "agents", "turnstonedb[agents]"},
	{"adk", "google.adk.sessions", "turnstonedb[adk]"},
}

func (a *app) migrate() *cobra.Command {
	var dryRun bool
	c := &cobra.Command{
		Use:   "migrate FRAMEWORK SOURCE",
		Short: "Bring the sessions that a framework has in a store of its own",
		Long: "Bring the sessions that a framework has in a store of its own: langgraph those of LangGraph's SQLite and\n" +
			"PostgreSQL savers, agents those of the OpenAI Agents SDK, adk those of Google's Agent Development Kit for\n" +
			"Python. What was brought is read again, and compared. The source is only read, but ADK's own service makes its\n" +
			"tables in a database that lacks them. A migration that was cut off goes on, and one that is made again brings\n" +
			"what has come since. It runs in the Python that has the framework: python3, or what " + pythonVariable + " says.\n" +
			"`turnstone import` brings the transcripts of coding agents, and in Go adapters have a method Bring.\n\n" +
			"  turnstone migrate langgraph sqlite:checkpoints.db\n" +
			"  turnstone migrate agents postgresql://user@host/db --dry-run",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			i := slices.IndexFunc(migrations, func(m migration) bool { return m.framework == args[0] })
			if i < 0 {
				var names []string
				for _, m := range migrations {
					names = append(names, m.framework)
				}
				return usageError{fmt.Errorf("there is no migration from %q; there are those from %s", args[0], strings.Join(names, ", "))}
			}
			_, dir, ok := open.Directory(a.url)
			if !ok || a.listFile != "" || a.onlyRead {
				return usageError{fmt.Errorf("migrate writes to a store in a directory; for another one run `turnstone serve`, and `python3 -m turnstonedb.migrate %s SOURCE --store ADDRESS`", args[0])}
			}
			return migrations[i].run(cmd, a, dir, args[1], dryRun)
		},
	}
	c.Flags().BoolVar(&dryRun, "dry-run", false, "change nothing, print what would be done")
	return c
}

func (m *migration) run(cmd *cobra.Command, a *app, dir, source string, dryRun bool) error {
	python := cmp.Or(os.Getenv(pythonVariable), "python3")
	ctx := cmd.Context()
	if out, err := exec.CommandContext(ctx, python, "-c", "import turnstonedb.migrate, "+m.module).CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		said := strings.TrimSpace(string(out))
		return fmt.Errorf("%s can't read the sessions of %s: %w\n%s\nInstall %s, or set %s to the Python that has it", python, m.framework, err, said[strings.LastIndexByte(said, '\n')+1:], m.needs, pythonVariable)
	}
	arguments := []string{"-m", "turnstonedb.migrate", m.framework, source, "--store", dir, "--namespace", a.options.Namespace}
	if dryRun {
		arguments = append(arguments, "--dry-run")
	}
	child := exec.CommandContext(ctx, python, arguments...)
	child.Stdout, child.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
	child.Env = append(os.Environ(), keysVariable+"="+a.keyFile)
	if self, err := os.Executable(); err == nil && os.Getenv("TURNSTONE_COMMAND") == "" {
		child.Env = append(child.Env, "TURNSTONE_COMMAND="+self) // It serves the store.
	}
	err := child.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return fmt.Errorf("the migration has ended with %w", err)
	}
	return err
}
