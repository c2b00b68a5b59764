// Package seal turns loose packs into segments.
//
// A commit writes its nodes as a loose pack. Sealing puts the packs of consecutive commits
// into one segment: one frame that compresses twice as well, and one key instead of many.
// It runs beside commits, and touches only packs up to the head's revision. Each seal guards and
// sets the session's lifecycle record, so it excludes tombstones, forks, deletion and vacuum.
//
//	commits     [p][p][p][p][p][p][p][p]       each commit writes a loose pack
//	sealed      [  segment  ][p][p][p][p]      as soon as the packs fill a segment
//	sealed all  [  segment  ][ segment  ]      vacuum seals the rest, too
//
// Sealing shares the processor with commits, so in the background it compresses fast. When
// vacuum seals all packs it compresses as well as it can, and it compresses again the
// segments that were sealed in the background.
package seal

import (
	"context"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/pack"
)

// Sizes bound a segment.
type Sizes struct {
	Full int // A segment is full at this many bytes before compression.
	Most int // A segment never takes more bytes, even if nothing of it compresses.
}

// mostKeys is how many keys of packs a segment replaces at most. A batch has room for so many
// deletes.
const mostKeys = 6000

// Next tries once to seal the next segment of a session. current reads the session's head.
// sealed is the uncompressed size of all packs that are in full segments after the attempt.
// more reports whether there may be another segment to seal.
//
// If all is set, Next also seals packs that do not fill a segment, and compresses as well as
// it can. A later call can add packs to a segment that is not full.
func (z Sizes) Next(ctx context.Context, c *change.Change, s *history.Session, current func(context.Context) (*heads.Head, error), all bool) (sealed uint64, more bool, err error) {
	err = c.Alter(ctx, s, func(next *heads.Life, b *engine.Batch) (needed bool, err error) {
		sealed, more = next.SealedBytes, false
		h, err := current(ctx)
		if err != nil {
			return false, err
		}
		level, after := codec.Medium, next.Sealed
		if all {
			level, after = codec.Best, next.Packed
		}
		p, err := z.plan(ctx, s, after, next.Sealed, h.Revision)
		if err != nil {
			return false, err
		}
		rewrite := p.segments > 1 || p.level < level
		if len(p.packs) == 0 || !p.full && !(all && rewrite) {
			return false, nil
		}
		if p.full {
			p.advance(next, all)
		}
		sealed, more = next.SealedBytes, p.full
		b.Reclaim = true // A segment takes less space than the packs that it replaces.
		if rewrite {
			err = p.replace(b, s, level)
		}
		return true, err
	})
	return sealed, more, err
}

// A plan says which packs become one segment.
type plan struct {
	packs    []pack.Pack
	keys     [][]byte    // the keys that store the packs now
	before   graph.ID    // the last node before the packs
	bytes    uint64      // the size of the packs before compression
	fresh    uint64      // the part of it that is in no full segment yet
	size     int         // a bound for the size of the packs if they don't compress
	segments int         // how many segments or loose packs there are now
	level    codec.Level // the level of the segment that is compressed least
	full     bool        // the packs fill a segment
}

// plan reads the packs after a revision, at which a segment ends, until they fill another
// segment. sealed is the revision up to which all segments are full, and last is the head's.
func (z Sizes) plan(ctx context.Context, s *history.Session, after, sealed, last head.Revision) (*plan, error) {
	before, err := s.LastBefore(ctx, s.Own(last), after+1)
	if err != nil {
		return nil, err
	}
	p := &plan{before: before, level: codec.Best}
	for segment, err := range pack.Segments(ctx, s.Engine, s.Space, s.Inc, uint64(after+1), uint64(last)) {
		if err != nil {
			return nil, err
		}
		if before, err = resolve(s, segment.Packs, before); err != nil {
			return nil, err
		}
		if p.full = !p.hasRoom(z, &segment); p.full {
			break
		}
		p.add(s, &segment, sealed)
		if p.full = p.bytes >= uint64(z.Full); p.full {
			break
		}
	}
	return p, nil
}

// resolve gives the nodes of packs their ids. before is the last node before them, and
// resolve returns the last one among them.
func resolve(s *history.Session, packs []pack.Pack, before graph.ID) (last graph.ID, err error) {
	for i := range packs {
		if before, err = packs[i].Resolve(before); err != nil {
			return before, codec.Corrupt(err, "pack of revision %d of %s", packs[i].Revision, s.Name)
		}
	}
	return before, nil
}

// sizes returns the size of packs before compression, and a bound for their size if they
// don't compress.
func sizes(packs []pack.Pack) (bytes uint64, size int) {
	for i := range packs {
		bytes, size = bytes+packs[i].Uncompressed(), size+packs[i].Size()
	}
	return bytes, size
}

// hasRoom reports whether the packs of a segment can be added. An empty plan always has room
// for them.
func (p *plan) hasRoom(z Sizes, segment *pack.Segment) bool {
	_, size := sizes(segment.Packs)
	return len(p.packs) == 0 || p.size+size <= z.Most && len(p.keys) <= mostKeys
}

// add adds the packs of a segment. sealed is the revision up to which all segments are full.
func (p *plan) add(s *history.Session, segment *pack.Segment, sealed head.Revision) {
	p.packs, p.keys = append(p.packs, segment.Packs...), append(p.keys, segment.Keys...)
	end := segment.Packs[len(segment.Packs)-1].Revision
	if segment.Level != codec.Fast { // It is not a loose pack, so it has an index record.
		p.keys = append(p.keys, s.Space.Index(s.Inc, end))
	}
	bytes, size := sizes(segment.Packs)
	p.bytes, p.size, p.level = p.bytes+bytes, p.size+size, min(p.level, segment.Level)
	if head.Revision(end) > sealed {
		p.fresh += bytes
	}
	p.segments++
}

// advance notes in a lifecycle record that the packs are in a full segment and, if all is
// set, that the segment is compressed as well as can be.
func (p *plan) advance(life *heads.Life, all bool) {
	last := head.Revision(p.packs[len(p.packs)-1].Revision)
	if last > life.Sealed {
		life.Sealed, life.SealedBytes = last, life.SealedBytes+p.fresh
	}
	if all {
		life.Packed = last
	}
}

// replace makes b store the packs as one segment, and delete the keys that store them now.
func (p *plan) replace(b *engine.Batch, s *history.Session, level codec.Level) error {
	keys, values, err := pack.EncodeSegment(s.Space, s.Inc, p.packs, p.before, level)
	if err != nil {
		return err
	}
	indexKey, index := pack.SealIndex(s.Space, s.Inc, p.packs)
	keys, values = append(keys, indexKey), append(values, index)
	set := map[string]bool{}
	for i := range keys {
		b.Set(keys[i], values[i])
		set[string(keys[i])] = true
	}
	for _, k := range p.keys {
		if !set[string(k)] {
			b.Delete(k)
		}
	}
	return nil
}
