package repair

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Letters reports whether a repair needs the records of a letter. The others are about lists, feeds, collections and
// uploads, which the repaired sessions get anew.
func Letters(letter byte) bool {
	switch letter {
	case keys.Store, keys.About, keys.Blob, keys.Life, keys.Origin, keys.Segment, keys.Version, keys.Ref, keys.Head, keys.Tombstone,
		keys.Index, keys.Record, keys.Listing, keys.Erased, keys.Place:
		return true
	}
	return false
}

// A Session is one that was found.
type Session struct {
	ID      string
	Changed bool   // Records were written to make it whole.
	Gone    bool   // Nothing of it can be shown.
	Lost    []Loss // what of it can't be read
	Rest    *Rest  // what came after a gap, or nil
}

// A Rest is what can be read of the commits of a session that come after a gap. Nothing vouches for what is before them,
// so they can't be shown as a part of it.
type Rest struct {
	History *history.History // of the session, for its checkpoint parts
	About   *head.About      // of the session
	Turns   head.Incarnation // a place that has the turns
	At      []head.Revision  // their revisions
	Hidden  func(graph.ID) bool
}

// A Loss is something that can't be read.
type Loss struct {
	What string // in words, for example `revisions 7 to 12`
	Err  error  // why
}

// Sessions finds the sessions of a store and makes each whole again, without what is lost of it. damaged are the keys
// of records that were there and can't be read. The history of a session ends before the first commit that is lost. A
// node whose content is lost becomes a tombstone. A checkpoint part that is lost is left out. So commits get new ids
// from the one on that has set the part, if it is a part of the last checkpoint.
func Sessions(ctx context.Context, st history.Store, damaged [][]byte) ([]Session, error) {
	r := newRepairer(st)
	for _, key := range damaged {
		letter, fields, ok := r.Space.Fields(key)
		switch {
		case !ok:
		case letter == keys.Record, letter == keys.Ref, letter == keys.Tombstone:
			inc := head.Incarnation(fields)
			r.damaged[inc] = append(r.damaged[inc], key)
		case letter == keys.Erased:
			r.noteErased(fields)
		case letter == keys.Life, letter == keys.Segment, letter == keys.Place, letter == keys.Origin:
			r.mentioned = append(r.mentioned, head.Incarnation(fields))
		}
	}
	all, err := r.find(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.unlisted(ctx); err != nil {
		return nil, err
	}
	if err := r.readForks(ctx, all); err != nil {
		return nil, err
	}
	var surveys []*survey
	for _, f := range all { // All, before anything is changed: forks compare their ancestors' commits.
		s, err := r.survey(ctx, f)
		if err != nil {
			return nil, err
		}
		surveys = append(surveys, s)
	}
	var out []Session
	for _, s := range surveys {
		if err := r.park(ctx, s); err != nil {
			return nil, err
		}
		if s.anew && !s.gone {
			if err := r.shorten(ctx, s); err != nil {
				return nil, err
			}
		}
	}
	for _, s := range surveys {
		r.follow(s)
		if s.gone {
			if err := r.bury(ctx, s); err != nil {
				return nil, err
			}
		} else if s.changed {
			if err := r.apply(ctx, s); err != nil {
				return nil, err
			}
		}
		out = append(out, Session{s.id, s.changed, s.gone, s.lost, s.rest})
	}
	orphans, err := r.orphans(ctx, all)
	return append(append(out, r.doubtful...), orphans...), errors.Join(err, r.w.flush(ctx))
}

// orphans returns the incarnations that have records, and neither a head, nor metadata, nor a lifecycle record. Nobody
// knows whether they are sessions, or were deleted.
func (r *repairer) orphans(ctx context.Context, all []*finding) (out []Session, err error) {
	known := map[head.Incarnation]bool{}
	for _, f := range all {
		known[f.inc] = true
	}
	orphan := func(inc head.Incarnation) {
		if !known[inc] && r.lives[inc] == nil {
			known[inc] = true
			why := fmt.Errorf("%w: head, metadata and lifecycle record, so it may have been deleted", damage.ErrMissing)
			out = append(out, Session{ID: unknownID(inc), Gone: true, Lost: []Loss{{"all of it", why}}})
		}
	}
	for _, inc := range r.mentioned {
		orphan(inc)
	}
	for _, letter := range []byte{keys.Segment, keys.Place, keys.Record, keys.Origin} {
		rest := r.Space.All(letter)
		for {
			rest.Limit = 1
			var p engine.Pair
			for p, err = range r.Engine.Scan(ctx, rest) {
			}
			if err != nil {
				return out, err
			}
			if p.Key == nil {
				break
			}
			_, fields, ok := r.Space.Fields(p.Key)
			if rest.Start = engine.Successor(p.Key); !ok {
				continue
			}
			inc := head.Incarnation(fields)
			rest.Start = r.Space.Of(letter, inc).End
			orphan(inc)
		}
	}
	return out, err
}

// A repairer is one call of Sessions.
type repairer struct {
	history.Store
	w         *writer
	lives     map[head.Incarnation]*head.Life
	damaged   map[head.Incarnation][][]byte  // keys of records, kept revisions and tombstones
	contents  map[[32]byte]content           // of blobs that were read
	commits   map[forkedAt]head.CommitID     // that forks begin behind, and that got a new id
	epochs    map[head.Incarnation]uint64    // of ancestors: the last one that a fork knows
	missing   map[string]bool                // keys of records that are in a list alone
	lost      map[head.Incarnation]error     // why an origin can't be read
	erased    map[head.Incarnation]bool      // sessions
	mentioned []head.Incarnation             // by keys of records that are damaged
	doubtful  []Session                      // of which nobody knows whether they were deleted
	gone      map[head.Incarnation][][8]byte // nodes that were erased
}

func newRepairer(st history.Store) *repairer {
	return &repairer{
		Store: st.Uncached(), w: &writer{Engine: st.Engine},
		lives: map[head.Incarnation]*head.Life{}, damaged: map[head.Incarnation][][]byte{},
		contents: map[[32]byte]content{}, commits: map[forkedAt]head.CommitID{}, epochs: map[head.Incarnation]uint64{},
		missing: map[string]bool{}, lost: map[head.Incarnation]error{}, erased: map[head.Incarnation]bool{}, gone: map[head.Incarnation][][8]byte{},
	}
}

// A content says how long a blob is, or why it can't be read.
type content struct {
	size int64
	why  error
}

// A forkedAt is a commit that a fork begins behind.
type forkedAt struct {
	inc      head.Incarnation
	revision head.Revision
}

// A finding is what says that there is a session: its metadata, its head, and its lifecycle record, or some of them.
type finding struct {
	hash  keys.Hash
	about *head.About
	head  *head.Head
	life  *head.Life
	inc   head.Incarnation
	moved bool // the head is that of another id
}

// find returns the sessions that live, in the order of their hashes.
func (r *repairer) find(ctx context.Context) (all []*finding, err error) {
	found := map[keys.Hash]*finding{}
	of := func(hash keys.Hash) *finding {
		f := found[hash]
		if f == nil {
			f = &finding{hash: hash}
			found[hash] = f
			all = append(all, f)
		}
		return f
	}
	living := map[keys.Hash][]head.Incarnation{}
	err = errors.Join(
		r.each(ctx, keys.About, func(hash keys.Hash, p engine.Pair) {
			if a, err := head.DecodeAbout(p.Key, p.Value); err == nil && r.Space.Session(a.ID) == hash {
				of(hash).about = a
			}
		}),
		r.each(ctx, keys.Head, func(hash keys.Hash, p engine.Pair) {
			if h, err := head.DecodeHead(p.Key, p.Value); err == nil {
				of(hash).head = h
			}
		}),
		r.each(ctx, keys.Life, func(inc keys.Hash, p engine.Pair) {
			if l, err := head.DecodeLife(p.Key, p.Value); err == nil {
				r.lives[head.Incarnation(inc)] = l
				if l.State == head.Live && l.Session != (keys.Hash{}) {
					of(l.Session)
					living[l.Session] = append(living[l.Session], head.Incarnation(inc))
				}
			}
		}),
		r.each(ctx, keys.Erased, func(_ keys.Hash, p engine.Pair) {
			_, fields, _ := r.Space.Fields(p.Key)
			r.noteErased(fields)
		}),
	)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(f *finding) bool { return !r.settle(f, living[f.hash]) })
	return r.once(ctx, all)
}

