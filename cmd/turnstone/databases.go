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

// locate returns the database that a namespace is in, or one that it has moved from. If no database knows the namespace,
// and all could be asked, it is the one that the namespace is to be made in.
func (a *app) locate(ctx context.Context, namespace string) (engine.Engine, error) {
	var home, left engine.Engine
	var failed error
	for _, name := range a.databases.Homes(namespace) {
		e, err := a.databases.Open(ctx, name)
		var w turnstone.Whereabouts
		if err == nil {
			w, err = a.where(ctx, e, namespace)
		}
		switch {
		case err != nil:
			failed = errors.Join(failed, fmt.Errorf("database %q: %w", name, err))
		case w.Here:
			return e, nil
		case w.To != "":
			left = e
		case home == nil:
			home = e
		}
	}
	switch {
	case left != nil: // It has moved to one that could not be asked, just now, or to one that is not in the list.
		return left, nil
	case failed != nil:
		return nil, fmt.Errorf("namespace %q is in no database that could be asked: %w", namespace, failed)
	}
	return home, nil
}

// where returns what a database knows of where a namespace is.
func (a *app) where(ctx context.Context, e engine.Engine, namespace string) (turnstone.Whereabouts, error) {
	in, err := a.decrypted(ctx, e, namespace)
	if err != nil {
		return turnstone.Whereabouts{}, err
	}
	return turnstone.Where(ctx, in, namespace)
}
