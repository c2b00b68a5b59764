package blob

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A Chain is the versions of a checkpoint part that a session stores by itself, in the
// order of the revisions that set them. A commit adds the last one, as a delta. Vacuum
// may store one of them whole, to remove those before.
//
//	revision   5       6       7       9
//	stored     blob ◄─ delta ◄─ delta ◄─ delta       as commits made them
//	                            whole ◄─ delta       after vacuum has removed 5 and 6
type Chain struct {
	Session keys.Incarnation
	Part    keys.Hash // of its name: see keys.Space.PartHash
}

// A Version is a version of a checkpoint part as a session stores it.
type Version struct {
	Revision uint64 // The revision that set the version.
	Base     uint64 // The revision whose version this one is a delta of. It is Revision itself if the version is stored whole.
	data     []byte // compressed
	count    int    // The first value says that so many values hold the version.
	keys     int    // The keys of the version go up to this one. They are more than count if vacuum was cut off while it stored the version whole.
}

// Header returns v without its data.
func (v Version) Header() Version {
	v.data = nil
	return v
}

// IsDelta reports whether v is stored relative to another version.
func (v *Version) IsDelta() bool { return v.Base != v.Revision }

// A Base is a version that a new version may be stored relative to. The caller passes its
// content, so that no read is needed.
type Base struct {
	ID       ID
	Revision uint64 // the revision that set the version
	Deltas   int    // how many deltas it is away from a version that is stored whole
	Content  []byte
}

// Delta returns content relative to base, or nil when content is better stored whole.
func Delta(content []byte, base *Base) ([]byte, error) {
	if len(content) > deltaBytes || len(base.Content) == 0 || base.Deltas >= MaxDeltas {
		return nil, nil
	}
	data, err := codec.Delta(base.Content, content)
	// A delta that saves nothing costs a chain for nothing. A fifth of the raw size
	// is about what the part takes when it is compressed by itself.
	if err != nil || len(data) >= len(content)/5 || len(data) >= valueBytes {
		return nil, err
	}
	return data, nil
}

// AddDelta makes b store a version as a delta. revision is the one that sets the
// version, and base the one that set the version which Delta made the delta from.
func (s *Store) AddDelta(b *engine.Batch, c Chain, revision, base uint64, delta []byte) {
	v := Version{Revision: revision, Base: base, data: delta}
	ks, vs := v.values(s.space, c)
	b.Set(ks[0], vs[0])
}

// Whole returns the pairs that store a version of c as a whole instead of as a delta.
// The first pair makes the version whole. A caller sets the other pairs before it: they
// have no effect until then.
func (s *Store) Whole(c Chain, revision uint64, content []byte) []engine.Pair {
	v := Version{Revision: revision, Base: revision, data: codec.Compress(nil, content, codec.Best)}
	ks, vs := v.values(s.space, c)
	pairs := make([]engine.Pair, len(ks))
	for i := range pairs {
		pairs[i] = engine.Pair{Key: ks[i], Value: vs[i]}
	}
	return pairs
}

// Data returns what a version is stored as: compressed bytes, those of a delta relative to the content of the version
// of Base.
func (v *Version) Data() []byte { return v.data }

// Pairs returns what stores a version of a chain with such data. The first pair makes the version one of the chain, and
// is small if it is followed by others, which have no effect before it is there.
func (s *Store) Pairs(c Chain, revision, base uint64, data []byte) (first engine.Pair, others []engine.Pair) {
	v := Version{Revision: revision, Base: base, data: data}
	var ks, vs [][]byte
	if len(data) <= smallVersion || v.IsDelta() { // A delta is one value.
		ks, vs = v.values(s.space, c)
		return engine.Pair{Key: ks[0], Value: vs[0]}, nil
	}
	ks, vs = v.behind(s.space, c)
	for i := range ks[1:] {
		others = append(others, engine.Pair{Key: ks[1+i], Value: vs[1+i]})
	}
	return engine.Pair{Key: ks[0], Value: vs[0]}, others
}

// smallVersion is how many bytes of data the first pair of a version has, if it is not followed by others.
const smallVersion = 1 << 10

