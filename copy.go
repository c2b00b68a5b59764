package turnstone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/verify"
)

// CopyOptions of Copy.
type CopyOptions struct {
	Namespace string // as in Options; others of the engine are not copied
	// Overwrite makes a copy that was written to since it was made what the source
	// is all the same: what was written there is lost.
	Overwrite bool
	// Progress, if set, is called from the calling goroutine. Phases are "source"
	// and "copy", which are verified, and "records", which are compared.
	Progress func(gc.Progress)
}

// A CopyReport says what Copy did, as far as it got.
type CopyReport struct {
	Sessions int   `json:"sessions"` // whose heads are equal at the end
	Records  int   `json:"records"`  // of the store
	Written  int   `json:"written"`  // records that the copy did not have so, in all passes
	Bytes    int64 `json:"bytes"`    // of those, keys and values
	Deleted  int   `json:"deleted"`  // records that only the copy had, in all passes
}

// Copy makes the store in to what the one in from is, whatever engines they are:
// it verifies the source, compares all records, writes those that differ, verifies
// the copy, and compares the commit ids of all heads. Once more, it brings a copy
// up to date; after an interruption, it goes on.
//
// A source that is damaged is a *damage.CorruptError before anything is written. A target
// that is another store is ErrOtherStore; a copy whose sessions were changed since
// it was made is ErrConflict, unless Overwrite is set.
//
// From its first write until it is proven the copy can't be opened
// (ErrUnfinishedCopy); nobody may have it open already. The source may be written to
// meanwhile: records are compared until a pass finds nothing new, four times at
// most, and then the result is ErrConflict.
func Copy(ctx context.Context, from, to engine.Engine, o CopyOptions) (*CopyReport, error) {
	switch {
	case ctx == nil:
		return nil, invalid("context", "it is nil")
	case from == nil || to == nil:
		return nil, invalid("copy", "an engine is nil")
	}
	c := checker{of: "options"}
	if c.text("namespace", o.Namespace, 0, MaxNamespace); c.err != nil {
		return nil, c.err
	}
	options := verify.CopyOptions{From: from, To: to, Namespace: o.Namespace, Known: head.Known, Overwrite: o.Overwrite}
	if o.Progress != nil {
		options.Progress = func(phase string, done int) { o.Progress(gc.Progress{Phase: phase, Done: done}) }
	}
	r, err := verify.Copy(ctx, options)
	return (*CopyReport)(r), err
}

// Clone makes the session that r describes and commits to it what each turn of the session id has committed: a fork
// with the whole chain of revisions, which lives by itself. Every revision has its nodes, leaf, turn id, usage,
// labels, names, and checkpoint, as far as the source shows them: what was tombstoned or pruned there is not in the
// clone. Nodes and commits get other ids, and the times are those of the cloning. Records are not cloned.
//
// The clone is a child of the source, and begins as that did. Parent, ForkNode, ForkAt, NoCheckpoint and Detached of
// r must be zero. It takes one commit for each turn. If Clone fails, it deletes what it has made, and if it can't,
// the error matches ErrIncomplete. What a crash leaves has fewer revisions than the source, and is to be deleted
// before the next try.
func Clone(ctx context.Context, f Factory, id string, r Request) (Persistence, error) {
	if f == nil {
		return nil, invalid("clone", "the factory is nil")
	}
	if r.Parent != "" || !r.ForkNode.IsZero() || r.ForkAt != 0 || r.NoCheckpoint || r.Detached {
		return nil, invalid("clone", "the request has Parent, ForkNode, ForkAt, NoCheckpoint or Detached")
	}
	from, err := f.Session(ctx, id)
	if err != nil {
		return nil, err
	}
	r.Parent, r.ForkAt = id, RevisionZero
	for {
		to, err := clone(ctx, f, from, r)
		if !errors.Is(err, errHidden) || errors.Is(err, ErrIncomplete) {
			return to, err
		}
	}
}

// errHidden: a node was tombstoned and vacuumed while it was cloned.
var errHidden = errors.New("turnstone: a node was tombstoned while it was cloned")

// clone is one attempt of Clone.
func clone(ctx context.Context, f Factory, from Persistence, r Request) (Persistence, error) {
	to, created, err := f.Create(ctx, r)
	if errors.Is(err, ErrRevisionPruned) { // The checkpoint that the source began with is gone.
		r.NoCheckpoint = true
		to, created, err = f.Create(ctx, r)
	}
	if err == nil && !created {
		err = ErrExists
	}
	if err != nil {
		return nil, err
	}
	c := cloner{from: from, to: to, ids: map[graph.ID]graph.ID{}, inherited: map[graph.ID]bool{}, attached: map[blob.ID]bool{}}
	if err := c.run(ctx); err != nil {
		if gone := to.Delete(context.WithoutCancel(ctx), AnyRevision, KeepChildren); gone != nil {
			err = fmt.Errorf("%w: the clone is not whole, and could not be deleted: %w: %w", ErrIncomplete, gone, err)
		}
		return nil, err
	}
	return to, nil
}

