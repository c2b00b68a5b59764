// Package spill has an engine for temporary stores, whose sizes are not known before.
package spill

import (
	"context"
	"errors"
	"iter"
	"os"
	"sync"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/pebble"
)

// inMemory is how many bytes an Engine keeps in memory.
const inMemory = 64 << 20

// An Engine keeps its pairs in memory, and when more than 64 MiB were written in a temporary directory, which Close
// removes.
type Engine struct {
	dir string // where that is made

	mu     sync.RWMutex // held while the pairs move, and read-held while a batch is applied
	now    engine.Engine
	small  engine.Engine // what now was before: a Scan may be going on there
	bytes  int64         // that were written, overwritten ones included
	made   string        // the directory
	failed error         // why the pairs could not move
}

// New returns an empty engine. dir is where the directory is made; if it is empty, os.TempDir is.
func New(dir string) *Engine { return &Engine{dir: dir, now: memory.New()} }

func (s *Engine) current() engine.Engine {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.now
}

// Get implements engine.Engine.
func (s *Engine) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	return s.current().Get(ctx, keys...)
}

// Scan implements engine.Engine.
func (s *Engine) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return s.current().Scan(ctx, r)
}

// Limits implements engine.Engine.
func (s *Engine) Limits() engine.Limits { return s.current().Limits() }

// Vacuum implements engine.Engine.
func (s *Engine) Vacuum(ctx context.Context) error { return s.current().Vacuum(ctx) }

// Apply implements engine.Engine.
func (s *Engine) Apply(ctx context.Context, b *engine.Batch) error {
	if err := s.room(ctx, int64(b.Bytes())); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.now.Apply(ctx, b)
}

// room moves the pairs to a directory if n more bytes are too many. After that has failed once, it fails.
func (s *Engine) room(ctx context.Context, n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bytes += n; s.bytes > inMemory && s.small == nil && s.failed == nil {
		s.failed = s.toDisk(ctx)
	}
	return s.failed
}

// toDisk moves the pairs to a directory.
func (s *Engine) toDisk(ctx context.Context) (err error) {
	if s.made, err = os.MkdirTemp(s.dir, "turnstone-"); err != nil {
		return err
	}
	disk, err := pebble.Open(s.made, nil)
	if err != nil {
		return err
	}
	s.now, s.small = disk, s.now
	var some engine.Batch
	for p, err := range s.small.Scan(ctx, engine.Range{}) {
		if err != nil {
			return err
		}
		if l := disk.Limits(); some.Bytes()+len(p.Key)+len(p.Value) > l.BatchBytes || some.Ops() == l.BatchOps {
			if err := disk.Apply(ctx, &some); err != nil {
				return err
			}
			some = engine.Batch{}
		}
		some.Set(p.Key, p.Value)
	}
	return disk.Apply(ctx, &some)
}

// Close implements engine.Engine. It removes the directory.
func (s *Engine) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.now.Close()
	if s.small != nil {
		err = errors.Join(err, s.small.Close())
	}
	if s.made != "" {
		err = errors.Join(err, os.RemoveAll(s.made))
	}
	return err
}
