package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
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
	return Read(ctx, s, func(*Lifecycles) (bool, error) {
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

// An Attached is an attachment, and its first node, or when it expires because it has none.
type Attached struct {
	blob.Attachment
	Node      graph.ID
	Revision  head.Revision
	Inherited bool
	Time      time.Time
	Expires   time.Time
}

// Attachment returns an attachment that WriteAttachment writes.
func (s *Session) Attachment(ctx context.Context, id blob.ID) (Attached, error) {
	return Read(ctx, s, func(*Lifecycles) (Attached, error) {
		hash := s.Space.BlobHash(id)
		key := s.Space.Upload(s.Inc, hash)
		h, values, err := s.Head(ctx, key)
		if err != nil {
			return Attached{}, err
		}
		at, err := s.FindAttachment(ctx, h.Revision, id)
		var a *Attached
		if err == nil {
			a, err = s.attachedAt(ctx, at, hash)
		}
		if err != nil && !errors.Is(err, ErrBlobNotFound) {
			return Attached{}, err
		}
		if values[0] != nil {
			grant, err := blob.DecodeGrant(key, values[0])
			if a == nil {
				a = &Attached{Attachment: grant.Granted}
			}
			a.Expires = grant.Expires
			return *a, err
		}
		if a == nil {
			return Attached{}, fmt.Errorf("%w: %s in %s", ErrBlobNotFound, id, s.Name)
		}
		return *a, nil
	})
}

// attachedAt returns the attachment of a hash that the node at a position has, or nil if that node is erased.
func (s *Session) attachedAt(ctx context.Context, at Position, hash keys.Hash) (*Attached, error) {
	n, err := s.NodeAt(ctx, at)
	if err != nil || n.Erased {
		return nil, err
	}
	for _, a := range n.Attachments {
		if s.Space.BlobHash(a.ID) == hash {
			return &Attached{Attachment: a, Node: n.ID, Revision: n.Revision, Inherited: n.Inherited, Time: n.Time}, nil
		}
	}
	return nil, codec.Corrupt(damage.ErrMalformed, "index entry of an attachment of %s", s.Name)
}

// Attachments returns the attachments of the session's nodes, each with its first node, in the order of these.
func (s *Session) Attachments(ctx context.Context) ([]Attached, error) {
	return Read(ctx, s, func(*Lifecycles) (all []Attached, err error) {
		h, _, _, err := s.ReadHead(ctx, 0)
		if err != nil {
			return nil, err
		}
		layers := s.Layers(h.Revision)
		seen := map[keys.Hash]bool{}
		for _, l := range slices.Backward(layers) {
			for p, err := range s.Engine.Scan(ctx, s.Space.Of(keys.Attachment, l.Inc)) {
				if err != nil {
					return nil, err
				}
				_, fields, ok := s.Space.Fields(p.Key)
				place, err := graph.DecodeAttachment(p.Key, p.Value)
				if err != nil || !ok {
					return nil, codec.Corrupt(cmp.Or(err, error(damage.ErrMalformed)), "index entry of an attachment of %s", s.Name)
				}
				hash := keys.Hash(fields[16:])
				if !l.Has(place) || seen[hash] {
					continue
				}
				seen[hash] = true
				a, err := s.attachedAt(ctx, Position{l, place}, hash)
				if err != nil {
					return nil, err
				}
				if a != nil {
					all = append(all, *a)
				}
			}
		}
		slices.SortStableFunc(all, func(a, b Attached) int { return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Name, b.Name)) })
		return all, nil
	})
}