// settle finds out which incarnation a finding is about, of those whose lifecycle records name its id. It reports whether
// that is a session that lives.
func (r *repairer) settle(f *finding, living []head.Incarnation) bool {
	switch {
	case len(living) == 1:
		f.inc = living[0]
	case f.head != nil:
		f.inc = f.head.Incarnation
	case f.about != nil:
		f.inc = f.about.Incarnation
	default:
		f.inc = living[0]
	}
	for _, inc := range living {
		if inc != f.inc {
			r.doubt(inc, nil, "another session has the id that its lifecycle record names")
		}
	}
	if f.life = r.lives[f.inc]; f.life != nil && f.life.Session != f.hash {
		f.life = nil
	}
	if f.head != nil && f.head.Incarnation != f.inc {
		f.head = nil
	}
	if f.about != nil && f.about.Incarnation != f.inc {
		f.about = nil
	}
	l := r.lives[f.inc]
	deleted := l != nil && l.State != head.Live
	if deleted && !r.erased[f.inc] && (f.about != nil || f.head != nil) {
		r.doubt(f.inc, f.about, "the lifecycle record says that the session was deleted, and its head or metadata are there")
	}
	return !deleted && !r.erased[f.inc]
}

// doubt notes that a session does not come, because its records contradict each other.
func (r *repairer) doubt(inc head.Incarnation, about *head.About, why string) {
	id := unknownID(inc)
	if about != nil {
		id = about.ID
	}
	r.doubtful = append(r.doubtful, Session{ID: id, Gone: true, Lost: []Loss{{"all of it", fmt.Errorf("%w: %s", damage.ErrMalformed, why)}}})
}

