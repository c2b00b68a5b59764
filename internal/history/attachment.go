package history

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
)

// WriteAttachment writes the content of an attachment to w, and returns its length. The
// error is ErrBlobNotFound if no node of the session's graph up to the head has the
// attachment, and the session has not uploaded it.
func (s *Session) WriteAttachment(ctx context.Context, w io.Writer, id blob.ID) (int64, error) {
	grant := s.Space.Upload(s.Inc, s.Space.BlobHash(id))
	h, values, err := s.Head(ctx, grant)
	if err != nil {
		return 0, err
	}
	if values[0] != nil {
		if _, err := blob.DecodeGrant(grant, values[0]); err != nil {
			return 0, err
		}
	} else if _, err := s.FindAttachment(ctx, h.Revision, id); err != nil {
		return 0, err
	}
	n, err := s.Blobs.WriteTo(ctx, w, id)
	var corrupt *damage.CorruptError
	if errors.As(err, &corrupt) { // Vacuum may have removed the blob meanwhile, or the upload has expired.
		if gone, gerr := s.erasedAttachment(ctx, id); gerr != nil {
			err = gerr // the session's deletion, or why that can't be told
		} else if gone {
			err = fmt.Errorf("%w: %s in %s", ErrBlobNotFound, id, s.Name)
		}
	}
	return n, err
}

// erasedAttachment reports whether the first node that had an attachment is erased by now, or the
// session does not have the attachment any more.
func (s *Session) erasedAttachment(ctx context.Context, id blob.ID) (bool, error) {
	return Retry(ctx, s, func() (bool, error) {
		h, _, _, err := s.ReadHead(ctx, 0)
		if err != nil {
			return false, err
		}
		at, err := s.FindAttachment(ctx, h.Revision, id)
		if errors.Is(err, ErrBlobNotFound) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		n, err := s.NodeAt(ctx, at)
		return n.Erased, err
	})
}
