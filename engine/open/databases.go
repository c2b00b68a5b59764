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
	known  map[string]string // the URLs of all names that the file has ever had
	opened map[string]*opening
	closed bool
}

// An opening is a database that is open, or being opened.
type opening struct {
	done   chan struct{} // closed when engine or err is set
	cancel context.CancelFunc
	engine engine.Engine
	err    error
}

// maxDatabaseName bounds the name of a database, as turnstone.MaxDatabase does.
const maxDatabaseName = 128

// ReadDatabases reads a file with a line for each database: its name, spaces or tabs, and its URL. A line that begins
// with # is a comment. A name has 1 to 128 bytes, is UTF-8 without spaces, and stands for the same database for all who
// use it: it must never be given to another one.
func ReadDatabases(path string, o *Options) (*Databases, error) {
	d := &Databases{path: path, options: o, known: map[string]string{}, opened: map[string]*opening{}}
	if err := d.Reload(); err != nil {
		return nil, err
	}
	return d, nil
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
	for name, url := range d.known {
		for now, at := range urls {
			if err == nil && (now == name) != (at == url) {
				err = fmt.Errorf("%w: database %q has another URL than before, or another name: start the process anew", ErrURL, now)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", d.path, err)
	}
	maps.Copy(d.known, urls)
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
		if urls[name] != "" || slices.Contains(slices.Collect(maps.Values(urls)), url) {
			return nil, fmt.Errorf("%w: line %d has the name or the URL of a line before", ErrURL, n)
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

// Homes returns the names in the order in which a namespace prefers them.
func (d *Databases) Homes(namespace string) []string {
	names := d.Names()
	Prefer(names, namespace)
	return names
}

// Prefer sorts the names of databases in the order in which a namespace prefers them, by rendezvous hashing (Thaler and
// Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998): each database is the first one for an equal part
// of all namespaces, and a new database becomes the first one for its part, and changes nothing for the others.
func Prefer(names []string, namespace string) {
	weights := make(map[string]string, len(names))
	for _, name := range names {
		sum := sha256.Sum256([]byte(name + "\x00" + namespace))
		weights[name] = string(sum[:])
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(weights[b], weights[a]) })
}

// Open returns the database of a name, for turnstone.Options.Database. It opens it if it is not open. Close closes it.
func (d *Databases) Open(ctx context.Context, name string) (engine.Engine, error) {
	d.mu.Lock()
	url, known := d.urls[name]
	if d.closed || !known {
		closed := d.closed
		d.mu.Unlock()
		if closed {
			return nil, engine.ErrClosed
		}
		return nil, fmt.Errorf("%w: %s has no database of the name %q", ErrURL, d.path, name)
	}
	o := d.opened[name]
	if o == nil {
		while, cancel := context.WithCancel(context.WithoutCancel(ctx))
		o = &opening{done: make(chan struct{}), cancel: cancel}
		d.opened[name] = o
		go func() {
			o.engine, o.err = Open(while, url, d.options)
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
		select {
		case <-o.done:
		default:
			o.cancel()
		}
		if <-o.done; o.err == nil {
			errs = append(errs, o.engine.Close())
		}
	}
	return errors.Join(errs...)
}
