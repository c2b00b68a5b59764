package pack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/record"
)

// A Segment is a run of packs of one session, ascending by revision, that is stored as one
// compressed value, or as a few if it is large. A loose pack is a segment of one pack that a
// commit wrote. The packs that are read are not resolved.
type Segment struct {
	Packs []Pack
	Keys  [][]byte // of its values
	// Level is codec.Fast for a loose pack, and how well a sealed one is compressed.
	Level codec.Level
	loose []byte // the prefixes of a loose pack
}

// Segments yields the segments that hold revisions from first to last of a
// session, in order. Sealing may run meanwhile: a segment can then begin with
// packs that were yielded before; skip them by revision.
func Segments(ctx context.Context, e engine.Engine, space *keys.Space, inc keys.Incarnation, first, last uint64) iter.Seq2[Segment, error] {
	return segments(ctx, e, space, inc, first, last, 0)
}

// segments is Segments. If limit is not 0, it reads at most that many values, and yields a
// *partsError if they end in the middle of the first segment.
func segments(ctx context.Context, e engine.Engine, space *keys.Space, inc keys.Incarnation, first, last uint64, limit int) iter.Seq2[Segment, error] {
	return func(yield func(Segment, error) bool) {
		var data []byte
		var seg Segment
		want, start := 0, uint64(0)
		fail := func(key []byte, err error) bool {
			return yield(Segment{}, codec.Corrupt(err, "pack at key %x", key))
		}
		r := engine.Range{Start: space.Pack(inc, first, 0), End: space.Of(keys.Pack, inc).End, Limit: limit}
		for p, err := range e.Scan(ctx, r) {
			if err != nil {
				yield(Segment{}, err)
				return
			}
			_, fields, ok := space.Fields(p.Key)
			if !ok {
				fail(p.Key, fmt.Errorf("%w: key", record.ErrMalformed))
				return
			}
			end, part := keys.PackFields(fields)
			body, err := codec.Open(p.Key, p.Value, keys.Pack)
			if err == nil && part != len(seg.Keys) {
				err = fmt.Errorf("%w: part %d follows %d parts", record.ErrMalformed, part, len(seg.Keys))
			}
			if err == nil && part == 0 {
				var h segmentHead
				h, body, err = openHead(body)
				start, want, seg.Level, seg.loose = h.first, h.parts, h.level, h.prefixes
			}
			if err != nil {
				fail(p.Key, err)
				return
			}
			if part == 0 && start > last {
				return
			}
			data = append(data, body...)
			seg.Keys = append(seg.Keys, p.Key)
			if len(seg.Keys) < want {
				continue
			}
			seg.Packs, err = decodeSegment(data)
			if err == nil && (seg.Packs[0].Revision != start || seg.Packs[len(seg.Packs)-1].Revision != end) {
				err = fmt.Errorf("%w: holds other revisions than its key says", record.ErrMalformed)
			}
			if err == nil && seg.Level == codec.Fast && (len(seg.Packs) > 1 || len(seg.loose) != prefixBytes*len(seg.Packs[0].Nodes)) {
				err = fmt.Errorf("%w: holds other nodes than its index says", record.ErrMalformed)
			}
			if err != nil {
				fail(p.Key, err)
				return
			}
			if !yield(seg, nil) || end >= last {
				return
			}
			seg, data = Segment{}, nil
		}
		if len(seg.Keys) > 0 && limit > 0 && len(seg.Keys) == limit {
			yield(Segment{}, &partsError{want})
		} else if len(seg.Keys) > 0 {
			fail(seg.Keys[0], fmt.Errorf("%w: %d of %d parts", record.ErrMissing, len(seg.Keys), want))
		}
	}
}

// IsLoose reports whether a segment, of which p is the first value, is a loose pack.
func IsLoose(space *keys.Space, p engine.Pair) (bool, error) {
	_, _, ok := space.Fields(p.Key)
	body, err := codec.Open(p.Key, p.Value, keys.Pack)
	if err == nil && !ok {
		err = fmt.Errorf("%w: key", record.ErrMalformed)
	}
	var h segmentHead
	if err == nil {
		h, _, err = openHead(body)
	}
	return h.level == codec.Fast, codec.Corrupt(err, "pack at key %x", p.Key)
}

