package badger

import (
	"context"
	"errors"
	"fmt"

	"github.com/dgraph-io/badger/v4/y"

	"github.com/turnstonedb/turnstone/engine"
)

// A rewrite merges all runs into one, without what was deleted or replaced. It is
// due when the newer runs have grown as large as the oldest, which is that of the
// last rewrite: a byte is then written about three times in all. What a rewrite
// has written is compared with what it read before anything is removed.
const (
	growRuns = 16       // rewrite when there are so many newer runs of as many bytes as the oldest, …
	maxRuns  = 32       // … or this many however small, as every read looks into each, …
	runShare = 64 << 20 // … plus one for so many bytes of the oldest, as a rewrite costs by its size
	mergeGap = 1000     // pairs after which a rewrite looks at its context
)

// Vacuum implements engine.Engine. It needs as much free space as the live data.
func (e *Engine) Vacuum(ctx context.Context) error {
	if err := e.usable(); err != nil {
		return err
	}
	select {
	case e.rewriting <- struct{}{}:
	case <-e.stop:
		return engine.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-e.rewriting }()
	// The log and the memtable may hold removed values: flush them first.
	var rerr error
	err := e.submit(&request{ctx: ctx, err: make(chan error, 1), pause: func() {
		if e.active().log.pos > logHeader {
			rerr = errors.Join(e.usable(), e.rotate())
		}
	}})
	if err = errors.Join(err, rerr); err != nil {
		return err
	}
	e.flushTrouble.Store(nil) // there may be room now
	e.flushSoon()
	if err := e.awaitFlush(ctx, 0); err != nil {
		return err
	}
	err = e.rewrite(ctx)
	e.note(&e.rewriteTrouble, err)
	return err
}

// rewriteIfGrown starts a rewrite in the background when there are too many runs.
func (e *Engine) rewriteIfGrown() {
	e.mu.RLock()
	due := grown(e.content.runs)
	e.mu.RUnlock()
	if !due {
		return
	}
	select {
	case e.rewriting <- struct{}{}:
	default:
		return // one is running, or Close is
	}
	e.background.Go(func() {
		defer func() { <-e.rewriting }()
		e.note(&e.rewriteTrouble, e.rewrite(e.ctx))
	})
}

func grown(runs []run) bool {
	if len(runs) < growRuns {
		return false
	}
	newer, oldest := int64(0), runs[len(runs)-1].bytes()
	for _, r := range runs[:len(runs)-1] {
		newer += r.bytes()
	}
	return newer >= oldest || len(runs) > most(oldest)
}

func most(oldest int64) int { return maxRuns + int(oldest/runShare) }

// crowded reports whether there are so many runs that nothing should be added
// before a rewrite.
func (e *Engine) crowded() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	n := len(e.content.runs)
	return n > 0 && n > 4*most(e.content.runs[n-1].bytes())
}

// rewrite merges the runs that there are. The caller holds e.rewriting, so runs
// are only added meanwhile.
func (e *Engine) rewrite(ctx context.Context) error {
	if err := e.usable(); err != nil {
		return err
	}
	e.mu.RLock()
	old := e.content.runs
	e.mu.RUnlock()
	if len(old) == 0 {
		return nil
	}
	size := int64(0)
	for _, r := range old {
		size += r.bytes()
	}
	need := e.room
	need.Bytes = uint64(size) + 4*memTableSize
	if err := e.needNow(need); err != nil {
		return err
	}
	w := &tableWriter{files: e.files, number: e.number}
	n := 0
	merged, err := e.writeRun(w, &content{runs: old}, func(v y.ValueStruct) (bool, error) {
		if n++; n%mergeGap == 0 {
			if err := errors.Join(ctx.Err(), e.ctx.Err(), e.usable()); err != nil {
				return false, err
			}
		}
		return v.Meta != deletion, nil
	})
	if err == nil {
		err = e.replace(func(c *content) {
			c.runs = append([]run(nil), c.runs[:len(c.runs)-len(old)]...)
			if len(merged) > 0 {
				c.runs = append(c.runs, merged)
			}
		})
		if err != nil {
			err = errors.Join(err, merged.close())
		}
	}
	if err != nil {
		if e.usable() == nil { // else the manifest may name them
			err = errors.Join(err, w.discard())
		}
		if errors.Is(err, engine.ErrUnknown) {
			e.fail(err)
		}
		return fmt.Errorf("engine: rewrite: %w", mapped(err))
	}
	// Nobody reads the old runs any more: replace has waited for those who did.
	var names []string
	for _, r := range old {
		err = errors.Join(err, r.close())
		for _, t := range r {
			names = append(names, tableName(t.number))
		}
	}
	err = errors.Join(err, removeAll(e.files, names))
	if serr := lost(e.files.sync()); serr != nil {
		e.fail(serr)
		err = errors.Join(err, serr)
	}
	if err != nil {
		return fmt.Errorf("engine: remove rewritten tables: %w", mapped(err))
	}
	return nil
}
