package reclaim

import (
	"context"
	"errors"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/record"
)

// sweepSize is how many candidates are condemned at once: what is held in memory,
// and how often changes are looked at again.
const sweepSize = 1024

// A suspect is a candidate that was condemned.
type suspect struct {
	hash keys.Hash
	mark blobs.Mark
	raw  []byte // its mark as this run condemned it
}

// sweep condemns the candidates, looks again at what changed until then, and
// deletes what is still unreferenced. The items of a list that was deleted are
// candidates next.
func (cy *cycle) sweep(ctx context.Context) error {
	for start := cy.space.All(keys.Candidate).Start; ; {
		list, next, err := cy.candidates(ctx, start)
		if err != nil {
			return err
		}
		if len(list) > 0 {
			cy.Candidates += len(list)
			suspects, err := cy.condemn(ctx, list)
			if err != nil {
				return err
			}
			if len(suspects) > 0 {
				cy.Condemned += len(suspects)
				if err := cy.recheck(ctx, suspects); err != nil {
					return err
				}
			}
			cy.step(len(list))
			next = cy.space.All(keys.Candidate).Start // what was deleted may have freed something
		}
		if next == nil {
			return nil
		}
		start = next
	}
}

// candidates reads the next candidates from start on; next is nil at the end.
func (cy *cycle) candidates(ctx context.Context, start []byte) (list []keys.Hash, next []byte, err error) {
	all := cy.space.All(keys.Candidate)
	all.Start = start
	for p, err := range cy.engine.Scan(ctx, all) {
		if err != nil {
			return nil, nil, err
		}
		_, fields, ok := cy.space.Fields(p.Key)
		if !ok {
			return nil, nil, codec.Corrupt(record.ErrMalformed, "candidate at key %x", p.Key)
		}
		if h := keys.Hash(fields); cy.only == nil || cy.only[h] {
			list = append(list, h)
		}
		if len(list) == sweepSize {
			return list, engine.Successor(p.Key), nil
		}
	}
	return list, nil, nil
}

// condemn condemns those of list that have no edges, and takes the others off
// the list.
func (cy *cycle) condemn(ctx context.Context, list []keys.Hash) ([]suspect, error) {
	var out []suspect
	for len(list) > 0 {
		n := min(batchOps/2, len(list))
		ks := make([][]byte, 0, 2*n)
		for _, h := range list[:n] {
			ks = append(ks, cy.space.Mark(h), cy.space.Count(h))
		}
		vs, err := cy.get(ctx, ks...)
		if err != nil {
			return nil, err
		}
		b := &batch{}
		var suspects []suspect
		for i, h := range list[:n] {
			mark, key := vs[2*i], ks[2*i]
			count, err := openCount(ks[2*i+1], vs[2*i+1])
			if err != nil {
				return nil, err
			}
			if count == 0 && mark != nil {
				m, err := blobs.OpenMark(key, mark)
				if err != nil {
					return nil, codec.Corrupt(err, "mark of the blob at %x", h)
				}
				m.Condemned = true
				s := suspect{hash: h, mark: m, raw: m.Seal(key)}
				b.Set(key, s.raw) // whatever a commit made of it: recheck sees that commit
				suspects = append(suspects, s)
				continue
			}
			if mark == nil && count > 0 {
				return nil, codec.Corrupt(record.ErrMissing, "mark of the blob at %x, which something refers to", h)
			}
			if mark != nil {
				if err := cy.revive(b, h, mark); err != nil {
					return nil, err
				}
			}
			b.Delete(cy.space.Candidate(h))
		}
		err = cy.apply(ctx, b)
		if errors.Is(err, engine.ErrConflict) {
			continue // a commit revived one of them: its mark is another now
		}
		if err != nil {
			return nil, err
		}
		out, list = append(out, suspects...), list[n:]
	}
	return out, nil
}

// revive makes b set the mark of a blob live, if it is condemned: what an earlier
// run left behind.
func (cy *cycle) revive(b *batch, h keys.Hash, raw []byte) error {
	key := cy.space.Mark(h)
	m, err := blobs.OpenMark(key, raw)
	if err != nil {
		return codec.Corrupt(err, "mark of the blob at %x", h)
	}
	if m.Condemned {
		m.Condemned = false
		b.Guard(key, raw)
		b.Set(key, m.Seal(key))
	}
	return nil
}

