package blob

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"slices"
	"time"

	chunkers "github.com/PlakarKorp/go-cdc-chunkers"
	_ "github.com/PlakarKorp/go-cdc-chunkers/chunkers/fastcdc" // registers "fastcdc"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// An Upload stores blobs before something refers to them. It stores each blob in one
// batch with a pin, and garbage collection keeps the blobs that an upload pins until the
// upload is finished or expires. An Upload is used by one goroutine at a time.
type Upload struct {
	store   *Store
	id      [16]byte
	owner   keys.Incarnation
	key     []byte
	record  []byte
	begun   bool // record is stored
	unknown bool // an attempt may stand whose outcome was not known
	expires time.Time
}

// NewUpload returns an upload for the session owner, of an id that was never used
// before. It may be collected after expires, or when the session is deleted. Nothing is
// stored before the first Put.
func (s *Store) NewUpload(id [16]byte, owner keys.Incarnation, expires time.Time) *Upload {
	u := &Upload{store: s, id: id, owner: owner, expires: expires}
	u.key = s.space.Upload(u.id, keys.Hash{})
	u.record = newPin(u.key, Uploading, expires, owner[:])
	return u
}

// A Pin is a record under keys.Upload. It keeps an upload, or a blob that an upload has
// stored, from garbage collection.
type Pin struct {
	Kind    PinKind
	Expires time.Time        // zero for Pinned
	Owner   keys.Incarnation // for Uploading: the session of the upload
	Granted Attachment       // for Grant: the attachment of the finished upload
}

// A PinKind tells the records under keys.Upload apart.
type PinKind byte

// Kinds.
const (
	Uploading PinKind = 'u' // The upload itself. Its key has the zero blob.
	Pinned    PinKind = 'h' // A blob, which is kept as long as its upload stands.
	Grant     PinKind = 't' // A blob of a finished upload, which the session may commit.
)

// newPin returns the record of an upload, of which more is the owner, or of a grant, of which it is what was granted.
// Random bytes make every value unique, so that a guard on one value is never true of a later one.
func newPin(key []byte, kind PinKind, expires time.Time, more []byte) []byte {
	body := binary.BigEndian.AppendUint64([]byte{byte(kind)}, uint64(max(expires.UnixNano(), 0)))
	return codec.Encode(key, keys.Upload, append(body, more...), binary.LittleEndian.AppendUint64(nil, mathrand.Uint64()))
}

// DecodePin decodes a record under keys.Upload.
func DecodePin(key, value []byte) (p Pin, err error) {
	body, err := codec.Decode(key, value, keys.Upload)
	if err != nil {
		return p, err
	}
	if len(body) > 0 {
		p.Kind = PinKind(body[0])
	}
	switch {
	case p.Kind == Pinned && len(body) == 1:
		return p, nil
	case p.Kind == Uploading && len(body) == 33:
		copy(p.Owner[:], body[9:])
	case p.Kind == Grant && len(body) > 17:
		d := codec.Decoder{B: body[9 : len(body)-8]}
		d.Shape(4)
		d.Fixed(p.Granted.ID[:])
		p.Granted.Size, p.Granted.MediaType, p.Granted.Name = Size(&d), d.Text(), d.Text()
		if err := d.Done(); err != nil {
			return p, err
		}
	default:
		return p, fmt.Errorf("%w: upload", damage.ErrMalformed)
	}
	p.Expires = time.Unix(0, int64(binary.BigEndian.Uint64(body[1:]))).UTC()
	return p, nil
}

// granted encodes what a grant is of.
func granted(a *Attachment) []byte {
	var e codec.Encoder
	e.Array(4)
	e.Bytes(a.ID[:])
	e.Uint(uint64(a.Size))
	e.Text(a.MediaType)
	e.Text(a.Name)
	return e.B
}

// Put stores drafts in a batch of their own, which has to have room for them, or finds that they are stored. The upload
// pins them from then on.
func (u *Upload) Put(ctx context.Context, of ...*Draft) error {
	return u.put(ctx, of, func(b *engine.Batch) (mine engine.Pair, err error) {
		for _, d := range of {
			mine = u.pin(b, d.ID)
		}
		return mine, nil
	})
}

// pin makes b pin a blob for the upload, and returns the record.
func (u *Upload) pin(b *engine.Batch, id ID) engine.Pair {
	key := u.store.space.Upload(u.id, u.store.space.BlobHash(id))
	b.Set(key, codec.Encode(key, keys.Upload, []byte{byte(Pinned)}))
	return b.Sets[len(b.Sets)-1]
}

// Grant is Put that ends the upload. A grant pins d for the session of the upload until
// the grant expires or a commit refers to d, and d keeps the blobs that it is made of. The grant has
// the media type and the name. alive is called before each attempt: it makes the batch guard that the session lives,
// or returns the error that Grant ends with.
func (u *Upload) Grant(ctx context.Context, d *Draft, mediaType, name string, alive func(*engine.Batch) error) error {
	return u.put(ctx, []*Draft{d}, func(b *engine.Batch) (engine.Pair, error) {
		u.Finish(b)
		u.pin(b, d.ID) // gc comes to this record with those of the blobs that d consists of
		key := u.store.space.Upload(u.owner, u.store.space.BlobHash(d.ID))
		b.Set(key, newPin(key, Grant, u.expires, granted(&Attachment{ID: d.ID, Size: d.Size, MediaType: mediaType, Name: name})))
		return b.Sets[len(b.Sets)-1], alive(b)
	})
}

