package genkit

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/firebase/genkit/go/ai/exp"
	"github.com/firebase/genkit/go/ai/exp/localstore"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
)

// Bring brings the snapshots that a localstore.FileSessionStore has under a prefix, which is "global" if the store has no
// such option. They keep their ids and times. A snapshot whose status or state has changed since it was brought is brought
// again. One that somebody has saved here stays as it is here; if the one of the files is later, Different names it. Bring
// takes what Options.MaxChain leaves when the snapshots are saved in the order of their times. It only reads the files.
// Different also names those that Bring can't read, and those that the store can't keep.
func (s *Store[State]) Bring(ctx context.Context, dir, prefix string, o adapter.BringOptions) (*adapter.Brought, error) {
	folder := filepath.Join(dir, filepath.FromSlash(prefix))
	if _, err := os.Stat(folder); err != nil { // The store of files would make it.
		return nil, fmt.Errorf("genkit: %w", err)
	}
	files, err := localstore.NewFileSessionStore[State](dir, localstore.WithSnapshotPathPrefix(func(context.Context) string { return prefix }))
	if err != nil {
		return nil, fmt.Errorf("genkit: %w", err)
	}
	names, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("genkit: %w", err)
	}
	var all []*exp.SessionSnapshot[State]
	out := &adapter.Brought{}
	for _, n := range names {
		id, is := strings.CutSuffix(n.Name(), ".json")
		if !is || n.IsDir() || strings.HasPrefix(id, ".") {
			continue
		}
		of, err := files.GetSnapshot(ctx, id)
		if err == nil && of == nil {
			continue // Somebody has deleted it.
		}
		if err == nil && (of.SnapshotID != id || of.SessionID == "") {
			err = fmt.Errorf("it is of snapshot %q in session %q", of.SnapshotID, of.SessionID)
		}
		if err != nil { // for example of a damaged file
			out.Found++
			out.Different = append(out.Different, fmt.Sprintf("%s: %v", id, err))
			continue
		}
		all = append(all, of)
	}
	sortByTime(all)
	if s.o.MaxChain > 0 {
		kept, err := s.chains(ctx, all)
		if err != nil {
			return out, err
		}
		all = slices.DeleteFunc(all, func(of *exp.SessionSnapshot[State]) bool { return kept[of.SnapshotID] == nil })
	}
	out.Found += len(all)
	for _, of := range all {
		err := s.bring(ctx, of, o, out)
		switch {
		case adapter.Refused(err):
			out.Different = append(out.Different, fmt.Sprintf("%s: %v", of.SnapshotID, err))
		case err != nil:
			return out, fmt.Errorf("genkit: snapshot %q: %w", of.SnapshotID, err)
		}
	}
	return out, nil
}

// chains returns the snapshots that MaxChain leaves of those of files and those that are stored already, when all are saved in
// the order of their times.
func (s *Store[State]) chains(ctx context.Context, files []*exp.SessionSnapshot[State]) (map[string]*exp.SessionSnapshot[State], error) {
	all, sessions := slices.Clone(files), map[string]bool{}
	for _, of := range files {
		sessions[of.SessionID] = true
	}
	root, err := s.root(ctx)
	if err != nil {
		return nil, err
	}
	for id := range sessions {
		h, err := s.store.Session(ctx, root+"/"+id)
		var found []turnstone.Record
		if err == nil {
			found, _, err = adapter.Records(ctx, h, root+"/")
		}
		if err != nil && !adapter.Gone(err) {
			return nil, err
		}
		for _, r := range found {
			var of row[State]
			if err := of.read(r); err != nil {
				return nil, err
			}
			all = append(all, &of.Snapshot)
		}
	}
	sortByTime(all)
	left := map[string]*exp.SessionSnapshot[State]{}
	for _, of := range all {
		left[of.SnapshotID] = of
		met := map[string]bool{of.SnapshotID: true}
		for n, id := 1, of.ParentID; left[id] != nil && left[id].SessionID == of.SessionID && !met[id]; n++ {
			parent := left[id].ParentID
			if n >= s.o.MaxChain {
				delete(left, id)
			}
			met[id], id = true, parent
		}
	}
	return left, nil
}

// sortByTime sorts snapshots so that each comes after its parent, of which it stores the difference.
func sortByTime[State any](all []*exp.SessionSnapshot[State]) {
	slices.SortFunc(all, func(a, b *exp.SessionSnapshot[State]) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.SnapshotID, b.SnapshotID))
	})
}

func (s *Store[State]) bring(ctx context.Context, of *exp.SessionSnapshot[State], o adapter.BringOptions, out *adapter.Brought) error {
	want, err := adapter.JSON(of)
	if err != nil {
		return err
	}
	stateless := *of
	stateless.State = nil
	pruned, err := adapter.JSON(&stateless)
	if err != nil {
		return err
	}
	var unchanged, different bool // as the last call of the function finds it
	_, err = s.change(ctx, of.SnapshotID, true, func(existing *exp.SessionSnapshot[State], here *stored[State]) (*exp.SessionSnapshot[State], error) {
		unchanged, different = false, false
		if existing != nil {
			has, err := adapter.JSON(existing)
			if err != nil {
				return nil, err
			}
			goesOn := !here.row.Brought && existing.UpdatedAt.After(of.UpdatedAt) // Somebody has saved it here.
			unchanged = bytes.Equal(has, want) || here.pruned && bytes.Equal(has, pruned) || goesOn
			different = !unchanged && !here.row.Brought
		}
		if unchanged || different || o.DryRun {
			return nil, nil
		}
		return of, nil
	})
	switch {
	case err != nil:
		return err
	case unchanged:
		out.Unchanged++
		return nil
	case different:
		out.Different = append(out.Different, of.SnapshotID)
		return nil
	}
	if out.Brought++; o.DryRun {
		return nil
	}
	got, err := s.GetSnapshot(ctx, of.SnapshotID)
	if err != nil {
		return err
	}
	if has, err := adapter.JSON(got); err != nil || !bytes.Equal(has, want) {
		out.Different = append(out.Different, of.SnapshotID)
	}
	return nil
}
