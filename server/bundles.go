package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// bundle sends a bundle. To a caller who was cut off it sends the rest: it makes the same bundle again, and leaves out what
// the caller has.
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
	o := turnstone.UnbundleOptions{As: r.URL.Query().Get("as"), Branch: r.URL.Query().Get("branch")}
	return s.put(r, func(context.Context) (func(io.Reader, *wire.Progress) error, error) {
		return func(in io.Reader, p *wire.Progress) error {
			release, err := s.limits.unbundles.acquire(context.Background(), r.party, 1, s.o.Patience)
			if err != nil {
				return err
			}
			defer release()
			p.Bundle, err = r.space.store.Unbundle(context.Background(), in, o)
			return err
		}, nil
	})
}
