package postgres

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Pooled reports whether settings go into every transaction.
func (e *Engine) Pooled() bool { return e.pooled }

// Plans returns how the server executes the statements of e.
func (e *Engine) Plans(t *testing.T, c *pgx.Conn) map[string]string {
	t.Helper()
	keys, values := [][]byte{{1}, {2}, {3}}, [][]byte{{1}, {2}, {3}}
	out := map[string]string{}
	if _, err := c.Exec(context.Background(), "SET enable_seqscan = off"); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]struct {
		sql  string
		args []any
	}{
		"get":     {e.sql.get, []any{keys}},
		"scan":    {e.sql.scan, []any{[]byte{1}, []byte{2}, 100}},
		"open":    {e.sql.scanOpen, []any{[]byte{1}, 100}},
		"guards":  {e.sql.guards, []any{keys, values}},
		"inserts": {e.sql.inserts, []any{keys, values}},
		"sets":    {e.sql.sets, []any{keys, values}},
		"deletes": {e.sql.deletes, []any{keys}},
	} {
		// The generic plan is what a prepared statement ends up with.
		for _, mode := range []string{"force_generic_plan", "force_custom_plan"} {
			if _, err := c.Exec(context.Background(), "SET plan_cache_mode = "+mode); err != nil {
				t.Fatal(err)
			}
			rows, err := c.Query(context.Background(), "EXPLAIN "+s.sql, s.args...)
			if err != nil {
				t.Fatal(err)
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			out[name+" "+mode] = strings.Join(lines, "\n")
		}
	}
	return out
}
