package turnstone

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// session checks one session from its head down to the bytes of its nodes.
func (v *verifier) session(ctx context.Context, ses *Session) error {
	h, _, err := ses.readHead(ctx)
	if err != nil {
		return err
	}
	if ses.origin != nil {
		for i, a := range ses.origin.Ancestors {
			if err := v.ancestor(ctx, ses, i, a); err != nil {
				return err
			}
		}
	}
	parts, err := v.parts(ctx, ses)
	if err != nil {
		return err
	}
	usage, nodes := []Usage(nil), uint64(0)
	err = ses.commits(ctx, 0, h.Revision, func(c *head.Commit, _ CommitID) error {
		v.Commits++
		usage, nodes = head.Sum(usage, c.Usage), nodes+uint64(c.Nodes)
		if err := v.turn(ctx, ses, c); err != nil {
			return err
		}
		parts.at(c)
		if c.Revision != h.Revision {
			return nil
		}
		at, err := ses.partsAt(ctx, c)
		if err == nil && fmt.Sprint(at) != fmt.Sprint(h.Parts) {
			err = fmt.Errorf("checkpoint differs from commit %d", c.Revision)
		}
		return codec.Corrupt(err, "head of session %q", ses.id)
	})
	if err != nil {
		return err
	}
	for _, p := range h.Parts {
		v.blobs[p.Blob] = true
	}
	if fmt.Sprint(usage) != fmt.Sprint(h.Usage) || nodes != h.Nodes {
		v.problem(errors.New("totals differ from the sum of the commits"), "head of session %q", ses.id)
	}
	own := ses.layers(h.Revision)
	own[len(own)-1].commit = h.Commit
	if err := v.history(ctx, ses, own[len(own)-1]); err != nil {
		return err
	}
	return v.order(ctx, ses)
}

// parts follows a session's checkpoint through its commits and refers to the
// blobs of the revisions that are retained.
type parts struct {
	v     *verifier
	floor Revision
	refs  map[Revision]bool
	now   map[string]blob.ID
}

func (v *verifier) parts(ctx context.Context, ses *Session) (*parts, error) {
	p := &parts{v: v, refs: map[Revision]bool{}, now: map[string]blob.ID{}}
	if ses.origin != nil {
		for _, part := range ses.origin.Parts {
			p.now[part.Name] = part.Blob
		}
	}
	return retried(ctx, ses, func() (*parts, error) {
		life, _, err := ses.life(ctx)
		if err != nil {
			return nil, err
		}
		p.floor = life.Floor
		refs, err := head.Refs(ctx, v.s.engine, v.s.space, ses.inc, life)
		for _, r := range refs {
			p.refs[r.Revision] = true
		}
		return p, err
	})
}

func (p *parts) at(c *head.Commit) {
	changed := c.PartsAt == c.Revision
	if changed {
		next := make(map[string]blob.ID, len(c.Parts))
		for _, part := range c.Parts {
			if next[part.Name] = part.Blob; part.Blob.IsZero() {
				next[part.Name] = p.now[part.Name]
			}
		}
		p.now = next
	}
	if changed && c.Revision >= p.floor || c.Revision == p.floor || p.refs[c.Revision] {
		for _, id := range p.now {
			p.v.blobs[id] = true
		}
	}
}

// ancestor checks what a fork shares of another session.
func (v *verifier) ancestor(ctx context.Context, ses *Session, i int, a head.Ancestor) error {
	key := v.s.space.Fork(a.Incarnation, ses.inc)
	vs, err := v.s.engine.Get(ctx, key, v.s.space.Life(a.Incarnation))
	if err != nil {
		return err
	}
	for j, what := range []string{"fork entry", "lifecycle"} {
		if vs[j] == nil {
			v.problem(codec.ErrMissing, "%s of ancestor %x of session %q", what, a.Incarnation, ses.id)
		}
	}
	if a.Revision == 0 {
		return nil
	}
	_, id, err := v.s.commitAt(ctx, a.Incarnation, a.Revision)
	if err == nil && id != a.Commit {
		err = codec.Corrupt(codec.ErrHash, "commit %d of ancestor %x of session %q", a.Revision, a.Incarnation, ses.id)
	}
	if err != nil || v.incs[a.Incarnation] {
		return err
	}
	// Reading all of it derives and checks every id; its own session, if it
	// lives, is checked for the rest.
	layers := ses.layers(0)
	nodes, err := v.read(ctx, ses, layers[i])
	v.refer(nodes)
	return err
}

// read reads and checks a layer, beside maintenance.
func (v *verifier) read(ctx context.Context, ses *Session, l layer) ([]found, error) {
	return retried(ctx, ses, func() ([]found, error) {
		nodes, err := ses.read(ctx, l, 0, nil)
		if err == nil {
			err = ses.checkLayer(ctx, l, nodes)
		}
		return nodes, err
	})
}

