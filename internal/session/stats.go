package session

import (
	"context"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A Stats says what a store holds and how much space that takes: see turnstone.Stats.
type Stats struct {
	Format      uint64 // The caller sets it.
	Sessions    int
	Commits     int
	Nodes       uint64
	Payload     uint64
	Checkpoints uint64
	Usage       []head.Usage

	Stored  engine.Size
	ByKind  map[string]engine.Size
	Blobs   int
	Sealed  int
	Loose   int
	Deleted int

	// The caller sets these.
	Scrubbed    time.Time
	Spoilt      uint64
	Maintenance []head.Maintenance
}

// recordKinds says under which name Stats.ByKind counts the records of a letter.
var recordKinds = map[byte]string{
	keys.Store: "sessions", keys.Head: "sessions", keys.Predecessor: "sessions", keys.Forgotten: "sessions", keys.Erased: "sessions", keys.About: "sessions", keys.Life: "sessions", keys.Origin: "sessions",
	keys.Fork: "sessions", keys.Entry: "sessions", keys.Place: "sessions", keys.Dirty: "sessions", keys.Tombstone: "sessions",
	keys.Segment:    "history",
	keys.Record:     "records",
	keys.Listing:    "records",
	keys.Attachment: "index", keys.Index: "index",
	keys.Blob: "blobs", keys.Version: "blobs", keys.Mark: "blobs", keys.Upload: "blobs", keys.Ref: "sessions",
	keys.Cycle: "gc", keys.Edge: "gc", keys.Count: "gc", keys.Bookmark: "gc", keys.Candidate: "gc", keys.Detached: "gc", keys.Stale: "gc", keys.Loose: "gc", keys.Copying: "sessions", keys.Touched: "sessions", keys.Scrub: "gc", keys.Maintenance: "gc",
}

// Gather counts what a store holds. It reads all records of the store once.
func Gather(ctx context.Context, s history.Store) (*Stats, error) {
	r := &Stats{ByKind: map[string]engine.Size{}}
	for p, err := range s.Engine.Scan(ctx, s.Space.Everything()) {
		if err != nil {
			return nil, err
		}
		letter, fields, ok := s.Space.Fields(p.Key)
		if !ok {
			return nil, codec.Corrupt(codec.Unknown(p.Key, p.Value), "record at key %x", p.Key)
		}
		kind := recordKinds[letter]
		r.ByKind[kind] = plus(r.ByKind[kind], p)
		r.Stored = plus(r.Stored, p)
		if err := r.count(s.Space, letter, fields, p); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// plus returns b with record p added.
func plus(b engine.Size, p engine.Pair) engine.Size {
	return engine.Size{Records: b.Records + 1, Keys: b.Keys + uint64(len(p.Key)), Values: b.Values + uint64(len(p.Value))}
}

// count adds what a record says of sessions, commits, nodes and blobs.
func (r *Stats) count(space *keys.Space, letter byte, fields []byte, p engine.Pair) error {
	switch letter {
	case keys.Head:
		return r.countHead(p)
	case keys.Life:
		return r.countLife(p)
	case keys.Mark:
		r.Blobs++
	case keys.Segment:
		if _, value := keys.SegmentFields(fields); value == 0 { // The others are further values of the same segment.
			return r.countSegment(space, p)
		}
	}
	return nil
}

func (r *Stats) countHead(p engine.Pair) error {
	h, err := head.DecodeHead(p.Key, p.Value)
	if err != nil {
		return codec.Corrupt(err, "head at key %x", p.Key)
	}
	r.Sessions++
	r.Commits += int(h.Revision)
	r.Nodes += h.Nodes
	r.Checkpoints += h.PartBytes
	r.Payload += h.Bytes
	r.Usage = head.AddUsage(r.Usage, h.Usage)
	return nil
}

func (r *Stats) countLife(p engine.Pair) error {
	l, err := head.DecodeLife(p.Key, p.Value)
	if err != nil {
		return codec.Corrupt(err, "lifecycle at key %x", p.Key)
	}
	if l.State == head.Deleted {
		r.Deleted++
	}
	return nil
}

func (r *Stats) countSegment(space *keys.Space, p engine.Pair) error {
	loose, err := history.IsLoose(space, p)
	if err != nil {
		return err
	}
	if loose {
		r.Loose++
	} else {
		r.Sealed++
	}
	return nil
}
