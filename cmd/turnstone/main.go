// Command turnstone reads, fills, serves, checks, copies and cleans up session stores.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/backup"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/engine/sealed"
	"github.com/turnstonedb/turnstone/engine/shared"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process, whatever it waits for
	a := &app{}
	err := a.command().ExecuteContext(ctx)
	if err != nil && !a.began {
		err = usageError{err}
	}
	if turnstone.KindOf(err).Name == "encrypted" && a.keyFile == "" {
		err = fmt.Errorf("%w; --keys names its keyring: see turnstone keys", err)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "turnstone:", clean(message(err)))
		stop()
		os.Exit(exitCode(err))
	}
}

// message returns an error for people. An error may say the same more than once, for
// example when several layers met a full disk. Each line is printed once.
func message(err error) string {
	var out []string
	for _, l := range strings.Split(strings.TrimPrefix(err.Error(), "turnstone: "), "\n") {
		if !slices.Contains(out, l) {
			out = append(out, l)
		}
	}
	return strings.Join(out, "\n")
}

// Exit codes of the command.
const (
	exitFailed      = 1   // any other error
	exitUsage       = 2   // the command line is wrong; nothing was done
	exitNotFound    = 3   // no such store, session, node, record, revision or attachment (any more), or the store was moved
	exitDamaged     = 4   // data in the store is missing or damaged
	exitConflict    = 5   // another writer was first, the name exists already, or what is stored does not allow it otherwise
	exitUnavailable = 6   // another process has the store open and does not share it, its database can't be reached, or a copy into it is not finished
	exitInterrupted = 130 // a signal ended the command
)

const exitCodes = `Exit codes: 0 success; 2 the command line is wrong and nothing was done; 3 no such store, session, node, record,
revision or attachment (any more), or the store was moved; 4 the store is damaged; 5 another writer was first, the name
exists already, or what is stored does not allow it otherwise; 6 another process has the store open and does not share
it, its database can't be reached, or a copy into it is not finished; 130 interrupted; 1 any other error.`

// A usageError is a mistake on the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// An inputError is a mistake in a file that a command read, not on its command line.
type inputError struct{ error }

func (e inputError) Unwrap() error { return e.error }

// errDamaged means that verify or scrub found problems.
var errDamaged = errors.New("the store is damaged")

// exitCode returns the exit code for err.
func exitCode(err error) int {
	var usage usageError
	var input inputError
	of := func(target error) bool { return errors.Is(err, target) }
	inFile := errors.As(err, &input)
	switch {
	case of(context.Canceled):
		return exitInterrupted
	case errors.As(err, &usage), !inFile && (of(turnstone.ErrInvalid) || of(turnstone.ErrLimit) || of(open.ErrURL) || of(client.ErrAddress) || of(engine.ErrReadOnly) || of(shared.ErrNoMove)):
		return exitUsage
	case of(errDamaged), of(damage.ErrDamaged), of(engine.ErrCorrupt), of(backup.ErrTarget):
		return exitDamaged
	case of(engine.ErrMoved), of(backup.ErrNoBackup):
		return exitNotFound
	case of(backup.ErrOther):
		return exitConflict
	case of(engine.ErrNoSpace), of(engine.ErrClosed): // whatever else they say
		return exitFailed
	}
	for _, k := range turnstone.ErrorKinds() {
		if code, ok := exits[k.Class]; ok && k.Has(err) {
			return code
		}
	}
	return exitFailed
}

// exits has the exit codes of kinds of errors, by their classes.
var exits = map[string]int{
	"NotFound": exitNotFound, "SessionDeleted": exitNotFound,
	"Conflict": exitConflict, "TurnConflict": exitConflict, "RecordConflict": exitConflict, "Diverged": exitConflict, "Refused": exitConflict,
	"Unavailable": exitUnavailable,
}

// Environment variable and default for --store.
const (
	storeVariable = "TURNSTONE_STORE"
	defaultStore  = "./turnstone-data"
)

// An app has the global flags and the state that commands share.
type app struct {
	url      string
	began    bool              // the command line is valid and a command runs
	wait     time.Duration     // how long to wait for a store that another process has open and does not share
	onlyRead bool              // open the store for reading only
	minFree  byteSize          // free disk space below which new data is refused; 0 means the engine's default
	options  turnstone.Options // options to open the store with
	keyFile  string            // the keyring of an encrypted store, or ""
	openRing *sealed.Keyring   // of keyFile, once it is open

	listFile  string          // the list of databases, or ""
	databases *open.Databases // of listFile, once it is read
}

