package search

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/push"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// A Report says what Sync did.
type Report struct {
	Sessions int  // that were looked at
	Added    int  // nodes
	Removed  int  // nodes
	All      bool // Every session was compared: the feed did not tell what has changed.
}

// many is how many nodes are added in a transaction, about.
const many = 20_000

// Sync brings the index to where the store is. With the feed on (Store.StartFeed) it reads what has changed, and else it
// asks where each session stands. If it removes anything, or adds much, it also rewrites the index, which takes some seconds
// for a million nodes. Several processes may call it at once.
func (x *Index) Sync(ctx context.Context, st *turnstone.Store) (*Report, error) {
	s := syncing{Index: x, st: st, report: &Report{}, shown: map[int64]int64{}}
	err := s.run(ctx)
	if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		err = failed(ctx, err)
	}
	if err != nil {
		return s.report, err
	}
	due, err := get(ctx, x.db, "purge") // also after a Sync that was cut off before it
	if err == nil && (due != "" || s.report.Added > many) {
		err = x.purge(ctx)
	}
	return s.report, err
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

// A row is what the index has of a session.
type row struct {
	number   int64
	id       string
	revision head.Revision
	rest     string
	whole    bool // Its inherited nodes are indexed with it: it has no parent.
}

func rowOf(ctx context.Context, q querier, incarnation string) (*row, error) {
	var r row
	err := q.QueryRowContext(ctx, "SELECT number, id, revision, rest, whole FROM sessions WHERE incarnation=?", incarnation).Scan(&r.number, &r.id, &r.revision, &r.rest, &r.whole)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return &r, err
}

// session brings one session up to date. It returns sessions that have to be looked at because this one is gone.
func (s *syncing) session(ctx context.Context, tx *writer, incarnation string) (orphans []string, err error) {
	s.report.Sessions++
	r, err := rowOf(ctx, tx, incarnation)
	if err != nil {
		return nil, err
	}
	found, err := s.st.SessionByIncarnation(ctx, incarnation)
	var info turnstone.Info
	var stands []turnstone.Standing
	if err == nil {
		if info, err = found.Info(ctx); err == nil {
			stands, err = s.st.Standings(ctx, turnstone.StandingQuery{ID: info.ID})
		}
	}
	gone := errors.Is(err, turnstone.ErrSessionNotFound) || errors.Is(err, turnstone.ErrSessionDeleted) || err == nil && (len(stands) == 0 || stands[0].Incarnation != incarnation)
	switch {
	case gone && r == nil:
		return nil, nil
	case gone:
		return s.gone(ctx, tx, r)
	case err != nil:
		return nil, err
	}
	next := row{id: info.ID, revision: info.Revision, rest: stands[0].Rest, whole: info.Parent == ""}
	if r == nil {
		r = &row{}
	} else if s.hidden != nil && !s.hidden[incarnation] {
		next.rest = r.rest // Should the feed end before it tells of a tombstone, it is not overlooked.
	}
	if next.number, err = s.describe(ctx, tx, incarnation, &info, &next); err != nil {
		return nil, err
	}
	hidden := r.number != 0 && r.rest != next.rest
	if s.hidden != nil {
		hidden = s.hidden[incarnation]
	}
	if hidden || r.number != 0 && next.whole != r.whole {
		return nil, s.reconcile(ctx, tx, found, &next)
	}
	if next.revision == r.revision && r.number != 0 {
		return nil, nil
	}
	return nil, s.more(ctx, tx, found, r.revision, &next)
}

// more indexes what the commits after a revision added.
func (s *syncing) more(ctx context.Context, tx *writer, found *turnstone.Session, after head.Revision, r *row) error {
	if after > 0 {
		want := 0
		for e, err := range found.Log(ctx, after) {
			if err != nil {
				return err
			}
			if e.Revision <= r.revision {
				want += e.Nodes
			}
		}
		state, err := found.Load(ctx, turnstone.Scope{After: after})
		if err != nil {
			return err
		}
		path := slices.DeleteFunc(state.Nodes, func(n turnstone.Node) bool { return n.Revision > r.revision })
		if len(path) == want {
			for i := range path {
				if err := s.add(ctx, tx, &path[i], r.number); err != nil {
					return err
				}
			}
			return nil
		}
	}
	var elsewhere map[graph.ID]bool
	if after == 0 && !r.whole {
		var err error
		if elsewhere, err = ancestral(ctx, tx, r.number); err != nil {
			return err
		}
	}
	for n, err := range found.Nodes(ctx, turnstone.Scope{Full: true}) { // There are other branches, or it is new.
		switch {
		case err != nil:
			return err
		case n.Inherited && (after > 0 || !r.whole && (elsewhere == nil || elsewhere[n.ID])), !n.Inherited && (n.Revision <= after || n.Revision > r.revision):
			continue // It is indexed already, or the next time, or with the parent.
		}
		if err := s.add(ctx, tx, &n, r.number); err != nil {
			return err
		}
	}
	return nil
}

