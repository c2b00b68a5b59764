// Package head is what a session's history hangs from: its head, which every
// commit replaces and nothing else does; its commits, which form a hash chain;
// its lifecycle, which excludes from each other the operations that rewrite or
// remove; its metadata; and, for an attached fork, its origin.
package head

import (
	"encoding/hex"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/hash"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A Revision counts the commits of a session: 0 at its creation, then +1 each.
type Revision uint64

// Incarnation is the identity of a session from creation to deletion.
type Incarnation = keys.Incarnation

// CommitID identifies a commit and, through the chain, all before it.
type CommitID [hash.Size]byte

// String returns the id in lower-case hex.
func (id CommitID) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether id is no commit's.
func (id CommitID) IsZero() bool { return id == CommitID{} }

// MarshalText returns the id in lower-case hex, or nothing if it is zero.
func (id CommitID) MarshalText() ([]byte, error) { return hash.AppendText(nil, id), nil }

// UnmarshalText reads the form that MarshalText gives.
func (id *CommitID) UnmarshalText(text []byte) (err error) {
	*id, err = hash.ParseText(text)
	return err
}

// A Part says where a checkpoint part comes from.
type Part struct {
	Name string
	Blob blob.ID
	Size int64    // bytes
	Set  Revision // that set it last; 0: inherited from the session forked from
	// Whole is the revision that set the nearest version before this one that is
	// stored whole, as a blob. It is Set itself if this version is. Otherwise the
	// session stores this version as a delta, some deltas away from that one.
	Whole Revision
}

// IsDelta reports whether the version was stored as a delta of the one before.
func (p *Part) IsDelta() bool { return p.Whole != p.Set }

// Usage counts the tokens of one model.
type Usage struct {
	Model       string
	Input       uint64 // prompt tokens, the cached ones included or not as the provider counts
	Output      uint64
	CachedInput uint64 // read from the provider's prompt cache
	CacheWrite  uint64 // written to it
	Reasoning   uint64
}

// Add adds v to u.
func (u *Usage) Add(v Usage) {
	u.Input += v.Input
	u.Output += v.Output
	u.CachedInput += v.CachedInput
	u.CacheWrite += v.CacheWrite
	u.Reasoning += v.Reasoning
}

// Sum adds more to total, by model, in order of first appearance. It changes
// and returns total.
func Sum(total, more []Usage) []Usage {
next:
	for _, u := range more {
		for i := range total {
			if total[i].Model == u.Model {
				total[i].Add(u)
				continue next
			}
		}
		total = append(total, u)
	}
	return total
}

// A Head is where a session stands.
type Head struct {
	Incarnation Incarnation
	Revision    Revision
	Leaf        graph.ID // where the next turn goes on; zero before the first node
	Last        graph.ID // the node that was appended last, which need not be on the path to Leaf
	Commit      CommitID
	PartsAt     Revision // the last commit that changed the checkpoint
	Parts       []Part   // by name
	Nodes       uint64   // of this session's own commits
	Bytes       uint64   // of their payloads
	Raw         uint64   // of their packs, before compression: what sealing goes by
	Usage       []Usage  // totals by model
	Updated     time.Time
}

// Limits of records; the root package checks them before any effect.
const (
	MaxParts  = 64
	MaxModels = 256 // of a head's totals
)

// Seal returns h's record for key.
func (h *Head) Seal(key []byte) []byte {
	e := codec.Encoder{B: append(make([]byte, 0, 256), keys.Head, codec.Version)}
	e.Array(12)
	e.Bytes(h.Incarnation[:])
	e.Uint(uint64(h.Revision))
	e.ID(h.Leaf)
	if h.Last == h.Leaf {
		e.Null()
	} else {
		e.ID(h.Last)
	}
	e.Bytes(h.Commit[:])
	e.Uint(uint64(h.PartsAt))
	appendParts(&e, h.Parts)
	e.Uint(h.Nodes)
	e.Uint(h.Bytes)
	e.Uint(h.Raw)
	appendUsage(&e, h.Usage)
	appendTime(&e, h.Updated)
	return codec.SealTail(key, e.B, 0)
}

// OpenHead decodes the record of key.
func OpenHead(key, value []byte) (*Head, error) {
	body, err := codec.Open(key, value, keys.Head)
	if err != nil {
		return nil, err
	}
	d := codec.Decoder{B: body}
	var h Head
	d.Shape(12)
	d.Fixed(h.Incarnation[:])
	h.Revision = Revision(d.Uint())
	h.Leaf = d.ID()
	if h.Last = d.ID(); h.Last.IsZero() {
		h.Last = h.Leaf
	} else if h.Last == h.Leaf {
		d.Fail("last node given twice")
	}
	d.Fixed(h.Commit[:])
	h.PartsAt = Revision(d.Uint())
	h.Parts = decodeParts(&d)
	h.Nodes, h.Bytes, h.Raw = d.Uint(), d.Uint(), d.Uint()
	h.Usage = decodeUsage(&d, MaxModels)
	h.Updated = decodeTime(&d)
	return &h, d.Done()
}

func appendParts(e *codec.Encoder, parts []Part) {
	e.Array(len(parts))
	for _, p := range parts {
		e.Array(5)
		e.Text(p.Name)
		e.Bytes(p.Blob[:])
		e.Uint(uint64(p.Size))
		e.Uint(uint64(p.Set))
		e.Uint(uint64(p.Set - p.Whole))
	}
}

func decodeParts(d *codec.Decoder) []Part {
	n := d.Array(MaxParts)
	if n == 0 {
		return nil
	}
	parts := make([]Part, n)
	for i := range parts {
		d.Shape(5)
		parts[i].Name = d.Text()
		d.Fixed(parts[i].Blob[:])
		parts[i].Size = blob.Size(d)
		parts[i].Set = Revision(d.Uint())
		parts[i].Whole = decodeWhole(d, parts[i].Set)
		if i > 0 && parts[i].Name <= parts[i-1].Name {
			d.Fail("parts out of order")
		}
	}
	return parts
}

// decodeWhole decodes how many revisions before set the whole version was set.
func decodeWhole(d *codec.Decoder, set Revision) Revision {
	n := d.Uint()
	if n > uint64(set) {
		d.Fail("delta of %d revisions before revision %d", n, set)
		return set
	}
	return set - Revision(n)
}

func appendUsage(e *codec.Encoder, usage []Usage) {
	e.Array(len(usage))
	for _, u := range usage {
		e.Array(6)
		e.Text(u.Model)
		for _, n := range []uint64{u.Input, u.Output, u.CachedInput, u.CacheWrite, u.Reasoning} {
			e.Uint(n)
		}
	}
}

func decodeUsage(d *codec.Decoder, maximum int) []Usage {
	n := d.Array(maximum)
	if n == 0 {
		return nil
	}
	usage := make([]Usage, n)
	for i := range usage {
		u := &usage[i]
		d.Shape(6)
		u.Model = d.Text()
		for _, p := range []*uint64{&u.Input, &u.Output, &u.CachedInput, &u.CacheWrite, &u.Reasoning} {
			*p = d.Uint()
		}
	}
	return usage
}

// Times are stored as nanoseconds since 1970 UTC, never negative.
func appendTime(e *codec.Encoder, t time.Time) { e.Uint(uint64(max(t.UnixNano(), 0))) }

func decodeTime(d *codec.Decoder) time.Time {
	n := d.Uint()
	if n > 1<<63-1 {
		d.Fail("time %d", n)
	}
	return time.Unix(0, int64(n)).UTC()
}

// Genesis is the id that a session's first commit has as its predecessor: it
// binds the chain to the incarnation and, for a fork, to what it forked from.
func Genesis(inc Incarnation, o *Origin) CommitID {
	if o == nil {
		return hash.Genesis.Sum(inc[:])
	}
	return hash.Genesis.Sum(inc[:], o.body())
}
