package main

import (
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
	_ "github.com/mattn/go-sqlite3"
)

// The usual schema of a store of agent sessions: a row for each head with its
// revision, nodes as JSON rows that name their parent, checkpoint parts as
// compressed blobs by hash.
const schema = `
CREATE TABLE IF NOT EXISTS sessions (
	id TEXT PRIMARY KEY, name TEXT, model TEXT, label TEXT, parent TEXT, revision INTEGER NOT NULL, leaf TEXT,
	usage TEXT, created INTEGER NOT NULL, updated INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS sessions_updated ON sessions (updated, id);
CREATE INDEX IF NOT EXISTS sessions_label ON sessions (label, updated, id) WHERE label IS NOT NULL;
CREATE TABLE IF NOT EXISTS nodes (
	session TEXT NOT NULL, id TEXT NOT NULL, parent TEXT, kind TEXT NOT NULL, revision INTEGER NOT NULL, key TEXT, body TEXT NOT NULL,
	PRIMARY KEY (session, id));
CREATE UNIQUE INDEX IF NOT EXISTS nodes_key ON nodes (session, key) WHERE key IS NOT NULL;
CREATE TABLE IF NOT EXISTS blobs (hash BLOB PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS checkpoints (
	session TEXT NOT NULL, revision INTEGER NOT NULL, part TEXT NOT NULL, hash BLOB NOT NULL,
	PRIMARY KEY (session, revision, part)) WITHOUT ROWID;
`

const (
	activePath = `
WITH RECURSIVE path (id, parent, body, depth) AS (
	SELECT n.id, n.parent, n.body, 0 FROM sessions s JOIN nodes n ON n.session = s.id AND n.id = s.leaf WHERE s.id = ?1
	UNION ALL
	SELECT n.id, n.parent, n.body, p.depth + 1 FROM path p JOIN nodes n ON n.session = ?1 AND n.id = p.parent)
SELECT id, body FROM path LIMIT ?2`
	oneNode = `SELECT body FROM nodes WHERE session = ? AND id = ?`
	byKey   = `SELECT body FROM nodes WHERE session = ? AND key = ?`
	partAt  = `
SELECT data FROM checkpoints JOIN blobs USING (hash) WHERE session = ? AND revision <= ? AND part = 'execution' ORDER BY revision DESC LIMIT 1`
	labelPage = `SELECT id FROM sessions WHERE label = ? ORDER BY updated DESC, id DESC LIMIT ?`
	firstPage = `SELECT id, updated FROM sessions ORDER BY updated DESC, id DESC LIMIT ?`
	nextPage  = `SELECT id, updated FROM sessions WHERE (updated, id) < (?, ?) ORDER BY updated DESC, id DESC LIMIT ?`
)

// writing are the statements of a commit, prepared.
var writing = []string{
	`BEGIN IMMEDIATE`,
	`INSERT INTO sessions (id, model, label, revision, created, updated) VALUES (?1, 'model', NULLIF(?2, ''), 0, ?3, ?3)`,
	`SELECT leaf FROM sessions WHERE id = ?`,
	`INSERT INTO nodes (session, id, parent, kind, revision, key, body) VALUES (?, ?, ?, ?, ?, NULLIF(?, ''), ?)`,
	`INSERT OR IGNORE INTO blobs (hash, data) VALUES (?, ?)`,
	`INSERT INTO checkpoints (session, revision, part, hash) VALUES (?, ?, ?, ?)`,
	`UPDATE sessions SET revision = revision + 1, leaf = ?, usage = ?, updated = ? WHERE id = ? AND revision = ?`,
	`COMMIT`,
	`ROLLBACK`,
}

const (
	doBegin = iota
	doCreate
	doLeaf
	doNode
	doBlob
	doPart
	doHead
	doCommit
	doRollback
)

// body is the JSON of a node's row.
type body struct {
	Payload json.RawMessage `json:"payload"`
	Time    time.Time       `json:"time"`
}

