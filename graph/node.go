package graph

import (
	"encoding/binary"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// A Node is one event as it is stored.
type Node struct {
	ID     ID
	Parent ID // zero for a root
	Kind   string
	Key    string // the caller's, for example a provider's message id; may be empty

	// The payload: Inline, or Blob when that is set.
	Inline []byte
	Blob   blob.ID
	Size   int64 // of the payload, in bytes
	// Sum is the blob id of an inline payload of more than MaxPlain bytes. It is computed if it
	// is zero.
	Sum blob.ID

	Attachments []blob.Attachment

	// Erased says that vacuum removed payload, attachments and salt; what is
	// left of them is Digest, which is set for no other node.
	Erased bool
	Digest [codec.HashSize]byte
}

// Salt makes digests of equal contents differ. There is one a commit.
type Salt [16]byte

// Derive computes n.ID from the other fields, the commit's salt and the node's
// position in its commit. It works in scratch, and returns that for the next.
func (n *Node) Derive(salt Salt, position int, scratch []byte) []byte {
	scratch = binary.AppendUvarint(scratch[:0], uint64(position))
	return n.derive(codec.SaltHash.Sum(salt[:], scratch), scratch)
}

// derive is Derive with the node's own salt, of which an erased one has no need.
func (n *Node) derive(own [codec.HashSize]byte, scratch []byte) []byte {
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
	n.ID = codec.NodeHash.Sum(e.B)
	return e.B
}

// digest is the salted digest of n's content.
func (n *Node) digest(own [codec.HashSize]byte, scratch []byte) (sum [codec.HashSize]byte, _ []byte) {
	e := codec.Encoder{B: scratch[:0]}
	switch {
	case !n.Blob.IsZero():
		appendApart(&e, n.Blob, n.Size)
	case len(n.Inline) > MaxPlain:
		if n.Sum.IsZero() {
			n.Sum = blob.Sum(n.Inline)
		}
		appendApart(&e, n.Sum, int64(len(n.Inline)))
	default:
		e.Bytes(n.Inline)
	}
	n.appendAttachments(&e)
	return codec.ContentHash.Sum(own[:], e.B), e.B
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

// appendContent encodes what erasure removes: the payload (the length of an inline one, which is
// appended to payloads, or an array of blob id and size) and the attachments.
func (n *Node) appendContent(e *codec.Encoder, payloads []byte) []byte {
	if n.Blob.IsZero() {
		e.Uint(uint64(len(n.Inline)))
		payloads = append(payloads, n.Inline...)
	} else {
		appendApart(e, n.Blob, n.Size)
	}
	n.appendAttachments(e)
	return payloads
}

func appendApart(e *codec.Encoder, id blob.ID, size int64) {
	e.Array(2)
	e.Bytes(id[:])
	e.Uint(uint64(size))
}

func (n *Node) appendAttachments(e *codec.Encoder) {
	e.Array(len(n.Attachments))
	for _, a := range n.Attachments {
		blob.AppendAttachment(e, a)
	}
}

// decodeContent decodes what appendContent encodes. The payload aliases payloads, of which it
// returns the rest.
func (n *Node) decodeContent(d *codec.Decoder, payloads []byte) []byte {
	if d.NextIsArray() {
		d.Shape(2)
		d.Fixed(n.Blob[:])
		n.Size = blob.Size(d)
		if n.Size <= MaxPlain {
			d.Fail("blob of %d bytes as a payload", n.Size)
		}
	} else {
		size := d.Uint()
		if size > uint64(len(payloads)) {
			d.Fail("payload of %d bytes, and %d are left", size, len(payloads))
			size = 0
		}
		n.Inline, payloads = payloads[:size:size], payloads[size:]
		n.Size = int64(size)
	}
	if c := d.Array(MaxAttachments); c > 0 {
		n.Attachments = make([]blob.Attachment, c)
		for i := range n.Attachments {
			n.Attachments[i] = blob.DecodeAttachment(d)
		}
	}
	return payloads
}

// MaxPlain is how many bytes of a payload count in the digest of its node as they are. A longer
// payload counts by its blob id. It is part of the format.
const MaxPlain = 5 << 10

// Limits of what a stored pack may hold: lowering one makes stored packs unreadable. The root package (options.go)
// limits requests.
const (
	MaxNodes       = 4096 // of a commit
	MaxAttachments = 64   // of a node
)
