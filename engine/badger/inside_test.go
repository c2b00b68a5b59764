package badger

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A group that waits while a vacuum finds that batches are lost is not written: the witness would follow it, and the
// next Open would miss nothing.
func TestNothingIsCommittedAfterTheEngineHasFailed(t *testing.T) {
	e, err := Open(t.TempDir()+"/store", nil)
	if err != nil {
		t.Fatal(err)
	}
	before, group := e.verdict.Load(), e.witness.group
	e.mu.Lock() // as a vacuum that opens the database again
	applied := make(chan error)
	go func() {
		var b engine.Batch
		b.Set([]byte("k"), []byte("v"))
		applied <- e.Apply(context.Background(), &b)
	}()
	testkit.Until(t, "the batch has come", func() bool { return e.verdict.Load() != before })
	time.Sleep(10 * time.Millisecond) // the committer waits for mu now
	e.fail(engine.ErrCorrupt)
	e.mu.Unlock()
	if err := <-applied; !errors.Is(err, engine.ErrClosed) {
		t.Errorf("Apply: %v", err)
	}
	if e.witness.group != group {
		t.Errorf("the witness has %d groups, and had %d", e.witness.group, group)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
