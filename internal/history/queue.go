package history

import (
	"context"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone/head"
)

// A SealQueue seals sessions in the background, one at a time. Queues with the same channel take turns, for sealing
// needs memory; but a queue that waits for a second goes on, so that no store waits for the engine of another.
type SealQueue struct {
	ctx  context.Context
	turn chan struct{} // has a token while a session is sealed, by this queue or another
	done chan struct{}

	mu     sync.Mutex // guards queue and queued
	queue  []job
	queued map[head.Incarnation]bool
	wake   chan struct{} // has an element if there may be a job
}

// A job seals one session.
type job struct {
	inc  head.Incarnation
	seal func(context.Context)
}

// NewSealQueue returns a queue that works until ctx ends. turn is a channel with room for one element.
func NewSealQueue(ctx context.Context, turn chan struct{}) *SealQueue {
	q := &SealQueue{ctx: ctx, turn: turn, done: make(chan struct{}), queued: map[head.Incarnation]bool{}, wake: make(chan struct{}, 1)}
	go q.work()
	return q
}

// Wait waits until the last job has ended. The context must have ended before.
func (q *SealQueue) Wait() { <-q.done }

// Add queues a call of seal for a session, unless one is queued already. While the session is being sealed, Add queues
// another call: the one that runs may have read the session before the commit that made it due again.
func (q *SealQueue) Add(inc head.Incarnation, seal func(context.Context)) {
	q.mu.Lock()
	if !q.queued[inc] {
		q.queued[inc] = true
		q.queue = append(q.queue, job{inc, seal})
	}
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// work does the jobs until the context ends.
func (q *SealQueue) work() {
	defer close(q.done)
	for {
		select {
		case <-q.ctx.Done():
			return
		case <-q.wake:
		}
		for next := q.next(); next.seal != nil; next = q.next() {
			q.inTurn(next.seal)
		}
	}
}

// inTurn calls seal when it is the queue's turn, or after a second.
func (q *SealQueue) inTurn(seal func(context.Context)) {
	select {
	case q.turn <- struct{}{}:
		defer func() { <-q.turn }()
	case <-time.After(time.Second):
	case <-q.ctx.Done():
	}
	seal(q.ctx)
}

// next takes the oldest job off the queue. It returns the zero job if there is none, or
// if the context has ended.
func (q *SealQueue) next() (j job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) > 0 && q.ctx.Err() == nil {
		j, q.queue = q.queue[0], q.queue[1:]
		delete(q.queued, j.inc)
	}
	return j
}
