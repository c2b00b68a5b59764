package recovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/blake3"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/repair"
)

// A Piece is a session that has what came after a gap in the history of another one.
type Piece struct {
	Session string        `json:"session"`
	Of      string        `json:"of"`    // the session with the gap
	First   head.Revision `json:"first"` // of the revisions there that Session has; some in between may be lost
	Last    head.Revision `json:"last"`
}

// A clock is what a store takes for the time and for random bytes. So that the pieces of a second recovery are the
// same sessions, it is the time of what is committed again, and the bytes follow from a segment, which has random ones.
type clock struct {
	now    time.Time
	random *rand.ChaCha8
}

func (c *clock) time() time.Time { return c.now }

// Read implements io.Reader.
func (c *clock) Read(b []byte) (int, error) { return c.random.Read(b) }

// seed makes the bytes follow from the value of a key.
func (c *clock) seed(ctx context.Context, r *history.Reader, key []byte) error {
	values, err := r.Engine.Get(ctx, key)
	if err != nil {
		return err
	}
	value, err := codec.Move(key, values[0], nil) // The key is another one each time.
	if err == nil {
		c.random = rand.NewChaCha8(blake3.Sum256(value))
	}
	return err
}

// A piecing makes the session of a Piece, by committing the turns again.
type piecing struct {
	rest  *repair.Rest
	c     *clock
	s     *turnstone.Session
	last  head.Revision            // that was committed again
	ids   map[graph.ID]graph.ID    // of the nodes that it has, by those that they had
	above map[graph.ID]graph.ID    // the parents of those that it does not have
	parts map[string]head.Revision // the parts that it has, and where they were set
	has   map[blob.ID]bool         // the attachments that it has
	lose  func(what string, err error)
}

// piece makes a session of what came after a gap. Its nodes and commits get other ids, and the times stay. A node whose
// parent is not there follows the nearest one before that is, or begins a conversation if there is none.
// After an error, the Piece says how far it has come.
func piece(ctx context.Context, st *turnstone.Store, of *repair.Session, c *clock, lose func(session, what string, err error)) (*Piece, error) {
	p := &piecing{
		rest: of.Rest, c: c, ids: map[graph.ID]graph.ID{}, above: map[graph.ID]graph.ID{}, parts: map[string]head.Revision{}, has: map[blob.ID]bool{},
	}
	out := &Piece{Of: of.ID}
	for _, last := range of.Rest.At {
		segment, err := of.Rest.History.At(ctx, of.Rest.Turns, of.Rest.History.Name, last)
		if err != nil {
			return out, err
		}
		for i := range segment.Turns {
			t := &segment.Turns[i]
			if out.First == 0 {
				id := pieceID(of.ID, t.Revision)
				p.lose = func(what string, err error) { lose(id, what, err) }
				if err := c.seed(ctx, &of.Rest.History.Reader, segment.Keys[0]); err != nil {
					return out, err
				}
				if err := p.create(ctx, st, id, of, t.Time); err != nil {
					return out, err
				}
				out.First, out.Session = t.Revision, id
			}
			if err := p.turn(ctx, t); err != nil {
				return out, err
			}
			out.Last = t.Revision
		}
	}
	return out, nil
}

// pieceID is the id of a session that has what is left of another one from a revision on.
func pieceID(id string, first head.Revision) string {
	suffix := fmt.Sprintf("/from-%d", first)
	return strings.ToValidUTF8(id[:min(len(id), turnstone.MaxSessionID-len(suffix))], "") + suffix
}

func (p *piecing) create(ctx context.Context, st *turnstone.Store, id string, of *repair.Session, at time.Time) (err error) {
	p.c.now = at
	r := turnstone.Request{ID: id}
	if p.rest.About != nil {
		r.Metadata, r.Summary = p.rest.About.Metadata, p.rest.About.Summary
	}
	if !of.Gone {
		r.Parent, r.Detached = of.ID, true
	}
	var created bool
	if p.s, created, err = st.Create(ctx, r); err == nil && !created {
		err = fmt.Errorf("%w: %q", turnstone.ErrExists, id)
	}
	return err
}

// turn commits a turn again.
func (p *piecing) turn(ctx context.Context, t *history.Turn) error {
	p.c.now = t.Time
	c := turnstone.Commit{Expected: turnstone.AnyRevision, Turn: t.Turn, Usage: t.Usage, Labels: t.Labels}
	var of []graph.ID // the nodes of c
	for i := range t.Pack.Nodes {
		n := &t.Pack.Nodes[i]
		payload, err := p.content(ctx, n)
		switch {
		case errors.Is(err, errHidden):
			p.above[n.ID] = n.Parent
			continue
		case errors.Is(err, damage.ErrDamaged):
			p.lose(fmt.Sprintf("node %s (%q)", n.ID, n.Kind), err)
			p.above[n.ID] = n.Parent
			continue
		case err != nil:
			return err
		}
		c.Nodes = append(c.Nodes, turnstone.NewNode{Parent: p.ref(n.Parent, of), Kind: n.Kind, Key: n.Key, Payload: payload, Attachments: n.Attachments})
		of = append(of, n.ID)
	}
	c.Leaf = p.ref(t.Leaf, of)
	if err := p.checkpoint(ctx, t, &c); err != nil {
		return err
	}
	r, err := p.s.Commit(ctx, c)
	for i, id := range r.Nodes {
		p.ids[of[i]] = id
	}
	if err == nil {
		p.last = t.Revision
	}
	return err
}

