// Package seal turns loose packs into segments.
//
// A commit writes its nodes as a loose pack. Sealing puts the packs of a range of commits
// into one segment: one frame that compresses twice as well, and one key instead of many.
// It runs beside commits, and touches only packs of commits that stand. The lifecycle
// record keeps it apart from tombstones, forks, deletion and vacuum.
//
//	loose     p p p p p p p p p p p     a pack for each commit
//	sealed   [   segment   ] p p p p     Full is reached: the oldest packs become a segment
//	packed   [   segment   ][ rest  ]    All: the rest, too, and as small as it can be
//
// Sealing shares the processor with commits, so in the background it compresses fast.
// Sealing of all, as vacuum asks for it, compresses as well as it can, and compresses
// again what was sealed in the background.
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

// Sizes are what bounds a segment.
type Sizes struct {
	Full int // bytes before compression at which a segment is full
	Most int // bytes that a segment can't exceed, even if nothing of it compresses
}

// mostKeys is how many keys of packs one segment replaces at most: a batch has room for
// so many deletes.
const mostKeys = 6000

// Next is one attempt to seal the next segment of a session. It reports whether there may
// be another one, and how many bytes of the session, before compression, are in full
// segments then. If all is set, what does not fill a segment is sealed, too, and the next
// call takes it up again. current reads the session's head.
func (z Sizes) Next(ctx context.Context, c *change.Change, s *history.Session, current func(context.Context) (*heads.Head, error), all bool) (sealed uint64, more bool, err error) {
	err = c.Alter(ctx, s, func(next *heads.Life, b *engine.Batch) (needed bool, err error) {
		more = false
		h, err := current(ctx)
		if err != nil {
			return false, err
		}
		sealed = next.SealedRaw
		level, after := codec.Medium, next.Sealed
		if all {
			level, after = codec.Best, next.Packed
		}
		p, err := z.gather(ctx, s, after, next.Sealed, h.Revision)
		if err != nil {
			return false, err
		}
		more = p.raw >= uint64(z.Full) || p.more
		anew := p.segments > 1 || p.level < level
		if len(p.packs) == 0 || !more && (!all || !anew) {
			more = false
			return false, nil
		}
		if last := head.Revision(p.packs[len(p.packs)-1].Revision); more {
			if last > next.Sealed {
				next.Sealed, next.SealedRaw = last, next.SealedRaw+p.fresh
			}
			if all {
				next.Packed = last
			}
		}
		sealed = next.SealedRaw
		b.Reclaim = true // a segment takes less than the packs that it replaces
		if anew {
			err = p.replace(b, s, level)
		}
		return true, err
	})
	return sealed, more, err
}

// replace makes b store the packs as one segment instead of as they are stored.
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

// A plan says which packs become one segment.
type plan struct {
	packs    []pack.Pack
	keys     [][]byte // that store them now
	before   graph.ID // the last node before them
	raw      uint64
	fresh    uint64      // of raw, what is in no full segment yet
	size     int         // bounds what they take encoded
	segments int         // how many they are now
	level    codec.Level // of the one that is compressed least
	more     bool        // it ends because the next one does not fit
}

// gather reads the packs after a revision, at which a segment ends, until there
// is enough for another one.
func (z Sizes) gather(ctx context.Context, s *history.Session, after, sealed, last head.Revision) (*plan, error) {
	before, err := s.LastBefore(ctx, s.Own(last), after+1)
	if err != nil {
		return nil, err
	}
	p := &plan{before: before, level: codec.Best}
	for seg, err := range pack.Segments(ctx, s.Engine, s.Space, s.Inc, uint64(after+1), uint64(last)) {
		if err != nil {
			return nil, err
		}
		raw, size := uint64(0), 0
		for i := range seg.Packs {
			if before, err = seg.Packs[i].Resolve(before); err != nil {
				return nil, codec.Corrupt(err, "pack of revision %d of %s", seg.Packs[i].Revision, s.Name)
			}
			raw, size = raw+seg.Packs[i].Raw(), size+seg.Packs[i].Size()
		}
		if p.more = len(p.packs) > 0 && (p.size+size > z.Most || len(p.keys) > mostKeys); p.more {
			break
		}
		p.packs, p.keys = append(p.packs, seg.Packs...), append(p.keys, seg.Keys...)
		end := seg.Packs[len(seg.Packs)-1].Revision
		if seg.Level != codec.Fast {
			p.keys = append(p.keys, s.Space.Index(s.Inc, end))
		}
		p.raw, p.size, p.level = p.raw+raw, p.size+size, min(p.level, seg.Level)
		if head.Revision(end) > sealed {
			p.fresh += raw
		}
		if p.segments++; p.raw >= uint64(z.Full) {
			break
		}
	}
	return p, nil
}