// A sqlite is one database file. There is one writer at a time, as SQLite has
// it; a mutex is faster than its busy handler.
type sqlite struct {
	db  *sql.DB // of readers
	w   *sql.DB // of the one writer
	mu  sync.Mutex
	do  []*sql.Stmt
	get map[string]*sql.Stmt
	zip *zstd.Encoder
}

func openSQLite(synchronous string) func(dir string, bulk bool) (Store, error) {
	return func(dir string, bulk bool) (Store, error) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		level := synchronous
		if bulk {
			level = "OFF"
		}
		return openFile(filepath.Join(dir, "sessions.db"), level)
	}
}

func openFile(file, synchronous string) (s *sqlite, err error) {
	dsn := fmt.Sprintf("file:%s?_journal_mode=WAL&_synchronous=%s&_busy_timeout=10000", file, synchronous)
	s = &sqlite{get: map[string]*sql.Stmt{}}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if s.w, err = sql.Open("sqlite3", dsn); err != nil {
		return s, err
	}
	s.w.SetMaxOpenConns(1)
	if _, err = s.w.Exec(schema); err != nil {
		return s, err
	}
	for _, q := range writing {
		st, err := s.w.Prepare(q)
		if err != nil {
			return s, err
		}
		s.do = append(s.do, st)
	}
	if s.db, err = sql.Open("sqlite3", dsn); err != nil {
		return s, err
	}
	s.zip, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	return s, err
}

// reading returns the prepared statement of q.
func (s *sqlite) reading(q string) (*sql.Stmt, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.get[q]; st != nil {
		return st, nil
	}
	st, err := s.db.Prepare(q)
	if err == nil {
		s.get[q] = st
	}
	return st, err
}

func (s *sqlite) Close() error {
	var err error
	for _, db := range []*sql.DB{s.db, s.w} {
		if db != nil {
			err = errors.Join(err, db.Close())
		}
	}
	return err
}

