package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/session"
)

// A survey is what can be read of a session, and what it is to be.
type survey struct {
	*finding
	id, name string
	origin   *head.Origin
	lost     []Loss
	rest     *Rest
	gone     bool // Nothing can be shown.
	changed  bool // Records have to be written.
	anew     bool // The commits have to be written as well.

	stones map[[8]byte]head.Tombstone // of the session itself
	hidden map[[8]byte]head.Tombstone // all that hide nodes from it
	hide   map[[8]byte]hiding         // nodes whose tombstones can't be read
	before map[graph.ID]graph.ID      // of the nodes that get a tombstone: the nearest one that has none
	kept   []head.Kept
	epoch  uint64
	floor  head.Revision

	state            head.State
	bytes, packBytes uint64
	versions         []version // of checkpoint parts, in the order in which they were set
	unread           map[partSet]error
	dropped          map[partSet]bool // versions of the last checkpoint that can't be read
}

// A hiding says who has hidden a node with a tombstone that can't be read.
type hiding int

const (
	byItself   hiding = iota + 1
	byAncestor        // perhaps before the fork was made
)

// A partSet is a version of a checkpoint part: its name, and the revision that set it.
type partSet struct {
	name string
	set  head.Revision
}

// A version is a partSet, and the revision from which on another one counts.
type version struct {
	partSet
	until head.Revision // 0 if it is the last one
}

// survey reads a session.
func (r *repairer) survey(ctx context.Context, f *finding) (*survey, error) {
	s := &survey{
		finding: f, stones: map[[8]byte]head.Tombstone{}, hidden: map[[8]byte]head.Tombstone{}, hide: map[[8]byte]hiding{},
		before: map[graph.ID]graph.ID{}, unread: map[partSet]error{}, dropped: map[partSet]bool{}, changed: f.moved,
	}
	if s.id = unknownID(f.inc); f.about != nil {
		s.id = f.about.ID
	}
	s.name = fmt.Sprintf("session %q", s.id)
	for _, step := range []func(context.Context, *survey) error{r.readOrigin, r.readStones, r.readKept, r.readInherited, r.readOwn, r.readRecords} {
		if err := step(ctx, s); err != nil {
			return nil, err
		}
	}
	s.settle()
	return s, nil
}

// hides reports whether the session does not show a node, or perhaps should not.
func (s *survey) hides(id graph.ID) bool {
	_, hidden := s.hidden[[8]byte(id[:])]
	return hidden || s.hide[[8]byte(id[:])] != 0
}

// damaged sorts an error: it is why something is lost if it is about a record that is damaged or missing, and fatal
// otherwise.
func damaged(err error) (why, fatal error) {
	var corrupt *damage.CorruptError
	if err == nil || errors.As(err, &corrupt) && !errors.Is(err, damage.ErrFormat) {
		return err, nil
	}
	return nil, err
}

// readOrigin reads what the session begins with.
func (r *repairer) readOrigin(ctx context.Context, s *survey) error {
	origin, err := r.Origin(ctx, s.inc)
	why, err := damaged(err)
	if err != nil {
		return err
	}
	s.origin = origin
	if fork := s.about != nil && s.about.Parent != (head.Incarnation{}) && !s.about.Detached; fork && (origin == nil || len(origin.Ancestors) == 0) {
		why = cmp.Or(why, damage.ErrMissing)
	}
	if why = cmp.Or(why, r.lost[s.inc]); why != nil {
		s.leave(why)
	}
	return nil
}

// leave gives a session up, because what it inherits can't be read.
func (s *survey) leave(why error) {
	s.lose(why, "what it inherits, and so all of it")
	s.gone = true
}

