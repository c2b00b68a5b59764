package server

import (
	"context"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/turnstonedb/turnstone/internal/wire"
)

// limits bound what the server does at once.
type limits struct {
	requests *semaphore.Weighted // requests
	bytes    *semaphore.Weighted // bytes of their bodies
	watches  *semaphore.Weighted // watches
}

func newLimits(o *Options) limits {
	return limits{semaphore.NewWeighted(o.MaxRequests), semaphore.NewWeighted(o.MaxBodyBytes), semaphore.NewWeighted(o.MaxWatches)}
}

// enter waits until the server may work on a request to a route. The caller calls leave afterwards.
func (s *Server) enter(ctx context.Context, route string) (leave func(), err error) {
	if s.stopped() {
		return nil, errStops
	}
	if route == "watch" || route == "changes" {
		if !s.limits.watches.TryAcquire(1) {
			return nil, fmt.Errorf("%w: %d watches at once", wire.ErrBusy, s.o.MaxWatches)
		}
		return func() { s.limits.watches.Release(1) }, nil
	}
	return s.acquire(ctx, s.limits.requests, 1, "requests", s.o.MaxRequests)
}

// acquire waits until there is room for n.
func (s *Server) acquire(ctx context.Context, limit *semaphore.Weighted, n int64, what string, most int64) (release func(), err error) {
	limited, cancel := context.WithTimeout(ctx, s.o.Patience)
	defer cancel()
	if limit.Acquire(limited, n) != nil {
		return nil, busy(ctx, what, most, s.o.Patience)
	}
	return func() { limit.Release(n) }, nil
}

func busy(ctx context.Context, what string, limit int64, waited time.Duration) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: %d %s at once, for %v", wire.ErrBusy, limit, what, waited)
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
