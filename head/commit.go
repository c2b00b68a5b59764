package head

import (
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// A Commit is one turn. Its id is the hash of its record's body, which contains
// the id of the commit before it, so that a head's commit id vouches for all of
// a session's history: for the nodes through the leaf (or NodeDigest, where the
// leaf does not cover all of them), for checkpoints through the ids of blobs.
type Commit struct {
	Revision   Revision
	Previous   CommitID
	Leaf       graph.ID
	Last       graph.ID             // see Base.Last: a reader that enters here needs both
	Depth      uint64               // how many nodes the path to Leaf has, those that are inherited or hidden included
	Nodes      int                  // how many this commit added
	NodeDigest [codec.HashSize]byte // of the node ids; zero when the nodes are one chain that ends in Leaf
	PartsAt    Revision             // the last commit that changed the checkpoint; this one's own revision if it did
	Parts      []Part               // the whole checkpoint, if this commit changed it
	Usage      []Usage              // of this turn
	Turn       string               // the caller's turn id; may be empty
	Labels     map[string]string
	Time       time.Time

	leafIsLast bool // between DecodeCompact and Complete
}

// Body returns the canonical encoding.
func (c *Commit) Body() []byte {
	e := codec.Encoder{B: make([]byte, 0, 192)}
	e.Array(12)
	e.Uint(uint64(c.Revision))
	e.Bytes(c.Previous[:])
	appendEnds(&e, c.Leaf, c.Last)
	e.Uint(c.Depth)
	e.Uint(uint64(c.Nodes))
	e.ID(c.NodeDigest)
	if c.PartsAt == c.Revision {
		c.appendParts(&e)
	} else {
		e.Uint(uint64(c.PartsAt))
	}
	appendUsage(&e, c.Usage)
	e.Text(c.Turn)
	appendLabels(&e, c.Labels)
	appendTime(&e, c.Time)
	return e.B
}

// appendParts encodes the checkpoint: of a part that carries over, the name and
// the revision that set it; of one that this commit sets, the id and size of
// its content as well, and how many revisions before it the nearest whole version was
// set.
func (c *Commit) appendParts(e *codec.Encoder) {
	e.Array(len(c.Parts))
	for _, p := range c.Parts {
		e.Array(5)
		e.Text(p.Name)
		e.Uint(uint64(p.Set))
		if p.Set == c.Revision {
			e.Bytes(p.Blob[:])
			e.Uint(uint64(p.Size))
			e.Uint(uint64(p.Set - p.Whole))
		} else {
			e.Null()
			e.Null()
			e.Null()
		}
	}
}

// ID returns the commit's id.
func (c *Commit) ID() CommitID { return IDOf(c.Body()) }

// IDOf returns the id of the commit with the given body.
func IDOf(body []byte) CommitID { return codec.CommitHash.Sum(body) }

// DecodeCommit decodes a body. Parts that carry over have only Name and Set.
func DecodeCommit(body []byte) (*Commit, error) {
	d := codec.Decoder{B: body}
	var c Commit
	d.Shape(12)
	c.Revision = Revision(d.Uint())
	d.Fixed(c.Previous[:])
	c.Leaf, c.Last = decodeEnds(&d)
	c.Depth = decodeDepth(&d, c.Leaf)
	n := d.Uint()
	if n > graph.MaxNodes {
		d.Fail("%d nodes", n)
	}
	c.Nodes = int(n)
	c.NodeDigest = d.ID()
	if d.NextIsUint() {
		if c.PartsAt = Revision(d.Uint()); c.PartsAt >= c.Revision {
			d.Fail("checkpoint of revision %d", c.PartsAt)
		}
	} else {
		c.PartsAt = c.Revision
		c.decodeParts(&d)
	}
	c.Usage = decodeUsage(&d, MaxModels)
	c.Turn = d.Text()
	c.Labels = decodeLabels(&d)
	c.Time = decodeTime(&d)
	return &c, d.Done()
}

// decodeParts decodes what appendParts encodes.
func (c *Commit) decodeParts(d *codec.Decoder) {
	c.Parts = make([]Part, d.Array(MaxParts))
	for i := range c.Parts {
		p := &c.Parts[i]
		d.Shape(5)
		p.Name, p.Set = d.Text(), Revision(d.Uint())
		if p.Set == c.Revision {
			d.Fixed(p.Blob[:])
			p.Size = blob.Size(d)
			p.Whole = decodeWhole(d, p.Set)
		} else if blob, size, whole := d.Null(), d.Null(), d.Null(); !blob || !size || !whole || p.Set > c.Revision {
			d.Fail("part %q of revision %d", p.Name, p.Set)
		}
		if i > 0 && p.Name <= c.Parts[i-1].Name {
			d.Fail("parts out of order")
		}
	}
}

// PartBytes returns the size of the checkpoint parts that the commit set.
func (c *Commit) PartBytes() (n uint64) {
	for _, p := range c.Parts {
		if p.Set == c.Revision {
			n += uint64(p.Size)
		}
	}
	return n
}

// Base returns what the next commit builds on. id is the commit's own.
func (c *Commit) Base(id CommitID) Base {
	return Base{Revision: c.Revision, Commit: id, Leaf: c.Leaf, Last: c.Last, Depth: c.Depth, PartsAt: c.PartsAt, Time: c.Time}
}

// How a compact commit says which leaf it has: one of these numbers, null for none, or an id.
const (
	leafIsLast   = 0 // the node that was appended last
	leafIsBefore = 1 // the leaf of the commit before
)

// AppendCompact encodes what a reader of the commits before and of the commit's nodes does not know
// of the commit, as seven items: leaf, the length of its path less that of the commit before, checkpoint, usage, turn
// id, labels, and the time since the commit before. What may be less than before is in zigzag encoding.
func (c *Commit) AppendCompact(e *codec.Encoder, before *Base) {
	switch {
	case c.Leaf.IsZero():
		e.Null()
	case c.Leaf == c.Last && (c.Nodes > 0 || c.Last == before.Last):
		e.Uint(leafIsLast)
	case c.Leaf == before.Leaf:
		e.Uint(leafIsBefore)
	default:
		e.Bytes(c.Leaf[:])
	}
	e.Uint(zigzag(int64(c.Depth - before.Depth)))
	if c.PartsAt == c.Revision {
		c.appendParts(e)
	} else {
		e.Null()
	}
	appendUsage(e, c.Usage)
	e.Text(c.Turn)
	appendLabels(e, c.Labels)
	e.Uint(zigzag(c.Time.UnixNano() - before.Time.UnixNano()))
}

// zigzag maps 0, -1, 1, -2 and so on to 0, 1, 2, 3, so that a number near zero of either sign gets a short encoding.
func zigzag(n int64) uint64 { return uint64(n)<<1 ^ uint64(n>>63) }

// unzigzag returns the number that zigzag maps to n.
func unzigzag(n uint64) int64 { return int64(n>>1 ^ -(n & 1)) }

// DecodeCompact decodes what AppendCompact encodes. Complete has to be called when the commit's
// nodes are known.
func DecodeCompact(d *codec.Decoder, before *Base) *Commit {
	c := &Commit{Revision: before.Revision + 1, Previous: before.Commit}
	switch {
	case d.Null():
	case d.NextIsUint():
		if n := d.Uint(); n == leafIsBefore {
			c.Leaf = before.Leaf
		} else if c.leafIsLast = true; n != leafIsLast {
			d.Fail("leaf %d", n)
		}
	default:
		d.Fixed(c.Leaf[:])
	}
	if longer := unzigzag(d.Uint()); longer < -int64(before.Depth) {
		d.Fail("length of the path %d less than nothing", longer)
	} else {
		c.Depth = before.Depth + uint64(longer)
	}
	if d.Null() {
		c.PartsAt = before.PartsAt
	} else {
		c.PartsAt = c.Revision
		c.decodeParts(d)
	}
	c.Usage = decodeUsage(d, MaxModels)
	c.Turn = d.Text()
	c.Labels = decodeLabels(d)
	nanos := before.Time.UnixNano() + unzigzag(d.Uint())
	if nanos < 0 {
		d.Fail("time %d", nanos)
	}
	c.Time = time.Unix(0, nanos).UTC()
	return c
}

// Complete sets what follows from the commit's nodes, which are resolved, and from the last node
// before them.
func (c *Commit) Complete(p *graph.Pack, before graph.ID) {
	c.Nodes, c.Last = len(p.Nodes), before
	if c.Nodes > 0 {
		c.Last = p.Nodes[c.Nodes-1].ID
	}
	if c.Last.IsZero() && !c.leafIsLast {
		c.Last = c.Leaf
	}
	if c.leafIsLast {
		c.Leaf = c.Last
	}
	if !p.Linear(c.Leaf) {
		c.NodeDigest = p.Digest()
	}
}
