package turnstone

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// AnyRevision as Commit.Expected appends to whatever the head is.
const AnyRevision = ^Revision(0)

// A Commit is one turn: all of it is stored, or nothing.
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
	// Key is the caller's name for the event, unique in the session; may be empty.
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

// base is what a commit builds on: the head, or for a comparison with what was
// committed, the state before that commit.
type base struct {
	revision   Revision
	commit     CommitID
	leaf, last NodeID
	partsAt    Revision
	parts      []head.Part
}

func baseOf(h *head.Head) base {
	return base{revision: h.Revision, commit: h.Commit, leaf: h.Leaf, last: h.Last, partsAt: h.PartsAt, parts: h.Parts}
}

// Commit stores c. The fast path is one Apply: the head that this handle saw
// last is guarded, not read again; so are the absence of the turn id and the
// marks of the blobs that are relied upon. When a guard is false, what stands
// there is read and the commit either ends with a typed error or is built anew.
//
// An error that matches ErrOutcomeUnknown leaves open whether the commit
// stands; after any other error nothing of it is visible.
func (s *Session) Commit(ctx context.Context, c Commit) (Result, error) {
	if err := checkCommit(&c); err != nil {
		return Result{}, err
	}
	if v := s.store.opts.Validator; v != nil {
		if err := v(ctx, s.id, &c); err != nil {
			return Result{}, fmt.Errorf("%w: %w", ErrRejected, err)
		}
	}
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	w := writer{s: s, in: &c, now: s.store.now()}
	rand.Read(w.salt[:])
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
	attached map[string]bool        // keys of attachments that the session has already

	built *built
	batch *engine.Batch
	head  *head.Head // that the batch sets, and
	raw   []byte     // its record

	unknown bool // the outcome of an attempt is not known: it may stand
}

func (w *writer) run(ctx context.Context) (Result, error) {
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
		unknown, err := s.store.apply(ctx, w.batch)
		w.unknown = w.unknown || unknown
		if err == nil {
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
			if w.unknown && !decided(err) {
				err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
			}
			return Result{}, err
		}
		fresh = true
	}
}

// decided reports whether err ends a commit that is known not to stand.
func decided(err error) bool {
	for _, e := range []error{ErrConflict, ErrTurnConflict, ErrInvalid, ErrSessionDeleted} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
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
	inBatch := 0
	var draft func(content []byte, base *blob.Base) (*blob.Draft, error)
	draft = func(content []byte, base *blob.Base) (*blob.Draft, error) {
		d, err := blob.Prepare(content, base)
		if errors.Is(err, blob.ErrStream) {
			id, size, err := blobs.Write(ctx, bytes.NewReader(content), int64(len(content)))
			return blob.Stored(id, size), err
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
			err = blobs.Put(ctx, d)
			if errors.Is(err, blob.ErrNotFound) {
				return draft(content, nil)
			}
			return d, err
		}
		return d, nil
	}
	for i := range w.in.Nodes {
		if p := w.in.Nodes[i].Payload; uint64(len(p)) > w.s.store.record.spill {
			var err error
			if w.payloads[i], err = draft(p, nil); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.in.Checkpoint)) {
		var err error
		content := w.in.Checkpoint[name]
		if w.parts[name], err = draft(content, w.s.store.bases.get(w.s.inc, name)); err != nil {
			return err
		}
	}
	return nil
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

// readMarks makes the marks known that the commit relies on, and finds out which
// attachments the session has: both are in memory for most commits, or there
// are none.
func (w *writer) readMarks(ctx context.Context) error {
	blobs, space := w.s.store.blobs, w.s.store.space
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
		for name := range w.parts {
			w.s.store.bases.drop(w.s.inc, name)
		}
		return errBaseGone
	}
	var entries [][]byte
	for i := range w.in.Nodes {
		for _, a := range w.in.Nodes[i].Attachments {
			ids = append(ids, a.ID)
			entries = append(entries, space.Attachment(w.s.inc, space.BlobHash(a.ID)))
		}
	}
	absent, err := blobs.Known(ctx, w.marks, ids)
	for _, id := range absent {
		if err == nil && !slices.ContainsFunc(w.drafts(), func(d *blob.Draft) bool { return d.ID == id && !d.Stored }) {
			err = fmt.Errorf("%w: %s", ErrBlobNotFound, id)
		}
	}
	if err != nil || len(entries) == 0 {
		return err
	}
	vs, err := w.s.store.engine.Get(ctx, entries...)
	w.attached = map[string]bool{}
	for i, v := range vs {
		w.attached[string(entries[i])] = v != nil
	}
	return err
}

