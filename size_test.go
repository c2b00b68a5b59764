package turnstone_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/badger"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/internal/disk"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

// After Close the files of both embedded engines are in proportion to what they
// hold: 100 sessions of 100 events take at most 1.5 times as much on Pebble.
func TestFilesAfterCloseAreInProportion(t *testing.T) {
	testscale.Slow(t)
	if race {
		t.Skip("measures files: there is nothing for the race detector")
	}
	sizes := map[string]int64{}
	for name, open := range map[string]func(dir string) (engine.Engine, error){
		"badger": func(dir string) (engine.Engine, error) {
			return badger.Open(dir, &badger.Options{Durability: badger.Process})
		},
		"pebble": func(dir string) (engine.Engine, error) { return pebble.Open(dir, &pebble.Options{NoSync: true}) },
	} {
		dir := t.TempDir() + "/store"
		e, err := open(dir)
		if err != nil {
			t.Fatal(err)
		}
		st := openStore(t, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
		for i := range 100 {
			s := create(t, st, turnstone.Request{ID: fmt.Sprint("session ", i)})
			for j := range 100 {
				commitTo(t, s, turnstone.Commit{Nodes: saying(fmt.Appendf(nil, "event %d of session %d", j, i))})
			}
		}
		if err := errors.Join(st.Close(), e.Close()); err != nil {
			t.Fatal(err)
		}
		if sizes[name], err = disk.Allocated(dir); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("Badger %d bytes, Pebble %d: %.2f times", sizes["badger"], sizes["pebble"], float64(sizes["pebble"])/float64(sizes["badger"]))
	if 2*sizes["pebble"] > 3*sizes["badger"] {
		t.Errorf("Pebble takes %d bytes, Badger %d", sizes["pebble"], sizes["badger"])
	}
}
