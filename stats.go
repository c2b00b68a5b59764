package turnstone

import (
	"context"
	"fmt"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
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

// kinds names what the records under a letter hold.
var kinds = map[byte]string{
	keys.Store: "sessions", keys.Head: "sessions", keys.Predecessor: "sessions", keys.About: "sessions", keys.Life: "sessions", keys.Origin: "sessions",
	keys.Fork: "sessions", keys.Child: "sessions", keys.Order: "sessions", keys.OrderTime: "sessions", keys.Dirty: "sessions", keys.Tombstone: "sessions",
	keys.Commit: "commits", keys.Turn: "commits",
	keys.Pack:     "nodes",
	keys.EventKey: "index", keys.Attachment: "index", keys.Index: "index",
	keys.Blob: "blobs", keys.Version: "blobs", keys.Mark: "blobs", keys.Upload: "blobs", keys.Ref: "sessions",
	keys.Run: "gc", keys.Edge: "gc", keys.Count: "gc", keys.Bookmark: "gc", keys.Candidate: "gc", keys.Detached: "gc", keys.Stale: "gc", keys.Loose: "gc", keys.Copying: "sessions",
}

// Stats reads the whole namespace once.
func (s *Store) Stats(ctx context.Context) (*Stats, error) {
	if _, err := s.usable(ctx); err != nil {
		return nil, err
	}
	st := &Stats{ByKind: map[string]Bytes{}}
	for p, err := range s.engine.Scan(ctx, s.space.Everything()) {
		if err != nil {
			return nil, err
		}
		letter, fields, ok := s.space.Fields(p.Key)
		if !ok {
			return nil, codec.Corrupt(fmt.Errorf("%w: no key of the format", codec.ErrMalformed), "record at key %x", p.Key)
		}
		kind := kinds[letter]
		b := st.ByKind[kind]
		for _, b := range []*Bytes{&b, &st.Stored} {
			b.Records++
			b.Keys += uint64(len(p.Key))
			b.Values += uint64(len(p.Value))
		}
		st.ByKind[kind] = b
		switch letter {
		case keys.Head:
			h, err := head.OpenHead(p.Key, p.Value)
			if err != nil {
				return nil, codec.Corrupt(err, "head at key %x", p.Key)
			}
			st.Sessions++
			st.Nodes += h.Nodes
			st.Payload += h.Bytes
			st.Usage = head.Sum(st.Usage, h.Usage)
		case keys.Life:
			l, err := head.OpenLife(p.Key, p.Value)
			if err != nil {
				return nil, codec.Corrupt(err, "lifecycle at key %x", p.Key)
			}
			if l.State == head.Deleted {
				st.Deleted++
			}
		case keys.Commit:
			c, _, err := head.OpenCommit(p.Key, p.Value)
			if err != nil {
				return nil, codec.Corrupt(err, "commit at key %x", p.Key)
			}
			st.Commits++
			for _, part := range c.Parts {
				if part.Set == c.Revision {
					st.Checkpoints += uint64(part.Size)
				}
			}
		case keys.Mark:
			st.Blobs++
		case keys.Pack:
			if fields[24] == 0 {
				if loose, err := graph.IsLoose(s.space, p); err != nil {
					return nil, err
				} else if loose {
					st.Loose++
				} else {
					st.Sealed++
				}
			}
		}
	}
	return st, nil
}
