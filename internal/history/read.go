package history

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/cache"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A Reader reads the segments of a store.
type Reader struct {
	Engine  engine.Engine
	Space   *keys.Space
	Cache   *TurnCache // this and the others may be nil
	Indexes *Indexes
	Pages   *Pages
}

// turnName is what errors call an incarnation.
func turnName(inc head.Incarnation) string { return fmt.Sprintf("incarnation %x", inc) }

// A TurnCache keeps sealed segments that were decoded and verified. A segment is read from the engine
// all the same, and the cache is asked only whether these very bytes were decoded before. So what
// was erased or damaged since is not found in it.
type TurnCache = cache.Cache[string, *decoded]

// NewTurnCache returns an empty cache within a budget.
func NewTurnCache(b *cache.Budget) *TurnCache { return cache.New[string, *decoded](b) }

// A decoded segment must not be changed.
type decoded struct {
	values  [][]byte
	segment *Segment
}

// nodeBytes is about what a decoded node takes in memory beside its payload, or a turn beside its
// nodes, or a checkpoint part or a model's usage that a turn names.
const nodeBytes = 320

func (d *decoded) size() int {
	n := 0
	for _, v := range d.values {
		n += len(v)
	}
	for i := range d.segment.Turns {
		t := &d.segment.Turns[i]
		n += nodeBytes * (1 + len(t.Parts) + len(t.Usage) + len(t.Pack.Nodes))
		for j := range t.Pack.Nodes {
			n += len(t.Pack.Nodes[j].Inline)
		}
	}
	return n
}

// A Revisions is a range of an incarnation's revisions.
type Revisions struct {
	Inc   head.Incarnation
	Name  string        // what errors call the history
	After head.Revision // the range begins after this revision
	Last  head.Revision // the range ends with this revision, or with the last one that is there if it is Unsealed
	// Previous is the id of the commit of revision After, which the first commit of the
	// range has to follow. If it is zero, the first commit may follow any commit.
	Previous head.CommitID
}

// Unsealed is the Last of a range that has no end.
const Unsealed = ^head.Revision(0)

// Segments yields the segments that hold the revisions of a range, in order, verified, and each
// following the one before. None is missing. The first segment can begin before the range, and the
// last one end after it. Sealing may run meanwhile: then a segment can begin with turns that were
// yielded before.
//
// The caller must not change the segments.
func (r Reader) Segments(ctx context.Context, of Revisions) iter.Seq2[*Segment, error] {
	return func(yield func(*Segment, error) bool) {
		if of.Last <= of.After {
			return
		}
		next, previous := of.After+1, of.Previous
		for raw, err := range r.records(ctx, of.Inc, next, 0) {
			if err != nil {
				yield(nil, err)
				return
			}
			s, err := r.decode(of.Inc, raw)
			if err == nil {
				err = s.follows(next, previous)
			}
			if err != nil {
				yield(nil, codec.Corrupt(err, "commit %d of %s", next, of.Name))
				return
			}
			if !yield(s, nil) {
				return
			}
			next, previous = s.Last+1, s.Turns[len(s.Turns)-1].ID
			if s.Last >= of.Last {
				return
			}
		}
		if of.Last != Unsealed {
			yield(nil, codec.Corrupt(damage.ErrMissing, "commit %d of %s", next, of.Name))
		}
	}
}

// follows checks that revision next is in s, and follows the commit with the id previous, if that
// is not zero.
func (s *Segment) follows(next head.Revision, previous head.CommitID) error {
	t := s.Turn(next)
	if t == nil {
		return damage.ErrMissing
	}
	if t.Previous != previous && !previous.IsZero() {
		return fmt.Errorf("%w: it does not follow commit %d", damage.ErrHash, next-1)
	}
	return nil
}

// Turns calls f for the turns of a range in order. They must not be changed.
func (r Reader) Turns(ctx context.Context, of Revisions, f func(*Turn) error) error {
	done := of.After
	for s, err := range r.Segments(ctx, of) {
		if err != nil {
			return err
		}
		for i := range s.Turns {
			t := &s.Turns[i]
			if t.Revision <= done || t.Revision > of.Last {
				continue
			}
			if err := f(t); err != nil {
				return err
			}
			done = t.Revision
		}
	}
	return nil
}

