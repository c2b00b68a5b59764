package recovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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
	rest *repair.Rest
	c    *clock
	s    *turnstone.Session
	ids  map[graph.ID]graph.ID // of the nodes that it has, by those that they had
	has  map[blob.ID]bool      // the attachments that it has
	lose func(what string, err error)
}

// piece makes a session of what came after a gap. Its nodes and commits get other ids, and the times stay. A node whose
// parent is lost follows the one that was appended before it.
// After an error, the Piece says how far it has come.
func piece(ctx context.Context, st *turnstone.Store, of *repair.Session, c *clock, lose func(session, what string, err error)) (*Piece, error) {
	p := &piecing{rest: of.Rest, c: c, ids: map[graph.ID]graph.ID{}, has: map[blob.ID]bool{}}
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
	c := turnstone.Commit{Expected: turnstone.AnyRevision, Turn: t.Turn, Usage: t.Usage, Labels: t.Labels, Checkpoint: map[string][]byte{}}
	var of []graph.ID // the nodes of c
	ref := func(id graph.ID) (r turnstone.Ref) {
		for i := range of {
			if of[i] == id {
				return turnstone.RefNew(i)
			}
		}
		if known, ok := p.ids[id]; ok {
			return turnstone.RefTo(known)
		}
		return r
	}
	for i := range t.Pack.Nodes {
		n := &t.Pack.Nodes[i]
		if n.Erased || p.rest.Hidden(n.ID) {
			continue
		}
		payload, err := p.content(ctx, n)
		if err == nil {
			err = p.attach(ctx, n.Attachments)
		}
		if errors.Is(err, damage.ErrDamaged) {
			p.lose(fmt.Sprintf("node %s (%q)", n.ID, n.Kind), err)
			continue
		} else if err != nil {
			return err
		}
		c.Nodes = append(c.Nodes, turnstone.NewNode{Parent: ref(n.Parent), Kind: n.Kind, Key: n.Key, Payload: payload, Attachments: n.Attachments})
		of = append(of, n.ID)
	}
	if c.Leaf = ref(t.Leaf); t.Leaf.IsZero() {
		c.Leaf = turnstone.RefNone()
	}
	for _, part := range t.Parts {
		if part.Set != t.Revision {
			continue
		}
		content, err := p.part(ctx, part)
		if errors.Is(err, damage.ErrDamaged) {
			p.lose(fmt.Sprintf("checkpoint part %q of revision %d", part.Name, part.Set), err)
			c.Drop = append(c.Drop, part.Name)
		} else if err != nil {
			return err
		} else {
			c.Checkpoint[part.Name] = content
		}
	}
	r, err := p.s.Commit(ctx, c)
	for i, id := range r.Nodes {
		p.ids[of[i]] = id
	}
	return err
}

// part returns the content of a version of a checkpoint part.
func (p *piecing) part(ctx context.Context, part head.Part) ([]byte, error) {
	h := p.rest.History
	if !head.IsDelta(part) {
		return h.Blobs.Read(ctx, part.Blob)
	}
	// The version that it goes back to may be among what came after the gap, or before it.
	root := func(ctx context.Context) (blob.ID, error) {
		for _, inc := range []head.Incarnation{p.rest.Turns, h.Inc} {
			segment, err := h.At(ctx, inc, h.Name, part.Whole)
			if errors.Is(err, damage.ErrDamaged) {
				continue
			} else if err != nil {
				return blob.ID{}, err
			}
			for _, q := range segment.Turn(part.Whole).Parts {
				if q.Name == part.Name && q.Set == part.Whole {
					return q.Blob, nil
				}
			}
		}
		return blob.ID{}, codec.Corrupt(damage.ErrMissing, "commit %d of %s", part.Whole, h.Name)
	}
	content, _, err := h.Blobs.ReadVersion(ctx, h.Chain(part.Name), uint64(part.Whole), uint64(part.Set), part.Blob, root)
	return content, err
}

// content returns the payload of a node.
func (p *piecing) content(ctx context.Context, n *graph.Node) ([]byte, error) {
	if n.Blob.IsZero() {
		return n.Inline, nil
	}
	return p.rest.History.Blobs.Read(ctx, n.Blob)
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
