package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// A call is a statement with its arguments, as they are encoded.
type call struct {
	*statement
	args [][]byte
	// row gets each row of the result, or nobody wants it. values are the
	// connection's: they are overwritten by the next one.
	row func(values [][]byte)
}

// prepared are the statements that a connection knows by name.
type prepared map[*statement]bool

// transact executes calls between begin and COMMIT, all sent together. ctx is for
// the wait for a connection; during is for the rest.
func (e *Engine) transact(ctx, during context.Context, begin *statement, calls ...call) error {
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return &notSent{err}
	}
	defer conn.Release()
	limited, cancel := context.WithTimeout(during, 2*e.timeout)
	defer cancel()
	all := append(make([]call, 0, len(calls)+3), call{statement: begin})
	pooled := e.pooled.Load()
	if pooled {
		all = append(all, e.settings)
	}
	all = append(append(all, calls...), call{statement: commit})
	c := conn.Conn().PgConn()
	if pooled {
		err = execute(limited, c, nil, all)
	} else {
		known, _ := c.CustomData()[preparedKey].(prepared)
		if known == nil {
			known = prepared{}
			c.CustomData()[preparedKey] = known
		}
		err = execute(limited, c, known, all)
	}
	if err != nil && !c.IsClosed() && c.TxStatus() != 'I' {
		// If this fails, the pool drops the connection.
		_, _ = c.Exec(limited, "ROLLBACK").ReadAll()
	}
	return err
}

const preparedKey = "turnstone"

// execute sends calls in one piece and reads what comes back: in one round trip,
// also when statements are to be prepared first. With known nil they have no names.
//
// The error is that of the first call that failed; the server skips those after
// it, COMMIT among them. An error that is not the server's may come after COMMIT.
func execute(ctx context.Context, c *pgconn.PgConn, known prepared, calls []call) error {
	p := c.StartPipeline(ctx)
	var unknown []*statement
	for _, call := range calls {
		if known != nil && !known[call.statement] {
			unknown = append(unknown, call.statement)
			p.SendPrepare(call.desc.Name, call.sql, call.params)
		}
	}
	if unknown != nil {
		p.SendPipelineSync() // what fails so far is apart from the transaction
	}
	for _, call := range calls {
		if known != nil {
			p.SendQueryStatement(&call.desc, call.args, binaryFormat, binaryFormat)
		} else {
			p.SendQueryParams(call.sql, call.args, call.params, binaryFormat, binaryFormat)
		}
	}
	if err := p.Sync(); pgconn.SafeToRetry(err) {
		return &notSent{err}
	} else if err != nil {
		return err
	}
	notPrepared := prepareResults(p, known, unknown)
	if _, ok := ended(notPrepared); notPrepared != nil && !ok {
		return errors.Join(notPrepared, p.Close())
	}
	err := results(p, calls)
	// What is left is for the calls that were skipped.
	if closed := p.Close(); err == nil {
		err = closed
	}
	if _, ok := ended(err); ok && notPrepared != nil {
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

// results reads those of calls.
func results(p *pgconn.Pipeline, calls []call) error {
	for _, call := range calls {
		r, err := p.GetResults()
		if err != nil {
			return err
		}
		rows, ok := r.(*pgconn.ResultReader)
		if !ok {
			return fmt.Errorf("postgres: %T is no result", r)
		}
		for rows.NextRow() {
			if call.row != nil {
				call.row(rows.Values())
			}
		}
		tag, err := rows.Close()
		if err != nil {
			return err
		}
		if call.statement == commit && tag.String() != "COMMIT" {
			return fmt.Errorf("postgres: COMMIT ended as %q", tag)
		}
	}
	// An error of COMMIT may come even after its end.
	_, err := p.GetResults()
	return err
}
