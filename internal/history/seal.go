// A commit writes its turn as a loose segment. Sealing puts the turns of consecutive commits
// into one segment: one frame that compresses twice as well, and one key instead of many. It adds
// them to the stored index of the session.
// It runs beside commits, and touches only turns up to the head's revision. Each seal guards and
// sets the session's lifecycle record, so it excludes tombstones, forks, deletion and vacuum.
//
//	commits     [t][t][t][t][t][t][t][t]       each commit writes a loose segment
//	sealed      [  segment  ][t][t][t][t]      as soon as the turns fill a segment
//	sealed all  [       segment         ]      vacuum seals the rest, too, and makes larger segments
//
// Sealing shares the processor with commits, so in the background it compresses fast. When
// vacuum seals all turns it compresses as well as it can, and it compresses again the
// segments that were sealed in the background.

package history

import (
	"context"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// SealSizes bound a segment.
type SealSizes struct {
	Full  int // A segment that is sealed beside commits is full at this many bytes before compression,
	Turns int // or at this many turns.
	Large int // A segment that vacuum makes is full at this many bytes before compression.
	Most  int // A segment never takes more bytes, even if nothing of it compresses.
}

// sealKeys is how many keys a segment replaces at most. A batch has room for so many
// deletes.
const sealKeys = 6000

// Next tries once to seal the next segment of a session. current reads the session's head.
// sealed says how much is in full segments after the attempt, and more reports whether there may
// be another segment to seal.
//
// If all is set, Next also seals turns that do not fill a segment, and compresses as well as
// it can. A later call can add turns to a segment that is not full.
func (z SealSizes) Next(ctx context.Context, c *Change, s *Session, current func(context.Context) (*head.Head, error), all bool) (sealed Sealed, more bool, err error) {
	var life *head.Life
	err = c.Alter(ctx, s, func(_ *Lifecycles, next *head.Life, b *engine.Batch) (needed bool, err error) {
		sealed, more, life = sealedBy(next), false, nil
		h, err := current(ctx)
		if err != nil {
			return false, err
		}
		level, after := codec.Medium, next.Sealed
		if all {
			level, after = codec.Best, next.Packed
		}
		p, err := z.plan(ctx, s, after, next.Sealed, h.Revision, all)
		if err != nil {
			return false, err
		}
		rewrite := p.segments > 1 || p.level < level
		if len(p.turns) == 0 || !p.full && !(all && rewrite) {
			return false, nil
		}
		if p.full {
			p.advance(next)
		}
		b.Reclaim = true // A segment takes less space than what it replaces.
		if rewrite {
			if err := p.replace(ctx, b, s, next, level); err != nil {
				return false, err
			}
		}
		sealed, more, life = sealedBy(next), p.full, next
		return true, nil
	})
	if ix, ok := s.Indexes.Get(s.Inc); ok && err == nil && life != nil {
		ix.Sealed(life)
	}
	return sealed, more, err
}

// Sealed says how much of a session is in full segments.
type Sealed struct {
	Revision head.Revision // up to which
	Bytes    uint64        // of nodes before compression
}

func sealedBy(l *head.Life) Sealed { return Sealed{l.Sealed, l.SealedBytes} }

// Due reports whether a session whose head is at a revision has enough for another segment. bytes
// are those of all its nodes.
func (z SealSizes) Due(s Sealed, r head.Revision, bytes uint64) bool {
	return bytes-min(s.Bytes, bytes) >= uint64(z.Full) || r >= s.Revision+head.Revision(z.Turns)
}

// A plan says which turns become one segment.
type plan struct {
	sizes    SealSizes
	all      bool
	turns    []Turn
	keys     [][]byte    // the keys that store the turns now
	before   head.State  // where the session stood before the first turn
	bytes    uint64      // the size of the packs before compression
	fresh    uint64      // the part of it that is in no full segment yet
	size     int         // a bound for the size of the turns if they don't compress
	segments int         // how many segments there are now
	level    codec.Level // the level of the segment that is compressed least
	full     bool        // the turns fill a segment
}

// plan reads the turns after a revision, at which a segment ends, until they fill another
// segment. sealed is the revision up to which all segments are full, and last is the head's.
func (z SealSizes) plan(ctx context.Context, s *Session, after, sealed, last head.Revision, all bool) (*plan, error) {
	p := &plan{sizes: z, all: all, level: codec.Best}
	of := Revisions{Inc: s.Inc, Name: s.Name, After: after, Last: last}
	for segment, err := range s.Segments(ctx, of) {
		if err != nil {
			return nil, err
		}
		if p.full = !p.hasRoom(segment); p.full {
			break
		}
		p.add(segment, sealed)
		if p.full = p.isFull(); p.full {
			break
		}
	}
	if len(p.turns) > 0 {
		var err error
		p.before, err = s.EndOf(ctx, p.turns[0].Revision-1)
		return p, err
	}
	return p, nil
}

// isFull reports whether the turns fill a segment.
func (p *plan) isFull() bool {
	if p.all {
		return p.bytes >= uint64(p.sizes.Large)
	}
	return p.bytes >= uint64(p.sizes.Full) || len(p.turns) >= p.sizes.Turns
}

// sizes returns the size of the nodes of turns before compression, and a bound for the size of the
// turns if they don't compress.
func sizes(of []Turn) (bytes uint64, size int) {
	for i := range of {
		bytes, size = bytes+of[i].Pack.Uncompressed(), size+SizeOf(&of[i])
	}
	return bytes, size
}

// SizeOf returns a bound for the size of a turn in a segment, if it does not compress.
func SizeOf(t *Turn) int {
	size := t.Pack.Size() + 400 + len(t.Parts)*180 + len(t.Usage)*190
	for name, value := range t.Labels {
		size += 10 + len(name) + len(value)
	}
	return size
}

// hasRoom reports whether the turns of a segment can be added. An empty plan always has room
// for them.
func (p *plan) hasRoom(segment *Segment) bool {
	_, size := sizes(segment.Turns)
	return len(p.turns) == 0 || p.size+size <= p.sizes.Most && len(p.keys) <= sealKeys
}

// add adds the turns of a segment. sealed is the revision up to which all segments are full.
func (p *plan) add(segment *Segment, sealed head.Revision) {
	p.turns, p.keys = append(p.turns, segment.Turns...), append(p.keys, segment.Keys...)
	bytes, size := sizes(segment.Turns)
	p.bytes, p.size, p.level = p.bytes+bytes, p.size+size, min(p.level, segment.Level)
	if segment.Last > sealed {
		p.fresh += bytes
	}
	p.segments++
}

// last returns the revision of the last turn.
func (p *plan) last() head.Revision { return p.turns[len(p.turns)-1].Revision }

// advance notes in a lifecycle record that the turns are in a full segment and, if all is
// set, that the segment is compressed as well as can be.
func (p *plan) advance(life *head.Life) {
	if p.last() > life.Sealed {
		life.Sealed, life.SealedBytes = p.last(), life.SealedBytes+p.fresh
	}
	if p.all {
		life.Packed = p.last()
	}
}

// replace makes b store the turns as one segment, delete the keys that store them now, and add
// those that were loose to the index.
func (p *plan) replace(ctx context.Context, b *engine.Batch, s *Session, life *head.Life, level codec.Level) error {
	end, err := StateAfter(p.before, p.turns, s.Name)
	if err != nil {
		return err
	}
	segment := &Segment{First: p.turns[0].Revision, Last: p.last(), Level: level, Before: p.before.Base, End: end, Turns: p.turns}
	keys, values, err := EncodeSealed(s.Space, s.Inc, segment)
	if err != nil {
		return err
	}
	ReplaceSegments(b, keys, values, p.keys)
	if p.last() <= life.Indexed() {
		return nil
	}
	return s.Append(ctx, b, s.Inc, life, p.turns[life.Indexed()+1-p.turns[0].Revision:])
}
