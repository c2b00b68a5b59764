package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net/http"
	"reflect"
	"strconv"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// An operation is a call that is made with POST /v1/ and its name. A document asks, and another one answers, or several wire.Items.
type operation struct {
	name    string
	summary string
	scope   Scope        // one of scope Read changes nothing
	in, out reflect.Type // messages
	handle  func(*Server, *request) error
}

// A call is what a request asks of a namespace.
type call[In any] struct {
	*space
	in      *In
	session *turnstone.Session // the one that in names, or nil if it names none
}

// called returns the call that a message asks for.
func called[In any](ctx context.Context, sp *space, in *In) (call[In], error) {
	c := call[In]{space: sp, in: in}
	if m, ok := any(in).(interface{ Named() (wire.Target, bool) }); ok {
		if t, named := m.Named(); named {
			var err error
			if c.session, err = sp.find(ctx, t); err != nil {
				return c, err
			}
		}
	}
	return c, nil
}

// read is an operation that changes nothing.
func read[In, Out any](name, summary string, f func(context.Context, call[In]) (*Out, error)) operation {
	return operation{
		name: name, summary: summary, scope: Read, in: reflect.TypeFor[In](), out: reflect.TypeFor[Out](),
		handle: func(s *Server, r *request) error {
			return asked(s, r, func(in *In, _ uint64) error {
				c, err := called(r.Context(), r.space, in)
				if err != nil {
					return err
				}
				out, err := f(r.Context(), c)
				if err != nil {
					return err
				}
				send(r.w, http.StatusOK, wire.ContentType, out)
				return nil
			})
		},
	}
}

// A sender sends an item of an answer.
type sender func(*wire.Item) error

// several is an operation that changes nothing and answers with several items.
func several[In any](name, summary string, f func(context.Context, call[In], sender) error) operation {
	return operation{
		name: name, summary: summary, scope: Read, in: reflect.TypeFor[In](), out: reflect.TypeFor[wire.Item](),
		handle: func(s *Server, r *request) error {
			return asked(s, r, func(in *In, _ uint64) error {
				c, err := called(r.Context(), r.space, in)
				if err != nil {
					return err
				}
				out := s.stream(r)
				return out.end(f(r.Context(), c, out.send))
			})
		},
	}
}

// write is an operation that is made once, however often it is asked for with one id.
func write[In, Out any](name, summary string, scope Scope, f func(context.Context, call[In]) (*Out, error)) operation {
	return operation{
		name: name, summary: summary, scope: scope, in: reflect.TypeFor[In](), out: reflect.TypeFor[Out](),
		handle: func(s *Server, r *request) error {
			return pinned(s, r, func(in *In, sum uint64) error {
				result, err := s.once(r, sum, func(ctx context.Context) ([]byte, error) {
					c, err := called(ctx, r.space, in)
					if err != nil {
						return nil, err
					}
					out, err := f(ctx, c)
					if err != nil {
						return nil, err
					}
					var b bytes.Buffer
					err = wire.Write(&b, out)
					return b.Bytes(), err
				})
				if err != nil {
					return err
				}
				r.w.Header().Set("Content-Type", wire.ContentType)
				r.w.Header().Set("Content-Length", strconv.Itoa(len(result)))
				_, _ = r.w.Write(result) // If the caller is gone, it asks again.
				return nil
			})
		},
	}
}

// pinned is asked for a write, which is not forgotten while the request is about it.
func pinned[In any](s *Server, r *request, f func(*In, uint64) error) error {
	unpin, err := s.pin(r)
	if err != nil {
		return err
	}
	defer unpin()
	return asked(s, r, f)
}

// asked reads what a request asks for, and calls f with it and its hash, by which this process knows it again.
func asked[In any](s *Server, r *request, f func(*In, uint64) error) error {
	size := r.ContentLength
	if size < 0 {
		size = s.o.MaxRequestBytes
	}
	if size > s.o.MaxRequestBytes {
		return fmt.Errorf("%w: its body has %d bytes, at most %d are read", wire.ErrTooLarge, size, s.o.MaxRequestBytes)
	}
	release, err := s.acquire(r.Context(), s.limits.bytes, size, "bytes of requests", s.o.MaxBodyBytes)
	if err != nil {
		return err
	}
	defer release()
	var sum maphash.Hash
	sum.SetSeed(s.seed)
	_, _ = sum.WriteString(r.URL.Path)
	in := new(In)
	d := wire.NewReader(io.TeeReader(limited(s.body(r), s.o.MaxRequestBytes), &sum))
	d.Strict = true
	if err = d.Read(in); errors.Is(err, io.EOF) {
		err = nil // Nothing asks for the default.
	}
	if err == nil {
		err = d.End()
	}
	if err != nil {
		if !errors.Is(err, wire.ErrDocument) && !errors.Is(err, wire.ErrTooLarge) {
			err = fmt.Errorf("%w: its body: %w", wire.ErrRequest, err)
		}
		return err
	}
	return f(in, sum.Sum64())
}
