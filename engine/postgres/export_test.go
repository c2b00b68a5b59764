package postgres

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Pooled reports whether settings go into every transaction.
func (e *Engine) Pooled() bool { return e.pooled.Load() }

// PingAfter says how long a connection must be idle to be asked whether it is there.
func (e *Engine) PingAfter(d time.Duration) { e.pingAfter = d }

// MaxConns returns how many connections there can be.
func (e *Engine) MaxConns() int32 { return e.pool.Config().MaxConns }

// Hold takes n connections of the pool for maintenance, or else of the other one, until release is called.
func (e *Engine) Hold(t *testing.T, maintenance bool, n int) (release func()) {
	t.Helper()
	pool := e.pool
	if maintenance {
		pool = e.slow
	}
	var held []*pgxpool.Conn
	for range n {
		c, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	return func() {
		for _, c := range held {
			c.Release()
		}
	}
}

// Setting returns what is in force in a transaction.
func (e *Engine) Setting(t *testing.T, name string) (value string) {
	t.Helper()
	err := e.read(context.Background(), func() call {
		return call{
			newStatement(1, "SELECT convert_to(current_setting(convert_from($1, 'UTF8')), 'UTF8')", pgtype.ByteaOID),
			[][]byte{[]byte(name)},
			func(row [][]byte) { value = string(row[0]) },
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// Plans returns how the server executes the statements of e.
func (e *Engine) Plans(t *testing.T) map[string]string {
	t.Helper()
	ctx := context.Background()
	c, err := e.pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	const key, keys, number = `'\x01'`, `'{"\\x01","\\x02","\\x03"}'`, `100`
	out := map[string]string{}
	for name, s := range map[string]struct {
		*statement
		args []string
	}{
		"get":       {e.sql.get, []string{keys}},
		"scan":      {e.sql.scan, []string{key, number, number, `'\xff'`}},
		"scanOpen":  {e.sql.scanOpen, []string{key, number, number}},
		"guards":    {e.sql.guards, []string{keys, keys}},
		"inserts":   {e.sql.inserts, []string{keys, keys}},
		"insertsIf": {e.sql.insertsIf, []string{keys, keys, keys, keys}},
		"sets":      {e.sql.sets, []string{keys, keys}},
		"deletes":   {e.sql.deletes, []string{keys}},
	} {
		if _, err := c.Exec(ctx, "PREPARE "+name+" AS "+s.SQL); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		rows, err := c.Query(ctx, "EXPLAIN EXECUTE "+name+"("+strings.Join(s.args, ", ")+")")
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out[name] = strings.Join(lines, "\n")
		if _, err := c.Exec(ctx, "DEALLOCATE "+name); err != nil {
			t.Fatal(err)
		}
	}
	return out
}
