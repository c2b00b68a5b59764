package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Store reads and writes the blobs of one namespace.
type Store struct {
	engine engine.Engine
	space  *keys.Space
	chunks Chunking
	marks  cache[[]byte]
	sizes  cache[int64] // of contents; a size that was seen once is right for good
}

// Chunking is how large content is cut (FastCDC; Xia et al., USENIX ATC 2016).
// It is fixed for the life of a store, as only equal cuts find equal chunks.
type Chunking struct{ Min, Normal, Max int } // bytes

// DefaultChunking: chunks of 64 KiB on average keep a list of 64 MB in one
// record, and are what an edit of a large part costs.
var DefaultChunking = Chunking{Min: 16 << 10, Normal: 64 << 10, Max: 256 << 10}

// New returns the blobs of space on e.
func New(e engine.Engine, space *keys.Space, c Chunking) *Store {
	return &Store{engine: e, space: space, chunks: c}
}

// Marks are the marks of blobs as they were seen: what a batch guards to rely on
// them. A stale one only costs another attempt, as its guard fails.
type Marks map[ID][]byte

// A cache remembers what was seen last of blobs, so that most commits need not read
// their marks first.
type cache[V any] struct {
	mu   sync.Mutex // guards both maps
	a, b map[ID]V
}

const cached = 4096 // blobs in each of two generations: about 1 MB of marks

func (c *cache[V]) get(id ID) (v V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v, ok = c.a[id]; !ok {
		v, ok = c.b[id]
	}
	return v, ok
}

func (c *cache[V]) put(id ID, v V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.a == nil || len(c.a) >= cached {
		c.a, c.b = make(map[ID]V), c.a
	}
	c.a[id] = v
	delete(c.b, id)
}

func (c *cache[V]) forget(id ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.a, id)
	delete(c.b, id)
}

// A Draft is content on its way into a batch.
type Draft struct {
	ID     ID
	Size   int64
	Stored bool // the bytes are stored already: d can only be relied on
	rec    stored
}

// Bytes is the length of d's representation.
func (d *Draft) Bytes() int { return len(d.rec.data) + 36*len(d.rec.items) }

// Prepare compresses content, whose id the caller knows, but stores nothing. Content of
// more than 768 KiB gives ErrStream: put it with Write.
func Prepare(id ID, content []byte) (*Draft, error) {
	if len(content) > wholeBytes {
		return nil, ErrStream
	}
	d := &Draft{ID: id, Size: int64(len(content))}
	d.rec = stored{id: d.ID, size: d.Size, data: codec.Compress(nil, content, codec.Fast)}
	return d, nil
}

// ErrStream reports content that is too large for one batch.
var ErrStream = errors.New("blob: too large for one batch")

// items returns the blobs that d consists of, if it is a list.
func (d *Draft) items() []ID {
	out := make([]ID, len(d.rec.items))
	for i, it := range d.rec.items {
		out[i] = it.id
	}
	return out
}

// Add makes b store d, or rely on it when marks say that it is stored. A new list
// relies on its items. When Apply fails with a conflict on a mark, Refresh and build
// the batch again. Add fails with ErrNotFound when b would have to rely on a blob that
// marks lack.
func (s *Store) Add(b *engine.Batch, d *Draft, marks Marks) error {
	if s.Rely(b, d.ID, marks) {
		return nil
	}
	if d.Stored {
		return fmt.Errorf("%w: %s", ErrNotFound, d.ID)
	}
	for _, id := range d.items() {
		if !s.Rely(b, id, marks) {
			return fmt.Errorf("%w: %s, which is a part of %s", ErrNotFound, id, d.ID)
		}
	}
	h := s.space.BlobHash(d.ID)
	mark := s.space.Mark(h)
	ks, vs := d.rec.values(s.space, h)
	b.Guard(mark, nil)
	b.Set(mark, d.rec.mark(vs).Encode(mark))
	for i := range ks {
		b.Set(ks[i], vs[i])
	}
	return nil
}

