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
	w := writer{s: s, in: &c, change: change{store: store}}
	ctx, end := store.begin(ctx, OpCommit, s.id)
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
		if err := v(ctx, s.id, w.in.clone()); err != nil {
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

	payloads []*blob.Draft          // of in.Nodes; nil where the payload stays inline
	parts    map[string]*blob.Draft // of in.Checkpoint
	marks    blob.Marks             // of what the commit may rely on
	upload   *blob.Upload           // of what is stored ahead of the batch, if anything is
	attached map[string][]byte      // entries of attachments by key: nil where the session has none yet
	tickets  [][]byte               // keys of what it was granted by uploads
	keysFree bool                   // no ancestor has an event key of in.Nodes

	built *built
	batch *engine.Batch
	head  *head.Head // that the batch sets, and
	raw   []byte     // its record

	change // whether an attempt may stand

	hits, misses int // parts whose last version was at hand, and not
}

func (w *writer) run(ctx context.Context) (Result, error) {
	result, err := w.attempt(ctx)
	if w.upload != nil && (err != nil && !errors.Is(err, ErrOutcomeUnknown) || result.Replayed) {
		// What was stored ahead is garbage; if this fails it expires.
		_ = w.upload.Abandon(context.WithoutCancel(ctx))
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
			if err := w.prepare(ctx); err != nil {
				return Result{}, err
			}
		}
		if err := w.build(ctx, h, raw); errors.Is(err, errBaseGone) {
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
		if err = w.apply(ctx, w.batch); err == nil {
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
				err = w.told(err)
			}
			return Result{}, err
		}
		fresh = true
	}
}

// errBaseGone: what a part was to be stored relative to has been removed.
var errBaseGone = errors.New("base removed")

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
	h, vs, err := s.readHead(ctx, s.headKey)
	if err != nil {
		return nil, nil, err
	}
	return h, vs[0], nil
}

// prepare does what does not depend on the head: hashing, compressing, deltas.
// What is too large for the commit's batch is stored ahead of it.
func (w *writer) prepare(ctx context.Context) error {
	blobs := w.s.store.blobs
	w.payloads = make([]*blob.Draft, len(w.in.Nodes))
	w.parts = make(map[string]*blob.Draft, len(w.in.Checkpoint))
	w.marks = blob.Marks{}
	w.hits, w.misses = 0, 0
	if w.upload != nil { // once more, as something it relied on was removed
		_ = w.upload.Abandon(ctx)
		w.upload = nil
	}
	inBatch := 0
	byID := map[blob.ID]*blob.Draft{} // equal contents of one commit are one draft
	var draft func(content []byte, base *blob.Base) (*blob.Draft, error)
	once := func(content []byte, base *blob.Base) (*blob.Draft, error) {
		id := blob.Sum(content)
		if d := byID[id]; d != nil {
			return d, nil
		}
		d, err := draft(content, base)
		byID[id] = d
		return d, err
	}
	draft = func(content []byte, base *blob.Base) (*blob.Draft, error) {
		d, err := blob.Prepare(content, base)
		if errors.Is(err, blob.ErrStream) {
			if d, err = w.ahead().Write(ctx, bytes.NewReader(content), int64(len(content))); err == nil {
				err = w.upload.Put(ctx, d)
			}
			if err != nil {
				return nil, expired(err)
			}
			d.Stored = true
			return d, nil
		}
		if err != nil {
			return nil, err
		}
		if absent, err := blobs.Known(ctx, w.marks, d.Depends); err != nil {
			return nil, err
		} else if len(absent) > 0 { // the base is gone: do without
			return draft(content, nil)
		}
		if inBatch += d.Bytes(); inBatch > aheadBytes {
			err = w.ahead().Put(ctx, d)
			if errors.Is(err, blob.ErrNotFound) {
				return draft(content, nil)
			}
			d.Stored = err == nil
			return d, expired(err)
		}
		return d, nil
	}
	for i := range w.in.Nodes {
		if p := w.in.Nodes[i].Payload; uint64(len(p)) > w.s.store.record.spill {
			var err error
			if w.payloads[i], err = once(p, nil); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.in.Checkpoint)) {
		var err error
		content, base := w.in.Checkpoint[name], w.s.store.bases.get(w.s.inc, name)
		if base != nil {
			w.hits++
		} else {
			w.misses++
		}
		if w.parts[name], err = once(content, base); err != nil {
			return err
		}
	}
	return nil
}

