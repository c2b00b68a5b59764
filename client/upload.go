package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// pieceBytes is how many bytes of an upload one request sends. The client keeps them until the server has them.
const pieceBytes = 4 << 20

// An upload is an attachment, or a bundle, that is on its way.
type upload struct {
	c     *Client
	id    string
	path  string     // of the route
	query url.Values // what it is
}

// all sends what r has, of which the length is size unless that is negative, and returns what the server has made of
// it.
func (u *upload) all(ctx context.Context, r io.Reader, size int64) (p *wire.Progress, err error) {
	defer func() {
		if err != nil {
			u.giveUp()
		}
	}()
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
		last := false
		for have < len(buf) && !last {
			n, err := r.Read(buf[have:])
			have += n
			if last = err == io.EOF; err != nil && !last { // As io.Reader has it: a wrapped one is another error.
				return nil, err
			}
		}
		piece := buf[:have]
		if !last {
			piece = buf[:have-1]
		}
		if p, err := u.piece(ctx, piece, offset, last); err != nil || last {
			return p, err
		}
		offset += int64(len(piece))
		have = copy(buf, buf[len(piece):have])
	}
}

// piece sends the bytes at an offset, until the server has them, and has made something of all if they are the last
// ones.
func (u *upload) piece(ctx context.Context, piece []byte, offset int64, last bool) (*wire.Progress, error) {
	end := offset + int64(len(piece))
	for at := offset; ; {
		p, err := u.put(ctx, piece[at-offset:], at, last)
		var problem *wire.Error
		switch {
		case err == nil && (!last || ended(p)):
			return p, nil
		case err == nil: // It takes long.
			at = end
			continue
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
		if p, err = u.progress(ctx); err != nil || !last || ended(p) {
			return p, err
		}
	}
}

// ended reports whether the server has made of an upload what it was for.
func ended(p *wire.Progress) bool { return p.Attachment != nil || p.Bundle != nil }

// put makes one request.
func (u *upload) put(ctx context.Context, bytes []byte, offset int64, last bool) (*wire.Progress, error) {
	q := maps.Clone(u.query)
	q.Set("upload", u.id)
	q.Set("offset", strconv.FormatInt(offset, 10))
	if !last {
		q.Set("more", "1")
	}
	return u.ask(ctx, &ask{method: "PUT", path: u.path, query: q, body: [][]byte{bytes}})
}

// progress asks how far the upload has got.
func (u *upload) progress(ctx context.Context) (*wire.Progress, error) {
	return u.ask(ctx, &ask{method: "GET", path: "/v1/upload", query: url.Values{"upload": {u.id}}})
}

func (u *upload) ask(ctx context.Context, a *ask) (*wire.Progress, error) {
	var p wire.Progress
	err := u.c.do(ctx, a, func(answer *http.Response) error { return wire.NewReader(answer.Body).Read(&p) })
	return &p, err
}

// giveUp tells the server that no more comes. If that fails, the server gives the upload up by itself after a while.
func (u *upload) giveUp() {
	ctx, cancel := context.WithTimeout(u.c.ended, time.Second)
	defer cancel()
	_, _, _ = u.c.once(ctx, &ask{method: "DELETE", path: "/v1/upload", query: url.Values{"upload": {u.id}}}, "", func(*http.Response) error { return nil })
}