// A segmentHead is what a segment's first value begins with: the revision of its first pack and
// four times the number of values plus the level, both uvarint. A loose pack goes on with the
// number of its nodes (uvarint) and the first bytes of their ids.
type segmentHead struct {
	first    uint64 // revision
	parts    int
	level    codec.Level
	prefixes []byte // of a loose pack: of its nodes' ids
}

func (h *segmentHead) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, h.first)
	return binary.AppendUvarint(dst, uint64(h.parts)<<2|uint64(h.level))
}

func openHead(body []byte) (h segmentHead, rest []byte, err error) {
	first, n := codec.Uvarint(body)
	if n <= 0 {
		return h, nil, fmt.Errorf("%w: segment head", record.ErrMalformed)
	}
	count, m := codec.Uvarint(body[n:])
	if m <= 0 || count>>2 < 1 || count>>2 > maxParts || codec.Level(count&3) > codec.Best {
		return h, nil, fmt.Errorf("%w: segment of %d parts", record.ErrMalformed, count>>2)
	}
	h, rest = segmentHead{first: first, parts: int(count >> 2), level: codec.Level(count & 3)}, body[n+m:]
	if h.level == codec.Fast {
		h.prefixes, rest, err = cutPrefixes(rest)
	}
	return h, rest, err
}

// ErrNoSegment reports that no segment holds a revision: the commit has no
// nodes, or something is missing.
var ErrNoSegment = errors.New("pack: no segment holds the revision")

// SegmentAt returns the segment that holds revision.
func SegmentAt(ctx context.Context, e engine.Engine, space *keys.Space, inc keys.Incarnation, revision uint64) (Segment, error) {
	for limit := 1; ; {
		seg, err := Segment{}, fmt.Errorf("%w: %d", ErrNoSegment, revision)
		for seg, err = range segments(ctx, e, space, inc, revision, revision, limit) {
			break
		}
		var more *partsError
		if !errors.As(err, &more) || more.want <= limit {
			return seg, err
		}
		limit = more.want
	}
}

// A partsError reports a segment of more values than were asked for.
type partsError struct{ want int }

func (e *partsError) Error() string { return fmt.Sprintf("pack: segment of %d values", e.want) }

// A Position says where a node is: in which commit, and which of its nodes it is.
type Position struct {
	Revision uint64
	Index    int
}

// Before reports whether p was committed before q.
func (p Position) Before(q Position) bool {
	return p.Revision < q.Revision || p.Revision == q.Revision && p.Index < q.Index
}

// SealEventKey returns the record that maps an event key to the position of its node.
func (p Position) SealEventKey(key []byte) []byte { return codec.Seal(key, keys.EventKey, p.body()) }

// SealAttachment returns the record that maps an attachment to the position of the first
// node that has it.
func (p Position) SealAttachment(key []byte) []byte {
	return codec.Seal(key, keys.Attachment, p.body())
}

func (p Position) body() []byte {
	var b [16]byte
	n := binary.PutUvarint(b[:], p.Revision)
	n += binary.PutUvarint(b[n:], uint64(p.Index))
	return b[:n]
}

// OpenPosition decodes what SealEventKey or SealAttachment encodes, as letter says.
func OpenPosition(key, value []byte, letter byte) (p Position, err error) {
	body, err := codec.Open(key, value, letter)
	if err != nil {
		return Position{}, err
	}
	rev, n := codec.Uvarint(body)
	if n <= 0 {
		return Position{}, fmt.Errorf("%w: position", record.ErrMalformed)
	}
	pos, m := codec.Uvarint(body[n:])
	if m <= 0 || n+m != len(body) || pos >= MaxNodes {
		return Position{}, fmt.Errorf("%w: position", record.ErrMalformed)
	}
	return Position{Revision: rev, Index: int(pos)}, nil
}
