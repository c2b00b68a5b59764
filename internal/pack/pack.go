package pack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/hash"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/record"
)

// A Pack is the nodes of one commit.
type Pack struct {
	Revision uint64
	Salt     Salt
	Nodes    []Node

	// salts are the nodes' own ones, derived from Salt, which is gone when one
	// of the nodes was erased; else nil.
	salts [][hash.Size]byte
	// refs are the parents as they are stored, until Resolve.
	refs []ref
}

// A ref is a stored parent.
type ref struct {
	kind refKind
	back int // positions before the node
	id   graph.ID
}

type refKind byte

const (
	refRoot refKind = iota // null
	refBack                // uint: 0 is the node before, in this pack or the last of the one before it
	refID                  // byte string
)

// append encodes p: [revision, salt, [node…]], a node as
// [parent, kind, key, payload, attachments]. An erased node is
// [parent, kind, key, digest], and then the salt is an array of those of the
// nodes, null for an erased one. before is the id of the last node of the
// session before p.
func (p *Pack) append(e *codec.Encoder, before graph.ID) {
	e.Array(3)
	e.Uint(p.Revision)
	if p.salts == nil {
		e.Bytes(p.Salt[:])
	} else {
		e.Array(len(p.salts))
		for i := range p.salts {
			if p.Nodes[i].Erased {
				e.Null()
			} else {
				e.Bytes(p.salts[i][:])
			}
		}
	}
	e.Array(len(p.Nodes))
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Erased {
			e.Array(4)
		} else {
			e.Array(5)
		}
		p.appendParent(e, i, before)
		e.Text(n.Kind)
		e.Text(n.Key)
		if n.Erased {
			e.Bytes(n.Digest[:])
		} else {
			n.appendContent(e)
		}
	}
}

// Erase removes the content of the i-th node and the commit's salt, from which
// that of the node could be derived, and with it a short content be guessed.
// The ids stay as they are.
func (p *Pack) Erase(i int) {
	n := &p.Nodes[i]
	if n.Erased {
		return
	}
	if p.salts == nil {
		p.salts = make([][hash.Size]byte, len(p.Nodes))
		for j := range p.salts {
			p.salts[j] = hash.Salt.Sum(p.Salt[:], binary.AppendUvarint(nil, uint64(j)))
		}
		p.Salt = Salt{}
	}
	n.Digest, _ = n.digest(p.salts[i], nil)
	n.Erased, n.Inline, n.Blob, n.Size, n.Attachments = true, nil, blob.ID{}, 0, nil
	p.salts[i] = [hash.Size]byte{}
}

// Erased reports whether the content of one of p's nodes was removed.
func (p *Pack) Erased() bool { return p.salts != nil }

func (p *Pack) appendParent(e *codec.Encoder, i int, before graph.ID) {
	parent := p.Nodes[i].Parent
	if parent.IsZero() {
		e.Null()
		return
	}
	for back := range i {
		if p.Nodes[i-1-back].ID == parent {
			e.Uint(uint64(back))
			return
		}
	}
	if parent == before {
		e.Uint(uint64(i))
		return
	}
	e.Bytes(parent[:])
}

// decodePack decodes what append encodes. The nodes have no ids until Resolve.
func decodePack(d *codec.Decoder) (p Pack) {
	d.Shape(3)
	p.Revision = d.Uint()
	var salted []bool
	if d.NextIsArray() {
		p.salts = make([][hash.Size]byte, d.Array(MaxNodes))
		salted = make([]bool, len(p.salts))
		for i := range p.salts {
			if salted[i] = !d.Null(); salted[i] {
				d.Fixed(p.salts[i][:])
			}
		}
		if !slices.Contains(salted, false) {
			d.Fail("salts of nodes none of which is erased")
		}
	} else {
		d.Fixed(p.Salt[:])
	}
	n := d.Array(MaxNodes)
	if p.salts != nil && len(p.salts) != n {
		d.Fail("%d salts of %d nodes", len(p.salts), n)
		return p
	}
	p.Nodes, p.refs = make([]Node, n), make([]ref, n)
	for i := range p.Nodes {
		erased := p.salts != nil && !salted[i]
		if erased {
			d.Shape(4)
		} else {
			d.Shape(5)
		}
		switch {
		case d.Null():
		case d.NextIsUint():
			back := d.Uint()
			if back > uint64(i) {
				d.Fail("parent %d before node %d", back, i)
			}
			p.refs[i] = ref{kind: refBack, back: int(back)}
		default:
			p.refs[i] = ref{kind: refID}
			d.Fixed(p.refs[i].id[:])
		}
		p.Nodes[i].Kind, p.Nodes[i].Key = d.Text(), d.Text()
		if p.Nodes[i].Erased = erased; erased {
			d.Fixed(p.Nodes[i].Digest[:])
		} else {
			p.Nodes[i].decodeContent(d)
		}
	}
	return p
}

