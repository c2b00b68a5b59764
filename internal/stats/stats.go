// Package stats counts what a store holds.
package stats

import (
	"context"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/pack"
	"github.com/turnstonedb/turnstone/record"
)

// A Report says what a store holds and what that takes: see turnstone.Stats.
type Report struct {
	Sessions    int
	Commits     int
	Nodes       uint64
	Payload     uint64
	Checkpoints uint64
	Usage       []head.Usage

	Stored  Bytes
	ByKind  map[string]Bytes
	Blobs   int
	Sealed  int
	Loose   int
	Deleted int
}

// Bytes counts records, and the bytes of their keys and values.
type Bytes struct{ Records, Keys, Values uint64 }

// kinds names what the records under a letter hold.
var kinds = map[byte]string{
	keys.Store: "sessions", keys.Head: "sessions", keys.Predecessor: "sessions", keys.About: "sessions", keys.Life: "sessions", keys.Origin: "sessions",
	keys.Fork: "sessions", keys.Child: "sessions", keys.Order: "sessions", keys.OrderTime: "sessions", keys.Dirty: "sessions", keys.Tombstone: "sessions",
	keys.Commit: "commits", keys.Turn: "commits",
	keys.Pack:     "nodes",
	keys.EventKey: "index", keys.Attachment: "index", keys.Index: "index",
	keys.Blob: "blobs", keys.Version: "blobs", keys.Mark: "blobs", keys.Upload: "blobs", keys.Ref: "sessions",
	keys.Cycle: "gc", keys.Edge: "gc", keys.Count: "gc", keys.Bookmark: "gc", keys.Candidate: "gc", keys.Detached: "gc", keys.Stale: "gc", keys.Loose: "gc", keys.Copying: "sessions",
}

// Gather reads all records of a store once.
func Gather(ctx context.Context, s history.Store) (*Report, error) {
	r := &Report{ByKind: map[string]Bytes{}}
	for p, err := range s.Engine.Scan(ctx, s.Space.Everything()) {
		if err != nil {
			return nil, err
		}
		letter, fields, ok := s.Space.Fields(p.Key)
		if !ok {
			return nil, codec.Corrupt(fmt.Errorf("%w: no key of the format", record.ErrMalformed), "record at key %x", p.Key)
		}
		kind := kinds[letter]
		r.ByKind[kind] = r.ByKind[kind].plus(p)
		r.Stored = r.Stored.plus(p)
		if err := r.count(s.Space, letter, fields, p); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// plus returns b with one record more.
func (b Bytes) plus(p engine.Pair) Bytes {
	return Bytes{b.Records + 1, b.Keys + uint64(len(p.Key)), b.Values + uint64(len(p.Value))}
}

// count adds what a record says of sessions, commits, nodes and blobs.
func (r *Report) count(space *keys.Space, letter byte, fields []byte, p engine.Pair) error {
	switch letter {
	case keys.Head:
		h, err := heads.OpenHead(p.Key, p.Value)
		if err != nil {
			return codec.Corrupt(err, "head at key %x", p.Key)
		}
		r.Sessions++
		r.Nodes += h.Nodes
		r.Payload += h.Bytes
		r.Usage = head.Sum(r.Usage, h.Usage)
	case keys.Life:
		l, err := heads.OpenLife(p.Key, p.Value)
		if err != nil {
			return codec.Corrupt(err, "lifecycle at key %x", p.Key)
		}
		if l.State == heads.Deleted {
			r.Deleted++
		}
	case keys.Commit:
		c, _, err := heads.OpenCommit(p.Key, p.Value)
		if err != nil {
			return codec.Corrupt(err, "commit at key %x", p.Key)
		}
		r.Commits++
		for _, part := range c.Parts {
			if part.Set == c.Revision {
				r.Checkpoints += uint64(part.Size)
			}
		}
	case keys.Mark:
		r.Blobs++
	case keys.Pack:
		if fields[24] > 0 {
			return nil // a later value of a segment
		}
		loose, err := pack.IsLoose(space, p)
		if err != nil {
			return err
		}
		if loose {
			r.Loose++
		} else {
			r.Sealed++
		}
	}
	return nil
}
