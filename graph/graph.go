// Package graph has ID, the id of a node.
//
// The history of a session is a graph of nodes. A node is one immutable event, such
// as a user's input or the result of a tool, and names the node before it. The nodes
// on the way from a root to a leaf are a conversation; a node with two children is
// where a conversation was rewound and went on differently.
package graph

import (
	"encoding/hex"

	"github.com/turnstonedb/turnstone/internal/hash"
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
func (id ID) MarshalText() ([]byte, error) { return hash.AppendText(nil, id), nil }

// UnmarshalText reads the form that MarshalText gives.
func (id *ID) UnmarshalText(text []byte) (err error) {
	*id, err = hash.ParseText(text)
	return err
}
