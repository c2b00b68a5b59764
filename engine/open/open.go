// Package open opens the engine that a URL names: for stores that several processes, or a process and the command,
// share, and for hosts that are configured by a string. It links all engines. Hosts that need one of them, in one
// process, call the driver's own Open.
package open

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	neturl "net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/postgres"
	"github.com/turnstonedb/turnstone/engine/shared"
)

// ErrURL reports a URL that names no engine of this build.
var ErrURL = errors.New("open: unknown store URL")

// Options of Open. They apply to engines in directories. Nil and the zero value mean the
// engines' defaults.
type Options struct {
	// MinFreeBytes is the free disk space below which new data is refused.
	// Reading and what reclaims space need none, or little on Badger (docs/engines.md).
	// If another process has the store open already, its limit holds.
	MinFreeBytes uint64
	// Memory is the budget of what the engine keeps in memory. Default: the process's own.
	Memory *engine.MemoryBudget
	// Exclusive opens the store for this process alone. Otherwise other processes can use it at the same
	// time: see package shared.
	Exclusive bool
	// ReadOnly opens an existing store that no process has open, and changes nothing in its directory: see
	// badger.Options.ReadOnly and pebble.Options.ReadOnly. It is no option for a server.
	ReadOnly bool
}

// Forms lists what Open accepts, for help texts.
var Forms = "DIR or " + strings.Join(Schemes(), ":DIR, ") + ":DIR, postgres://…, mem:"

// Open opens the engine that url names:
//
//	DIR          the store in directory DIR, a new one on Pebble (a bare path has no colon before its first slash)
//	pebble:DIR   Pebble in directory DIR
//	badger:DIR   Badger in directory DIR
//	postgres://…      PostgreSQL; the parameter schema names the schema (default turnstone), others are libpq's and pgx's
//	mem:              memory; gone with the process
//
// A directory of another engine is refused. Stores in directories are shared with other processes that open them by
// this function or package shared, unless Options.Exclusive is set.
func Open(ctx context.Context, url string, o *Options) (engine.Engine, error) {
	if o == nil {
		o = &Options{}
	}
	scheme, dir, local := Directory(url)
	if o.ReadOnly && !local {
		return nil, fmt.Errorf("%w: %w: only a store in a directory can be opened so", ErrURL, engine.ErrReadOnly)
	}
	switch {
	case url == "mem:":
		return memory.New(), nil
	case Server(url):
		return openPostgres(ctx, url)
	case local:
		of, _ := named(scheme)
		driver := func(dir string) (engine.Engine, error) {
			if err := refuse(dir, scheme); err != nil {
				return nil, err
			}
			return of.open(dir, o)
		}
		if o.Exclusive || o.ReadOnly {
			return driver(dir)
		}
		if err := refuse(dir, scheme); err != nil { // before there is anything in the directory
			return nil, err
		}
		e, err := shared.Open(ctx, dir, shared.Driver{Name: scheme, Open: driver, Other: func(ctx context.Context, url string) (engine.Engine, error) {
			return Open(ctx, url, &Options{MinFreeBytes: o.MinFreeBytes, Memory: o.Memory})
		}})
		if err != nil {
			return nil, err // not e: a nil *shared.Engine is no nil Engine
		}
		return e, nil
	}
	return nil, unknown(url)
}

// unknown is the error of a URL that names no engine.
func unknown(url string) error {
	begin, _, _ := strings.Cut(url, ":") // the rest may have a password
	return fmt.Errorf("%w (it begins with %q): want %s", ErrURL, begin, Forms)
}

// Move moves a store in a directory, which e is, to the engine that url names, while all processes go on using it: see
// shared.Engine.Move. The engine must be empty. Stores in memory and on servers can't be moved from.
func Move(ctx context.Context, e engine.Engine, url string) (*shared.Moved, error) {
	s, ok := e.(*shared.Engine)
	if !ok {
		return nil, fmt.Errorf("%w: only one in a directory, which is not open for this process alone, can be moved", shared.ErrNoMove)
	}
	if url == "mem:" {
		return nil, fmt.Errorf("%w: memory ends with the process", shared.ErrNoMove)
	}
	if _, dir, ok := Directory(url); ok { // Another process may open it, from another working directory.
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, err
		}
		url = strings.TrimSuffix(url, dir) + abs
	} else if !Server(url) {
		return nil, unknown(url)
	}
	return s.Move(ctx, url, Redacted(url))
}

// Redacted returns url without passwords.
func Redacted(url string) string {
	if !Server(url) {
		return url
	}
	u, err := neturl.Parse(url)
	if err != nil {
		return "the server"
	}
	query := u.Query()
	for _, secret := range []string{"password", "sslpassword"} {
		if query.Has(secret) {
			query.Set(secret, "xxxxx")
		}
	}
	u.RawQuery = query.Encode()
	return u.Redacted()
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

// Directory returns the engine and the directory of a URL that names a directory. For a bare path, that is the engine
// whose store the directory holds, or else the first of Schemes.
func Directory(url string) (scheme, dir string, ok bool) {
	scheme, dir, ok = strings.Cut(url, ":")
	if !ok || strings.Contains(scheme, "/") {
		dir = url
		if scheme, _ = holds(dir); scheme == "" { // an error shows again when the store is opened
			scheme = embedded[0].scheme
		}
	}
	_, known := named(scheme)
	return scheme, dir, dir != "" && known
}

// Holds reports whether dir holds a store of some engine, whole or not. A
// directory that can't be read is an error.
func Holds(dir string) (bool, error) {
	of, err := holds(dir)
	return of != "", err
}

// holds returns the scheme of the engine whose store dir holds, or "".
func holds(dir string) (scheme string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("open: look for a store: %w", err)
	}
	for _, of := range slices.Backward(embedded) { // What no other engine knows is the default's.
		if slices.ContainsFunc(entries, func(d fs.DirEntry) bool { return of.trace(d.Name()) }) {
			return of.scheme, nil
		}
	}
	return "", nil
}

// refuse fails when dir holds a store of another engine than that of scheme.
func refuse(dir, scheme string) error {
	of, err := holds(dir)
	if err == nil && of != "" && of != scheme {
		err = fmt.Errorf("open: %s is a %s store: use %s:%s", dir, of, of, dir)
	}
	return err
}
