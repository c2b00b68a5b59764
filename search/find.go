package search

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

const (
	// DefaultLimit is how many results Find returns at most, unless it is told otherwise.
	DefaultLimit = 20
	// MaxLimit is the greatest limit.
	MaxLimit = 1000
	// ranked is how many nodes that match are compared, the newest ones, to find the best.
	ranked = 40
	// maxNamed is how many sessions a query for FTS5 names at most. If there are more, their nodes are chosen
	// afterwards.
	maxNamed = 200
	// around is how many bytes of a passage stand before and behind what was found.
	around = 80
)

// A Result is a node that a query finds.
type Result struct {
	Session  string        `json:"session"` // its id now
	Name     string        `json:"name,omitempty"`
	Node     graph.ID      `json:"node"`
	Kind     string        `json:"kind"`
	Key      string        `json:"key,omitempty"`
	Revision head.Revision `json:"revision"`       // of the commit that added it
	Time     time.Time     `json:"time"`           // of that commit
	Aside    bool          `json:"aside,omitzero"` // it is not on the active path; see FindOptions.Branches
	Score    float64       `json:"score"`          // the greater the better
	Passage  string        `json:"passage"`        // a part of its text
	Marks    [][2]int      `json:"marks"`          // what was found in Passage: offsets of bytes
}

// FindOptions of Find.
type FindOptions struct {
	Limit int // how many results at most; default DefaultLimit
	// Newest orders by time. Otherwise the best come first, of the newest 40 that match, or as many as Limit.
	Newest bool
	// Branches says of each result whether it is on the active path. That reads the path of its session.
	Branches bool
	// Groups, if it is not nil, keeps sessions of these groups, and of the groups below them.
	Groups []string
}

// Find returns the nodes that a query finds. Each is read in the store first, so it is there. Sync before, to find what
// is new.
func (x *Index) Find(ctx context.Context, st *turnstone.Store, q *Query, o FindOptions) ([]Result, error) {
	limit, err := o.limit()
	if err != nil {
		return nil, err
	}
	o.Limit = limit
	f := finding{Index: x, st: st, q: q, o: o, sessions: map[int64]*source{}, seen: map[graph.ID]bool{}}
	if err := f.run(ctx); err != nil {
		return nil, err
	}
	if !o.Newest {
		slices.SortStableFunc(f.results, func(a, b Result) int { return cmp.Compare(b.Score, a.Score) })
	}
	f.results = f.results[:min(len(f.results), o.Limit)]
	if o.Branches {
		if err := f.branches(ctx); err != nil {
			return nil, err
		}
	}
	return f.results, nil
}

// limit returns how many results there are at most.
func (o *FindOptions) limit() (int, error) {
	if o.Limit < 0 || o.Limit > MaxLimit {
		return 0, &turnstone.LimitError{Limit: "search results", Have: int64(o.Limit), Max: MaxLimit}
	}
	return cmp.Or(o.Limit, DefaultLimit), nil
}

type finding struct {
	*Index
	st       *turnstone.Store
	q        *Query
	o        FindOptions
	sessions map[int64]*source
	seen     map[graph.ID]bool
	results  []Result
}

// A source is a session that has candidates. Its session is nil if it is gone.
type source struct {
	incarnation, called string
	session             *turnstone.Session
}

// run gathers results, the newest ones first.
func (f *finding) run(ctx context.Context) error {
	chosen, all, err := f.chosen(ctx)
	if err != nil || !all && len(chosen) == 0 {
		return err
	}
	named := chosen
	if all || len(chosen) > maxNamed {
		named = nil
	}
	enough := f.o.Limit
	if !f.o.Newest {
		enough = max(enough, ranked)
	}
	before := int64(1<<63 - 1)
	for size := min(enough, 200); len(f.results) < enough; size = min(4*size, 5000) {
		some, err := f.some(ctx, named, before, size)
		if err != nil {
			return err
		}
		for part := range slices.Chunk(some, 4*runtime.GOMAXPROCS(0)) {
			if err := f.read(ctx, part, func(c candidate) bool { return all || named != nil || sorted(chosen, c.session) }); err != nil {
				return err
			}
			if before = part[len(part)-1].number; len(f.results) >= enough {
				break
			}
		}
		if len(some) < size {
			break
		}
	}
	return nil
}

