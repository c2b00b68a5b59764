package gc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A bookmark says how far the index follows a session.
type bookmark struct {
	revision head.Revision   // commits up to here are in the index
	commit   head.CommitID   // of the last of them; not stored: the record says it
	floor    head.Revision   // edges of revisions below were looked at
	kept     []head.Revision // those kept by name when they were, ascending
	held     head.Revision   // of a deleted session: edges of later revisions are gone; open for one that lives
	cleaned  uint64          // digest of the session's state as vacuum has seen it; 0: not yet
	parts    []part          // the checkpoint at revision
}

func (m *bookmark) seal(key []byte) []byte {
	var e codec.Encoder
	e.Array(6)
	e.Uint(uint64(m.revision))
	e.Uint(uint64(m.floor))
	e.Array(len(m.kept))
	for _, r := range m.kept {
		e.Uint(uint64(r))
	}
	e.Uint(uint64(m.held))
	e.Uint(m.cleaned)
	e.Array(len(m.parts))
	for _, p := range m.parts {
		e.Array(2)
		e.Text(p.name)
		if p.blob == (keys.Hash{}) {
			e.Null()
		} else {
			e.Bytes(p.blob[:])
		}
	}
	return codec.Seal(key, keys.Bookmark, e.B)
}

func openBookmark(key, value []byte) (m bookmark, err error) {
	body, err := codec.Open(key, value, keys.Bookmark)
	if err != nil {
		return m, err
	}
	d := codec.Decoder{B: body}
	d.Shape(6)
	m.revision, m.floor = head.Revision(d.Uint()), head.Revision(d.Uint())
	m.kept = make([]head.Revision, d.Array(maxKept))
	for i := range m.kept {
		m.kept[i] = head.Revision(d.Uint())
	}
	m.held, m.cleaned = head.Revision(d.Uint()), d.Uint()
	m.parts = make([]part, d.Array(head.MaxParts))
	for i := range m.parts {
		d.Shape(2)
		if m.parts[i].name = d.Text(); !d.Null() {
			d.Fixed(m.parts[i].blob[:])
		}
	}
	return m, d.Done()
}

// maxKept bounds the revisions of a session that are kept by name in a bookmark.
const maxKept = 1 << 16

// changes brings the index up to date with all sessions that changed: those that
// have a dirty record, and as a second witness those that stand in the order of
// last updates since the last complete run.
func (r *run) changes(ctx context.Context, since uint64) error {
	var incs []head.Incarnation
	flush := func() error {
		for _, inc := range incs {
			if err := r.session(ctx, inc); err != nil {
				return err
			}
			r.step(1)
		}
		incs = incs[:0]
		return nil
	}
	add := func(inc head.Incarnation) error {
		if incs = append(incs, inc); len(incs) < 1000 {
			return nil
		}
		return flush()
	}
	for p, err := range r.engine.Scan(ctx, r.space.All(keys.Dirty)) {
		if err != nil {
			return err
		}
		_, fields, ok := r.space.Fields(p.Key)
		if !ok {
			return codec.Corrupt(fmt.Errorf("%w: key", codec.ErrMalformed), "dirty record at key %x", p.Key)
		}
		if err := add(head.Incarnation(fields)); err != nil {
			return err
		}
	}
	if err := flush(); err != nil {
		return err
	}
	var entries []entry
	for p, err := range r.engine.Scan(ctx, r.space.All(keys.Order)) {
		if err != nil {
			return err
		}
		_, fields, ok := r.space.Fields(p.Key)
		body, err := codec.Open(p.Key, p.Value, keys.Order)
		if err == nil && (!ok || len(body) != 16) {
			err = codec.ErrMalformed
		}
		if err != nil {
			return codec.Corrupt(err, "order of sessions at key %x", p.Key)
		}
		if ^binary.BigEndian.Uint64(fields)+uint64(skew) < since {
			break
		}
		if entries = append(entries, entry{head.Incarnation(fields[8:]), keys.Hash(body)}); len(entries) == 500 {
			if err := r.behind(ctx, entries, add); err != nil {
				return err
			}
			entries = entries[:0]
		}
	}
	if err := r.behind(ctx, entries, add); err != nil {
		return err
	}
	if err := flush(); err != nil {
		return err
	}
	return r.freed(ctx)
}

