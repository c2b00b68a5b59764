package main

import (
	"context"
	"database/sql"
	"errors"
	"time"

	_ "modernc.org/sqlite"
)

// products is the product database: what the application knows of its chats,
// and which of them wait for an answer.
type products struct{ db *sql.DB }

func openProducts(ctx context.Context, path string) (*products, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=busy_timeout(5000)")
	if err != nil {
		return nil, err
	}
	_, err = db.ExecContext(ctx, `
		create table if not exists chats (id text primary key, title text not null, created text not null);
		create table if not exists unanswered (turn text primary key, chat text not null references chats (id));`)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &products{db}, nil
}

func (p *products) Close() error { return p.db.Close() }

type chat struct {
	ID      string `json:"id"`
	Title   string `json:"title"`
	Created string `json:"created"`
	// From the store.
	Revision uint64 `json:"revision"`
	Messages uint64 `json:"messages"`
}

func (p *products) add(ctx context.Context, c *chat) error {
	c.Created = time.Now().UTC().Format(time.RFC3339Nano)
	_, err := p.db.ExecContext(ctx, "insert into chats (id, title, created) values (?, ?, ?)", c.ID, c.Title, c.Created)
	return err
}

// chats returns the latest hundred.
func (p *products) chats(ctx context.Context) ([]chat, error) {
	rows, err := p.db.QueryContext(ctx, "select id, title, created from chats order by created desc limit 100")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := []chat{}
	for rows.Next() {
		var c chat
		if err := rows.Scan(&c.ID, &c.Title, &c.Created); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, rows.Err()
}

func (p *products) has(ctx context.Context, id string) (bool, error) {
	var one int
	err := p.db.QueryRowContext(ctx, "select 1 from chats where id = ?", id).Scan(&one)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// waits notes that a turn of a chat is about to wait for an answer: before the
// message is committed, so that a crash can leave a note too many, never one too
// few. Each turn has a note of its own.
func (p *products) waits(ctx context.Context, turn, chat string) error {
	_, err := p.db.ExecContext(ctx, "insert into unanswered (turn, chat) values (?, ?)", turn, chat)
	return err
}

func (p *products) answered(ctx context.Context, turn string) error {
	_, err := p.db.ExecContext(ctx, "delete from unanswered where turn = ?", turn)
	return err
}

// unanswered returns the chats of the notes, by turn.
func (p *products) unanswered(ctx context.Context) (map[string]string, error) {
	rows, err := p.db.QueryContext(ctx, "select turn, chat from unanswered")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := map[string]string{}
	for rows.Next() {
		var turn, chat string
		if err := rows.Scan(&turn, &chat); err != nil {
			return nil, err
		}
		out[turn] = chat
	}
	return out, rows.Err()
}
