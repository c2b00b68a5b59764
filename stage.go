package turnstone

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

// A stage gathers the contents that one batch is going to refer to as blobs. The
// batch carries them as far as there is room. The rest is stored ahead of the batch,
// held by an upload that the batch ends.
type stage struct {
	store  *Store
	owner  head.Incarnation // the session that commits or, for a fork, its parent
	marks  blob.Marks       // of the blobs that the batch may rely on
	drafts map[BlobID]*blob.Draft
	bytes  int          // that the batch carries
	upload *blob.Upload // nil if nothing was stored ahead
}

// stageBytes is how much of blobs and deltas a batch carries; the rest of what an
// engine accepts at least (2 MiB) is for nodes and index.
const stageBytes = 1 << 20

// errGone: a blob that was stored ahead of the batch has been removed since. It
// has to be staged again.
var errGone = errors.New("blob removed")

// newStage returns an empty stage. owner may be zero until something is stored ahead.
func (s *Store) newStage(owner head.Incarnation) stage {
	return stage{store: s, owner: owner, marks: blob.Marks{}, drafts: map[BlobID]*blob.Draft{}}
}

// room reports whether the batch has room for n more bytes, and takes it.
func (g *stage) room(n int) bool {
	if g.bytes+n > stageBytes {
		return false
	}
	g.bytes += n
	return true
}

// draft returns content, whose id the caller knows, as a blob that the batch can refer
// to. Equal contents are one blob.
func (g *stage) draft(ctx context.Context, id BlobID, content []byte) (*blob.Draft, error) {
	if d := g.drafts[id]; d != nil {
		return d, nil
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
		return nil, expired(err)
	}
	d.Stored = true
	g.drafts[id] = d
	return d, nil
}

// ahead returns the upload of what is stored ahead of the batch.
func (g *stage) ahead() *blob.Upload {
	if g.upload == nil {
		g.upload = g.store.newUpload(g.owner)
	}
	return g.upload
}

// read makes the marks known that the batch relies on: for most batches they are in
// memory, or there are none.
func (g *stage) read(ctx context.Context) error {
	var stored []BlobID
	for id, d := range g.drafts {
		if d.Stored {
			stored = append(stored, id)
		} else {
			g.store.blobs.Hint(g.marks, id)
		}
	}
	absent, err := g.store.blobs.Known(ctx, g.marks, stored)
	if err == nil && len(absent) > 0 {
		err = errGone
	}
	return err
}

// add makes b store or rely on d.
func (g *stage) add(b *engine.Batch, d *blob.Draft) error {
	err := g.store.blobs.Add(b, d, g.marks)
	if errors.Is(err, blob.ErrNotFound) {
		err = fmt.Errorf("%w: %s", errGone, d.ID)
	}
	return err
}

// ids returns the ids of all drafts.
func (g *stage) ids() []BlobID { return slices.Collect(maps.Keys(g.drafts)) }

// finish makes b end the upload.
func (g *stage) finish(b *engine.Batch) {
	if g.upload != nil {
		g.upload.Finish(b)
	}
}

// applied tells the stage that b was applied.
func (g *stage) applied(b *engine.Batch) { g.store.blobs.Applied(b, g.ids()) }

// abandon gives up what was stored ahead: it is garbage. If abandon fails, the upload
// expires.
func (g *stage) abandon(ctx context.Context) {
	if g.upload != nil {
		_ = g.upload.Abandon(context.WithoutCancel(ctx))
		g.upload = nil
	}
}
