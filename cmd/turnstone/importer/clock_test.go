package importer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// The uploads of a large commit expire by the clock of the store, which has the times of
// an old file during an import. A collection in another process, whose clock is right,
// must not make the import fail or lose data.
func TestAnOldFileIsImportedBesideACollection(t *testing.T) {
	testkit.Slow(t)
	e := memory.New()
	clock := &importer.Clock{}
	st, err := turnstone.Open(ctx, e, &turnstone.Options{Now: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	other := openStore(t, e)
	defer other.Close()
	stop, cancel := context.WithCancel(ctx)
	var collector sync.WaitGroup
	runs := 0
	collector.Go(func() {
		for stop.Err() == nil {
			if _, err := other.GC(ctx, gc.Options{}); err != nil {
				t.Error(err)
				return
			}
			runs++
		}
	})
	rnd := rand.NewChaCha8([32]byte{2})
	want := map[string]string{}
	for i := range testkit.Pick(4, 4, 1) {
		noise := make([]byte, 2<<20)
		_, _ = rnd.Read(noise) // never fails
		content := fmt.Sprintf(`{"role":"user","content":"%x","timestamp":"2020-01-01T00:00:00Z"}`, noise) + "\n"
		name := fmt.Sprintf("f%d.jsonl", i)
		want[bring(t, st, clock, name, content).Session] = content
	}
	cancel()
	collector.Wait()
	if runs == 0 {
		t.Error("nothing was collected meanwhile")
	}
	for id, content := range want {
		if got := exported(t, st, id); got != content {
			t.Errorf("%s has %d bytes, not %d", id, len(got), len(content))
		}
		if i := infoOf(t, session(t, st, id)); !strings.HasPrefix(i.Created.String(), "2020-01-01") {
			t.Errorf("%s was created at %v", id, i.Created)
		}
	}
	verify(t, st)
}