// readStones reads the tombstones that hide nodes from the session, its own and those of its ancestors.
func (r *repairer) readStones(ctx context.Context, s *survey) error {
	take := func(inc head.Incarnation, epoch uint64, by hiding) (n uint64, last uint64, err error) {
		stones := map[[8]byte]bool{}
		for p, err := range r.Engine.Scan(ctx, r.Space.Of(keys.Tombstone, inc)) {
			if err != nil {
				return n, last, err
			}
			id, stone, err := history.DecodeStone(r.Space, p)
			if err != nil {
				if _, _, ok := r.Space.Fields(p.Key); ok { // Others may share the node.
					r.damaged[inc] = append(r.damaged[inc], p.Key)
				}
				s.changed = true
				if err := r.w.remove(ctx, p.Key); err != nil {
					return n, last, err
				}
				continue
			}
			stones[id] = true
			n, last = n+1, max(last, stone.Epoch)
			if by == byItself {
				s.stones[id] = stone
			}
			if stone.Epoch <= epoch {
				s.hidden[id] = stone
			}
		}
		for _, key := range r.damaged[inc] {
			if letter, fields, _ := r.Space.Fields(key); letter == keys.Tombstone {
				s.hide[[8]byte(fields[16:])] = by
			}
		}
		for _, id := range r.gone[inc] {
			if !stones[id] {
				s.hide[id] = by
			}
		}
		return n, last, nil
	}
	var of []head.Ancestor
	if s.origin != nil {
		of = s.origin.Ancestors
	}
	for _, a := range of {
		n, _, err := take(a.Incarnation, a.Epoch, byAncestor)
		if err != nil {
			return err
		}
		s.miss(r.lives[a.Incarnation], n+r.damagedOf(a.Incarnation, keys.Tombstone), " of an ancestor")
	}
	n, last, err := take(s.inc, ^uint64(0), byItself)
	if err != nil {
		return err
	}
	s.miss(s.life, n+r.damagedOf(s.inc, keys.Tombstone), "")
	s.epoch = max(last, r.epochs[s.inc]) + 1
	if s.life == nil {
		s.changed, s.anew = true, true
		return nil
	}
	s.epoch, s.floor = max(s.epoch, s.life.Epoch+1), s.life.Floor
	s.changed = s.changed || n != s.life.Stones
	return nil
}

// miss notes how many tombstones are lost: those that a lifecycle record counts, and that are not there. If the record is
// lost, it notes that nobody knows.
func (s *survey) miss(life *head.Life, have uint64, of string) {
	switch {
	case life == nil:
		s.lose(damage.ErrMissing, "lifecycle record%s: whether tombstones are lost is not known", of)
	case have < life.Stones:
		s.lose(missing(life.Stones-have, "tombstones"), "tombstones%s: nodes that were removed from view may show again", of)
	}
}

// damagedOf counts the damaged records of a letter.
func (r *repairer) damagedOf(inc head.Incarnation, letter byte) (n uint64) {
	for _, key := range r.damaged[inc] {
		if l, _, _ := r.Space.Fields(key); l == letter {
			n++
		}
	}
	return n
}

