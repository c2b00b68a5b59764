package seal

import (
	"context"
	"sync"

	"github.com/turnstonedb/turnstone/internal/heads"
)

// A Queue seals sessions in the background, one at a time of all queues that have one channel.
type Queue struct {
	ctx  context.Context
	one  chan struct{} // has a token while a session is sealed, by this queue or another
	done chan struct{}

	mu     sync.Mutex // guards queue and queued
	queue  []job
	queued map[heads.Incarnation]bool
	wake   chan struct{} // has an element if there may be a job
}

// A job seals one session.
type job struct {
	inc  heads.Incarnation
	seal func(context.Context)
}

// NewQueue returns a queue that works until ctx ends. one has room for one element.
func NewQueue(ctx context.Context, one chan struct{}) *Queue {
	q := &Queue{ctx: ctx, one: one, done: make(chan struct{}), queued: map[heads.Incarnation]bool{}, wake: make(chan struct{}, 1)}
	go q.work()
	return q
}

// Wait waits until the last job has ended. The context must have ended before.
func (q *Queue) Wait() { <-q.done }

// Add makes the queue call seal for a session, unless the session is in the queue already or
// is being sealed.
func (q *Queue) Add(inc heads.Incarnation, seal func(context.Context)) {
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
func (q *Queue) work() {
	defer close(q.done)
	for {
		select {
		case <-q.ctx.Done():
			return
		case <-q.wake:
		}
		for next := q.next(); next.seal != nil; next = q.next() {
			select {
			case <-q.ctx.Done():
				return
			case q.one <- struct{}{}:
			}
			next.seal(q.ctx)
			<-q.one
			q.mu.Lock()
			delete(q.queued, next.inc)
			q.mu.Unlock()
		}
	}
}

// next takes the oldest job off the queue. It returns the zero job if there is none, or
// if the context has ended.
func (q *Queue) next() (j job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) > 0 && q.ctx.Err() == nil {
		j, q.queue = q.queue[0], q.queue[1:]
	}
	return j
}