// begin stores the upload's record, in a batch without content. Every batch with
// content guards that record, whose value never recurs. So an attempt with an unknown
// outcome that arrives after the upload has ended does not bring content back.
func (u *Upload) begin(ctx context.Context) error {
	if u.begun {
		return nil
	}
	var b engine.Batch
	b.Guard(u.key, nil)
	b.Set(u.key, u.record)
	err := u.apply(ctx, &b)
	if u.unknown && errors.Is(err, engine.ErrConflict) { // The conflict may be with the first attempt.
		err = u.stands(ctx)
	}
	u.begun = err == nil
	return err
}

// apply applies b, and again as long as the outcome is not known.
func (u *Upload) apply(ctx context.Context, b *engine.Batch) error {
	unknown, err := engine.ApplyUntilKnown(ctx, u.store.engine, b)
	u.unknown = u.unknown || unknown
	return err
}

// put stores those drafts that are not stored yet in one batch with their pins. The function pin adds the pins
// to the batch and returns the last one: if that record is there after a conflict, an earlier
// attempt has been applied.
func (u *Upload) put(ctx context.Context, of []*Draft, pin func(*engine.Batch) (engine.Pair, error)) (err error) {
	defer func() {
		if err != nil && u.unknown && !errors.Is(err, engine.ErrUnknown) {
			err = fmt.Errorf("%w: %w", engine.ErrUnknown, err)
		}
	}()
	if err := u.begin(ctx); err != nil {
		return err
	}
	s, marks := u.store, Marks{}
	var ids, needed, all []ID // the drafts, what has to be stored, and both
	for _, d := range of {
		ids, needed = append(ids, d.ID), append(needed, d.items()...)
		if d.Stored {
			needed = append(needed, d.ID)
		}
	}
	all = append(slices.Clone(needed), ids...)
	s.Hint(marks, ids...)
	if _, err := s.Known(ctx, marks, needed); err != nil {
		return err
	}
	for {
		var b engine.Batch
		b.Guard(u.key, u.record)
		mine, err := pin(&b)
		if err != nil {
			return err
		}
		for _, d := range of {
			if err := s.Add(&b, d, marks); err != nil {
				return err
			}
		}
		err = u.apply(ctx, &b)
		var conflict *engine.ConflictError
		switch {
		case err == nil:
			for _, d := range of {
				s.sizes.put(d.ID, d.Size)
			}
			s.Applied(&b, ids)
			return nil
		case !errors.Is(err, engine.ErrConflict):
			return err
		case errors.As(err, &conflict) && string(conflict.Key) == string(u.key):
			vs, err := s.engine.Get(ctx, mine.Key)
			if err != nil {
				return err
			}
			if u.unknown && string(vs[0]) == string(mine.Value) {
				return nil // the first attempt was applied, and has ended the upload
			}
			return ErrExpired
		}
		if _, err := s.Refresh(ctx, marks, all); err != nil {
			return err
		}
	}
}

// Stands fails with ErrExpired if the upload has stored something and its record is not there any more.
func (u *Upload) Stands(ctx context.Context) error {
	if !u.begun {
		return nil
	}
	return u.stands(ctx)
}

// stands fails with ErrExpired if the upload's record is not there.
func (u *Upload) stands(ctx context.Context) error {
	vs, err := u.store.engine.Get(ctx, u.key)
	if err == nil && string(vs[0]) != string(u.record) {
		err = ErrExpired
	}
	return err
}

// Guard makes b guard that the upload stands. So what it pinned is there when b is applied.
func (u *Upload) Guard(b *engine.Batch) {
	if u.begun {
		b.Guard(u.key, u.record)
	}
}

// Finish makes b end the upload. The blob that b refers to keeps from then on the blobs
// that the upload pinned. b need not guard that the upload still stands: b guards the mark
// of the blob that it refers to, and a list is collected before its items.
func (u *Upload) Finish(b *engine.Batch) {
	if u.begun {
		b.Delete(u.key)
	}
}

// Abandon ends the upload, so that the next collection deletes the blobs that it pinned.
func (u *Upload) Abandon(ctx context.Context) error {
	if !u.begun {
		return nil
	}
	b := engine.Batch{Reclaim: true}
	u.Finish(&b)
	return u.store.engine.Apply(ctx, &b)
}