func (s *sqlite) Commit(session string, commits int, t *Turn) error {
	// Everything that needs no lock is done before it is taken.
	now := time.Now()
	ids, bodies := make([]string, len(t.Nodes)), make([][]byte, len(t.Nodes))
	for i, n := range t.Nodes {
		id, err := uuid.NewV7()
		if err != nil {
			return err
		}
		ids[i], bodies[i] = id.String(), compactJSON(body{n.Payload, now})
	}
	usage := compactJSON(t.Usage)
	var hash [sha256.Size]byte
	var packed []byte
	if t.Part != nil {
		hash = sha256.Sum256(t.Part)
		packed = s.zip.EncodeAll(t.Part, nil)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.do[doBegin].Exec(); err != nil {
		return err
	}
	err := func() error {
		if commits == 0 {
			if _, err := s.do[doCreate].Exec(session, t.Label, now.UnixNano()); err != nil {
				return err
			}
		}
		var leaf sql.NullString
		if err := s.do[doLeaf].QueryRow(session).Scan(&leaf); err != nil {
			return err
		}
		for i, n := range t.Nodes {
			if _, err := s.do[doNode].Exec(session, ids[i], leaf, n.Kind, commits+1, n.Key, bodies[i]); err != nil {
				return err
			}
			leaf = sql.NullString{String: ids[i], Valid: true}
		}
		if packed != nil {
			if _, err := s.do[doBlob].Exec(hash[:], packed); err != nil {
				return err
			}
			if _, err := s.do[doPart].Exec(session, commits+1, "execution", hash[:]); err != nil {
				return err
			}
		}
		r, err := s.do[doHead].Exec(leaf, usage, now.UnixNano(), session, commits)
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil || n != 1 {
			return fmt.Errorf("conflict: %d rows, %v", n, err)
		}
		_, err = s.do[doCommit].Exec()
		return err
	}()
	if err != nil {
		_, rerr := s.do[doRollback].Exec()
		return errors.Join(err, rerr)
	}
	return nil
}

func (s *sqlite) Load(session string) (Path, error) { return s.Last(session, -1) }

func (s *sqlite) Last(session string, n int) (p Path, err error) {
	st, err := s.reading(activePath)
	if err != nil {
		return p, err
	}
	rows, err := st.Query(session, n)
	if err != nil {
		return p, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var raw sql.RawBytes
		if err := rows.Scan(&id, &raw); err != nil {
			return p, err
		}
		var b body
		if err := json.Unmarshal(raw, &b); err != nil {
			return p, err
		}
		p.IDs, p.Payloads = append(p.IDs, id), append(p.Payloads, b.Payload)
	}
	for i, j := 0, len(p.IDs)-1; i < j; i, j = i+1, j-1 {
		p.IDs[i], p.IDs[j] = p.IDs[j], p.IDs[i]
		p.Payloads[i], p.Payloads[j] = p.Payloads[j], p.Payloads[i]
	}
	return p, rows.Err()
}

func (s *sqlite) One(session, node string) ([]byte, error) { return s.one(oneNode, session, node) }

func (s *sqlite) ByKey(session, key string) ([]byte, error) { return s.one(byKey, session, key) }

func (s *sqlite) one(query, session, name string) ([]byte, error) {
	st, err := s.reading(query)
	if err != nil {
		return nil, err
	}
	var raw []byte
	if err := st.QueryRow(session, name).Scan(&raw); err != nil {
		return nil, err
	}
	var b body
	err = json.Unmarshal(raw, &b)
	return b.Payload, err
}

func (s *sqlite) PartAt(session string, commits int) ([]byte, error) {
	st, err := s.reading(partAt)
	if err != nil {
		return nil, err
	}
	var packed []byte
	if err := st.QueryRow(session, commits).Scan(&packed); err != nil {
		return nil, err
	}
	r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return r.DecodeAll(packed, nil)
}

func (s *sqlite) ListLabel(label string, limit int) (ids []string, err error) {
	st, err := s.reading(labelPage)
	if err != nil {
		return nil, err
	}
	rows, err := st.Query(label, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// Fork copies the history, as stores of this schema do.
func (s *sqlite) Fork(session, fork string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	tx, err := s.w.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	now := time.Now().UnixNano()
	for _, q := range []string{
		`INSERT INTO sessions (id, name, model, parent, revision, leaf, usage, created, updated) SELECT ?2, name, model, id, revision, leaf, usage, ?3, ?3 FROM sessions WHERE id = ?1`,
		`INSERT INTO nodes (session, id, parent, kind, revision, key, body) SELECT ?2, id, parent, kind, revision, key, body FROM nodes WHERE session = ?1`,
		`INSERT INTO checkpoints (session, revision, part, hash) SELECT ?2, revision, part, hash FROM checkpoints WHERE session = ?1`,
	} {
		if _, err := tx.Exec(q, session, fork, now); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (s *sqlite) List(after string, limit int) (ids []string, next string, err error) {
	q, args := firstPage, []any{limit}
	if after != "" {
		updated, id, _ := strings.Cut(after, " ")
		q, args = nextPage, []any{updated, id, limit}
	}
	st, err := s.reading(q)
	if err != nil {
		return nil, "", err
	}
	rows, err := st.Query(args...)
	if err != nil {
		return nil, "", err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var updated int64
		if err := rows.Scan(&id, &updated); err != nil {
			return nil, "", err
		}
		ids, next = append(ids, id), fmt.Sprint(updated, " ", id)
	}
	if len(ids) < limit {
		next = ""
	}
	return ids, next, rows.Err()
}

func (s *sqlite) Delete(session string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	tx, err := s.w.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, table := range []string{"nodes WHERE session", "checkpoints WHERE session", "sessions WHERE id"} {
		if _, err := tx.Exec("DELETE FROM "+table+" = ?", session); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (s *sqlite) Reclaim() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.w.Exec(`DELETE FROM blobs WHERE hash NOT IN (SELECT hash FROM checkpoints)`)
	return err
}

func (s *sqlite) Compact() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.w.Exec(`VACUUM; PRAGMA wal_checkpoint(TRUNCATE)`)
	return err
}