func (v *verifier) refer(nodes []found) {
	for i := range nodes {
		if !nodes[i].Blob.IsZero() {
			v.blobs[nodes[i].Blob] = true
		}
		for _, a := range nodes[i].Attachments {
			v.blobs[a.ID] = true
		}
	}
}

// history checks the nodes of a session against its commits and its index.
func (v *verifier) history(ctx context.Context, ses *Session, l layer) error {
	nodes, err := v.read(ctx, ses, l)
	if err != nil {
		return err
	}
	v.refer(nodes)
	index, err := v.entries(ctx, ses)
	if err != nil {
		return err
	}
	known := map[NodeID]bool{}
	position := 0
	for i := range nodes {
		n := &nodes[i]
		v.Nodes++
		known[n.ID] = true
		if position++; i == 0 || nodes[i-1].revision != n.revision {
			position = 0
		}
		if err := v.place(ctx, ses, n, position, index); err != nil {
			return err
		}
		if p := n.Parent; !p.IsZero() && !known[p] && p != l.first {
			if _, err := ses.find(ctx, l.last, p); stopped(err) {
				return err
			} else if err != nil {
				v.problem(err, "parent of node %s of session %q", n.ID, ses.id)
			}
		}
	}
	return nil
}

// entries returns where the index of a session says that its nodes are.
func (v *verifier) entries(ctx context.Context, ses *Session) (map[graph.Entry]bool, error) {
	out := map[graph.Entry]bool{}
	for e, err := range graph.Index(ctx, v.s.engine, v.s.space, ses.inc) {
		if stopped(err) {
			return nil, err
		}
		if err != nil {
			v.problem(err, "index of session %q", ses.id)
			break
		}
		out[e] = true
	}
	return out, nil
}

// place checks the index entries of a node.
func (v *verifier) place(ctx context.Context, ses *Session, n *found, position int, index map[graph.Entry]bool) error {
	ks := [][]byte{v.s.space.EventKey(ses.inc, n.Key)}
	for _, a := range n.Attachments {
		ks = append(ks, v.s.space.Attachment(ses.inc, v.s.space.BlobHash(a.ID)))
	}
	vs, err := v.s.engine.Get(ctx, ks...)
	if err != nil {
		return err
	}
	here := graph.Place{Revision: uint64(n.revision), Position: position}
	check := func(p graph.Place, err error, what string) {
		if err == nil && p != here {
			err = fmt.Errorf("points to node %d of revision %d", p.Position, p.Revision)
		}
		v.problem(err, "%s of node %s of session %q", what, n.ID, ses.id)
	}
	if !index[graph.Entry{Prefix: graph.PrefixOf(n.ID), Place: here}] {
		// Sealing moves entries: the session's own reader looks again.
		at, err := retried(ctx, ses, func() (spot, error) {
			at, err := ses.place(ctx, AnyRevision, n.ID)
			return at, linked(err, n.ID)
		})
		if stopped(err) {
			return err
		}
		check(graph.Place{Revision: uint64(at.revision), Position: at.position}, err, "index entry")
	}
	if n.Key != "" {
		p, err := graph.OpenPlace(ks[0], vs[0], keys.EventKey)
		check(p, err, "event key")
	}
	for i := range n.Attachments {
		if vs[1+i] == nil {
			v.problem(codec.ErrMissing, "attachment entry of node %s of session %q", n.ID, ses.id)
		}
	}
	return nil
}

// turn checks the index entry of a commit's turn id.
func (v *verifier) turn(ctx context.Context, ses *Session, c *head.Commit) error {
	if c.Turn == "" {
		return nil
	}
	key := v.s.space.Turn(ses.inc, c.Turn)
	vs, err := v.s.engine.Get(ctx, key)
	if err != nil {
		return err
	}
	body, err := codec.Open(key, vs[0], keys.Turn)
	if r, _ := codec.Uvarint(body); err == nil && Revision(r) != c.Revision {
		err = fmt.Errorf("points to revision %d", r)
	}
	v.problem(err, "turn %q of session %q", c.Turn, ses.id)
	return nil
}

// order checks that a session is where List looks for it.
func (v *verifier) order(ctx context.Context, ses *Session) error {
	for range 3 { // it may move meanwhile
		vs, err := v.s.engine.Get(ctx, v.s.space.Bucket(ses.inc))
		if err != nil {
			return err
		}
		if at, ok := v.s.bucketOf(ses.inc, vs[0]); ok {
			if vs, err = v.s.engine.Get(ctx, v.s.space.Order(at, ses.inc)); err != nil || vs[0] != nil {
				return err
			}
		}
	}
	if _, _, err := ses.readHead(ctx); err != nil {
		return err // gone meanwhile
	}
	v.problem(codec.ErrMissing, "place in the order of sessions of session %q", ses.id)
	return nil
}
