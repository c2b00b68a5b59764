// Package open maps the URL of a store to an engine: for the command line and
// for hosts that are configured by a string. Others call a driver's own Open.
package open

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	neturl "net/url"
	"os"
	"strings"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/badger"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/engine/postgres"
)

// ErrURL reports a URL that names no engine of this build.
var ErrURL = errors.New("open: unknown store URL")

// Forms lists what Open accepts, for help texts.
const Forms = "DIR or badger:DIR, pebble:DIR, postgres://…, mem:"

// Open opens the engine that url names:
//
//	DIR, badger:DIR   Badger in directory DIR (a bare path has no colon before its first slash)
//	pebble:DIR        Pebble in directory DIR
//	postgres://…      PostgreSQL; the parameter schema names the schema (default turnstone), others are libpq's and pgx's
//	mem:              memory; gone with the process
//
// A directory of another engine is refused.
func Open(ctx context.Context, url string) (engine.Engine, error) {
	scheme, dir, local := Directory(url)
	switch {
	case url == "mem:":
		return memory.New(), nil
	case Server(url):
		return openPostgres(ctx, url)
	case local && scheme == "badger":
		if err := refuse(dir, "pebble", "marker."); err != nil {
			return nil, err
		}
		e, err := badger.Open(dir, nil)
		if err != nil {
			return nil, err // not e: a nil *badger.Engine is no nil Engine
		}
		return e, nil
	case local && scheme == "pebble":
		if err := refuse(dir, "badger", "CURRENT"); err != nil {
			return nil, err
		}
		e, err := pebble.Open(dir, nil)
		if err != nil {
			return nil, err
		}
		return e, nil
	}
	begin, _, _ := strings.Cut(url, ":") // the rest may have a password
	return nil, fmt.Errorf("%w (it begins with %q): want %s", ErrURL, begin, Forms)
}

// Server reports whether url names a server.
func Server(url string) bool {
	return strings.HasPrefix(url, "postgres://") || strings.HasPrefix(url, "postgresql://")
}

func openPostgres(ctx context.Context, url string) (engine.Engine, error) {
	// What is wrong is not said in the words of net/url: they can have the password.
	u, err := neturl.Parse(url)
	if err != nil {
		return nil, fmt.Errorf("%w: it can't be parsed: in user and password, escape what is not a letter or digit as %%XX", ErrURL)
	}
	var o postgres.Options
	query, err := neturl.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("%w: its parameters can't be parsed", ErrURL)
	}
	o.Schema = query.Get("schema")
	query.Del("schema")
	u.RawQuery = query.Encode()
	e, err := postgres.Open(ctx, u.String(), &o)
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Directory returns the engine and the directory of a URL that names one.
func Directory(url string) (scheme, dir string, ok bool) {
	scheme, dir, ok = strings.Cut(url, ":")
	if !ok || strings.Contains(scheme, "/") {
		scheme, dir = "badger", url
	}
	return scheme, dir, dir != "" && (scheme == "badger" || scheme == "pebble")
}

// Holds reports whether dir holds a store of some engine.
func Holds(dir string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, d := range entries {
		if d.Name() == "CURRENT" || strings.HasPrefix(d.Name(), "gen-") || strings.HasPrefix(d.Name(), "marker.") {
			return true
		}
	}
	return false
}

// refuse fails when dir holds a file that only the other engine makes.
func refuse(dir, other, prefix string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, d := range entries {
		if strings.HasPrefix(d.Name(), prefix) {
			return fmt.Errorf("open: %s is a %s store: use %s:%s", dir, other, other, dir)
		}
	}
	return nil
}
