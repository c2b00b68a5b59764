package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/turnstonedb/turnstone/engine"
)

// version is that of the schema.
const version = 1

// check refuses a schema that a newer version made, and reports whether there is
// one. It only reads, so opening a store changes nothing and needs no right to define
// anything.
func (e *Engine) check(ctx context.Context) (there bool, err error) {
	made := ""
	err = e.read(ctx, func() call {
		return call{statement: e.sql.version, row: func(row [][]byte) { made = string(row[0]) }}
	})
	if undefined(err) || err == nil && made == "" {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	n, err := strconv.Atoi(made)
	if err != nil {
		return false, fmt.Errorf("postgres: schema %s has version %q", e.schema, made)
	}
	if n > version {
		return false, fmt.Errorf("%w: the schema %s has version %d, and this program knows %d", engine.ErrNewer, e.schema, n, version)
	}
	return true, nil
}

// undefined reports whether err says that there is no schema yet.
func undefined(err error) bool {
	pe, ok := ended(err)
	return ok && (pe.Code == undefinedTable || pe.Code == undefinedSchema)
}

// Definition returns the statements that make a schema. Run them beforehand if the
// role at run time has no right to make it. The first Apply runs them, in one
// transaction, when there is none.
func Definition(schema string) []string {
	return append([]string{"CREATE SCHEMA IF NOT EXISTS " + pgx.Identifier{schema}.Sanitize()}, tables(schema)...)
}

func tables(schema string) []string {
	pairs, meta := pgx.Identifier{schema, "pairs"}.Sanitize(), pgx.Identifier{schema, "meta"}.Sanitize()
	return []string{
		"CREATE TABLE IF NOT EXISTS " + pairs + " (k bytea PRIMARY KEY, v bytea NOT NULL) WITH (fillfactor = 80)",
		"CREATE TABLE IF NOT EXISTS " + meta + " (one integer PRIMARY KEY CHECK (one = 1), version integer NOT NULL)",
		fmt.Sprintf("INSERT INTO %s (one, version) VALUES (1, %d) ON CONFLICT (one) DO NOTHING", meta, version), // all is there
	}
}

// Grants returns the statements that let a role use a schema at run time, and no
// more: it can't define, truncate or grant anything. Only the owner can run VACUUM.
// For other roles it does nothing, and autovacuum does the work.
func Grants(schema, role string) []string {
	s, r := pgx.Identifier{schema}.Sanitize(), pgx.Identifier{role}.Sanitize()
	return []string{
		"GRANT USAGE ON SCHEMA " + s + " TO " + r,
		"GRANT SELECT, INSERT, UPDATE, DELETE ON " + pgx.Identifier{schema, "pairs"}.Sanitize() + " TO " + r,
		"GRANT SELECT ON " + pgx.Identifier{schema, "meta"}.Sanitize() + " TO " + r,
	}
}

// define makes the schema if it is not there, in one transaction. IF NOT EXISTS
// does not exclude that two do so at once: the loser looks again.
func (e *Engine) define(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		if there, err := e.check(ctx); there || err != nil {
			e.defined.Store(there)
			return err
		}
		err := e.retry(ctx, func() error {
			exists := false // CREATE SCHEMA wants rights even if it is
			err := e.transact(ctx, ctx, beginRead, call{
				statement: schemaExists, args: [][]byte{[]byte(e.schema)}, row: func([][]byte) { exists = true },
			})
			if err != nil {
				return lost(ctx, err)
			}
			statements := Definition(e.schema)
			if exists {
				statements = tables(e.schema)
			}
			var calls []call
			for _, s := range statements {
				calls = append(calls, call{statement: once(s)})
			}
			// If its outcome is unknown, it is found out by looking again.
			return lost(ctx, e.transact(ctx, ctx, beginWrite, calls...))
		})
		var pe *pgconn.PgError
		twice := errors.As(err, &pe) && slices.Contains([]string{uniqueViolation, duplicateObject, duplicateSchema, duplicateTable}, pe.Code)
		if err != nil && (!twice || attempt == maxAttempts) {
			return fmt.Errorf("postgres: define schema %s: %w", e.schema, err)
		}
	}
}
