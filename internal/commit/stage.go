package commit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
)

// A Stage collects the blobs that one batch refers to. The batch stores them itself as far as it
// has room. The others are stored ahead of the batch, and an upload keeps them. The batch ends
// the upload.
type Stage struct {
	store  *Store
	Owner  head.Incarnation // The session that commits or, for a fork, its parent.
	Marks  blob.Marks       // The marks of the blobs that the batch may rely on.
	drafts map[blob.ID]*blob.Draft
	bytes  int          // the size of the blobs, deltas and larger payloads that the batch stores itself
	upload *blob.Upload // nil if nothing was stored ahead
}

// stageBytes bounds the blobs, deltas and payloads of more than graph.MaxPlain bytes that a batch stores itself.
// Every engine accepts a batch of 2 MiB at least; the rest is for nodes and index entries.
const stageBytes = 1 << 20

// ErrBlobGone says that a blob which was stored ahead of the batch has been removed. The caller
// has to start over with a new stage.
var ErrBlobGone = errors.New("blob removed")

// NewStage returns an empty stage. owner may be zero until something is stored ahead.
func (s *Store) NewStage(owner head.Incarnation) Stage {
	return Stage{store: s, Owner: owner, Marks: blob.Marks{}}
}

// room reports whether the batch has room for n more bytes, and takes it.
func (g *Stage) room(n int) bool {
	if g.bytes+n > stageBytes {
		return false
	}
	g.bytes += n
	return true
}

// Draft returns the blob with this content, so that the batch can refer to it. id is the id of
// the content. Draft stores the blob ahead of the batch if the batch has no room for it.
func (g *Stage) Draft(ctx context.Context, id blob.ID, content []byte) (*blob.Draft, error) {
	if d := g.drafts[id]; d != nil {
		return d, nil
	}
	if g.drafts == nil {
		g.drafts = map[blob.ID]*blob.Draft{}
	}
	d, err := blob.Prepare(id, content)
	if errors.Is(err, blob.ErrStream) {
		d, err = g.ahead().Write(ctx, bytes.NewReader(content), int64(len(content)))
	} else if err == nil && g.room(d.Bytes()) {
		g.drafts[id] = d
		return d, nil
	}
	if err == nil {
		err = g.ahead().Put(ctx, d)
	}
	if err != nil {
		return nil, Expired(err)
	}
	d.Stored = true
	g.drafts[id] = d
	return d, nil
}

// ahead returns the upload that keeps the blobs which are stored ahead of the batch.
func (g *Stage) ahead() *blob.Upload {
	if g.upload == nil {
		g.upload = g.store.NewUpload(g.Owner)
	}
	return g.upload
}

// read fills in the marks of the blobs that the batch relies on. Most batches rely on no blobs,
// or on blobs whose marks are cached. The error is ErrBlobGone if one was removed.
func (g *Stage) read(ctx context.Context) error {
	var stored []blob.ID
	for id, d := range g.drafts {
		if d.Stored {
			stored = append(stored, id)
		} else {
			g.store.Blobs.Hint(g.Marks, id)
		}
	}
	absent, err := g.store.Blobs.Known(ctx, g.Marks, stored)
	if err == nil && len(absent) > 0 {
		err = ErrBlobGone
	}
	return err
}

// Add makes b store blob d or, if the blob is stored already, guard its mark.
func (g *Stage) Add(b *engine.Batch, d *blob.Draft) error {
	err := g.store.Blobs.Add(b, d, g.Marks)
	if errors.Is(err, blob.ErrNotFound) {
		err = fmt.Errorf("%w: %s", ErrBlobGone, d.ID)
	}
	return err
}

// IDs returns the ids of all blobs of the stage.
func (g *Stage) IDs() []blob.ID { return slices.Collect(maps.Keys(g.drafts)) }

// Finish makes b end the upload, if there is one.
func (g *Stage) Finish(b *engine.Batch) {
	if g.upload != nil {
		g.upload.Finish(b)
	}
}

// applied tells the cache of marks that b was applied.
func (g *Stage) applied(b *engine.Batch) { g.store.Blobs.Applied(b, g.IDs()) }

// Abandon ends the upload. What was stored ahead is garbage then. It ignores an error, because
// the upload expires by itself.
func (g *Stage) Abandon(ctx context.Context) {
	if g.upload != nil {
		_ = g.upload.Abandon(context.WithoutCancel(ctx))
		g.upload = nil
	}
}