// Keys returns the keys under which there may be values of v.
func (s *Store) Keys(c Chain, v *Version) [][]byte {
	ks := make([][]byte, v.keys)
	for i := range ks {
		ks[i] = s.space.Version(c.Session, c.Part, v.Revision, i)
	}
	return ks
}

// values returns the pairs that store v. The first value is the distance to the base
// (0 for none), the number of values, and data; the others are the rest of data.
func (v *Version) values(space *keys.Space, c Chain) (ks, vs [][]byte) {
	return v.pairs(space, c, values(len(v.data)), 0)
}

// behind is values with no data in the first value.
func (v *Version) behind(space *keys.Space, c Chain) (ks, vs [][]byte) {
	return v.pairs(space, c, 1+values(len(v.data)), 1)
}

// pairs returns the pairs that store v as n values, of which the first empty ones have no data.
func (v *Version) pairs(space *keys.Space, c Chain, n, empty int) (ks, vs [][]byte) {
	for i := range n {
		key := space.Version(c.Session, c.Part, v.Revision, i)
		var data []byte
		if at := i - empty; at >= 0 {
			data = v.data[at*valueBytes : min(len(v.data), (at+1)*valueBytes)]
		}
		var body []byte
		if i == 0 {
			body = binary.AppendUvarint(make([]byte, 0, len(data)+4), v.Revision-v.Base)
			body = binary.AppendUvarint(body, uint64(n))
		}
		ks, vs = append(ks, key), append(vs, codec.Encode(key, keys.Version, body, data))
	}
	return ks, vs
}

// decodeVersion decodes the first value of a version.
func decodeVersion(key, value, fields []byte) (v Version, err error) {
	body, err := codec.Decode(key, value, keys.Version)
	if err != nil {
		return v, err
	}
	v.Revision = binary.BigEndian.Uint64(fields[32:])
	distance, n := codec.Uvarint(body)
	bad := fmt.Errorf("%w: version", damage.ErrMalformed)
	if n <= 0 || distance > v.Revision {
		return v, bad
	}
	body = body[n:]
	count, n := codec.Uvarint(body)
	if n <= 0 || count < 1 || count > maxValues || distance > 0 && count > 1 {
		return v, bad
	}
	v.Base, v.count, v.keys, v.data = v.Revision-distance, int(count), 1, body[n:]
	return v, nil
}

// Chains yields the chains of a session.
func (s *Store) Chains(ctx context.Context, session keys.Incarnation) iter.Seq2[Chain, error] {
	r := s.space.Of(keys.Version, session)
	r.Limit = 1
	return func(yield func(Chain, error) bool) {
		for more := true; more; {
			more = false
			for p, err := range s.engine.Scan(ctx, r) {
				c := Chain{Session: session}
				if err == nil {
					_, fields, ok := s.space.Fields(p.Key)
					if !ok {
						err = codec.Corrupt(damage.ErrMalformed, "version of a checkpoint part at key %x", p.Key)
					} else {
						c.Part, more = keys.Hash(fields[16:32]), true
						r.Start = engine.Successor(s.space.Version(session, c.Part, math.MaxUint64, maxValues-1))
					}
				}
				if !yield(c, err) || err != nil {
					return
				}
			}
		}
	}
}

// Versions yields the versions of c that the session stores itself, from one revision
// up to another, in ascending order. A missing or damaged value is a
// *damage.CorruptError.
func (s *Store) Versions(ctx context.Context, c Chain, from, to uint64) iter.Seq2[Version, error] {
	r := engine.Range{Start: s.space.Version(c.Session, c.Part, from, 0), End: engine.Successor(s.space.Version(c.Session, c.Part, to, maxValues-1))}
	return func(yield func(Version, error) bool) {
		var v Version // the one whose values are being read; it has no keys before the first
		have := 0     // how many of its values were read
		done := func() bool {
			if v.keys == 0 {
				return true
			}
			if have < v.count {
				yield(v, c.damage(fmt.Errorf("%w: %d of %d values", damage.ErrMissing, have, v.count), v.Revision))
				return false
			}
			return yield(v, nil)
		}
		for p, err := range s.engine.Scan(ctx, r) {
			_, fields, ok := s.space.Fields(p.Key)
			if err == nil && !ok {
				err = codec.Corrupt(damage.ErrMalformed, "version of a checkpoint part at key %x", p.Key)
			}
			if err != nil {
				yield(v, err)
				return
			}
			revision, i := binary.BigEndian.Uint64(fields[32:]), int(fields[40])
			switch {
			case i == 0:
				if !done() {
					return
				}
				if v, err = decodeVersion(p.Key, p.Value, fields); err != nil {
					yield(v, c.damage(err, revision))
					return
				}
				have = 1
			case v.keys == 0 || revision != v.Revision:
				// Without the first value of its version it has no effect.
			default:
				v.keys = i + 1
				if i != have || i >= v.count {
					continue
				}
				more, err := codec.Decode(p.Key, p.Value, keys.Version)
				if err != nil {
					yield(v, c.damage(err, revision))
					return
				}
				v.data, have = append(slices.Clip(v.data), more...), have+1
			}
		}
		done()
	}
}

