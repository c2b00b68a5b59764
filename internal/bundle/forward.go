package bundle

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/session"
)

// This file brings a session that exists forward: package commit has the batches.

// step adds a turn to what the next batch brings a session forward by.
func (a *applier) step(ctx context.Context, t *history.Turn, before *head.Base) error {
	s := commit.Step{Turn: *t, Versions: a.versions[t.Revision]}
	delete(a.versions, t.Revision)
	size := history.SizeOf(t)
	for _, p := range s.Versions {
		size += len(p.Value)
	}
	for i := range t.Pack.Nodes {
		n := &t.Pack.Nodes[i]
		s.Blobs = append(s.Blobs, n.Blobs()...)
		if stone, hidden := a.stones[[8]byte(n.ID[:])]; hidden {
			s.Stones = append(s.Stones, stone)
			delete(a.stones, stone.ID)
		}
	}
	for _, k := range a.kept() {
		if k.Revision == t.Revision {
			s.Kept = append(s.Kept, k)
		}
	}
	for _, p := range t.Parts {
		if p.Set == t.Revision && !head.IsDelta(p) && a.stored(p) {
			s.Blobs = append(s.Blobs, p.Blob)
		}
	}
	size += 200*len(s.Blobs) + 100*len(s.Stones) + 400*len(s.Kept)
	// Between two batches the session stands at a revision whose checkpoint is there.
	if len(a.steps) > 0 && a.size+size > stockBytes && !a.lacks(t.Revision-1) {
		if err := a.flush(ctx); err != nil {
			return err
		}
	}
	for _, id := range append(namedBy(t, before), lastOf(t, before)...) {
		if !a.added[id] {
			s.Older = append(s.Older, id)
		}
	}
	for i := range t.Pack.Nodes {
		a.added[t.Pack.Nodes[i].ID] = true
	}
	a.steps, a.size = append(a.steps, s), a.size+size
	return nil
}

// lastOf returns the last node before a turn, if the turn goes on from it and it is not the leaf.
func lastOf(t *history.Turn, before *head.Base) []graph.ID {
	names := t.Leaf == before.Last || slices.ContainsFunc(t.Pack.Nodes, func(n graph.Node) bool { return n.Parent == before.Last })
	if !names || before.Last == before.Leaf || before.Last.IsZero() {
		return nil
	}
	return []graph.ID{before.Last}
}

// lacks reports whether the checkpoint of a revision need not be in the bundle: it was pruned there.
func (a *applier) lacks(r head.Revision) bool {
	return !a.in.branches && r > a.in.here.Revision && r < a.in.floor
}

// kept are the names of revisions of the bundle, which are not those of a branch.
func (a *applier) kept() []head.Kept {
	if a.in.branches {
		return nil
	}
	return a.in.kept
}

// stored reports whether the content of a part, which is a blob, is at hand: that of a pruned revision need not be.
func (a *applier) stored(p head.Part) bool {
	_, pinned := a.stock.pinned[a.Space.BlobHash(p.Blob)]
	return pinned
}

// flush brings a session forward.
func (a *applier) flush(ctx context.Context) error {
	if len(a.steps) == 0 {
		return nil
	}
	floor := head.Revision(0)
	if a.lacks(a.steps[0].Turn.Revision) {
		floor = a.in.floor
		for _, k := range a.kept() { // before they are pruned
			if k.Revision <= a.in.here.Revision {
				a.steps[0].Kept = append(a.steps[0].Kept, k)
			}
		}
	}
	next, err := a.Forward(ctx, a.in.target, a.head, a.steps, floor)
	var limit *history.LimitError
	if errors.As(err, &limit) && floor > 0 {
		err = fmt.Errorf("%w: %d to %d, which do not fit one batch (%v); delete the session here, or unbundle all of it under another id",
			history.ErrRevisionPruned, a.steps[0].Turn.Revision, floor-1, limit)
	}
	if err != nil {
		return err
	}
	a.head, a.steps, a.size = next, nil, 0
	a.altered(true)
	clear(a.added)
	return nil
}

// merge saves the metadata that are newer in the bundle than here.
func (a *applier) merge(ctx context.Context) error {
	newer, err := a.TakeMetadata(ctx, a.in.target, a.in.about)
	a.altered(newer)
	return err
}

// mergeRecords sets the records that are newer in the bundle than here.
func (a *applier) mergeRecords(ctx context.Context, records []*session.Record) error {
	s := a.in.target
	for len(records) > 0 {
		n, size := 0, 0
		for n < len(records) && n < 100 && (n == 0 || size+len(records[n].Value) <= stockBytes) {
			size += len(records[n].Value) + len(records[n].Key)
			n++
		}
		some := records[:n]
		records = records[n:]
		names := make([]string, len(some))
		for i, r := range some {
			names[i] = r.Key
		}
		vs, err := a.Engine.Get(ctx, session.RecordKeys(s, names)...)
		if err != nil {
			return err
		}
		here, err := session.DecodeRecords(s, names, vs)
		if err != nil {
			return err
		}
		var changes []commit.RecordChange
		for _, r := range some {
			old := here[r.Key]
			switch {
			case old == nil:
				changes = append(changes, commit.RecordChange{Key: r.Key, Value: r.Value, Expect: commit.Expectation{Absent: true}, As: r})
			case r.Time.After(old.Time), a.options.Exact && r.Version != old.Version:
				changes = append(changes, commit.RecordChange{Key: r.Key, Value: r.Value, Expect: commit.Expectation{Version: old.Version}, As: r})
			}
		}
		if len(changes) == 0 {
			continue
		}
		if _, _, err := a.Commit(ctx, commit.Participant{Session: s, Request: &commit.Request{RecordsOnly: true, Records: changes}}); err != nil {
			return err
		}
		a.altered(true)
	}
	return nil
}

// dropRest removes what the bundle does not have of a session: records, and names of kept revisions.
func (a *applier) dropRest(ctx context.Context) error {
	s := a.in.target
	life, err := a.Life(ctx, s.Inc)
	if err != nil {
		return err
	}
	if life == nil {
		return fmt.Errorf("%w: %q", history.ErrSessionDeleted, s.ID)
	}
	kept, err := head.ReadKept(ctx, a.Engine, a.Space, s.Inc, life)
	if err != nil {
		return err
	}
	for _, k := range kept {
		if !slices.Contains(a.in.kept, k) {
			if err := a.Release(ctx, s, k.Name); err != nil {
				return err
			}
			a.altered(true)
		}
	}
	var changes []commit.RecordChange
	for p, err := range a.Engine.Scan(ctx, a.Space.Of(keys.Record, s.Inc)) {
		if err != nil {
			return err
		}
		_, fields, _ := a.Space.Fields(p.Key)
		if _, text := keys.RecordFields(fields); !a.records[text] {
			changes = append(changes, commit.RecordChange{Key: text, Action: commit.DeleteRecord})
		}
	}
	for some := range slices.Chunk(changes, 100) {
		if _, _, err := a.Commit(ctx, commit.Participant{Session: s, Request: &commit.Request{RecordsOnly: true, Records: some}}); err != nil {
			return err
		}
		a.altered(true)
	}
	return nil
}
