package replicate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/hash"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/list"
	"github.com/turnstonedb/turnstone/internal/namespace"
	"github.com/turnstonedb/turnstone/internal/overlay"
	"github.com/turnstonedb/turnstone/internal/reclaim"
	"github.com/turnstonedb/turnstone/internal/verify"
)

// prove verifies the copy as it will be with its store record, and reports whether its
// heads have these commits.
func (c *copier) prove(ctx context.Context, commits map[string]head.CommitID) (same bool, err error) {
	whole := overlay.New(c.To)
	if err := whole.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: c.storeKey, Value: c.record}}}); err != nil {
		return false, err
	}
	if err := c.verify(ctx, whole, "copy"); err != nil {
		return false, err
	}
	got, err := c.heads(ctx, whole)
	return maps.Equal(commits, got), err
}

// open opens a store that must exist.
func (c *copier) open(ctx context.Context, e engine.Engine) (history.Store, error) {
	record, err := namespace.Open(ctx, e, namespace.Request{Name: c.Namespace, MustExist: true, Known: c.Known})
	if err != nil {
		return history.Store{}, err
	}
	return namespace.Histories(e, &record), nil
}

// verify verifies a store. The error is the first problem.
func (c *copier) verify(ctx context.Context, e engine.Engine, phase string) error {
	s, err := c.open(ctx, e)
	if err != nil {
		return err
	}
	// The collector only checks its index. It collects nothing.
	collector := reclaim.New(e, s.Space, s.Blobs, time.Now, 0, c.Known)
	r, err := verify.Check(ctx, s, collector, func(done int) { c.Progress(phase, done) })
	if err == nil && len(r.Problems) > 0 {
		err = fmt.Errorf("%s: %w", phase, r.Problems[0])
	}
	return err
}

// heads returns the commits of the heads of all sessions, by session id.
func (c *copier) heads(ctx context.Context, e engine.Engine) (map[string]head.CommitID, error) {
	s, err := c.open(ctx, e)
	if err != nil {
		return nil, err
	}
	commits := map[string]head.CommitID{}
	for q := (list.Query{Limit: 1000}); ; {
		page, err := list.Sessions(ctx, s, q)
		if err != nil {
			return nil, err
		}
		for _, item := range page.Items {
			commits[item.About.ID] = item.Head.Commit
		}
		if q.After = page.Next; q.After == "" {
			return commits, nil
		}
	}
}

// digest returns a hash of the commits of all heads.
func digest(commits map[string]head.CommitID) [hash.Size]byte {
	var e codec.Encoder
	for _, id := range slices.Sorted(maps.Keys(commits)) {
		e.Text(id)
		e.ID(commits[id])
	}
	return hash.Heads.Sum(e.B)
}
