// An erasure has four steps. First it reads which incarnations and blobs to remove. Then it
// calls the function that the caller passed to delete the session, or tombstone the nodes, and
// notes what is erased, for backups. Then it calls the one that vacuums. Finally it looks for
// content that is still stored. Content is rightly still there for two reasons:
//
//   - A fork, or the session that was forked, still shows the content.
//   - Another session, or an upload, has equal bytes.
//
// If there is no such reason, the erasure is incomplete, and the error says which session or
// node has records or content left.

package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/feed"
	"github.com/turnstonedb/turnstone/internal/history"
)

// A Receipt says which content is still stored after an erasure.
type Receipt struct {
	Vacuum      *VacuumReport // What the vacuum did. The caller sets it.
	HeldBy      []string      // The ids of the sessions that still show erased content, in order.
	Gone        int           // The blobs that are not stored any more.
	Shared      int           // The blobs that are stored because other sessions refer to them.
	SharedBytes int64         // The size of the shared blobs as they are stored.
	SharedBy    []string      // The ids of the sessions that refer to shared blobs, in order.
	Uploads     int           // The blobs that an upload keeps.
}

// An Eraser is a store to erase from.
type Eraser struct {
	history.Store
	Collector *Collector
	Now       func() time.Time
}

// Session erases a session and, if cascade is set, its children and theirs. remove deletes the incarnation, cascades
// likewise, and returns what it has deleted. vacuum returns the sessions that it could not finish. After remove has
// succeeded, every error matches history.ErrIncomplete.
func (s Eraser) Session(ctx context.Context, id string, cascade bool, remove func(context.Context, head.Incarnation) ([]head.Incarnation, error), vacuum func(context.Context) ([]head.Incarnation, error)) (*Receipt, error) {
	incs, err := s.family(ctx, id, cascade)
	if errors.Is(err, history.ErrSessionNotFound) { // The id may be forgotten, and stand in the feed.
		err = cmp.Or(feed.Forget(ctx, s.Store, feed.Erased{IDs: []string{id}}, s.Now()), err)
	}
	if err != nil {
		return nil, err
	}
	blobs, err := s.blobsOf(ctx, incs)
	if err != nil {
		return nil, err
	}
	// Vacuum removes the entries that lead to flattened forks.
	related, err := s.withForks(ctx, incs)
	if err != nil {
		return nil, err
	}
	firsts, err := s.firstNodes(ctx, incs)
	if err != nil {
		return nil, err
	}
	erased, err := s.idsOf(ctx, id, incs)
	if err != nil {
		return nil, err
	}
	notes, err := s.notesOf(ctx, incs)
	if err != nil {
		return nil, err
	}
	deleted, err := remove(ctx, incs[0])
	if err != nil {
		return nil, err
	}
	removed := history.Change{Partly: true}
	more, err := s.notesOf(ctx, slices.DeleteFunc(slices.Clone(deleted), func(inc head.Incarnation) bool { return slices.Contains(incs, inc) }))
	if err == nil {
		err = s.note(ctx, append(notes, more...))
	}
	if err != nil {
		return nil, removed.Result(err)
	}
	erased.Incarnations = append(erased.Incarnations, deleted...)
	if err := feed.Forget(ctx, s.Store, erased, s.Now()); err != nil {
		return nil, removed.Result(err)
	}
	unfinished, err := vacuum(ctx)
	if err != nil {
		return nil, removed.Result(err)
	}
	shares := func(l history.Layer) bool { return slices.Contains(incs, l.Inc) && l.Last > 0 }
	r, err := s.receipt(ctx, related, blobs, func(fork *history.Session) (bool, error) {
		if slices.ContainsFunc(fork.Layers(^head.Revision(0)), shares) {
			return true, nil
		}
		return copies(ctx, fork, firsts)
	})
	if err == nil && len(r.HeldBy) == 0 {
		err = s.checkRemoved(ctx, id, incs, unfinished)
	}
	return r, removed.Result(err)
}

// notesOf returns the keys of the records that sessions are erased.
func (s Eraser) notesOf(ctx context.Context, incs []head.Incarnation) (out [][]byte, _ error) {
	for _, inc := range incs {
		origin, err := s.Origin(ctx, inc)
		if err != nil {
			return nil, err
		}
		out = append(out, s.Space.Erased(inc, head.Genesis(inc, origin), graph.ID{}))
	}
	return out, nil
}