// recheck looks again at everything that may refer to suspects: whatever relied
// on one of them before it was condemned has been applied by now, and whatever
// relies on it later changes its mark. It revives what is referred to and
// deletes the rest.
func (cy *cycle) recheck(ctx context.Context, suspects []suspect) error {
	phase, done := cy.phase, cy.phaseDone
	cy.enter("sessions")
	cy.looking = true
	err := cy.changes(ctx, uint64(cy.began.UnixNano()))
	cy.looking = false
	if err != nil {
		return err
	}
	cy.phase, cy.phaseDone = phase, done
	used := map[keys.Hash]bool{}
	for _, s := range suspects {
		used[s.hash] = false
	}
	if err := cy.staged(ctx, used); err != nil {
		return err
	}
	ks := make([][]byte, len(suspects))
	for i, s := range suspects {
		ks[i] = cy.space.Count(s.hash)
	}
	vs, err := cy.get(ctx, ks...)
	if err != nil {
		return err
	}
	for i, s := range suspects {
		count, err := openCount(ks[i], vs[i])
		if err != nil {
			return err
		}
		edges := uint64(0)
		for _, err := range cy.engine.Scan(ctx, cy.space.Of(keys.Edge, s.hash)) {
			if err != nil {
				return err
			}
			edges++
		}
		if edges != count {
			return codec.Corrupt(errDisagree, "%d edges of the blob at %x, which are counted as %d", edges, s.hash, count)
		}
		used[s.hash] = used[s.hash] || count > 0
	}
	keep, drop := &batch{}, suspects[:0]
	for _, s := range suspects {
		if !used[s.hash] {
			drop = append(drop, s)
			continue
		}
		cy.Revived++
		if err := cy.revive(keep, s.hash, s.raw); err != nil {
			return err
		}
		keep.Delete(cy.space.Candidate(s.hash))
		if keep.Ops() >= batchOps {
			if err := cy.keep(ctx, keep); err != nil {
				return err
			}
			keep = &batch{}
		}
	}
	if err := cy.keep(ctx, keep); err != nil {
		return err
	}
	return cy.remove(ctx, drop)
}

var errDisagree = errors.New("index does not agree with itself")

// keep applies the revival of suspects. If a commit revived one of them already,
// they stay listed, and are looked at again.
func (cy *cycle) keep(ctx context.Context, b *batch) error {
	if b.Ops() == 0 {
		return nil
	}
	err := cy.apply(ctx, b)
	if errors.Is(err, engine.ErrConflict) {
		return nil
	}
	return err
}

// remove deletes suspects whose marks are as this run condemned them, with the
// edges that they own.
func (cy *cycle) remove(ctx context.Context, suspects []suspect) error {
	for len(suspects) > 0 {
		n, err := cy.removeSome(ctx, suspects)
		if errors.Is(err, engine.ErrConflict) {
			// A commit revived one of them: it is not ours any more.
			var conflict *engine.ConflictError
			if !errors.As(err, &conflict) {
				return err
			}
			i := slices.IndexFunc(suspects, func(s suspect) bool { return string(cy.space.Mark(s.hash)) == string(conflict.Key) })
			if i < 0 {
				return err
			}
			cy.Revived++
			suspects = slices.Delete(suspects, i, i+1)
			continue
		}
		if err != nil {
			return err
		}
		suspects = suspects[n:]
	}
	return nil
}

// removeSome deletes the first few suspects and returns how many.
func (cy *cycle) removeSome(ctx context.Context, suspects []suspect) (n int, err error) {
	b := &batch{}
	stood, counts := map[keys.Hash]uint64{}, map[keys.Hash]uint64{}
	bytes := int64(0)
	for _, s := range suspects {
		if b.Ops() >= batchOps {
			break
		}
		n++
		bytes += s.mark.Bytes
		key := cy.space.Mark(s.hash)
		b.Guard(key, s.raw)
		b.Delete(key)
		for i := range s.mark.Parts {
			b.Delete(cy.space.Blob(s.hash, i))
		}
		b.Delete(cy.space.Candidate(s.hash))
		if !s.mark.List {
			continue
		}
		items, err := cy.blobs.ItemsOf(ctx, s.hash)
		if err != nil {
			return 0, err
		}
		var ks [][]byte
		for _, item := range items {
			ks = append(ks, cy.space.Edge(item, byList, s.hash), cy.space.Count(item))
		}
		vs, err := cy.get(ctx, ks...)
		if err != nil {
			return 0, err
		}
		seen := map[keys.Hash]bool{}
		for i, item := range items {
			if seen[item] || vs[2*i] == nil { // of a blob that never had an edge itself
				continue
			}
			seen[item] = true
			if _, ok := stood[item]; !ok {
				if stood[item], err = openCount(ks[2*i+1], vs[2*i+1]); err != nil {
					return 0, err
				}
				counts[item] = stood[item]
			}
			if counts[item] == 0 {
				return 0, codec.Corrupt(errDisagree, "number of edges of the blob at %x", item)
			}
			counts[item]--
			b.Delete(ks[2*i])
		}
	}
	for item, count := range counts {
		cy.setCount(b, item, stood[item], count, false)
	}
	if err := cy.apply(ctx, b); err != nil {
		return 0, err
	}
	cy.Deleted += n
	cy.Bytes += bytes
	return n, nil
}
