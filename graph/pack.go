package graph

import (
	"encoding/binary"
	"fmt"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A Pack is the nodes of one commit.
type Pack struct {
	Revision uint64
	Salt     Salt
	Nodes    []Node

	// salts are the nodes' own ones, derived from Salt, which is gone when one
	// of the nodes was erased; else nil.
	salts [][codec.HashSize]byte
	// refs are the parents as they are stored, until Resolve.
	refs []ref
}

// A ref is a stored parent.
type ref struct {
	kind refKind
	back int // positions before the node
	id   ID
}

type refKind byte

const (
	refRoot refKind = iota // null
	refBack                // uint: 0 is the node before, in this pack or the last of the one before it
	refID                  // byte string
)

// Append encodes p as two items: salt and [node, …]. A node is [parent, kind, key, payload,
// attachments]. An erased node is [parent, kind, key, digest]. If p has an erased node, salt is an
// array of the salts of the nodes, with null for an erased one. A pack without nodes has null as
// its salt. Append appends inline payloads to payloads, and returns the result: by themselves they
// compress better. before is the id of the last node of the session before p, or zero if a reader
// of p will not know it.
func (p *Pack) Append(e *codec.Encoder, payloads []byte, before ID) []byte {
	switch {
	case len(p.Nodes) == 0:
		e.Null()
	case p.salts == nil:
		e.Bytes(p.Salt[:])
	default:
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
			payloads = n.appendContent(e, payloads)
		}
	}
	return payloads
}

// Erase removes the content of the i-th node. It also removes the commit's salt, because the
// node's salt can be derived from that, and with the node's salt somebody could guess a short
// content. The ids stay as they are.
func (p *Pack) Erase(i int) {
	n := &p.Nodes[i]
	if n.Erased {
		return
	}
	if p.salts == nil {
		p.salts = make([][codec.HashSize]byte, len(p.Nodes))
		for j := range p.salts {
			p.salts[j] = codec.SaltHash.Sum(p.Salt[:], binary.AppendUvarint(nil, uint64(j)))
		}
		p.Salt = Salt{}
	}
	n.Digest, _ = n.digest(p.salts[i], nil)
	n.Erased, n.Inline, n.Blob, n.Sum, n.Size, n.Attachments = true, nil, blob.ID{}, blob.ID{}, 0, nil
	p.salts[i] = [codec.HashSize]byte{}
}

// Cut removes the nodes from the n-th on. The others keep their ids.
func (p *Pack) Cut(n int) {
	p.Nodes = p.Nodes[:n:n]
	if p.salts != nil {
		p.salts = p.salts[:n:n]
	}
}

// Erased reports whether the content of one of p's nodes was removed.
func (p *Pack) Erased() bool { return p.salts != nil }

func (p *Pack) appendParent(e *codec.Encoder, i int, before ID) {
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

// Decode decodes what Append encodes for the commit of a revision, and returns the rest of
// payloads. The nodes alias payloads, and have no ids until Resolve.
func Decode(d *codec.Decoder, payloads []byte, revision uint64) (p Pack, rest []byte) {
	p.Revision = revision
	var salted []bool
	empty := false
	switch {
	case d.Null():
		empty = true
	case d.NextIsArray():
		p.salts = make([][codec.HashSize]byte, d.Array(MaxNodes))
		salted = make([]bool, len(p.salts))
		for i := range p.salts {
			if salted[i] = !d.Null(); salted[i] {
				d.Fixed(p.salts[i][:])
			}
		}
	default:
		d.Fixed(p.Salt[:])
	}
	n := d.Array(MaxNodes)
	if empty != (n == 0) || p.salts != nil && len(p.salts) != n {
		d.Fail("%d salts of %d nodes", len(p.salts), n)
		return p, payloads
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
			payloads = p.Nodes[i].decodeContent(d, payloads)
		}
	}
	return p, payloads
}

// Resolve derives the ids of p's nodes. before is the id of the last node of
// the session before p, or zero. It returns the id of p's last node.
func (p *Pack) Resolve(before ID) (last ID, err error) {
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
				return ID{}, fmt.Errorf("%w: parent before the first node", damage.ErrMalformed)
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
func (p *Pack) Linear(leaf ID) bool {
	for i := 1; i < len(p.Nodes); i++ {
		if p.Nodes[i].Parent != p.Nodes[i-1].ID {
			return false
		}
	}
	return len(p.Nodes) == 0 || p.Nodes[len(p.Nodes)-1].ID == leaf
}

// Digest is the digest of the list of p's node ids.
func (p *Pack) Digest() [codec.HashSize]byte {
	b := make([]byte, 0, len(p.Nodes)*codec.HashSize)
	for i := range p.Nodes {
		b = append(b, p.Nodes[i].ID[:]...)
	}
	return codec.NodeHash.Sum(b)
}

// A Position says where a node is: in which commit, and which of its nodes it is.
type Position struct {
	Revision uint64
	Index    int
}

// Before reports whether p was committed before q.
func (p Position) Before(q Position) bool {
	return p.Revision < q.Revision || p.Revision == q.Revision && p.Index < q.Index
}

// EncodeAttachment returns the record that maps an attachment to the position of the first
// node that has it.
func (p Position) EncodeAttachment(key []byte) []byte {
	body := binary.AppendUvarint(make([]byte, 0, 16), p.Revision)
	return codec.Encode(key, keys.Attachment, binary.AppendUvarint(body, uint64(p.Index)))
}

// DecodeAttachment decodes what EncodeAttachment encodes.
func DecodeAttachment(key, value []byte) (p Position, err error) {
	body, err := codec.Decode(key, value, keys.Attachment)
	if err != nil {
		return Position{}, err
	}
	rev, n := codec.Uvarint(body)
	if n <= 0 {
		return Position{}, fmt.Errorf("%w: position", damage.ErrMalformed)
	}
	pos, m := codec.Uvarint(body[n:])
	if m <= 0 || n+m != len(body) || pos >= MaxNodes {
		return Position{}, fmt.Errorf("%w: position", damage.ErrMalformed)
	}
	return Position{Revision: rev, Index: int(pos)}, nil
}

// Bytes is the size of the payloads of p's nodes that are not erased.
func (p *Pack) Bytes() (n uint64) {
	for i := range p.Nodes {
		n += uint64(p.Nodes[i].Size)
	}
	return n
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
