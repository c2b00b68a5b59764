package turnstone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/change"
)

// AnyRevision as Commit.Expected appends to whatever the head is. It goes nowhere
// else: as a revision to read or to keep it is an *InvalidError.
const AnyRevision = ^Revision(0)

// A Commit is one turn: all of it is stored, or nothing. One that changes nothing
// is a turn as well, and moves the revision.
type Commit struct {
	// Expected is the revision that the caller loaded. If the head is at
	// another one, the commit fails with *ConflictError. See AnyRevision.
	Expected Revision
	// Turn, if set, makes the commit idempotent: committing the same content
	// under the same turn id again returns the first result, however far the
	// head has moved, and another content is *TurnConflictError.
	Turn string
	// Nodes are appended in this order.
	Nodes []NewNode
	// Leaf moves the leaf: to an earlier node to rewind, with NoNode to an
	// empty conversation. The zero Ref means the last of Nodes, or where the
	// leaf is when there are none.
	Leaf Ref
	// Checkpoint sets parts; parts not mentioned carry over, at no cost.
	Checkpoint map[string][]byte
	// Drop removes parts; one that is not there is no error.
	Drop []string
	// Usage of this turn, by model.
	Usage []Usage
}

// A NewNode is a node to append.
type NewNode struct {
	// Parent is the node before. The zero Ref means the one before in
	// Commit.Nodes, and for the first one the leaf of the head.
	Parent Ref
	Kind   string // for example "user", "assistant", "tool_result"
	// Key is the caller's name for the event, unique in the session's graph, which
	// includes what a fork inherited; may be empty.
	Key         string
	Payload     []byte // opaque, returned byte for byte
	Attachments []Attachment
}

// A Ref names a node in a Commit. The zero Ref stands for a default.
type Ref struct {
	kind  refKind
	id    NodeID
	index int
}

type refKind byte

const (
	refDefault refKind = iota
	refNone
	refID
	refNew
)

// At refers to a node that exists.
func At(id NodeID) Ref { return Ref{kind: refID, id: id} }

// New refers to Commit.Nodes[i].
func New(i int) Ref { return Ref{kind: refNew, index: i} }

// NoNode is the parent of a root, and the leaf of an empty conversation.
func NoNode() Ref { return Ref{kind: refNone} }

// A Result says where a commit stands.
type Result struct {
	Revision Revision
	Commit   CommitID
	Leaf     NodeID
	Nodes    []NodeID // ids of Commit.Nodes, in order
	// Replayed says that the turn had been committed before and this call
	// changed nothing.
	Replayed bool
}

// Commit stores c. The fast path is one Apply: the head that this handle saw
// last is guarded, not read again; so are the absence of the turn id and the
// marks of the blobs that are relied upon. When a guard is false, what stands
// there is read and the commit either ends with a typed error or is built anew.
//
// An error that matches ErrOutcomeUnknown leaves open whether the commit
// stands; after any other error nothing of it is visible.
func (s *Session) Commit(ctx context.Context, c Commit) (Result, error) {
	store, err := s.usable(ctx)
	if err != nil {
		return Result{}, err
	}
	w := writer{s: s, in: &c, Change: change.Change{Engine: store.engine}}
	ctx, end := store.begin(ctx, OpCommit, s.history.ID)
	if end == nil {
		return w.commit(ctx)
	}
	o := Outcome{Err: errPanicked}
	defer func() { end(o) }()
	r, err := w.commit(ctx)
	o = w.outcome(&r, err)
	return r, err
}

// clone returns a copy of in that shares no memory with it.
func (in *Commit) clone() *Commit {
	out := *in
	out.Nodes = slices.Clone(in.Nodes)
	for i := range out.Nodes {
		n := &out.Nodes[i]
		n.Payload, n.Attachments = bytes.Clone(n.Payload), slices.Clone(n.Attachments)
	}
	out.Checkpoint = maps.Clone(in.Checkpoint)
	for name, content := range out.Checkpoint {
		out.Checkpoint[name] = bytes.Clone(content)
	}
	out.Drop, out.Usage = slices.Clone(in.Drop), slices.Clone(in.Usage)
	return &out
}

func (w *writer) commit(ctx context.Context) (Result, error) {
	s := w.s
	if err := w.in.Check(); err != nil {
		return Result{}, err
	}
	if v := s.store.opts.Validator; v != nil {
		if err := v(ctx, s.history.ID, w.in.clone()); err != nil {
			return Result{}, fmt.Errorf("%w: %w", ErrRejected, err)
		}
	}
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	w.now = s.store.now()
	s.store.random(w.salt[:])
	return w.run(ctx)
}

