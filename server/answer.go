package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/turnstonedb/turnstone/internal/wire"
)

// fail answers with a problem, or cuts the answer off if it has begun.
func (s *Server) fail(w *answer, r *http.Request, err error) {
	p := wire.ErrorOf(err)
	w.problem = p.Kind()
	if p.Status >= 500 && r.Context().Err() == nil && !errors.Is(err, wire.ErrBusy) {
		s.o.Logger.Error("a request failed", "path", r.URL.Path, "problem", p.Kind(), "error", err)
	}
	if w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	if w.unread && p.Status != http.StatusUnauthorized {
		s.skim(&request{Request: r, w: w})
	}
	if w.unread {
		w.Header().Set("Connection", "close") // Otherwise http.Server reads the rest first, however long that takes.
	}
	switch p.Status {
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "1")
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	send(w, p.Status, wire.Problem, p)
}

// skim reads what is left of a body that was refused, if it is small. Who sends to a connection that is closed may not get
// the answer. Who waits to be told to send, and was not, does not send.
func (s *Server) skim(r *request) {
	const most = 4 << 20
	if r.w.body == nil && r.Header.Get("Expect") != "" || r.ContentLength > most {
		return
	}
	body := r.w.body
	if body == nil {
		body = s.body(r)
	}
	_, _ = io.CopyN(io.Discard, body, most+1) // It also reads the end.
}

// send answers with a message.
func send(w http.ResponseWriter, status int, contentType string, message any) {
	w.Header().Set("Content-Type", contentType)
	pieces, err := wire.Encode(message)
	if err != nil {
		panic(fmt.Sprintf("server: encode %T: %v", message, err))
	}
	n := 0
	for _, p := range pieces {
		n += len(p)
	}
	w.Header().Set("Content-Length", fmt.Sprint(n))
	w.WriteHeader(status)
	for _, p := range pieces {
		if _, err := w.Write(p); err != nil {
			return // The caller is gone.
		}
	}
}

// maxWrite is how much of an answer a reader has to take within Options.Patience.
const maxWrite = 16 << 10

// An answer remembers the status and the problem that a handler answers with. If the reader takes nothing for as long
// as patience, the connection ends.
type answer struct {
	http.ResponseWriter
	rc       *http.ResponseController
	patience time.Duration
	unread   bool      // the request has a body that was not read to its end
	body     io.Reader // the body, if somebody has begun to read it
	status   int
	problem  string
}

func (a *answer) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(b []byte) (n int, err error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	for first := true; err == nil && (first || n < len(b)); first = false {
		_ = a.rc.SetWriteDeadline(time.Now().Add(a.patience)) // Where there are none, the handler runs in a test.
		var k int
		k, err = a.ResponseWriter.Write(b[n:min(len(b), n+maxWrite)])
		n += k
	}
	return n, err
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// slowest is the least number of bytes of a body that must come in each second, once Options.Patience has passed.
const slowest = 64 << 10

// body returns a reader of the request's body. It waits at most Options.Patience for the next bytes, and not much
// longer for the whole body.
func (s *Server) body(r *request) io.Reader {
	begun, n := time.Now(), int64(0)
	r.w.body = readerFunc(func(b []byte) (int, error) {
		late := begun.Add(s.o.Patience + time.Duration(n/slowest)*time.Second)
		_ = r.w.rc.SetReadDeadline(earlier(late, time.Now().Add(s.o.Patience)))
		k, err := r.Body.Read(b)
		n += int64(k)
		if errors.Is(err, io.EOF) {
			r.w.unread = false
			_ = r.w.rc.SetReadDeadline(time.Time{})
		}
		return k, err
	})
	return r.w.body
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

type (
	writerFunc func([]byte) (int, error)
	readerFunc func([]byte) (int, error)
)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
func (f readerFunc) Read(b []byte) (int, error)  { return f(b) }