// once leaves one of those findings that are about the same incarnation: records of the id that it had before it was
// renamed may be back. It removes their records.
func (r *repairer) once(ctx context.Context, all []*finding) ([]*finding, error) {
	best := map[head.Incarnation]*finding{}
	better := func(a, b *finding) bool {
		switch {
		case (a.about != nil) != (b.about != nil):
			return a.about != nil
		case (a.life != nil) != (b.life != nil):
			return a.life != nil // It names the id.
		case a.about != nil && !a.about.Updated.Equal(b.about.Updated):
			return a.about.Updated.After(b.about.Updated)
		}
		return bytes.Compare(a.hash[:], b.hash[:]) < 0
	}
	for _, f := range all {
		if was := best[f.inc]; was == nil || better(f, was) {
			best[f.inc] = f
		}
	}
	for _, f := range all {
		if best[f.inc] == f {
			continue
		}
		if err := r.removeNames(ctx, f.hash); err != nil {
			return nil, err
		}
		if other := best[f.inc]; f.head != nil && (other.head == nil || f.head.Revision > other.head.Revision) {
			other.head, other.moved = f.head, true
		}
	}
	all = slices.DeleteFunc(all, func(f *finding) bool { return best[f.inc] != f })
	return all, r.w.flush(ctx)
}

// each calls f for the records of a letter, with the first 16 bytes behind it.
func (r *repairer) each(ctx context.Context, letter byte, f func(field keys.Hash, p engine.Pair)) error {
	for p, err := range r.Engine.Scan(ctx, r.Space.All(letter)) {
		if err != nil {
			return err
		}
		if _, fields, ok := r.Space.Fields(p.Key); ok {
			f(keys.Hash(fields), p)
		}
	}
	return nil
}

