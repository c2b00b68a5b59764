package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"strconv"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// PutAttachment sends an attachment in pieces. When the connection is cut, PutAttachment goes on with the next byte
// that the server needs. A server that was restarted has none of the bytes: then the call fails with
// engine.ErrUnavailable. If that happens after the last piece was sent, the attachment may be stored already, and the
// error matches turnstone.ErrOutcomeUnknown.
func (s *session) PutAttachment(ctx context.Context, r io.Reader, size int64, mediaType, name string) (blob.Attachment, error) {
	if r == nil {
		return blob.Attachment{}, &turnstone.InvalidError{Where: "attachment", Reason: "the reader is nil"}
	}
	u := &upload{c: s.c, id: rand.Text(), path: "/v1/attachment", query: s.query()}
	u.query.Set("mediaType", mediaType)
	u.query.Set("name", name)
	if size >= 0 {
		u.query.Set("size", strconv.FormatInt(size, 10))
	}
	p, err := u.all(ctx, r, size)
	if err != nil {
		return blob.Attachment{}, err
	}
	if p.Attachment == nil {
		return blob.Attachment{}, fmt.Errorf("%w: no attachment", wire.ErrDocument)
	}
	return *p.Attachment, nil
}

// ReadAttachment goes on where it was when the connection is cut.
func (s *session) ReadAttachment(ctx context.Context, w io.Writer, id blob.ID) (int64, error) {
	if w == nil {
		return 0, &turnstone.InvalidError{Where: "attachment", Reason: "the writer is nil"}
	}
	q := s.query()
	q.Set("id", id.String())
	var n int64
	err := s.c.download(ctx, writerFunc(func(b []byte) (int, error) {
		k, err := w.Write(b)
		n += int64(k)
		return k, err
	}), func(offset int64) *ask {
		q.Set("offset", strconv.FormatInt(offset, 10))
		return &ask{method: "GET", path: "/v1/attachment", query: q}
	})
	return n, err
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