// Write cuts what r delivers into content-defined chunks and stores those that are not stored
// yet, with memory for a few. The upload pins them. Write returns the blob of the whole content,
// which it has not stored: the caller has to call Put or Grant with it. If size is not negative
// and the content has another length, the error matches ErrSize. If the content has more
// than MaxBytes, it is ErrTooLarge.
func (u *Upload) Write(ctx context.Context, r io.Reader, size int64) (*Draft, error) {
	c := u.store.chunks
	cut, err := chunkers.NewChunker("fastcdc", r, &chunkers.ChunkerOpts{MinSize: c.Min, NormalSize: c.Normal, MaxSize: c.Max})
	if err != nil {
		return nil, err
	}
	w := treeWriter{up: u, whole: codec.BlobHash.New()}
	for {
		chunk, err := cut.Next()
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("blob: read stream: %w", err)
		}
		if len(chunk) > 0 {
			if w.size += int64(len(chunk)); w.size > MaxBytes {
				return nil, ErrTooLarge
			}
			if cerr := w.chunk(ctx, chunk); cerr != nil {
				return nil, cerr
			}
		}
		if err != nil {
			break
		}
	}
	if size >= 0 && w.size != size {
		return nil, fmt.Errorf("%w: %d bytes, not %d", ErrSize, w.size, size)
	}
	return w.end(ctx)
}

// A treeWriter gathers chunks into lists, and full lists into one list of lists.
// The last chunk waits: alone, it is the whole.
type treeWriter struct {
	up    *Upload
	whole *codec.Hasher // of everything
	size  int64
	lists []item // full lists
	items []item // of the list that fills
	span  *codec.Hasher
	last  *Draft
}

func (w *treeWriter) chunk(ctx context.Context, c []byte) error {
	d, err := Prepare(Sum(c), c)
	if err != nil {
		return err
	}
	if err := w.putLast(ctx); err != nil {
		return err
	}
	if len(w.items) == maxList {
		if err := w.flush(ctx); err != nil {
			return err
		}
	}
	if w.span == nil {
		w.span = codec.BlobHash.New()
	}
	w.span.Write(c)
	w.whole.Write(c)
	w.items, w.last = append(w.items, item{d.ID, d.Size}), d
	return nil
}

func (w *treeWriter) putLast(ctx context.Context) error {
	if w.last == nil {
		return nil
	}
	err := w.up.Put(ctx, w.last)
	w.last = nil
	return err
}

// flush stores the list that fills as a blob of its own.
func (w *treeWriter) flush(ctx context.Context) error {
	d := newList(ID(w.span.Sum()), w.items)
	w.lists = append(w.lists, item{d.ID, d.Size})
	w.span, w.items = nil, nil
	return w.up.Put(ctx, d)
}

func (w *treeWriter) end(ctx context.Context) (*Draft, error) {
	switch {
	case w.size == 0:
		return Prepare(Sum(nil), nil)
	case len(w.lists) == 0 && len(w.items) == 1:
		return w.last, nil
	}
	if err := w.putLast(ctx); err != nil {
		return nil, err
	}
	id := ID(w.whole.Sum())
	if len(w.lists) == 0 {
		return newList(id, w.items), nil
	}
	if len(w.items) > 0 {
		if err := w.flush(ctx); err != nil {
			return nil, err
		}
	}
	return newList(id, w.lists), nil
}

func newList(id ID, items []item) *Draft {
	d := &Draft{ID: id, rec: stored{id: id, items: items}}
	for _, it := range items {
		d.Size += it.size
	}
	d.rec.size = d.Size
	return d
}

// Uploaded returns the blobs that uploads and grants pin, as keys name them.
func (s *Store) Uploaded(ctx context.Context) (map[keys.Hash]bool, error) {
	out := map[keys.Hash]bool{}
	err := s.uploads(ctx, s.space.All(keys.Upload), func(h keys.Hash, _ engine.Pair) error {
		out[h] = true
		return nil
	})
	return out, err
}

// Granted returns the grants of a session: what was uploaded and no commit refers to yet.
func (s *Store) Granted(ctx context.Context, inc keys.Incarnation) (out []Pin, err error) {
	err = s.uploads(ctx, s.space.Of(keys.Upload, inc), func(_ keys.Hash, p engine.Pair) error {
		pin, err := DecodeGrant(p.Key, p.Value)
		out = append(out, pin)
		return err
	})
	return out, err
}

// DecodeGrant decodes the grant of key.
func DecodeGrant(key, value []byte) (Pin, error) {
	p, err := DecodePin(key, value)
	if err == nil && p.Kind != Grant {
		err = fmt.Errorf("%w: it is no grant", damage.ErrMalformed)
	}
	return p, codec.Corrupt(err, "grant at key %x", key)
}

// uploads calls f for the upload records in a range, with the blobs that they name.
func (s *Store) uploads(ctx context.Context, r engine.Range, f func(keys.Hash, engine.Pair) error) error {
	for p, err := range s.engine.Scan(ctx, r) {
		if err != nil {
			return err
		}
		_, fields, ok := s.space.Fields(p.Key)
		if !ok {
			return codec.Corrupt(damage.ErrMalformed, "upload at key %x", p.Key)
		}
		if err := f(keys.Hash(fields[16:]), p); err != nil {
			return err
		}
	}
	return nil
}
