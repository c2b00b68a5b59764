// Package graph has the nodes of a session's history: [ID], the id of a node, and [Pack], the nodes of one commit as
// they are stored. Users need ID alone; the rest is for
// the other packages of Turnstone.
//
// The history of a session is a graph of nodes. A node is one immutable event, such
// as a user's input or the result of a tool, and names the node before it. The nodes
// on the way from a root to a leaf are a conversation; a node with two children is
// where a conversation was rewound and went on differently.
//
//	root ◀── user ◀── assistant ◀── tool ◀── user      an arrow is the parent of a node
//	                      ▲
//	                      └── user ◀── assistant ◀     the leaf of the active path
//
// # Identity
//
// A node's id is the hash of its parent, kind, key, and a salted digest of its content (payload
// and attachments). So an id vouches for every node on the path to it. Vacuum can erase the
// content and the salt and keep the digest: the id stays, and the digest betrays nothing, not
// even of a short text. A node's own id is not stored: Pack.Resolve computes it. A parent is
// stored as a distance if it is near, else as its id.
//
// A payload of more than [MaxPlain] bytes counts in the digest by its blob id. So the id of a node
// does not depend on where the payload is stored: in the pack, or apart as a blob that other nodes
// share.
package graph

import (
	"encoding/hex"

	"github.com/turnstonedb/turnstone/internal/codec"
)

// ID identifies a node. It is the BLAKE3-256 hash of the node's canonical encoding,
// which includes the id of its parent, and so vouches for the whole path to the node.
// The zero ID is no node's; as a parent it says that the node is a root.
//
// As text, in JSON too, an id is 64 lower-case hex digits, and the zero id is empty.
type ID [32]byte

// String returns the id in lower-case hex.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether id is no node's.
func (id ID) IsZero() bool { return id == ID{} }

// MarshalText returns the id in lower-case hex, or nothing if it is zero.
func (id ID) MarshalText() ([]byte, error) { return codec.AppendHashText(nil, id), nil }

// UnmarshalText reads the form that MarshalText gives.
func (id *ID) UnmarshalText(text []byte) (err error) {
	*id, err = codec.ParseHashText(text)
	return err
}
