package shared

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone/engine"
)

// ErrNoMove means that a store can't be moved, or not there. Nothing was changed.
var ErrNoMove = errors.New("shared: the store can't be moved")

// A Moved says what Move did.
type Moved struct {
	Pairs  int           // that were copied, those again that changed meanwhile
	Bytes  int64         // of those, keys and values
	Paused time.Duration // how long calls waited at the end
}

const (
	// A batch of the copy takes no more than this.
	moveBytes, moveOps = 1 << 20, 5000
	// Calls wait while the pairs that have changed since the last pass are copied: so few of them, or after so many
	// passes.
	fewPairs, mostPasses = 500, 20
	// mostPause is how long they wait at most; then the move fails.
	mostPause = 10 * time.Second
)

// A mover copies what the owner's driver has to another engine, while calls go on.
type mover struct {
	from, to engine.Engine
	run      []byte // the value of engine.UnfinishedKey while this move goes on
	batch    engine.Batch
	moved    Moved

	mu      sync.Mutex // guards changed
	changed map[string]struct{}
}

// touch notes the keys of a batch that was applied, or may have been.
func (m *mover) touch(b *engine.Batch) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range b.Sets {
		m.changed[string(p.Key)] = struct{}{}
	}
	for _, k := range b.Deletes {
		m.changed[string(k)] = struct{}{}
	}
}

// take returns the keys that have changed since the last call, in order.
func (m *mover) take() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	keys := slices.Sorted(maps.Keys(m.changed))
	m.changed = map[string]struct{}{}
	return keys
}

// begin marks the target as unfinished. It removes what an earlier move has left in the target. It fails if the
// target has anything else.
func (m *mover) begin(ctx context.Context) error {
	from, to := m.from.Limits(), m.to.Limits()
	if to.KeyBytes < from.KeyBytes || to.ValueBytes < from.ValueBytes || to.BatchBytes < from.BatchBytes || to.BatchOps < from.BatchOps {
		return fmt.Errorf("%w: the engine to move to takes batches of %+v, and this one of %+v", ErrNoMove, to, from)
	}
	if v, err := m.from.Get(ctx, engine.UnfinishedKey); err != nil || v[0] != nil {
		return errors.Join(err, fmt.Errorf("%w: an unfinished move has left this engine", ErrNoMove))
	}
	left, err := m.to.Get(ctx, engine.UnfinishedKey)
	if err != nil {
		return err
	}
	m.run = []byte(rand.Text())
	if left[0] == nil {
		if err := m.clear(ctx, false); err != nil {
			return err
		}
	}
	if err := m.mark(ctx, left[0], m.run); err != nil {
		return err
	}
	return m.clear(ctx, left[0] != nil)
}

// mark changes the mark of the target from one value to another. A nil value stands for no mark.
func (m *mover) mark(ctx context.Context, from, to []byte) error {
	b := engine.Batch{Guards: []engine.Pair{{Key: engine.UnfinishedKey, Value: from}}}
	if to == nil {
		b.Delete(engine.UnfinishedKey)
	} else {
		b.Set(engine.UnfinishedKey, to)
	}
	for {
		err := m.to.Apply(ctx, &b)
		if !errors.Is(err, engine.ErrUnknown) || ctx.Err() != nil {
			return err
		}
		if v, err := m.to.Get(ctx, engine.UnfinishedKey); err != nil || bytes.Equal(v[0], to) {
			return err
		}
	}
}

// clear removes all pairs of the target but the mark. If may is false, clear removes none, and fails if there is such
// a pair.
func (m *mover) clear(ctx context.Context, may bool) error {
	for p, err := range m.to.Scan(ctx, engine.Range{}) {
		switch {
		case err != nil:
			return err
		case bytes.Equal(p.Key, engine.UnfinishedKey):
		case !may:
			return fmt.Errorf("%w: the engine to move to is not empty", ErrNoMove)
		default:
			if err := m.set(ctx, p.Key, nil); err != nil {
				return err
			}
		}
	}
	err := m.flush(ctx)
	m.moved = Moved{}
	return err
}

// all copies all pairs.
func (m *mover) all(ctx context.Context) error {
	for p, err := range m.from.Scan(ctx, engine.Range{}) {
		if err != nil {
			return err
		}
		if err := m.set(ctx, p.Key, p.Value); err != nil {
			return err
		}
	}
	return m.flush(ctx)
}

// again copies the pairs of keys.
func (m *mover) again(ctx context.Context, keys []string) error {
	for some := range slices.Chunk(keys, 50) {
		ks := make([][]byte, len(some))
		for i, k := range some {
			ks[i] = []byte(k)
		}
		values, err := m.from.Get(ctx, ks...)
		if err != nil {
			return err
		}
		for i, k := range ks {
			if err := m.set(ctx, k, values[i]); err != nil {
				return err
			}
		}
	}
	return m.flush(ctx)
}

