package gc

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// retain drops the edges of checkpoint parts that no retained revision of a
// session that lives has: when its floor rose, or a kept revision was released.
func (r *run) retain(ctx context.Context, v *view) error {
	refs, err := r.kept(ctx, v.inc, v.life)
	if err != nil {
		return err
	}
	sum := digest(refs)
	if v.life.Floor == v.mark.floor && sum == v.mark.refs {
		return nil
	}
	kept, err := r.keptParts(ctx, v, refs)
	if err != nil {
		return err
	}
	drop := func(h keys.Hash) change {
		return v.edit(h, func(u use) use {
			if u.parts && u.last < uint64(v.life.Floor) && !kept[h] {
				u.parts, u.last = false, 0
			}
			return u
		})
	}
	if err := r.partsBefore(ctx, v, v.life.Floor, drop); err != nil {
		return err
	}
	v.mark.floor, v.mark.refs = v.life.Floor, sum
	return nil
}

func digest(refs []head.Ref) uint64 {
	var sum uint64 // of a set: the order does not count
	for _, ref := range refs {
		x := uint64(ref.Revision) + 1
		x *= 0x9e3779b97f4a7c15
		sum += x ^ x>>29
	}
	return sum
}

// keptParts returns the checkpoint parts of the revisions below the floor that
// are kept by name.
func (r *run) keptParts(ctx context.Context, v *view, refs []head.Ref) (map[keys.Hash]bool, error) {
	below := map[head.Revision]bool{}
	last := head.Revision(0)
	for _, ref := range refs {
		if ref.Revision < v.life.Floor {
			below[ref.Revision] = true
			last = max(last, ref.Revision)
		}
	}
	kept := map[keys.Hash]bool{}
	if len(below) == 0 {
		return kept, nil
	}
	now := map[string]keys.Hash{}
	origin, err := r.origin(ctx, v.inc)
	if err != nil {
		return nil, err
	}
	if origin != nil {
		for _, p := range origin.Parts {
			now[p.Name] = r.space.BlobHash(p.Blob)
		}
	}
	err = r.commits(ctx, v.inc, 0, last, head.CommitID{}, func(c *head.Commit, _ head.CommitID) error {
		if c.PartsAt == c.Revision {
			next := make(map[string]keys.Hash, len(c.Parts))
			for _, p := range c.Parts {
				if next[p.Name] = now[p.Name]; p.Set == c.Revision {
					next[p.Name] = r.space.BlobHash(p.Blob)
				}
			}
			now = next
		}
		if below[c.Revision] {
			for _, h := range now {
				kept[h] = true
			}
		}
		return nil
	})
	return kept, err
}

