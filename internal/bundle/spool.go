package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A stock stores blobs ahead of what refers to them, many in a batch. An upload pins them.
type stock struct {
	store   *blob.Store
	upload  *blob.Upload
	waiting []*blob.Draft
	size    int
	space   *keys.Space
	pinned  map[keys.Hash]int64 // the sizes of the blobs that the upload pins, or that wait, by what keys have of them
	room    *room
}

const (
	stockBytes = 1 << 20 // of a batch
	stockBlobs = 500
)

// put stores content, or finds that it is stored.
func (k *stock) put(ctx context.Context, content []byte) (blob.ID, error) {
	id := blob.Sum(content)
	if _, pinned := k.pinned[k.space.BlobHash(id)]; pinned {
		return id, nil
	}
	d, err := blob.Prepare(id, content)
	if err != nil {
		return id, err
	}
	return id, k.add(ctx, d)
}

// pin keeps a blob that is stored already.
func (k *stock) pin(ctx context.Context, id blob.ID, size int64) error {
	if _, pinned := k.pinned[k.space.BlobHash(id)]; pinned {
		return nil
	}
	return k.add(ctx, &blob.Draft{ID: id, Size: size, Stored: true})
}

func (k *stock) add(ctx context.Context, d *blob.Draft) error {
	if err := k.room.take(1); err != nil {
		return err
	}
	if n := d.Bytes() + 256; len(k.waiting) > 0 && k.size+n > stockBytes || len(k.waiting) == stockBlobs {
		if err := k.flush(ctx); err != nil {
			return err
		}
	}
	k.pinned[k.space.BlobHash(d.ID)] = d.Size
	k.waiting, k.size = append(k.waiting, d), k.size+d.Bytes()+256
	return nil
}

// sizes returns the lengths of blobs that are at hand, and -1 for others.
func (k *stock) sizes(ctx context.Context, ids []blob.ID) ([]int64, error) {
	out := make([]int64, len(ids))
	var unsure []blob.ID
	for i, id := range ids {
		var pinned bool
		if out[i], pinned = k.pinned[k.space.BlobHash(id)]; !pinned {
			unsure = append(unsure, id)
		}
	}
	if len(unsure) == 0 {
		return out, nil
	}
	absent, err := k.store.Refresh(ctx, blob.Marks{}, unsure)
	if err != nil {
		return nil, err
	}
	sizes, err := k.store.Sizes(ctx, unsure)
	if err != nil {
		return nil, err
	}
	for i, id := range ids {
		if at := slices.Index(unsure, id); at >= 0 {
			if out[i] = sizes[at]; slices.Contains(absent, id) {
				out[i] = -1
			}
		}
	}
	return out, nil
}

// write stores content of any size.
func (k *stock) write(ctx context.Context, r io.Reader, id blob.ID, size int64) error {
	d, err := k.upload.Write(ctx, r, size)
	if err != nil {
		return commit.Expired(err)
	}
	if d.ID != id {
		return malformed("content of blob %s is that of %s", id, d.ID)
	}
	return k.add(ctx, d)
}

// flush stores what waits.
func (k *stock) flush(ctx context.Context) error {
	if len(k.waiting) == 0 {
		return nil
	}
	some := k.waiting
	k.waiting, k.size = nil, 0
	err := k.upload.Put(ctx, some...)
	if errors.Is(err, blob.ErrNotFound) {
		err = fmt.Errorf("%w: a collection has removed a blob meanwhile: %w", history.ErrConflict, err)
	}
	return commit.Expired(err)
}

// A spool keeps the frames of a bundle while they are checked. What does not fit memory is in blobs, which the stock
// pins.
type spool struct {
	stock *stock
	ctx   context.Context // of the call
	buf   []byte
	ids   []blob.ID
}

const pieceBytes = 512 << 10

// Write adds p.
func (s *spool) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		if len(s.buf) == pieceBytes {
			id, err := s.stock.put(s.ctx, s.buf)
			if err != nil {
				return 0, err
			}
			s.ids, s.buf = append(s.ids, id), s.buf[:0]
		}
		m := min(len(p), pieceBytes-len(s.buf))
		s.buf, p = append(s.buf, p[:m]...), p[m:]
	}
	return n, nil
}

// reader reads what was written.
func (s *spool) reader() io.Reader { return &spoolReader{spool: s} }

type spoolReader struct {
	*spool
	next int // piece
	rest []byte
}

func (r *spoolReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		switch {
		case r.next < len(r.ids):
			content, err := r.stock.store.Read(r.ctx, r.ids[r.next])
			if err != nil {
				return 0, err
			}
			r.rest = content
		case r.next == len(r.ids):
			r.rest = r.buf
		default:
			return 0, io.EOF
		}
		r.next++
		if len(r.rest) == 0 && r.next > len(r.ids) {
			return 0, io.EOF
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
