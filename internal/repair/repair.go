package repair

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Letters reports whether a repair needs the records of a letter. The others are about lists, feeds, collections and
// uploads, which the repaired sessions get anew.
func Letters(letter byte) bool {
	switch letter {
	case keys.Store, keys.About, keys.Blob, keys.Life, keys.Origin, keys.Segment, keys.Version, keys.Ref, keys.Head, keys.Tombstone,
		keys.Index, keys.Record, keys.Listing, keys.Erased, keys.Fork, keys.Place:
		return true
	}
	return false
}

// A Session is one that was found.
type Session struct {
	ID      string
	Changed bool   // It was not whole.
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
	At      []head.Revision  // the last revision of each segment there
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
	r := &repairer{Store: st.Uncached(), w: &writer{Engine: st.Engine}, found: map[keys.Hash]*finding{}, lives: map[head.Incarnation]*head.Life{}, damaged: map[head.Incarnation][][]byte{}, contents: map[[32]byte]error{}, commits: map[forkedAt]head.CommitID{}, epochs: map[head.Incarnation]uint64{}, lost: map[head.Incarnation]error{}}
	for _, key := range damaged {
		if letter, fields, ok := r.Space.Fields(key); ok && (letter == keys.Record || letter == keys.Ref || letter == keys.Tombstone) {
			inc := head.Incarnation(fields)
			r.damaged[inc] = append(r.damaged[inc], key)
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
	return append(out, orphans...), errors.Join(err, r.w.flush(ctx))
}

// orphans returns the incarnations that have records, and neither a head, nor metadata, nor a lifecycle record. Nobody
// knows whether they are sessions, or were deleted.
func (r *repairer) orphans(ctx context.Context, all []*finding) (out []Session, err error) {
	known := map[head.Incarnation]bool{}
	for _, f := range all {
		known[f.inc] = true
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
			if !known[inc] && r.lives[inc] == nil {
				known[inc] = true
				why := fmt.Errorf("%w: head, metadata and lifecycle record, so it may have been deleted", damage.ErrMissing)
				out = append(out, Session{ID: unknownID(inc), Gone: true, Lost: []Loss{{"all of it", why}}})
			}
		}
	}
	return out, err
}

// A repairer is one call of Sessions.
type repairer struct {
	history.Store
	w        *writer
	found    map[keys.Hash]*finding
	lives    map[head.Incarnation]*head.Life
	damaged  map[head.Incarnation][][]byte // keys of records, kept revisions and tombstones
	contents map[[32]byte]error            // why a blob can't be read, or nil, of those that were read
	commits  map[forkedAt]head.CommitID    // that forks begin behind, and that got a new id
	epochs   map[head.Incarnation]uint64   // of ancestors: the last one that a fork knows
	lost     map[head.Incarnation]error    // why an origin can't be read
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
}

// find returns the sessions that live, in the order of their hashes.
func (r *repairer) find(ctx context.Context) (all []*finding, err error) {
	of := func(hash keys.Hash) *finding {
		f := r.found[hash]
		if f == nil {
			f = &finding{hash: hash}
			r.found[hash] = f
			all = append(all, f)
		}
		return f
	}
	living := map[keys.Hash][]head.Incarnation{}
	erased := map[head.Incarnation]bool{}
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
			if inc, _, node := keys.ErasedFields(fields); node == (graph.ID{}) {
				erased[inc] = true
			}
		}),
	)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(f *finding) bool {
		switch of := living[f.hash]; {
		case len(of) == 1:
			f.inc = of[0]
		case f.head != nil:
			f.inc = f.head.Incarnation
		case f.about != nil:
			f.inc = f.about.Incarnation
		default:
			f.inc = of[0]
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
		return erased[f.inc] || l != nil && l.State != head.Live
	})
	return all, nil
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

// unlisted adds those records to the damaged ones that are in the list of records and nowhere else.
func (r *repairer) unlisted(ctx context.Context) error {
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
		if vs[0] == nil && !slices.ContainsFunc(r.damaged[inc], func(k []byte) bool { return bytes.Equal(k, key) }) {
			r.damaged[inc] = append(r.damaged[inc], key)
		}
	}
	return nil
}

