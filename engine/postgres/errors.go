package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/turnstonedb/turnstone/engine"
)

// SQLSTATEs (PostgreSQL manual, appendix A).
const (
	divisionByZero       = "22012" // what the statement for guards fails with
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	diskFull             = "53100"
	undefinedTable       = "42P01"
	undefinedSchema      = "3F000"
	uniqueViolation      = "23505"
	duplicateObject      = "42710"
	duplicateSchema      = "42P06"
	duplicateTable       = "42P07"
	protocolViolation    = "08P01" // by PgBouncer, for settings at start
)

// errGuard: a guard did not hold.
var errGuard = errors.New("postgres: guard failed")

// A notSent error happened before anything was sent.
type notSent struct{ error }

func (e *notSent) Unwrap() error { return e.error }

// unsent reports whether err happened before anything was sent.
func unsent(err error) bool {
	var before *notSent
	return errors.As(err, &before) || pgconn.SafeToRetry(err)
}

// ended reports whether err is an ERROR of the server, which rolls the transaction
// back and leaves the connection as it is.
func ended(err error) (*pgconn.PgError, bool) {
	var pe *pgconn.PgError
	ok := errors.As(err, &pe) && pe.SeverityUnlocalized == "ERROR"
	return pe, ok
}

// outcome says what the error of a transaction that writes means for it.
func outcome(ctx context.Context, err error) error {
	if err == nil || unsent(err) {
		return lost(ctx, err)
	}
	switch pe, ok := ended(err); {
	case !ok: // the connection is gone, or the server ends it: COMMIT may have been executed
		return fmt.Errorf("%w: %w", engine.ErrUnknown, err)
	case pe.Code == divisionByZero, pe.Code == uniqueViolation:
		return errGuard
	case pe.Code == diskFull:
		return fmt.Errorf("%w: %w", engine.ErrNoSpace, err)
	}
	return err
}

// lost says what the error of a transaction that changed nothing means. What is
// not the caller's ctx is a time-out of the driver or the connection: that its
// error is a context's is nobody's business.
func lost(ctx context.Context, err error) error {
	if _, ok := ended(err); err == nil || ok {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: %v", engine.ErrUnavailable, err)
}

const (
	maxAttempts = 100
	firstWait   = 500 * time.Microsecond
	longestWait = 100 * time.Millisecond
)

// retry runs f until it fails with something else than a serialization failure
// or a deadlock, after which PostgreSQL asks to run the transaction again.
func (e *Engine) retry(ctx context.Context, f func() error) error {
	wait := firstWait
	for attempt := 1; ; attempt++ {
		err := f()
		var pe *pgconn.PgError
		if !errors.As(err, &pe) || errors.Is(err, engine.ErrUnknown) || pe.Code != serializationFailure && pe.Code != deadlockDetected {
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