// Rely makes b guard the mark of the stored blob id, and revive it when it is
// condemned. It reports whether marks have it.
func (s *Store) Rely(b *engine.Batch, id ID, marks Marks) bool {
	v := marks[id]
	if v == nil {
		return false
	}
	key := s.space.Mark(s.space.BlobHash(id))
	for _, g := range b.Guards {
		if bytes.Equal(g.Key, key) {
			return true // twice in one batch
		}
	}
	b.Guard(key, v)
	if m, err := DecodeMark(key, v); err == nil && m.Condemned {
		m.Condemned = false
		b.Set(key, m.Encode(key))
	}
	return true
}

// Hint adds to marks what was seen of ids, without reading.
func (s *Store) Hint(marks Marks, ids ...ID) {
	for _, id := range ids {
		if v, ok := s.marks.get(id); ok {
			marks[id] = v
		}
	}
}

// Known adds to marks those of ids, and reads what was not seen. It returns the
// ids that are not stored.
func (s *Store) Known(ctx context.Context, marks Marks, ids []ID) (absent []ID, err error) {
	s.Hint(marks, ids...)
	var unknown []ID
	for _, id := range ids {
		if marks[id] == nil {
			unknown = append(unknown, id)
		}
	}
	return s.Refresh(ctx, marks, unknown)
}

// Refresh reads the marks of ids into marks. It returns the ids that are not
// stored, which marks then lack.
func (s *Store) Refresh(ctx context.Context, marks Marks, ids []ID) (absent []ID, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	ks := make([][]byte, len(ids))
	for i, id := range ids {
		ks[i] = s.space.Mark(s.space.BlobHash(id))
	}
	vs, err := s.engine.Get(ctx, ks...)
	if err != nil {
		return nil, err
	}
	for i, v := range vs {
		if v == nil {
			s.marks.forget(ids[i])
			delete(marks, ids[i])
			absent = append(absent, ids[i])
			continue
		}
		if _, err := DecodeMark(ks[i], v); err != nil {
			return nil, codec.Corrupt(err, "mark of blob %s", ids[i])
		}
		s.marks.put(ids[i], v)
		marks[ids[i]] = v
	}
	return absent, nil
}

// Sizes returns the lengths of the contents of ids, in order, and -1 for one that is
// not stored. It reads only the sizes that are not in its cache.
func (s *Store) Sizes(ctx context.Context, ids []ID) ([]int64, error) {
	const atOnce = 16 // the first part of a representation is up to 480 KiB
	sizes := make([]int64, len(ids))
	var unknown []int
	for i, id := range ids {
		var ok bool
		if sizes[i], ok = s.sizes.get(id); !ok {
			unknown = append(unknown, i)
		}
	}
	for part := range slices.Chunk(unknown, atOnce) {
		ks := make([][]byte, len(part))
		for i, at := range part {
			ks[i] = s.space.Blob(s.space.BlobHash(ids[at]), 0)
		}
		vs, err := s.engine.Get(ctx, ks...)
		if err != nil {
			return nil, err
		}
		for i, at := range part {
			if sizes[at] = -1; vs[i] == nil {
				continue
			}
			r, _, err := decodeFirst(ids[at], ks[i], vs[i])
			if err != nil {
				return nil, codec.Corrupt(err, "blob %s", ids[at])
			}
			s.sizes.put(ids[at], r.size)
			sizes[at] = r.size
		}
	}
	return sizes, nil
}

// Applied tells s that b, which Add and Rely helped to build for blobs, was applied.
func (s *Store) Applied(b *engine.Batch, blobs []ID) {
	for _, id := range blobs {
		mark := s.space.Mark(s.space.BlobHash(id))
		for _, p := range b.Sets {
			if bytes.Equal(p.Key, mark) {
				s.marks.put(id, p.Value)
			}
		}
	}
}