// partsBefore changes the edges of all blobs that were set as checkpoint parts
// before a revision, or that a fork began with.
func (r *run) partsBefore(ctx context.Context, v *view, before head.Revision, f func(keys.Hash) change) error {
	var changes []change
	origin, err := r.origin(ctx, v.inc)
	if err != nil {
		return err
	}
	if origin != nil {
		for _, p := range origin.Parts {
			changes = append(changes, f(r.space.BlobHash(p.Blob)))
		}
	}
	flush := func() error {
		err := r.link(ctx, unique(changes), v.guards)
		changes = nil
		return err
	}
	last := min(before, v.mark.revision+1)
	if last <= 1 {
		return flush()
	}
	err = r.commits(ctx, v.inc, 0, last-1, head.CommitID{}, func(c *head.Commit, _ head.CommitID) error {
		for _, p := range c.Parts {
			if p.Set == c.Revision {
				changes = append(changes, f(r.space.BlobHash(p.Blob)))
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

// release drops the edges of a deleted session that no attached fork holds, and
// with a deleted fork looks at its deleted ancestors again.
func (r *run) release(ctx context.Context, v *view) error {
	held := v.held
	if held >= v.mark.held {
		return nil // looked at before; nothing new holds what is deleted
	}
	if v.mark.held == head.Revision(open) {
		// The ancestors first: this session is not looked at again.
		if err := r.ancestors(ctx, v); err != nil {
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
		if err := r.partsBefore(ctx, v, v.mark.revision+1, drop); err != nil {
			return err
		}
	}
	var changes []change
	flush := func() error {
		err := r.link(ctx, unique(changes), v.guards)
		changes = nil
		return err
	}
	err := r.packs(ctx, v.inc, 0, v.mark.revision, func(p *graph.Pack) error {
		for i := range p.Nodes {
			for _, id := range p.Nodes[i].Blobs() {
				changes = append(changes, drop(r.space.BlobHash(id)))
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

// ancestors looks again at the deleted sessions that a fork, which is deleted,
// held.
func (r *run) ancestors(ctx context.Context, v *view) error {
	origin, err := r.origin(ctx, v.inc)
	if err != nil || origin == nil {
		return err
	}
	for _, a := range origin.Ancestors {
		key := r.space.Life(a.Incarnation)
		vs, err := r.get(ctx, key)
		if err != nil {
			return err
		}
		if vs[0] == nil {
			continue // vacuum has removed it
		}
		life, err := head.OpenLife(key, vs[0])
		if err != nil {
			return codec.Corrupt(err, "lifecycle of incarnation %x", a.Incarnation)
		}
		if life.State == head.Deleted {
			if err := r.session(ctx, a.Incarnation); err != nil {
				return err
			}
		}
	}
	return nil
}

// A holder is a session that lives and is a fork of another one.
type holder struct {
	inc      head.Incarnation
	life     *head.Life
	ancestor head.Ancestor // what it holds
}

// holders returns the forks of an incarnation that live. life is its lifecycle
// record, which counts the entries: a scan alone is no witness of what is not
// there. They are as of one moment if a batch guards that record.
func (r *run) holders(ctx context.Context, inc head.Incarnation, life *head.Life) ([]holder, error) {
	var out []holder
	n := 0
	if life.Forks == 0 {
		return nil, nil
	}
	for p, err := range r.engine.Scan(ctx, r.space.Of(keys.Fork, inc)) {
		if err != nil {
			return nil, err
		}
		n++
		_, fields, ok := r.space.Fields(p.Key)
		if !ok {
			return nil, codec.Corrupt(fmt.Errorf("%w: key", codec.ErrMalformed), "fork at key %x", p.Key)
		}
		h := holder{inc: head.Incarnation(fields[16:])}
		key, originKey := r.space.Life(h.inc), r.space.Origin(h.inc)
		vs, err := r.get(ctx, key, originKey)
		if err != nil {
			return nil, err
		}
		if h.life, err = head.OpenLife(key, vs[0]); err != nil {
			return nil, codec.Corrupt(err, "lifecycle of fork %x", h.inc)
		}
		if h.life.State != head.Live {
			continue
		}
		origin, err := head.OpenOrigin(originKey, vs[1])
		if err != nil {
			return nil, codec.Corrupt(err, "origin of fork %x", h.inc)
		}
		for _, a := range origin.Ancestors {
			if a.Incarnation == inc {
				h.ancestor = a
				out = append(out, h)
			}
		}
	}
	if n != int(life.Forks) {
		if moved, err := r.moved(ctx, inc, life); err != nil || moved {
			return nil, errors.Join(err, errMoved)
		}
		return nil, codec.Corrupt(fmt.Errorf("%w: %d of %d", codec.ErrMissing, n, life.Forks), "forks of incarnation %x", inc)
	}
	return out, nil
}

// moved reports whether the lifecycle of a session is another by now.
func (r *run) moved(ctx context.Context, inc head.Incarnation, life *head.Life) (bool, error) {
	key := r.space.Life(inc)
	vs, err := r.get(ctx, key)
	return err == nil && string(vs[0]) != string(life.Seal(key)), err
}

// kept reads the kept revisions of a session that lives.
func (r *run) kept(ctx context.Context, inc head.Incarnation, life *head.Life) ([]head.Ref, error) {
	refs, err := head.Refs(ctx, r.engine, r.space, inc, life)
	if isCorrupt(err) {
		if moved, merr := r.moved(ctx, inc, life); merr != nil || moved {
			return nil, errors.Join(merr, errMoved)
		}
	}
	return refs, err
}

// held returns up to which revision the history of a session is held by forks,
// and checks that what they hold is there.
func (r *run) held(ctx context.Context, v *view) (head.Revision, error) {
	holders, err := r.holders(ctx, v.inc, v.life)
	var most head.Revision
	for _, h := range holders {
		a := h.ancestor
		if a.Revision == 0 || err != nil {
			continue
		}
		most = max(most, a.Revision)
		key := r.space.Commit(v.inc, uint64(a.Revision))
		var vs [][]byte
		if vs, err = r.get(ctx, key); err != nil {
			break
		}
		_, id, cerr := head.OpenCommit(key, vs[0])
		if cerr == nil && id != a.Commit {
			cerr = codec.ErrHash
		}
		err = codec.Corrupt(cerr, "commit %d of incarnation %x, which fork %x holds", a.Revision, v.inc, h.inc)
	}
	return most, err
}

// detached derives the session's edges to blobs anew from which vacuum removed a
// reference.
func (r *run) detached(ctx context.Context, v *view) error {
	var ks [][]byte
	var order []keys.Hash
	uses := map[keys.Hash]*use{}
	for p, err := range r.engine.Scan(ctx, r.space.Of(keys.Detached, v.inc)) {
		if err != nil {
			return err
		}
		_, fields, ok := r.space.Fields(p.Key)
		if !ok {
			return codec.Corrupt(fmt.Errorf("%w: key", codec.ErrMalformed), "detached blob at key %x", p.Key)
		}
		h := keys.Hash(fields[16:])
		ks, order = append(ks, p.Key), append(order, h)
		uses[h] = &use{}
	}
	if len(ks) == 0 {
		return nil
	}
	err := r.packs(ctx, v.inc, 0, min(v.mark.revision, v.mark.held), func(p *graph.Pack) error {
		for i := range p.Nodes {
			for _, id := range p.Nodes[i].Blobs() {
				if u := uses[r.space.BlobHash(id)]; u != nil {
					u.at(p.Revision)
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	var changes []change
	for _, h := range order {
		changes = append(changes, v.edit(h, func(u use) use {
			u.node = uses[h].node
			return u
		}))
	}
	if err := r.link(ctx, changes, v.guards); err != nil {
		return err
	}
	for len(ks) > 0 {
		n := min(batchOps, len(ks))
		b := &batch{}
		b.Guards = append(b.Guards, v.guards...)
		b.Deletes = append(b.Deletes, ks[:n]...)
		if err := r.apply(ctx, b); err != nil {
			return err
		}
		ks = ks[n:]
	}
	return nil
}