// set makes the target's value of a key value, which is nil if there is none.
func (m *mover) set(ctx context.Context, key, value []byte) error {
	if value == nil {
		m.batch.Delete(key)
	} else {
		m.batch.Set(key, value)
	}
	m.moved.Pairs++
	m.moved.Bytes += int64(len(key) + len(value))
	if m.batch.Bytes() < moveBytes && m.batch.Ops() < moveOps {
		return nil
	}
	return m.flush(ctx)
}

func (m *mover) flush(ctx context.Context) error {
	if m.batch.Ops() == 0 {
		return nil
	}
	defer func() { m.batch = engine.Batch{} }()
	m.batch.Guard(engine.UnfinishedKey, m.run)
	for {
		// Applied twice the batch has no other effect, so an unknown outcome is tried again.
		if err := m.to.Apply(ctx, &m.batch); !errors.Is(err, engine.ErrUnknown) || ctx.Err() != nil {
			return err
		}
	}
}

// Move moves the store to the engine at url while processes go on using it, and returns when it is there. The process
// that has the store open copies all pairs, and then copies again those that have changed meanwhile. At the end calls
// wait until the last few are copied. Then that process serves the store from the new engine as long as it runs.
// Whoever opens the directory later gets an *engine.MovedError with name, which is url without its secrets.
//
// The new engine must be empty, except for what a failed move has left. Until the move is done nobody can open a
// store there. If Move fails, the store is where it was; only if the error matches engine.ErrUnknown it may have been
// moved.
func (e *Engine) Move(ctx context.Context, url, name string) (*Moved, error) {
	return do(ctx, e, func(s side) (*Moved, error) { return s.move(ctx, url, name) })
}

func (o *owner) move(ctx context.Context, url, name string) (_ *Moved, err error) {
	if o.of.driver.Other == nil {
		return nil, fmt.Errorf("%w: the process that has the store open can't open others", ErrNoMove)
	}
	if !o.moving.TryLock() { // Close waits for it.
		return nil, fmt.Errorf("%w: it is being moved, or closes", ErrNoMove)
	}
	defer o.moving.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-o.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	// A vacuum that is under way would go on in the old engine.
	select {
	case o.vacuum <- struct{}{}:
		defer func() { <-o.vacuum }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if o.moved {
		return nil, fmt.Errorf("%w: the store was moved already", ErrNoMove)
	}
	to, err := o.of.driver.Other(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("the engine to move to: %w", err)
	}
	m := &mover{from: o.driver, to: to, changed: map[string]struct{}{}}
	defer func() {
		o.gate.Lock()
		o.mover = nil
		o.gate.Unlock()
		if err != nil {
			err = errors.Join(err, to.Close())
		}
	}()
	if err := m.begin(ctx); err != nil {
		return nil, staying(err)
	}
	o.gate.Lock()
	o.mover = m
	o.gate.Unlock()
	if err := m.all(ctx); err != nil {
		return nil, staying(err)
	}
	for range mostPasses {
		keys := m.take()
		if err := m.again(ctx, keys); err != nil {
			return nil, staying(err)
		}
		if len(keys) <= fewPairs {
			break
		}
	}
	if err := o.change(ctx, m, name); err != nil {
		return nil, err
	}
	_ = m.from.Close() // Nothing in it is needed any more.
	return &m.moved, nil
}

// staying returns the error of a move that has not taken place: what is not known of the target does not matter.
func staying(err error) error {
	if errors.Is(err, engine.ErrUnknown) {
		return fmt.Errorf("%w: %v", engine.ErrUnavailable, err)
	}
	return err
}

// change lets calls wait, copies what has changed last, and goes on with the new engine.
func (o *owner) change(ctx context.Context, m *mover, name string) error {
	o.gate.Lock()
	defer o.gate.Unlock()
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, mostPause)
	defer cancel()
	if err := m.again(ctx, m.take()); err != nil {
		return staying(err)
	}
	if err := m.mark(ctx, m.run, nil); err != nil {
		return staying(err)
	}
	if err := o.of.home.SetMoved(name); err != nil {
		if errors.Is(err, engine.ErrUnknown) { // What is acknowledged from now on could be left behind.
			go o.Close()
		}
		return err
	}
	o.driver, o.moved = m.to, true
	m.moved.Paused = time.Since(begun)
	return nil
}

func (c *client) move(ctx context.Context, url, name string) (*Moved, error) {
	var m Moved
	err := c.call(ctx, appendBytes(appendBytes(newFrame(opMove), []byte(url)), []byte(name)), true, func(d *decoder) {
		m = Moved{Pairs: int(d.number()), Bytes: int64(d.number()), Paused: time.Duration(d.number())}
	})
	return &m, err
}

func appendMoved(to []byte, m *Moved) []byte {
	for _, n := range []uint64{uint64(m.Pairs), uint64(m.Bytes), uint64(m.Paused)} {
		to = binary.AppendUvarint(to, n)
	}
	return to
}