// command returns the command turnstone with all its commands.
func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "turnstone",
		Short: "Persist, inspect and check the sessions of AI agents",
		Long: "Turnstone stores the sessions of AI agents. Every turn is a commit, and every commit is checked.\n" +
			"Start with `turnstone demo`, then `turnstone import FILE…` and `turnstone sessions`.\n\n" + exitCodes,
		Version:                    version(),
		SilenceUsage:               true,
		SilenceErrors:              true,
		SuggestionsMinimumDistance: 2,
		Args:                       noSuchCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	a.globalFlags(root)
	a.addCommands(root)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	readable(root)
	checkHelpArguments(root)
	return root
}

// globalFlags adds the flags that all commands have.
func (a *app) globalFlags(root *cobra.Command) {
	url := os.Getenv(storeVariable)
	if url == "" {
		url = defaultStore
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.url, "store", url, "store: "+open.Forms+"; or set "+storeVariable)
	flags.StringVar(&a.listFile, "databases", os.Getenv(databasesVariable), "in place of --store, a file with the names and URLs of several databases (see turnstone namespace); or set "+databasesVariable)
	flags.StringVar(&a.keyFile, "keys", os.Getenv(keysVariable), "the keyring of an encrypted store, which is a file (see turnstone keys); or set "+keysVariable)
	flags.BoolVar(&a.onlyRead, "read-only", false, "open a store in a directory that no process has open, and change nothing there")
	flags.Var(&a.minFree, "min-free", "refuse new data when less disk space is left, for example 64MiB; default 64MiB (128MiB on Badger)")
	flags.Var(memoryFlag{&a.options.Memory}, "memory", "what to keep in memory for speed, at least 32MiB; default 64MiB")
	flags.DurationVar(&a.wait, "wait", 2*time.Second, "how long to wait for a store that another process has open and does not share")
}

// addCommands adds the commands in the groups and the order in which help lists them.
func (a *app) addCommands(root *cobra.Command) {
	cobra.EnableCommandSorting = false
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Begin", []*cobra.Command{a.demo(), a.importFiles(), a.migrate(), a.follow(), a.status(), a.resume()}},
		{"Look", []*cobra.Command{a.sessions(), a.search(), a.grep(), a.tree(), a.show(), a.log(), a.diff(), a.cat(), a.records(), a.export(), a.usage()}},
		{"Change", []*cobra.Command{a.fork(), a.rewind(), a.rename(), a.label(), a.tombstone(), a.rm()}},
		{"Move", []*cobra.Command{a.push(), a.pull(), a.clone(), a.bundle(), a.unbundle()}},
		{"Keep", []*cobra.Command{a.backup(), a.restore(), a.recover()}},
		{"Maintain", []*cobra.Command{a.verify(), a.scrub(), a.stats(), a.keep(), a.prune(), a.feed(), a.gc(), a.vacuum(), a.erase(), a.changes(), a.copy(), a.move(), a.namespaces(), a.keys(), a.reencrypt(), a.upgrade()}},
		{"Serve", []*cobra.Command{a.ui(), a.mcp(), a.serve(), a.token()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, c := range g.commands {
			c.GroupID = g.title
			a.forgetting(c)
			a.mistakes(c)
			for _, below := range c.Commands() {
				a.mistakes(below)
			}
			root.AddCommand(c)
		}
	}
	root.AddCommand(a.demoChild())
}

// noSuchCommand refuses arguments of the root command: they name no command.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		hint = "; did you mean " + strings.Join(like, " or ") + "?"
	}
	return usageError{fmt.Errorf("there is no command %q%s", args[0], hint)}
}

// checkHelpArguments makes `turnstone help NAME` fail if there is no such command.
func checkHelpArguments(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() != "help" {
			continue
		}
		c.PreRunE = func(_ *cobra.Command, args []string) error {
			if found, _, _ := root.Find(args); found == root {
				return noSuchCommand(root, args)
			}
			return nil
		}
	}
}

// version returns the version of the module that the command was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return info.Main.Version
}

// mistakes turns errors about the arguments of c into usage errors, and notes when c
// begins to run.
func (a *app) mistakes(c *cobra.Command) {
	check := c.Args
	c.Args = func(cmd *cobra.Command, args []string) error {
		if check == nil {
			return nil
		}
		if err := check(cmd, args); err != nil {
			return usageError{fmt.Errorf("%w; usage: `%s`", err, cmd.UseLine())}
		}
		return nil
	}
	run := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		a.began = true
		return run(cmd, args)
	}
}

// complete makes the shell complete session ids, as arguments and for flags.
func (a *app) complete(c *cobra.Command, flags ...string) {
	c.ValidArgsFunction = a.completeIDs
	for _, f := range flags {
		if err := c.RegisterFlagCompletionFunc(f, a.completeIDs); err != nil {
			panic(err) // no such flag
		}
	}
}

