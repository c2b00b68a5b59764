package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	chunkers "github.com/PlakarKorp/go-cdc-chunkers"
	_ "github.com/PlakarKorp/go-cdc-chunkers/chunkers/fastcdc" // registers "fastcdc"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/hash"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Store reads and writes the blobs of one namespace.
type Store struct {
	engine engine.Engine
	space  *keys.Space
	chunks Chunking
	marks  marks
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

// A marks remembers the marks that were seen last, so that a commit can guard
// one without reading it first. A stale one only costs a read: the guard fails.
type marks struct {
	mu   sync.Mutex // guards both maps
	a, b map[ID][]byte
}

const keptMarks = 4096 // in each of two generations: about 1 MB

func (m *marks) get(id ID) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v, ok := m.a[id]; ok {
		return v
	}
	return m.b[id]
}

func (m *marks) put(id ID, v []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.a == nil || len(m.a) >= keptMarks {
		m.a, m.b = make(map[ID][]byte), m.a
	}
	m.a[id] = v
	delete(m.b, id)
}

func (m *marks) forget(id ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.a, id)
	delete(m.b, id)
}

// A Draft is content on its way into a batch.
type Draft struct {
	ID      ID
	Size    int64
	Depends []ID // the base, or the items of a list: relied upon when the bytes are written
	Stored  bool // the bytes are stored already: d can only be relied on
	rec     record
}

// Stored returns the draft of a blob that Write has stored.
func Stored(id ID, size int64) *Draft { return &Draft{ID: id, Size: size, Stored: true} }

// Bytes is the length of d's representation.
func (d *Draft) Bytes() int { return len(d.rec.data) + 36*len(d.rec.items) }

// Depth is the length of the chain of deltas that ends with d, for Base.
func (d *Draft) Depth() int { return d.rec.depth }

// A Base is an earlier version that a new one may be stored relative to. The
// caller has its content at hand; nothing is read for it.
type Base struct {
	ID      ID
	Content []byte
	Depth   int // of its own chain, as Draft.Depth or ReadDepth gives it
}

// Prepare chooses a representation of content and does the work for it, but
// stores nothing. Content of more than 768 KiB without a useful base gives
// ErrStream: put it with Write.
func Prepare(content []byte, base *Base) (*Draft, error) {
	d := &Draft{ID: Sum(content), Size: int64(len(content))}
	d.rec = record{id: d.ID, form: whole, size: d.Size}
	if base != nil && base.ID != d.ID && base.Depth < maxDepth && len(content) <= deltaBytes && len(base.Content) > 0 {
		data, err := codec.Delta(base.Content, content)
		if err != nil {
			return nil, err
		}
		// A delta that saves nothing costs a chain for nothing. A fifth of the
		// raw size is about what the part compressed by itself takes.
		if len(data) < len(content)/5 && len(data) < partBytes {
			d.rec.form, d.rec.base, d.rec.depth, d.rec.data = delta, base.ID, base.Depth+1, data
			d.Depends = []ID{base.ID}
			return d, nil
		}
	}
	if len(content) > wholeBytes {
		return nil, ErrStream
	}
	d.rec.data = codec.Compress(nil, content, codec.Medium)
	return d, nil
}

// ErrStream reports content that is too large for one batch.
var ErrStream = errors.New("blob: too large for one batch")

// Add makes b store d, or rely on it when it is known to be stored, and guard
// what it relies on. When Apply fails with a conflict on a mark, call Refresh
// and build the batch again. Add fails with ErrNotFound when the mark of
// something that d depends on is not known: Refresh Draft.Depends first.
func (s *Store) Add(b *engine.Batch, d *Draft) error {
	h := s.space.BlobHash(d.ID)
	mark := s.space.Mark(h)
	if s.guard(b, mark, d.ID) {
		return nil
	}
	if d.Stored {
		return fmt.Errorf("%w: %s", ErrNotFound, d.ID)
	}
	for _, dep := range d.Depends {
		if !s.Rely(b, dep) {
			return fmt.Errorf("%w: %s, which %s is stored relative to", ErrNotFound, dep, d.ID)
		}
	}
	b.Guard(mark, nil)
	b.Set(mark, newMark(mark, live))
	ks, vs := d.rec.values(s.space, h)
	for i := range ks {
		b.Set(ks[i], vs[i])
	}
	return nil
}

// Rely makes b guard the stored blob id. It reports whether its mark is known;
// if it is not, Refresh it first.
func (s *Store) Rely(b *engine.Batch, id ID) bool {
	return s.guard(b, s.space.Mark(s.space.BlobHash(id)), id)
}

// guard makes b guard the known mark of id, and revive it when it is condemned.
func (s *Store) guard(b *engine.Batch, key []byte, id ID) bool {
	v := s.marks.get(id)
	if v == nil {
		return false
	}
	for _, g := range b.Guards {
		if bytes.Equal(g.Key, key) {
			return true // twice in one commit
		}
	}
	b.Guard(key, v)
	if st, err := decodeMark(key, v); err == nil && st == condemned {
		b.Set(key, newMark(key, live))
	}
	return true
}

// Refresh reads the marks of ids. It returns the ids that are not stored.
func (s *Store) Refresh(ctx context.Context, ids []ID) (absent []ID, err error) {
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
			absent = append(absent, ids[i])
			continue
		}
		if _, err := decodeMark(ks[i], v); err != nil {
			return nil, codec.Corrupt(err, "mark of blob %s", ids[i])
		}
		s.marks.put(ids[i], v)
	}
	return absent, nil
}

