package postgres

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/turnstonedb/turnstone/engine"
)

func server(severity, code string) error {
	return &pgconn.PgError{SeverityUnlocalized: severity, Severity: "übersetzt", Code: code}
}

// What an error means for a batch: only what surely had no effect is not unknown.
func TestOutcomes(t *testing.T) {
	bg := context.Background()
	over, cancel := context.WithCancel(bg)
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		want error
	}{
		"success":                         {bg, nil, nil},
		"a guard":                         {bg, server("ERROR", divisionByZero), errGuard},
		"a guard of absence":              {bg, server("ERROR", uniqueViolation), errGuard},
		"a damaged page":                  {bg, server("ERROR", "XX001"), engine.ErrCorrupt},
		"a damaged index":                 {bg, server("ERROR", "XX002"), engine.ErrCorrupt},
		"a server without field V":        {bg, &pgconn.PgError{Severity: "ERROR", Code: divisionByZero}, errGuard},
		"a full disk":                     {bg, server("ERROR", diskFull), engine.ErrNoSpace},
		"the server ends the connection":  {bg, server("FATAL", "57P01"), engine.ErrUnknown},
		"the server crashes":              {bg, server("PANIC", "XX000"), engine.ErrUnknown},
		"the connection is cut":           {bg, io.ErrUnexpectedEOF, engine.ErrUnknown},
		"the connection is cut, and over": {over, io.ErrUnexpectedEOF, engine.ErrUnknown},
		"it takes too long":               {bg, context.DeadlineExceeded, engine.ErrUnknown},
		"the database does not know":      {bg, server("ERROR", "40003"), engine.ErrUnknown},
		"a connection behind its own":     {bg, server("ERROR", "08006"), engine.ErrUnknown},
		"no connection":                   {bg, &notSent{io.EOF}, engine.ErrUnavailable},
		"no connection in time":           {bg, &notSent{context.DeadlineExceeded}, engine.ErrUnavailable},
		"the caller gave up before":       {over, &notSent{context.Canceled}, context.Canceled},
		"statement_timeout":               {bg, server("ERROR", "57014"), engine.ErrUnavailable},
		"lock_timeout":                    {bg, server("ERROR", "55P03"), engine.ErrUnavailable},
		"a standby":                       {bg, server("ERROR", "25006"), engine.ErrUnavailable},
		"out of memory":                   {bg, server("ERROR", "53200"), engine.ErrUnavailable},
	} {
		if got := outcome(c.ctx, c.err); !errors.Is(got, c.want) || c.want == nil && got != nil {
			t.Errorf("%s is %v, not %v", name, got, c.want)
		}
		if got := outcome(c.ctx, c.err); errors.Is(got, engine.ErrUnknown) && errors.Is(got, context.DeadlineExceeded) {
			t.Errorf("%s is unknown, and looks as if it had no effect: %v", name, got)
		}
	}
	if err := outcome(bg, server("ERROR", "42501")); errors.Is(err, engine.ErrUnknown) || errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("a right that is missing: %v", err)
	}
	if err := outcome(bg, &notSent{context.DeadlineExceeded}); errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a time-out of the driver's looks like the caller's: %v", err)
	}
}

func TestRetriesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, code := range []string{serializationFailure, deadlockDetected} {
			var e Engine
			n := 0
			err := e.retry(t.Context(), func() error { n++; return server("ERROR", code) })
			if !errors.Is(err, engine.ErrUnavailable) || n != maxAttempts || e.Retries() != maxAttempts-1 {
				t.Errorf("%d attempts, %d retries: %v", n, e.Retries(), err)
			}
		}
		var e Engine
		n := 0
		if err := e.retry(t.Context(), func() error { n++; return io.EOF }); err != io.EOF || n != 1 {
			t.Errorf("%d attempts: %v", n, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := e.retry(ctx, func() error { return server("ERROR", serializationFailure) }); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
