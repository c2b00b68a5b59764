// Package heads encodes and decodes the small records of sessions: heads; commits, which are a
// chain of hashes; lifecycles; metadata; the origins of attached forks; tombstones, kept
// revisions, turn ids, and the entries of sessions in lists. It also has the store
// record and the note of a copy.
package heads

import (
	"time"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/hash"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Incarnation is the identity of a session from creation to deletion.
type Incarnation = keys.Incarnation

// IsDelta reports whether a part's version is stored as a delta of the one before.
func IsDelta(p head.Part) bool { return p.Whole != p.Set }

// A Head is where a session stands.
type Head struct {
	Incarnation Incarnation
	Revision    head.Revision
	Leaf        graph.ID // where the next turn goes on; zero before the first node
	Last        graph.ID // the node that was appended last, which need not be on the path to Leaf
	Commit      head.CommitID
	PartsAt     head.Revision // the last commit that changed the checkpoint
	Parts       []head.Part   // by name
	Nodes       uint64        // of this session's own commits
	Bytes       uint64        // of their payloads
	PackBytes   uint64        // of their packs, before compression: what sealing goes by
	Usage       []head.Usage  // totals by model
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
	e.Uint(h.PackBytes)
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
	h.Revision = head.Revision(d.Uint())
	h.Leaf = d.ID()
	if h.Last = d.ID(); h.Last.IsZero() {
		h.Last = h.Leaf
	} else if h.Last == h.Leaf {
		d.Fail("last node given twice")
	}
	d.Fixed(h.Commit[:])
	h.PartsAt = head.Revision(d.Uint())
	h.Parts = decodeParts(&d)
	h.Nodes, h.Bytes, h.PackBytes = d.Uint(), d.Uint(), d.Uint()
	h.Usage = decodeUsage(&d, MaxModels)
	h.Updated = decodeTime(&d)
	return &h, d.Done()
}

func appendParts(e *codec.Encoder, parts []head.Part) {
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

func decodeParts(d *codec.Decoder) []head.Part {
	n := d.Array(MaxParts)
	if n == 0 {
		return nil
	}
	parts := make([]head.Part, n)
	for i := range parts {
		d.Shape(5)
		parts[i].Name = d.Text()
		d.Fixed(parts[i].Blob[:])
		parts[i].Size = blobs.Size(d)
		parts[i].Set = head.Revision(d.Uint())
		parts[i].Whole = decodeWhole(d, parts[i].Set)
		if i > 0 && parts[i].Name <= parts[i-1].Name {
			d.Fail("parts out of order")
		}
	}
	return parts
}

// decodeWhole decodes how many revisions before set the whole version was set.
func decodeWhole(d *codec.Decoder, set head.Revision) head.Revision {
	n := d.Uint()
	if n > uint64(set) {
		d.Fail("delta of %d revisions before revision %d", n, set)
		return set
	}
	return set - head.Revision(n)
}

func appendUsage(e *codec.Encoder, usage []head.Usage) {
	e.Array(len(usage))
	for _, u := range usage {
		e.Array(6)
		e.Text(u.Model)
		for _, n := range []uint64{u.Input, u.Output, u.CachedInput, u.CacheWrite, u.Reasoning} {
			e.Uint(n)
		}
	}
}

func decodeUsage(d *codec.Decoder, maximum int) []head.Usage {
	n := d.Array(maximum)
	if n == 0 {
		return nil
	}
	usage := make([]head.Usage, n)
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
func Genesis(inc Incarnation, o *Origin) head.CommitID {
	if o == nil {
		return hash.Genesis.Sum(inc[:])
	}
	return hash.Genesis.Sum(inc[:], o.body())
}
