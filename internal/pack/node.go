// Package pack stores the nodes of a session. The nodes of one commit are a pack. A commit
// writes it as a loose pack; sealing compresses many packs into one segment. An index of the
// first bytes of ids finds a node.
//
// # Identity
//
// A node's id is the hash of its parent, kind, key, and a salted digest of its content (payload
// and attachments). So an id vouches for every node on the path to it. Vacuum can erase the
// content and the salt and keep the digest: the id stays, and the digest betrays nothing, not
// even of a short text. A node's own id is not stored: Pack.Resolve computes it. A parent is
// stored as a distance if it is near, else as its id.
package pack

import (
	"encoding/binary"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/hash"
)

// A Node is one event as it is stored.
type Node struct {
	ID     graph.ID
	Parent graph.ID // zero for a root
	Kind   string
	Key    string // the caller's, for example a provider's message id; may be empty

	// The payload: Inline, or Blob when that is set.
	Inline []byte
	Blob   blob.ID
	Size   int64 // of the payload, in bytes

	Attachments []blob.Attachment

	// Erased says that vacuum removed payload, attachments and salt; what is
	// left of them is Digest, which is set for no other node.
	Erased bool
	Digest [hash.Size]byte
}

// Salt makes digests of equal contents differ. There is one a commit.
type Salt [16]byte

// Derive computes n.ID from the other fields, the commit's salt and the node's
// position in its commit. It works in scratch, and returns that for the next.
func (n *Node) Derive(salt Salt, position int, scratch []byte) []byte {
	scratch = binary.AppendUvarint(scratch[:0], uint64(position))
	return n.derive(hash.Salt.Sum(salt[:], scratch), scratch)
}

// derive is Derive with the node's own salt, of which an erased one has no need.
func (n *Node) derive(own [hash.Size]byte, scratch []byte) []byte {
	content := n.Digest
	if !n.Erased {
		content, scratch = n.digest(own, scratch)
	}
	e := codec.Encoder{B: scratch[:0]}
	e.Array(4)
	e.ID(n.Parent)
	e.Text(n.Kind)
	e.Text(n.Key)
	e.Bytes(content[:])
	n.ID = hash.Node.Sum(e.B)
	return e.B
}

// digest is the salted digest of n's content.
func (n *Node) digest(own [hash.Size]byte, scratch []byte) (sum [hash.Size]byte, _ []byte) {
	c := codec.Encoder{B: scratch[:0]}
	n.appendContent(&c)
	return hash.Content.Sum(own[:], c.B), c.B
}

// Blobs returns the blobs that n refers to.
func (n *Node) Blobs() []blob.ID {
	var out []blob.ID
	if !n.Blob.IsZero() {
		out = append(out, n.Blob)
	}
	for _, a := range n.Attachments {
		out = append(out, a.ID)
	}
	return out
}

// appendContent encodes what erasure removes: the payload (a byte string, or an
// array of blob id and size) and the attachments.
func (n *Node) appendContent(e *codec.Encoder) {
	if n.Blob.IsZero() {
		e.Bytes(n.Inline)
	} else {
		e.Array(2)
		e.Bytes(n.Blob[:])
		e.Uint(uint64(n.Size))
	}
	e.Array(len(n.Attachments))
	for _, a := range n.Attachments {
		blobs.AppendAttachment(e, a)
	}
}

func (n *Node) decodeContent(d *codec.Decoder) {
	if d.NextIsArray() {
		d.Shape(2)
		d.Fixed(n.Blob[:])
		n.Size = blobs.Size(d)
	} else {
		n.Inline = d.Bytes()
		n.Size = int64(len(n.Inline))
	}
	if c := d.Array(MaxAttachments); c > 0 {
		n.Attachments = make([]blob.Attachment, c)
		for i := range n.Attachments {
			n.Attachments[i] = blobs.DecodeAttachment(d)
		}
	}
}

// Limits of what a pack may hold; the root package checks them before any effect.
const (
	MaxNodes       = 4096 // of a commit
	MaxAttachments = 64   // of a node
)
