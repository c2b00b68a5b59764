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

// enter waits until the server may work on a request whose body has so many bytes. The caller calls leave afterwards.
func (s *Server) enter(ctx context.Context, size int64) (leave func(), err error) {
	if s.stopped() {
		return nil, errStops
	}
	limited, cancel := context.WithTimeout(ctx, s.o.Patience)
	defer cancel()
	if s.limits.requests.Acquire(limited, 1) != nil {
		return nil, busy(ctx, "requests", s.o.MaxRequests, s.o.Patience)
	}
	if s.limits.bytes.Acquire(limited, size) != nil {
		s.limits.requests.Release(1)
		return nil, busy(ctx, "bytes of requests", s.o.MaxBodyBytes, s.o.Patience)
	}
	return func() {
		s.limits.bytes.Release(size)
		s.limits.requests.Release(1)
	}, nil
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