// readForks reads the origins of all incarnations that are sessions or ancestors of one. Those that are lost get
// another one, with which the commits can be read: it says what the first commit follows, as that of a session which
// came in a bundle. Ancestors whose lifecycle record is lost get another one of a deleted session.
func (r *repairer) readForks(ctx context.Context, all []*finding) error {
	var incs []head.Incarnation
	seen := map[head.Incarnation]bool{}
	see := func(inc head.Incarnation) {
		if !seen[inc] {
			seen[inc] = true
			incs = append(incs, inc)
		}
	}
	for _, f := range all {
		see(f.inc)
	}
	for i := 0; i < len(incs); i++ {
		origin, err := r.Origin(ctx, incs[i])
		why, err := damaged(err)
		if err != nil {
			return err
		}
		if why != nil {
			if err := r.w.remove(ctx, r.Space.Origin(incs[i])); err != nil {
				return err
			}
		}
		if origin == nil {
			if err := r.beginAgain(ctx, incs[i], why); err != nil {
				return err
			}
			continue
		}
		for _, a := range origin.Ancestors {
			see(a.Incarnation)
			r.epochs[a.Incarnation] = max(r.epochs[a.Incarnation], a.Epoch)
		}
	}
	for _, f := range all {
		seen[f.inc] = false
	}
	for _, inc := range incs {
		if !seen[inc] || r.lives[inc] != nil {
			continue
		}
		stones, err := r.count(ctx, keys.Tombstone, inc)
		if err != nil {
			return err
		}
		key := r.Space.Life(inc)
		life := head.Life{State: head.Deleted, Floor: 1, Epoch: r.epochs[inc] + 1, Stones: stones}
		if err := r.w.set(ctx, key, life.Encode(key)); err != nil {
			return err
		}
	}
	return r.w.flush(ctx)
}

// beginAgain writes an origin of an incarnation that has none, if its first commit does not follow its genesis.
func (r *repairer) beginAgain(ctx context.Context, inc head.Incarnation, why error) error {
	for segment, err := range r.Segments(ctx, history.Revisions{Inc: inc, Last: 1}) {
		if _, err = damaged(err); err != nil || segment == nil {
			return err
		}
		t := &segment.Turns[0]
		if t.Previous == head.Genesis(inc, nil) {
			return nil
		}
		if n := len(t.Pack.Nodes); n > 0 && !t.Pack.Nodes[0].Parent.IsZero() || n == 0 && !t.Leaf.IsZero() {
			r.lost[inc] = cmp.Or(why, damage.ErrMissing)
		}
		key := r.Space.Origin(inc)
		o := head.Origin{Genesis: t.Previous}
		if err := r.w.set(ctx, key, o.Encode(key)); err != nil {
			return err
		}
		return r.w.flush(ctx)
	}
	return nil
}

// noteErased notes what the fields of the key of an erasure say.
func (r *repairer) noteErased(fields []byte) {
	inc, _, node := keys.ErasedFields(fields)
	if node == (graph.ID{}) {
		r.erased[inc] = true
	} else {
		r.gone[inc] = append(r.gone[inc], [8]byte(node[:]))
	}
}

// unlisted adds those records to the damaged ones that are in the list of records and nowhere else.
func (r *repairer) unlisted(ctx context.Context) error {
	listed := map[string]bool{}
	for _, of := range r.damaged {
		for _, key := range of {
			listed[string(key)] = true
		}
	}
	for p, err := range r.Engine.Scan(ctx, r.Space.All(keys.Listing)) {
		if err != nil {
			return err
		}
		_, fields, ok := r.Space.Fields(p.Key)
		if !ok {
			continue
		}
		text, inc := keys.ListingFields(fields)
		key := r.Space.Record(inc, text)
		vs, err := r.Engine.Get(ctx, key)
		if err != nil {
			return err
		}
		if vs[0] == nil && !listed[string(key)] {
			r.damaged[inc] = append(r.damaged[inc], key)
			r.missing[string(key)] = true
		}
	}
	return nil
}

// unknownID is the id of a session whose own is lost.
func unknownID(inc head.Incarnation) string { return "recovered-" + hex.EncodeToString(inc[:8]) }

// lose notes that something is lost.
func (s *survey) lose(err error, format string, args ...any) {
	s.lost = append(s.lost, Loss{fmt.Sprintf(format, args...), err})
}

// why returns why a record can't be read.
func (r *repairer) why(key []byte) error {
	if r.missing[string(key)] {
		return damage.ErrMissing
	}
	return damage.ErrChecksum
}

// missing is why something is lost that is not there.
func missing(n uint64, of string) error {
	return fmt.Errorf("%w: %d %s", damage.ErrMissing, n, of)
}
