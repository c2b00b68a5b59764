package reclaim

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/pack"
	"github.com/turnstonedb/turnstone/record"
)

// retain drops the edges of checkpoint parts that no retained revision of a session
// that lives has, when its floor rose or a kept revision was released, and the versions
// that the session stores itself. It reads from the floor before to the floor now.
func (cy *cycle) retain(ctx context.Context, v *view) error {
	refs, err := cy.kept(ctx, v.inc, v.life)
	if err != nil {
		return err
	}
	kept := revisions(refs)
	if v.life.Floor == v.mark.floor && slices.Equal(kept, v.mark.kept) {
		return nil
	}
	holds, err := cy.partsOfAll(ctx, v.inc, kept, v.life.Floor)
	if err != nil {
		return err
	}
	gone := map[keys.Hash]bool{} // blobs that lost a revision
	for _, k := range v.mark.kept {
		if _, still := slices.BinarySearch(kept, k); still || k >= v.life.Floor {
			continue
		}
		parts, err := cy.partsAt(ctx, v.inc, k)
		if err != nil {
			return err
		}
		for _, p := range parts {
			gone[p.blob] = true
		}
	}
	if err := cy.passed(ctx, v, gone); err != nil {
		return err
	}
	var changes []change
	for h := range gone {
		if h == (keys.Hash{}) {
			continue
		}
		changes = append(changes, v.edit(h, func(u use) use {
			if u.parts && u.last < uint64(v.life.Floor) && !holds[h] {
				u.parts, u.last = false, 0
			}
			return u
		}))
	}
	if err := cy.link(ctx, changes, v.guards); err != nil {
		return err
	}
	if err := cy.dropBelow(ctx, v, kept); err != nil {
		return err
	}
	v.mark.floor, v.mark.kept = v.life.Floor, kept
	return nil
}

// passed adds to gone the blobs of checkpoint parts that the floor has passed since
// the index was brought up to date.
func (cy *cycle) passed(ctx context.Context, v *view, gone map[keys.Hash]bool) error {
	from, to := v.mark.floor, min(v.life.Floor, v.mark.revision)
	if to <= from {
		return nil
	}
	parts, err := cy.partsAt(ctx, v.inc, from)
	if err != nil {
		return err
	}
	return cy.commits(ctx, v.inc, from, to, head.CommitID{}, func(c *heads.Commit, _ head.CommitID) error {
		next, err := cy.nextParts(v.inc, parts, c, v.wholes)
		if err != nil {
			return err
		}
		for _, h := range lost(parts, next) {
			gone[h] = true
		}
		parts = next
		return nil
	})
}

