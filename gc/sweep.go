package gc

import (
	"context"
	"errors"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file deletes candidates, in three steps. docs/gc.md says why they are safe:
//
//  1. condemn writes the marks of candidates without edges. A commit that relied on one of
//     them before is ordered before that write, and has left a dirty record.
//  2. recheck reads everything that may refer to them: it brings the index up to date with
//     all dirty sessions, and reads the pins of uploads.
//  3. remove deletes those that nothing refers to, guarding the marks that condemn wrote. A
//     commit that relies on one of them after step 1 has written its mark anew, so that the
//     guard is false.
//
// A commit that refers to a stored blob guards the blob's mark as it saw it, and so can be in
// one of three places only:
//
//	──── condemn ──────────────── recheck reads ──────────────── remove ────▶
//	  a                                           b                        c
//
//	a  It has left a dirty record: the recheck reads the commit, and revives the blob.
//	b  It saw the blob condemned, and set its mark live: the guard of remove is false. If it
//	   saw the blob live, before the condemnation, its own guard is false, and it looks again.
//	c  It finds no mark, and stores the blob anew.
//
// The recheck may also read a commit of kind b. Then it revives the blob, as the commit did. A cycle that
// is cut off leaves condemned candidates. The next sweep comes to them again.

// sweepSize is how many candidates are condemned at once. It bounds what is in memory, and
// decides how often changes are looked at again.
const sweepSize = 1024

// A suspect is a candidate that this cycle has condemned.
type suspect struct {
	hash   keys.Hash
	mark   blob.Mark
	record []byte // the mark's record as the cycle wrote it
}

// errDisagree is the damage of an index whose records contradict each other.
var errDisagree = errors.New("index does not agree with itself")

// sweep deletes the candidates that nothing refers to. Deleting a list may make its items
// candidates, so sweep begins at the first candidate again until it finds none.
func (cy *cycle) sweep(ctx context.Context) error {
	first := cy.space.All(keys.Candidate).Start
	for start := first; start != nil; {
		list, next, err := cy.candidates(ctx, start)
		if err != nil {
			return err
		}
		if len(list) > 0 {
			if err := cy.sweepSome(ctx, list); err != nil {
				return err
			}
			next = first
		}
		start = next
	}
	return nil
}

// candidates reads the next candidates from the key start on. next is where to go on, or nil
// at the end. In a collection of one session, candidates that others made are passed over.
func (cy *cycle) candidates(ctx context.Context, start []byte) (list []keys.Hash, next []byte, err error) {
	all := cy.space.All(keys.Candidate)
	all.Start = start
	err = cy.each(ctx, all, "candidate", func(e entry) error {
		if h := e.hash(); cy.only == nil || cy.only[h] {
			list = append(list, h)
		}
		if len(list) < sweepSize {
			return nil
		}
		next = engine.Successor(e.Key)
		return errStop
	})
	return list, next, err
}

// sweepSome deletes those of some candidates that nothing refers to.
func (cy *cycle) sweepSome(ctx context.Context, list []keys.Hash) error {
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
	return nil
}

// condemn condemns the candidates that have no edges, and takes the others off the list of
// candidates. After a conflict, which is with a commit that revived one of them, it reads
// their marks again.
func (cy *cycle) condemn(ctx context.Context, list []keys.Hash) ([]suspect, error) {
	var out []suspect
	for some := range slices.Chunk(list, batchOps/2) {
		suspects, err := cy.condemnSome(ctx, some)
		for errors.Is(err, engine.ErrConflict) {
			suspects, err = cy.condemnSome(ctx, some)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, suspects...)
	}
	return out, nil
}

// condemnSome is condemn in one batch. The batch does not guard the marks that it condemns: if a
// commit has set one since it was read, the recheck sees that commit.
func (cy *cycle) condemnSome(ctx context.Context, list []keys.Hash) ([]suspect, error) {
	recs, err := rows(ctx, cy, list, cy.space.Mark, cy.space.Count)
	if err != nil {
		return nil, err
	}
	b := &batch{}
	var suspects []suspect
	for i, h := range list {
		mark, count := recs[i][0], recs[i][1]
		edges, err := decodeCount(count.Key, count.Value)
		if err != nil {
			return nil, err
		}
		if mark.Value != nil && edges == 0 {
			m, err := decodeMark(mark, h)
			if err != nil {
				return nil, err
			}
			// Encode draws new random bytes: no commit has seen this mark before.
			m.Condemned = true
			s := suspect{hash: h, mark: m, record: m.Encode(mark.Key)}
			b.Set(mark.Key, s.record)
			suspects = append(suspects, s)
			continue
		}
		if err := cy.unlist(b, h, mark, edges); err != nil {
			return nil, err
		}
	}
	return suspects, cy.apply(ctx, b)
}

// unlist makes b take a candidate off the list, because it has edges or is not stored, and
// revive it if an earlier cycle, which was cut off, left it condemned.
func (cy *cycle) unlist(b *batch, h keys.Hash, mark engine.Pair, edges uint64) error {
	if mark.Value == nil && edges > 0 {
		return codec.Corrupt(damage.ErrMissing, "mark of the blob at %x, which something refers to", h)
	}
	if mark.Value != nil {
		if err := cy.revive(b, h, mark.Value); err != nil {
			return err
		}
	}
	b.Delete(cy.space.Candidate(h))
	return nil
}

// revive makes b set the mark of a blob live if it is condemned. record is the mark's record,
// which b guards.
func (cy *cycle) revive(b *batch, h keys.Hash, record []byte) error {
	key := cy.space.Mark(h)
	m, err := decodeMark(engine.Pair{Key: key, Value: record}, h)
	if err == nil && m.Condemned {
		m.Condemned = false
		b.Guard(key, record)
		b.Set(key, m.Encode(key))
	}
	return err
}

// recheck looks again at everything that may refer to suspects, revives those that something
// refers to, and deletes the others. All its reads come after the suspects were condemned. A pin
// may become a commit between two of these reads, so that the recheck sees neither. That commit
// relied on a condemned blob and has set its mark live, and remove leaves the blob alone.
func (cy *cycle) recheck(ctx context.Context, suspects []suspect) error {
	if err := cy.lookAgain(ctx); err != nil {
		return err
	}
	used, err := cy.used(ctx, suspects)
	if err != nil {
		return err
	}
	unused, err := cy.reviveUsed(ctx, suspects, used)
	if err != nil {
		return err
	}
	return cy.remove(ctx, unused)
}

// lookAgain brings the index up to date with all sessions that have changed until now.
// Meanwhile it reports the phase "sessions"; then the phase before goes on.
func (cy *cycle) lookAgain(ctx context.Context) error {
	phase, done := cy.phase, cy.phaseDone
	cy.enter("sessions")
	cy.rechecking = true
	err := cy.changes(ctx, uint64(cy.began.UnixNano()))
	cy.rechecking = false
	cy.phase, cy.phaseDone = phase, done
	return err
}

// used returns which suspects have edges or are pinned by uploads. It counts the edges by a
// scan and reads their recorded number, and these have to agree: damage can make either of them look like
// no edges.
func (cy *cycle) used(ctx context.Context, suspects []suspect) (map[keys.Hash]bool, error) {
	used := map[keys.Hash]bool{}
	for _, s := range suspects {
		used[s.hash] = false
	}
	err := cy.each(ctx, cy.space.All(keys.Upload), "upload", func(e entry) error {
		h := keys.Hash(e.fields[16:])
		if _, is := used[h]; is {
			used[h] = true
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	counts, err := rows(ctx, cy, suspects, func(s suspect) []byte { return cy.space.Count(s.hash) })
	if err != nil {
		return nil, err
	}
	for i, s := range suspects {
		count, err := decodeCount(counts[i][0].Key, counts[i][0].Value)
		if err != nil {
			return nil, err
		}
		edges, err := cy.edgesOf(ctx, s.hash)
		if err != nil {
			return nil, err
		}
		if edges != count {
			return nil, codec.Corrupt(errDisagree, "%d edges of the blob at %x, which are counted as %d", edges, s.hash, count)
		}
		used[s.hash] = used[s.hash] || count > 0
	}
	return used, nil
}

// reviveUsed revives the suspects that are used and takes them off the list of candidates. It
// returns the others.
func (cy *cycle) reviveUsed(ctx context.Context, suspects []suspect, used map[keys.Hash]bool) (unused []suspect, err error) {
	w := newWriter(cy.applyRevival)
	for _, s := range suspects {
		if !used[s.hash] {
			unused = append(unused, s)
			continue
		}
		cy.Revived++
		if err := cy.revive(w.batch, s.hash, s.record); err != nil {
			return nil, err
		}
		w.Delete(cy.space.Candidate(s.hash))
		if err := w.flushMany(ctx); err != nil {
			return nil, err
		}
	}
	return unused, w.flush(ctx)
}

// applyRevival applies a batch that revives suspects. If a commit has revived one of them
// already, all of them stay candidates, and the sweep comes to them again.
func (cy *cycle) applyRevival(ctx context.Context, b *batch) error {
	err := cy.apply(ctx, b)
	if errors.Is(err, engine.ErrConflict) {
		return nil
	}
	return err
}

// remove deletes suspects. It leaves out those whose marks have changed since they were
// condemned: a commit relies on them. They stay candidates, and the sweep, which begins at the
// first candidate again, comes to them again.
func (cy *cycle) remove(ctx context.Context, suspects []suspect) error {
	for len(suspects) > 0 {
		n, err := cy.removeSome(ctx, suspects)
		switch {
		case err == nil:
			suspects = suspects[n:]
			continue
		case !errors.Is(err, engine.ErrConflict):
			return err
		}
		changed := string(conflictKey(err))
		i := slices.IndexFunc(suspects, func(s suspect) bool { return string(cy.space.Mark(s.hash)) == changed })
		if i < 0 {
			return err
		}
		cy.Revived++
		suspects = slices.Delete(suspects, i, i+1)
	}
	return nil
}

// removeSome deletes the first suspects in one batch, and returns how many. The items of lists
// among them lose their edges in the same batch, and become candidates if these were the last.
func (cy *cycle) removeSome(ctx context.Context, suspects []suspect) (n int, err error) {
	b, t := &batch{}, newTally()
	bytes := int64(0)
	for n < len(suspects) && b.Ops() < batchOps {
		s := suspects[n]
		n++
		bytes += s.mark.Bytes
		cy.removeBlob(b, s)
		if !s.mark.List {
			continue
		}
		if err := cy.unlinkItems(ctx, b, t, s.hash); err != nil {
			return 0, err
		}
	}
	cy.setCounts(b, t, nil)
	if err := cy.apply(ctx, b); err != nil {
		return 0, err
	}
	cy.Deleted += n
	cy.Bytes += bytes
	return n, nil
}

// removeBlob makes b delete a suspect: its bytes, its mark as the cycle condemned it, which b
// guards, and its place in the list of candidates.
func (cy *cycle) removeBlob(b *batch, s suspect) {
	key := cy.space.Mark(s.hash)
	b.Guard(key, s.record)
	b.Delete(key)
	for i := range s.mark.Parts {
		b.Delete(cy.space.Blob(s.hash, i))
	}
	b.Delete(cy.space.Candidate(s.hash))
}

// unlinkItems makes b delete the edges of a list's items to the list, and counts them in t. An
// item that has no edge to the list loses none.
func (cy *cycle) unlinkItems(ctx context.Context, b *batch, t *tally, list keys.Hash) error {
	items, err := cy.blobs.ItemsOf(ctx, list)
	if err != nil {
		return err
	}
	recs, err := rows(ctx, cy, items, func(item keys.Hash) []byte { return cy.space.Edge(item, byList, list) }, cy.space.Count)
	if err != nil {
		return err
	}
	seen := map[keys.Hash]bool{}
	for i, item := range items {
		edge, count := recs[i][0], recs[i][1]
		if seen[item] || edge.Value == nil {
			continue
		}
		seen[item] = true
		if err := t.read(item, count); err != nil {
			return err
		}
		if t.now[item] == 0 {
			return codec.Corrupt(errDisagree, "number of edges of the blob at %x", item)
		}
		t.change(b, item, edge, nil)
	}
	return nil
}
