package ui

import (
	"bytes"
	"fmt"
	"html/template"
	"slices"
	"strconv"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/cmd/turnstone/page"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// chunk is how many nodes a part of a conversation has. A page begins with the last one, and the script gets others
// when they come into sight.
const chunk = 50

// maxLive is how many new nodes are put on a page that is open. Who was away for longer loads it again.
const maxLive = 500

// A subject is the session that a page is about.
type subject struct {
	turnstone.Persistence
	About turnstone.Info
	At    head.Revision // the revision that is shown, or 0 for the head's
	Leaf  graph.ID      // the end of the branch that is shown, or zero
	Row   sessionRow

	children []turnstone.Info // that written found
}

// Place returns the query of a page that shows the same place.
func (s *subject) Place(more ...string) []string {
	query := []string{"id", s.ID()}
	if s.At != 0 {
		query = append(query, "at", fmt.Sprint(s.At))
	}
	if !s.Leaf.IsZero() {
		query = append(query, "leaf", s.Leaf.String())
	}
	return append(query, more...)
}

// scope returns the scope of what is shown.
func (s *subject) scope() turnstone.Scope { return turnstone.Scope{At: s.At, Leaf: s.Leaf} }

// subject returns the session that the query names.
func (v *visit) subject() (*subject, error) {
	p, err := v.db.Session(v.r.Context(), v.q.Get("id"))
	if err != nil {
		return nil, err
	}
	s := &subject{Persistence: p}
	if s.About, err = p.Info(v.r.Context()); err != nil {
		return nil, err
	}
	s.Row = rowOf(&s.About)
	if s.At, err = revision(v.q.Get("at")); err != nil {
		return nil, err
	}
	if s.At >= s.About.Revision {
		s.At = 0
	}
	if text := v.q.Get("leaf"); text != "" {
		if s.Leaf, err = turnstone.ParseNodeID(text); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func revision(text string) (head.Revision, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%w: a revision is a number, not %.40q", wire.ErrRequest, text)
	}
	return head.Revision(n), nil
}

// A conversation is what the page of a session shows.
type conversation struct {
	*subject
	Revision head.Revision // that is shown
	HTML     template.HTML // of the last nodes
	Before   graph.ID      // the node before them, or zero
	Chunks   []int         // numbers of the parts before them
	Last     string        // the id of the last node, or ""
	Around   int           // the number of the part that has the node that the query asks for, or -1
	Target   string        // the short id of that node
	Children []sessionRow  // that begin at no node that is shown
}

// session shows a session as a conversation.
func (v *visit) session() error {
	s, err := v.subject()
	if err != nil {
		return err
	}
	scope := s.scope()
	scope.Last = chunk
	state, err := s.Load(v.r.Context(), scope)
	if err != nil {
		return err
	}
	c := conversation{subject: s, Revision: state.Revision, Around: -1}
	if n := len(state.Nodes); n > 0 {
		c.Last = state.Nodes[n-1].ID.String()
		c.Before = state.Nodes[0].Parent
	}
	if !c.Before.IsZero() {
		before := int(s.About.Messages) - len(state.Nodes) // if no node is hidden; a part that has none takes no place
		if s.At != 0 || !s.Leaf.IsZero() {
			ids, err := v.paths.get(v.r.Context(), s, s.About.Incarnation, c.Before)
			if err != nil {
				return err
			}
			before = len(ids)
		}
		c.Chunks = make([]int, (before+chunk-1)/chunk)
		for i := range c.Chunks {
			c.Chunks[i] = i
		}
	}
	if err := v.around(&c); err != nil {
		return err
	}
	if c.HTML, err = v.written(s, state.Nodes); err != nil {
		return err
	}
	for i := range s.children {
		if row := rowOf(&s.children[i]); row.ForkNode.IsZero() {
			c.Children = append(c.Children, row)
		}
	}
	v.render(200, "session", view{Title: s.Row.Called(), Body: &c})
	return nil
}

// around notes in which part the node is that the query asks for, if it is in one.
func (v *visit) around(c *conversation) error {
	text := v.q.Get("around")
	if text == "" || c.Before.IsZero() {
		return nil
	}
	id, err := turnstone.ParseNodeID(text)
	if err != nil {
		return err
	}
	ids, err := v.paths.get(v.r.Context(), c, c.About.Incarnation, c.Before)
	if err != nil {
		return err
	}
	if at := lastIndex(ids, id); at >= 0 {
		c.Around, c.Target = at/chunk, page.Short(id)
	}
	return nil
}

// nodes answers with a part of a conversation: that of a number before a node, or what came after a node.
func (v *visit) nodes() error {
	s, err := v.subject()
	if err != nil {
		return err
	}
	var nodes []turnstone.Node
	switch {
	case v.q.Get("after") != "":
		nodes, err = v.since(s, v.q.Get("after"))
	case v.q.Get("chunk") != "":
		nodes, err = v.part(s, v.q.Get("chunk"))
	default:
		var state *turnstone.State
		scope := s.scope()
		scope.Last = chunk
		if state, err = s.Load(v.r.Context(), scope); err == nil {
			nodes = state.Nodes
		}
	}
	if err != nil {
		return err
	}
	html, err := v.written(s, nodes)
	if err != nil {
		return err
	}
	v.fragment("html", html)
	return nil
}

// part returns the nodes of a part by its number, of the path to the leaf that the query names.
func (v *visit) part(s *subject, number string) ([]turnstone.Node, error) {
	k, err := strconv.Atoi(number)
	if err != nil || k < 0 {
		return nil, fmt.Errorf("%w: a part is a number, not %.40q", wire.ErrRequest, number)
	}
	for again := false; ; again = true {
		ids, err := v.paths.get(v.r.Context(), s, s.About.Incarnation, s.Leaf)
		if err != nil || k > len(ids)/chunk || k*chunk == len(ids) {
			return nil, err
		}
		to := min(len(ids), (k+1)*chunk)
		state, err := s.Load(v.r.Context(), turnstone.Scope{Leaf: ids[to-1], Last: to - k*chunk})
		if err == nil && state.Nodes[0].ID == ids[k*chunk] {
			return state.Nodes, nil
		}
		if again {
			return nil, err
		}
		v.paths.forget(s.About.Incarnation) // A node was hidden meanwhile.
	}
}

// since returns the nodes of the path that come after one. It fails with errMoved if that is not on the path.
func (v *visit) since(s *subject, after string) ([]turnstone.Node, error) {
	id, err := turnstone.ParseNodeID(after)
	if err != nil {
		return nil, err
	}
	for last := 20; ; last = min(5*last, maxLive) {
		state, err := s.Load(v.r.Context(), turnstone.Scope{Last: last})
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(state.Nodes, func(n turnstone.Node) bool { return n.ID == id }); i >= 0 {
			return state.Nodes[i+1:], nil
		}
		if len(state.Nodes) < last || last == maxLive {
			return nil, errMoved
		}
	}
}

// errMoved means that what a page shows is not the end of the conversation any more.
var errMoved = fmt.Errorf("%w: the conversation goes on from elsewhere: load the page again", turnstone.ErrNodeNotFound)

// written returns nodes as HTML, with the sessions that fork from them.
func (v *visit) written(s *subject, nodes []turnstone.Node) (template.HTML, error) {
	children, err := v.childrenOf(s)
	if err != nil {
		return "", err
	}
	if s.Row.Agent != "" && !v.q.Has("all") {
		nodes = slices.DeleteFunc(nodes, func(n turnstone.Node) bool { return importer.Beside(n.Kind, n.Payload) })
	}
	var out bytes.Buffer
	err = page.Conversation(&out, &page.Session{
		Info: s.About, Nodes: nodes, Thoughts: true,
		Beside: func(n *turnstone.Node) (title, below template.HTML) {
			at := nodeView{visit: v, Subject: s, Node: n, Children: children[n.ID]}
			return v.piece("node-title", at), v.piece("node-below", at)
		},
	})
	return template.HTML(out.String()), err
}

// A nodeView is what stands beside a node.
type nodeView struct {
	*visit
	Subject  *subject
	Node     *turnstone.Node
	Children []sessionRow
}

// Shows reports whether a browser shows an attachment as an image.
func (nodeView) Shows(a blob.Attachment) bool { return page.IsImage(a.MediaType) }

// piece returns a part of a page.
func (v *visit) piece(name string, body any) template.HTML {
	var out bytes.Buffer
	if err := templates["layout"].ExecuteTemplate(&out, name, body); err != nil {
		panic(err) // The templates are in the program.
	}
	return template.HTML(out.String())
}

// maxChildren is how many forks and sub-agents of a session a page shows.
const maxChildren = 500

// childrenOf returns the sessions that fork from a session, by the nodes at which they do.
func (v *visit) childrenOf(s *subject) (map[graph.ID][]sessionRow, error) {
	out := map[graph.ID][]sessionRow{}
	s.children = nil
	for o := (turnstone.ListOptions{Parent: s.ID(), Limit: 100}); ; {
		p, err := v.db.List(v.r.Context(), o)
		if err != nil {
			return nil, err
		}
		for i := range p.Sessions {
			s.children = append(s.children, p.Sessions[i])
			out[p.Sessions[i].ForkNode] = append(out[p.Sessions[i].ForkNode], rowOf(&p.Sessions[i]))
		}
		if o.After = p.Next; o.After == "" || len(s.children) >= maxChildren {
			return out, nil
		}
	}
}
