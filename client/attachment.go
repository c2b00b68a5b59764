package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// pieceBytes is how many bytes of an attachment one request sends. The client keeps them until the server has them.
const pieceBytes = 4 << 20

// PutAttachment sends an attachment in pieces. When the connection is cut, PutAttachment goes on with the next byte
// that the server needs. A server that was restarted has none of the bytes: then the call fails with
// engine.ErrUnavailable. If that happens after the last piece was sent, the attachment may be stored already, and the
// error matches turnstone.ErrOutcomeUnknown.
func (s *session) PutAttachment(ctx context.Context, r io.Reader, size int64, mediaType, name string) (blob.Attachment, error) {
	if r == nil {
		return blob.Attachment{}, &turnstone.InvalidError{Where: "attachment", Reason: "the reader is nil"}
	}
	u := &upload{s: s, id: rand.Text(), query: s.query()}
	u.query.Set("mediaType", mediaType)
	u.query.Set("name", name)
	if size >= 0 {
		u.query.Set("size", strconv.FormatInt(size, 10))
	}
	a, err := u.all(ctx, r, size)
	if err != nil {
		u.giveUp()
		return blob.Attachment{}, err
	}
	return *a, nil
}

// An upload is an attachment that is on its way.
type upload struct {
	s     *session
	id    string
	query url.Values // the session, and what the attachment is
}

// all sends what r has.
func (u *upload) all(ctx context.Context, r io.Reader, size int64) (*blob.Attachment, error) {
	// A server that refuses the upload does so before anything is read.
	if _, err := u.piece(ctx, nil, 0, false); err != nil {
		return nil, err
	}
	// One byte more than a piece tells whether there are more.
	buf := make([]byte, pieceBytes+1)
	if size >= 0 && size < pieceBytes {
		buf = buf[:max(size, 1)+1]
	}
	have, offset := 0, int64(0)
	for {
		n, err := io.ReadFull(r, buf[have:])
		have += n
		last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !last {
			return nil, err
		}
		piece := buf[:have]
		if !last {
			piece = buf[:have-1]
		}
		p, err := u.piece(ctx, piece, offset, last)
		switch {
		case err != nil:
			return nil, err
		case last && p.Attachment == nil:
			return nil, fmt.Errorf("%w: no attachment", wire.ErrDocument)
		case last:
			return p.Attachment, nil
		}
		offset += int64(len(piece))
		have = copy(buf, buf[len(piece):have])
	}
}

// piece sends the bytes at an offset, until the server has them.
func (u *upload) piece(ctx context.Context, piece []byte, offset int64, last bool) (*wire.Progress, error) {
	end := offset + int64(len(piece))
	for at := offset; ; {
		p, err := u.put(ctx, piece[at-offset:], at, last)
		var problem *wire.Error
		switch {
		case err == nil:
			return p, nil
		case errors.Is(err, wire.ErrUpload) && last:
			return nil, unknown(err)
		case errors.Is(err, wire.ErrUpload): // The server was restarted, or nothing has come for long.
			return nil, fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
		case !errors.As(err, &problem) || problem.Offset == nil || *problem.Offset < offset || *problem.Offset > end:
			return nil, err
		}
		// A request whose answer was lost has brought a part of the piece, or all of it.
		at = *problem.Offset
		if at < end {
			continue
		}
		if p, err = u.progress(ctx); err != nil || !last || p.Attachment != nil {
			return p, err
		}
	}
}

// put makes one request.
func (u *upload) put(ctx context.Context, bytes []byte, offset int64, last bool) (*wire.Progress, error) {
	q := maps.Clone(u.query)
	q.Set("upload", u.id)
	q.Set("offset", strconv.FormatInt(offset, 10))
	if !last {
		q.Set("more", "1")
	}
	return u.ask(ctx, &ask{method: "PUT", path: "/v1/attachment", query: q, body: [][]byte{bytes}})
}

// progress asks how far the upload has got.
func (u *upload) progress(ctx context.Context) (*wire.Progress, error) {
	return u.ask(ctx, &ask{method: "GET", path: "/v1/upload", query: url.Values{"upload": {u.id}}})
}

func (u *upload) ask(ctx context.Context, a *ask) (*wire.Progress, error) {
	var p wire.Progress
	err := u.s.c.do(ctx, a, func(answer *http.Response) error { return wire.NewReader(answer.Body).Read(&p) })
	return &p, err
}

// giveUp tells the server that no more comes. If that fails, the server gives the upload up by itself after a while.
func (u *upload) giveUp() {
	ctx, cancel := context.WithTimeout(u.s.c.ended, time.Second)
	defer cancel()
	_, _, _ = u.s.c.once(ctx, &ask{method: "DELETE", path: "/v1/upload", query: url.Values{"upload": {u.id}}}, "", func(*http.Response) error { return nil })
}

// ReadAttachment goes on where it was when the connection is cut.
func (s *session) ReadAttachment(ctx context.Context, w io.Writer, id blob.ID) (int64, error) {
	if w == nil {
		return 0, &turnstone.InvalidError{Where: "attachment", Reason: "the writer is nil"}
	}
	q := s.query()
	q.Set("id", id.String())
	var n int64
	var failed error // of w
	for p := (patient{c: s.c}); ; {
		q.Set("offset", strconv.FormatInt(n, 10))
		before := n
		var cutOff error
		err := s.c.do(ctx, &ask{method: "GET", path: "/v1/attachment", query: q}, func(answer *http.Response) error {
			k, err := io.Copy(writerFunc(func(b []byte) (int, error) {
				var k int
				if k, failed = w.Write(b); failed == nil && k < len(b) {
					failed = io.ErrShortWrite
				}
				return k, failed
			}), answer.Body)
			n += k
			cutOff = err
			return nil
		})
		switch {
		case failed != nil:
			return n, failed
		case err != nil || cutOff == nil:
			return n, err
		case ctx.Err() != nil:
			return n, ctx.Err()
		case s.c.ended.Err() != nil:
			return n, errClosed
		case n > before:
			p.since = time.Now()
		case !p.wait(ctx): // A server that finds damage cuts off at the same place each time.
			return n, fmt.Errorf("%w: the answer is cut off: %w", engine.ErrUnavailable, cutOff)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
