package search

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

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

// ancestral returns the nodes that are indexed with the ancestors of a session, or nil if those show all that they
// have.
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
		for _, from := range []string{"words WHERE rowid=?", "vectors WHERE number=?"} {
			if _, err := tx.ExecContext(ctx, "DELETE FROM "+from, n); err != nil {
				return err
			}
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