// skew is by how much the clocks of hosts may differ, and the order of sessions
// lag, for it to be a witness of what changed.
const skew = 5 * time.Second

// freed looks at the deleted sessions that forks have let go of, once for all forks.
func (r *run) freed(ctx context.Context) error {
	for len(r.again) > 0 {
		incs := slices.Collect(maps.Keys(r.again))
		clear(r.again)
		for _, inc := range incs {
			if err := r.session(ctx, inc); err != nil {
				return err
			}
			r.step(1)
		}
	}
	return nil
}

// An entry is one of the order of sessions.
type entry struct {
	inc     head.Incarnation
	session keys.Hash
}

// behind calls add for the sessions that the index does not follow to their
// heads.
func (r *run) behind(ctx context.Context, entries []entry, add func(head.Incarnation) error) error {
	ks := make([][]byte, 0, 2*len(entries))
	for _, e := range entries {
		ks = append(ks, r.space.Head(e.session), r.space.Bookmark(e.inc))
	}
	vs, err := r.get(ctx, ks...)
	if err != nil {
		return err
	}
	for i, e := range entries {
		h, herr := head.OpenHead(ks[2*i], vs[2*i])
		at := head.Revision(0)
		if vs[2*i+1] != nil {
			m, err := openBookmark(ks[2*i+1], vs[2*i+1])
			if err != nil {
				return codec.Corrupt(err, "bookmark of incarnation %x", e.inc)
			}
			at = m.revision
		}
		if herr == nil && h.Incarnation == e.inc && h.Revision == at {
			continue
		}
		if err := add(e.inc); err != nil {
			return err
		}
	}
	return nil
}

// A view is what stands of a session, from one moment.
type view struct {
	inc    head.Incarnation
	life   *head.Life
	raw    []byte // of life
	dirty  []byte
	mark   bookmark
	known  bool // there is a bookmark
	target head.Revision
	commit head.CommitID // at target; zero when that is not known
	held   head.Revision // of a deleted session: forks hold its history up to here
	guards []engine.Pair // of batches that drop edges: the lifecycle is as it was
	wholes wholes        // those behind the bookmark

	renewed bool               // mark.parts was derived anew
	freed   []head.Incarnation // deleted ancestors, which the session does not hold any more
}

// errMoved: the session was renamed or deleted between two reads.
var errMoved = errors.New("gc: session moved")

// session brings the index up to date with one session.
func (r *run) session(ctx context.Context, inc head.Incarnation) error {
	for attempt, damaged := 0, 0; ; attempt++ {
		err := r.follow(ctx, inc, attempt < 3)
		var damage *codec.CorruptError
		switch {
		case errors.Is(err, errMoved), errors.Is(err, engine.ErrConflict):
			continue
		case errors.As(err, &damage) && damaged < 3:
			damaged++ // what is absent may have been moved meanwhile; damage stays
			continue
		}
		return err
	}
}

// follow is one attempt of session. settle says whether to remove the dirty
// record, which a session that is committed to all the time does not let happen.
func (r *run) follow(ctx context.Context, inc head.Incarnation, settle bool) error {
	v, err := r.view(ctx, inc)
	if err != nil || v == nil {
		return err
	}
	old := v.mark
	if err := r.index(ctx, v); err != nil {
		return err
	}
	done, err := r.detached(ctx, v)
	if err != nil {
		return err
	}
	if v.life.State == head.Deleted {
		err = r.release(ctx, v)
	} else {
		err = r.retain(ctx, v)
	}
	if err != nil {
		return err
	}
	b := &batch{}
	key := r.space.Bookmark(inc)
	if !v.known || v.renewed || !sameBookmark(&old, &v.mark) {
		b.Set(key, v.mark.seal(key))
	}
	for _, a := range v.freed { // in the batch that says that this session was looked at
		key := r.space.Dirty(a)
		b.Set(key, codec.Seal(key, keys.Dirty, binary.LittleEndian.AppendUint64(nil, rand.Uint64())))
		r.again[a] = true
	}
	live := v.mark.held == head.Revision(open)
	switch wasLive := v.known && old.held == head.Revision(open); {
	case live && !wasLive:
		b.sessions++
	case !live && wasLive:
		b.sessions--
	}
	// What was detached is done when the bookmark stands: who begins at the one before
	// adds the edges anew.
	for len(done) > 0 {
		if b.Ops() > 0 {
			b.Guard(r.space.Life(inc), v.raw)
			if err := r.apply(ctx, b); err != nil {
				return err
			}
		}
		n := min(batchOps, len(done))
		b = &batch{}
		b.Deletes, done = done[:n], done[n:]
	}
	if v.dirty != nil && settle {
		b.Guard(r.space.Dirty(inc), v.dirty)
		b.Delete(r.space.Dirty(inc))
	}
	if b.Ops() == 0 {
		return nil
	}
	b.Guard(r.space.Life(inc), v.raw)
	return r.apply(ctx, b)
}