// At returns the segment that holds a revision. name is what errors call the history. The caller
// must not change the segment.
func (r Reader) At(ctx context.Context, inc head.Incarnation, name string, revision head.Revision) (*Segment, error) {
	raw, err := r.first(ctx, inc, revision)
	if err != nil {
		return nil, err
	}
	s, err := r.decode(inc, raw)
	if err == nil && s.First > revision {
		err = damage.ErrMissing
	}
	return s, codec.Corrupt(err, "commit %d of %s", revision, name)
}

// first reads the first segment that ends with a revision or a later one.
func (r Reader) first(ctx context.Context, inc head.Incarnation, revision head.Revision) (*rawSegment, error) {
	for limit := 2; ; { // a sealed segment has so many values, unless it is large
		raw, err := &rawSegment{bad: damage.ErrMissing}, error(nil)
		for raw, err = range r.records(ctx, inc, revision, limit) {
			break
		}
		if err != nil || !raw.cut || raw.header.values <= limit {
			return raw, err
		}
		limit = raw.header.values
	}
}

// Commits calls f for the commits of a range, without decoding their nodes. All of them have to be
// loose: a sealed one is reported as missing.
func (r Reader) Commits(ctx context.Context, of Revisions, f func(*head.Commit, head.CommitID) error) error {
	next, previous := of.After+1, of.Previous
	for raw, err := range r.records(ctx, of.Inc, next, 0) {
		if err != nil {
			return err
		}
		var c *head.Commit
		var id head.CommitID
		switch {
		case raw.bad != nil:
			err = raw.bad
		case raw.header.level != codec.Fast || raw.header.first != uint64(next):
			err = damage.ErrMissing
		default:
			if c, id, _, err = decodeCommit(raw.header, raw.rest); err == nil && c.Previous != previous && !previous.IsZero() {
				err = damage.ErrHash
			}
		}
		if err != nil {
			return codec.Corrupt(err, "commit %d of %s", next, of.Name)
		}
		if err := f(c, id); err != nil {
			return err
		}
		if next, previous = next+1, id; next > of.Last {
			return nil
		}
	}
	return codec.Corrupt(damage.ErrMissing, "commit %d of %s", next, of.Name)
}

// A rawSegment is a segment as it was read.
type rawSegment struct {
	header header
	rest   []byte // of the first value
	keys   [][]byte
	values [][]byte
	bad    error // why it can't be decoded; nothing comes after such a segment
	cut    bool  // it is not whole because no more values were asked for
}

// records yields the segments that end with a revision or a later one. If limit is not 0, it reads
// at most that many values. An error that it yields is one of the engine.
func (r Reader) records(ctx context.Context, inc head.Incarnation, from head.Revision, limit int) iter.Seq2[*rawSegment, error] {
	return func(yield func(*rawSegment, error) bool) {
		scan := engine.Range{Start: r.Space.Segment(inc, uint64(from), 0), End: r.Space.Of(keys.Segment, inc).End, Limit: limit}
		raw := &rawSegment{}
		for p, err := range r.Engine.Scan(ctx, scan) {
			if err != nil {
				yield(nil, err)
				return
			}
			if raw.bad = raw.add(r.Space, p); raw.bad != nil {
				yield(raw, nil)
				return
			}
			if len(raw.values) < raw.header.values {
				continue
			}
			if !yield(raw, nil) {
				return
			}
			raw = &rawSegment{}
		}
		if n := len(raw.values); n > 0 {
			raw.bad, raw.cut = fmt.Errorf("%w: %d of %d values", damage.ErrMissing, n, raw.header.values), n == limit
			yield(raw, nil)
		}
	}
}

// add adds a value.
func (raw *rawSegment) add(space *keys.Space, p engine.Pair) (err error) {
	if len(raw.values) == 0 {
		if raw.header, raw.rest, err = decodeHeader(space, p.Key, p.Value); err != nil {
			return err
		}
	} else if !bytes.Equal(p.Key, space.Segment(head.Incarnation(p.Key[5:]), raw.header.last, len(raw.values))) {
		return fmt.Errorf("%w: value %d of %d", damage.ErrMissing, len(raw.values), raw.header.values)
	}
	raw.keys, raw.values = append(raw.keys, p.Key), append(raw.values, p.Value)
	return nil
}

