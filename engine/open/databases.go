package open

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone/engine"
)

// Databases are databases by name, over which namespaces are spread. They are opened when they are used first. They are
// safe for concurrent use.
type Databases struct {
	path    string
	options *Options

	mu     sync.Mutex // guards the fields below
	urls   map[string]string
	opened map[string]*opening
	closed bool
}

// An opening is a database that is open, or being opened.
type opening struct {
	done   chan struct{} // closed when engine or err is set
	engine engine.Engine
	err    error
}

// maxDatabaseName bounds the name of a database, as turnstone.MaxDatabase does.
const maxDatabaseName = 128

// ReadDatabases reads a file with a line for each database: its name, spaces or tabs, and its URL. A line that begins
// with # is a comment. A name has 1 to 128 bytes, is UTF-8 without spaces, and stands for the same database for all who
// use it: it must never be given to another one.
func ReadDatabases(path string, o *Options) (*Databases, error) {
	d := &Databases{path: path, options: o, opened: map[string]*opening{}}
	return d, d.Reload()
}

// Reload reads the file again. What is open stays open. If the file is wrong, or gives a name to another URL than before,
// nothing changes.
func (d *Databases) Reload() error {
	f, err := os.Open(d.path)
	if err != nil {
		return err
	}
	defer f.Close()
	urls, err := readURLs(f)
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, url := range d.urls {
		if now, still := urls[name]; err == nil && still && now != url {
			err = fmt.Errorf("%w: database %q has another URL than before: restart the process", ErrURL, name)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", d.path, err)
	}
	d.urls = urls
	return nil
}

// readURLs returns the URLs of a list of databases by their names. Its errors do not quote lines, which may have a
// password.
func readURLs(from io.Reader) (map[string]string, error) {
	urls := map[string]string{}
	lines := bufio.NewScanner(from)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		if len(words) != 2 {
			return nil, fmt.Errorf("%w: line %d is to have a name and a URL, and has %d words", ErrURL, n, len(words))
		}
		name, url := words[0], words[1]
		if urls[name] != "" {
			return nil, fmt.Errorf("%w: line %d names database %q again", ErrURL, n, name)
		}
		if len(name) > maxDatabaseName || !utf8.ValidString(name) {
			return nil, fmt.Errorf("%w: line %d has a name of more than %d bytes, or that is not UTF-8", ErrURL, n, maxDatabaseName)
		}
		if _, _, local := Directory(url); url == "mem:" || !local && !Server(url) {
			return nil, fmt.Errorf("line %d: %w", n, unknown(url))
		}
		urls[name] = url
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(urls) == 0 {
		return nil, fmt.Errorf("%w: there is no database in it", ErrURL)
	}
	return urls, nil
}

// Names returns the names, in order.
func (d *Databases) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.urls))
}

// Homes returns the names in the order in which a namespace prefers them, by rendezvous hashing (Thaler and
// Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998): each database is the first one for an equal part
// of all namespaces, and a new database changes the first one of those alone for which it is now the first.
func (d *Databases) Homes(namespace string) []string {
	names := d.Names()
	weight := func(name string) string {
		sum := sha256.Sum256([]byte(name + "\x00" + namespace))
		return string(sum[:])
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(weight(b), weight(a)) })
	return names
}

// Open returns the database of a name, for turnstone.Options.Database. It opens it if it is not open. Close closes it.
func (d *Databases) Open(ctx context.Context, name string) (engine.Engine, error) {
	d.mu.Lock()
	url, known := d.urls[name]
	if d.closed || !known {
		d.mu.Unlock()
		if !known {
			return nil, fmt.Errorf("%w: %s has no database of the name %q", ErrURL, d.path, name)
		}
		return nil, engine.ErrClosed
	}
	o := d.opened[name]
	if o == nil {
		o = &opening{done: make(chan struct{})}
		d.opened[name] = o
		go func() {
			o.engine, o.err = Open(context.WithoutCancel(ctx), url, d.options)
			if o.err != nil { // The next call tries again.
				d.mu.Lock()
				delete(d.opened, name)
				d.mu.Unlock()
			}
			close(o.done)
		}()
	}
	d.mu.Unlock()
	select {
	case <-o.done:
		return o.engine, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close closes all databases that are open. Later calls of Open fail with engine.ErrClosed.
func (d *Databases) Close() error {
	d.mu.Lock()
	d.closed = true
	opened := d.opened
	d.opened = map[string]*opening{}
	d.mu.Unlock()
	var errs []error
	for _, o := range opened {
		if <-o.done; o.err == nil {
			errs = append(errs, o.engine.Close())
		}
	}
	return errors.Join(errs...)
}
