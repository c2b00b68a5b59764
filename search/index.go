package search

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/driver"
	"github.com/ncruces/go-sqlite3/ext/fts5"

	"github.com/turnstonedb/turnstone"
)

// Options of an Index.
type Options struct {
	// Text returns what is said in a node. All who use an index must give the same function. Default: the payload, if
	// it is text; of JSON its strings.
	Text func(n *turnstone.Node) string
	// Agent returns the name of the agent whose session it is, for the field agent. Default: no agent.
	Agent func(i *turnstone.Info) string
	// Embedding, if set, makes Sync keep a vector of each node, for Similar.
	Embedding *Embedding
}

// An Index finds what the sessions of one namespace say. It is safe for concurrent use, and several processes may have
// the same one.
type Index struct {
	o    Options
	db   *sql.DB
	path string
}

// ErrOther means that an index is of another store, or of another version of this package: remove it, and it is made
// again.
var ErrOther = errors.New("search: the index is of another store or version")

// version changes when the tables change, or the way in which texts are split into words.
const version = "2"

// schema makes the tables. The table words has the words of each node, in order, but not its text: its content is
// empty. The number of a node is never used again, so those up to state's "embedded" have their vectors.
const schema = `
CREATE TABLE IF NOT EXISTS state(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sessions(
	number INTEGER PRIMARY KEY AUTOINCREMENT, incarnation TEXT NOT NULL UNIQUE, id TEXT NOT NULL, called TEXT NOT NULL, grp TEXT NOT NULL, project TEXT NOT NULL,
	model TEXT NOT NULL, agent TEXT NOT NULL, labels TEXT NOT NULL, updated INTEGER NOT NULL,
	revision INTEGER NOT NULL, rest TEXT NOT NULL, whole INTEGER NOT NULL, parent INTEGER NOT NULL,
	nodes INTEGER NOT NULL, shown INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS by_id ON sessions(id);
CREATE INDEX IF NOT EXISTS by_parent ON sessions(parent);
CREATE TABLE IF NOT EXISTS nodes(number INTEGER PRIMARY KEY AUTOINCREMENT, session INTEGER NOT NULL, node BLOB NOT NULL, own INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS vectors(number INTEGER PRIMARY KEY, vector BLOB NOT NULL);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(text, content='', contentless_delete=1, tokenize="ascii tokenchars '_'");
`

// Open opens the index in a file, which it makes if it is not there. Close it after use.
func Open(path string, o Options) (*Index, error) {
	if o.Text == nil {
		o.Text = plainText
	}
	if o.Agent == nil {
		o.Agent = func(*turnstone.Info) string { return "" }
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) // SQLite would make it for everybody to read.
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("search: %w", err)
	}
	name := (&url.URL{Scheme: "file", OmitHost: true, Path: filepath.ToSlash(path), RawQuery: "_txlock=immediate&_pragma=busy_timeout(60000)"}).String()
	db, err := driver.Open(name, func(c *sqlite3.Conn) error {
		if err := fts5.Register(c); err != nil {
			return err
		}
		// What is deleted is overwritten. The index can be made again, so the loss of the last changes in a power cut
		// costs some time only.
		return c.Exec(`PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA secure_delete=ON; PRAGMA cache_size=-32768; PRAGMA temp_store=MEMORY`)
	})
	if err != nil {
		return nil, fmt.Errorf("search: %w", err)
	}
	x := &Index{o: o, db: db, path: path}
	if err := x.prepare(context.Background()); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return x, nil
}

// prepare makes the tables, and checks the version.
func (x *Index) prepare(ctx context.Context) error {
	return x.write(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, schema); err != nil {
			return err
		}
		found, err := get(ctx, tx, "version")
		switch {
		case err != nil:
			return err
		case found == "":
			return set(ctx, tx, "version", version)
		case found != version:
			return fmt.Errorf("%w: version %s, want %s", ErrOther, found, version)
		}
		return nil
	})
}

// Close closes the index.
func (x *Index) Close() error { return x.db.Close() }

// Remove removes the index in a file that nobody has open.
func Remove(path string) error {
	var err error
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if e := os.Remove(path + suffix); !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// write calls f in a transaction that writes: one at a time, of all processes.
func (x *Index) write(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := x.db.BeginTx(ctx, nil)
	if err != nil {
		return failed(ctx, err)
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback() // It is the first error that counts.
		return failed(ctx, err)
	}
	return failed(ctx, tx.Commit())
}

// failed returns an error of SQLite, with that of ctx if it was interrupted.
func failed(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && !errors.Is(err, ctx.Err()):
		return fmt.Errorf("search: %w: %w", ctx.Err(), err)
	}
	return fmt.Errorf("search: %w", err)
}

// querier is a transaction, or the database.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// get returns a value of the table state, or "".
func get(ctx context.Context, q querier, name string) (value string, err error) {
	err = q.QueryRowContext(ctx, "SELECT value FROM state WHERE name=?", name).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return value, err
}

func set(ctx context.Context, tx *sql.Tx, name, value string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO state VALUES(?,?) ON CONFLICT DO UPDATE SET value=excluded.value", name, value)
	return err
}

// Beside its words, a node has words that no text has: for its session, and for its kind.
func sessionToken(number int64) string { return "_s" + strconv.FormatInt(number, 10) }

func kindToken(kind string) string {
	return "_k" + hex.EncodeToString([]byte(kind[:min(len(kind), 30)]))
}

// indexed returns the words of a node as the index has them.
func (x *Index) indexed(n *turnstone.Node, session int64) string {
	var b strings.Builder
	b.WriteString(sessionToken(session) + " " + kindToken(n.Kind))
	words(x.o.Text(n), func(w word) bool {
		if w.text != "" {
			b.WriteByte(' ')
			b.WriteString(w.text)
		}
		return true
	})
	return b.String()
}
