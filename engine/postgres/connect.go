package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/turnstonedb/turnstone/engine"
)

// connect makes the pool. A pooler in front of the server refuses settings at
// start as a violation of the protocol: then they go into every transaction.
func (e *Engine) connect(ctx context.Context, config *pgxpool.Config) error {
	params := config.ConnConfig.RuntimeParams
	for name, value := range map[string]string{
		"application_name": "turnstone",
		// One plan for each statement, for whatever arguments and size of the table,
		// that reads by the index, in its order.
		"plan_cache_mode":   "force_generic_plan",
		"enable_seqscan":    "off",
		"enable_bitmapscan": "off",
		"lock_timeout":      strconv.FormatInt(max(e.timeout.Milliseconds(), 1), 10),
	} {
		if params[name] == "" {
			params[name] = value
		}
	}
	var refused []string // by a pooler
	for name := range params {
		if !slices.Contains(poolerKeeps, strings.ToLower(name)) {
			refused = append(refused, name)
		}
	}
	e.settings = call{statement: configure, args: [][]byte{
		array(pgtype.TextOID, len(refused), func(i int) []byte { return []byte(refused[i]) }),
		array(pgtype.TextOID, len(refused), func(i int) []byte { return []byte(params[refused[i]]) }),
	}}
	// For what is not sent by transact: seldom, and wanted to work through poolers.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	for {
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err == nil {
			if err = pool.Ping(ctx); err == nil {
				e.pool = pool
				return nil
			}
			pool.Close()
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var pe *pgconn.PgError
		if refuses := errors.As(err, &pe); !refuses || unable(pe) {
			return fmt.Errorf("%w: %v", engine.ErrUnavailable, err)
		} else if e.pooled.Load() || pe.Code != protocolViolation {
			return fmt.Errorf("postgres: %w", err)
		}
		e.pooled.Store(true)
		config = config.Copy()
		for _, name := range refused {
			delete(config.ConnConfig.RuntimeParams, name)
		}
	}
}

// poolerKeeps are the settings at start that PgBouncer does not refuse (its manual,
// ignore_startup_parameters).
var poolerKeeps = []string{"application_name", "client_encoding", "datestyle", "options", "standard_conforming_strings", "timezone"}
