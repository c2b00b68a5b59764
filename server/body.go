package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"

	"github.com/turnstonedb/turnstone/internal/cache"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// bodies are those of writes, by the ids that callers gave these. Those of later requests may be differences from them.
type bodies = cache.Cache[writeID, []byte]

// A body is that of a request.
type body struct {
	content []byte
	sum     uint64   // hash of what has come, by which this process knows it again
	held    []func() // give back what it takes of Options.MaxBodyBytes
}

func (b *body) release() {
	for _, f := range b.held {
		f()
	}
}

// read reads the body of a request.
func (s *Server) read(r *request) (*body, error) {
	size := r.ContentLength
	if size < 0 {
		size = s.o.MaxRequestBytes
	}
	if size > s.o.MaxRequestBytes {
		return nil, fmt.Errorf("%w: its body has %d bytes, at most %d are read", wire.ErrTooLarge, size, s.o.MaxRequestBytes)
	}
	release, err := s.acquire(r.Context(), s.limits.bytes, size, "bytes of requests", s.o.MaxBodyBytes)
	if err != nil {
		return nil, err
	}
	var content bytes.Buffer
	content.Grow(int(min(size, readAhead)) + bytes.MinRead)
	if _, err := content.ReadFrom(limited(s.body(r), s.o.MaxRequestBytes)); err != nil {
		release()
		if !errors.Is(err, wire.ErrTooLarge) {
			err = fmt.Errorf("%w: its body: %w", wire.ErrRequest, err)
		}
		return nil, err
	}
	var sum maphash.Hash
	sum.SetSeed(s.seed)
	for _, text := range []string{r.URL.Path, "\x00", r.Header.Get(wire.HeaderBase), "\x00"} {
		_, _ = sum.WriteString(text)
	}
	_, _ = sum.Write(content.Bytes())
	return &body{content.Bytes(), sum.Sum64(), []func(){release}}, nil
}

// readAhead is how much memory a body gets before any byte of it has come.
const readAhead = 1 << 20

// whole makes b the whole body of a write, if it is the difference from another one, and remembers it, if the write
// asks for that.
func (s *Server) whole(ctx context.Context, r *request, b *body) error {
	base := r.Header.Get(wire.HeaderBase)
	if base == "" {
		return nil
	}
	if r.write == nil || r.write.id.id == "" {
		return fmt.Errorf("%w: the header %s, and no write with the header %s", wire.ErrRequest, wire.HeaderBase, wire.HeaderRequest)
	}
	if base != wire.WholeBody {
		id := writeID{r.space.name, base}
		from, ok := s.bodies.Get(id)
		if !ok {
			return fmt.Errorf("%w: the body of the request that the header %s names", wire.ErrBase, wire.HeaderBase)
		}
		var d wire.Difference
		if err := decode(b.content, &d); err != nil {
			return err
		}
		size, err := d.Size(from, s.o.MaxRequestBytes)
		if err != nil {
			return err
		}
		release, err := s.acquire(ctx, s.limits.bytes, size, "bytes of requests", s.o.MaxBodyBytes)
		if err != nil {
			return err
		}
		b.held = append(b.held, release)
		b.content = d.Body(from, size)
		s.bodies.Drop(id) // The next one is a difference from this one.
	}
	s.bodies.Put(r.write.id, b.content, cap(b.content))
	return nil
}

// decode reads a document into a message. Nothing asks for the default.
func decode(content []byte, message any) error {
	err := wire.Decode(content, message)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: its body: %w", wire.ErrRequest, err)
	}
	return err
}