// decode decodes a segment, unless the cache has it.
func (r Reader) decode(inc head.Incarnation, raw *rawSegment) (*Segment, error) {
	if raw.bad != nil {
		return nil, raw.bad
	}
	sealed := raw.header.level != codec.Fast
	name := string(raw.keys[0])
	if sealed {
		if d, ok := r.Cache.Get(name); ok && slices.EqualFunc(d.values, raw.values, bytes.Equal) {
			return d.segment, nil
		}
	}
	var data []byte
	for i, v := range raw.values[1:] {
		body, err := codec.Decode(raw.keys[i+1], v, keys.Segment)
		if err != nil {
			return nil, err
		}
		data = append(data, body...)
	}
	s, err := decode(inc, raw.header, raw.rest, data)
	if err != nil {
		return nil, err
	}
	s.Keys = raw.keys
	if sealed {
		d := &decoded{raw.values, s}
		r.Cache.Put(name, d, d.size())
	}
	return s, nil
}

// End returns the state at the end of the sealed segment that ends with a revision. name is what
// errors call the history.
func (r Reader) End(ctx context.Context, inc head.Incarnation, name string, revision head.Revision) (head.State, error) {
	key := r.Space.Segment(inc, uint64(revision), 0)
	values, err := r.Engine.Get(ctx, key)
	if err != nil {
		return head.State{}, err
	}
	h, rest, err := decodeHeader(r.Space, key, values[0])
	if err == nil && h.level == codec.Fast {
		err = fmt.Errorf("%w: loose segment", damage.ErrMalformed)
	}
	var s head.State
	if err == nil {
		s, err = decodeEnd(h, rest)
	}
	return s, codec.Corrupt(err, "end of commit %d of %s", revision, name)
}

// DecodeLast returns what the first value of the segment that ends with a revision says of the last
// commit. Value is nil if there is none.
func DecodeLast(space *keys.Space, key, value []byte) (head.Base, error) {
	h, rest, err := decodeHeader(space, key, value)
	if err != nil {
		return head.Base{}, err
	}
	if h.level != codec.Fast {
		s, err := decodeEnd(h, rest)
		return s.Base, err
	}
	c, id, _, err := decodeCommit(h, rest)
	if err != nil {
		return head.Base{}, err
	}
	return c.Base(id), nil
}

// IsLoose reports whether the segment whose first value p is was stored by a commit.
func IsLoose(space *keys.Space, p engine.Pair) (loose bool, err error) {
	h, _, err := decodeHeader(space, p.Key, p.Value)
	return h.level == codec.Fast, codec.Corrupt(err, "segment at key %x", p.Key)
}

// A NodeCount counts the nodes of segments that are removed, from their first values, in the order
// of their keys.
type NodeCount struct {
	Nodes int
	total uint64        // of the session up to the last segment
	last  head.Revision // of that segment
}

// Add counts the nodes of the segment that p is a value of. It can't know the number of nodes in the
// first segment if that is sealed and other segments were before it.
func (c *NodeCount) Add(space *keys.Space, p engine.Pair) error {
	if _, fields, ok := space.Fields(p.Key); ok {
		if _, at := keys.SegmentFields(fields); at > 0 {
			return nil
		}
	}
	err := c.add(space, p)
	return codec.Corrupt(err, "segment at key %x", p.Key)
}

func (c *NodeCount) add(space *keys.Space, p engine.Pair) error {
	h, rest, err := decodeHeader(space, p.Key, p.Value)
	if err != nil {
		return err
	}
	if h.level == codec.Fast {
		commit, _, _, err := decodeCommit(h, rest)
		if err == nil {
			c.Nodes, c.total = c.Nodes+commit.Nodes, c.total+uint64(commit.Nodes)
		}
		c.last = head.Revision(h.last)
		return err
	}
	end, err := decodeEnd(h, rest)
	if err != nil {
		return err
	}
	if head.Revision(h.first) == c.last+1 {
		c.Nodes += int(end.Nodes - min(c.total, end.Nodes))
	}
	c.total, c.last = end.Nodes, head.Revision(h.last)
	return nil
}