// count counts the records of a letter.
func (r *repairer) count(ctx context.Context, letter byte, inc head.Incarnation) (n uint64, err error) {
	for _, err := range r.Engine.Scan(ctx, r.Space.Of(letter, inc)) {
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// readKept reads the kept revisions.
func (r *repairer) readKept(ctx context.Context, s *survey) error {
	for p, err := range r.Engine.Scan(ctx, r.Space.Of(keys.Ref, s.inc)) {
		if err != nil {
			return err
		}
		if k, err := head.DecodeKept(p.Key, p.Value); err == nil {
			s.kept = append(s.kept, *k)
		}
	}
	n := r.damagedOf(s.inc, keys.Ref)
	if have := uint64(len(s.kept)); s.life != nil && s.life.Refs != have {
		s.changed = true
		if n = 0; s.life.Refs > have {
			n = s.life.Refs - have
		} else {
			s.lose(damage.ErrMissing, "the release of %d kept revisions", have-s.life.Refs)
		}
	}
	if n > 0 {
		s.lose(missing(n, "records"), "names of kept revisions")
	}
	return nil
}

// readInherited reads what a fork inherits. If that is not whole, the session is given up: its nodes follow nodes that
// are not there.
func (r *repairer) readInherited(ctx context.Context, s *survey) error {
	if s.origin == nil || s.gone {
		return nil
	}
	ends := map[head.CommitID]bool{}
	of := history.Inherited{Store: r.Store, Ancestors: s.origin.Ancestors}
	err := of.Turns(ctx, func(ctx context.Context, t *history.Turn, _ []head.Part, cut int) error {
		ends[t.ID] = true
		return r.readNodes(ctx, s, t, cut)
	})
	for _, a := range s.origin.Ancestors {
		if err == nil && a.Revision > 0 && !ends[a.Commit] {
			err = codec.Corrupt(damage.ErrHash, "commit %d that %s inherits", a.Revision, s.name)
		}
	}
	why, err := damaged(err)
	if err != nil {
		return err
	}
	if why != nil {
		s.leave(why)
		return nil
	}
	for _, p := range s.origin.Parts {
		key := partSet{p.Name, 0}
		s.versions = append(s.versions, version{key, 0})
		why, err := r.readable(ctx, p.Blob, p.Size)
		if err != nil {
			return err
		}
		if why != nil {
			s.unread[key] = why
		}
	}
	return nil
}

// readOwn reads the session's own commits, up to the first one that is lost.
func (r *repairer) readOwn(ctx context.Context, s *survey) error {
	s.state = head.Begin(s.inc, s.origin)
	if s.gone {
		return nil
	}
	h := &history.History{Store: r.Store, Inc: s.inc, Origin: s.origin, Name: s.name}
	of := history.Revisions{Inc: s.inc, Name: s.name, Last: history.Unsealed, Previous: s.state.Commit}
	matches := s.head != nil && s.head.Revision == 0 && s.head.Commit == s.state.Commit
	err := r.ownTurns(ctx, s, h, of, func(t *history.Turn) {
		if s.head != nil && s.head.Revision == t.Revision {
			matches = s.head.Commit == t.ID
		}
	})
	why, err := damaged(err)
	if err != nil {
		return err
	}
	last := s.state.Revision
	if s.head != nil && s.head.Revision > last {
		s.lose(cmp.Or(why, damage.ErrMissing), "%s", revisions(last+1, s.head.Revision))
	} else if why != nil {
		s.lose(why, "what was committed after revision %d", last)
	} else if s.head == nil {
		s.lose(damage.ErrMissing, "head: whether commits after revision %d are lost is not known", last)
	}
	if s.head != nil && s.head.Revision <= last && !matches {
		s.lose(damage.ErrHash, "head: at revision %d it names another commit", s.head.Revision)
	}
	if s.head == nil || s.head.Revision != last || !matches || why != nil {
		s.changed = true
		s.anew = s.anew || why != nil || s.head != nil && s.head.Revision != last
	} else {
		s.bytes, s.packBytes = s.head.Bytes, s.head.PackBytes
	}
	return nil
}

// ownTurns reads turns of the session one after the other.
func (r *repairer) ownTurns(ctx context.Context, s *survey, h *history.History, of history.Revisions, f func(t *history.Turn)) error {
	for segment, err := range r.Segments(ctx, of) {
		if err != nil {
			return err
		}
		if s.life != nil && segment.Loose() == (segment.Last <= s.life.Indexed()) {
			s.changed, s.anew = true, true // The lifecycle record says otherwise.
		}
		for i := range segment.Turns {
			t := &segment.Turns[i]
			if t.Revision <= s.state.Revision {
				continue
			}
			next, err := s.state.Then(&t.Commit, t.ID)
			if err != nil {
				return codec.Corrupt(err, "commit %d of %s", t.Revision, s.name)
			}
			if err := r.readNodes(ctx, s, t, 0); err != nil {
				return err
			}
			if err := r.readParts(ctx, s, h, t); err != nil {
				return err
			}
			s.state, s.bytes, s.packBytes = next, s.bytes+t.Pack.Bytes(), s.packBytes+t.Pack.Uncompressed()
			f(t)
		}
	}
	return nil
}

// revisions names a range of revisions.
func revisions(first, last head.Revision) string {
	if first == last {
		return fmt.Sprintf("revision %d", first)
	}
	return fmt.Sprintf("revisions %d to %d", first, last)
}

// readNodes reads the contents of the nodes of a turn that the session shows. If cut is not 0, it shares only so many
// of them.
func (r *repairer) readNodes(ctx context.Context, s *survey, t *history.Turn, cut int) error {
	for i := range t.Pack.Nodes {
		n := &t.Pack.Nodes[i]
		id := [8]byte(n.ID[:])
		if _, hidden := s.hidden[id]; hidden || cut > 0 && i >= cut {
			continue
		}
		why, err := r.readNode(ctx, n)
		if err != nil {
			return err
		}
		switch by := s.hide[id]; {
		case why == nil && !n.Erased && by == 0:
			continue
		case why != nil && by == 0:
			s.lose(why, "content of node %s of revision %d (%q)", n.ID, t.Revision, n.Kind)
		case by == byAncestor && !n.Erased:
			s.lose(damage.ErrChecksum, "node %s (%q), as its tombstone, which may be older than the fork, can't be read", n.ID, n.Kind)
		}
		s.entomb(n)
	}
	return nil
}

// readNode reads the content of a node, and returns why it can't.
func (r *repairer) readNode(ctx context.Context, n *graph.Node) (why, err error) {
	if !n.Blob.IsZero() {
		if why, err = r.readable(ctx, n.Blob, n.Size); why != nil || err != nil {
			return why, err
		}
	}
	for _, a := range n.Attachments {
		if why, err = r.readable(ctx, a.ID, a.Size); why != nil || err != nil {
			return why, err
		}
	}
	return nil, nil
}

// entomb gives a node a tombstone.
func (s *survey) entomb(n *graph.Node) {
	before := n.Parent
	if at, ok := s.before[n.Parent]; ok {
		before = at
	} else if stone, ok := s.hidden[[8]byte(n.Parent[:])]; ok && !stone.Pruned {
		before = stone.Before
	}
	s.before[n.ID] = before
	s.stones[[8]byte(n.ID[:])] = head.Tombstone{Epoch: s.epoch, Before: before}
	s.changed = true
}

// readable reads a blob, and returns why it can't be read, or is not of a size.
func (r *repairer) readable(ctx context.Context, id blob.ID, size int64) (why, err error) {
	c, known := r.contents[id]
	if !known {
		c.size, err = r.Blobs.WriteTo(ctx, io.Discard, id)
		if c.why, err = damaged(err); err != nil {
			return nil, err
		}
		r.contents[id] = c
	}
	if c.why == nil && c.size != size {
		return codec.Corrupt(damage.ErrMalformed, "blob %s", id), nil
	}
	return c.why, nil
}

// readParts reads the versions of checkpoint parts that a turn sets.
func (r *repairer) readParts(ctx context.Context, s *survey, h *history.History, t *history.Turn) error {
	if t.PartsAt != t.Revision {
		return nil
	}
	is := map[partSet]bool{}
	for _, p := range t.Parts {
		is[partSet{p.Name, p.Set}] = true
	}
	for i := range s.versions {
		if v := &s.versions[i]; v.until == 0 && !is[v.partSet] {
			v.until = t.Revision
		}
	}
	for _, p := range t.Parts {
		if p.Set != t.Revision {
			continue
		}
		key := partSet{p.Name, p.Set}
		s.versions = append(s.versions, version{key, 0})
		why, err := error(nil), error(nil)
		if head.IsDelta(p) {
			_, _, err = h.ReadPart(ctx, p)
			why, err = damaged(err)
		} else {
			why, err = r.readable(ctx, p.Blob, p.Size)
		}
		if err != nil {
			return err
		}
		if why != nil {
			s.unread[key] = why
		}
	}
	return nil
}

// readRecords finds out which records are lost.
func (r *repairer) readRecords(ctx context.Context, s *survey) error {
	for _, key := range r.damaged[s.inc] {
		if letter, fields, _ := r.Space.Fields(key); letter == keys.Record {
			_, text := keys.RecordFields(fields)
			s.lose(r.why(key), "record %q", text)
		}
	}
	for p, err := range r.Engine.Scan(ctx, r.Space.Of(keys.Record, s.inc)) {
		if err != nil {
			return err
		}
		_, fields, ok := r.Space.Fields(p.Key)
		_, text := keys.RecordFields(fields)
		if _, err := session.DecodeRecord(p.Key, text, p.Value); err != nil || !ok {
			s.lose(cmp.Or(err, damage.ErrMalformed), "record %q", text)
			if err := r.w.remove(ctx, p.Key); err != nil {
				return err
			}
		}
	}
	return r.w.flush(ctx)
}

// settle decides what the session is to be.
func (s *survey) settle() {
	lost := map[partSet]error{}
	for _, v := range s.versions {
		why := s.unread[v.partSet]
		switch {
		case why == nil || v.until != 0 && v.until <= s.floor && !s.keeps(v):
		case v.until == 0:
			s.dropped[v.partSet] = true
			if v.set == 0 {
				s.begin()
			}
			s.changed, s.anew = true, true
			s.lose(why, "checkpoint part %q of revision %d", v.name, v.set)
		default:
			lost[v.partSet] = why
			if v.until > s.floor {
				s.floor = v.until
			}
		}
	}
	if len(lost) > 0 {
		s.changed = true
	}
	if len(lost) > 0 && s.life != nil { // Without the lifecycle record nobody knows whether they were pruned.
		for _, v := range slices.SortedFunc(maps.Keys(lost), func(a, b partSet) int { return cmp.Or(cmp.Compare(a.set, b.set), cmp.Compare(a.name, b.name)) }) {
			s.lose(lost[v], "checkpoint part %q of revision %d", v.name, v.set)
		}
		s.lose(damage.ErrMissing, "checkpoints before revision %d, but those of kept revisions", s.floor)
	}
	s.floor = min(s.floor, s.state.Revision)
	s.kept = slices.DeleteFunc(s.kept, func(k head.Kept) bool {
		gone := k.Revision > s.state.Revision
		for _, v := range s.versions {
			if lost[v.partSet] != nil && v.set <= k.Revision && k.Revision < v.until {
				gone = true
			}
		}
		if gone {
			s.changed = true
			s.lose(damage.ErrMissing, "revision %d, kept as %q", k.Revision, k.Name)
		}
		return gone
	})
	if s.about == nil {
		s.changed = true
		s.lose(damage.ErrMissing, "metadata, and so its id")
		s.finding.about = &head.About{Incarnation: s.inc, Created: s.state.Time, Updated: s.state.Time}
		if s.origin != nil && len(s.origin.Ancestors) > 0 {
			s.about.Parent, s.about.ForkNode = s.origin.Ancestors[len(s.origin.Ancestors)-1].Incarnation, s.origin.Node()
		}
	}
}

// begin makes the session begin without the parts that are dropped, and with the same genesis.
func (s *survey) begin() {
	o := *s.origin
	o.Genesis, o.Parts = head.Genesis(s.inc, s.origin), s.without(o.Parts)
	s.origin = &o
}

// keeps reports whether a kept revision has a version.
func (s *survey) keeps(v version) bool {
	return slices.ContainsFunc(s.kept, func(k head.Kept) bool { return v.set <= k.Revision && k.Revision < v.until })
}

// without returns parts without those that are dropped.
func (s *survey) without(parts []head.Part) (out []head.Part) {
	for _, p := range parts {
		if !s.dropped[partSet{p.Name, p.Set}] {
			out = append(out, p)
		}
	}
	return out
}
