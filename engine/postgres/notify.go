package postgres

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/turnstonedb/turnstone/engine"
)

var _ engine.Notifier = (*Engine)(nil)

// A notifier sends notifications, apart from transactions: NOTIFY in a transaction takes a lock of the whole server
// when that commits, so commits would wait for each other. The first one is sent at once, and what comes while the
// server is busy with it, and in the notifyPause after it, goes with the next.
type notifier struct {
	mu     sync.Mutex
	topics map[string]bool // that are to be sent
	busy   bool            // a goroutine is sending
	ended  bool
	cancel context.CancelFunc // of what is being sent
	idle   sync.WaitGroup
}

// close ends what is being sent.
func (n *notifier) close() {
	n.mu.Lock()
	n.ended = true
	if n.cancel != nil {
		n.cancel()
	}
	n.mu.Unlock()
	n.idle.Wait()
}

const (
	notifyPause  = 10 * time.Millisecond
	notifyTopics = 100 // beyond so many at once, all are told
	relisten     = time.Second
)

// Notify implements engine.Notifier.
func (e *Engine) Notify(topic string) {
	n := &e.notifier
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended || e.pool == nil {
		return
	}
	if n.topics == nil {
		n.topics = map[string]bool{}
	}
	n.topics[topic] = true
	if !n.busy {
		n.busy = true
		n.idle.Go(e.sendNotifications)
	}
}

// sendNotifications sends until there is nothing to send. What can't be sent is lost: those who wait look by
// themselves.
func (e *Engine) sendNotifications() {
	n := &e.notifier
	for {
		n.mu.Lock()
		topics := make([]string, 0, len(n.topics))
		for t := range n.topics {
			topics = append(topics, t)
		}
		clear(n.topics)
		n.busy = len(topics) > 0 && !n.ended
		ctx, cancel := context.WithTimeout(context.Background(), 2*e.timeout)
		n.cancel = cancel
		busy := n.busy
		n.mu.Unlock()
		if !busy {
			cancel()
			return
		}
		if len(topics) > notifyTopics {
			topics = []string{""}
		}
		_, _ = e.pool.Exec(ctx, "SELECT pg_notify($1, topic) FROM unnest($2::text[]) AS t(topic)", pgx.QueryExecModeExec, e.schema, topics)
		select {
		case <-time.After(notifyPause):
		case <-ctx.Done():
		}
		cancel()
	}
}

// Listen implements engine.Notifier, with a connection of its own that listens to the channel that is called as the
// schema. Behind a pooler that gives connections to others between transactions nothing comes.
func (e *Engine) Listen(ctx context.Context, heard func(topic string)) error {
	if err := e.usable(ctx); err != nil {
		return err
	}
	for {
		err := e.listen(ctx, heard)
		var pe *pgconn.PgError
		if ctx.Err() != nil || e.closed.Load() || errors.As(err, &pe) && !unable(pe) { // It can't listen, whenever it is asked.
			return errors.Join(ctx.Err(), err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(relisten):
		}
	}
}

// listen is Listen until the connection is lost.
func (e *Engine) listen(ctx context.Context, heard func(topic string)) error {
	c, err := pgx.ConnectConfig(ctx, e.pool.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.Background()) }()
	if _, err := c.Exec(ctx, "LISTEN "+pgx.Identifier{e.schema}.Sanitize()); err != nil {
		return err
	}
	heard("") // Something may have happened before.
	for {
		n, err := c.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		heard(n.Payload)
	}
}
