package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// version is that of the schema.
const version = 1

// ErrNewer: a newer version of this driver made the schema.
var ErrNewer = errors.New("postgres: the schema was made by a newer version")

// migrate makes the schema if it is not there. One that is needs no right to
// define anything.
func (e *Engine) migrate(ctx context.Context, schema string) error {
	made, err := e.version(ctx, schema)
	if err != nil {
		return err
	}
	if made == 0 {
		if err := e.define(ctx, schema); err != nil {
			return err
		}
		if made, err = e.version(ctx, schema); err != nil {
			return err
		}
	}
	if made > version {
		return fmt.Errorf("%w (schema %s has version %d, this one knows %d)", ErrNewer, schema, made, version)
	}
	return nil
}

// version returns the version of the schema, or 0 if there is none.
func (e *Engine) version(ctx context.Context, schema string) (v int, err error) {
	err = e.retry(ctx, func() error {
		return e.pool.QueryRow(ctx, "SELECT version FROM "+pgx.Identifier{schema, "meta"}.Sanitize()).Scan(&v)
	})
	var pe *pgconn.PgError
	if errors.As(err, &pe) && (pe.Code == undefinedTable || pe.Code == undefinedSchema) || errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("postgres: %w", err)
	}
	return v, nil
}

// Definition returns the statements that make a schema, for those who give the
// role at run time no right to do so. Open runs them itself when there is none.
func Definition(schema string) []string {
	s := pgx.Identifier{schema}.Sanitize()
	pairs, meta := pgx.Identifier{schema, "pairs"}.Sanitize(), pgx.Identifier{schema, "meta"}.Sanitize()
	return []string{
		"CREATE SCHEMA IF NOT EXISTS " + s,
		"CREATE TABLE IF NOT EXISTS " + pairs + " (k bytea PRIMARY KEY, v bytea NOT NULL) WITH (fillfactor = 80)",
		"CREATE TABLE IF NOT EXISTS " + meta + " (one integer PRIMARY KEY CHECK (one = 1), version integer NOT NULL)",
		fmt.Sprintf("INSERT INTO %s (one, version) VALUES (1, %d) ON CONFLICT (one) DO NOTHING", meta, version),
	}
}

// Grants returns the statements that let a role use a schema at run time, and no
// more: it can't define, truncate or grant anything. VACUUM needs the owner, or
// autovacuum, which does it by itself.
func Grants(schema, role string) []string {
	s, r := pgx.Identifier{schema}.Sanitize(), pgx.Identifier{role}.Sanitize()
	return []string{
		"GRANT USAGE ON SCHEMA " + s + " TO " + r,
		"GRANT SELECT, INSERT, UPDATE, DELETE ON " + pgx.Identifier{schema, "pairs"}.Sanitize() + " TO " + r,
		"GRANT SELECT ON " + pgx.Identifier{schema, "meta"}.Sanitize() + " TO " + r,
	}
}

// define runs the definition. IF NOT EXISTS does not exclude that two do so at
// once: the loser finds what the other one made.
func (e *Engine) define(ctx context.Context, schema string) error {
	for _, statement := range Definition(schema) {
		err := e.retry(ctx, func() error {
			_, err := e.pool.Exec(ctx, statement)
			return err
		})
		var pe *pgconn.PgError
		if errors.As(err, &pe) && pe.Code == uniqueViolation {
			err = nil
		}
		if err != nil {
			return fmt.Errorf("postgres: define schema %s: %w", schema, err)
		}
	}
	return nil
}
