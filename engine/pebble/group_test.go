package pebble

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
)

// apply applies batches as one group, in their order, and returns their errors.
func apply(e *Engine, batches ...*engine.Batch) []error {
	var commits []*commit
	for _, b := range batches {
		commits = append(commits, &commit{ctx: context.Background(), guards: b.Guards, batch: e.pebbleBatch(b), done: make(chan error, 1)})
	}
	e.line.mu.Lock()
	e.line.waiting = append(e.line.waiting, commits...)
	e.line.mu.Unlock()
	e.line.wake <- struct{}{}
	errs := make([]error, len(commits))
	for i, c := range commits {
		errs[i] = <-c.done
	}
	return errs
}

// The guards of a batch see the writes of the batches before it in its group, and nothing of a
// batch whose guards do not hold.
func TestBatchesOfAGroupSeeThoseBefore(t *testing.T) {
	e, err := Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	batch := func(guard, is, set, to string) *engine.Batch {
		b := new(engine.Batch)
		if is == "" {
			b.Guard([]byte(guard), nil)
		} else {
			b.Guard([]byte(guard), []byte(is))
		}
		if to == "" {
			b.Delete([]byte(set))
		} else {
			b.Set([]byte(set), []byte(to))
		}
		return b
	}
	if err := errors.Join(apply(e, batch("old", "", "old", "1"))...); err != nil {
		t.Fatal(err)
	}
	steps := []struct {
		batch *engine.Batch
		holds bool
	}{
		{batch("a", "", "a", "1"), true},
		{batch("a", "", "b", "1"), false},
		{batch("b", "1", "c", "1"), false},
		{batch("a", "1", "a", "2"), true},
		{batch("a", "2", "a", ""), true},
		{batch("a", "2", "d", "1"), false},
		{batch("a", "", "old", ""), true},
		{batch("old", "1", "e", "1"), false},
		{batch("old", "", "old", "2"), true},
	}
	var batches []*engine.Batch
	for _, s := range steps {
		batches = append(batches, s.batch)
	}
	for i, err := range apply(e, batches...) {
		var conflict *engine.ConflictError
		if steps[i].holds && err != nil || !steps[i].holds && (!errors.As(err, &conflict) || string(conflict.Key) != string(batches[i].Guards[0].Key)) {
			t.Errorf("batch %d: %v", i, err)
		}
	}
	var got string
	for p, err := range e.Scan(context.Background(), engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		got += fmt.Sprintf("%s=%s ", p.Key, p.Value)
	}
	if got != "old=2 " {
		t.Errorf("the store has %s", got)
	}
}

// A group has at most groupBytes, so that it takes no more room than the largest batch.
func TestAGroupIsNoLargerThanABatch(t *testing.T) {
	e, err := Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var l line
	for i := range 8 {
		b := new(engine.Batch)
		for j := range 3 {
			b.Set(fmt.Appendf(nil, "%d %d", i, j), make([]byte, 500_000))
		}
		l.join(&commit{batch: e.pebbleBatch(b)})
	}
	for i := range 8 {
		if g, more := l.take(); len(g) != 1 || more != (i < 7) {
			t.Fatalf("group %d has %d batches; more: %v", i, len(g), more)
		}
	}
	for range 5 {
		b := new(engine.Batch)
		b.Set([]byte("a"), make([]byte, 450_000))
		l.join(&commit{batch: e.pebbleBatch(b)})
	}
	if g, more := l.take(); len(g) != 4 || !more {
		t.Errorf("%d batches; more: %v", len(g), more)
	}
}
