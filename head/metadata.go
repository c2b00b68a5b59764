package head

import (
	"time"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Metadata is a session's metadata. Saving it moves no revision.
type Metadata struct {
	ID          string
	Incarnation Incarnation
	Name        string
	Model       string
	Cwd         string
	Group       string      // names between slashes, or ""
	Parent      Incarnation // zero if it has none; the parent may be gone
	ForkNode    graph.ID    // node of the parent
	Detached    bool
	Summary     bool   // a summarisation session
	Keep        uint64 // revisions that retention keeps: 0 as the store says, ^0 all
	Labels      map[string]string
	Created     time.Time
	Updated     time.Time // by saving metadata; commits have their own time
}

// Encode returns a's record for key.
func (a *Metadata) Encode(key []byte) []byte {
	e := codec.Encoder{B: make([]byte, 0, 256)}
	e.Array(14)
	e.Text(a.ID)
	e.Bytes(a.Incarnation[:])
	e.Text(a.Name)
	e.Text(a.Model)
	e.Text(a.Cwd)
	e.Text(a.Group)
	if a.Parent == (Incarnation{}) {
		e.Null()
	} else {
		e.Bytes(a.Parent[:])
	}
	e.ID(a.ForkNode)
	e.Bool(a.Detached)
	e.Bool(a.Summary)
	e.Uint(a.Keep)
	appendLabels(&e, a.Labels)
	appendTime(&e, a.Created)
	appendTime(&e, a.Updated)
	if len(e.B) <= plainAbout {
		return codec.Encode(key, keys.About, codec.Plain(e.B))
	}
	return codec.Encode(key, keys.About, codec.Compress(nil, e.B, codec.Medium))
}

const (
	maxAbout   = 1 << 20 // bytes of metadata before compression, more than the limits of its fields allow
	plainAbout = 256     // bytes up to which metadata are not compressed: it saves little, and lists read many
)

// DecodeMetadata decodes the record of key.
func DecodeMetadata(key, value []byte) (*Metadata, error) {
	data, err := codec.Decode(key, value, keys.About)
	if err != nil {
		return nil, err
	}
	body, err := codec.Decompress(data, nil, maxAbout)
	if err != nil {
		return nil, err
	}
	d := codec.Decoder{B: body}
	var a Metadata
	d.Shape(14)
	a.ID = d.Text()
	d.Fixed(a.Incarnation[:])
	a.Name, a.Model, a.Cwd, a.Group = d.Text(), d.Text(), d.Text(), d.Text()
	if !d.Null() {
		d.Fixed(a.Parent[:])
	}
	a.ForkNode = d.ID()
	a.Detached, a.Summary = d.Bool(), d.Bool()
	a.Keep = d.Uint()
	a.Labels = decodeLabels(&d)
	a.Created, a.Updated = decodeTime(&d), decodeTime(&d)
	return &a, d.Done()
}
