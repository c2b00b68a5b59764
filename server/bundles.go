package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// bundle sends a bundle. To a caller who was cut off it sends the rest: it makes the same bundle again, and leaves out
// what the caller has.
func (s *Server) bundle(r *request) error {
	c, release, err := asked[wire.Bundle](s, r)
	if err != nil {
		return err
	}
	defer release()
	if c.in.Offset < 0 {
		return fmt.Errorf("%w: offset is %d", wire.ErrRequest, c.in.Offset)
	}
	leave, err := s.limits.bundles.acquire(r.Context(), r.party, 1, s.o.Patience)
	if err != nil {
		return err
	}
	defer leave()
	r.w.Header().Set("Content-Type", "application/octet-stream")
	out := &rest{w: r.w, skip: c.in.Offset, sum: sha256.New(), before: c.in.Before}
	_, err = c.store.Bundle(r.Context(), out, c.in.Sessions...)
	if err == nil && out.skip > 0 {
		err = errChanged
	}
	if err != nil && r.w.status == 0 {
		r.w.Header().Del("Content-Type")
	}
	return err // If a part was sent, the answer is cut off.
}

// errChanged means that a bundle is not the one that the caller has a part of.
var errChanged = fmt.Errorf("%w: a session was changed since the first part of the bundle was sent", turnstone.ErrConflict)

// A rest writes what comes behind the first bytes, if those have the hash that the caller says.
type rest struct {
	w      io.Writer
	skip   int64 // of the first bytes, those that have not come yet
	sum    hash.Hash
	before string
}

func (r *rest) Write(b []byte) (int, error) {
	n := int(min(r.skip, int64(len(b))))
	if n > 0 {
		r.sum.Write(b[:n])
		if r.skip -= int64(n); r.skip == 0 && hex.EncodeToString(r.sum.Sum(nil)) != r.before {
			return 0, errChanged
		}
	}
	if n == len(b) {
		return n, nil
	}
	m, err := r.w.Write(b[n:])
	return n + m, err
}

// putBundle takes bytes of a bundle.
func (s *Server) putBundle(r *request) error {
	q := r.URL.Query()
	o := turnstone.UnbundleOptions{As: q.Get("as"), Branch: q.Get("branch")}
	return s.put(r, func(ctx context.Context) (*sink, error) {
		free, err := s.placeForBundle(ctx, r)
		if err != nil {
			return nil, err
		}
		return &sink{func(in io.Reader, p *wire.Progress) (err error) {
			p.Bundle, err = r.space.store.Unbundle(context.Background(), in, o)
			return err
		}, free, min(s.o.UploadTimeout, 4*s.o.Patience)}, nil
	})
}

// placeForBundle waits until one more bundle may come. Meanwhile it gives up bundles of the same token of which nothing
// has come for a while: their sender was killed, as a rule, and begins again.
func (s *Server) placeForBundle(ctx context.Context, r *request) (free func(), err error) {
	for begun := time.Now(); ; {
		free, ok := s.limits.unbundles.try(r.party, 1)
		switch {
		case ok:
			return free, nil
		case time.Since(begun) > s.o.Patience:
			return nil, s.limits.unbundles.busy(s.o.Patience)
		}
		s.uploads.endSilent(r.party.token, r.URL.Path, s.o.Patience/3)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(min(s.o.Patience/30, 100*time.Millisecond)):
		}
	}
}