// A writer is one commit on its way.
type writer struct {
	s    *Session
	in   *Commit
	salt graph.Salt
	now  time.Time

	payloads []*blob.Draft       // of in.Nodes; nil where the payload stays inline
	parts    map[string]*version // of in.Checkpoint; nil until prepared
	stage    stage               // what the commit refers to as blobs
	attached map[string][]byte   // entries of attachments by key: nil where the session has none yet
	tickets  [][]byte            // keys of what it was granted by uploads
	keysFree bool                // no ancestor has an event key of in.Nodes

	built *built
	batch *engine.Batch
	head  *head.Head // that the batch sets, and
	raw   []byte     // its record

	change.Change // whether an attempt may stand

	hits, misses int // parts whose last version was at hand, and not
}

func (w *writer) run(ctx context.Context) (Result, error) {
	result, err := w.attempt(ctx)
	if err != nil && !errors.Is(err, ErrOutcomeUnknown) || result.Replayed {
		w.stage.abandon(ctx)
	}
	return result, err
}

func (w *writer) attempt(ctx context.Context) (Result, error) {
	s := w.s
	h, raw, fresh, err := s.current(ctx)
	if err != nil {
		return Result{}, err
	}
	for {
		if w.in.Expected != AnyRevision && h.Revision != w.in.Expected {
			if fresh {
				return w.unless(ctx, s.conflict(w.in.Expected, h))
			}
			if h, raw, err = s.readRaw(ctx); err != nil {
				return Result{}, err
			}
			fresh = true
			continue
		}
		if w.parts == nil {
			if err := w.prepare(ctx, h); err != nil {
				return Result{}, err
			}
		}
		if !w.basesHold(h) {
			w.parts = nil // somebody else has committed another version
			continue
		}
		if err := w.build(ctx, h, raw); errors.Is(err, errGone) {
			w.parts = nil
			continue
		} else if err != nil {
			if !fresh { // it may be the stale head that made it fail
				if h, raw, err = s.readRaw(ctx); err != nil {
					return Result{}, err
				}
				fresh = true
				continue
			}
			return w.unless(ctx, err)
		}
		if err = w.Apply(ctx, w.batch); err == nil {
			return w.done(), nil
		}
		if !errors.Is(err, engine.ErrConflict) {
			return Result{}, err
		}
		s.forget()
		if h, raw, err = w.resolve(ctx, err); err != nil {
			if errors.Is(err, errStands) {
				return w.done(), nil
			}
			var replay *replayed
			if errors.As(err, &replay) {
				return replay.result, nil
			}
			if !decided(err) {
				err = w.Result(err)
			}
			return Result{}, err
		}
		fresh = true
	}
}

// current returns the head that was seen last, or reads it.
func (s *Session) current(ctx context.Context) (h *head.Head, raw []byte, fresh bool, err error) {
	s.mu.Lock()
	h, raw = s.head, s.raw
	s.mu.Unlock()
	if raw != nil {
		return h, raw, false, nil
	}
	h, raw, err = s.readRaw(ctx)
	return h, raw, true, err
}

func (s *Session) readRaw(ctx context.Context) (*head.Head, []byte, error) {
	h, vs, err := s.readHead(ctx, s.history.HeadKey)
	if err != nil {
		return nil, nil, err
	}
	return h, vs[0], nil
}

// prepare hashes and compresses what the commit stores, and stores ahead what is too
// large for the commit's batch. The only thing that depends on the head is which
// versions parts can be stored relative to.
func (w *writer) prepare(ctx context.Context, h *head.Head) error {
	w.stage.abandon(ctx) // what an earlier attempt stored ahead
	w.stage = w.s.store.newStage(w.s.history.Inc)
	w.payloads = make([]*blob.Draft, len(w.in.Nodes))
	w.parts = make(map[string]*version, len(w.in.Checkpoint))
	w.hits, w.misses = 0, 0
	var err error
	for i := range w.in.Nodes {
		if p := w.in.Nodes[i].Payload; uint64(len(p)) > w.s.store.record.Inline {
			if w.payloads[i], err = w.stage.draft(ctx, blob.Sum(p), p); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.in.Checkpoint)) {
		if w.parts[name], err = w.version(ctx, h, name, w.in.Checkpoint[name]); err != nil {
			return err
		}
	}
	return nil
}

// version prepares a version of a checkpoint part: as a delta, if the version that
// stands is at hand and the batch has room, else whole.
func (w *writer) version(ctx context.Context, h *head.Head, name string, content []byte) (*version, error) {
	v := &version{id: blob.Sum(content), size: int64(len(content))}
	v.base = w.s.store.bases.get(w.s.history.Inc, name)
	if v.base == nil || !isBase(v.base, h, name) {
		w.misses++
	} else {
		w.hits++
		if v.id == v.base.ID {
			return v, nil // the part stays as it is
		}
		var err error
		if v.data, err = blob.Delta(content, v.base); err != nil {
			return nil, err
		}
		if v.data != nil && w.stage.room(len(v.data)) {
			v.delta = true
			return v, nil
		}
	}
	v.base, v.data = nil, nil
	var err error
	v.draft, err = w.stage.draft(ctx, v.id, content)
	return v, err
}

