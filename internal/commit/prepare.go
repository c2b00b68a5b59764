package commit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/cache"
	"github.com/turnstonedb/turnstone/internal/history"
)

// prepare hashes and compresses the contents that the commit stores. It stores those that are
// too large for the batch ahead of it. The head decides only which checkpoint parts can be stored
// as deltas.
// room is how many bytes of larger payloads all sessions' nodes may still have in them.
func (w *writer) prepare(ctx context.Context, room *int) error {
	w.payloads = make([]payload, len(w.in.Nodes))
	w.parts = nil
	w.hits, w.misses = 0, 0
	var err error
	for i := range w.in.Nodes {
		p, content := &w.payloads[i], w.in.Nodes[i].Payload
		if len(content) <= graph.MaxPlain {
			continue
		}
		p.sum = blob.Sum(content)
		first := w.head.Revision == 0 && i < prompts
		if !first && w.together(p.sum, len(content)) && len(content) <= *room && w.stage.room(len(content)) {
			*room -= len(content)
			continue
		}
		if p.apart, err = w.stage.Draft(ctx, p.sum, content); err != nil {
			return err
		}
	}
	if len(w.in.Checkpoint) == 0 && len(w.in.Stored) == 0 {
		return nil
	}
	w.parts = make(map[string]*version, len(w.in.Checkpoint)+len(w.in.Stored))
	for _, name := range slices.Sorted(maps.Keys(w.in.Checkpoint)) {
		if w.parts[name], err = w.version(ctx, name, w.in.Checkpoint[name]); err != nil {
			return err
		}
	}
	if len(w.in.Stored) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(w.in.Stored))
	ids := make([]blob.ID, len(names))
	for i, name := range names {
		ids[i] = w.in.Stored[name]
	}
	sizes, err := w.store.Blobs.Sizes(ctx, ids)
	if err != nil {
		return err
	}
	for i, name := range names {
		size := max(sizes[i], 0) // readAttachments refuses one that is not there.
		w.parts[name] = &version{id: ids[i], size: size, draft: &blob.Draft{ID: ids[i], Size: size, Stored: true}, stored: true}
	}
	return nil
}

// These say which payloads of more than graph.MaxPlain bytes are stored as blobs. A blob is stored
// once, however many nodes have it, but a payload that is stored with its neighbours takes half of
// the space or less: they have much in common.
const (
	// prompts is how many nodes a session begins with that many sessions may have: a prompt and the
	// description of tools.
	prompts     = 2
	inlineBytes = 512 << 10 // of such payloads in one commit, out of the room that its stage has
	metBytes    = 200       // that Met takes for a payload
)

// A Met remembers in which session larger payloads were met first.
type Met = cache.Cache[blob.ID, head.Incarnation]

// NewMet returns a Met that remembers none, within a budget.
func NewMet(b *cache.Budget) *Met { return cache.New[blob.ID, head.Incarnation](b) }

// together reports whether a payload is stored with the other nodes of its commit. What this process
// has met in another session is stored as a blob.
func (w *writer) together(id blob.ID, size int) bool {
	if size > w.store.Inline {
		return false
	}
	inc, met := w.store.Met.Get(id)
	if !met {
		w.store.Met.Put(id, w.s.Inc, metBytes)
	}
	return !met || inc == w.s.Inc
}

// version prepares a version of a checkpoint part. It prepares a delta if the cache has the
// current version and the batch has room. Otherwise it prepares the whole content.
func (w *writer) version(ctx context.Context, name string, content []byte) (*version, error) {
	v := &version{id: blob.Sum(content), size: int64(len(content))}
	v.base = w.store.Bases.Get(w.s.Inc, name)
	if v.base == nil || !isBase(v.base, w.head, name) {
		w.misses++
	} else {
		w.hits++
		if v.id == v.base.ID {
			return v, nil // The part has this content already.
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
	v.draft, err = w.stage.Draft(ctx, v.id, content)
	return v, err
}

// isBase reports whether base is the version of a part in head h.
func isBase(base *blob.Base, h *head.Head, name string) bool {
	return slices.ContainsFunc(h.Parts, func(p head.Part) bool {
		return p.Name == name && p.Blob == base.ID && uint64(p.Set) == base.Revision
	})
}

// basesHold reports whether the commit's deltas are relative to the versions in the head.
func (w *writer) basesHold() bool {
	for name, v := range w.parts {
		if v.base != nil && !isBase(v.base, w.head, name) {
			return false
		}
	}
	return true
}

// readAttachments checks that the session may refer to each attachment: an earlier commit or an
// ancestor has it, or an upload grants it. It sets w.attached and w.grants.
func (w *writer) readAttachments(ctx context.Context) error {
	blobs, space := w.store.Blobs, w.store.Space
	ids := w.in.referred()
	var ks [][]byte
	for _, id := range ids {
		hash := space.BlobHash(id)
		ks = append(ks, space.Attachment(w.s.Inc, hash), space.Upload(w.s.Inc, hash))
	}
	w.attached, w.grants = nil, nil
	if len(ids) == 0 {
		return nil
	}
	w.attached = make(map[string][]byte, len(ids))
	vs, err := w.store.Engine.Get(ctx, ks...)
	if err != nil {
		return err
	}
	for i, id := range ids {
		own, grant := vs[2*i], vs[2*i+1]
		w.attached[string(ks[2*i])] = own
		if grant != nil {
			w.grants = append(w.grants, ks[2*i+1])
		} else if own == nil {
			if _, err := w.s.FindAttachment(ctx, w.head.Revision, id); errors.Is(err, history.ErrBlobNotFound) {
				return fmt.Errorf("%w: %s", ErrUploadExpired, id)
			} else if err != nil {
				return err
			}
		}
	}
	absent, err := blobs.Known(ctx, w.stage.Marks, ids)
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
				if size < 0 { // It was removed meanwhile.
					return fmt.Errorf("%w: %s", ErrUploadExpired, a.ID)
				}
				return history.NewInvalid(fmt.Sprintf("node %d", i), "attachment %q is of %d bytes, not of %d", a.Name, size, a.Size)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.in.Stored)) {
		switch size := sizes[slices.Index(ids, w.in.Stored[name])]; {
		case size != w.parts[name].size: // It was removed meanwhile.
			return fmt.Errorf("%w: %s", ErrUploadExpired, w.in.Stored[name])
		case size > w.store.Limits.Part:
			return &history.LimitError{Limit: "bytes", Where: "checkpoint part " + name, Have: size, Max: w.store.Limits.Part}
		}
	}
	return nil
}

// referred returns the ids of the attachments that the request refers to, each one once.
func (in *Request) referred() (ids []blob.ID) {
	add := func(id blob.ID) {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	for i := range in.Nodes {
		for _, a := range in.Nodes[i].Attachments {
			add(a.ID)
		}
	}
	if len(in.Stored) > 0 {
		for _, name := range slices.Sorted(maps.Keys(in.Stored)) {
			add(in.Stored[name])
		}
	}
	return ids
}

// Expired makes an error of an upload that took longer than Options.UploadTTL match
// ErrUploadExpired.
func Expired(err error) error {
	if errors.Is(err, blob.ErrExpired) {
		return fmt.Errorf("%w: %w", ErrUploadExpired, err)
	}
	return err
}
