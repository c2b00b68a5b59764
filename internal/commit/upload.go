package commit

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/history"
)

// Upload stores the content of r as a blob, and grants it to a later commit of the session: see
// turnstone.Session.PutAttachment. If size is not negative, it is the size of the content.
func (st *Store) Upload(ctx context.Context, s *history.Session, r io.Reader, size int64, mediaType, name string) (*blob.Draft, error) {
	if _, err := s.Lifecycles(ctx); err != nil {
		return nil, err
	}
	up := st.NewUpload(s.Inc)
	d, err := up.Write(ctx, r, size)
	if err == nil {
		err = grant(ctx, up, s, d, mediaType, name)
	}
	if errors.Is(err, blob.ErrTooLarge) {
		err = &history.LimitError{Limit: "bytes", Where: "attachment", Have: blob.MaxBytes + 1, Max: blob.MaxBytes}
	}
	if err != nil {
		return nil, failed(ctx, up, err)
	}
	return d, nil
}

// Link grants an attachment, which is stored, to a later commit of the session: see turnstone.Session.LinkAttachment. The
// error is ErrBlobNotFound if it is not stored any more.
func (st *Store) Link(ctx context.Context, s *history.Session, a blob.Attachment) error {
	if _, err := s.Lifecycles(ctx); err != nil {
		return err
	}
	up := st.NewUpload(s.Inc)
	err := grant(ctx, up, s, &blob.Draft{ID: a.ID, Size: a.Size, Stored: true}, a.MediaType, a.Name)
	if err == nil {
		return nil
	}
	if errors.Is(err, blob.ErrNotFound) {
		err = fmt.Errorf("%w: %w", history.ErrBlobNotFound, err)
	}
	return failed(ctx, up, err)
}

// grant ends an upload with a blob that the session may refer to from then on, as long as the session lives.
func grant(ctx context.Context, up *blob.Upload, s *history.Session, d *blob.Draft, mediaType, name string) error {
	return up.Grant(ctx, d, mediaType, name, func(b *engine.Batch) error {
		l, err := s.Lifecycles(ctx)
		if err == nil {
			b.Guard(l.Keys[0], l.Values[0])
		}
		return err
	})
}

// failed gives an upload up, and returns the error that it ends with. What was stored is garbage. If Abandon fails, the
// upload expires.
func failed(ctx context.Context, up *blob.Upload, err error) error {
	_ = up.Abandon(context.WithoutCancel(ctx))
	c := history.Change{Unknown: errors.Is(err, engine.ErrUnknown)}
	return c.Result(Expired(err))
}
