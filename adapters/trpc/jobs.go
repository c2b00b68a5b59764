package trpc

import (
	"context"
	"sync"
	"time"

	"trpc.group/trpc-go/trpc-agent-go/agent"
	"trpc.group/trpc-go/trpc-agent-go/log"
	"trpc.group/trpc-go/trpc-agent-go/session"
)

const (
	workers      = 3
	waiting      = 100              // jobs that wait for a worker
	storeTimeout = 30 * time.Second // of reading and storing what a job is about
)

// jobs runs jobs in a few goroutines. The jobs of one session that wait for a goroutine run one after the other. The zero
// value starts the goroutines with its first job.
type jobs struct {
	mu      sync.Mutex // guards the fields below; it is held while a job is added
	queues  []chan func()
	closed  bool
	running sync.WaitGroup
}

// later does a job of a session after the request that asks for the job, and logs its error with the log of
// trpc-agent-go. If too many jobs wait, it does the job at once and returns its error.
func (j *jobs) later(request context.Context, of *session.Session, what string, job func(context.Context) error) error {
	ctx := context.WithoutCancel(agent.CloneContext(request)) // The request may be over before the job is.
	added, done := j.add(workerOf(of), func() {
		defer func() {
			if r := recover(); r != nil {
				log.ErrorfContext(ctx, "turnstone: the %s of session %q: panic: %v", what, of.ID, r)
			}
		}()
		if err := job(ctx); err != nil {
			log.WarnfContext(ctx, "turnstone: the %s of session %q: %v", what, of.ID, err)
		}
	})
	if added {
		return nil
	}
	defer done()
	return job(request)
}

// workerOf returns which goroutine does the jobs of a session.
func workerOf(of *session.Session) int { return int(uint(of.Hash) % workers) }

// add queues a job. If too many wait, or after close, it does not: then the caller does the job itself, and calls done after it.
// A close that comes meanwhile waits for that call.
func (j *jobs) add(worker int, job func()) (added bool, done func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.queues == nil && !j.closed {
		for range workers {
			queue := make(chan func(), waiting)
			j.queues = append(j.queues, queue)
			j.running.Go(func() {
				for job := range queue {
					job()
				}
			})
		}
	}
	if j.closed {
		return false, func() {}
	}
	select {
	case j.queues[worker] <- job:
		return true, nil
	default:
		j.running.Add(1)
		return false, j.running.Done
	}
}

// close waits until all jobs are done that have begun or wait.
func (j *jobs) close() {
	j.mu.Lock()
	if !j.closed {
		j.closed = true
		for _, queue := range j.queues {
			close(queue)
		}
	}
	j.mu.Unlock()
	j.running.Wait()
}
