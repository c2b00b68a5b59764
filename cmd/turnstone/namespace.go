package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
)

func (a *app) namespaces() *cobra.Command {
	c := &cobra.Command{
		Use:   "namespace",
		Short: "Find a namespace among several databases, and move it",
		Long: "Find a namespace among several databases, and move it from one to another while hosts use it. --databases, or\n" +
			databasesVariable + ", names a file with a line for each database: its name and its URL. All hosts are given the same\n" +
			"file. NAME is a namespace; '' is the one that the other commands use.",
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(a.namespaceWhere(), a.namespaceMove(), a.namespaceCancel())
	return c
}

// withDatabases calls f when the list of databases is read, and closes them.
func (a *app) withDatabases(f func() error) error {
	if a.listFile == "" {
		return usageError{fmt.Errorf("name the file with the list of databases with --databases, or in %s", databasesVariable)}
	}
	if err := a.readDatabases(); err != nil {
		return err
	}
	return errors.Join(f(), a.databases.Close())
}

// A whereLine is a line of JSON about a database.
type whereLine struct {
	Database string `json:"database"`
	turnstone.Whereabouts
	Error string `json:"error,omitempty"` // why it could not be asked
}

func (a *app) namespaceWhere() *cobra.Command {
	var asLines bool
	c := &cobra.Command{
		Use:     "where NAME",
		Short:   "Say in which database a namespace is",
		Long:    "Ask all databases whether they have a namespace. If none has, the namespace will be made in the first one.",
		Example: "turnstone namespace where '' --databases databases",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withDatabases(func() error {
				p := printer{w: cmd.OutOrStdout()}
				for _, said := range a.ask(cmd.Context(), args[0]) {
					if !asLines {
						p.printf("%-12s %s\n", said.name, said.text())
						continue
					}
					line := whereLine{Database: said.name, Whereabouts: said.Whereabouts}
					if said.err != nil {
						line.Error = said.err.Error()
					}
					if err := asJSON(cmd.OutOrStdout(), line); err != nil {
						return err
					}
				}
				return p.err
			})
		},
	}
	jsonFlag(c, &asLines)
	return c
}

// text returns what a database says, for people.
func (s *answer) text() string {
	switch {
	case s.err != nil:
		return "can't be asked: " + s.err.Error()
	case s.Here && s.Paused:
		return "here; commits wait, because it is being moved to " + s.To
	case s.Here && s.To != "":
		return "here; it is being moved to " + s.To
	case s.Here:
		return "here"
	case s.To != "":
		return "it has moved to " + s.To
	}
	return "-"
}

// sources returns the names of the databases that a move of a namespace begins in: the one that has it, or, if that is
// the target already, those that an earlier move there may have left records in.
func (a *app) sources(ctx context.Context, namespace, to string) ([]string, error) {
	var failed error
	var behind []string
	there := false
	for _, said := range a.ask(ctx, namespace) {
		switch {
		case said.err != nil:
			failed = errors.Join(failed, said.err)
		case said.Here && said.name != to:
			return []string{said.name}, nil
		case said.Here:
			there = true
		case said.To == to:
			behind = append(behind, said.name)
		}
	}
	if failed == nil && len(behind) == 0 && !there {
		failed = fmt.Errorf("%w: namespace %q", turnstone.ErrStoreNotFound, namespace)
	}
	return behind, failed
}

func (a *app) namespaceMove() *cobra.Command {
	var asLines bool
	var to string
	c := &cobra.Command{
		Use:   "move NAME",
		Short: "Move a namespace to another database while hosts use it",
		Long: "Move a namespace to another database while hosts use it. All of them must have the list of databases: those without it\n" +
			"fail once the namespace has moved. Commits wait for a moment at the end. After an interruption, the same command goes\n" +
			"on; until then, each commit writes a note of what it changes.",
		Example: "turnstone namespace move '' --to west --databases databases\nturnstone namespace where '' --databases databases\n" +
			"turnstone namespace move '' --to east --databases databases",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withDatabases(func() error { return a.moveNamespace(cmd, args[0], to, asLines) })
		},
	}
	c.Flags().StringVar(&to, "to", "", "the name of the other database")
	_ = c.MarkFlagRequired("to") // There is such a flag.
	jsonFlag(c, &asLines)
	return c
}