// ahead returns the upload of what is stored ahead of the batch.
func (w *writer) ahead() *blob.Upload {
	if w.upload == nil {
		w.upload = w.s.store.newUpload()
	}
	return w.upload
}

// expired gives the error of an upload that took longer than Options.UploadTTL
// its public name.
func expired(err error) error {
	if errors.Is(err, blob.ErrExpired) {
		return fmt.Errorf("%w: %w", ErrUploadExpired, err)
	}
	return err
}

// aheadBytes is how much of blobs a commit's batch carries; the rest of what an
// engine admits at least (2 MiB) is for the pack and the index.
const aheadBytes = 1 << 20

// drafts returns the drafts of the payloads and parts that are blobs.
func (w *writer) drafts() []*blob.Draft {
	var out []*blob.Draft
	for _, d := range w.payloads {
		if d != nil {
			out = append(out, d)
		}
	}
	for _, d := range w.parts {
		out = append(out, d)
	}
	return out
}

// readMarks makes the marks known that the commit relies on: they are in memory
// for most commits, or there are none.
func (w *writer) readMarks(ctx context.Context, h *head.Head) error {
	blobs := w.s.store.blobs
	var bases, ids []blob.ID
	for _, d := range w.drafts() {
		if d.Stored {
			ids = append(ids, d.ID)
			continue
		}
		blobs.Hint(w.marks, d.ID)
		bases = append(bases, d.Depends...)
	}
	if absent, err := blobs.Known(ctx, w.marks, bases); err != nil {
		return err
	} else if len(absent) > 0 {
		w.dropBases()
		return errBaseGone
	}
	if absent, err := blobs.Known(ctx, w.marks, ids); err != nil {
		return err
	} else if len(absent) > 0 {
		return errBaseGone // stored ahead and removed since: store it again
	}
	return w.readAttachments(ctx, h)
}

// dropBases makes the parts of the commit be stored by themselves.
func (w *writer) dropBases() {
	for name := range w.parts {
		w.s.store.bases.drop(w.s.inc, name)
	}
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
			ks = append(ks, space.Attachment(w.s.inc, hash), space.Upload(w.s.inc, hash))
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
			if _, err := w.s.attached(ctx, h.Revision, id); errors.Is(err, ErrBlobNotFound) {
				return fmt.Errorf("%w: %s", ErrUploadExpired, id)
			} else if err != nil {
				return err
			}
		}
	}
	absent, err := blobs.Known(ctx, w.marks, ids)
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
	s.store.blobs.Applied(w.batch, w.drafts())
	for name, d := range w.parts {
		s.store.bases.put(s.inc, name, blob.Base{ID: d.ID, Content: w.in.Checkpoint[name]})
	}
	for _, name := range w.in.Drop {
		s.store.bases.drop(s.inc, name)
	}
	bucketKey := s.store.space.Bucket(s.inc)
	for _, p := range w.batch.Sets {
		if bytes.Equal(p.Key, bucketKey) {
			s.mu.Lock()
			s.bucket = p.Value
			s.mu.Unlock()
		}
	}
	if w.head.Raw-s.sealedRaw.Load() >= uint64(s.store.opts.SealBytes) {
		s.store.sealer.add(s)
	}
	return Result{Revision: c.Revision, Commit: w.built.id, Leaf: c.Leaf, Nodes: w.built.ids}
}
