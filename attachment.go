package turnstone

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/history"
)

// PutAttachment stores what r delivers, with bounded memory, and returns a
// reference for NewNode.Attachments. Equal bytes give equal ids and are stored
// once per namespace. size is the length announced, or negative when it is not
// known; a stream of another length is blob.ErrSize. The session has the
// attachment from the commit on that refers to it; until then it can't be read,
// and is kept for Options.UploadTTL. A commit that comes later than that, and
// after a collection, is ErrUploadExpired. If the session is
// deleted, before the call or meanwhile, the error is ErrSessionDeleted.
func (s *Session) PutAttachment(ctx context.Context, r io.Reader, size int64, mediaType, name string) (Attachment, error) {
	c := checker{of: "attachment"}
	if r == nil {
		c.invalid("the reader is nil")
	}
	c.text("media type", mediaType, 0, MaxAttachmentText)
	c.text("name", name, 0, MaxAttachmentText)
	if c.err == nil && size > MaxBlob {
		c.err = &LimitError{Limit: "bytes", Where: "attachment", Have: size, Max: MaxBlob}
	}
	if c.err != nil {
		return Attachment{}, c.err
	}
	return observed(ctx, s, OpPutAttachment, s.ID(), func(ctx context.Context) (Attachment, error) {
		return s.putAttachment(ctx, r, size, mediaType, name)
	}, func(a Attachment, o *Outcome) { o.Bytes = a.Size })
}

func (s *Session) putAttachment(ctx context.Context, r io.Reader, size int64, mediaType, name string) (Attachment, error) {
	if _, err := s.session.Lifecycles(ctx); err != nil {
		return Attachment{}, err
	}
	up := s.store.newUpload(s.session.Inc)
	d, err := up.Write(ctx, r, size)
	if err == nil {
		err = up.Grant(ctx, d, func(b *engine.Batch) error {
			l, err := s.session.Lifecycles(ctx)
			if err == nil {
				b.Guard(l.Keys[0], l.Values[0])
			}
			return err
		})
	}
	if errors.Is(err, blob.ErrTooLarge) {
		err = &LimitError{Limit: "bytes", Where: "attachment", Have: MaxBlob + 1, Max: MaxBlob}
	}
	if err != nil {
		// What was stored is garbage; if this fails it expires.
		_ = up.Abandon(context.WithoutCancel(ctx))
		done := change.Change{Unknown: errors.Is(err, engine.ErrUnknown)}
		return Attachment{}, done.Result(commit.Expired(err))
	}
	return Attachment{ID: d.ID, Size: d.Size, MediaType: mediaType, Name: name}, nil
}

// newUpload returns an upload for a session, which may be collected after
// Options.UploadTTL. Its id is not of Options.Random: two uploads of one id would end
// each other, and nothing tells that an id was used before.
func (s *Store) newUpload(owner head.Incarnation) *blob.Upload {
	var id [16]byte
	rand.Read(id[:])
	return s.blobs.NewUpload(id, owner, s.now().Add(s.opts.UploadTTL))
}

// ReadAttachment writes the content of an attachment of this session's nodes to
// w, with bounded memory, and returns its length. One that no commit of the
// session refers to is ErrBlobNotFound, whether or not another session has it.
// What was written before an error is not verified as a whole: discard it.
func (s *Session) ReadAttachment(ctx context.Context, w io.Writer, id BlobID) (int64, error) {
	if w == nil {
		return 0, invalid("attachment", "the writer is nil")
	}
	return observed(ctx, s, OpReadAttachment, s.ID(), func(ctx context.Context) (int64, error) { return s.readAttachment(ctx, w, id) },
		func(n int64, o *Outcome) { o.Bytes = n })
}

func (s *Session) readAttachment(ctx context.Context, w io.Writer, id BlobID) (int64, error) {
	h, _, err := s.session.Head(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := s.session.FindAttachment(ctx, h.Revision, id); err != nil {
		return 0, err
	}
	n, err := s.store.blobs.WriteTo(ctx, w, id)
	var damage *CorruptError
	if errors.As(err, &damage) { // a vacuum may have removed it meanwhile
		if gone, gerr := s.erasedAttachment(ctx, id); gerr == nil && gone {
			err = fmt.Errorf("%w: %s in session %q", ErrBlobNotFound, id, s.session.ID)
		}
	}
	return n, err
}

// erasedAttachment reports whether the node that had an attachment first is
// erased, or the session has it no more.
func (s *Session) erasedAttachment(ctx context.Context, id BlobID) (bool, error) {
	return history.Retry(ctx, s.session.Session, func() (bool, error) {
		h, _, err := s.session.Head(ctx)
		if err != nil {
			return false, err
		}
		at, err := s.session.FindAttachment(ctx, h.Revision, id)
		if errors.Is(err, ErrBlobNotFound) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		n, err := s.session.NodeAt(ctx, at)
		return n.Erased, err
	})
}