func (c *Chain) damage(err error, revision uint64) error {
	return codec.Corrupt(err, "version %d of a checkpoint part of incarnation %x", revision, c.Session)
}

// Expand returns the content of v. before is the content of the version that v is a
// delta of, and is not used if v is stored whole.
func (v *Version) Expand(before []byte) ([]byte, error) {
	return codec.Decompress(v.data, before, deltaBytes)
}

// expandChain returns the content of the last version of chain, and how many deltas there
// are. Each version is a delta of the one before, and the first may be one of before, the
// content of the version that revision set.
func (c *Chain) expandChain(chain []Version, before []byte, revision uint64) (content []byte, deltas int, err error) {
	pieces := codec.NewPieces(before)
	for i := range chain {
		v := &chain[i]
		if v.IsDelta() {
			if deltas++; v.Base != revision {
				return nil, 0, fmt.Errorf("%w: version %d, which version %d is a delta of", damage.ErrMissing, v.Base, v.Revision)
			}
		}
		if pieces, err = codec.Expand(v.data, pieces, deltaBytes); err != nil {
			return nil, 0, err
		}
		revision = v.Revision
	}
	return pieces.Bytes(), deltas, nil
}

// ReadVersion returns the content of the version of c that revision set, and by how many
// deltas it is away from a version that is stored whole. The chain began with the blob
// that the revision whole set: root returns the blob's id, and is called only if the
// blob is needed. The content is verified against its id, want.
func (s *Store) ReadVersion(ctx context.Context, c Chain, whole, revision uint64, want ID, root func(context.Context) (ID, error)) (content []byte, deltas int, err error) {
	var before [codec.HashSize]byte
	for {
		content, deltas, read, err := s.readVersion(ctx, c, whole, revision, want, root)
		var corrupt *damage.CorruptError
		// Vacuum may have stored the version anew, and removed what it was
		// relative to. It is damaged if two readings find the same.
		if err == nil || !errors.As(err, &corrupt) || read == before {
			return content, deltas, err
		}
		before = read
	}
}

// readVersion is one attempt of ReadVersion. It returns a digest of what it read, too.
func (s *Store) readVersion(ctx context.Context, c Chain, whole, revision uint64, want ID, root func(context.Context) (ID, error)) (content []byte, deltas int, read [codec.HashSize]byte, err error) {
	sum := codec.BlobHash.New()
	defer func() { read = sum.Sum() }()
	sum.Write([]byte("read")) // not the zero digest
	var chain []Version
	for v, err := range s.Versions(ctx, c, whole+1, revision) {
		if err != nil {
			return nil, 0, read, err
		}
		sum.Write(v.data)
		if !v.IsDelta() {
			chain = chain[:0]
		}
		chain = append(chain, v)
	}
	damaged := func(err error) error { return c.damage(err, revision) }
	if len(chain) == 0 || chain[len(chain)-1].Revision != revision {
		return nil, 0, read, damaged(damage.ErrMissing)
	}
	if chain[0].IsDelta() {
		id, err := root(ctx)
		if err == nil {
			content, err = s.Read(ctx, id)
		}
		if err != nil {
			return nil, 0, read, err
		}
	}
	if content, deltas, err = c.expandChain(chain, content, whole); err != nil {
		return nil, 0, read, damaged(err)
	}
	if Sum(content) != want {
		return nil, 0, read, damaged(damage.ErrHash)
	}
	return content, deltas, read, nil
}
