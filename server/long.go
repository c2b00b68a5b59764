package server

import (
	"bytes"
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// long makes an operation that may take hours. Its answer tells how far the operation is. The operation ends early if
// nobody has waited for it for Options.Patience. So a caller whose connection was cut can come back and go on
// waiting.
func long[In any](name, summary string, f func(context.Context, call[In], func(gc.Progress)) (*wire.Item, error)) operation {
	return operation{
		name: name, summary: summary, scope: Maintain, in: reflect.TypeFor[In](), out: reflect.TypeFor[wire.Item](),
		handle: func(s *Server, r *request) error {
			return pinned(s, r, func(b *body) error {
				in := new(In)
				if err := decode(r.Context(), b, in); err != nil {
					return err
				}
				w, err := s.write(r, b.sum, r.space.work(s), func(w *written) ([]byte, error) {
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					w.follow.begin(s, cancel)
					go func() { // A collection may be repeated: it does not hold up the end of the server.
						select {
						case <-s.stopping:
							cancel()
						case <-ctx.Done():
						}
					}()
					c, err := called(ctx, r.space, in)
					if err != nil {
						return nil, err
					}
					report, err := f(ctx, c, w.follow.tell)
					if report == nil && err != nil {
						return nil, err
					}
					last := &wire.Item{End: true}
					if err != nil {
						last = &wire.Item{Problem: wire.ErrorOf(err)}
					}
					var b bytes.Buffer
					if report != nil {
						if err := wire.Write(&b, report); err != nil {
							return nil, err
						}
					}
					err = wire.Write(&b, last)
					return b.Bytes(), err
				})
				if err != nil {
					return err
				}
				return s.followed(r, w)
			})
		},
	}
}

// reported returns an item with a report, or nil if there is no report.
func reported[T any](r *T, set func(*wire.Item, *T)) *wire.Item {
	if r == nil {
		return nil
	}
	i := new(wire.Item)
	set(i, r)
	return i
}

// followers are the requests that wait for an operation which takes long.
type followers struct {
	mu       sync.Mutex // guards the fields below
	waiting  int
	alone    *time.Timer // ends the operation when nobody waits
	patience time.Duration
	progress gc.Progress
}

// begin begins to wait for requests that wait.
func (f *followers) begin(s *Server, end func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.patience = s.o.Patience
	f.alone = time.AfterFunc(f.patience, end)
	if f.waiting > 0 {
		f.alone.Stop()
	}
}

// tell notes progress.
func (f *followers) tell(p gc.Progress) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.progress = p
}

// add counts a request that waits, until leave is called.
func (f *followers) add() (leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting++
	if f.alone != nil {
		f.alone.Stop()
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.waiting--; f.waiting == 0 && f.alone != nil {
			f.alone.Reset(f.patience)
		}
	}
}

func (f *followers) seen() gc.Progress {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.progress
}

// followed answers with the progress of an operation and, in the end, with its result.
func (s *Server) followed(r *request, w *written) error {
	defer w.follow.add()()
	out := s.stream(r)
	var last gc.Progress
	look := time.NewTicker(min(s.o.Heartbeat, time.Second))
	defer look.Stop()
	quiet := time.Now()
	for {
		select {
		case <-r.Context().Done():
			return r.Context().Err()
		case <-w.done:
			result, err := s.writes.result(w)
			if err != nil {
				return out.end(err)
			}
			err = out.raw(result)
			out.flush()
			return err
		case <-look.C:
		}
		p := w.follow.seen()
		switch {
		case p != last:
			last = p
			_ = out.send(&wire.Item{Progress: &p})
		case time.Since(quiet) >= s.o.Heartbeat:
			_ = out.raw([]byte("\n"))
		default:
			continue
		}
		quiet = time.Now()
		out.flush()
	}
}
