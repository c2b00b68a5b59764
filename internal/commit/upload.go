package commit

import (
	"context"
	"errors"
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
		err = up.Grant(ctx, d, mediaType, name, func(b *engine.Batch) error {
			l, err := s.Lifecycles(ctx)
			if err == nil {
				b.Guard(l.Keys[0], l.Values[0])
			}
			return err
		})
	}
	if errors.Is(err, blob.ErrTooLarge) {
		err = &history.LimitError{Limit: "bytes", Where: "attachment", Have: blob.MaxBytes + 1, Max: blob.MaxBytes}
	}
	if err != nil {
		// What was stored is garbage. If Abandon fails, the upload expires.
		_ = up.Abandon(context.WithoutCancel(ctx))
		c := history.Change{Unknown: errors.Is(err, engine.ErrUnknown)}
		return nil, c.Result(Expired(err))
	}
	return d, nil
}