func sameBookmark(a, b *bookmark) bool {
	return a.revision == b.revision && a.floor == b.floor && slices.Equal(a.kept, b.kept) && a.held == b.held
}

// view reads what stands of a session, or returns nil when nothing does.
func (r *run) view(ctx context.Context, inc head.Incarnation) (*view, error) {
	lifeKey, dirtyKey, markKey := r.space.Life(inc), r.space.Dirty(inc), r.space.Bookmark(inc)
	vs, err := r.get(ctx, lifeKey, dirtyKey, markKey)
	if err != nil {
		return nil, err
	}
	v := &view{inc: inc, raw: vs[0], dirty: vs[1], mark: bookmark{held: head.Revision(open)}}
	if v.known = vs[2] != nil; v.known {
		if v.mark, err = openBookmark(markKey, vs[2]); err != nil {
			return nil, codec.Corrupt(err, "bookmark of incarnation %x", inc)
		}
	}
	if vs[0] == nil {
		if v.known {
			return nil, codec.Corrupt(codec.ErrMissing, "lifecycle of incarnation %x", inc)
		}
		if v.dirty == nil {
			return nil, nil
		}
		b := &batch{} // of a session that vacuum has removed
		b.Guard(lifeKey, nil)
		b.Guard(dirtyKey, v.dirty)
		b.Delete(dirtyKey)
		return nil, r.apply(ctx, b)
	}
	if v.life, err = head.OpenLife(lifeKey, vs[0]); err != nil {
		return nil, codec.Corrupt(err, "lifecycle of incarnation %x", inc)
	}
	v.guards = []engine.Pair{{Key: lifeKey, Value: v.raw}}
	if v.life.State == head.Deleted {
		v.target = v.life.Floor - 1
		v.held, err = r.held(ctx, v)
		return v, err
	}
	headKey := r.space.Head(v.life.Session)
	if vs, err = r.get(ctx, headKey, lifeKey); err != nil {
		return nil, err
	}
	if string(vs[1]) != string(v.raw) {
		return nil, errMoved
	}
	h, err := head.OpenHead(headKey, vs[0])
	if err == nil && h.Incarnation != inc {
		err = codec.ErrHash
	}
	if err != nil {
		return nil, codec.Corrupt(err, "head of incarnation %x", inc)
	}
	v.target, v.commit = h.Revision, h.Commit
	if v.target < v.mark.revision {
		return nil, codec.Corrupt(fmt.Errorf("it is at revision %d, and was at %d", v.target, v.mark.revision), "head of incarnation %x", inc)
	}
	return v, nil
}

// window is how many commits are indexed at once.
const window = 256