// apply writes the records that make a session whole.
func (r *repairer) apply(ctx context.Context, s *survey) error {
	old := s.hash
	if s.hash = r.Space.Session(s.id); s.hash != old {
		for _, key := range [][]byte{r.Space.Head(old), r.Space.About(old)} {
			if err := r.w.remove(ctx, key); err != nil {
				return err
			}
		}
	}
	life := head.Life{State: head.Live}
	if s.life != nil {
		life = *s.life
	}
	life.Session, life.Epoch, life.Floor = s.hash, s.epoch, s.floor
	life.Forks, life.Refs, life.Stones = s.forks, uint64(len(s.kept)), uint64(len(s.stones))
	if s.anew {
		life.Sealed, life.SealedBytes, life.Packed, life.Runs = 0, 0, 0, nil
	}
	h := head.Head{Incarnation: s.inc, State: s.state, Bytes: s.bytes, PackBytes: s.packBytes}
	if s.head != nil {
		h.Fed = s.head.Fed
	}
	s.about.ID = s.id
	sets := []engine.Pair{}
	set := func(key []byte, value func(key []byte) []byte) {
		sets = append(sets, engine.Pair{Key: key, Value: value(key)})
	}
	set(r.Space.About(s.hash), s.about.Encode)
	set(r.Space.Head(s.hash), h.Encode)
	set(r.Space.Life(s.inc), life.Encode)
	if s.origin != nil {
		set(r.Space.Origin(s.inc), s.origin.Encode)
	}
	for id, stone := range s.stones {
		full := [codec.HashSize]byte{}
		copy(full[:], id[:])
		set(r.Space.Tombstone(s.inc, full), stone.Encode)
	}
	for _, p := range sets {
		if err := r.w.set(ctx, p.Key, p.Value); err != nil {
			return err
		}
	}
	return r.keptAnew(ctx, s)
}

// bury makes a session one that was deleted, which its forks may go on from.
func (r *repairer) bury(ctx context.Context, s *survey) error {
	for _, key := range [][]byte{r.Space.Head(s.hash), r.Space.About(s.hash)} {
		if err := r.w.remove(ctx, key); err != nil {
			return err
		}
	}
	life := head.Life{State: head.Deleted, Session: s.hash, Floor: 1, Epoch: s.epoch, Stones: uint64(len(s.stones))}
	key := r.Space.Life(s.inc)
	return errors.Join(r.w.set(ctx, key, life.Encode(key)), r.w.flush(ctx))
}

// follow makes a fork name the commits of its ancestors as they are now.
func (r *repairer) follow(s *survey) {
	if s.origin == nil {
		return
	}
	o := *s.origin
	o.Ancestors = slices.Clone(o.Ancestors)
	changed := false
	for i := range o.Ancestors {
		a := &o.Ancestors[i]
		if id, ok := r.commits[forkedAt{a.Incarnation, a.Revision}]; ok {
			a.Commit, changed = id, true
		}
	}
	if changed {
		o.Genesis = head.Genesis(s.inc, s.origin)
		s.origin, s.changed = &o, true
	}
}

// keptAnew removes the records of kept revisions that are not kept any more.
func (r *repairer) keptAnew(ctx context.Context, s *survey) error {
	for p, err := range r.Engine.Scan(ctx, r.Space.Of(keys.Ref, s.inc)) {
		if err != nil {
			return err
		}
		k, err := head.DecodeKept(p.Key, p.Value)
		if err == nil && slices.Contains(s.kept, *k) {
			continue
		}
		if err := r.w.remove(ctx, p.Key); err != nil {
			return err
		}
	}
	return r.w.flush(ctx)
}

