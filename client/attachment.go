package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// pieceBytes is how much of an attachment a request brings. So much is kept until the server has it.
const pieceBytes = 4 << 20

// PutAttachment sends an attachment in pieces. When the connection is cut, it goes on where the server is. A server that was restarted has nothing of it: then the
// call fails with an error that matches turnstone.ErrOutcomeUnknown, because the attachment may be stored already.
func (s *session) PutAttachment(ctx context.Context, r io.Reader, size int64, mediaType, name string) (blob.Attachment, error) {
	if r == nil {
		return blob.Attachment{}, &turnstone.InvalidError{Where: "attachment", Reason: "the reader is nil"}
	}
	q := s.query()
	q.Set("upload", rand.Text())
	q.Set("mediaType", mediaType)
	q.Set("name", name)
	if size >= 0 {
		q.Set("size", strconv.FormatInt(size, 10))
	}
	// One byte more than a piece tells whether there are more.
	buf := make([]byte, pieceBytes+1)
	if size >= 0 && size < pieceBytes {
		buf = buf[:max(size, 1)+1]
	}
	have, offset := 0, int64(0)
	if _, err := s.put(ctx, q, nil, 0, false); err != nil { // before anything is read
		return blob.Attachment{}, err
	}
	for {
		n, err := io.ReadFull(r, buf[have:])
		have += n
		last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !last {
			s.giveUp(q)
			return blob.Attachment{}, err
		}
		piece := buf[:have]
		if !last {
			piece = buf[:have-1]
		}
		p, err := s.put(ctx, q, piece, offset, last)
		if err != nil {
			s.giveUp(q)
			return blob.Attachment{}, err
		}
		if last {
			if p.Attachment == nil {
				return blob.Attachment{}, fmt.Errorf("%w: no attachment", wire.ErrDocument)
			}
			return *p.Attachment, nil
		}
		offset += int64(len(piece))
		have = copy(buf, buf[len(piece):have])
	}
}

// put sends the piece at an offset, until the server has it.
func (s *session) put(ctx context.Context, q url.Values, piece []byte, offset int64, last bool) (*wire.Progress, error) {
	end := offset + int64(len(piece))
	for {
		query := url.Values{}
		for name, value := range q {
			query[name] = value
		}
		query.Set("offset", strconv.FormatInt(offset, 10))
		if !last {
			query.Set("more", "1")
		}
		var p wire.Progress
		err := s.c.do(ctx, &ask{method: "PUT", path: "/v1/attachment", query: query, body: [][]byte{piece[len(piece)-int(end-offset):]}}, func(answer *http.Response) error {
			return wire.NewReader(answer.Body).Read(&p)
		})
		var problem *wire.Error
		switch {
		case err == nil:
			return &p, nil
		case !errors.As(err, &problem) || problem.Offset == nil:
			switch {
			case errors.Is(err, wire.ErrUpload) && last:
				err = unknown(err)
			case errors.Is(err, wire.ErrUpload): // The server was restarted, or nothing has come for long.
				err = fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
			}
			return nil, err
		}
		// An earlier request has brought a part of the piece, or all of it.
		at := *problem.Offset
		if at < end-int64(len(piece)) || at > end {
			return nil, err
		}
		if offset = at; offset < end || !last {
			if offset == end {
				return &wire.Progress{Offset: at}, nil
			}
			continue
		}
		now, err := s.upload(ctx, q)
		if err != nil || now.Attachment != nil {
			return now, err
		}
	}
}

// upload asks how far an upload has got.
func (s *session) upload(ctx context.Context, q url.Values) (*wire.Progress, error) {
	var p wire.Progress
	err := s.c.do(ctx, &ask{method: "GET", path: "/v1/upload", query: url.Values{"upload": q["upload"]}}, func(answer *http.Response) error {
		return wire.NewReader(answer.Body).Read(&p)
	})
	return &p, err
}

// giveUp tells the server that no more of an upload comes. If that fails, the server gives the upload up by itself after a while.
func (s *session) giveUp(q url.Values) {
	ctx, cancel := context.WithTimeout(s.c.ended, time.Second)
	defer cancel()
	_, _, _ = s.c.once(ctx, &ask{method: "DELETE", path: "/v1/upload", query: url.Values{"upload": q["upload"]}}, "", func(*http.Response) error { return nil })
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