// Resolve derives the ids of p's nodes. before is the id of the last node of
// the session before p, or zero. It returns the id of p's last node.
func (p *Pack) Resolve(before graph.ID) (last graph.ID, err error) {
	last = before
	var scratch []byte
	for i := range p.Nodes {
		n := &p.Nodes[i]
		switch r := p.refs[i]; {
		case r.kind == refID:
			n.Parent = r.id
		case r.kind == refBack && r.back < i:
			n.Parent = p.Nodes[i-1-r.back].ID
		case r.kind == refBack:
			if before.IsZero() {
				return graph.ID{}, fmt.Errorf("%w: parent before the first node", record.ErrMalformed)
			}
			n.Parent = before
		}
		if p.salts != nil {
			scratch = n.derive(p.salts[i], scratch)
		} else {
			scratch = n.Derive(p.Salt, i, scratch)
		}
		last = n.ID
	}
	return last, nil
}

// Linear reports whether p's nodes are one chain that ends in leaf, so that
// leaf vouches for all of them.
func (p *Pack) Linear(leaf graph.ID) bool {
	for i := 1; i < len(p.Nodes); i++ {
		if p.Nodes[i].Parent != p.Nodes[i-1].ID {
			return false
		}
	}
	return len(p.Nodes) == 0 || p.Nodes[len(p.Nodes)-1].ID == leaf
}

// Digest is the digest of the list of p's node ids.
func (p *Pack) Digest() [hash.Size]byte {
	b := make([]byte, 0, len(p.Nodes)*hash.Size)
	for i := range p.Nodes {
		b = append(b, p.Nodes[i].ID[:]...)
	}
	return hash.Node.Sum(b)
}

// Uncompressed is what p counts for when it is decided whether a session has gathered
// enough to seal: about its encoded length.
func (p *Pack) Uncompressed() uint64 {
	n := uint64(24)
	for i := range p.Nodes {
		n += 40 + uint64(len(p.Nodes[i].Inline))
	}
	return n
}

// Size bounds p's encoded length from above.
func (p *Pack) Size() int {
	n := 64
	for i := range p.Nodes {
		node := &p.Nodes[i]
		n += 160 + len(node.Kind) + len(node.Key) + len(node.Inline)
		for _, a := range node.Attachments {
			n += 64 + len(a.MediaType) + len(a.Name)
		}
	}
	return n
}

// Sizes of segments.
const (
	maxSegment = 64 << 20  // uncompressed bytes
	partBytes  = 480 << 10 // of a segment in one value
	maxParts   = 256
)

// ErrPackTooLarge reports packs that do not fit a segment.
var ErrPackTooLarge = errors.New("pack: too large")

// buffers are what a segment is encoded in; its records are copies.
type buffers struct{ raw, data []byte }

var scratch = sync.Pool{New: func() any { return new(buffers) }}

// release gives s back, unless it is large.
func (s *buffers) release() {
	if cap(s.raw)+cap(s.data) <= 1<<20 {
		scratch.Put(s)
	}
}

// EncodeSegment returns the pairs that store packs as one segment. The packs are resolved, and
// before is the id of the last node of the session before them. At codec.Fast the segment is a
// loose pack, and there must be only one pack. At other levels the caller has to store the
// record of SealIndex as well.
func EncodeSegment(space *keys.Space, inc keys.Incarnation, packs []Pack, before graph.ID, level codec.Level) (ks, vs [][]byte, err error) {
	size := 64
	for i := range packs {
		size += packs[i].Size()
	}
	s := scratch.Get().(*buffers)
	defer s.release()
	e := codec.Encoder{B: slices.Grow(s.raw[:0], size)}
	e.Array(len(packs))
	for i := range packs {
		packs[i].append(&e, before)
		if n := len(packs[i].Nodes); n > 0 {
			before = packs[i].Nodes[n-1].ID
		}
	}
	if len(e.B) > maxSegment {
		return nil, nil, fmt.Errorf("%w: %d bytes", ErrPackTooLarge, len(e.B))
	}
	data := codec.Compress(s.data[:0], e.B, level)
	s.raw, s.data = e.B, data
	parts := (len(data) + partBytes - 1) / partBytes
	if parts > maxParts {
		return nil, nil, fmt.Errorf("%w: %d bytes compressed", ErrPackTooLarge, len(data))
	}
	last := packs[len(packs)-1].Revision
	for i := range parts {
		key := space.Pack(inc, last, i)
		body := data[i*partBytes : min(len(data), (i+1)*partBytes)]
		var front []byte
		if i == 0 {
			h := segmentHead{first: packs[0].Revision, parts: parts, level: level}
			front = h.append(make([]byte, 0, 24+prefixBytes*len(packs[0].Nodes)))
			if level == codec.Fast {
				front = packs[0].appendPrefixes(front)
			}
		}
		ks, vs = append(ks, key), append(vs, codec.Seal(key, keys.Pack, front, body))
	}
	return ks, vs, nil
}

// decodeSegment returns the packs of a segment from its joined values.
func decodeSegment(data []byte) ([]Pack, error) {
	raw, err := codec.Decompress(data, nil, maxSegment)
	if err != nil {
		return nil, err
	}
	d := codec.Decoder{B: raw}
	packs := make([]Pack, d.Array(1<<20))
	for i := range packs {
		packs[i] = decodePack(&d)
		if i > 0 && packs[i].Revision <= packs[i-1].Revision {
			d.Fail("revision %d after %d", packs[i].Revision, packs[i-1].Revision)
		}
	}
	if err := d.Done(); err != nil {
		return nil, err
	}
	if len(packs) == 0 {
		return nil, fmt.Errorf("%w: empty segment", record.ErrMalformed)
	}
	return packs, nil
}
