package blob

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/hash"
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
	Revision uint64 // that set it
	Base     uint64 // the revision whose version this one is a delta of; Revision if it is stored whole
	data     []byte // compressed
	count    int    // values that hold it
	stray    int    // one more than the last value behind those: vacuum was cut off before it wrote the first
}

// Header returns v without its data.
func (v Version) Header() Version {
	v.data = nil
	return v
}

// IsDelta reports whether v is stored relative to another version.
func (v *Version) IsDelta() bool { return v.Base != v.Revision }

// A Base is the version that a new one may be stored relative to. The caller has its
// content at hand; nothing is read for it.
type Base struct {
	ID       ID
	Revision uint64 // that set it
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

// AddDelta makes b store the version of revision as a delta, which Delta returned, of
// the version of the revision base.
func (s *Store) AddDelta(b *engine.Batch, c Chain, revision, base uint64, delta []byte) {
	v := Version{Revision: revision, Base: base, data: delta}
	ks, vs := v.values(s.space, c)
	b.Set(ks[0], vs[0])
}

// Whole returns the pairs that store the version of c that a revision set whole. As
// long as the first pair is not set, the others have no effect.
func (s *Store) Whole(c Chain, revision uint64, content []byte) []engine.Pair {
	v := Version{Revision: revision, Base: revision, data: codec.Compress(nil, content, codec.Best)}
	ks, vs := v.values(s.space, c)
	pairs := make([]engine.Pair, len(ks))
	for i := range pairs {
		pairs[i] = engine.Pair{Key: ks[i], Value: vs[i]}
	}
	return pairs
}

// Keys returns the keys of the values that store v, and of stray ones.
func (s *Store) Keys(c Chain, v *Version) [][]byte {
	ks := make([][]byte, max(v.count, v.stray))
	for i := range ks {
		ks[i] = s.space.Version(c.Session, c.Part, v.Revision, i)
	}
	return ks
}

// values returns the pairs that store v. The first value is the distance to the base
// (0 for none), the number of values, and data; the others are the rest of data.
func (v *Version) values(space *keys.Space, c Chain) (ks, vs [][]byte) {
	n := values(len(v.data))
	for i := range n {
		key := space.Version(c.Session, c.Part, v.Revision, i)
		data := v.data[i*valueBytes : min(len(v.data), (i+1)*valueBytes)]
		var body []byte
		if i == 0 {
			body = binary.AppendUvarint(make([]byte, 0, len(data)+4), v.Revision-v.Base)
			body = binary.AppendUvarint(body, uint64(n))
		}
		ks, vs = append(ks, key), append(vs, codec.Seal(key, keys.Version, body, data))
	}
	return ks, vs
}

// openVersion decodes the first value of a version.
func openVersion(key, value, fields []byte) (v Version, err error) {
	body, err := codec.Open(key, value, keys.Version)
	if err != nil {
		return v, err
	}
	v.Revision = binary.BigEndian.Uint64(fields[32:])
	distance, n := codec.Uvarint(body)
	bad := fmt.Errorf("%w: version", codec.ErrMalformed)
	if n <= 0 || distance > v.Revision {
		return v, bad
	}
	body = body[n:]
	count, n := codec.Uvarint(body)
	if n <= 0 || count < 1 || count > maxValues || distance > 0 && count > 1 {
		return v, bad
	}
	v.Base, v.count, v.data = v.Revision-distance, int(count), body[n:]
	return v, nil
}

// Versions yields the versions of c from one revision up to another, which the session
// stores by itself. A missing or damaged value is a *codec.CorruptError.
func (s *Store) Versions(ctx context.Context, c Chain, from, to uint64) iter.Seq2[Version, error] {
	r := engine.Range{Start: s.space.Version(c.Session, c.Part, from, 0), End: engine.Successor(s.space.Version(c.Session, c.Part, to, maxValues-1))}
	return func(yield func(Version, error) bool) {
		var v Version // whose values are read
		have := 0     // of v.count; 0: v is none
		whole := func() (err error) {
			if have < v.count {
				err = codec.Corrupt(fmt.Errorf("%w: %d of %d values", codec.ErrMissing, have, v.count), "%s", c.name(v.Revision))
			}
			have = 0
			return err
		}
		for p, err := range s.engine.Scan(ctx, r) {
			if err != nil {
				yield(v, err)
				return
			}
			_, fields, ok := s.space.Fields(p.Key)
			if !ok {
				yield(v, codec.Corrupt(codec.ErrMalformed, "version of a checkpoint part at key %x", p.Key))
				return
			}
			revision, i := binary.BigEndian.Uint64(fields[32:]), int(fields[40])
			if i > 0 {
				if have == 0 || revision != v.Revision || i >= v.count {
					if have > 0 && revision == v.Revision {
						v.stray = i + 1
					}
					continue
				}
				more, err := codec.Open(p.Key, p.Value, keys.Version)
				if err == nil && i != have {
					err = codec.ErrMissing
				}
				if err != nil {
					yield(v, codec.Corrupt(err, "%s", c.name(revision)))
					return
				}
				if have == 1 {
					v.data = append(make([]byte, 0, len(v.data)+v.count*valueBytes), v.data...)
				}
				v.data, have = append(v.data, more...), have+1
				continue
			}
			if have > 0 {
				if err := whole(); err != nil || !yield(v, err) {
					if err != nil {
						yield(v, err)
					}
					return
				}
			}
			if v, err = openVersion(p.Key, p.Value, fields); err != nil {
				yield(v, codec.Corrupt(err, "%s", c.name(revision)))
				return
			}
			have = 1
		}
		if have > 0 {
			yield(v, whole())
		}
	}
}

func (c *Chain) name(revision uint64) string {
	return fmt.Sprintf("version %d of a checkpoint part of incarnation %x", revision, c.Session)
}

// Expand returns the content of v. before is the content of the version that v is a
// delta of; it is not looked at if v is whole.
func (v *Version) Expand(before []byte) ([]byte, error) {
	if v.IsDelta() && before == nil {
		before = []byte{}
	}
	if !v.IsDelta() {
		before = nil
	}
	return codec.Decompress(v.data, before, deltaBytes)
}

// ReadVersion returns the content of the version of c that a revision set, whose id is
// want, and how many deltas it is away from a version that is stored whole. whole is
// the revision of the blob that the chain began with; root returns the id of that.
// The content is verified.
func (s *Store) ReadVersion(ctx context.Context, c Chain, whole, revision uint64, want ID, root func(context.Context) (ID, error)) (content []byte, deltas int, err error) {
	var before [hash.Size]byte
	for {
		content, deltas, read, err := s.readVersion(ctx, c, whole, revision, want, root)
		var damage *codec.CorruptError
		// Vacuum may have stored the version anew, and removed what it was
		// relative to. It is damaged if two readings find the same.
		if err == nil || !errors.As(err, &damage) || read == before {
			return content, deltas, err
		}
		before = read
	}
}

// readVersion is one attempt of ReadVersion. It returns a digest of what it read, too.
func (s *Store) readVersion(ctx context.Context, c Chain, whole, revision uint64, want ID, root func(context.Context) (ID, error)) (content []byte, deltas int, read [hash.Size]byte, err error) {
	sum := hash.Blob.New()
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
	damaged := func(err error) error { return codec.Corrupt(err, "%s", c.name(revision)) }
	if len(chain) == 0 || chain[len(chain)-1].Revision != revision {
		return nil, 0, read, damaged(codec.ErrMissing)
	}
	last := whole
	if chain[0].IsDelta() {
		id, err := root(ctx)
		if err == nil {
			content, err = s.Read(ctx, id)
		}
		if err != nil {
			return nil, 0, read, err
		}
	} else {
		last = chain[0].Revision
	}
	for i := range chain {
		v := &chain[i]
		if v.IsDelta() && v.Base != last {
			return nil, 0, read, damaged(fmt.Errorf("%w: version %d, which version %d is a delta of", codec.ErrMissing, v.Base, v.Revision))
		}
		if v.IsDelta() {
			deltas++
		}
		if content, err = v.Expand(content); err != nil {
			return nil, 0, read, damaged(err)
		}
		last = v.Revision
	}
	if Sum(content) != want {
		return nil, 0, read, damaged(codec.ErrHash)
	}
	return content, deltas, read, nil
}
