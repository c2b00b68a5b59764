package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/turnstonedb/turnstone/engine"
)

// SQLSTATEs (PostgreSQL manual, appendix A).
const (
	divisionByZero       = "22012" // the statement for guards reports a false guard with this error
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	diskFull             = "53100"
	dataCorrupted        = "XX001"
	indexCorrupted       = "XX002"
	undefinedTable       = "42P01"
	undefinedSchema      = "3F000"
	uniqueViolation      = "23505"
	duplicateObject      = "42710"
	duplicateSchema      = "42P06"
	duplicateTable       = "42P07"
	syntaxError          = "42601"
	completionUnknown    = "40003" // CockroachDB: "result is ambiguous"
	connectionException  = "08"    // a class; some databases report it for a connection behind theirs
	protocolViolation    = "08P01" // by PgBouncer, for settings at start
	unknownStatement     = "26000" // behind a pooler: prepared on another connection of the server
	duplicateStatement   = "42P05" // behind a pooler: prepared there by somebody else
)

// outOfService are SQLSTATEs, or classes of them, of a server that can't do now what
// another one, or this one later, could.
var outOfService = []string{
	connectionException,
	"53",    // too few resources: memory, connections
	"55P03", // lock_timeout
	"57",    // operator intervention: statement_timeout, shutdown, start
	"25006", // read-only: a standby, or a primary that was demoted
	"0A000", // serializable transactions on a standby
}

func unable(pe *pgconn.PgError) bool {
	return slices.ContainsFunc(outOfService, func(code string) bool { return strings.HasPrefix(pe.Code, code) })
}

// errGuard: a guard did not hold.
var errGuard = errors.New("postgres: guard failed")

// A notSent error happened before anything was sent.
type notSent struct{ error }

func (e *notSent) Unwrap() error { return e.error }

// ended reports whether err is an ERROR of the server, which rolls the transaction
// back and leaves the connection as it is.
func ended(err error) (*pgconn.PgError, bool) {
	var pe *pgconn.PgError
	if !errors.As(err, &pe) {
		return nil, false
	}
	severity := pe.SeverityUnlocalized
	if severity == "" { // servers of other makes
		severity = pe.Severity
	}
	return pe, severity == "ERROR"
}

// outcome returns the engine's error for err, with which a transaction that writes ended.
func outcome(ctx context.Context, err error) error {
	var before *notSent
	if err == nil || errors.As(err, &before) {
		return lost(ctx, err)
	}
	switch pe, ok := ended(err); {
	case !ok, // the connection is gone, or the server ends it: COMMIT may have been executed
		pe.Code == completionUnknown, strings.HasPrefix(pe.Code, connectionException):
		return fmt.Errorf("%w: %v", engine.ErrUnknown, err) // a context's error would mean that it had no effect
	case pe.Code == divisionByZero, pe.Code == uniqueViolation:
		return errGuard
	}
	return lost(ctx, err)
}

// lost is outcome for a transaction that changed nothing.
func lost(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	pe, ok := ended(err)
	switch {
	case !ok && ctx.Err() != nil:
		return ctx.Err()
	case !ok:
		return unavailable(err)
	case pe.Code == diskFull:
		return fmt.Errorf("%w: %w", engine.ErrNoSpace, err)
	case pe.Code == dataCorrupted, pe.Code == indexCorrupted:
		return fmt.Errorf("%w: %w", engine.ErrCorrupt, err)
	case unable(pe):
		return unavailable(err)
	}
	return err
}

const (
	maxAttempts = 100
	firstWait   = 500 * time.Microsecond
	longestWait = 100 * time.Millisecond
)

// retry runs f, and runs it again after a serialization failure or a deadlock, as PostgreSQL
// asks, up to maxAttempts times; then the error matches engine.ErrUnavailable. If an error shows
// that a pooler is in front of the server (a prepared statement is unknown, or there twice),
// retry runs f again without prepared statements.
func (e *Engine) retry(ctx context.Context, f func() error) error {
	wait := firstWait
	for attempt := 1; ; attempt++ {
		err := f()
		var code string
		if pe, ok := ended(err); ok {
			code = pe.Code
		}
		switch code {
		case serializationFailure, deadlockDetected:
		case unknownStatement, duplicateStatement:
			e.pooled.Store(true)
		default:
			if err != nil && e.closed.Load() && !errors.Is(err, engine.ErrUnknown) {
				err = fmt.Errorf("%w: %w", engine.ErrClosed, err)
			}
			return err
		}
		if attempt == maxAttempts {
			return fmt.Errorf("%w: given up after %d attempts: %w", engine.ErrUnavailable, attempt, err)
		}
		e.retries.Add(1)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(rand.N(wait)):
		}
		wait = min(2*wait, longestWait)
	}
}
