// Package foreign reads a store from the pairs of its engine, as docs/format.md says. It shares no code with the rest
// of the module, and uses a stock CBOR library, so that tests can compare what a stranger who has that page reads
// with what the store returns.
package foreign

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/fxamacker/cbor/v2"
	"github.com/zeebo/blake3"
)

// ID is a hash.
type ID [32]byte

// A Store is all that a namespace says.
type Store struct {
	Sessions map[string]*Session // by id

	pairs  map[string][]byte
	prefix string
	secret [32]byte
}

// A Session is a session that lives.
type Session struct {
	ID, Name, Model, Cwd, Group string
	Labels                      map[string]string
	Retention                   uint64
	Custom                      []byte // nil if there is none
	HostCreated, HostUpdated    uint64 // 0 if they are not set
	Inc                         [16]byte
	Revision                    uint64
	Commit, Leaf                ID
	Commits                     []Commit // its own, from revision 1
	Path                        []Node   // from the root to the leaf, inherited ones too
	Parts                       map[string][]byte
	Records                     map[string][]byte
	Kept                        map[string]uint64
	Usage                       []Usage
}

// A Commit is a commit of a session.
type Commit struct {
	ID, Previous, Leaf, Last ID
	Revision, Depth          uint64
	Nodes                    []Node
	PartsAt                  uint64
	Parts                    []Part // if the commit changed the checkpoint
	Usage                    []Usage
	Turn                     string
	Labels                   map[string]string
	Time                     uint64
	digest                   *ID
}

// A Part is a part of a checkpoint. Of one that carries over in a commit only Name and Set are known.
type Part struct {
	Name        string
	Blob        ID
	Size        uint64
	Set, Before uint64 // the revision that set it, and how many revisions before that its nearest whole version was set
}

// Usage is what a model used.
type Usage struct {
	Model  string
	Counts [6]uint64 // input, output, cached input, cache write, reasoning, cost
}

// A Node is an event.
type Node struct {
	ID, Parent  ID
	Kind, Key   string
	Payload     []byte
	Attachments []Attachment
	Erased      bool
	Hidden      bool // by a tombstone of the session that is read

	large *large // the payload, if it is a blob
}

type large struct {
	blob ID
	size uint64
}