// chosen returns the numbers of the sessions that the fields of the query choose, in order. all is true if they choose
// every session.
func (f *finding) chosen(ctx context.Context) (numbers []int64, all bool, err error) {
	q := f.q
	if !slices.ContainsFunc(fields[1:], func(name string) bool { return q.fields[name] != nil }) && q.since.IsZero() && f.o.Groups == nil {
		return nil, true, nil
	}
	rows, err := f.db.QueryContext(ctx, "SELECT number, id, grp, project, model, agent, labels FROM sessions WHERE updated>=? ORDER BY number", earliest(q.since))
	if err != nil {
		return nil, false, failed(ctx, err)
	}
	defer rows.Close()
	for rows.Next() {
		var number int64
		var id, group, project, model, agent, labels string
		if err := rows.Scan(&number, &id, &group, &project, &model, &agent, &labels); err != nil {
			return nil, false, failed(ctx, err)
		}
		within := func(g string) bool { return inGroup(group, g) }
		is := func(name string, like func(value string) bool) bool {
			return q.fields[name] == nil || slices.ContainsFunc(q.fields[name], like)
		}
		if is("session", func(v string) bool { return v == id }) && is("group", within) && (f.o.Groups == nil || slices.ContainsFunc(f.o.Groups, within)) &&
			is("project", func(v string) bool { return strings.Contains(strings.ToLower(project), strings.ToLower(v)) }) &&
			is("model", func(v string) bool { return v == model }) && is("agent", func(v string) bool { return strings.EqualFold(v, agent) }) &&
			is("label", func(v string) bool { return hasLabel(labels, v) }) {
			numbers = append(numbers, number)
		}
	}
	return numbers, false, failed(ctx, rows.Err())
}

// inGroup reports whether a group is another one, or below it.
func inGroup(group, of string) bool { return group == of || strings.HasPrefix(group, of+"/") }

// sorted reports whether a sorted list has a number.
func sorted(list []int64, number int64) bool {
	_, ok := slices.BinarySearch(list, number)
	return ok
}

// earliest returns a time as the index has it. It has none before 1970.
func earliest(t time.Time) int64 {
	if t.Year() < 1970 {
		return 0
	}
	return t.UnixNano()
}

// hasLabel reports whether labels in JSON have NAME=VALUE.
func hasLabel(labels, want string) bool {
	var all map[string]string
	if json.Unmarshal([]byte(labels), &all) != nil {
		return false
	}
	name, value, _ := strings.Cut(want, "=")
	has, ok := all[name]
	return ok && has == value
}

// A candidate is a node that may match.
type candidate struct {
	number, session int64
	node            graph.ID
}

// some returns candidates whose numbers are smaller than before, the greatest number first.
func (f *finding) some(ctx context.Context, chosen []int64, before int64, limit int) (out []candidate, err error) {
	var rows *sql.Rows
	if asked := f.q.candidates(chosen); asked != "" {
		rows, err = f.db.QueryContext(ctx, "SELECT n.number, n.session, n.node FROM words JOIN nodes n ON n.number=words.rowid WHERE words MATCH ? AND words.rowid<? ORDER BY words.rowid DESC LIMIT ?", asked, before, limit)
	} else {
		rows, err = f.db.QueryContext(ctx, "SELECT number, session, node FROM nodes WHERE number<? ORDER BY number DESC LIMIT ?", before, limit)
	}
	if err != nil {
		return nil, failed(ctx, err)
	}
	return candidates(ctx, rows)
}

// candidates returns the candidates of rows.
func candidates(ctx context.Context, rows *sql.Rows) (out []candidate, err error) {
	defer rows.Close()
	for rows.Next() {
		var c candidate
		var node []byte
		if err := rows.Scan(&c.number, &c.session, &node); err != nil {
			return nil, failed(ctx, err)
		}
		c.node = graph.ID(node)
		out = append(out, c)
	}
	return out, failed(ctx, rows.Err())
}

