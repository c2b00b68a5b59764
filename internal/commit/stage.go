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
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/heads"
)

// A Stage gathers the contents that one batch is going to refer to as blobs. The
// batch carries them as far as there is room. The rest is stored ahead of the batch,
// pinned by an upload that the batch ends.
type Stage struct {
	store  *Store
	Owner  heads.Incarnation // the session that commits or, for a fork, its parent
	Marks  blobs.Marks       // of the blobs that the batch may rely on
	drafts map[blob.ID]*blobs.Draft
	bytes  int           // that the batch carries
	upload *blobs.Upload // nil if nothing was stored ahead
}

// stageBytes is how much of blobs and deltas a batch carries; the rest of what an
// engine accepts at least (2 MiB) is for nodes and index.
const stageBytes = 1 << 20

// ErrBlobGone: a blob that was stored ahead of the batch has been removed since. It
// has to be staged again.
var ErrBlobGone = errors.New("blob removed")

// NewStage returns an empty stage. owner may be zero until something is stored ahead.
func (s *Store) NewStage(owner heads.Incarnation) Stage {
	return Stage{store: s, Owner: owner, Marks: blobs.Marks{}, drafts: map[blob.ID]*blobs.Draft{}}
}

// room reports whether the batch has room for n more bytes, and takes it.
func (g *Stage) room(n int) bool {
	if g.bytes+n > stageBytes {
		return false
	}
	g.bytes += n
	return true
}

// Draft returns content, whose id the caller knows, as a blob that the batch can refer
// to. Equal contents are one blob.
func (g *Stage) Draft(ctx context.Context, id blob.ID, content []byte) (*blobs.Draft, error) {
	if d := g.drafts[id]; d != nil {
		return d, nil
	}
	d, err := blobs.Prepare(id, content)
	if errors.Is(err, blobs.ErrStream) {
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

// ahead returns the upload of what is stored ahead of the batch.
func (g *Stage) ahead() *blobs.Upload {
	if g.upload == nil {
		g.upload = g.store.NewUpload(g.Owner)
	}
	return g.upload
}

// read makes the marks known that the batch relies on: for most batches they are in
// memory, or there are none.
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

// Add makes b store or rely on d.
func (g *Stage) Add(b *engine.Batch, d *blobs.Draft) error {
	err := g.store.Blobs.Add(b, d, g.Marks)
	if errors.Is(err, blobs.ErrNotFound) {
		err = fmt.Errorf("%w: %s", ErrBlobGone, d.ID)
	}
	return err
}

// IDs returns the ids of all drafts.
func (g *Stage) IDs() []blob.ID { return slices.Collect(maps.Keys(g.drafts)) }

// Finish makes b end the upload.
func (g *Stage) Finish(b *engine.Batch) {
	if g.upload != nil {
		g.upload.Finish(b)
	}
}

// applied tells the stage that b was applied.
func (g *Stage) applied(b *engine.Batch) { g.store.Blobs.Applied(b, g.IDs()) }

// Abandon gives up what was stored ahead: it is garbage. If abandon fails, the upload
// expires.
func (g *Stage) Abandon(ctx context.Context) {
	if g.upload != nil {
		_ = g.upload.Abandon(context.WithoutCancel(ctx))
		g.upload = nil
	}
}
