package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/open"
)

// databasesVariable is the environment variable for --databases.
const databasesVariable = "TURNSTONE_DATABASES"

// openFor opens the engine that a namespace is in, or is to be made in. The caller calls done at the end, with the error
// that it has so far.
func (a *app) openFor(ctx context.Context, namespace string) (e engine.Engine, done func(error) error, err error) {
	if a.listFile == "" {
		e, err := a.open(ctx)
		return e, func(err error) error { return closeEngine(e, err) }, explainLocked(err)
	}
	if err := a.readDatabases(); err != nil {
		return nil, nil, err
	}
	if e, err = a.locate(ctx, namespace); err != nil {
		return nil, nil, errors.Join(err, a.databases.Close())
	}
	return e, func(err error) error { return errors.Join(err, a.databases.Close()) }, nil
}

func (a *app) readDatabases() (err error) {
	if a.onlyRead {
		return usageError{errors.New("--read-only goes with --store, not with --databases")}
	}
	a.databases, err = open.ReadDatabases(a.listFile, &open.Options{MinFreeBytes: uint64(a.minFree), Memory: a.options.Memory})
	return err
}

// database returns what opens a database by its name, for a store of a namespace, or nil if there is no list of
// databases.
func (a *app) database(namespace string) func(context.Context, string) (engine.Engine, error) {
	if a.databases == nil {
		return nil
	}
	return func(ctx context.Context, name string) (engine.Engine, error) {
		e, err := a.databases.Open(ctx, name)
		if err != nil {
			return nil, err
		}
		return a.decrypted(ctx, e, namespace)
	}
}

// An answer is what a database says of where a namespace is.
type answer struct {
	name string // of the database
	turnstone.Whereabouts
	err error // why it could not be asked; it names the database
}

// ask asks the databases where a namespace is, in the order in which the namespace prefers them.
func (a *app) ask(ctx context.Context, namespace string) []answer {
	var out []answer
	open := a.database(namespace)
	for _, name := range a.databases.Homes(namespace) {
		said := answer{name: name}
		e, err := open(ctx, name)
		if err == nil {
			said.Whereabouts, err = turnstone.Where(ctx, e, namespace)
		}
		if err != nil {
			said.err = fmt.Errorf("database %q: %w", name, err)
		}
		out = append(out, said)
	}
	return out
}

// locate returns the database that a namespace is in, or one that it has moved from. If no database knows the namespace,
// and all could be asked, it is the one that the namespace is to be made in.
func (a *app) locate(ctx context.Context, namespace string) (engine.Engine, error) {
	var failed error
	at := ""
	here, left := false, false
	for _, said := range a.ask(ctx, namespace) {
		switch {
		case said.err != nil:
			failed = errors.Join(failed, said.err)
		case said.Here && !here:
			at, here = said.name, true
		case said.To != "" && !here: // It has moved to one that could not be asked, just now, or to one that is not in the list.
			at, left = said.name, true
		case at == "":
			at = said.name
		}
	}
	if failed != nil && !here && !left {
		return nil, fmt.Errorf("namespace %q is in no database that could be asked: %w", namespace, failed)
	}
	return a.databases.Open(ctx, at)
}
