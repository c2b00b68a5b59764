package ui

import (
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// shownCommits is how many commits a page of a history shows.
const shownCommits = 200

// A historyPage shows the commits of a session, the last one first.
type historyPage struct {
	*subject
	Rows   []commitRow
	Lanes  int           // of the drawn graph
	Before head.Revision // the newest revision of the next page, or 0
}

// A commitRow is a commit, and how the graph is drawn beside it.
type commitRow struct {
	turnstone.LogEntry
	Subject string
	From    head.Revision // the commit that it goes on from, or 0
	Back    bool          // it moved the leaf, and added nothing
	Names   []string      // under which it is kept
	Ends    bool          // its leaf is the end of a branch
	Current bool          // the head is there

	Lane  int
	Lines []laneLine
}

// A laneLine is a line of the graph in the height of one row, from the lane at its top to the lane at its bottom. It
// ends, or begins, at the commit of the row in the middle.
type laneLine struct{ X1, Y1, X2, Y2 int }

// history shows the commits of a session, and which goes on from which.
func (v *visit) history() error {
	s, err := v.subject()
	if err != nil {
		return err
	}
	newest, err := revision(v.q.Get("before"))
	if err != nil {
		return err
	}
	if newest == 0 || newest > s.About.Revision {
		newest = s.About.Revision
	}
	h := historyPage{subject: s}
	after := head.Revision(0)
	if newest > shownCommits {
		after = newest - shownCommits
		h.Before = after
	}
	if h.Rows, err = v.commits(s, after, newest); err != nil {
		return err
	}
	h.Lanes = draw(h.Rows)
	v.render(200, "history", view{Title: "History of " + s.Row.Called(), Body: &h})
	return nil
}

// begun is what is known of the first node of a commit.
type begun struct {
	parent  graph.ID
	subject string
}

// commits returns the commits after a revision up to another one, the last one first.
func (v *visit) commits(s *subject, after, to head.Revision) ([]commitRow, error) {
	var rows []commitRow
	for e, err := range s.Log(v.r.Context(), after) {
		if err != nil {
			return nil, err
		}
		if e.Revision > to {
			break
		}
		rows = append(rows, commitRow{LogEntry: e, Current: e.Revision == s.About.Revision})
	}
	added := map[graph.ID]head.Revision{}
	leafOf := map[graph.ID]head.Revision{} // the last commit that left the leaf at a node
	first := map[head.Revision]begun{}
	for n, err := range s.Nodes(v.r.Context(), turnstone.Scope{Full: true}) {
		if err != nil {
			return nil, err
		}
		if n.Inherited || n.Revision <= after || n.Revision > to {
			continue
		}
		added[n.ID] = n.Revision
		if _, ok := first[n.Revision]; !ok {
			first[n.Revision] = begun{n.Parent, n.Kind + ": " + shortened(importer.Text(n.Payload), 160)}
		}
	}
	previous := graph.ID{}
	for i := range rows {
		r := &rows[i]
		n, ok := first[r.Revision]
		from := r.Leaf
		if ok {
			from, r.Subject = n.parent, n.subject
		}
		if r.From = leafOf[from]; r.From == 0 {
			r.From = added[from]
		}
		r.Back = r.Nodes == 0 && i > 0 && previous != r.Leaf
		leafOf[r.Leaf], previous = r.Revision, r.Leaf
	}
	leaves, err := s.Leaves(v.r.Context())
	if err != nil {
		return nil, err
	}
	kept, err := s.Kept(v.r.Context())
	if err != nil {
		return nil, err
	}
	for i := range rows {
		r := &rows[i]
		r.Ends = slices.ContainsFunc(leaves, func(n turnstone.Node) bool { return n.ID == r.Leaf }) && leafOf[r.Leaf] == r.Revision
		for _, k := range kept {
			if k.Revision == r.Revision {
				r.Names = append(r.Names, k.Name)
			}
		}
	}
	slices.Reverse(rows)
	return rows, nil
}

// Where things are drawn in a row, in pixels.
const (
	laneWidth = 14
	middle    = 28
	bottom    = 10_000 // A row may be of any height, and hides what is below it.
)

// draw sets where each commit and its lines are, and returns how many lanes there are.
func draw(rows []commitRow) int {
	var lanes []head.Revision // the commit that each lane goes down to; 0 is free
	most := 1
	x := func(lane int) int { return laneWidth/2 + lane*laneWidth }
	for i := range rows {
		r := &rows[i]
		r.Lane = slices.Index(lanes, r.Revision)
		started := r.Lane < 0
		if started {
			if r.Lane = slices.Index(lanes, 0); r.Lane < 0 {
				r.Lane = len(lanes)
				lanes = append(lanes, 0)
			}
		}
		for l, to := range lanes {
			switch {
			case to == 0:
			case to == r.Revision: // What goes on from this commit comes together here.
				r.Lines = append(r.Lines, laneLine{x(l), 0, x(r.Lane), middle})
				lanes[l] = 0
			default:
				r.Lines = append(r.Lines, laneLine{x(l), 0, x(l), bottom})
			}
		}
		if r.From != 0 {
			lanes[r.Lane] = r.From
			r.Lines = append(r.Lines, laneLine{x(r.Lane), middle, x(r.Lane), bottom})
		}
		most = max(most, len(lanes))
		for len(lanes) > 0 && lanes[len(lanes)-1] == 0 {
			lanes = lanes[:len(lanes)-1]
		}
	}
	return most
}

// X is where the commit is drawn.
func (r commitRow) X() int { return laneWidth/2 + r.Lane*laneWidth }

// Width is that of the drawn graph.
func (h *historyPage) Width() int { return h.Lanes * laneWidth }

// What says what a commit did.
func (r commitRow) What() string {
	switch {
	case r.Back && r.Leaf.IsZero():
		return "emptied the conversation"
	case r.Back:
		return "moved the leaf back"
	case r.Nodes == 0:
		return "added no node"
	case r.Subject == "":
		return "its nodes are tombstoned"
	}
	return r.Subject
}

func shortened(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}

// A partView is a part of a checkpoint.
type partView struct {
	Name string
	Size int
	HTML any
}

// checkpoint shows the parts of a checkpoint.
func (v *visit) checkpoint() error {
	s, err := v.subject()
	if err != nil {
		return err
	}
	parts, err := s.Checkpoint(v.r.Context(), s.At)
	if err != nil {
		return err
	}
	body := struct {
		*subject
		Parts       []partView
		Attachments []turnstone.Attached
	}{subject: s}
	for _, name := range sorted(parts) {
		body.Parts = append(body.Parts, partView{name, len(parts[name]), shownValue(parts[name])})
	}
	if body.Attachments, err = s.Attachments(v.r.Context()); err != nil {
		return err
	}
	v.render(200, "checkpoint", view{Title: fmt.Sprintf("Checkpoint of %s", s.Row.Called()), Body: &body})
	return nil
}