func (a *app) moveNamespace(cmd *cobra.Command, namespace, to string, asLines bool) error {
	ctx, open := cmd.Context(), a.database(namespace)
	target, err := open(ctx, to)
	if err != nil {
		return err
	}
	sources, err := a.sources(ctx, namespace, to)
	if err != nil {
		return err
	}
	p := printer{w: cmd.OutOrStdout()}
	if len(sources) == 0 && asLines {
		return asJSON(cmd.OutOrStdout(), turnstone.MoveReport{})
	}
	if len(sources) == 0 {
		p.printf("namespace %q is in %s\n", namespace, to)
	}
	for _, name := range sources {
		from, err := open(ctx, name)
		if err != nil {
			return err
		}
		r, err := turnstone.Move(ctx, from, target, turnstone.MoveOptions{Namespace: namespace, To: to})
		if err != nil {
			return err
		}
		if asLines {
			if err := asJSON(cmd.OutOrStdout(), r); err != nil {
				return err
			}
			continue
		}
		p.printf("moved    namespace %q from %s to %s: %s, %s\n", namespace, name, to, plural(r.Written, "record"), size(uint64(r.Bytes)))
		p.printf("beside   %s of hosts; commits waited for %v at the end\n", plural(r.Changes, "change"), r.Paused.Round(100*time.Microsecond))
		p.printf("removed  %s from %s\n", plural(r.Removed, "record"), name)
	}
	return p.err
}

func (a *app) namespaceCancel() *cobra.Command {
	var lost bool
	c := &cobra.Command{
		Use:   "cancel NAME",
		Short: "Give up a move of a namespace that has not ended",
		Long: "Give up a move of a namespace: it stays where it is, and what the other database has of it is removed. After an\n" +
			"interruption, or when a database that was thought lost is back, the same command removes the rest.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withDatabases(func() error { return a.cancelMove(cmd, args[0], lost) })
		},
	}
	c.Flags().BoolVar(&lost, "lost", false, "the other database is lost: leave what it has of the namespace")
	return c
}

func (a *app) cancelMove(cmd *cobra.Command, namespace string, lost bool) error {
	failed := fmt.Errorf("%w: namespace %q in a database that could be asked", turnstone.ErrStoreNotFound, namespace)
	for _, said := range a.ask(cmd.Context(), namespace) {
		if said.err != nil { // It may be the one that is lost.
			failed = errors.Join(failed, said.err)
		}
		if !said.Here {
			continue
		}
		if err := a.cancelFrom(cmd.Context(), namespace, &said, lost); err != nil {
			return err
		}
		p := printer{w: cmd.OutOrStdout()}
		p.printf("stays    namespace %q in %s\n", namespace, said.name)
		return p.err
	}
	return failed
}

// cancelFrom gives up the move of a namespace from the database that has it. If the move was given up before, cancelFrom
// removes what is left of it from all databases that can be opened.
func (a *app) cancelFrom(ctx context.Context, namespace string, at *answer, lost bool) error {
	open := a.database(namespace)
	from, err := open(ctx, at.name)
	if err != nil {
		return err
	}
	o := turnstone.MoveOptions{Namespace: namespace}
	if at.To != "" {
		var to engine.Engine
		if !lost {
			if to, err = open(ctx, at.To); err != nil {
				return fmt.Errorf("%w: if that database is lost, use --lost", err)
			}
		}
		return turnstone.CancelMove(ctx, from, to, o)
	}
	for _, name := range a.databases.Names() {
		if name == at.name {
			continue
		}
		if to, failed := open(ctx, name); failed == nil {
			err = errors.Join(err, turnstone.CancelMove(ctx, from, to, o))
		}
	}
	return err
}
