package server

import (
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
	sum     uint64 // hash of what has come, by which this process knows it again
	charge  charge // what it takes of Options.MaxBodyBytes
}

func (b *body) release() { b.charge.keep(0) }

// read reads the body of a request. It is charged for what has come, and not for what was announced.
func (s *Server) read(r *request) (*body, error) {
	size := r.ContentLength
	if size < 0 {
		size = s.o.MaxRequestBytes
	}
	if size > s.o.MaxRequestBytes {
		return nil, fmt.Errorf("%w: its body has %d bytes, at most %d are read", wire.ErrTooLarge, size, s.o.MaxRequestBytes)
	}
	b := &body{charge: charge{s: s, of: r.party}}
	if err := b.fill(r.Context(), limited(s.body(r), s.o.MaxRequestBytes), size); err != nil {
		b.release()
		return nil, err
	}
	var sum maphash.Hash
	sum.SetSeed(s.seed)
	for _, text := range []string{r.URL.Path, "\x00", r.Header.Get(wire.HeaderBase), "\x00"} {
		_, _ = sum.WriteString(text)
	}
	_, _ = sum.Write(b.content)
	b.sum = sum.Sum64()
	return b, nil
}

// readAhead is how much memory a body gets before any byte of it has come.
const readAhead = 64 << 10

// fill reads a body that has size bytes, or fewer if their number was not announced.
func (b *body) fill(ctx context.Context, r io.Reader, size int64) error {
	for {
		if n := int64(cap(b.content)); int64(len(b.content)) == n {
			more := min(max(n, readAhead), size+1-n) // One more than there is finds the end.
			if err := b.charge.add(ctx, more); err != nil {
				return err
			}
			b.content = append(make([]byte, 0, n+more), b.content...)
		}
		k, err := r.Read(b.content[len(b.content):cap(b.content)])
		b.content = b.content[:len(b.content)+k]
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, wire.ErrTooLarge):
			return fmt.Errorf("%w: its body: %w", wire.ErrRequest, err)
		case err != nil:
			return err
		}
	}
}

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
		if err := decode(ctx, b, &d); err != nil {
			return err
		}
		size, err := d.Size(from, s.o.MaxRequestBytes)
		if err != nil {
			return err
		}
		if err := b.charge.add(ctx, size); err != nil {
			return err
		}
		b.content = d.Body(from, size)
		b.charge.keep(size)
		s.bodies.Drop(id) // The next one is a difference from this one.
	}
	s.bodies.Put(r.write.id, b.content, cap(b.content))
	return nil
}

// largeBody is how many bytes a body has that takes long to decode.
const largeBody = 256 << 10

// decode reads a document into a message, and charges for what the message takes. Nothing asks for the default.
func decode(ctx context.Context, b *body, message any) error {
	if len(b.content) > largeBody {
		release, err := b.charge.s.limits.decoding.acquire(ctx, b.charge.of, 1, b.charge.s.o.Patience)
		if err != nil {
			return err
		}
		defer release()
	}
	err := wire.Decode(b.content, message, func(n int64) error { return b.charge.add(ctx, n) })
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: its body: %w", wire.ErrRequest, err)
	}
	return err
}