// A cloner is one call of Clone.
type cloner struct {
	from, to Persistence

	ids       map[graph.ID]graph.ID // the node of the clone for each one that the source has committed
	inherited map[graph.ID]bool     // the nodes that both have
	attached  map[blob.ID]bool      // the attachments that the clone has
	parts     map[string]blob.ID    // the checkpoint of the clone

	next func() (Node, error, bool)
	node Node // the next one of the source, if more is set
	more bool
}

func (c *cloner) run(ctx context.Context) error {
	end, err := c.from.Info(ctx)
	if err != nil {
		return err
	}
	begin, err := c.to.Load(ctx, Scope{Last: 1})
	if err != nil {
		return err
	}
	c.setParts(begin.Parts)
	var stop func()
	c.next, stop = iter.Pull2(c.from.Nodes(ctx, Scope{Full: true}))
	defer stop()
	if err := c.step(); err != nil {
		return err
	}
	kept, err := c.from.Kept(ctx)
	if err != nil {
		return err
	}
	for e, err := range c.from.Log(ctx, 0) {
		if err != nil || e.Revision > end.Revision {
			return err
		}
		if err := c.turn(ctx, &e); err != nil {
			return err
		}
		for _, k := range kept {
			if k.Revision == e.Revision {
				if err := c.to.Keep(ctx, k.Name, k.Revision); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// step reads the next node that the source itself has committed.
func (c *cloner) step() (err error) {
	for {
		if c.node, err, c.more = c.next(); err != nil || !c.more || !c.node.Inherited {
			return err
		}
		c.inherited[c.node.ID] = true
	}
}

func (c *cloner) setParts(parts []head.Part) {
	c.parts = map[string]blob.ID{}
	for _, p := range parts {
		c.parts[p.Name] = p.Blob
	}
}

// turn commits what a turn of the source has committed.
func (c *cloner) turn(ctx context.Context, e *LogEntry) error {
	in := Commit{Expected: e.Revision - 1, Turn: e.Turn, Usage: e.Usage, Labels: e.Labels}
	var of []graph.ID // the nodes of the source that the turn has
	for c.more && c.node.Revision <= e.Revision {
		n := NewNode{Kind: c.node.Kind, Key: c.node.Key, Payload: c.node.Payload, Attachments: c.node.Attachments}
		var err error
		if n.Parent, err = c.ref(c.node.Parent, of); err != nil {
			return err
		}
		if err := c.attach(ctx, n.Attachments); err != nil {
			return err
		}
		in.Nodes, of = append(in.Nodes, n), append(of, c.node.ID)
		if err := c.step(); err != nil {
			return err
		}
	}
	switch st, err := c.checkpoint(ctx, e.Revision, &in); {
	case errors.Is(err, ErrRevisionPruned): // The leaf stays where the nodes of the turn leave it.
	case err != nil:
		return err
	case len(st.Nodes) == 0:
		in.Leaf = RefNone()
	default:
		if in.Leaf, err = c.ref(st.Nodes[0].ID, of); err != nil { // The leaf itself may be tombstoned.
			return err
		}
	}
	r, err := c.to.Commit(ctx, in)
	for i, id := range r.Nodes {
		c.ids[of[i]] = id
	}
	return err
}

// ref returns a reference to what the clone has for a node of the source. of are the nodes of the turn.
func (c *cloner) ref(id graph.ID, of []graph.ID) (Ref, error) {
	if id.IsZero() {
		return RefNone(), nil
	}
	if i := slices.Index(of, id); i >= 0 {
		return RefNew(i), nil
	}
	if mine, ok := c.ids[id]; ok {
		return RefTo(mine), nil
	}
	if !c.inherited[id] {
		return Ref{}, errHidden
	}
	return RefTo(id), nil
}

// checkpoint makes the commit give the clone the checkpoint that the source has at a revision. It returns
// the state of the source there, with the last node of the path.
func (c *cloner) checkpoint(ctx context.Context, at head.Revision, in *Commit) (*State, error) {
	st, err := c.from.Load(ctx, Scope{At: at, Last: 1})
	if err != nil {
		return nil, err
	}
	var changed []string
	was := c.parts
	c.setParts(st.Parts)
	for name, id := range c.parts {
		if was[name] != id {
			changed = append(changed, name)
		}
	}
	for name := range was {
		if _, still := c.parts[name]; !still {
			in.Drop = append(in.Drop, name)
		}
	}
	if len(changed) > 0 {
		with, err := c.from.Load(ctx, Scope{At: at, Last: 1, Parts: changed})
		if err != nil {
			return nil, err
		}
		in.Checkpoint = maps.Clone(with.Contents)
	}
	return st, nil
}

// attach uploads the attachments that the clone does not have.
func (c *cloner) attach(ctx context.Context, attachments []blob.Attachment) error {
	for _, a := range attachments {
		if c.attached[a.ID] {
			continue
		}
		c.attached[a.ID] = true
		r, w := io.Pipe()
		go func() {
			_, err := c.from.ReadAttachment(ctx, w, a.ID)
			w.CloseWithError(err)
		}()
		_, err := c.to.PutAttachment(ctx, r, a.Size, a.MediaType, a.Name)
		r.Close()
		if err != nil {
			return err
		}
	}
	return nil
}