// park copies the segments that come after a gap to another place.
func (r *repairer) park(ctx context.Context, s *survey) error {
	if s.state.Revision > 0 && !s.anew {
		return nil
	}
	name := s.name + " after a gap"
	var lasts []head.Revision
	for p, err := range r.Engine.Scan(ctx, r.Space.Of(keys.Segment, s.inc)) {
		if err != nil {
			return err
		}
		_, fields, _ := r.Space.Fields(p.Key)
		if last, value := keys.SegmentFields(fields); value == 0 && head.Revision(last) > s.state.Revision {
			lasts = append(lasts, head.Revision(last))
		}
	}
	rest := &Rest{History: &history.History{Store: r.Store, Inc: s.inc, Name: name}, About: s.about, Hidden: s.hides}
	if _, err := rand.Read(rest.Turns[:]); err != nil {
		return err
	}
	for _, last := range lasts {
		segment, err := r.At(ctx, s.inc, name, last)
		if why, fatal := damaged(err); fatal != nil {
			return fatal
		} else if why != nil || segment.Last != last {
			continue
		}
		values, err := r.Engine.Get(ctx, segment.Keys...)
		if err != nil {
			return err
		}
		for i, key := range segment.Keys {
			body, err := codec.Decode(key, values[i], keys.Segment)
			if err != nil {
				return err
			}
			to := r.Space.Segment(rest.Turns, uint64(last), i)
			if err := r.w.set(ctx, to, codec.Encode(to, keys.Segment, body)); err != nil {
				return err
			}
		}
		rest.At = append(rest.At, last)
	}
	if len(rest.At) > 0 {
		s.rest = rest
	}
	return r.w.flush(ctx)
}

// shorten writes the commits of a session anew: each by itself, without those that are lost, nor the checkpoint parts
// that are.
func (r *repairer) shorten(ctx context.Context, s *survey) error {
	if err := r.w.flush(ctx); err != nil {
		return err
	}
	state := head.Begin(s.inc, s.origin)
	if s.state.Revision > 0 {
		for segment, err := range r.Segments(ctx, history.Revisions{Inc: s.inc, Name: s.name, Last: s.state.Revision}) {
			if err != nil {
				return err
			}
			for _, key := range segment.Keys {
				if err := r.w.remove(ctx, key); err != nil {
					return err
				}
			}
			if err := r.w.flush(ctx); err != nil {
				return err
			}
			for i := range segment.Turns {
				t := segment.Turns[i]
				was := t.ID
				t.Previous = state.Commit
				if t.Parts = s.without(t.Parts); t.PartsAt != t.Revision {
					t.Parts = nil
				}
				t.ID = t.Commit.ID()
				if state, err = state.Then(&t.Commit, t.ID); err != nil {
					return err
				}
				if t.ID != was {
					r.commits[forkedAt{s.inc, t.Revision}] = t.ID
				}
				ks, vs, err := history.EncodeTurn(r.Space, s.inc, t.Body(), &t.Pack)
				if err != nil {
					return err
				}
				for j := range ks {
					if err := r.w.set(ctx, ks[j], vs[j]); err != nil {
						return err
					}
				}
			}
		}
	}
	s.state = state
	if err := r.w.flush(ctx); err != nil {
		return err
	}
	for _, letter := range []byte{keys.Segment, keys.Index} {
		for p, err := range r.Engine.Scan(ctx, r.Space.Of(letter, s.inc)) {
			if err != nil {
				return err
			}
			_, fields, _ := r.Space.Fields(p.Key)
			if last, _ := keys.SegmentFields(fields); letter == keys.Index || head.Revision(last) > state.Revision {
				if err := r.w.remove(ctx, p.Key); err != nil {
					return err
				}
			}
		}
	}
	return r.w.flush(ctx)
}

// unknownID is the id of a session whose own is lost.
func unknownID(inc head.Incarnation) string { return "recovered-" + hex.EncodeToString(inc[:8]) }

// lose notes that something is lost.
func (s *survey) lose(err error, format string, args ...any) {
	s.lost = append(s.lost, Loss{fmt.Sprintf(format, args...), err})
}

// missing is why something is lost that is not there.
func missing(n uint64, of string) error {
	return fmt.Errorf("%w: %d %s", damage.ErrMissing, n, of)
}
