package turnstone

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// PutAttachment stores what r delivers, with bounded memory, and returns a
// reference for NewNode.Attachments. Equal bytes give equal ids and are stored
// once per namespace. size is the length announced, or negative when it is not
// known; a stream of another length is blob.ErrSize. Until a commit refers to it the
// attachment can't be read, and is garbage.
func (s *Session) PutAttachment(ctx context.Context, r io.Reader, size int64, mediaType, name string) (Attachment, error) {
	c := checker{of: "attachment"}
	c.text("media type", mediaType, 0, MaxAttachmentText)
	c.text("name", name, 0, MaxAttachmentText)
	if c.err == nil && size > MaxBlob {
		c.err = &LimitError{Limit: "bytes", Where: "attachment", Have: size, Max: MaxBlob}
	}
	if c.err != nil {
		return Attachment{}, c.err
	}
	id, n, err := s.store.blobs.Write(ctx, r, size)
	if errors.Is(err, blob.ErrTooLarge) {
		err = &LimitError{Limit: "bytes", Where: "attachment", Have: n, Max: MaxBlob}
	}
	if err != nil {
		return Attachment{}, err
	}
	return Attachment{ID: id, Size: n, MediaType: mediaType, Name: name}, nil
}

// ReadAttachment writes the content of an attachment of this session's nodes to
// w, with bounded memory, and returns its length. One that no commit of the
// session refers to is ErrBlobNotFound, whether or not another session has it.
// What was written before an error is not verified as a whole: discard it.
func (s *Session) ReadAttachment(ctx context.Context, w io.Writer, id BlobID) (int64, error) {
	h, _, err := s.readHead(ctx)
	if err != nil {
		return 0, err
	}
	hash := s.store.space.BlobHash(id)
	_, err = s.indexed(ctx, h.Revision, keys.Attachment, "attachment "+id.String(), func(inc head.Incarnation) []byte {
		return s.store.space.Attachment(inc, hash)
	})
	if errors.Is(err, ErrNodeNotFound) {
		err = fmt.Errorf("%w: %s in session %q", ErrBlobNotFound, id, s.id)
	}
	if err != nil {
		return 0, err
	}
	return s.store.blobs.WriteTo(ctx, w, id)
}