// index adds the edges of the commits past the bookmark, and moves it.
func (r *run) index(ctx context.Context, v *view) error {
	if v.mark.revision == 0 {
		origin, err := r.origin(ctx, v.inc)
		if err != nil {
			return err
		}
		v.mark.commit = head.Genesis(v.inc, origin)
		if origin != nil && !v.known {
			var found uses
			v.mark.parts = r.inherited(origin)
			for _, p := range v.mark.parts {
				found.of(p.blob).opened()
			}
			if err := r.add(ctx, v, &found, 0); err != nil {
				return err
			}
		}
	}
	if v.mark.revision < v.life.Floor && v.life.State == head.Live { // vacuum may have stored versions whole
		var err error
		if v.wholes, err = r.wholes(ctx, v.inc, v.mark.revision+1, v.life.Floor); err != nil {
			return err
		}
	}
	if v.mark.revision < v.target {
		r.Sessions++
		if v.mark.commit == (head.CommitID{}) {
			key := r.space.Commit(v.inc, uint64(v.mark.revision))
			vs, err := r.get(ctx, key)
			if err != nil {
				return err
			}
			if _, v.mark.commit, err = head.OpenCommit(key, vs[0]); err != nil {
				return codec.Corrupt(err, "commit %d of incarnation %x", v.mark.revision, v.inc)
			}
		}
	}
	for v.mark.revision < v.target {
		if err := r.window(ctx, v, min(v.target, v.mark.revision+window)); err != nil {
			return err
		}
	}
	if v.commit != (head.CommitID{}) && v.mark.commit != v.commit && v.mark.commit != (head.CommitID{}) {
		return codec.Corrupt(codec.ErrHash, "commit %d of incarnation %x: it is not the head's", v.target, v.inc)
	}
	return nil
}

// Uses are those that a run of commits has of blobs, in order.
type uses struct {
	order []keys.Hash
	by    map[keys.Hash]*use
}

func (u *uses) of(h keys.Hash) *use {
	if u.by == nil {
		u.by = map[keys.Hash]*use{}
	}
	if u.by[h] == nil {
		u.by[h] = &use{}
		u.order = append(u.order, h)
	}
	return u.by[h]
}

// add adds edges for what commits refer to. What is not wanted any more, because
// the session was deleted or its floor rose before it was read, may be there or
// not: it gets no edge, but is listed, with its items. end is
// the last revision of those commits.
func (r *run) add(ctx context.Context, v *view, found *uses, end head.Revision) error {
	var changes []change
	var past []keys.Hash
	for _, h := range found.order {
		u := *found.by[h]
		if v.life.State == head.Deleted {
			if u.parts, u.last = false, 0; u.node > uint64(v.held) {
				u.node = 0
			}
		}
		old := u.node == 0 && (!u.parts || min(u.last, uint64(end)) < uint64(v.life.Floor))
		if old {
			past = append(past, h)
		}
		if u != (use{}) {
			changes = append(changes, v.edit(h, func(was use) use { return was.then(u) }))
		}
	}
	if len(past) > 0 {
		absent, err := r.past(ctx, past, v.life.State == head.Deleted)
		if err != nil {
			return err
		}
		changes = slices.DeleteFunc(changes, func(c change) bool { return absent[c.blob] })
	}
	return r.link(ctx, changes, nil)
}

// past returns which of blobs are not stored, and lists the others if they have
// no edges and list is set.
func (r *run) past(ctx context.Context, blobs []keys.Hash, list bool) (absent map[keys.Hash]bool, err error) {
	absent = map[keys.Hash]bool{}
	var there []keys.Hash
	ks := make([][]byte, len(blobs))
	for i, h := range blobs {
		ks[i] = r.space.Mark(h)
	}
	vs, err := r.get(ctx, ks...)
	if err != nil {
		return nil, err
	}
	for i, h := range blobs {
		if vs[i] == nil {
			absent[h] = true
		} else {
			there = append(there, h)
		}
	}
	if !list {
		return absent, nil
	}
	return absent, r.abandon(ctx, there, nil)
}

// edit is a change of the session's edge to a blob; the zero use is no edge.
func (v *view) edit(h keys.Hash, f func(use) use) change {
	return change{blob: h, kind: bySession, holder: v.inc, edit: func(key, old []byte) ([]byte, error) {
		was := use{}
		if old != nil {
			var err error
			if was, err = openUse(key, old); err != nil {
				return nil, err
			}
		}
		u := f(was)
		if u == (use{}) {
			return nil, nil
		}
		return u.seal(key), nil
	}}
}

