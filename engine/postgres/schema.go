package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// version is that of the schema.
const version = 1

// ErrNewer: a newer version of this driver made the schema.
var ErrNewer = errors.New("postgres: the schema was made by a newer version")

// check refuses a schema that a newer version made. One that is not there is made
// by the first Apply: a look at a database leaves nothing, and what is there needs
// no right to define anything.
func (e *Engine) check(ctx context.Context) error {
	made := 0
	err := e.retry(ctx, func() error {
		return e.pool.QueryRow(ctx, "SELECT version FROM "+pgx.Identifier{e.schema, "meta"}.Sanitize()).Scan(&made)
	})
	switch {
	case undefined(err), errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("postgres: %w", err)
	case made > version:
		return fmt.Errorf("%w (schema %s has version %d, this one knows %d)", ErrNewer, e.schema, made, version)
	}
	return nil
}

// undefined reports whether err says that there is no schema yet.
func undefined(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && (pe.Code == undefinedTable || pe.Code == undefinedSchema)
}

// Definition returns the statements that make a schema, for those who give the
// role at run time no right to do so. The first Apply runs them when there is none.
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
func (e *Engine) define(ctx context.Context) error {
	for _, statement := range Definition(e.schema) {
		err := e.retry(ctx, func() error {
			_, err := e.pool.Exec(ctx, statement)
			return err
		})
		var pe *pgconn.PgError
		if errors.As(err, &pe) && slices.Contains([]string{uniqueViolation, duplicateObject, duplicateSchema, duplicateTable}, pe.Code) {
			err = nil
		}
		if err != nil {
			return fmt.Errorf("postgres: define schema %s: %w", e.schema, err)
		}
	}
	return nil
}
