package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/turnstonedb/turnstone/engine"
)

// connect makes the pool. A pooler in front of the server refuses settings at
// start as a violation of the protocol: then they go into every transaction.
func (e *Engine) connect(ctx context.Context, config *pgxpool.Config) error {
	e.configure(config)
	for {
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err == nil {
			hosts := time.Duration(1 + len(config.ConnConfig.Fallbacks))
			limited, cancel := context.WithTimeout(ctx, 2*e.timeout+hosts*config.ConnConfig.ConnectTimeout)
			err = pool.Ping(limited)
			cancel()
			if err == nil {
				e.pool = pool
				config = config.Copy()
				config.MinConns, config.MinIdleConns, config.MaxConns = 0, 0, slowConns
				config.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool { return p.IdleDuration > slowPingAfter }
				if e.slow, err = pgxpool.NewWithConfig(ctx, config); err == nil {
					return nil
				}
			}
			pool.Close()
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var pe *pgconn.PgError
		switch refuses := errors.As(err, &pe); {
		case !refuses:
			return unavailable(err)
		case pe.Code == protocolViolation && !e.pooled.Load():
		case pe.Code != protocolViolation && unable(pe):
			return unavailable(err)
		default:
			return fmt.Errorf("postgres: %w", err)
		}
		e.pooled.Store(true)
		config = config.Copy()
		maps.DeleteFunc(config.ConnConfig.RuntimeParams, func(name, _ string) bool { return !slices.Contains(poolerKeeps, name) })
	}
}

// poolerKeeps are the settings at start that PgBouncer does not refuse (its
// manual, ignore_startup_parameters).
var poolerKeeps = []string{"application_name", "client_encoding", "datestyle", "standard_conforming_strings", "timezone"}

// pingAfter is how long a connection must be idle to be asked, in a round trip of
// its own, whether it is still there. One that is not makes an Apply ErrUnknown.
const pingAfter = 30 * time.Second

// slowPingAfter is the same for maintenance, whose connections are used now and then: those of a server that was
// killed meanwhile are not noticed otherwise.
const slowPingAfter = 100 * time.Millisecond

// configure adds the driver's settings to those of the URL. A server setting in the URL wins.
func (e *Engine) configure(config *pgxpool.Config) {
	given := config.ConnConfig.RuntimeParams
	params := map[string]string{
		"application_name": "turnstone",
		// One plan for each statement, for whatever arguments and size of the table,
		// that reads by the index, in its order.
		"plan_cache_mode":   "force_generic_plan",
		"enable_seqscan":    "off",
		"enable_bitmapscan": "off",
		// enable_seqscan makes the statement that reads the version of the schema look so
		// expensive that the server would compile it, which takes far longer than to run it,
		// and at every Open.
		"jit":          "off",
		"lock_timeout": strconv.FormatInt(max(e.timeout.Milliseconds(), 1), 10),
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		params[strings.ToLower(name)] = given[name]
	}
	config.ConnConfig.RuntimeParams = params
	var names []string
	for _, name := range slices.Sorted(maps.Keys(params)) {
		if !slices.Contains(poolerKeeps, name) {
			names = append(names, name)
		}
	}
	e.settings = call{statement: setConfig, args: [][]byte{
		array(pgtype.TextOID, len(names), func(i int) []byte { return []byte(names[i]) }),
		array(pgtype.TextOID, len(names), func(i int) []byte { return []byte(params[names[i]]) }),
	}}
	// For VACUUM, which no transaction can hold, and ROLLBACK.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		neverCancel(&c.Config)
		return nil
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = e.timeout
	}
	if config.PingTimeout == 0 {
		config.PingTimeout = e.timeout
	}
	config.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool { return p.IdleDuration > e.pingAfter }
}

// neverCancel makes pgx close a connection that is given up without sending a CancelRequest.
// After such a request the server stops waiting for a synchronous standby and makes the commit
// visible; a caller that tries again would take it for replicated.
func neverCancel(c *pgconn.Config) {
	var connected atomic.Bool
	dial, after := c.DialFunc, c.AfterConnect
	c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if connected.Load() {
			return nil, errors.New("postgres: nothing is cancelled")
		}
		return dial(ctx, network, addr)
	}
	c.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		connected.Store(true)
		if after != nil {
			return after(ctx, conn)
		}
		return nil
	}
}

// unavailable returns an engine.ErrUnavailable that wraps the reason why the database can't be reached. It does
// not wrap the error of a context: that is from a time-out of the driver, and callers would take it for their
// own.
func unavailable(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("%w: %v", engine.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
}