// window indexes the commits up to last.
func (r *run) window(ctx context.Context, v *view, last head.Revision) error {
	mark := v.mark
	mark.parts = slices.Clone(mark.parts)
	var found uses
	var nodes []int // of each commit
	err := r.commits(ctx, v.inc, mark.revision, last, mark.commit, func(c *head.Commit, id head.CommitID) error {
		mark.revision, mark.commit = c.Revision, id
		nodes = append(nodes, c.Nodes)
		if c.PartsAt != c.Revision {
			return nil
		}
		parts, err := r.nextParts(v.inc, mark.parts, c, v.wholes)
		if err != nil {
			return err
		}
		for _, h := range lost(mark.parts, parts) {
			found.of(h).closed(uint64(c.Revision) - 1)
		}
		for _, h := range lost(parts, mark.parts) {
			found.of(h).opened()
		}
		mark.parts = parts
		return nil
	})
	if err != nil {
		return err
	}
	err = r.packs(ctx, v.inc, v.mark.revision, last, func(p *graph.Pack) error {
		i := int(p.Revision - uint64(v.mark.revision) - 1)
		if nodes[i] -= len(p.Nodes); nodes[i] != 0 {
			return codec.Corrupt(fmt.Errorf("%w: %d nodes more or fewer", codec.ErrMissing, nodes[i]), "pack of revision %d of incarnation %x", p.Revision, v.inc)
		}
		for j := range p.Nodes {
			for _, id := range p.Nodes[j].Blobs() {
				found.of(r.space.BlobHash(id)).at(p.Revision)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, n := range nodes {
		if n != 0 {
			return codec.Corrupt(codec.ErrMissing, "pack of revision %d of incarnation %x", int(v.mark.revision)+1+i, v.inc)
		}
	}
	if err := r.add(ctx, v, &found, last); err != nil {
		return err
	}
	r.Commits += len(nodes)
	v.mark = mark
	if len(found.order) == 0 || mark.revision == v.target {
		return nil // the bookmark is written in the end
	}
	b := &batch{}
	key := r.space.Bookmark(v.inc)
	b.Set(key, v.mark.seal(key))
	if !v.known {
		b.sessions++
	}
	v.known = true
	return r.apply(ctx, b)
}

// commits calls f for the commits of inc after one revision up to another, each
// verified to follow the one before.
func (r *run) commits(ctx context.Context, inc head.Incarnation, after, last head.Revision, previous head.CommitID, f func(*head.Commit, head.CommitID) error) error {
	next := after + 1
	keysOf := engine.Range{Start: r.space.Commit(inc, uint64(next)), End: r.space.Of(keys.Commit, inc).End, Limit: int(last - after)}
	for p, err := range r.engine.Scan(ctx, keysOf) {
		if err != nil {
			return err
		}
		c, id, err := head.OpenCommit(p.Key, p.Value)
		switch {
		case err != nil:
		case c.Revision != next:
			err = codec.ErrMissing
		case c.Previous != previous && previous != (head.CommitID{}):
			err = fmt.Errorf("%w: it does not follow commit %d", codec.ErrHash, next-1)
		}
		if err != nil {
			return codec.Corrupt(err, "commit %d of incarnation %x", next, inc)
		}
		if err := f(c, id); err != nil {
			return err
		}
		previous, next = id, next+1
	}
	if next != last+1 {
		return codec.Corrupt(codec.ErrMissing, "commit %d of incarnation %x", next, inc)
	}
	return nil
}

// packs calls f for the packs of inc after one revision up to another.
func (r *run) packs(ctx context.Context, inc head.Incarnation, after, last head.Revision, f func(*graph.Pack) error) error {
	done := uint64(after)
	for seg, err := range graph.Segments(ctx, r.engine, r.space, inc, uint64(after+1), uint64(last)) {
		if err != nil {
			return err
		}
		for i := range seg.Packs {
			p := &seg.Packs[i]
			if p.Revision <= done || p.Revision > uint64(last) {
				continue
			}
			if err := f(p); err != nil {
				return err
			}
			done = p.Revision
		}
	}
	return nil
}

// origin reads what a fork began with; nil for a session that is none.
func (r *run) origin(ctx context.Context, inc head.Incarnation) (*head.Origin, error) {
	key := r.space.Origin(inc)
	vs, err := r.get(ctx, key)
	if err != nil || vs[0] == nil {
		return nil, err
	}
	o, err := head.OpenOrigin(key, vs[0])
	return o, codec.Corrupt(err, "origin of incarnation %x", inc)
}
