package turnstone

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/turnstonedb/turnstone/head"
)

// A LogEntry is one commit, as the log of its session tells of it.
type LogEntry struct {
	Revision Revision
	Commit   CommitID
	Time     time.Time
	Turn     string
	Leaf     NodeID  // where the leaf was then; it may be tombstoned now
	Nodes    int     // how many it added, tombstoned ones included
	Parts    []Part  // the checkpoint parts that it set
	Usage    []Usage // of this turn
	// Pruned: the state at this revision can't be read any more.
	Pruned bool
}

// Log yields the commits of the session after a revision up to the head, in
// their order, each verified to follow the one before. A fork's log is that of
// its own commits. The sequence ends with the first error.
func (s *Session) Log(ctx context.Context, after Revision) iter.Seq2[LogEntry, error] {
	return func(yield func(LogEntry, error) bool) {
		if _, err := s.usable(ctx); err != nil {
			yield(LogEntry{}, err)
			return
		}
		err := s.log(ctx, after, func(e LogEntry) bool { return yield(e, nil) })
		if err == nil || errors.Is(err, errEnough) {
			return
		}
		var ce *CorruptError
		if errors.As(err, &ce) { // or is it that vacuum removed it meanwhile?
			if _, _, gone := s.session.Head(ctx); errors.Is(gone, ErrSessionDeleted) {
				err = gone
			}
		}
		yield(LogEntry{}, err)
	}
}

// errEnough: the caller wants no more.
var errEnough = errors.New("enough")

func (s *Session) log(ctx context.Context, after Revision, yield func(LogEntry) bool) error {
	if err := checkRevision("log", "after", after); err != nil {
		return err
	}
	h, _, err := s.session.Head(ctx)
	if err != nil || after >= h.Revision {
		return err
	}
	l, err := s.session.Lifecycles(ctx)
	if err != nil {
		return err
	}
	kept, err := s.Kept(ctx)
	if err != nil {
		return err
	}
	stays := map[Revision]bool{}
	for _, k := range kept {
		stays[k.Revision] = true
	}
	return s.session.Commits(ctx, after, h.Revision, func(c *head.Commit, id CommitID) error {
		e := LogEntry{
			Revision: c.Revision, Commit: id, Time: c.Time, Turn: c.Turn, Leaf: c.Leaf, Nodes: c.Nodes, Usage: c.Usage,
			Pruned: c.Revision < l.Own.Floor && !stays[c.Revision],
		}
		for _, p := range c.Parts {
			if p.Set == c.Revision {
				e.Parts = append(e.Parts, p)
			}
		}
		if !yield(e) {
			return errEnough
		}
		return nil
	})
}