// note stores records of an erasure, so that what was erased does not come back with a backup.
func (s Eraser) note(ctx context.Context, notes [][]byte) error {
	const together = 1000 // records of a batch
	at := s.Now()
	for some := range slices.Chunk(notes, together) {
		b := &engine.Batch{Reclaim: true}
		for _, key := range some {
			b.Set(key, head.EncodeErased(key, at))
		}
		if err := history.Settle(ctx, s.Engine, func(c *history.Change) error { return c.Apply(ctx, b) }); err != nil {
			return err
		}
	}
	return nil
}

// idsOf returns the incarnations with the ids that they have, and that of the erased session, as it may be deleted
// already.
func (s Eraser) idsOf(ctx context.Context, id string, incs []head.Incarnation) (feed.Erased, error) {
	out := feed.Erased{Incarnations: slices.Clone(incs), IDs: []string{id}}
	abouts, err := s.AboutsOf(ctx, incs)
	for _, about := range abouts {
		out.IDs = append(out.IDs, about.ID)
	}
	return out, err
}

// checkRemoved fails if one of the incarnations still has commits or nodes, or if vacuum could
// not finish it. No session shows their content.
func (s Eraser) checkRemoved(ctx context.Context, id string, incs, unfinished []head.Incarnation) error {
	for _, inc := range incs {
		life, err := s.Life(ctx, inc)
		if err != nil {
			return err
		}
		if life != nil && (life.Floor > 1 || slices.Contains(unfinished, inc)) {
			return fmt.Errorf("records of the deleted session %q are left", id)
		}
	}
	return nil
}

// Nodes erases nodes of a session. remove tombstones them. After remove has succeeded, every
// error matches history.ErrIncomplete.
func (s Eraser) Nodes(ctx context.Context, of *history.Session, ids []graph.ID, remove, vacuum func(context.Context) error) (*Receipt, error) {
	blobs, owners, err := s.blobsOfNodes(ctx, of, ids)
	if err != nil {
		return nil, err
	}
	if err := remove(ctx); err != nil {
		return nil, err
	}
	removed := history.Change{Partly: true}
	genesis := head.Genesis(of.Inc, of.Origin)
	notes := make([][]byte, len(ids))
	for i, id := range ids {
		notes[i] = s.Space.Erased(of.Inc, genesis, id)
	}
	if err := s.note(ctx, notes); err != nil {
		return nil, removed.Result(err)
	}
	if err := vacuum(ctx); err != nil {
		return nil, removed.Result(err)
	}
	r, err := s.receipt(ctx, owners, blobs, func(other *history.Session) (bool, error) { return showsAny(ctx, other, ids) })
	if err == nil && len(r.HeldBy) == 0 {
		err = checkErased(ctx, of, ids)
	}
	return r, removed.Result(err)
}

// showsAny reports whether a session shows one of the nodes.
func showsAny(ctx context.Context, s *history.Session, ids []graph.ID) (bool, error) {
	for _, id := range ids {
		if shown, err := s.Shows(ctx, id); shown || err != nil {
			return shown, err
		}
	}
	return false, nil
}

// blobsOfNodes returns the blobs that nodes of a session refer to, and the incarnations
// that added the nodes or have copies of them for the session.
func (s Eraser) blobsOfNodes(ctx context.Context, of *history.Session, ids []graph.ID) (blobs []blob.ID, owners []head.Incarnation, err error) {
	for _, id := range ids {
		n, at, err := of.NodeNow(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		blobs = append(blobs, n.Blobs()...)
		all, err := s.owners(ctx, &of.History, at.Layer.Inc, id)
		if err != nil {
			return nil, nil, err
		}
		for _, inc := range all {
			if !slices.Contains(owners, inc) {
				owners = append(owners, inc)
			}
		}
	}
	return blobs, owners, nil
}

// checkErased fails if one of the nodes still has its content.
func checkErased(ctx context.Context, of *history.Session, ids []graph.ID) error {
	for _, id := range ids {
		n, _, err := of.NodeNow(ctx, id)
		if err != nil {
			return err
		}
		if !n.Erased {
			return fmt.Errorf("the content of node %s is left", id)
		}
	}
	return nil
}
