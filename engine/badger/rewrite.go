package badger

import (
	"context"
	"errors"
	"fmt"

	"github.com/dgraph-io/badger/v4/y"

	"github.com/turnstonedb/turnstone/engine"
)

// A rewrite merges all runs into one, and drops deleted and replaced versions. It is due
// when the newer runs together are as large as the oldest run, which the last rewrite
// made. So each byte is written about three times in all. A rewrite compares its output
// with its input before it removes anything.
const (
	// growRuns is the least number of runs for a rewrite.
	growRuns = 16
	// A rewrite is due when there are more than maxRuns runs, however small, because
	// every read looks into each. One more run is allowed for each runShare bytes of the
	// oldest run, because the cost of a rewrite grows with its size.
	maxRuns  = 32
	runShare = 64 << 20
	// mergeGap is the number of pairs after which a rewrite checks its context.
	mergeGap = 1000
)

// Vacuum implements engine.Engine. It needs as much free space as the live data.
func (e *Engine) Vacuum(ctx context.Context) error {
	if err := e.writable(); err != nil {
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
	// The log and the memtable may hold removed values: flush them first. So may the file of a
	// log that was flushed before.
	e.used.setRefuse(true)
	defer e.used.setRefuse(false)
	var rerr error
	err := e.submit(&request{ctx: ctx, err: make(chan error, 1), pause: func() {
		rerr = e.discard(e.used.take())
		if l := e.active().log; rerr == nil && (l.pos > logHeader || l.reused) {
			rerr = errors.Join(e.usable(), e.rotate())
		}
	}})
	if err = errors.Join(err, rerr); err != nil {
		return err
	}
	e.flushTrouble.Store(nil) // the disk may have space now
	e.flushSoon()
	if err := e.awaitFlush(ctx, 0); err != nil {
		return err
	}
	e.flushed()
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
		return // another rewrite runs, or Close does
	}
	e.background.Go(func() {
		defer func() { <-e.rewriting }()
		e.note(&e.rewriteTrouble, e.rewrite(e.ctx))
	})
}

// grown reports whether a rewrite is due.
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

// most returns how many runs there may be before a rewrite is due.
func most(oldest int64) int { return maxRuns + int(oldest/runShare) }

// crowded reports whether there are so many runs that no new data should be added before
// a rewrite.
func (e *Engine) crowded() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	n := len(e.content.runs)
	return n > 0 && n > 4*most(e.content.runs[n-1].bytes())
}

// rewrite merges the runs that exist when it begins. The caller holds e.rewriting, so
// others may only add runs meanwhile.
func (e *Engine) rewrite(ctx context.Context) error {
	if err := e.usable(); err != nil {
		return err
	}
	e.mu.RLock()
	old := e.content.runs
	e.mu.RUnlock()
	if len(old) == 0 {
		return e.removeForGood()
	}
	size := int64(0)
	for _, r := range old {
		size += r.bytes()
	}
	need := e.minFree
	need.Bytes = uint64(size) + 4*memTableSize
	if err := e.needNow(need); err != nil {
		return err
	}
	w := &tableWriter{files: e.files, number: e.number}
	n := 0
	merged, err := e.writeRun(w, &content{runs: old, once: true}, func(v y.ValueStruct) (bool, error) {
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
		if e.usable() == nil { // otherwise the manifest may list the new tables
			err = errors.Join(err, e.remove(w.discard()...))
		}
		if errors.Is(err, engine.ErrUnknown) {
			e.fail(err)
		}
		return fmt.Errorf("engine: rewrite: %w", mapped(err))
	}
	// No reader uses the old runs any more, because replace has waited for e.mu.
	var names []string
	for _, r := range old {
		err = errors.Join(err, r.close())
		for _, t := range r {
			names = append(names, tableName(t.number))
		}
	}
	return errors.Join(err, e.removeForGood(names...))
}

// removeForGood removes files as remove does, and makes that durable.
func (e *Engine) removeForGood(names ...string) error {
	err := e.remove(names...)
	if serr := lost(e.files.sync()); serr != nil {
		e.fail(serr)
		err = errors.Join(err, serr)
	}
	if err != nil {
		return fmt.Errorf("engine: remove files: %w", mapped(err))
	}
	return nil
}