// describe notes what a session is, and returns its number.
func (s *syncing) describe(ctx context.Context, tx *writer, incarnation string, i *turnstone.Info, r *row) (number int64, err error) {
	labels, err := json.Marshal(i.Labels)
	if err != nil {
		return 0, err
	}
	model := i.Model
	if model == "" && len(i.Usage) > 0 {
		model = i.Usage[0].Model
	}
	parent := int64(0) // not known
	if !r.whole {
		if err := tx.QueryRowContext(ctx, "SELECT number FROM sessions WHERE id=?", i.Parent).Scan(&parent); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return 0, err
		}
	}
	err = tx.QueryRowContext(ctx, `INSERT INTO sessions(incarnation, id, called, grp, project, model, agent, labels, updated, revision, rest, whole, parent, nodes) VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?)
		ON CONFLICT(incarnation) DO UPDATE SET id=excluded.id, called=excluded.called, grp=excluded.grp, project=excluded.project, model=excluded.model, agent=excluded.agent,
		labels=excluded.labels, updated=excluded.updated, revision=excluded.revision, rest=excluded.rest, whole=excluded.whole, parent=excluded.parent, nodes=excluded.nodes RETURNING number`,
		incarnation, i.ID, i.Name, i.Group, i.Cwd, model, s.o.Agent(i), string(labels), i.Updated.UnixNano(), int64(r.revision), r.rest, r.whole, parent, i.Nodes).Scan(&number)
	return number, err
}

// A writer adds and removes nodes in a transaction.
type writer struct {
	*sql.Tx
	node, words *sql.Stmt
}

func newWriter(ctx context.Context, tx *sql.Tx) (*writer, error) {
	node, err := tx.PrepareContext(ctx, "INSERT INTO nodes(session, node, own) VALUES(?,?,?)")
	if err != nil {
		return nil, err
	}
	words, err := tx.PrepareContext(ctx, "INSERT INTO words(rowid, text) VALUES(?,?)")
	return &writer{tx, node, words}, err
}

// add indexes a node.
func (s *syncing) add(ctx context.Context, tx *writer, n *turnstone.Node, session int64) error {
	made, err := tx.node.ExecContext(ctx, session, n.ID[:], !n.Inherited)
	if err != nil {
		return err
	}
	number, err := made.LastInsertId()
	if err != nil {
		return err
	}
	s.report.Added++
	if !n.Inherited {
		s.shown[session]++
	}
	_, err = tx.words.ExecContext(ctx, number, s.indexed(n, session))
	return err
}

// count notes how many of its own nodes the sessions of a transaction show.
func (s *syncing) count(ctx context.Context, tx *writer) error {
	for session, more := range s.shown {
		if _, err := tx.ExecContext(ctx, "UPDATE sessions SET shown=shown+? WHERE number=?", more, session); err != nil {
			return err
		}
	}
	clear(s.shown)
	return nil
}

// reconcile makes the index have the nodes that a session shows, and no others.
func (s *syncing) reconcile(ctx context.Context, tx *writer, found *turnstone.Session, r *row) error {
	has, err := nodesOf(ctx, tx, r.number)
	if err != nil {
		return err
	}
	for n, err := range found.Nodes(ctx, turnstone.Scope{Full: true}) {
		if err != nil {
			return err
		}
		if _, ok := has[n.ID]; ok {
			delete(has, n.ID)
			continue
		}
		if n.Inherited && !r.whole || n.Revision > r.revision && !n.Inherited {
			continue
		}
		if err := s.add(ctx, tx, &n, r.number); err != nil {
			return err
		}
	}
	if err := s.adopt(ctx, tx, r.number, slices.Collect(maps.Keys(has))); err != nil {
		return err
	}
	return s.remove(ctx, tx, slices.Collect(maps.Values(has)))
}

// families has the sessions that fork from one, and the forks of those. Of some the parent is not known.
const families = `WITH RECURSIVE below(number) AS (
	SELECT number FROM sessions WHERE parent=?1 OR parent=0 AND NOT whole
	UNION SELECT s.number FROM sessions s JOIN below ON s.parent=below.number) `