// built is a commit in all its parts.
type built struct {
	pack   graph.Pack
	commit head.Commit
	body   []byte
	id     CommitID
	ids    []NodeID
	parts  []head.Part
	bytes  uint64 // of payloads
	older  []NodeID
}

// assemble is the commit that in makes on top of b: a pure function, so that a
// turn that is committed again can be compared with what is stored.
func assemble(in *Commit, payloads []*blob.Draft, parts map[string]*blob.Draft, b base, salt graph.Salt, now time.Time) (*built, error) {
	revision := b.revision + 1
	out := &built{
		pack: graph.Pack{Revision: uint64(revision), Salt: salt, Nodes: make([]graph.Node, len(in.Nodes))},
		ids:  make([]NodeID, len(in.Nodes)),
	}
	resolve := func(what string, of int, r Ref, fallback NodeID) (NodeID, error) {
		switch r.kind {
		case refNone:
			return NodeID{}, nil
		case refID:
			if r.id.IsZero() {
				return NodeID{}, invalid(fmt.Sprintf(what, of), "names the zero node id")
			}
			if r.id != b.leaf {
				out.older = append(out.older, r.id)
			}
			return r.id, nil
		case refNew:
			if r.index < 0 || r.index >= of {
				return NodeID{}, invalid(fmt.Sprintf(what, of), "names new node %d of %d before it", r.index, of)
			}
			return out.ids[r.index], nil
		}
		return fallback, nil
	}
	previous := b.leaf
	var scratch []byte
	for i := range in.Nodes {
		n, stored := &in.Nodes[i], &out.pack.Nodes[i]
		parent, err := resolve("parent of node %d", i, n.Parent, previous)
		if err != nil {
			return nil, err
		}
		*stored = graph.Node{Parent: parent, Kind: n.Kind, Key: n.Key, Size: int64(len(n.Payload)), Attachments: n.Attachments}
		if d := payloads[i]; d != nil {
			stored.Blob = d.ID
		} else {
			stored.Inline = n.Payload
		}
		scratch = stored.Derive(salt, i, scratch)
		out.ids[i], previous = stored.ID, stored.ID
		out.bytes += uint64(len(n.Payload))
	}
	leaf, err := resolve("leaf after %d nodes", len(in.Nodes), in.Leaf, previous)
	if err != nil {
		return nil, err
	}
	last := b.last
	if len(out.ids) > 0 {
		last = out.ids[len(out.ids)-1]
	}
	var changed bool
	out.parts, changed = mergeParts(b.parts, parts, in.Drop, revision)
	if len(out.parts) > MaxParts {
		return nil, &LimitError{Limit: "checkpoint parts", Where: "session", Have: int64(len(out.parts)), Max: MaxParts}
	}
	out.commit = head.Commit{
		Revision: revision, Previous: b.commit, Leaf: leaf, Last: last, Nodes: len(out.ids),
		PartsAt: b.partsAt, Usage: in.Usage, Turn: in.Turn, Time: now,
	}
	if changed {
		out.commit.PartsAt, out.commit.Parts = revision, out.parts
	}
	if !out.pack.Linear(leaf) {
		out.commit.NodeDigest = out.pack.Digest()
	}
	out.body = out.commit.Body()
	out.id = head.IDOf(out.body)
	return out, nil
}

