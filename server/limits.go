package server

import (
	"context"
	"fmt"
	"io"
	"runtime"

	"github.com/turnstonedb/turnstone/internal/wire"
)

// limits bound what the server does at once, in all and for each token and namespace.
type limits struct {
	requests, watches, uploads *pool
	// bundles that are sent, and those that come. Each takes memory for its compression. Who pushes from one namespace to
	// another has one of both at once.
	bundles, unbundles *pool
	bytes              *pool // what the bodies of requests take, as they came and decoded
	decoding           *pool // large bodies that are decoded, each of which takes a processor for a while
}

func newLimits(o *Options) limits {
	share := o.Share
	requests := newPool("requests", o.MaxRequests, share)
	requests.queue = requests.share // They hold connections.
	return limits{
		requests: requests, watches: newPool("watches", o.MaxWatches, share),
		uploads: newPool("uploads", int64(o.MaxUploads), share), bundles: newPool("bundles", o.MaxBundles, share), unbundles: newPool("bundles that come", o.MaxBundles, share), bytes: newPool("bytes of requests", o.MaxBodyBytes, share),
		decoding: newPool("large requests decoded", int64(max(1, runtime.GOMAXPROCS(0)/2)), share),
	}
}

// An admission waits until the server may work on a request of a party. The caller calls leave afterwards.
type admission func(context.Context, party) (leave func(), err error)

// enter is the admission of requests that end by themselves.
func (s *Server) enter(ctx context.Context, of party) (leave func(), err error) {
	if s.stopped() {
		return nil, errStops
	}
	return s.limits.requests.acquire(ctx, of, 1, s.o.Patience)
}

// enterWatch is that of watches. It does not wait: watches seldom end.
func (s *Server) enterWatch(_ context.Context, of party) (leave func(), err error) {
	if s.stopped() {
		return nil, errStops
	}
	leave, ok := s.limits.watches.try(of, 1)
	if !ok {
		return nil, s.limits.watches.busy(0)
	}
	return leave, nil
}

// A charge is what one request has of the bytes of all.
type charge struct {
	s  *Server
	of party
	n  int64
}

// add takes n bytes more. A request that has none yet waits for them. One that has some does not: two of those would
// wait for each other. It is refused as busy, and its caller asks again.
func (c *charge) add(ctx context.Context, n int64) error {
	if n <= 0 {
		return nil
	}
	if most := c.s.limits.bytes.share; c.n+n > most {
		return fmt.Errorf("%w: what it says would take more than %d bytes of memory", wire.ErrTooLarge, most)
	}
	pool := c.s.limits.bytes
	if c.n == 0 {
		if _, err := pool.acquire(ctx, c.of, n, c.s.o.Patience); err != nil {
			return err
		}
	} else if _, ok := pool.try(c.of, n); !ok {
		return pool.busy(0)
	}
	c.n += n
	return nil
}

// keep gives back all but n bytes.
func (c *charge) keep(n int64) {
	if c.n > n {
		c.s.limits.bytes.release(c.of, c.n-n)
		c.n = n
	}
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