// Unknown returns those of ids whose marks have to be read before Add or Rely.
func (s *Store) Unknown(ids []ID) (unknown []ID) {
	for _, id := range ids {
		if s.marks.get(id) == nil {
			unknown = append(unknown, id)
		}
	}
	return unknown
}

// Applied tells s that b, which Add and Rely helped to build, was applied.
func (s *Store) Applied(b *engine.Batch, drafts []*Draft) {
	for _, d := range drafts {
		key := s.space.Mark(s.space.BlobHash(d.ID))
		for _, p := range b.Sets {
			if bytes.Equal(p.Key, key) {
				s.marks.put(d.ID, p.Value)
			}
		}
	}
}

// IsKey reports whether key is one of a mark, whose guard a writer retries.
func (s *Store) IsKey(key []byte) bool {
	letter, _ := s.space.Fields(key)
	return letter == keys.Mark
}

// Put stores d in a batch of its own.
func (s *Store) Put(ctx context.Context, d *Draft) error {
	for {
		var b engine.Batch
		if err := s.Add(&b, d); err != nil {
			return err
		}
		err := s.engine.Apply(ctx, &b)
		if err == nil {
			s.Applied(&b, []*Draft{d})
			return nil
		}
		if !errors.Is(err, engine.ErrConflict) && !errors.Is(err, engine.ErrUnknown) {
			return err
		}
		if _, err := s.Refresh(ctx, append([]ID{d.ID}, d.Depends...)); err != nil {
			return err
		}
	}
}

// Write stores what r delivers, in content-defined chunks that are deduplicated
// one by one, with memory for a few chunks. size is the length announced, or
// negative; another length is ErrSize, and more than MaxBytes ErrTooLarge. What
// was written before an error is garbage.
func (s *Store) Write(ctx context.Context, r io.Reader, size int64) (ID, int64, error) {
	cut, err := chunkers.NewChunker("fastcdc", r, &chunkers.ChunkerOpts{
		MinSize: s.chunks.Min, NormalSize: s.chunks.Normal, MaxSize: s.chunks.Max,
	})
	if err != nil {
		return ID{}, 0, err
	}
	w := treeWriter{store: s, whole: hash.Blob.New()}
	for {
		chunk, err := cut.Next()
		if err != nil && !errors.Is(err, io.EOF) {
			return ID{}, 0, fmt.Errorf("blob: read stream: %w", err)
		}
		if len(chunk) > 0 {
			if w.size += int64(len(chunk)); w.size > MaxBytes {
				return ID{}, 0, ErrTooLarge
			}
			if cerr := w.chunk(ctx, chunk); cerr != nil {
				return ID{}, 0, cerr
			}
		}
		if err != nil {
			break
		}
	}
	if size >= 0 && w.size != size {
		return ID{}, 0, fmt.Errorf("%w: %d bytes, not %d", ErrSize, w.size, size)
	}
	id, err := w.end(ctx)
	return id, w.size, err
}

// A treeWriter gathers chunks into lists, and full lists into one list of lists.
type treeWriter struct {
	store *Store
	whole *hash.Hasher // of everything
	size  int64
	lists []item // full lists
	items []item // of the list that fills
	span  *hash.Hasher
}

func (w *treeWriter) chunk(ctx context.Context, c []byte) error {
	d, err := Prepare(c, nil)
	if err != nil {
		return err
	}
	if err := w.store.Put(ctx, d); err != nil {
		return err
	}
	if len(w.items) == maxList {
		if err := w.flush(ctx); err != nil {
			return err
		}
	}
	if w.span == nil {
		w.span = hash.Blob.New()
	}
	w.span.Write(c)
	w.whole.Write(c)
	w.items = append(w.items, item{d.ID, d.Size})
	return nil
}

// flush stores the list that fills as a blob of its own.
func (w *treeWriter) flush(ctx context.Context) error {
	id := ID(w.span.Sum())
	w.span = nil
	it, err := w.store.putList(ctx, id, w.items)
	w.lists, w.items = append(w.lists, it), nil
	return err
}

func (w *treeWriter) end(ctx context.Context) (ID, error) {
	id := ID(w.whole.Sum())
	if w.size == 0 {
		d, err := Prepare(nil, nil)
		if err != nil {
			return ID{}, err
		}
		return d.ID, w.store.Put(ctx, d)
	}
	if len(w.lists) == 0 {
		if len(w.items) == 1 {
			return id, nil // the chunk is the blob
		}
		_, err := w.store.putList(ctx, id, w.items)
		return id, err
	}
	if len(w.items) > 0 {
		if err := w.flush(ctx); err != nil {
			return ID{}, err
		}
	}
	_, err := w.store.putList(ctx, id, w.lists)
	return id, err
}

func (s *Store) putList(ctx context.Context, id ID, items []item) (item, error) {
	d := &Draft{ID: id, rec: record{id: id, form: list, items: items}}
	for _, it := range items {
		d.Size += it.size
		d.Depends = append(d.Depends, it.id)
	}
	d.rec.size = d.Size
	unknown := s.Unknown(d.Depends)
	absent, err := s.Refresh(ctx, unknown)
	if err == nil && len(absent) > 0 {
		err = fmt.Errorf("%w: %s was removed while it was uploaded", ErrNotFound, absent[0])
	}
	if err != nil {
		return item{}, err
	}
	return item{id, d.Size}, s.Put(ctx, d)
}
