package turnstone

import (
	"context"

	"github.com/turnstonedb/turnstone/internal/stats"
)

// Stats says what a namespace holds and what that takes. Stored bytes are those
// of keys and values as the engine is given them; what it makes of them on disk
// is up to the engine.
type Stats struct {
	Sessions    int
	Commits     int
	Nodes       uint64
	Payload     uint64 // logical: the sum of all payloads, as often as they were committed
	Checkpoints uint64 // logical: the sum of all versions of all checkpoint parts
	Usage       []Usage

	Stored  Bytes            // all records
	ByKind  map[string]Bytes // the same, by what they hold
	Blobs   int
	Sealed  int // segments of more than one commit, and
	Loose   int // packs of one
	Deleted int // sessions that are gone and whose data is not reclaimed yet
}

// Bytes counts records.
type Bytes struct{ Records, Keys, Values uint64 }

// Total is the length of keys and values.
func (b Bytes) Total() uint64 { return b.Keys + b.Values }

// Stats reads the whole namespace once.
func (s *Store) Stats(ctx context.Context) (*Stats, error) {
	if _, err := s.usable(ctx); err != nil {
		return nil, err
	}
	r, err := stats.Gather(ctx, s.histories)
	if err != nil {
		return nil, err
	}
	out := &Stats{
		Sessions: r.Sessions, Commits: r.Commits, Nodes: r.Nodes, Payload: r.Payload, Checkpoints: r.Checkpoints, Usage: r.Usage,
		Stored: Bytes(r.Stored), ByKind: map[string]Bytes{}, Blobs: r.Blobs, Sealed: r.Sealed, Loose: r.Loose, Deleted: r.Deleted,
	}
	for kind, b := range r.ByKind {
		out.ByKind[kind] = Bytes(b)
	}
	return out, nil
}
