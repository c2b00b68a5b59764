package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
		Long:    "Ask each database for a namespace. The first one is where the namespace is made if it is in none.",
		Example: "turnstone namespace where '' --databases databases",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withDatabases(func() error {
				p := printer{w: cmd.OutOrStdout()}
				for _, name := range a.databases.Homes(args[0]) {
					at := whereLine{Database: name}
					e, err := a.databases.Open(cmd.Context(), name)
					if err == nil {
						at.Whereabouts, err = a.where(cmd.Context(), e, args[0])
					}
					if err != nil {
						at.Error = err.Error()
					}
					if asLines {
						if err := asJSON(cmd.OutOrStdout(), at); err != nil {
							return err
						}
						continue
					}
					p.printf("%-12s %s\n", name, at.said())
				}
				return p.err
			})
		},
	}
	jsonFlag(c, &asLines)
	return c
}

// said returns what a database says, for people.
func (p *whereLine) said() string {
	switch {
	case p.Error != "":
		return "can't be asked: " + p.Error
	case p.Here && p.Paused:
		return "here; commits wait, because it is being moved to " + p.To
	case p.Here && p.To != "":
		return "here; it is being moved to " + p.To
	case p.Here:
		return "here"
	case p.To != "":
		return "it has moved to " + p.To
	}
	return "-"
}

// sources returns the names of the databases that a move of a namespace begins in: the one that has it, or, if that is
// the target already, those that an earlier move there may have left records in.
func (a *app) sources(ctx context.Context, namespace, to string) ([]string, error) {
	var failed error
	var behind []string
	there := false
	for _, name := range a.databases.Homes(namespace) {
		e, err := a.databases.Open(ctx, name)
		var w turnstone.Whereabouts
		if err == nil {
			w, err = a.where(ctx, e, namespace)
		}
		switch {
		case err != nil:
			failed = errors.Join(failed, fmt.Errorf("database %q: %w", name, err))
		case w.Here && name != to:
			return []string{name}, nil
		case w.Here:
			there = true
		case w.To == to:
			behind = append(behind, name)
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
	ctx, open := cmd.Context(), a.database(namespace)
	var failed error
	for _, name := range a.databases.Homes(namespace) {
		var w turnstone.Whereabouts
		from, err := open(ctx, name)
		if err == nil {
			w, err = turnstone.Where(ctx, from, namespace)
		}
		if err != nil { // It may be the one that is lost.
			failed = errors.Join(failed, fmt.Errorf("database %q: %w", name, err))
		}
		if !w.Here {
			continue
		}
		if err := a.cancelFrom(ctx, namespace, name, from, w.To, lost); err != nil {
			return err
		}
		p := printer{w: cmd.OutOrStdout()}
		p.printf("stays    namespace %q in %s\n", namespace, name)
		return p.err
	}
	return errors.Join(fmt.Errorf("%w: namespace %q in a database that could be asked", turnstone.ErrStoreNotFound, namespace), failed)
}

// cancelFrom gives up the move of a namespace from a database to another one. If it was given up before, to is empty, and
// cancelFrom removes what is left in any database that can be opened.
func (a *app) cancelFrom(ctx context.Context, namespace, name string, from engine.Engine, to string, lost bool) error {
	others := []string{to}
	if to == "" {
		others = slices.DeleteFunc(a.databases.Names(), func(other string) bool { return other == name })
	}
	for _, other := range others {
		var target engine.Engine
		if to == "" || !lost {
			var err error
			if target, err = a.database(namespace)(ctx, other); err != nil && to == "" {
				continue
			} else if err != nil {
				return fmt.Errorf("%w: if that database is lost, use --lost", err)
			}
		}
		if err := turnstone.CancelMove(ctx, from, target, turnstone.MoveOptions{Namespace: namespace}); err != nil {
			return err
		}
	}
	return nil
}
