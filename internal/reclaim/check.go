package reclaim

import (
	"context"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/pack"
	"github.com/turnstonedb/turnstone/record"
)

// A Checklist is what Check is told of the store.
type Checklist struct {
	Incarnations []heads.Incarnation // that have a lifecycle record
	Blobs        []keys.Hash         // that are stored
	// Uses returns the first revision of inc with a node that refers to a blob, as far
	// as histories were read, or 0.
	Uses func(b keys.Hash, inc heads.Incarnation) head.Revision
	// Name is what problems call an incarnation.
	Name func(inc heads.Incarnation) string
}

// Check finds what the index should say and does not, without changing anything, and
// returns it as problems. It may run beside collections and commits: whatever looks
// wrong is looked at again. An index that is being derived anew has none.
//
// The records of the index are witnesses of each other: edges are counted; whatever
// a collector writes is written with the cycle record; a session that the index does not
// follow to its head has a dirty record; and a blob without an edge is a candidate,
// held by an upload, or referred to by a session that has a dirty record.
func (c *Collector) Check(ctx context.Context, list Checklist) (problems []error, err error) {
	k := &check{cycle: cycle{engine: c.engine, space: c.space, blobs: c.blobs, key: c.space.Cycle()}, list: list, counted: map[keys.Hash]bool{}}
	if rebuilding, err := Rebuilding(ctx, c.engine, c.space); err != nil || rebuilding {
		return nil, err // the next collection derives it anew
	}
	for _, step := range []func(context.Context) error{k.totals, k.edges, k.follows, k.detachments, k.accounts, k.loose} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	if rebuilding, err := Rebuilding(ctx, c.engine, c.space); err != nil || rebuilding {
		return nil, err
	}
	return k.problems, nil
}

type check struct {
	cycle
	list     Checklist
	counted  map[keys.Hash]bool // blobs that have a number of edges
	problems []error
}

func (k *check) problem(err error, format string, args ...any) {
	if err != nil {
		k.problems = append(k.problems, codec.Corrupt(err, format, args...))
	}
}

// totals checks that the cycle record is there if anything is that was written with it,
// and counts sessions and blobs as they are. A collector that is at work makes it look
// again, and in the end look away.
func (k *check) totals(ctx context.Context) error {
	for range 3 {
		before, err := k.get(ctx, k.key)
		if err != nil {
			return err
		}
		clear(k.counted)
		other := byte(0)
		stale, due := map[heads.Incarnation]bool{}, []heads.Incarnation{}
		holders, bookmarks, sessions := map[heads.Incarnation]bool{}, map[heads.Incarnation]bool{}, 0
		for _, letter := range []byte{keys.Edge, keys.Count, keys.Bookmark, keys.Candidate, keys.Detached, keys.Stale, keys.Loose} {
			for p, err := range k.engine.Scan(ctx, k.space.All(letter)) {
				if err != nil {
					return err
				}
				_, fields, ok := k.space.Fields(p.Key)
				if other = letter; !ok {
					continue
				}
				switch letter {
				case keys.Count:
					k.counted[keys.Hash(fields)] = true
				case keys.Edge:
					if fields[16] == bySession {
						holders[heads.Incarnation(fields[17:])] = true
					}
				case keys.Stale:
					stale[heads.Incarnation(fields)] = true
				case keys.Bookmark:
					inc := heads.Incarnation(fields)
					bookmarks[inc] = true
					m, err := openBookmark(p.Key, p.Value)
					if err != nil || m.held == head.Revision(open) {
						sessions++
					}
					if err == nil && m.due != 0 {
						due = append(due, inc)
					}
				}
			}
		}
		after, err := k.get(ctx, k.key)
		if err != nil {
			return err
		}
		if string(before[0]) != string(after[0]) {
			continue
		}
		if after[0] == nil {
			if other != 0 {
				k.problem(fmt.Errorf("%w, but a collector has written records of type %q", record.ErrMissing, other), "cycle record")
			}
			return nil
		}
		s, err := openCycleState(k.key, after[0])
		if err != nil {
			return nil // its checksum was checked
		}
		if s.sessions != sessions {
			which := "a session without edges"
			for inc := range holders {
				if !bookmarks[inc] {
					which = k.list.Name(inc)
				}
			}
			k.problem(fmt.Errorf("%w: %d of %d sessions that live have one", record.ErrMissing, sessions, s.sessions), "bookmark of %s", which)
		}
		if s.blobs != len(k.counted) {
			k.problem(fmt.Errorf("%w: %d of %d blobs have one", record.ErrMissing, len(k.counted), s.blobs), "number of edges")
		}
		for _, inc := range due {
			if !stale[inc] {
				k.problem(fmt.Errorf("%w: vacuum does not come to the session", record.ErrMissing), "stale record of %s", k.list.Name(inc))
			}
			delete(stale, inc)
		}
		for inc := range stale {
			k.problem(fmt.Errorf("%w: it does not say why the session has a stale record", record.ErrMissing), "bookmark of %s", k.list.Name(inc))
		}
		return nil
	}
	return nil
}