// mergeParts returns the checkpoint after a commit, by name, and whether it
// differs from the one before. A part set to what it was is no change.
func mergeParts(old []head.Part, set map[string]*blob.Draft, drop []string, revision Revision) (parts []head.Part, changed bool) {
	if len(set) == 0 && len(drop) == 0 {
		return old, false
	}
	for _, p := range old {
		if slices.Contains(drop, p.Name) {
			changed = true
			continue
		}
		if d := set[p.Name]; d != nil && d.ID != p.Blob {
			continue
		}
		parts = append(parts, p)
	}
	for name, d := range set {
		if !slices.ContainsFunc(parts, func(p head.Part) bool { return p.Name == name }) {
			parts = append(parts, head.Part{Name: name, Blob: d.ID, Size: d.Size, Set: revision})
			changed = true
		}
	}
	slices.SortFunc(parts, func(a, b head.Part) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return parts, changed
}

// build makes the batch for a commit on top of h, whose record is raw.
func (w *writer) build(ctx context.Context, h *head.Head, raw []byte) (err error) {
	s, space := w.s, w.s.store.space
	if w.built, err = assemble(w.in, w.payloads, w.parts, baseOf(h), w.salt, w.now); err != nil {
		return err
	}
	c, pack := &w.built.commit, &w.built.pack
	b := &engine.Batch{Sets: make([]engine.Pair, 0, 8+2*len(w.in.Nodes)), Guards: make([]engine.Pair, 0, 4)}
	w.batch = b
	b.Guard(s.headKey, raw)
	if err := w.checkOlder(ctx, h); err != nil {
		return err
	}
	next := &head.Head{
		Incarnation: s.inc, Revision: c.Revision, Leaf: c.Leaf, Last: c.Last, Commit: w.built.id,
		PartsAt: c.PartsAt, Parts: w.built.parts,
		Nodes: h.Nodes + uint64(len(pack.Nodes)), Bytes: h.Bytes + w.built.bytes, Raw: h.Raw,
		Usage: head.Sum(slices.Clone(h.Usage), w.in.Usage), Updated: w.now,
	}
	if len(next.Usage) > head.MaxModels {
		return &LimitError{Limit: "models", Where: "session", Have: int64(len(next.Usage)), Max: head.MaxModels}
	}
	if len(pack.Nodes) > 0 {
		next.Raw += pack.Raw()
		ks, vs, err := graph.EncodeSegment(space, s.inc, []graph.Pack{*pack}, h.Last, codec.Fast)
		if err != nil {
			return &LimitError{Limit: "commit bytes", Have: int64(w.built.bytes), Max: int64(s.store.engine.Limits().BatchBytes)}
		}
		for i := range ks {
			b.Set(ks[i], vs[i])
		}
	}
	key := s.commitKey(c.Revision)
	b.Set(key, codec.Seal(key, keys.Commit, w.built.body))
	w.index(b)
	if err := w.readMarks(ctx); err != nil {
		return err
	}
	if err := w.addBlobs(b); err != nil {
		return err
	}
	s.store.setDirty(b, s.dirtyKey)
	s.mu.Lock()
	bucket := s.bucket
	s.mu.Unlock()
	s.store.moveOrder(b, s.inc, s.hash, bucket, w.now)
	w.head, w.raw = next, next.Seal(s.headKey)
	b.Set(s.headKey, w.raw)
	if err := b.Check(s.store.engine.Limits()); err != nil {
		if errors.Is(err, engine.ErrTooLarge) {
			l := s.store.engine.Limits()
			if b.Ops() > l.BatchOps {
				return &LimitError{Limit: "writes", Where: "commit (nodes, keys and blobs)", Have: int64(b.Ops()), Max: int64(l.BatchOps)}
			}
			err = &LimitError{Limit: "commit bytes", Have: int64(b.Bytes()), Max: int64(l.BatchBytes)}
		}
		return err
	}
	return nil
}

// index adds the index entries of the new nodes and of the turn.
func (w *writer) index(b *engine.Batch) {
	s, space := w.s, w.s.store.space
	revision := w.built.pack.Revision
	for i := range w.built.pack.Nodes {
		n := &w.built.pack.Nodes[i]
		place := graph.Place{Revision: revision, Position: i}
		key := space.Node(s.inc, n.ID)
		b.Set(key, place.Seal(key, keys.Node))
		if n.Key != "" {
			key := space.EventKey(s.inc, n.Key)
			b.Guard(key, nil)
			b.Set(key, place.Seal(key, keys.EventKey))
		}
	}
	if w.in.Turn != "" {
		key := space.Turn(s.inc, w.in.Turn)
		b.Guard(key, nil)
		b.Set(key, codec.Seal(key, keys.Turn, binary.AppendUvarint(nil, revision)))
	}
}

// addBlobs adds what the commit refers to and, where it is new, its bytes.
func (w *writer) addBlobs(b *engine.Batch) error {
	s, blobs := w.s, w.s.store.blobs
	seen := map[blob.ID]bool{}
	add := func(d *blob.Draft) error {
		if d == nil || seen[d.ID] {
			return nil
		}
		seen[d.ID] = true
		return blobs.Add(b, d, w.marks)
	}
	for _, d := range w.payloads {
		if err := add(d); err != nil {
			return err
		}
	}
	for _, p := range w.built.parts {
		// A part that carries over needs no guard: the head that is guarded holds it.
		if d := w.parts[p.Name]; d != nil && p.Set == w.built.commit.Revision {
			if err := add(d); err != nil {
				return err
			}
		}
	}
	for i := range w.in.Nodes {
		for _, a := range w.in.Nodes[i].Attachments {
			if !seen[a.ID] && !blobs.Rely(b, a.ID, w.marks) {
				return fmt.Errorf("%w: %s", ErrBlobNotFound, a.ID)
			}
			// The first place stays: forks see up to a revision.
			key := s.store.space.Attachment(s.inc, s.store.space.BlobHash(a.ID))
			if !w.attached[string(key)] {
				w.attached[string(key)] = true
				place := graph.Place{Revision: w.built.pack.Revision, Position: i}
				b.Set(key, place.Seal(key, keys.Attachment))
			}
		}
	}
	return nil
}

// checkOlder verifies that the nodes that the commit goes on from, and that are
// neither new nor the head's leaf, are of this session's graph, and guards the
// lifecycle record, so that none of them is removed meanwhile.
func (w *writer) checkOlder(ctx context.Context, h *head.Head) error {
	if len(w.built.older) == 0 {
		return nil
	}
	_, raw, err := w.s.life(ctx)
	if err != nil {
		return err
	}
	for _, id := range w.built.older {
		if _, err := w.s.find(ctx, h.Revision, id); err != nil {
			if errors.Is(err, ErrNodeNotFound) {
				return invalid("commit", "node %s is not in the graph of session %q", id, w.s.id)
			}
			return err
		}
	}
	w.batch.Guard(w.s.lifeKey, raw)
	return nil
}

// done records what was committed and returns it.
func (w *writer) done() Result {
	s, c := w.s, &w.built.commit
	s.remember(w.head, w.raw)
	s.store.blobs.Applied(w.batch, w.drafts())
	for name, d := range w.parts {
		if depth, known := d.Depth(); known {
			s.store.bases.put(s.inc, name, blob.Base{ID: d.ID, Content: w.in.Checkpoint[name], Depth: depth})
		} else {
			s.store.bases.keep(s.inc, name, d.ID)
		}
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

// errStands: after an unknown outcome, the commit turned out to stand.
var errStands = errors.New("the commit stands")

// replayed carries the result of a turn that was committed before.
type replayed struct{ result Result }

func (*replayed) Error() string { return "turn replayed" }

// resolve finds out why a guard was false, and returns the head to go on from,
// or the error that the commit ends with.
func (w *writer) resolve(ctx context.Context, conflict error) (*head.Head, []byte, error) {
	s, space := w.s, w.s.store.space
	turnKey := space.Turn(s.inc, w.in.Turn)
	bucketKey := space.Bucket(s.inc)
	h, vs, err := s.readHead(ctx, s.headKey, bucketKey, turnKey)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	s.bucket = vs[1]
	s.mu.Unlock()
	if w.unknown && h.Revision >= w.built.commit.Revision {
		_, id, err := s.commitAt(ctx, w.built.commit.Revision)
		if err != nil {
			return nil, nil, err
		}
		if id == w.built.id {
			return nil, nil, errStands
		}
	}
	if w.in.Turn != "" && vs[2] != nil {
		return nil, nil, w.replay(ctx, turnKey, vs[2])
	}
	if w.in.Expected != AnyRevision && h.Revision != w.in.Expected {
		return nil, nil, s.conflict(w.in.Expected, h)
	}
	var ce *engine.ConflictError
	if errors.As(conflict, &ce) {
		switch space.Letter(ce.Key) {
		case keys.Mark: // marks changed under us, or were not known
			var ids []blob.ID
			for _, d := range w.drafts() {
				ids = append(append(ids, d.ID), d.Depends...)
			}
			for i := range w.in.Nodes {
				for _, a := range w.in.Nodes[i].Attachments {
					ids = append(ids, a.ID)
				}
			}
			if _, err := s.store.blobs.Refresh(ctx, w.marks, ids); err != nil {
				return nil, nil, err
			}
		case keys.EventKey:
			if err := w.duplicateKey(ctx, ce.Key); err != nil {
				return nil, nil, err
			}
		}
	}
	return h, vs[0], nil
}

// duplicateKey names the node whose event key is taken.
func (w *writer) duplicateKey(ctx context.Context, key []byte) error {
	vs, err := w.s.store.engine.Get(ctx, key)
	if err != nil || vs[0] == nil {
		return err
	}
	place, err := graph.OpenPlace(key, vs[0], keys.EventKey)
	if err != nil {
		return codec.Corrupt(err, "event key of session %q", w.s.id)
	}
	for i := range w.in.Nodes {
		if k := w.in.Nodes[i].Key; k != "" && bytes.Equal(w.s.store.space.EventKey(w.s.inc, k), key) {
			return invalid(fmt.Sprintf("node %d", i), "event key %q belongs to a node of revision %d already", k, place.Revision)
		}
	}
	return nil
}

func (s *Session) conflict(expected Revision, h *head.Head) error {
	return &ConflictError{Session: s.id, Expected: expected, Revision: h.Revision, Leaf: h.Leaf, Commit: h.Commit}
}

// unless ends a commit with err, unless its turn was committed before: then with
// the result of that, or with a turn conflict.
func (w *writer) unless(ctx context.Context, err error) (Result, error) {
	if w.in.Turn == "" {
		return Result{}, err
	}
	key := w.s.store.space.Turn(w.s.inc, w.in.Turn)
	vs, gerr := w.s.store.engine.Get(ctx, key)
	if gerr != nil {
		return Result{}, gerr
	}
	if vs[0] != nil {
		err = w.replay(ctx, key, vs[0])
		var r *replayed
		if errors.As(err, &r) {
			return r.result, nil
		}
	}
	return Result{}, err
}

// replay compares the commit with the one that is stored under its turn id. It
// returns *replayed when they are the same.
func (w *writer) replay(ctx context.Context, key, value []byte) error {
	s := w.s
	body, err := codec.Open(key, value, keys.Turn)
	if err != nil {
		return codec.Corrupt(err, "turn %q of session %q", w.in.Turn, s.id)
	}
	n, _ := binary.Uvarint(body)
	revision := Revision(n)
	stored, id, err := s.commitAt(ctx, revision)
	if err != nil {
		return err
	}
	if stored.Turn != w.in.Turn {
		return codec.Corrupt(codec.ErrHash, "turn %q of session %q", w.in.Turn, s.id)
	}
	before, err := s.baseBefore(ctx, revision)
	if err != nil {
		return err
	}
	var pack graph.Pack
	if stored.Nodes > 0 {
		if pack, err = retried(ctx, s, func() (graph.Pack, error) { return s.pack(ctx, revision) }); err != nil {
			return err
		}
	}
	payloads, parts := w.digests()
	again, err := assemble(w.in, payloads, parts, before, pack.Salt, stored.Time)
	if err != nil || again.id != id {
		return &TurnConflictError{Session: s.id, Turn: w.in.Turn, Revision: revision, Commit: id}
	}
	return &replayed{Result{Revision: revision, Commit: id, Leaf: stored.Leaf, Nodes: again.ids, Replayed: true}}
}

// digests returns drafts that have ids only, for assemble.
func (w *writer) digests() (payloads []*blob.Draft, parts map[string]*blob.Draft) {
	if w.parts != nil {
		return w.payloads, w.parts
	}
	payloads, parts = make([]*blob.Draft, len(w.in.Nodes)), map[string]*blob.Draft{}
	for i := range w.in.Nodes {
		if p := w.in.Nodes[i].Payload; uint64(len(p)) > w.s.store.record.spill {
			payloads[i] = &blob.Draft{ID: blob.Sum(p), Size: int64(len(p))}
		}
	}
	for name, content := range w.in.Checkpoint {
		parts[name] = &blob.Draft{ID: blob.Sum(content), Size: int64(len(content))}
	}
	return payloads, parts
}

// baseBefore returns what the commit of revision r was built on.
func (s *Session) baseBefore(ctx context.Context, r Revision) (base, error) {
	if r == 1 {
		b := base{commit: head.Genesis(s.inc, s.origin)}
		if s.origin != nil {
			b.leaf = s.origin.Ancestors[len(s.origin.Ancestors)-1].Node
			b.last, b.parts = b.leaf, s.origin.Parts
		}
		return b, nil
	}
	c, id, err := s.commitAt(ctx, r-1)
	if err != nil {
		return base{}, err
	}
	parts, err := s.partsAt(ctx, c)
	return base{revision: r - 1, commit: id, leaf: c.Leaf, last: c.Last, partsAt: c.PartsAt, parts: parts}, err
}
