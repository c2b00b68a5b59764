package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/google/uuid"
)

// langGraph stores a session as the SQLite saver of LangGraph for Python does
// (langgraph-checkpoint-sqlite): its tables and statements, WAL, and one
// connection. A step is two transactions: the pending writes of the step, with the
// new messages, and the checkpoint, with the whole state. Python's sqlite3 leaves
// synchronous at SQLite's default, which is FULL. The state is stored as the bytes
// that the caller has, so that what the saver's serializer takes is not counted.
type langGraph struct {
	db *sql.DB
	// conn is the one connection that the saver has.
	conn                     *sql.Conn
	write, put, latest, page *sql.Stmt

	mu      sync.Mutex // guards conn, as the saver's lock does, and threads
	threads map[string]thread
}

// A thread is what the caller of the saver knows of it: the last checkpoint.
type thread struct {
	id    sql.NullString
	steps int
}

const langGraphSchema = `
CREATE TABLE IF NOT EXISTS checkpoints (
	thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '', checkpoint_id TEXT NOT NULL, parent_checkpoint_id TEXT,
	type TEXT, checkpoint BLOB, metadata BLOB,
	PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id));
CREATE TABLE IF NOT EXISTS writes (
	thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '', checkpoint_id TEXT NOT NULL, task_id TEXT NOT NULL,
	task_path TEXT NOT NULL DEFAULT '', idx INTEGER NOT NULL, channel TEXT NOT NULL, type TEXT, value BLOB,
	PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx));
`

func openLangGraph(synchronous string) func(dir string, bulk bool) (Store, error) {
	return func(dir string, bulk bool) (Store, error) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		level := synchronous
		if bulk {
			level = "OFF"
		}
		db, err := sql.Open("sqlite3", fmt.Sprintf("file:%s?_journal_mode=WAL&_synchronous=%s&_busy_timeout=5000", filepath.Join(dir, "checkpoints.sqlite"), level))
		if err != nil {
			return nil, err
		}
		s := &langGraph{db: db, threads: map[string]thread{}}
		if err := s.prepare(); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		return s, nil
	}
}

func (s *langGraph) prepare() (err error) {
	if s.conn, err = s.db.Conn(context.Background()); err != nil {
		return err
	}
	if _, err = s.conn.ExecContext(ctx, langGraphSchema); err != nil {
		return err
	}
	for _, q := range []struct {
		to    **sql.Stmt
		query string
	}{
		{&s.write, `INSERT OR IGNORE INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, value) VALUES (?, '', ?, ?, '', ?, ?, ?, ?)`},
		{&s.put, `INSERT OR REPLACE INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata) VALUES (?, '', ?, ?, ?, ?, ?)`},
		{&s.latest, `SELECT MAX(checkpoint_id), COUNT(*) FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ''`},
		{&s.page, `SELECT checkpoint FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = '' ORDER BY checkpoint_id LIMIT 1 OFFSET ?`},
	} {
		if *q.to, err = s.conn.PrepareContext(ctx, q.query); err != nil {
			return err
		}
	}
	return nil
}

func (s *langGraph) Close() error {
	var err error
	if s.conn != nil {
		err = s.conn.Close()
	}
	return errors.Join(err, s.db.Close())
}

// Commit is one step of a graph.
func (s *langGraph) Commit(id string, commits int, t *Turn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.threads[id]
	if !ok {
		if err := s.latest.QueryRow(id).Scan(&last.id, &last.steps); err != nil {
			return err
		}
	}
	if last.steps != commits {
		return fmt.Errorf("conflict: %s is at %d, not %d", id, last.steps, commits)
	}
	if last.id.Valid {
		messages := make([]json.RawMessage, len(t.Nodes))
		for i := range t.Nodes {
			messages[i] = t.Nodes[i].Payload
		}
		if err := s.transaction(s.write, id, last.id, "task", 0, "messages", "json", compactJSON(messages)); err != nil {
			return err
		}
	}
	next, err := uuid.NewV7() // the saver's ids are of version 6: they sort by time as well
	if err != nil {
		return err
	}
	about := compactJSON(map[string]any{"source": "loop", "step": commits, "parents": map[string]any{}})
	if err := s.transaction(s.put, id, next.String(), last.id, "json", t.Part, about); err != nil {
		return err
	}
	s.threads[id] = thread{sql.NullString{String: next.String(), Valid: true}, commits + 1}
	return nil
}

func (s *langGraph) transaction(st *sql.Stmt, args ...any) error {
	if _, err := s.conn.ExecContext(ctx, "BEGIN"); err != nil {
		return err
	}
	if _, err := st.Exec(args...); err != nil {
		_, rerr := s.conn.ExecContext(ctx, "ROLLBACK")
		return errors.Join(err, rerr)
	}
	_, err := s.conn.ExecContext(ctx, "COMMIT")
	return err
}

func (s *langGraph) PartAt(id string, commits int) (part []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err = s.page.QueryRow(id, commits-1).Scan(&part)
	return part, err
}

func (s *langGraph) Compact() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.conn.ExecContext(ctx, `VACUUM; PRAGMA wal_checkpoint(TRUNCATE)`)
	return err
}