// adopt indexes nodes that a session shows no more with the forks that still show them.
func (s *syncing) adopt(ctx context.Context, tx *writer, session int64, ids []graph.ID) error {
	if len(ids) == 0 {
		return nil
	}
	forks, err := column(ctx, tx, families+"SELECT incarnation FROM sessions WHERE NOT whole AND number IN below", session)
	if err != nil {
		return err
	}
	for _, incarnation := range forks {
		found, err := s.st.SessionByIncarnation(ctx, incarnation)
		if errors.Is(err, turnstone.ErrSessionNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		r, err := rowOf(ctx, tx, incarnation)
		if err != nil {
			return err
		}
		has, err := nodesOf(ctx, tx, r.number)
		if err != nil {
			return err
		}
		for _, id := range ids {
			n, err := found.Node(ctx, id)
			switch _, there := has[id]; {
			case there, errors.Is(err, turnstone.ErrNodeNotFound), errors.Is(err, turnstone.ErrSessionDeleted):
				continue
			case err != nil:
				return err
			}
			if err := s.add(ctx, tx, &n, r.number); err != nil {
				return err
			}
		}
	}
	return nil
}

// ancestral returns the nodes that are indexed with the ancestors of a session, or nil if those show all that they have.
func ancestral(ctx context.Context, tx *writer, session int64) (map[graph.ID]bool, error) {
	const ancestors = "WITH RECURSIVE above(number) AS (SELECT parent FROM sessions WHERE number=? UNION SELECT s.parent FROM sessions s JOIN above ON s.number=above.number) "
	var hidden bool
	if err := tx.QueryRowContext(ctx, ancestors+"SELECT EXISTS(SELECT 1 FROM sessions WHERE number IN above AND shown<nodes)", session).Scan(&hidden); err != nil || !hidden {
		return nil, err
	}
	rows, err := tx.QueryContext(ctx, ancestors+"SELECT node FROM nodes WHERE session IN above", session)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := map[graph.ID]bool{}
	for rows.Next() {
		var node []byte
		if err := rows.Scan(&node); err != nil {
			return nil, err
		}
		all[graph.ID(node)] = true
	}
	return all, rows.Err()
}

// column returns a column of text.
func column(ctx context.Context, q querier, query string, args ...any) (all []string, err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var one string
		if err := rows.Scan(&one); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}

// nodesOf returns the numbers of the nodes of a session.
func nodesOf(ctx context.Context, q querier, session int64) (map[graph.ID]int64, error) {
	rows, err := q.QueryContext(ctx, "SELECT n.number, n.node FROM words JOIN nodes n ON n.number=words.rowid WHERE words MATCH ?", `"`+sessionToken(session)+`"`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := map[graph.ID]int64{}
	for rows.Next() {
		var number int64
		var node []byte
		if err := rows.Scan(&number, &node); err != nil {
			return nil, err
		}
		all[graph.ID(node)] = number
	}
	return all, rows.Err()
}

// remove removes nodes by their numbers.
func (s *syncing) remove(ctx context.Context, tx *writer, numbers []int64) error {
	if len(numbers) == 0 {
		return nil
	}
	for _, n := range numbers {
		if _, err := tx.ExecContext(ctx, "DELETE FROM words WHERE rowid=?", n); err != nil {
			return err
		}
		var session, own int64
		if err := tx.QueryRowContext(ctx, "DELETE FROM nodes WHERE number=? RETURNING session, own", n).Scan(&session, &own); err != nil {
			return err
		}
		s.shown[session] -= own
	}
	s.report.Removed += len(numbers)
	return set(ctx, tx.Tx, "purge", "due")
}

// gone removes a session, and returns those that have no parent any more: what they inherit is indexed with them now.
func (s *syncing) gone(ctx context.Context, tx *writer, r *row) (orphans []string, err error) {
	has, err := nodesOf(ctx, tx, r.number)
	if err != nil {
		return nil, err
	}
	if err := s.remove(ctx, tx, slices.Collect(maps.Values(has))); err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM sessions WHERE number=?", r.number); err != nil {
		return nil, err
	}
	if err := set(ctx, tx.Tx, "purge", "due"); err != nil { // Its name goes as well.
		return nil, err
	}
	return column(ctx, tx, "SELECT incarnation FROM sessions WHERE NOT whole AND parent IN (0, ?)", r.number)
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

// Follow keeps the index up to date until ctx ends, and returns its error. The store's feed must be on: otherwise it fails
// with turnstone.ErrFeedOff.
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