// source returns the session of a candidate.
func (f *finding) source(ctx context.Context, number int64) (*source, error) {
	if s := f.sessions[number]; s != nil {
		return s, nil
	}
	s := &source{}
	f.sessions[number] = s
	switch err := f.db.QueryRowContext(ctx, "SELECT incarnation, called FROM sessions WHERE number=?", number).Scan(&s.incarnation, &s.called); {
	case errors.Is(err, sql.ErrNoRows):
		return s, nil
	case err != nil:
		return nil, failed(ctx, err)
	}
	var err error
	if s.session, err = f.st.SessionByIncarnation(ctx, s.incarnation); err == nil && f.o.Groups != nil {
		var i turnstone.Info
		if i, err = s.session.Info(ctx); err == nil && !slices.ContainsFunc(f.o.Groups, func(g string) bool { return inGroup(i.Group, g) }) {
			s.session = nil // It was moved to another group since.
		}
	}
	if errors.Is(err, turnstone.ErrSessionNotFound) || errors.Is(err, turnstone.ErrSessionDeleted) {
		s.session, err = nil, nil
	}
	return s, err
}

// read reads candidates that may be results, several at once, and adds those that are.
func (f *finding) read(ctx context.Context, some []candidate, may func(candidate) bool) error {
	found := make([]*Result, len(some))
	errs := make([]error, len(some))
	var reading sync.WaitGroup
	defer reading.Wait()
	for i, c := range some {
		if f.seen[c.node] || !may(c) {
			continue
		}
		s, err := f.source(ctx, c.session)
		if err != nil {
			return err
		}
		if s.session == nil {
			continue
		}
		reading.Go(func() { found[i], errs[i] = f.result(ctx, s, c.node) })
	}
	reading.Wait()
	for _, r := range found {
		if r != nil && !f.seen[r.Node] { // Two forks without a parent share a node.
			f.seen[r.Node] = true
			f.results = append(f.results, *r)
		}
	}
	return errors.Join(errs...)
}

// result returns a node as a result, or nil if it is none.
func (f *finding) result(ctx context.Context, s *source, id graph.ID) (*Result, error) {
	n, err := s.session.Node(ctx, id)
	switch {
	case absent(err):
		return nil, nil // It was hidden or deleted since.
	case err != nil:
		return nil, err
	}
	if kinds := f.q.fields["kind"]; kinds != nil && !slices.Contains(kinds, n.Kind) || n.Time.Before(f.q.since) || !f.q.until.IsZero() && !n.Time.Before(f.q.until) {
		return nil, nil
	}
	text := f.Index.o.Text(&n)
	m, ok := f.q.match(text)
	if !ok {
		return nil, nil
	}
	r := &Result{Session: s.session.ID(), Name: s.called, Node: n.ID, Kind: n.Kind, Key: n.Key, Revision: n.Revision, Time: n.Time, Score: m.score}
	r.Passage, r.Marks = passage(text, m.spans)
	return r, nil
}

// absent reports whether an error says that a node is not there.
func absent(err error) bool {
	return errors.Is(err, turnstone.ErrNodeNotFound) || errors.Is(err, turnstone.ErrSessionDeleted) || errors.Is(err, turnstone.ErrSessionNotFound)
}

// passage returns the part of a text around what was found first, on one line, and where it is there.
func passage(text string, spans [][2]int) (string, [][2]int) {
	if len(spans) == 0 {
		spans = [][2]int{{0, 0}}
	}
	from, to := spans[0][0]-around, spans[0][1]+around
	from, to = border(text, max(0, from)), border(text, min(len(text), to, max(spans[0][0]+8*around, 0)))
	marks := [][2]int{}
	for _, s := range spans {
		if s[1] > s[0] && s[1] <= to && (len(marks) == 0 || s[0] >= marks[len(marks)-1][1]+from) {
			marks = append(marks, [2]int{s[0] - from, s[1] - from})
		}
	}
	line := []byte(text[from:to])
	for i, b := range line {
		if b == '\n' || b == '\r' || b == '\t' {
			line[i] = ' '
		}
	}
	return string(line), marks
}

// border returns the beginning of the character at an offset.
func border(text string, at int) int {
	for at > 0 && at < len(text) && text[at]&0xc0 == 0x80 {
		at--
	}
	return at
}

// branches notes which results are on the active path of their sessions.
func (f *finding) branches(ctx context.Context) error {
	of := map[string]map[graph.ID]bool{}
	for i := range f.results {
		r := &f.results[i]
		on, known := of[r.Session]
		if !known {
			on = map[graph.ID]bool{}
			s, err := f.st.Session(ctx, r.Session)
			if errors.Is(err, turnstone.ErrSessionNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			for n, err := range s.Nodes(ctx, turnstone.Scope{}) {
				if err != nil {
					return err
				}
				on[n.ID] = true
			}
			of[r.Session] = on
		}
		r.Aside = !on[r.Node]
	}
	return nil
}