// edges compares the edges of blobs with their numbers, and those of sessions with
// what the sessions' nodes refer to.
func (k *check) edges(ctx context.Context) error {
	var at keys.Hash
	n := uint64(0)
	for p, err := range k.engine.Scan(ctx, k.space.All(keys.Edge)) {
		if err != nil {
			return err
		}
		_, fields, ok := k.space.Fields(p.Key)
		if !ok {
			continue
		}
		if h := keys.Hash(fields); h != at {
			if err := k.number(ctx, at, n); err != nil {
				return err
			}
			at, n = h, 0
		}
		n++
		if fields[16] != bySession {
			continue
		}
		inc := heads.Incarnation(fields[17:])
		u, err := openUse(p.Key, p.Value)
		if err != nil || u.node == 0 || u.node == uint64(k.list.Uses(at, inc)) {
			continue // its checksum was checked
		}
		if err := k.use(ctx, at, inc, p.Value, head.Revision(u.node)); err != nil {
			return err
		}
	}
	if err := k.number(ctx, at, n); err != nil {
		return err
	}
	for h := range k.counted {
		n, err := k.count(ctx, h)
		if err == nil && n == 0 {
			err = k.number(ctx, h, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// number checks that a blob has so many edges, and is stored if it has any.
func (k *check) number(ctx context.Context, h keys.Hash, edges uint64) error {
	for attempt := 0; ; attempt++ { // a collector may be at work
		key := k.space.Count(h)
		vs, err := k.get(ctx, key, k.space.Mark(h))
		if err != nil {
			return err
		}
		n, cerr := openCount(key, vs[0])
		if cerr == nil && n == edges && (n == 0 || vs[1] != nil) {
			return nil
		}
		if attempt == 3 {
			k.problem(fmt.Errorf("%d edges, counted as %d, stored: %v: run a full collection", edges, n, vs[1] != nil), "collector's index (edge, number of edges) of the blob at %x", h)
			return nil
		}
		if edges, err = k.count(ctx, h); err != nil {
			return err
		}
	}
}

// count returns how many edges a blob has.
func (k *check) count(ctx context.Context, h keys.Hash) (n uint64, err error) {
	for _, err := range k.engine.Scan(ctx, k.space.Of(keys.Edge, h)) {
		if err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}

// use looks again at an edge that says that a node of a revision refers to a blob: it
// does, or vacuum has detached it and a record says so.
func (k *check) use(ctx context.Context, h keys.Hash, inc heads.Incarnation, value []byte, r head.Revision) error {
	found := false
	err := k.packs(ctx, inc, r-1, r, func(p *pack.Pack) error {
		for i := range p.Nodes {
			for _, id := range p.Nodes[i].Blobs() {
				found = found || k.space.BlobHash(id) == h
			}
		}
		return nil
	})
	if isCorrupt(err) || found {
		return nil // the history names its own damage
	}
	if err != nil {
		return err
	}
	vs, err := k.get(ctx, k.space.Edge(h, bySession, inc), k.space.Detached(inc, h), k.space.Life(inc))
	if err != nil {
		return err
	}
	if string(vs[0]) == string(value) && vs[1] == nil && vs[2] != nil {
		k.problem(fmt.Errorf("%w: an edge says that revision %d refers to the blob, and no node does", record.ErrMissing, r),
			"detached blob at %x of %s", h, k.list.Name(inc))
	}
	return nil
}

// follows checks that each session which the index does not follow to its head has a
// dirty record, by which the next collection finds it.
func (k *check) follows(ctx context.Context) error {
	for _, inc := range k.list.Incarnations {
		if err := k.follow(ctx, inc); err != nil {
			return err
		}
	}
	return nil
}

func (k *check) follow(ctx context.Context, inc heads.Incarnation) error {
	lifeKey, markKey, originKey := k.space.Life(inc), k.space.Bookmark(inc), k.space.Origin(inc)
	var session keys.Hash
	for {
		vs, err := k.get(ctx, lifeKey, k.space.Dirty(inc), markKey, originKey, k.space.Head(session))
		if err != nil || vs[0] == nil || vs[1] != nil {
			return err
		}
		life, err := heads.OpenLife(lifeKey, vs[0])
		if err != nil {
			return nil // its checksum was checked
		}
		if life.Session != session {
			session = life.Session // read its head, too
			continue
		}
		m := bookmark{held: head.Revision(open)}
		if vs[2] != nil {
			if m, err = openBookmark(markKey, vs[2]); err != nil {
				return nil
			}
		}
		if life.State != heads.Live {
			if m.held == head.Revision(open) {
				k.problem(fmt.Errorf("%w: no collection has seen that the session was deleted", record.ErrMissing), "dirty record or bookmark of %s", k.list.Name(inc))
				return nil
			}
			return k.released(ctx, inc, vs[0], vs[2], m.held)
		}
		h, err := heads.OpenHead(k.space.Head(session), vs[4])
		if err != nil {
			return nil
		}
		behind := h.Revision != m.revision || life.Floor != m.floor || life.Stones != m.stones
		if o, err := heads.OpenOrigin(originKey, vs[3]); err == nil && vs[2] == nil && len(o.Parts) > 0 {
			behind = true
		}
		if !behind && (life.Refs > 0 || len(m.kept) > 0) {
			refs, err := heads.Kept(ctx, k.engine, k.space, inc, life)
			if isCorrupt(err) { // named with the session, or changed meanwhile
				return nil
			}
			if err != nil {
				return err
			}
			behind = !slices.Equal(revisions(refs), m.kept)
		}
		if !behind {
			return nil
		}
		now, err := k.get(ctx, lifeKey, k.space.Dirty(inc))
		if err != nil {
			return err
		}
		if string(now[0]) != string(vs[0]) || now[1] != nil {
			continue // kept revisions changed meanwhile
		}
		k.problem(fmt.Errorf("%w: the collector's index ends at revision %d of %d", record.ErrMissing, m.revision, h.Revision), "dirty record or bookmark of %s", k.list.Name(inc))
		return nil
	}
}

// released checks that the index knows up to where forks hold a deleted session, or that
// a collection will find out: then a fork that was deleted has a dirty record. life and
// mark are records of the session.
func (k *check) released(ctx context.Context, inc heads.Incarnation, life, mark []byte, indexed head.Revision) error {
	held := head.Revision(0)
	for p, err := range k.engine.Scan(ctx, k.space.Of(keys.Fork, inc)) {
		if err != nil {
			return err
		}
		_, fields, ok := k.space.Fields(p.Key)
		if !ok {
			continue
		}
		fork := heads.Incarnation(fields[16:])
		ks := [][]byte{k.space.Life(fork), k.space.Origin(fork), k.space.Dirty(fork)}
		vs, err := k.get(ctx, ks...)
		if err != nil {
			return err
		}
		its, lerr := heads.OpenLife(ks[0], vs[0])
		origin, oerr := heads.OpenOrigin(ks[1], vs[1])
		switch {
		case lerr != nil || oerr != nil:
			return nil // its checksum was checked
		case its.State == heads.Live:
			for _, a := range origin.Ancestors {
				if a.Incarnation == inc {
					held = max(held, a.Revision)
				}
			}
		case vs[2] != nil:
			return nil
		}
	}
	if held == indexed {
		return nil
	}
	vs, err := k.get(ctx, k.space.Bookmark(inc), k.space.Dirty(inc), k.space.Life(inc))
	if err == nil && string(vs[0]) == string(mark) && vs[1] == nil && string(vs[2]) == string(life) {
		k.problem(fmt.Errorf("%w: forks hold the deleted session up to revision %d, and the index says %d", record.ErrMissing, held, indexed), "dirty record of %s", k.list.Name(inc))
	}
	return err
}

// detachments checks that sessions from which vacuum has detached blobs have dirty
// records.
func (k *check) detachments(ctx context.Context) error {
	for p, err := range k.engine.Scan(ctx, k.space.All(keys.Detached)) {
		if err != nil {
			return err
		}
		_, fields, ok := k.space.Fields(p.Key)
		if !ok {
			continue
		}
		inc := heads.Incarnation(fields)
		vs, err := k.get(ctx, p.Key, k.space.Dirty(inc))
		if err != nil {
			return err
		}
		if vs[0] != nil && vs[1] == nil {
			k.problem(fmt.Errorf("%w: vacuum has detached blobs of it", record.ErrMissing), "dirty record of %s", k.list.Name(inc))
		}
	}
	return nil
}
