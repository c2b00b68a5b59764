package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// maxInMemory bounds what Read returns in one piece.
const maxInMemory = 256 << 20

// Read returns the content of the blob id, verified. The result is the caller's.
// A blob that is missing is a *damage.CorruptError: only what something refers
// to is read.
func (s *Store) Read(ctx context.Context, id ID) ([]byte, error) {
	contents, err := s.ReadAll(ctx, []ID{id})
	if err != nil {
		return nil, err
	}
	return contents[0], nil
}

// ReadAll returns the contents of ids, in order; the first parts of all of them
// are fetched at once.
func (s *Store) ReadAll(ctx context.Context, ids []ID) ([][]byte, error) {
	recs, err := s.records(ctx, ids)
	if err != nil {
		return nil, err
	}
	out := make([][]byte, len(ids))
	for i, r := range recs {
		if r.size > maxInMemory {
			return nil, fmt.Errorf("%w: blob %s of %d bytes: open it as a stream", ErrTooLarge, ids[i], r.size)
		}
		if out[i], err = s.content(ctx, r, 0); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// records reads the representations of ids.
func (s *Store) records(ctx context.Context, ids []ID) ([]stored, error) {
	ks := make([][]byte, len(ids))
	for i, id := range ids {
		ks[i] = s.space.Blob(s.space.BlobHash(id), 0)
	}
	vs, err := s.engine.Get(ctx, ks...)
	if err != nil {
		return nil, err
	}
	out := make([]stored, len(ids))
	for i, id := range ids {
		if out[i], err = s.record(ctx, id, ks[i], vs[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// decodeFirst decodes the first part of the representation of id, and returns how many
// parts there are.
func decodeFirst(id ID, key, value []byte) (r stored, n int, err error) {
	body, err := codec.Decode(key, value, keys.Blob)
	if err == nil {
		r, n, err = decodeRecord(body)
	}
	if err == nil && r.id != id {
		err = fmt.Errorf("%w: the record is of %s", damage.ErrHash, r.id)
	}
	return r, n, err
}

// record decodes one representation whose first part is value, and reads the rest.
func (s *Store) record(ctx context.Context, id ID, key, value []byte) (stored, error) {
	r, n, err := decodeFirst(id, key, value)
	if err != nil || n == 1 {
		return r, codec.Corrupt(err, "blob %s", id)
	}
	h := s.space.BlobHash(id)
	ks := make([][]byte, n)
	for i := range ks {
		ks[i] = s.space.Blob(h, i)
	}
	vs, err := s.engine.Get(ctx, ks...)
	if err != nil {
		return stored{}, err
	}
	if !bytes.Equal(vs[0], value) { // stored anew meanwhile
		return s.record(ctx, id, key, vs[0])
	}
	r.data = bytes.Clone(r.data)
	for i, v := range vs[1:] {
		more, err := codec.Decode(ks[i+1], v, keys.Blob)
		if err != nil {
			return stored{}, codec.Corrupt(fmt.Errorf("part %d: %w", i+1, err), "blob %s", id)
		}
		r.data = append(r.data, more...)
	}
	return r, nil
}

// content expands r and verifies it. depth counts the lists above it.
func (s *Store) content(ctx context.Context, r stored, depth int) (content []byte, err error) {
	if r.items != nil {
		content, err = s.join(ctx, r, depth)
	} else {
		content, err = codec.Decompress(r.data, nil, int(r.size))
	}
	if err == nil && int64(len(content)) != r.size {
		err = fmt.Errorf("%w: %d bytes, not %d", damage.ErrMalformed, len(content), r.size)
	}
	if err == nil && Sum(content) != r.id {
		err = damage.ErrHash
	}
	if errors.Is(err, damage.ErrMalformed) || errors.Is(err, damage.ErrHash) {
		err = codec.Corrupt(err, "blob %s", r.id)
	}
	return content, err
}

func (s *Store) join(ctx context.Context, r stored, depth int) ([]byte, error) {
	// From a mebibyte on, it grows with what is there, not with what the record claims.
	out := make([]byte, 0, min(r.size, 1<<20))
	err := s.walk(ctx, r, depth, func(chunk []byte) error {
		out = append(out, chunk...)
		return nil
	})
	return out, err
}

// maxTree bounds the depth of lists of lists: a writer makes two levels.
const maxTree = 4

// walk calls f with the verified chunks of r in order.
func (s *Store) walk(ctx context.Context, r stored, depth int, f func([]byte) error) error {
	if r.items == nil {
		content, err := s.content(ctx, r, depth)
		if err != nil {
			return err
		}
		return f(content)
	}
	if depth == maxTree {
		return codec.Corrupt(fmt.Errorf("%w: lists nested too deeply", damage.ErrMalformed), "blob %s", r.id)
	}
	const ahead = 16 // chunks fetched at once: 1 MiB on average
	for items := r.items; len(items) > 0; {
		n := min(ahead, len(items))
		ids := make([]ID, n)
		for i := range ids {
			ids[i] = items[i].id
		}
		recs, err := s.records(ctx, ids)
		if err != nil {
			return err
		}
		for i, c := range recs {
			if c.size != items[i].size {
				return codec.Corrupt(fmt.Errorf("%w: item of %d bytes, not %d", damage.ErrMalformed, c.size, items[i].size), "blob %s", r.id)
			}
			if err := s.walk(ctx, c, depth+1, f); err != nil {
				return err
			}
		}
		items = items[n:]
	}
	return nil
}

// WriteTo streams the content of the blob id to w, with memory for a few
// chunks. Each chunk is verified before it is written, and the whole before
// WriteTo returns nil: treat what was written before an error as invalid.
func (s *Store) WriteTo(ctx context.Context, w io.Writer, id ID) (n int64, err error) {
	recs, err := s.records(ctx, []ID{id})
	if err != nil {
		return 0, err
	}
	sum := codec.BlobHash.New()
	err = s.walk(ctx, recs[0], 0, func(chunk []byte) error {
		sum.Write(chunk)
		m, err := w.Write(chunk)
		n += int64(m)
		return err
	})
	if err != nil {
		return n, err
	}
	if ID(sum.Sum()) != id {
		return n, codec.Corrupt(damage.ErrHash, "blob %s", id)
	}
	return n, nil
}

// Items returns the blobs that the blob id consists of. It returns none if the blob is
// stored whole.
func (s *Store) Items(ctx context.Context, id ID) ([]ID, error) {
	recs, err := s.records(ctx, []ID{id})
	if err != nil {
		return nil, err
	}
	out := make([]ID, len(recs[0].items))
	for i, it := range recs[0].items {
		out[i] = it.id
	}
	return out, nil
}

// ItemsOf is Items for a collector, which knows blobs by their hashes in keys.
func (s *Store) ItemsOf(ctx context.Context, h keys.Hash) ([]keys.Hash, error) {
	r, err := s.first(ctx, h)
	if err != nil {
		return nil, err
	}
	out := make([]keys.Hash, len(r.items))
	for i, it := range r.items {
		out[i] = s.space.BlobHash(it.id)
	}
	return out, nil
}

// Check verifies a blob that is stored as these pairs, all of them and in order: its content or, if it is a list, the
// list alone.
func (s *Store) Check(pairs []engine.Pair) error {
	body, err := codec.Decode(pairs[0].Key, pairs[0].Value, keys.Blob)
	if err != nil {
		return err
	}
	r, n, err := decodeRecord(body)
	switch {
	case err != nil:
		return err
	case !bytes.Equal(s.space.Blob(s.space.BlobHash(r.id), 0), pairs[0].Key):
		return fmt.Errorf("%w: the record is of %s", damage.ErrHash, r.id)
	case n != len(pairs):
		return fmt.Errorf("%w: %d of %d values are there", damage.ErrMissing, len(pairs), n)
	case r.items != nil:
		return nil
	}
	r.data = bytes.Clone(r.data)
	for _, p := range pairs[1:] {
		more, err := codec.Decode(p.Key, p.Value, keys.Blob)
		if err != nil {
			return err
		}
		r.data = append(r.data, more...)
	}
	_, err = s.content(context.Background(), r, 0) // It reads only the items of a list.
	return err
}

// first reads the first value of the blob that h stands for.
func (s *Store) first(ctx context.Context, h keys.Hash) (r stored, err error) {
	key := s.space.Blob(h, 0)
	vs, err := s.engine.Get(ctx, key)
	if err != nil {
		return r, err
	}
	body, err := codec.Decode(key, vs[0], keys.Blob)
	if err == nil {
		r, _, err = decodeRecord(body)
	}
	if err == nil && s.space.BlobHash(r.id) != h {
		err = fmt.Errorf("%w: the record is of %s", damage.ErrHash, r.id)
	}
	return r, codec.Corrupt(err, "blob at key %x", key)
}

// On returns a view of s that reads and writes another engine with the same keys.
func (s *Store) On(e engine.Engine) *Store { return New(e, s.space, s.chunks) }