// completeIDs returns up to 100 session ids that begin with begin, with the names of the
// sessions. It returns none if the store can't be read.
func (a *app) completeIDs(cmd *cobra.Command, _ []string, begin string) ([]string, cobra.ShellCompDirective) {
	var out []string
	_ = a.with(cmd.Context(), true, func(st *turnstone.Store) error {
		for i, err := range importer.Sessions(cmd.Context(), st, turnstone.ListOptions{}) {
			if err != nil || len(out) == 100 {
				return err
			}
			if strings.HasPrefix(i.ID, begin) && completable(i.ID) {
				out = append(out, i.ID+"\t"+line(i.Name, 40))
			}
		}
		return nil
	})
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completable reports whether a shell can write the id to the terminal as it is.
func completable(id string) bool {
	return utf8.ValidString(id) && !strings.ContainsFunc(id, func(r rune) bool { return active(r) || r == '\t' || r == '\n' })
}

// with opens the store, calls f and closes the store. If mustExist is set, it fails
// rather than create a store.
func (a *app) with(ctx context.Context, mustExist bool, f func(*turnstone.Store) error) error {
	return a.withEngine(ctx, mustExist, func(st *turnstone.Store, _ engine.Engine) error { return f(st) })
}

// in returns a RunE that calls f with the store, which must exist.
func (a *app) in(f func(*cobra.Command, []string, *turnstone.Store) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return a.with(cmd.Context(), true, func(st *turnstone.Store) error { return f(cmd, args, st) })
	}
}

// withEngine is like with, but passes f the engine as well.
func (a *app) withEngine(ctx context.Context, mustExist bool, f func(*turnstone.Store, engine.Engine) error) (err error) {
	missing := fmt.Errorf("%w at %s: choose one with --store or %s, or fill one with `turnstone import`", turnstone.ErrStoreNotFound, a.shown(), storeVariable)
	if mustExist {
		if found, err := a.mayExist(); err != nil {
			return err
		} else if !found {
			return missing
		}
	}
	o := a.options
	o.MustExist = mustExist
	e, done, err := a.openFor(ctx, o.Namespace)
	if err != nil {
		return err
	}
	defer func() { err = done(err) }()
	o.Database = a.database(o.Namespace)
	in, err := a.decrypted(ctx, e, o.Namespace)
	if err != nil {
		return err
	}
	st, err := turnstone.Open(ctx, in, &o)
	if errors.Is(err, turnstone.ErrStoreNotFound) {
		return missing
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	return f(st, e)
}

// mayExist reports whether the store may exist. It knows for embedded stores; a server
// has to be asked.
func (a *app) mayExist() (bool, error) {
	dir, ok := directory(a.url)
	if !ok || a.listFile != "" {
		return true, nil
	}
	return open.Holds(dir)
}

// explainLocked adds advice to an error because another process has the store open and does not share it.
func explainLocked(err error) error {
	var held *engine.LockedError
	if errors.As(err, &held) && !errors.Is(err, engine.ErrUnavailable) {
		return fmt.Errorf("%w, which does not share it: stop that one, let it do the work (in Go: Store.GC, Store.Vacuum, Store.Maintain), or let it open the store with package engine/open or engine/shared", err)
	}
	return err
}

// closeEngine closes the engine and adds its error to err. A full disk is only a warning
// if the command itself succeeded.
func closeEngine(e engine.Engine, err error) error {
	cerr := e.Close()
	if err == nil && errors.Is(cerr, engine.ErrNoSpace) {
		fmt.Fprintf(os.Stderr, "turnstone: warning: %v\n", cerr)
		return nil
	}
	return errors.Join(err, cerr)
}

// open opens the engine. If another process has it open and does not share it, open waits for
// that process to end.
func (a *app) open(ctx context.Context) (engine.Engine, error) {
	for deadline := time.Now().Add(a.wait); ; {
		e, err := open.Open(ctx, a.url, &open.Options{MinFreeBytes: uint64(a.minFree), Memory: a.options.Memory, ReadOnly: a.onlyRead})
		var held *engine.LockedError
		if !errors.As(err, &held) || time.Now().After(deadline) {
			return e, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// shown says where the store is, without a password.
func (a *app) shown() string {
	if a.listFile != "" {
		return "the databases of " + a.listFile
	}
	return open.Redacted(a.url)
}

// directory returns the directory of an embedded store.
func directory(url string) (string, bool) {
	_, dir, ok := open.Directory(url)
	return dir, ok
}

// A printer writes to a command's output and keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}
