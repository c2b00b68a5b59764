// Command turnstone looks into, fills and checks session stores.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/open"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "turnstone:", clean(strings.TrimPrefix(err.Error(), "turnstone: ")))
		stop()
		os.Exit(1)
	}
}

// environment variable and default of --store.
const (
	storeVariable = "TURNSTONE_STORE"
	defaultStore  = "./turnstone-data"
)

// An app is what the commands share.
type app struct {
	url       string
	retention turnstone.Retention // of sessions without one of their own
}

func command() *cobra.Command {
	a := &app{}
	root := &cobra.Command{
		Use:   "turnstone",
		Short: "Persist, inspect and check the sessions of AI agents",
		Long: "Turnstone keeps the sessions of AI agents: every turn a commit, every commit checked.\n" +
			"Start with `turnstone demo`, then `turnstone import FILE…` and `turnstone sessions`.",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	url := os.Getenv(storeVariable)
	if url == "" {
		url = defaultStore
	}
	root.PersistentFlags().StringVar(&a.url, "store", url, "store: "+open.Forms+"; or set "+storeVariable)
	root.AddCommand(a.demo(), a.demoChild(), a.importFiles(), a.sessions(), a.show(), a.export(), a.verify(), a.stats(),
		a.gc(), a.vacuum(), a.prune(), a.keep(), a.erase())
	return root
}

// with opens the store, runs f and closes it. A store that must exist is not
// created by looking at it.
func (a *app) with(ctx context.Context, mustExist bool, f func(*turnstone.Store, engine.Engine) error) (err error) {
	missing := fmt.Errorf("there is no store at %s: choose one with --store or %s, or fill one with `turnstone import`", a.url, storeVariable)
	if dir, ok := directory(a.url); ok && mustExist && !open.Holds(dir) {
		return missing
	}
	e, err := open.Open(a.url)
	if err != nil {
		var held *engine.LockedError
		if errors.As(err, &held) {
			return fmt.Errorf("%w; an embedded store is open in one process at a time: stop that one, or let it do the work (in Go: Store.GC, Store.Vacuum, Store.Maintain)", err)
		}
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	st, err := turnstone.Open(ctx, e, &turnstone.Options{MustExist: mustExist, Retention: a.retention})
	if errors.Is(err, turnstone.ErrStoreNotFound) {
		return missing
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	return f(st, e)
}

// directory returns where an embedded store keeps its files.
func directory(url string) (string, bool) {
	_, dir, ok := open.Directory(url)
	return dir, ok
}

// printer writes to a command's output and keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}