// ref refers to a node, or to the nearest one before it that the session has. of are the nodes of the commit.
func (p *piecing) ref(id graph.ID, of []graph.ID) turnstone.Ref {
	for {
		if i := slices.Index(of, id); i >= 0 {
			return turnstone.RefNew(i)
		}
		if known, ok := p.ids[id]; ok {
			return turnstone.RefTo(known)
		}
		above, ok := p.above[id]
		if !ok {
			return turnstone.RefNone()
		}
		id = above
	}
}

// checkpoint makes a commit set and drop what makes the checkpoint that of a turn.
func (p *piecing) checkpoint(ctx context.Context, t *history.Turn, c *turnstone.Commit) error {
	parts := t.Parts
	if t.PartsAt != t.Revision {
		if t.PartsAt == 0 || p.last > 0 && t.PartsAt <= p.last {
			return nil
		}
		at, err := p.turnAt(ctx, t.PartsAt) // It was set in the gap, or before.
		if errors.Is(err, damage.ErrDamaged) {
			p.lose(fmt.Sprintf("the checkpoint that revision %d carries on", t.Revision), err)
			return nil
		} else if err != nil {
			return err
		}
		parts = at.Parts
	}
	c.Checkpoint = map[string][]byte{}
	there := map[string]bool{}
	for _, part := range parts {
		if there[part.Name] = true; p.parts[part.Name] == part.Set && part.Set > 0 {
			continue
		}
		content, err := p.part(ctx, part)
		if errors.Is(err, damage.ErrDamaged) {
			p.lose(fmt.Sprintf("checkpoint part %q of revision %d", part.Name, part.Set), err)
			there[part.Name] = false
			continue
		} else if err != nil {
			return err
		}
		c.Checkpoint[part.Name], p.parts[part.Name] = content, part.Set
	}
	for name := range p.parts {
		if !there[name] {
			c.Drop = append(c.Drop, name)
			delete(p.parts, name)
		}
	}
	return nil
}

// part returns the content of a version of a checkpoint part.
func (p *piecing) part(ctx context.Context, part head.Part) ([]byte, error) {
	h := p.rest.History
	if part.Blob.IsZero() { // It was set before, and what set it is lost.
		was, err := p.setBefore(ctx, part)
		if err != nil {
			return nil, err
		}
		part = was
	}
	if !head.IsDelta(part) {
		return h.Blobs.Read(ctx, part.Blob)
	}
	root := func(ctx context.Context) (blob.ID, error) {
		was, err := p.setBefore(ctx, head.Part{Name: part.Name, Set: part.Whole})
		return was.Blob, err
	}
	content, _, err := h.Blobs.ReadVersion(ctx, h.Chain(part.Name), uint64(part.Whole), uint64(part.Set), part.Blob, root)
	return content, err
}

// setBefore returns a part as the commit that has set it says.
func (p *piecing) setBefore(ctx context.Context, part head.Part) (head.Part, error) {
	t, err := p.turnAt(ctx, part.Set)
	if err != nil {
		return part, err
	}
	for _, q := range t.Parts {
		if q.Name == part.Name && q.Set == part.Set {
			return q, nil
		}
	}
	return part, codec.Corrupt(damage.ErrMissing, "checkpoint part %q of revision %d", part.Name, part.Set)
}

// turnAt returns a turn of the session, which may be after the gap or before it.
func (p *piecing) turnAt(ctx context.Context, r head.Revision) (*history.Turn, error) {
	h := p.rest.History
	for _, inc := range []head.Incarnation{p.rest.Turns, h.Inc} {
		segment, err := h.At(ctx, inc, h.Name, r)
		if err == nil {
			return segment.Turn(r), nil
		}
		if !errors.Is(err, damage.ErrDamaged) {
			return nil, err
		}
	}
	return nil, codec.Corrupt(damage.ErrMissing, "commit %d of %s", r, h.Name)
}

// errHidden says that the session did not show a node.
var errHidden = errors.New("hidden")

// content returns the payload of a node, and gives the session its attachments.
func (p *piecing) content(ctx context.Context, n *graph.Node) (payload []byte, err error) {
	if n.Erased || p.rest.Hidden(n.ID) {
		return nil, errHidden
	}
	if payload = n.Inline; !n.Blob.IsZero() {
		payload, err = p.rest.History.Blobs.Read(ctx, n.Blob)
	}
	if err == nil {
		err = p.attach(ctx, n.Attachments)
	}
	return payload, err
}

// attach gives the session attachments.
func (p *piecing) attach(ctx context.Context, of []blob.Attachment) error {
	for _, a := range of {
		if p.has[a.ID] {
			continue
		}
		r, w := io.Pipe()
		read := make(chan error, 1)
		go func() {
			_, err := p.rest.History.Blobs.WriteTo(ctx, w, a.ID)
			_ = w.CloseWithError(err)
			read <- err
		}()
		_, err := p.s.PutAttachment(ctx, r, a.Size, a.MediaType, a.Name)
		_ = r.Close()
		if damaged := <-read; errors.Is(damaged, damage.ErrDamaged) {
			return damaged
		}
		if err != nil {
			return err
		}
		p.has[a.ID] = true
	}
	return nil
}
