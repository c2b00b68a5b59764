package search

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/push"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// A Report says what Sync did.
type Report struct {
	Sessions int  // that were looked at
	Added    int  // nodes
	Removed  int  // nodes
	Embedded int  // nodes of which it has made vectors
	All      bool // Every session was compared: the feed did not tell what has changed.
}

// many is how many nodes are added in a transaction, about.
const many = 20_000

// Sync brings the index to where the store is. With the feed on (Store.StartFeed) it reads what has changed, and else
// it asks where each session stands. If it removes anything, or adds much, it also rewrites the index, which takes some
// seconds for a million nodes. An error of the Embedding ends it when the words are up to date. Several processes may call
// it at once.
func (x *Index) Sync(ctx context.Context, st *turnstone.Store) (*Report, error) {
	s := syncing{Index: x, st: st, report: &Report{}, shown: map[int64]int64{}}
	err := s.run(ctx)
	if err == nil {
		err = x.purgeIfDue(ctx, s.report.Added > many) // before what may fail for long
	}
	if err == nil && x.o.Embedding != nil {
		if err = x.embed(ctx, st, s.report); err == nil {
			err = x.purgeIfDue(ctx, false)
		}
	}
	if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		err = failed(ctx, err)
	}
	return s.report, err
}

// purgeIfDue calls purge if something was removed since the last one, also by a Sync that was cut off, or if it is time.
func (x *Index) purgeIfDue(ctx context.Context, time bool) error {
	due, err := get(ctx, x.db, "purge")
	if err != nil {
		return failed(ctx, err)
	}
	if due == "" && !time {
		return nil
	}
	return x.purge(ctx)
}

type syncing struct {
	*Index
	st     *turnstone.Store
	report *Report
	shown  map[int64]int64 // by the numbers of sessions: how many more of their own nodes they show
	hidden map[string]bool // incarnations whose tombstones may have changed, if the feed tells
}

func (s *syncing) run(ctx context.Context) error {
	var cursor, switches string
	if err := s.write(ctx, func(tx *sql.Tx) (err error) {
		of, err := get(ctx, tx, "store")
		switch {
		case err != nil:
			return err
		case of == "":
			err = set(ctx, tx, "store", s.st.ID())
		case of != s.st.ID():
			err = fmt.Errorf("%w: %s, want %s", ErrOther, of, s.st.ID())
		}
		if err != nil {
			return err
		}
		if cursor, err = get(ctx, tx, "cursor"); err == nil {
			switches, err = get(ctx, tx, "switches")
		}
		return err
	}); err != nil {
		return err
	}
	feed, err := s.st.Feed(ctx)
	on := err == nil
	if err != nil && !errors.Is(err, turnstone.ErrFeedOff) {
		return err
	}
	changed, told := []string(nil), false
	if on && cursor != "" && switches == fmt.Sprint(feed.Switches) {
		if changed, told, err = s.told(ctx, turnstone.Cursor(cursor), feed.End); err != nil {
			return err
		}
	}
	if told {
		err = s.each(ctx, changed)
	} else {
		s.report.All = true
		err = s.compare(ctx)
	}
	if err != nil || !on {
		return err
	}
	return s.write(ctx, func(tx *sql.Tx) error {
		return errors.Join(set(ctx, tx, "cursor", string(feed.End)), set(ctx, tx, "switches", fmt.Sprint(feed.Switches)))
	})
}

// told returns the sessions that have changed between two cursors. ok is false if the feed does not tell any more.
func (s *syncing) told(ctx context.Context, after, end turnstone.Cursor) (changed []string, ok bool, err error) {
	s.hidden = map[string]bool{}
	if after == end {
		return nil, true, nil
	}
	seen := map[string]bool{}
	for c, err := range s.st.Watch(ctx, after) {
		switch {
		case errors.Is(err, turnstone.ErrCursorExpired), errors.Is(err, turnstone.ErrFeedOff), errors.Is(err, turnstone.ErrInvalid):
			s.hidden = nil
			return nil, false, nil
		case err != nil:
			return nil, false, err
		}
		if c.Kind != turnstone.ChangeRecord && !seen[c.Incarnation] {
			seen[c.Incarnation] = true
			changed = append(changed, c.Incarnation)
		}
		if c.Kind == turnstone.ChangeTombstoned {
			s.hidden[c.Incarnation] = true
		}
		if c.Cursor == end {
			break
		}
	}
	return changed, true, nil
}

// compare brings all sessions up to date that don't stand where the index has them, and removes those that are gone.
func (s *syncing) compare(ctx context.Context) error {
	ids, err := push.List(ctx, s.st, "", time.Time{})
	if err != nil {
		return err
	}
	there := map[string]bool{}
	var changed []string
	for some := range slices.Chunk(ids, 500) {
		queries := make([]turnstone.StandingQuery, len(some))
		for i, id := range some {
			queries[i].ID = id
		}
		found, err := s.st.Standings(ctx, queries...)
		if err != nil {
			return err
		}
		for _, f := range found {
			there[f.Incarnation] = true
			row, err := rowOf(ctx, s.db, f.Incarnation)
			if err != nil {
				return err
			}
			if row == nil || row.id != f.ID || row.revision != f.Revision || row.rest != f.Rest || row.whole != (f.Parent == "") {
				changed = append(changed, f.Incarnation)
			}
		}
	}
	known, err := column(ctx, s.db, "SELECT incarnation FROM sessions")
	if err != nil {
		return err
	}
	for _, incarnation := range known {
		if !there[incarnation] {
			changed = append(changed, incarnation)
		}
	}
	return s.each(ctx, changed)
}

// each brings sessions up to date, several in a transaction.
func (s *syncing) each(ctx context.Context, incarnations []string) error {
	for len(incarnations) > 0 {
		done := 0
		err := s.write(ctx, func(t *sql.Tx) error {
			clear(s.shown) // of a transaction that was given up
			tx, err := newWriter(ctx, t)
			if err != nil {
				return err
			}
			for before := s.report.Added; done < len(incarnations) && s.report.Added-before < many; done++ {
				orphans, err := s.session(ctx, tx, incarnations[done])
				if err != nil {
					return err
				}
				incarnations = append(incarnations, orphans...)
				if err := s.count(ctx, tx); err != nil { // before another session asks
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		incarnations = incarnations[done:]
	}
	return nil
}

// purge rewrites the index without what was removed, so that no file has a word of it.
func (x *Index) purge(ctx context.Context) error {
	if err := x.write(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO words(words) VALUES('optimize')")
		return err
	}); err != nil {
		return err
	}
	if _, err := x.db.ExecContext(ctx, "PRAGMA incremental_vacuum"); err != nil {
		return failed(ctx, err)
	}
	var busy, pages, done int
	if err := x.db.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &pages, &done); err != nil {
		return failed(ctx, err)
	}
	if busy != 0 {
		return nil // Somebody has read for a minute. The next Sync does it again.
	}
	return x.write(ctx, func(tx *sql.Tx) error { return set(ctx, tx, "purge", "") })
}

// Follow keeps the index up to date until ctx ends or Sync fails, and returns that error. The store's feed must be on: otherwise it
// fails with turnstone.ErrFeedOff.
func (x *Index) Follow(ctx context.Context, st *turnstone.Store) error {
	for {
		feed, err := st.Feed(ctx)
		if err != nil {
			return err
		}
		if _, err := x.Sync(ctx, st); err != nil {
			return err
		}
		for _, err := range st.Watch(ctx, feed.End) {
			if err != nil && !errors.Is(err, turnstone.ErrCursorExpired) {
				return err
			}
			break // Something has changed, or too much has.
		}
	}
}
