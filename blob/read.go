package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/hash"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// maxInMemory bounds what Read returns in one piece.
const maxInMemory = 256 << 20

// Read returns the content of the blob id, verified. The result is the caller's.
// A blob that is missing is a *codec.CorruptError: only what something refers
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
func (s *Store) records(ctx context.Context, ids []ID) ([]record, error) {
	ks := make([][]byte, len(ids))
	for i, id := range ids {
		ks[i] = s.space.Blob(s.space.BlobHash(id), 0)
	}
	vs, err := s.engine.Get(ctx, ks...)
	if err != nil {
		return nil, err
	}
	out := make([]record, len(ids))
	for i, id := range ids {
		if out[i], err = s.record(ctx, id, ks[i], vs[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// openFirst decodes the first part of the representation of id, and returns how many
// parts there are.
func openFirst(id ID, key, value []byte) (r record, n int, err error) {
	body, err := codec.Open(key, value, keys.Blob)
	if err == nil {
		r, n, err = decodeRecord(body)
	}
	if err == nil && r.id != id {
		err = fmt.Errorf("%w: the record is of %s", codec.ErrHash, r.id)
	}
	return r, n, err
}

// record decodes one representation whose first part is value, and reads the rest.
func (s *Store) record(ctx context.Context, id ID, key, value []byte) (record, error) {
	r, n, err := openFirst(id, key, value)
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
		return record{}, err
	}
	if !bytes.Equal(vs[0], value) { // stored anew meanwhile
		return s.record(ctx, id, key, vs[0])
	}
	r.data = bytes.Clone(r.data)
	for i, v := range vs[1:] {
		more, err := codec.Open(ks[i+1], v, keys.Blob)
		if err != nil {
			return record{}, codec.Corrupt(fmt.Errorf("part %d: %w", i+1, err), "blob %s", id)
		}
		r.data = append(r.data, more...)
	}
	return r, nil
}

// content expands r and verifies it. depth counts the lists above it. A
// collector may store what it reads anew meanwhile, relative to nothing, and then
// remove what it was relative to: what fails is damage only if reading it again
// finds the same.
func (s *Store) content(ctx context.Context, r record, depth int) ([]byte, error) {
	content, read, err := s.expand(ctx, r, depth)
	for {
		var damage *codec.CorruptError
		if err == nil || !errors.As(err, &damage) {
			return content, err
		}
		before := read
		recs, rerr := s.records(ctx, []ID{r.id})
		if rerr != nil {
			return nil, rerr
		}
		if content, read, err = s.expand(ctx, recs[0], depth); read == before {
			return content, err
		}
	}
}

// expand is one attempt of content. It returns a digest of the representations
// that it read, too.
func (s *Store) expand(ctx context.Context, r record, depth int) (content []byte, read [hash.Size]byte, err error) {
	// Down the chain of deltas to what stands by itself, and up again.
	chain := []record{r}
	sum := hash.Blob.New()
	defer func() { read = sum.Sum() }()
	sum.Write(r.data)
	for top := r; top.form == delta; top = chain[len(chain)-1] {
		if len(chain) > maxDepth {
			return nil, read, codec.Corrupt(fmt.Errorf("%w: chain of more than %d deltas", codec.ErrMalformed, maxDepth), "blob %s", r.id)
		}
		next, err := s.records(ctx, []ID{top.base})
		if err != nil {
			return nil, read, err
		}
		sum.Write(next[0].data)
		chain = append(chain, next[0])
	}
	for i := len(chain) - 1; i >= 0; i-- {
		c := chain[i]
		var err error
		if c.size > maxInMemory {
			err = fmt.Errorf("%w: base of %d bytes", codec.ErrMalformed, c.size)
		} else if c.form == list {
			if content, err = s.join(ctx, c, depth); err != nil {
				return nil, read, err // it says what is damaged, or that reading failed
			}
		} else {
			content, err = codec.Decompress(c.data, content, int(c.size))
		}
		if err == nil && int64(len(content)) != c.size {
			err = fmt.Errorf("%w: %d bytes, not %d", codec.ErrMalformed, len(content), c.size)
		}
		// A wrong base gives a wrong result, so the hash of the last is enough.
		if err == nil && i == 0 && Sum(content) != r.id {
			err = codec.ErrHash
		}
		if err != nil {
			return nil, read, codec.Corrupt(err, "blob %s", c.id)
		}
	}
	return content, read, nil
}

func (s *Store) join(ctx context.Context, r record, depth int) ([]byte, error) {
	var out []byte // grows with what is there, not with what the record claims
	err := s.walk(ctx, r, depth, func(chunk []byte) error {
		out = append(out, chunk...)
		return nil
	})
	return out, err
}

// maxTree bounds the depth of lists of lists: a writer makes two levels.
const maxTree = 4

// walk calls f with the verified chunks of r in order.
func (s *Store) walk(ctx context.Context, r record, depth int, f func([]byte) error) error {
	if r.form != list {
		content, err := s.content(ctx, r, depth)
		if err != nil {
			return err
		}
		return f(content)
	}
	if depth == maxTree {
		return codec.Corrupt(fmt.Errorf("%w: lists nested too deeply", codec.ErrMalformed), "blob %s", r.id)
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
				return codec.Corrupt(fmt.Errorf("%w: item of %d bytes, not %d", codec.ErrMalformed, c.size, items[i].size), "blob %s", r.id)
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
	sum := hash.Blob.New()
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
		return n, codec.Corrupt(codec.ErrHash, "blob %s", id)
	}
	return n, nil
}

// References returns the blobs that the representation of id refers to.
func (s *Store) References(ctx context.Context, id ID) ([]ID, error) {
	recs, err := s.records(ctx, []ID{id})
	if err != nil {
		return nil, err
	}
	return recs[0].references(), nil
}

func (r *record) references() (out []ID) {
	if r.form == delta {
		return []ID{r.base}
	}
	for _, it := range r.items {
		out = append(out, it.id)
	}
	return out
}

// Dependencies is References for a collector, which knows blobs by their hashes
// in keys.
func (s *Store) Dependencies(ctx context.Context, h keys.Hash) ([]keys.Hash, error) {
	r, err := s.first(ctx, h)
	if err != nil {
		return nil, err
	}
	refs := r.references()
	out := make([]keys.Hash, len(refs))
	for i, id := range refs {
		out[i] = s.space.BlobHash(id)
	}
	return out, nil
}

// first reads the first part of the blob that h stands for.
func (s *Store) first(ctx context.Context, h keys.Hash) (r record, err error) {
	key := s.space.Blob(h, 0)
	vs, err := s.engine.Get(ctx, key)
	if err != nil {
		return r, err
	}
	body, err := codec.Open(key, vs[0], keys.Blob)
	if err == nil {
		r, _, err = decodeRecord(body)
	}
	if err == nil && s.space.BlobHash(r.id) != h {
		err = fmt.Errorf("%w: the record is of %s", codec.ErrHash, r.id)
	}
	return r, codec.Corrupt(err, "blob at key %x", key)
}

// On returns a view of s that reads and writes another engine with the same keys.
func (s *Store) On(e engine.Engine) *Store { return New(e, s.space, s.chunks) }