// An Attachment is a blob of a node.
type Attachment struct {
	ID              ID
	Size            uint64
	MediaType, Name string
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// derived is BLAKE3 in its mode for deriving keys.
func derived(context string, parts ...[]byte) (out ID) {
	h := blake3.NewDeriveKey("turnstone v1 " + context)
	for _, p := range parts {
		h.Write(p)
	}
	h.Sum(out[:0])
	return out
}

// h is H of the page.
func (s *Store) h(kind byte, x []byte) string {
	k, err := blake3.NewKeyed(s.secret[:])
	if err != nil {
		panic(err)
	}
	k.Write([]byte{kind})
	k.Write(x)
	return string(k.Sum(nil)[:16])
}

func be(n uint64) string { return string(binary.BigEndian.AppendUint64(nil, n)) }

// record returns the body of the record at a key below the prefix, or nil.
func (s *Store) record(key string) ([]byte, error) {
	v, ok := s.pairs[s.prefix+key]
	if !ok {
		return nil, nil
	}
	return body(s.prefix+key, v)
}

// must is record for one that has to be there.
func (s *Store) must(key string) ([]byte, error) {
	b, err := s.record(key)
	if b == nil && err == nil {
		err = fmt.Errorf("there is no record at %x", key)
	}
	return b, err
}

func body(key string, v []byte) ([]byte, error) {
	if len(v) < 6 {
		return nil, fmt.Errorf("the record at %x has %d bytes", key, len(v))
	}
	end := len(v) - 4
	sum := crc32.Update(crc32.Checksum([]byte(key), castagnoli), castagnoli, v[:end])
	if sum != binary.LittleEndian.Uint32(v[end:]) {
		return nil, fmt.Errorf("the checksum of the record at %x does not match", key)
	}
	if v[0] != key[4] || v[1] != 1 {
		return nil, fmt.Errorf("the record at %x has type %q and version %d", key, v[0], v[1])
	}
	return v[2:end:end], nil
}

// deterministic is what the page allows of CBOR: see RFC 8949, section 4.2.1.
var deterministic = func() cbor.DecMode {
	m, err := cbor.DecOptions{
		IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden, DupMapKey: cbor.DupMapKeyEnforcedAPF,
		MaxArrayElements: 1 << 22, IntDec: cbor.IntDecConvertNone,
	}.DecMode()
	if err != nil {
		panic(err)
	}
	return m
}()

var canonical = func() cbor.EncMode {
	m, err := cbor.CoreDetEncOptions().EncMode()
	if err != nil {
		panic(err)
	}
	return m
}()

// items decodes a sequence of n items. Encoded again they have to give the same bytes.
func items(b []byte, n int) ([]any, error) {
	out := make([]any, n)
	rest := b
	var again bytes.Buffer
	for i := range out {
		var err error
		if rest, err = deterministic.UnmarshalFirst(rest, &out[i]); err != nil {
			return nil, fmt.Errorf("%x is no CBOR: %w", b[:min(len(b), 40)], err)
		}
		c, err := canonical.Marshal(out[i])
		if err != nil {
			return nil, err
		}
		again.Write(c)
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%d bytes follow %d items", len(rest), n)
	}
	if !bytes.Equal(again.Bytes(), b) {
		return nil, errors.New("CBOR that is not deterministic")
	}
	return out, nil
}

// encoded returns items as a sequence.
func encoded(items ...any) []byte {
	var b bytes.Buffer
	for _, i := range items {
		c, err := canonical.Marshal(i)
		if err != nil {
			panic(err)
		}
		b.Write(c)
	}
	return b.Bytes()
}

// A row takes the items of an array one after the other. The first item of another type than expected is an error,
// which sticks.
type row struct {
	items []any
	err   error
}

// array returns an item as a row of n items, or of any number if n is negative.
func array(item any, n int) *row {
	a, ok := item.([]any)
	if !ok || n >= 0 && len(a) != n {
		return &row{err: fmt.Errorf("%.80v is no array of %d items", item, n)}
	}
	return &row{items: a}
}

// bodyOf decodes a body that is one array of n items.
func bodyOf(b []byte, n int) *row {
	i, err := items(b, 1)
	if err != nil {
		return &row{err: err}
	}
	return array(i[0], n)
}

func (r *row) next() any {
	if len(r.items) == 0 {
		if r.err == nil {
			r.err = errors.New("an array ends early")
		}
		return nil
	}
	i := r.items[0]
	r.items = r.items[1:]
	return i
}

func take[T any](r *row) (v T) {
	i := r.next()
	v, ok := i.(T)
	if !ok && r.err == nil {
		r.err = fmt.Errorf("%.80v has type %T, and not %T", i, i, v)
	}
	return v
}

func (r *row) uint() uint64  { return take[uint64](r) }
func (r *row) text() string  { return take[string](r) }
func (r *row) bytes() []byte { return take[[]byte](r) }

// fixed takes a byte string of the length of dst, or null, which leaves it zero, if that may be.
func (r *row) fixed(dst []byte, null bool) {
	i := r.next()
	if i == nil && null {
		return
	}
	b, ok := i.([]byte)
	if (!ok || len(b) != len(dst)) && r.err == nil {
		r.err = fmt.Errorf("%.80v is no byte string of length %d", i, len(dst))
	}
	copy(dst, b)
}

func (r *row) id() (id ID) { r.fixed(id[:], false); return id }

// ref takes an id or null.
func (r *row) ref() (id ID) { r.fixed(id[:], true); return id }

// ends takes a leaf and a last node, which is null if it is the leaf.
func (r *row) ends() (leaf, last ID) {
	leaf, last = r.ref(), r.ref()
	if last == (ID{}) {
		last = leaf
	}
	return leaf, last
}

// signed takes a number in zigzag encoding.
func (r *row) signed() int64 {
	z := r.uint()
	return int64(z>>1) ^ -int64(z&1)
}

func (r *row) each(f func(*row), n int) {
	all := array(r.next(), -1)
	for _, i := range all.items {
		one := array(i, n)
		f(one)
		r.fail(one.err)
	}
	r.fail(all.err)
}

func (r *row) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *row) usage() (out []Usage) {
	r.each(func(u *row) {
		one := Usage{Model: u.text()}
		for i := range one.Counts {
			one.Counts[i] = u.uint()
		}
		out = append(out, one)
	}, 7)
	return out
}

func (r *row) labels() map[string]string {
	all := array(r.next(), -1)
	out := map[string]string{}
	for len(all.items) > 0 && all.err == nil {
		name := all.text()
		out[name] = all.text()
	}
	r.fail(all.err)
	return out
}

// parts takes parts of which all is known.
func (r *row) parts() (out []Part) {
	r.each(func(p *row) {
		out = append(out, Part{Name: p.text(), Blob: p.id(), Size: p.uint(), Set: p.uint(), Before: p.uint()})
	}, 5)
	return out
}

func (r *row) attachments() (out []Attachment) {
	r.each(func(a *row) {
		out = append(out, Attachment{ID: a.id(), Size: a.uint(), MediaType: a.text(), Name: a.text()})
	}, 4)
	return out
}
