package server

import (
	"bytes"
	"context"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// An operation is a call that is made with POST /v1/ and its name. A document asks, and another one answers, or
// several wire.Items.
type operation struct {
	name    string
	summary string
	scope   Scope        // one of scope Read changes nothing
	in, out reflect.Type // messages; out is nil if the answer is none
	handle  func(*Server, *request) error
}

// A call is what a request asks of a namespace.
type call[In any] struct {
	*space
	in      *In
	session *turnstone.Session // the session that the field in names, or nil if it names none
	request string             // of a write: the id that its caller gave it, or nothing
}

// turn returns the turn id of a commit that has none. It is made of the request's id, so it stands with the commit:
// whichever server gets the request again, after a restart or behind a balancer, the commit is made once.
func (c *call[In]) turn() string {
	if c.request == "" || !utf8.ValidString(c.request) {
		return ""
	}
	return wire.RequestTurn + c.request
}

// withoutRequest returns an entry without a turn id that its caller did not give.
func withoutRequest(e turnstone.LogEntry) turnstone.LogEntry {
	if strings.HasPrefix(e.Turn, wire.RequestTurn) {
		e.Turn = ""
	}
	return e
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
			c, release, err := asked[In](s, r)
			if err != nil {
				return err
			}
			defer release()
			out, err := f(r.Context(), c)
			if err != nil {
				return err
			}
			send(r.w, http.StatusOK, wire.ContentType, out)
			return nil
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
			c, release, err := asked[In](s, r)
			if err != nil {
				return err
			}
			defer release()
			out := s.stream(r)
			return out.end(f(r.Context(), c, out.send))
		},
	}
}

// write is an operation that is made once, however often it is asked for with one id.
func write[In, Out any](name, summary string, scope Scope, f func(context.Context, call[In]) (*Out, error)) operation {
	return operation{
		name: name, summary: summary, scope: scope, in: reflect.TypeFor[In](), out: reflect.TypeFor[Out](),
		handle: func(s *Server, r *request) error {
			return pinned(s, r, func(b *body) error {
				result, err := s.once(r, b.sum, func(ctx context.Context) ([]byte, error) {
					c, err := decoded[In](ctx, s, r, b)
					if err != nil {
						return nil, err
					}
					out, err := f(ctx, c)
					if err != nil {
						return nil, err
					}
					var answer bytes.Buffer
					err = wire.Write(&answer, out)
					return answer.Bytes(), err
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

// pinned reads the body of a write, which is not forgotten while the request is about it, and calls f.
func pinned(s *Server, r *request, f func(*body) error) error {
	unpin, err := s.pin(r)
	if err != nil {
		return err
	}
	defer unpin()
	b, err := s.read(r)
	if err != nil {
		return err
	}
	defer b.release()
	return f(b)
}

// asked returns what a request asks for. The caller calls release when it is done.
func asked[In any](s *Server, r *request) (c call[In], release func(), err error) {
	b, err := s.read(r)
	if err != nil {
		return c, nil, err
	}
	if c, err = decoded[In](r.Context(), s, r, b); err != nil {
		b.release()
	}
	return c, b.release, err
}

// decoded returns what a body asks for.
func decoded[In any](ctx context.Context, s *Server, r *request, b *body) (c call[In], err error) {
	if err := s.whole(ctx, r, b); err != nil {
		return c, err
	}
	in := new(In)
	if err := decode(ctx, b, in); err != nil {
		return c, err
	}
	if c, err = called(ctx, r.space, in); err == nil && r.write != nil {
		c.request = r.write.id.id
	}
	return c, err
}
