package gc

import (
	"context"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file checks the index, as a part of Verify. The records of the index are witnesses of
// each other, and damage can hide any one of them:
//
//   - The cycle record counts bookmarks and blobs with edges, and every collector's batch
//     sets it.
//   - Edges are counted by blob, and an edge of a session names a revision with a node that
//     refers to the blob.
//   - A session that the index does not follow to its head has a dirty record, and so has a
//     session with a detached record.
//   - A session with something due has a stale record, and a blob that can be compressed
//     further a loose record.
//   - A blob without an edge is a candidate, pinned by an upload, or referred to by a session
//     that has a dirty record (check_blobs.go).
//
// Collectors and commits go on meanwhile, so whatever looks wrong is looked at again. A record
// that can't be decoded is no problem of this check: Verify has reported it.

// A Checklist is what Check is told of the store.
type Checklist struct {
	Incarnations []head.Incarnation // that have a lifecycle record
	Blobs        []keys.Hash        // that are stored
	// Uses returns the first revision of inc with a node that refers to a blob, as far
	// as histories were read, or 0.
	Uses func(b keys.Hash, inc head.Incarnation) head.Revision
	// Name is what problems call an incarnation.
	Name func(inc head.Incarnation) string
}

// Check compares the index with the commits and with itself, without changing anything, and
// returns what is wrong as problems. It may run beside collections and commits. An index that
// is being derived anew has no problems.
func (c *Collector) Check(ctx context.Context, list Checklist) (problems []error, err error) {
	k := &check{cycle: cycle{engine: c.engine, space: c.space, blobs: c.blobs, key: c.space.Cycle()}, list: list, counted: map[keys.Hash]bool{}}
	if rebuilding, err := Rebuilding(ctx, c.engine, c.space); err != nil || rebuilding {
		return nil, err // The next collection derives it anew.
	}
	for _, step := range []func(context.Context) error{k.totals, k.edges, k.sessions, k.detachments, k.accounts, k.loose} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	if rebuilding, err := Rebuilding(ctx, c.engine, c.space); err != nil || rebuilding {
		return nil, err
	}
	return k.problems, nil
}

// A check reads as a cycle does. It has no cycle record, and so never writes.
type check struct {
	cycle
	list     Checklist
	counted  map[keys.Hash]bool // the blobs that have a number of edges
	problems []error
}

// problem adds a problem, which names the record that is wrong.
func (k *check) problem(err error, format string, args ...any) {
	k.problems = append(k.problems, codec.Corrupt(err, format, args...))
}

// missing adds the problem that a record is missing. why says what shows that it should be
// there.
func (k *check) missing(why, format string, args ...any) {
	k.problem(fmt.Errorf("%w: %s", damage.ErrMissing, why), format, args...)
}

// totals compares the numbers in the cycle record with the records of the index. Every batch of
// a collector sets the cycle record, so if that stands as before, the records were counted as of
// one moment. If a collector writes meanwhile, totals counts again; after the third time it
// gives up.
func (k *check) totals(ctx context.Context) error {
	for range 3 {
		before, err := k.get(ctx, k.key)
		if err != nil {
			return err
		}
		n, err := k.census(ctx)
		if err != nil {
			return err
		}
		after, err := k.get(ctx, k.key)
		if err != nil {
			return err
		}
		if string(before[0]) == string(after[0]) {
			k.compare(n, after[0])
			return nil
		}
	}
	return nil
}

// A census is what a scan of the index's records has counted.
type census struct {
	letter    byte // a letter of which there are records; 0 if there are none
	live      int  // bookmarks of sessions that live
	bookmarks map[head.Incarnation]bool
	referring map[head.Incarnation]bool // sessions that have edges
	stale     map[head.Incarnation]bool // sessions that have a stale record
	due       []head.Incarnation        // sessions that should have a stale record
}

// census counts the records of the index.
func (k *check) census(ctx context.Context) (*census, error) {
	clear(k.counted)
	n := &census{bookmarks: map[head.Incarnation]bool{}, referring: map[head.Incarnation]bool{}, stale: map[head.Incarnation]bool{}}
	for _, letter := range []byte{keys.Edge, keys.Count, keys.Bookmark, keys.Candidate, keys.Detached, keys.Stale, keys.Loose} {
		err := k.eachKnown(ctx, k.space.All(letter), func(e entry) error {
			n.letter = letter
			switch letter {
			case keys.Count:
				k.counted[e.hash()] = true
			case keys.Edge:
				if e.fields[16] == bySession {
					n.referring[head.Incarnation(e.fields[17:])] = true
				}
			case keys.Stale:
				n.stale[e.inc()] = true
			case keys.Bookmark:
				n.addBookmark(e)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return n, nil
}

// addBookmark counts a bookmark. One that can't be decoded counts as that of a session that
// lives: Verify reports it, and the numbers need not disagree because of it.
func (n *census) addBookmark(e entry) {
	n.bookmarks[e.inc()] = true
	m, err := decodeBookmark(e.Key, e.Value)
	if err != nil || m.live() {
		n.live++
	}
	if err == nil && m.due != 0 {
		n.due = append(n.due, e.inc())
	}
}

// compare compares a census with the cycle record, and stale records with bookmarks. If a session without a
// bookmark has an edge, the problem names that session. If damage has hidden the bookmark of a session without
// edges, only the number of bookmarks shows it.
func (k *check) compare(n *census, cycleRecord []byte) {
	if cycleRecord == nil {
		if n.letter != 0 {
			k.problem(fmt.Errorf("%w, but a collector has written records of type %q", damage.ErrMissing, n.letter), "cycle record")
		}
		return
	}
	s, err := decodeCycleState(k.key, cycleRecord)
	if err != nil {
		return
	}
	if s.sessions != n.live {
		which := "a session without edges"
		for inc := range n.referring {
			if !n.bookmarks[inc] {
				which = k.list.Name(inc)
			}
		}
		k.missing(fmt.Sprintf("%d of %d sessions that live have one", n.live, s.sessions), "bookmark of %s", which)
	}
	if s.blobs != len(k.counted) {
		k.missing(fmt.Sprintf("%d of %d blobs have one", len(k.counted), s.blobs), "number of edges")
	}
	for _, inc := range n.due {
		if !n.stale[inc] {
			k.missing("vacuum does not come to the session", "stale record of %s", k.list.Name(inc))
		}
		delete(n.stale, inc)
	}
	for inc := range n.stale {
		k.missing("it does not say why the session has a stale record", "bookmark of %s", k.list.Name(inc))
	}
}

// edges compares the edges of blobs with their numbers, and those of sessions with what the
// sessions' nodes refer to. Edges of a blob follow each other in the scan. A blob that has a
// number and no edges is found by the number.
func (k *check) edges(ctx context.Context) error {
	var at keys.Hash
	n := uint64(0)
	err := k.eachKnown(ctx, k.space.All(keys.Edge), func(e entry) error {
		if e.hash() != at {
			if err := k.number(ctx, at, n); err != nil {
				return err
			}
			at, n = e.hash(), 0
		}
		n++
		return k.use(ctx, e)
	})
	if err == nil {
		err = k.number(ctx, at, n)
	}
	if err != nil {
		return err
	}
	for h := range k.counted {
		n, err := k.edgesOf(ctx, h)
		if err == nil && n == 0 {
			err = k.number(ctx, h, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// number checks that the recorded number of a blob's edges is edges, and that the blob is stored
// if it has any. The edges and the number are not of one moment, and a collector may be at work, so number counts
// the edges up to three times more.
func (k *check) number(ctx context.Context, h keys.Hash, edges uint64) error {
	for attempt := 0; ; attempt++ {
		key := k.space.Count(h)
		vs, err := k.get(ctx, key, k.space.Mark(h))
		if err != nil {
			return err
		}
		n, cerr := decodeCount(key, vs[0])
		if cerr == nil && n == edges && (n == 0 || vs[1] != nil) {
			return nil
		}
		if attempt == 3 {
			k.problem(fmt.Errorf("%d edges, counted as %d, stored: %v: run a full collection", edges, n, vs[1] != nil), "collector's index (edge, number of edges) of the blob at %x", h)
			return nil
		}
		if edges, err = k.edgesOf(ctx, h); err != nil {
			return err
		}
	}
}

// use checks the edge of a session: a node of the revision that it names refers to the blob,
// or vacuum has detached the blob and a record says so. The histories that Verify has read before
// answer for most edges. For others, such as those of sessions that changed since, use reads the
// turn of the revision.
func (k *check) use(ctx context.Context, e entry) error {
	if e.fields[16] != bySession {
		return nil
	}
	h, inc := e.hash(), head.Incarnation(e.fields[17:])
	u, err := decodeUse(e.Key, e.Value)
	if err != nil || u.node == 0 || u.node == uint64(k.list.Uses(h, inc)) {
		return nil
	}
	r := head.Revision(u.node)
	found := false
	err = k.turns(ctx, inc, r-1, r, head.CommitID{}, func(t *history.Turn) error {
		for b := range k.blobsOf(&t.Pack) {
			found = found || b == h
		}
		return nil
	})
	if isCorrupt(err) || found {
		return nil // Verify names the damage of the history.
	}
	if err != nil {
		return err
	}
	vs, err := k.get(ctx, e.Key, k.space.Detached(inc, h), k.space.Life(inc))
	if err == nil && string(vs[0]) == string(e.Value) && vs[1] == nil && vs[2] != nil {
		k.missing(fmt.Sprintf("an edge says that revision %d refers to the blob, and no node does", r), "detached blob at %x of %s", h, k.list.Name(inc))
	}
	return err
}

// sessions checks that each session which the index does not follow to its head has a dirty
// record, by which the next collection finds the session.
func (k *check) sessions(ctx context.Context) error {
	for _, inc := range k.list.Incarnations {
		if err := k.session(ctx, inc); err != nil {
			return err
		}
	}
	return nil
}

// session checks one session. It begins anew when the session changes meanwhile. Nothing is
// checked of a session with a dirty record: the next collection updates the index.
func (k *check) session(ctx context.Context, inc head.Incarnation) error {
	var id keys.Hash // of the session: the lifecycle record says it, and the head's key has it
	for {
		s, err := k.standing(ctx, inc, id)
		if err != nil || s == nil {
			return err
		}
		if s.life.Session != id {
			id = s.life.Session
			continue
		}
		if s.life.State != head.Live {
			return k.deletedSession(ctx, s)
		}
		if again, err := k.liveSession(ctx, s); err != nil || !again {
			return err
		}
	}
}

// A standing has the records of a session that has no dirty record, from one moment.
type standing struct {
	inc     head.Incarnation
	life    *head.Life
	lifeRaw []byte
	mark    bookmark
	markRaw []byte // nil if there is no bookmark
	origin  []byte
	head    []byte
}

// standing reads, with one call of the engine, the records of a session whose id is known. It
// returns nil if there is nothing to check: the session is gone, it has a dirty record, or one of
// the records can't be decoded.
func (k *check) standing(ctx context.Context, inc head.Incarnation, id keys.Hash) (*standing, error) {
	lifeKey, markKey := k.space.Life(inc), k.space.Bookmark(inc)
	vs, err := k.get(ctx, lifeKey, k.space.Dirty(inc), markKey, k.space.Origin(inc), k.space.Head(id))
	if err != nil || vs[0] == nil || vs[1] != nil {
		return nil, err
	}
	s := &standing{inc: inc, lifeRaw: vs[0], mark: unread(), markRaw: vs[2], origin: vs[3], head: vs[4]}
	if s.life, err = head.DecodeLife(lifeKey, s.lifeRaw); err != nil {
		return nil, nil
	}
	if s.markRaw != nil {
		if s.mark, err = decodeBookmark(markKey, s.markRaw); err != nil {
			return nil, nil
		}
	}
	return s, nil
}

// liveSession checks that the index follows a session that lives. It reports whether the
// session has changed, and is to be read again.
func (k *check) liveSession(ctx context.Context, s *standing) (again bool, err error) {
	h, err := head.DecodeHead(k.space.Head(s.life.Session), s.head)
	if err != nil {
		return false, nil
	}
	if !h.Collected {
		k.missing("the head says that there is one, so commits don't set it", "dirty record of %s", k.list.Name(s.inc))
		return false, nil
	}
	if lags, err := k.lags(ctx, s, h); err != nil || !lags {
		return false, err
	}
	now, err := k.get(ctx, k.space.Life(s.inc), k.space.Dirty(s.inc))
	if err != nil {
		return false, err
	}
	// The kept revisions were read after the rest. If they have changed, the lifecycle record
	// has, too.
	if string(now[0]) != string(s.lifeRaw) || now[1] != nil {
		return true, nil
	}
	k.missing(fmt.Sprintf("the collector's index ends at revision %d of %d", s.mark.revision, h.Revision), "dirty record or bookmark of %s", k.list.Name(s.inc))
	return false, nil
}

// lags reports whether the bookmark of a session differs from its head, its lifecycle record,
// its kept revisions, or the checkpoint that it began with.
func (k *check) lags(ctx context.Context, s *standing, h *head.Head) (bool, error) {
	m := &s.mark
	if h.Revision != m.revision || s.life.Floor != m.floor || s.life.Stones != m.stones {
		return true, nil
	}
	if s.markRaw == nil {
		if o, err := head.DecodeOrigin(k.space.Origin(s.inc), s.origin); err == nil && len(o.Parts) > 0 {
			return true, nil
		}
	}
	if s.life.Refs == 0 && len(m.kept) == 0 {
		return false, nil
	}
	refs, err := head.ReadKept(ctx, k.engine, k.space, s.inc, s.life)
	if isCorrupt(err) {
		return false, nil // Verify names the damage with the session, or they changed meanwhile.
	}
	return err == nil && !slices.Equal(revisions(refs), m.kept), err
}

// deletedSession checks a deleted session without a dirty record. The bookmark has to say that the session was
// deleted, and up to which revision forks hold it. That revision is not checked while a deleted fork has a dirty
// record: when a collection comes to the fork, the session gets a dirty record, too.
func (k *check) deletedSession(ctx context.Context, s *standing) error {
	if s.mark.live() {
		k.missing("no collection has seen that the session was deleted", "dirty record or bookmark of %s", k.list.Name(s.inc))
		return nil
	}
	held, known := head.Revision(0), true
	err := k.eachKnown(ctx, k.space.Of(keys.Fork, s.inc), func(e entry) error {
		r, ok, err := k.heldBy(ctx, s.inc, head.Incarnation(e.fields[16:]))
		if err != nil {
			return err
		}
		if known = ok; !known {
			return errStop
		}
		held = max(held, r)
		return nil
	})
	if err != nil || !known || held == s.mark.held {
		return err
	}
	vs, err := k.get(ctx, k.space.Bookmark(s.inc), k.space.Dirty(s.inc), k.space.Life(s.inc))
	if err == nil && string(vs[0]) == string(s.markRaw) && vs[1] == nil && string(vs[2]) == string(s.lifeRaw) {
		k.missing(fmt.Sprintf("forks hold the deleted session up to revision %d, and the index says %d", held, s.mark.held), "dirty record of %s", k.list.Name(s.inc))
	}
	return err
}

// heldBy returns up to which revision a fork holds a session. ok is false if that can't be
// told: a record of the fork can't be decoded, or the fork was deleted and no collection has
// seen that yet.
func (k *check) heldBy(ctx context.Context, inc, fork head.Incarnation) (held head.Revision, ok bool, err error) {
	lifeKey, originKey := k.space.Life(fork), k.space.Origin(fork)
	vs, err := k.get(ctx, lifeKey, originKey, k.space.Dirty(fork))
	if err != nil {
		return 0, false, err
	}
	life, lerr := head.DecodeLife(lifeKey, vs[0])
	origin, oerr := head.DecodeOrigin(originKey, vs[1])
	if lerr != nil || oerr != nil {
		return 0, false, nil
	}
	if life.State != head.Live {
		return 0, vs[2] == nil, nil
	}
	for _, a := range origin.Ancestors {
		if a.Incarnation == inc {
			held = max(held, a.Revision)
		}
	}
	return held, true, nil
}

// detachments checks that sessions from which vacuum has detached blobs have dirty records. A
// collection removes the dirty record in the batch that removes the last detached record.
func (k *check) detachments(ctx context.Context) error {
	return k.eachKnown(ctx, k.space.All(keys.Detached), func(e entry) error {
		vs, err := k.get(ctx, e.Key, k.space.Dirty(e.inc()))
		if err == nil && vs[0] != nil && vs[1] == nil {
			k.missing("vacuum has detached blobs of it", "dirty record of %s", k.list.Name(e.inc()))
		}
		return err
	})
}
