package head

import (
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// An Ancestor is a session that a fork shares history with.
type Ancestor struct {
	Incarnation Incarnation
	Revision    Revision // up to which its commits are shared
	Commit      CommitID // at that revision
	Node        graph.ID // the fork node, or the node that the next ancestor forked at
	Nodes       int      // how many nodes of that revision are shared; 0: all
	Epoch       uint64   // of its lifecycle at the fork: its tombstones up to here count
}

// MaxAncestors is how many ancestors an origin can have. A fork that would have more is flattened: see
// package commit.
const MaxAncestors = 256

// An Origin is what an attached fork begins with, or a session that came in a bundle; it never changes.
type Origin struct {
	Ancestors []Ancestor // the first one is no fork; none if the session is no fork
	Depth     uint64     // how many nodes the path to the fork node has
	Parts     []Part     // the checkpoint at the fork, Set is 0
	// Genesis is the id that the first commit of a session that came in a bundle follows: that of the store in which
	// the session was made, where it and its ancestors had other incarnations. It is zero for other sessions.
	Genesis CommitID
}

// Body returns the body of o's record, which the genesis of a session is the hash of.
func (o *Origin) Body() []byte {
	e := codec.Encoder{B: make([]byte, 0, 160*len(o.Ancestors)+64)}
	e.Array(4)
	e.Array(len(o.Ancestors))
	for _, a := range o.Ancestors {
		e.Array(6)
		e.Bytes(a.Incarnation[:])
		e.Uint(uint64(a.Revision))
		e.ID(a.Commit)
		e.ID(a.Node)
		e.Uint(uint64(a.Nodes))
		e.Uint(a.Epoch)
	}
	e.Uint(o.Depth)
	appendParts(&e, o.Parts)
	e.ID(o.Genesis)
	return e.B
}

// Node returns the node that the fork begins at, or zero if the session is no fork.
func (o *Origin) Node() graph.ID {
	if len(o.Ancestors) == 0 {
		return graph.ID{}
	}
	return o.Ancestors[len(o.Ancestors)-1].Node
}

// Encode returns o's record for key.
func (o *Origin) Encode(key []byte) []byte { return codec.Encode(key, keys.Origin, o.Body()) }

// DecodeOrigin decodes the record of key.
func DecodeOrigin(key, value []byte) (*Origin, error) {
	body, err := codec.Decode(key, value, keys.Origin)
	if err != nil {
		return nil, err
	}
	return DecodeOriginBody(body)
}

// DecodeOriginBody decodes what Body returns.
func DecodeOriginBody(body []byte) (*Origin, error) {
	d := codec.Decoder{B: body}
	var o Origin
	d.Shape(4)
	o.Ancestors = make([]Ancestor, d.Array(MaxAncestors))
	for i := range o.Ancestors {
		a := &o.Ancestors[i]
		d.Shape(6)
		d.Fixed(a.Incarnation[:])
		a.Revision = Revision(d.Uint())
		a.Commit, a.Node = d.ID(), d.ID()
		n := d.Uint()
		if n > graph.MaxNodes {
			d.Fail("%d nodes", n)
		}
		a.Nodes = int(n)
		a.Epoch = d.Uint()
	}
	o.Depth = decodeDepth(&d, o.Node())
	o.Parts = decodeParts(&d)
	o.Genesis = d.ID()
	if len(o.Ancestors) == 0 && o.Genesis.IsZero() {
		d.Fail("neither ancestors nor a genesis")
	}
	return &o, d.Done()
}
