package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// A call is a statement with its arguments, as they are encoded.
type call struct {
	*statement
	args [][]byte
	// row, if set, is called with each row of the result. values belong to the
	// connection: the next row overwrites them.
	row func(values [][]byte)
}

// prepared are the statements that a connection knows by name.
type prepared map[*statement]bool

// preparedOn returns the prepared statements of a connection.
func preparedOn(c *pgconn.PgConn) prepared {
	const key = "turnstone"
	known, _ := c.CustomData()[key].(prepared)
	if known == nil {
		known = prepared{}
		c.CustomData()[key] = known
	}
	return known
}

// transact executes calls between begin and COMMIT, all sent together. ctx is for
// the wait for a connection; during is for the rest.
func (e *Engine) transact(ctx, during context.Context, begin *statement, calls ...call) error {
	conn, err := e.poolFor(ctx).Acquire(ctx)
	if err != nil {
		return &notSent{err}
	}
	defer conn.Release()
	limited, cancel := context.WithTimeout(during, 2*e.timeout)
	defer cancel()
	c := conn.Conn().PgConn()
	all := append(make([]call, 0, len(calls)+3), call{statement: begin})
	var known prepared
	if e.pooled.Load() {
		all = append(all, e.settings)
	} else {
		known = preparedOn(c)
	}
	all = append(append(all, calls...), call{statement: commit})
	err = execute(limited, c, known, all)
	if err != nil && !c.IsClosed() && c.TxStatus() != 'I' {
		// If this fails, the pool drops the connection.
		_, _ = c.Exec(limited, "ROLLBACK").ReadAll()
	}
	return err
}

// execute sends calls in one piece and reads what comes back: in one round trip,
// also when statements are to be prepared first. With known nil none is.
//
// The error is that of the first call that failed; the server skips those after
// it, COMMIT among them. An error that is not the server's may come after COMMIT.
func execute(ctx context.Context, c *pgconn.PgConn, known prepared, calls []call) error {
	p := c.StartPipeline(ctx)
	named := func(q call) bool { return known != nil && q.Name != "" }
	var unknown []*statement
	for _, q := range calls {
		if named(q) && !known[q.statement] {
			unknown = append(unknown, q.statement)
			p.SendPrepare(q.Name, q.SQL, q.ParamOIDs)
		}
	}
	if unknown != nil {
		p.SendPipelineSync() // what fails so far is apart from the transaction
	}
	for _, q := range calls {
		if named(q) {
			p.SendQueryStatement(&q.StatementDescription, q.args, binaryFormat, binaryFormat)
		} else {
			p.SendQueryParams(q.SQL, q.args, q.ParamOIDs, binaryFormat, binaryFormat)
		}
	}
	if err := p.Sync(); pgconn.SafeToRetry(err) {
		return &notSent{err}
	} else if err != nil {
		return err
	}
	notPrepared := prepareResults(p, known, unknown)
	err := results(p, calls)
	// What is left is for the calls that were skipped.
	if closed := p.Close(); err == nil {
		err = closed
	}
	_, certain := ended(err)
	if _, before := ended(notPrepared); notPrepared != nil && err != nil && (certain || !before) {
		return notPrepared // for which it failed
	}
	return err
}

// prepareResults notes which statements were prepared and returns the first error.
func prepareResults(p *pgconn.Pipeline, known prepared, unknown []*statement) (first error) {
	if unknown == nil {
		return nil
	}
	for i := 0; ; {
		switch r, err := p.GetResults(); {
		case err != nil:
			if first == nil {
				first = err
			}
			if _, ok := ended(err); !ok {
				return first
			}
		default:
			if _, ok := r.(*pgconn.StatementDescription); !ok {
				return first // the end of this part
			}
			known[unknown[i]] = true
			i++
		}
	}
}

// results reads the results of calls.
func results(p *pgconn.Pipeline, calls []call) error {
	for _, q := range calls {
		r, err := p.GetResults()
		if err != nil {
			return err
		}
		rows, ok := r.(*pgconn.ResultReader)
		if !ok {
			return fmt.Errorf("postgres: %T is no result", r)
		}
		for rows.NextRow() {
			if q.row != nil {
				q.row(rows.Values())
			}
		}
		tag, err := rows.Close()
		if err != nil {
			return err
		}
		if q.statement == commit && tag.String() != "COMMIT" {
			return fmt.Errorf("postgres: COMMIT ended as %q", tag)
		}
	}
	// An error of COMMIT may come even after its end.
	_, err := p.GetResults()
	return err
}
