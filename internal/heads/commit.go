package heads

import (
	"time"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/hash"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/pack"
)

// A Commit is one turn. Its id is the hash of its record's body, which contains
// the id of the commit before it, so that a head's commit id vouches for all of
// a session's history: for the nodes through the leaf (or NodeDigest, where the
// leaf does not cover all of them), for checkpoints through the ids of blobs.
type Commit struct {
	Revision   head.Revision
	Previous   head.CommitID
	Leaf       graph.ID
	Last       graph.ID        // see Head.Last: a reader that enters here needs both
	Nodes      int             // how many this commit added
	NodeDigest [hash.Size]byte // of the node ids; zero when the nodes are one chain that ends in Leaf
	PartsAt    head.Revision   // the last commit that changed the checkpoint; this one's own revision if it did
	Parts      []head.Part     // the whole checkpoint, if this commit changed it
	Usage      []head.Usage    // of this turn
	Turn       string          // the caller's turn id; may be empty
	Time       time.Time
}

// Body returns the canonical encoding.
func (c *Commit) Body() []byte {
	e := codec.Encoder{B: make([]byte, 0, 192)}
	e.Array(10)
	e.Uint(uint64(c.Revision))
	e.Bytes(c.Previous[:])
	e.ID(c.Leaf)
	if c.Last == c.Leaf {
		e.Null()
	} else {
		e.ID(c.Last)
	}
	e.Uint(uint64(c.Nodes))
	e.ID(c.NodeDigest)
	if c.PartsAt == c.Revision {
		c.appendParts(&e)
	} else {
		e.Uint(uint64(c.PartsAt))
	}
	appendUsage(&e, c.Usage)
	e.Text(c.Turn)
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
func (c *Commit) ID() head.CommitID { return IDOf(c.Body()) }

// IDOf returns the id of the commit with the given body.
func IDOf(body []byte) head.CommitID { return hash.Commit.Sum(body) }

// DecodeCommit decodes a body. Parts that carry over have only Name and Set.
func DecodeCommit(body []byte) (*Commit, error) {
	d := codec.Decoder{B: body}
	var c Commit
	d.Shape(10)
	c.Revision = head.Revision(d.Uint())
	d.Fixed(c.Previous[:])
	c.Leaf = d.ID()
	if c.Last = d.ID(); c.Last.IsZero() {
		c.Last = c.Leaf
	} else if c.Last == c.Leaf {
		d.Fail("last node given twice")
	}
	n := d.Uint()
	if n > pack.MaxNodes {
		d.Fail("%d nodes", n)
	}
	c.Nodes = int(n)
	c.NodeDigest = d.ID()
	if d.NextIsUint() {
		if c.PartsAt = head.Revision(d.Uint()); c.PartsAt >= c.Revision {
			d.Fail("checkpoint of revision %d", c.PartsAt)
		}
	} else {
		c.PartsAt = c.Revision
		c.Parts = make([]head.Part, d.Array(MaxParts))
		for i := range c.Parts {
			p := &c.Parts[i]
			d.Shape(5)
			p.Name, p.Set = d.Text(), head.Revision(d.Uint())
			if p.Set == c.Revision {
				d.Fixed(p.Blob[:])
				p.Size = blobs.Size(&d)
				p.Whole = decodeWhole(&d, p.Set)
			} else if blob, size, whole := d.Null(), d.Null(), d.Null(); !blob || !size || !whole || p.Set > c.Revision {
				d.Fail("part %q of revision %d", p.Name, p.Set)
			}
			if i > 0 && p.Name <= c.Parts[i-1].Name {
				d.Fail("parts out of order")
			}
		}
	}
	c.Usage = decodeUsage(&d, MaxModels)
	c.Turn = d.Text()
	c.Time = decodeTime(&d)
	return &c, d.Done()
}

// SealCommit returns the record of the commit with this body: see Commit.Body.
func SealCommit(key, body []byte) []byte { return codec.Seal(key, keys.Commit, body) }

// OpenCommit decodes the record of key and returns the commit and its id.
func OpenCommit(key, value []byte) (*Commit, head.CommitID, error) {
	body, err := codec.Open(key, value, keys.Commit)
	if err != nil {
		return nil, head.CommitID{}, err
	}
	c, err := DecodeCommit(body)
	if err != nil {
		return nil, head.CommitID{}, err
	}
	return c, IDOf(body), nil
}