// isBase reports whether base is the version of a part that stands.
func isBase(base *blob.Base, h *head.Head, name string) bool {
	return slices.ContainsFunc(h.Parts, func(p head.Part) bool {
		return p.Name == name && p.Blob == base.ID && uint64(p.Set) == base.Revision
	})
}

// basesHold reports whether the versions that the commit's parts are stored relative
// to are those that stand.
func (w *writer) basesHold(h *head.Head) bool {
	for name, v := range w.parts {
		if v.base != nil && !isBase(v.base, h, name) {
			return false
		}
	}
	return true
}

// expired gives the error of an upload that took longer than Options.UploadTTL
// its public name.
func expired(err error) error {
	if errors.Is(err, blob.ErrExpired) {
		return fmt.Errorf("%w: %w", ErrUploadExpired, err)
	}
	return err
}

// readAttachments finds out which attachments the session has, by an earlier
// commit or from its ancestors, and which it was granted by an upload.
func (w *writer) readAttachments(ctx context.Context, h *head.Head) error {
	blobs, space := w.s.store.blobs, w.s.store.space
	var ids []blob.ID
	var ks [][]byte
	for i := range w.in.Nodes {
		for _, a := range w.in.Nodes[i].Attachments {
			if slices.Contains(ids, a.ID) {
				continue
			}
			hash := space.BlobHash(a.ID)
			ids = append(ids, a.ID)
			ks = append(ks, space.Attachment(w.s.history.Inc, hash), space.Upload(w.s.history.Inc, hash))
		}
	}
	w.attached, w.tickets = map[string][]byte{}, nil
	if len(ids) == 0 {
		return nil
	}
	vs, err := w.s.store.engine.Get(ctx, ks...)
	if err != nil {
		return err
	}
	for i, id := range ids {
		own, ticket := vs[2*i], vs[2*i+1]
		w.attached[string(ks[2*i])] = own
		if ticket != nil {
			w.tickets = append(w.tickets, ks[2*i+1])
		} else if own == nil {
			if _, err := w.s.history.FindAttachment(ctx, h.Revision, id); errors.Is(err, ErrBlobNotFound) {
				return fmt.Errorf("%w: %s", ErrUploadExpired, id)
			} else if err != nil {
				return err
			}
		}
	}
	absent, err := blobs.Known(ctx, w.stage.marks, ids)
	if err == nil && len(absent) > 0 {
		err = fmt.Errorf("%w: %s", ErrUploadExpired, absent[0])
	}
	if err != nil {
		return err
	}
	sizes, err := blobs.Sizes(ctx, ids)
	if err != nil {
		return err
	}
	for i := range w.in.Nodes {
		for _, a := range w.in.Nodes[i].Attachments {
			if size := sizes[slices.Index(ids, a.ID)]; a.Size != size {
				if size < 0 { // removed since
					return fmt.Errorf("%w: %s", ErrUploadExpired, a.ID)
				}
				return invalid(fmt.Sprintf("node %d", i), "attachment %q is of %d bytes, not of %d", a.Name, size, a.Size)
			}
		}
	}
	return nil
}

// done records what was committed and returns it.
func (w *writer) done() Result {
	s, c := w.s, &w.built.commit
	s.remember(w.head, w.raw)
	w.stage.applied(w.batch)
	for _, p := range w.built.parts {
		if v := w.parts[p.Name]; v != nil {
			s.store.bases.put(s.history.Inc, p.Name, v.asBase(&p, w.in.Checkpoint[p.Name]))
		}
	}
	for _, name := range w.in.Drop {
		s.store.bases.drop(s.history.Inc, name)
	}
	timeKey := s.store.space.OrderTime(s.history.Inc)
	for _, p := range w.batch.Sets {
		if bytes.Equal(p.Key, timeKey) {
			s.mu.Lock()
			s.orderTime = p.Value
			s.mu.Unlock()
		}
	}
	if w.head.Raw-s.sealedRaw.Load() >= uint64(s.store.opts.SealBytes) {
		s.sealLater()
	}
	return Result{Revision: c.Revision, Commit: w.built.id, Leaf: c.Leaf, Nodes: w.built.ids}
}

// asBase returns the version, which stands as p, as the base of the next one.
func (v *version) asBase(p *Part, content []byte) blob.Base {
	b := blob.Base{ID: p.Blob, Revision: uint64(p.Set), Content: content}
	switch {
	case v.delta:
		b.Deltas = v.base.Deltas + 1
	case p.IsDelta(): // the commit left it as it was: a delta a revision, at most
		b.Deltas = int(min(p.Set-p.Whole, blob.MaxDeltas))
	}
	return b
}
