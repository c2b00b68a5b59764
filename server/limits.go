package server

import (
	"context"
	"fmt"
	"io"

	"golang.org/x/sync/semaphore"

	"github.com/turnstonedb/turnstone/internal/wire"
)

// limits bound what the server does at once.
type limits struct {
	requests, watches *semaphore.Weighted
	bytes             *semaphore.Weighted // of the bodies of requests
}

func newLimits(o *Options) limits {
	return limits{semaphore.NewWeighted(o.MaxRequests), semaphore.NewWeighted(o.MaxWatches), semaphore.NewWeighted(o.MaxBodyBytes)}
}

// An admission waits until the server may work on a request. The caller calls leave afterwards.
type admission func(context.Context) (leave func(), err error)

// enter is the admission of requests that end by themselves.
func (s *Server) enter(ctx context.Context) (leave func(), err error) {
	if s.stopped() {
		return nil, errStops
	}
	return s.acquire(ctx, s.limits.requests, 1, "requests", s.o.MaxRequests)
}

// enterWatch is that of watches. It does not wait: watches seldom end.
func (s *Server) enterWatch(context.Context) (leave func(), err error) {
	switch {
	case s.stopped():
		return nil, errStops
	case !s.limits.watches.TryAcquire(1):
		return nil, fmt.Errorf("%w: %d watches at once", wire.ErrBusy, s.o.MaxWatches)
	}
	return func() { s.limits.watches.Release(1) }, nil
}

// acquire waits until there is room for n.
func (s *Server) acquire(ctx context.Context, limit *semaphore.Weighted, n int64, what string, most int64) (release func(), err error) {
	limited, cancel := context.WithTimeout(ctx, s.o.Patience)
	defer cancel()
	switch {
	case limit.Acquire(limited, n) == nil:
		return func() { limit.Release(n) }, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, fmt.Errorf("%w: %d %s at once, for %v", wire.ErrBusy, most, what, s.o.Patience)
}

// limited reads up to n bytes, and fails with wire.ErrTooLarge beyond that.
func limited(r io.Reader, n int64) io.Reader {
	left := n
	return readerFunc(func(b []byte) (int, error) {
		if left <= 0 {
			var one [1]byte
			if k, err := r.Read(one[:]); k == 0 {
				return 0, err
			}
			return 0, fmt.Errorf("%w: its body has more than %d bytes", wire.ErrTooLarge, n)
		}
		k, err := r.Read(b[:min(int64(len(b)), left)])
		left -= int64(k)
		return k, err
	})
}