// revisions returns the revisions that are kept, ascending and each once.
func revisions(refs []head.Kept) []head.Revision {
	out := make([]head.Revision, len(refs))
	for i, ref := range refs {
		out[i] = ref.Revision
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// allParts drops or changes the edges of all blobs that the session ever had as
// checkpoint parts, or began with as a fork.
func (cy *cycle) allParts(ctx context.Context, v *view, f func(keys.Hash) change) error {
	var changes []change
	origin, err := cy.origin(ctx, v.inc)
	if err != nil {
		return err
	}
	if origin != nil {
		for _, p := range origin.Parts {
			changes = append(changes, f(cy.space.BlobHash(p.Blob)))
		}
	}
	flush := func() error {
		err := cy.link(ctx, unique(changes), v.guards)
		changes = nil
		return err
	}
	err = cy.commits(ctx, v.inc, 0, v.mark.revision, head.CommitID{}, func(c *heads.Commit, _ head.CommitID) error {
		for _, p := range c.Parts {
			if p.Set == c.Revision && !heads.IsDelta(p) {
				changes = append(changes, f(cy.space.BlobHash(p.Blob)))
			}
		}
		if len(changes) >= batchOps {
			return flush()
		}
		return nil
	})
	if err != nil {
		return err
	}
	return flush()
}

// release drops the edges of a deleted session that no attached fork holds. The
// deleted ancestors of a deleted fork are looked at again.
func (cy *cycle) release(ctx context.Context, v *view) error {
	held := v.held
	if held >= v.mark.held {
		return nil // looked at before; nothing new holds what is deleted
	}
	if v.mark.held == head.Revision(open) { // looked at for the first time since it was deleted
		var err error
		if v.freed, err = cy.deletedAncestors(ctx, v.inc); err != nil {
			return err
		}
	}
	drop := func(h keys.Hash) change {
		return v.edit(h, func(u use) use {
			u.parts, u.last = false, 0
			if u.node > uint64(held) {
				u.node = 0
			}
			return u
		})
	}
	if v.mark.held == head.Revision(open) {
		if err := cy.allParts(ctx, v, drop); err != nil {
			return err
		}
	}
	var changes []change
	flush := func() error {
		err := cy.link(ctx, unique(changes), v.guards)
		changes = nil
		return err
	}
	err := cy.packs(ctx, v.inc, 0, v.mark.revision, func(p *pack.Pack) error {
		for i := range p.Nodes {
			for _, id := range p.Nodes[i].Blobs() {
				changes = append(changes, drop(cy.space.BlobHash(id)))
			}
		}
		if len(changes) >= batchOps {
			return flush()
		}
		return nil
	})
	if err == nil {
		err = flush()
	}
	v.mark.held = held
	return err
}

// deletedAncestors returns the deleted sessions whose history a fork shares.
func (cy *cycle) deletedAncestors(ctx context.Context, inc heads.Incarnation) (out []heads.Incarnation, err error) {
	origin, err := cy.origin(ctx, inc)
	if err != nil || origin == nil {
		return nil, err
	}
	ks := make([][]byte, len(origin.Ancestors))
	for i, a := range origin.Ancestors {
		ks[i] = cy.space.Life(a.Incarnation)
	}
	vs, err := cy.get(ctx, ks...)
	if err != nil {
		return nil, err
	}
	for i, a := range origin.Ancestors {
		if vs[i] == nil {
			continue // vacuum has removed it
		}
		life, err := heads.OpenLife(ks[i], vs[i])
		if err != nil {
			return nil, codec.Corrupt(err, "lifecycle of incarnation %x", a.Incarnation)
		}
		if life.State == heads.Deleted {
			out = append(out, a.Incarnation)
		}
	}
	return out, nil
}

// A holder is a session that lives and is a fork of another one.
type holder struct {
	inc      heads.Incarnation
	life     *heads.Life
	ancestor heads.Ancestor // what it holds
}

// holders returns the forks of an incarnation that live. life is its lifecycle
// record, which counts the entries: a scan alone is no witness of what is not
// there. They are as of one moment if a batch guards that record.
func (cy *cycle) holders(ctx context.Context, inc heads.Incarnation, life *heads.Life) ([]holder, error) {
	var out []holder
	n := 0
	if life.Forks == 0 {
		return nil, nil
	}
	var incs []heads.Incarnation
	for p, err := range cy.engine.Scan(ctx, cy.space.Of(keys.Fork, inc)) {
		if err != nil {
			return nil, err
		}
		n++
		_, fields, ok := cy.space.Fields(p.Key)
		if !ok {
			return nil, codec.Corrupt(fmt.Errorf("%w: key", record.ErrMalformed), "fork at key %x", p.Key)
		}
		if incs = append(incs, heads.Incarnation(fields[16:])); len(incs) == 500 {
			if out, err = cy.addHolders(ctx, out, inc, incs); err != nil {
				return nil, err
			}
			incs = incs[:0]
		}
	}
	out, err := cy.addHolders(ctx, out, inc, incs)
	if err != nil {
		return nil, err
	}
	if n != int(life.Forks) {
		if moved, err := cy.moved(ctx, inc, life); err != nil || moved {
			return nil, errors.Join(err, errMoved)
		}
		return nil, codec.Corrupt(fmt.Errorf("%w: %d of %d", record.ErrMissing, n, life.Forks), "forks of incarnation %x", inc)
	}
	return out, nil
}

// addHolders adds to out those of forks that live.
func (cy *cycle) addHolders(ctx context.Context, out []holder, inc heads.Incarnation, forks []heads.Incarnation) ([]holder, error) {
	ks := make([][]byte, 0, 2*len(forks))
	for _, fork := range forks {
		ks = append(ks, cy.space.Life(fork), cy.space.Origin(fork))
	}
	vs, err := cy.get(ctx, ks...)
	if err != nil {
		return nil, err
	}
	for i, fork := range forks {
		life, err := heads.OpenLife(ks[2*i], vs[2*i])
		if err != nil {
			return nil, codec.Corrupt(err, "lifecycle of fork %x", fork)
		}
		if life.State != heads.Live {
			continue
		}
		origin, err := heads.OpenOrigin(ks[2*i+1], vs[2*i+1])
		if err != nil {
			return nil, codec.Corrupt(err, "origin of fork %x", fork)
		}
		for _, a := range origin.Ancestors {
			if a.Incarnation == inc {
				out = append(out, holder{inc: fork, life: life, ancestor: a})
			}
		}
	}
	return out, nil
}

// moved reports whether the lifecycle of a session is another by now.
func (cy *cycle) moved(ctx context.Context, inc heads.Incarnation, life *heads.Life) (bool, error) {
	key := cy.space.Life(inc)
	vs, err := cy.get(ctx, key)
	return err == nil && string(vs[0]) != string(life.Seal(key)), err
}

// kept reads the kept revisions of a session that lives.
func (cy *cycle) kept(ctx context.Context, inc heads.Incarnation, life *heads.Life) ([]head.Kept, error) {
	refs, err := heads.Kept(ctx, cy.engine, cy.space, inc, life)
	if isCorrupt(err) {
		if moved, merr := cy.moved(ctx, inc, life); merr != nil || moved {
			return nil, errors.Join(merr, errMoved)
		}
	}
	return refs, err
}

// held returns up to which revision the history of a session is held by forks,
// and checks that what they hold is there.
func (cy *cycle) held(ctx context.Context, v *view) (head.Revision, error) {
	holders, err := cy.holders(ctx, v.inc, v.life)
	var most head.Revision
	for _, h := range holders {
		a := h.ancestor
		if a.Revision == 0 || err != nil {
			continue
		}
		most = max(most, a.Revision)
		key := cy.space.Commit(v.inc, uint64(a.Revision))
		var vs [][]byte
		if vs, err = cy.get(ctx, key); err != nil {
			break
		}
		_, id, cerr := heads.OpenCommit(key, vs[0])
		if cerr == nil && id != a.Commit {
			cerr = record.ErrHash
		}
		err = codec.Corrupt(cerr, "commit %d of incarnation %x, which fork %x holds", a.Revision, v.inc, h.inc)
	}
	return most, err
}

// detached derives the session's edges to blobs anew from which vacuum removed a
// reference. It returns the keys of the records that say so, which go after the bookmark
// was written.
func (cy *cycle) detached(ctx context.Context, v *view) (ks [][]byte, err error) {
	var order []keys.Hash
	uses := map[keys.Hash]*use{}
	for p, err := range cy.engine.Scan(ctx, cy.space.Of(keys.Detached, v.inc)) {
		if err != nil {
			return nil, err
		}
		_, fields, ok := cy.space.Fields(p.Key)
		if !ok {
			return nil, codec.Corrupt(fmt.Errorf("%w: key", record.ErrMalformed), "detached blob at key %x", p.Key)
		}
		h := keys.Hash(fields[16:])
		ks, order = append(ks, p.Key), append(order, h)
		uses[h] = &use{}
	}
	if len(ks) == 0 {
		return nil, nil
	}
	err = cy.packs(ctx, v.inc, 0, min(v.mark.revision, v.mark.held), func(p *pack.Pack) error {
		for i := range p.Nodes {
			for _, id := range p.Nodes[i].Blobs() {
				if u := uses[cy.space.BlobHash(id)]; u != nil {
					u.at(p.Revision)
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := cy.shown(ctx, v, uses); err != nil {
		return nil, err
	}
	var changes []change
	for _, h := range order {
		changes = append(changes, v.edit(h, func(use) use { return *uses[h] }))
	}
	return ks, cy.link(ctx, changes, v.guards)
}

// shown adds to uses until when the checkpoints of retained revisions need each blob.
func (cy *cycle) shown(ctx context.Context, v *view, uses map[keys.Hash]*use) error {
	if v.life.State != heads.Live {
		return nil // no checkpoint of a deleted session can be read
	}
	edges := make([][]byte, 0, len(uses))
	for h := range uses {
		edges = append(edges, cy.space.Edge(h, bySession, v.inc))
	}
	vs, err := cy.get(ctx, edges...)
	if err != nil {
		return err
	}
	any := false
	for i, value := range vs {
		if value == nil {
			continue
		}
		u, err := openUse(edges[i], value)
		if err != nil {
			return err
		}
		any = any || u.parts
	}
	if !any {
		return nil
	}
	refs, err := cy.kept(ctx, v.inc, v.life)
	if err != nil {
		return err
	}
	note := func(parts []part, last uint64) {
		for _, p := range parts {
			if u := uses[p.blob]; u != nil {
				u.closed(last)
			}
		}
	}
	for _, k := range revisions(refs) {
		if k >= min(v.life.Floor, v.mark.revision) {
			break
		}
		parts, err := cy.partsAt(ctx, v.inc, k)
		if err != nil {
			return err
		}
		note(parts, uint64(k))
	}
	from := min(v.life.Floor, v.mark.revision)
	parts, err := cy.partsAt(ctx, v.inc, from)
	if err != nil {
		return err
	}
	note(parts, uint64(from))
	err = cy.commits(ctx, v.inc, from, v.mark.revision, head.CommitID{}, func(c *heads.Commit, _ head.CommitID) error {
		next, err := cy.nextParts(v.inc, parts, c, nil)
		parts = next
		note(parts, uint64(c.Revision))
		return err
	})
	note(parts, open)
	v.mark.parts, v.renewed = parts, true
	return err
}
