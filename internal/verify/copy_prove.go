package verify

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/session"
)

// prove verifies the copy as it will be with its store record, and reports whether its sessions
// have what those of the source have.
func (c *copier) prove(ctx context.Context, want *contents) (same bool, err error) {
	whole := memory.NewOverlay(c.To)
	if err := whole.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: c.storeKey, Value: c.target.Record}}}); err != nil {
		return false, err
	}
	if err := c.verify(ctx, whole, "copy"); err != nil {
		return false, err
	}
	got, err := c.contents(ctx, whole)
	return err == nil && got.digest() == want.digest(), err
}

// open opens a store that must exist.
func (c *copier) open(ctx context.Context, e engine.Engine) (history.Store, error) {
	record, err := session.OpenNamespace(ctx, e, session.Namespace{Name: c.Namespace, MustExist: true, Known: c.Known})
	if err != nil {
		return history.Store{}, err
	}
	return session.Histories(e, &record), nil
}

// verify verifies a store. The error is the first problem.
func (c *copier) verify(ctx context.Context, e engine.Engine, phase string) error {
	s, err := c.open(ctx, e)
	if err != nil {
		return err
	}
	// The collector only checks its index. It collects nothing.
	collector := gc.New(e, s.Space, s.Blobs, time.Now, 0)
	r, err := Check(ctx, s, collector, func(done int) { c.Progress(phase, done) })
	if err == nil && len(r.Problems) > 0 {
		err = fmt.Errorf("%s: %w", phase, r.Problems[0])
	}
	return err
}

// A contents is what sessions of a store have: of those of a source and of its copy it is equal.
type contents struct {
	commits map[string]head.CommitID // of the heads, by session id
	records [codec.HashSize]byte     // of the records of these sessions
}

// contents returns what the sessions of a store have.
func (c *copier) contents(ctx context.Context, e engine.Engine) (*contents, error) {
	s, err := c.open(ctx, e)
	if err != nil {
		return nil, err
	}
	out := &contents{commits: map[string]head.CommitID{}}
	live := map[head.Incarnation]bool{}
	for q := (session.ListQuery{Limit: 1000}); ; {
		page, err := session.List(ctx, s, q)
		if err != nil {
			return nil, err
		}
		for _, item := range page.Items {
			out.commits[item.About.ID], live[item.Head.Incarnation] = item.Head.Commit, true
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	sum := codec.HeadsHash.New()
	for p, err := range e.Scan(ctx, s.Space.All(keys.Record)) {
		if err != nil {
			return nil, err
		}
		if _, fields, _ := s.Space.Fields(p.Key); !live[head.Incarnation(fields)] {
			continue // Vacuum removes those of deleted sessions, in each of the stores when it is run there.
		}
		v, err := session.DecodeRecordVersion(p.Key, p.Value)
		if err != nil {
			return nil, codec.Corrupt(err, "record at key %x", p.Key)
		}
		sum.Write(p.Key)
		sum.Write(v[:])
	}
	out.records = sum.Sum()
	return out, nil
}

// digest returns a hash of all.
func (c *contents) digest() [codec.HashSize]byte {
	var e codec.Encoder
	for _, id := range slices.Sorted(maps.Keys(c.commits)) {
		e.Text(id)
		e.ID(c.commits[id])
	}
	return codec.HeadsHash.Sum(e.B, c.records[:])
}
