package gc_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/postgres"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

func snapshot(t testing.TB, e engine.Engine) []engine.Pair {
	t.Helper()
	var out []engine.Pair
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

// A driver returns a new engine.
type driver func(t *testing.T) engine.Engine

func inMemory(*testing.T) engine.Engine { return memory.New() }

func onAServer(t *testing.T) engine.Engine {
	t.Helper()
	e, err := postgres.Open(ctx, pgtest.URL(t)+"&pool_max_conns=2", &postgres.Options{Schema: pgtest.Schema(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// restored returns an engine with pairs.
func restored(t *testing.T, on driver, pairs []engine.Pair) engine.Engine {
	t.Helper()
	e := on(t)
	if err := e.Apply(ctx, &engine.Batch{Sets: pairs}); err != nil {
		t.Fatal(err)
	}
	return e
}

// worn is a store with a bit of everything, part of it garbage that no collector
// has seen, and an earlier state of its records.
func worn(t *testing.T) (now, before []engine.Pair) {
	t.Helper()
	e := memory.New()
	w, err := open(e, 0, 0, 2)
	if err != nil {
		t.Fatal(err)
	}
	must := func(errs ...error) {
		t.Helper()
		if err := both(errs...); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"a", "b", "c"} {
		s, err := w.create(turnstone.Request{ID: id})
		must(err)
		for i := range 4 {
			c := says(noise(6000, uint64(i)), []byte(id))
			c.Checkpoint = map[string][]byte{"p": version(i)}
			must(w.commit(id, c))
		}
		a, err := s.PutAttachment(ctx, bytes.NewReader(noise(270<<10, 3)), -1, "", "")
		must(err)
		c := says([]byte("with"))
		c.Nodes[0].Attachments = []blob.Attachment{a}
		must(w.commit(id, c))
	}
	_, err = w.create(turnstone.Request{ID: "f", Parent: "b"})
	must(err)
	s, err := w.Session(ctx, "c")
	must(err, s.Keep(ctx, "k", 2), w.Seal(ctx), vacuum(w))
	before = snapshot(t, e)
	st, err := s.Load(ctx, turnstone.Scope{})
	must(err, s.Tombstone(ctx, st.Nodes[1].ID))
	must(w.prune(), w.commit("c", says(noise(6000, 1), noise(6000, 9))), w.commit("f", says(noise(6000, 2))))
	must(w.Delete(ctx, "a", turnstone.KeepChildren), w.Delete(ctx, "b", turnstone.KeepChildren), w.Close())
	return snapshot(t, e), before
}

// Obligation 4: with any one record dropped, damaged or rolled back under the
// engine, a collection and a vacuum delete nothing that they would not delete in
// the healthy store, or stop.
func TestDamageDeletesNothing(t *testing.T) {
	seen := map[string]int{}
	damageEach(t, inMemory, func(name string) bool {
		seen[name]++
		return seen[name] <= testkit.Pick(1<<30, 4, 1)
	})
}

// The same on a server. It damages one record of each type in each way.
func TestDamageOnAServerDeletesNothing(t *testing.T) {
	if testing.Short() && !testkit.Long() {
		t.Skip("it takes a server")
	}
	pgtest.URL(t)
	seen := map[string]bool{}
	damageEach(t, onAServer, func(name string) bool {
		first := !seen[name]
		seen[name] = true
		return first && len(seen)%testkit.Pick(1, 7, 7) == 0
	})
}

// damageEach collects garbage in stores on engines of a driver that have one record
// damaged. choose picks by a name made of the record's type and the damage.
func damageEach(t *testing.T, on driver, choose func(name string) bool) {
	now, before := worn(t)
	run := func(e engine.Engine) error {
		w, err := open(e, 200, time.Minute, 2)
		if err != nil {
			return err
		}
		defer w.Close()
		return vacuum(w)
	}
	whole := restored(t, on, now)
	if err := run(whole); err != nil {
		t.Fatal(err)
	}
	var keep [][]byte
	for _, p := range snapshot(t, whole) {
		switch letter(p.Key) {
		case keys.Segment:
			// A vacuum that ends early has not sealed it. What is loose has the same first key.
			if p.Key[len(p.Key)-1] == 0 {
				keep = append(keep, p.Key)
			}
		case keys.Blob, keys.Head, keys.Life, keys.Origin, keys.Ref:
			keep = append(keep, p.Key)
		}
	}
	stopped, went := 0, 0
	check := func(name string, key []byte, change engine.Batch) {
		if name = fmt.Sprintf("%c %s", letter(key), name); !choose(name) {
			return
		}
		t.Run(name, func(t *testing.T) {
			e := restored(t, on, now)
			if err := e.Apply(ctx, &change); err != nil {
				t.Fatal(err)
			}
			var noticed *damage.CorruptError
			switch err := run(e); {
			case err == nil:
				went++
			case errors.As(err, &noticed):
				stopped++
			default:
				t.Errorf("it is not said to be damaged: %v", err)
			}
			got, err := e.Get(ctx, keep...)
			if err != nil {
				t.Fatal(err)
			}
			for i, k := range keep {
				if got[i] == nil && !bytes.Equal(k, key) {
					t.Fatalf("record %q is deleted", letter(k))
				}
			}
		})
	}
	older, there := map[string][]byte{}, map[string]bool{}
	for _, p := range before {
		older[string(p.Key)] = p.Value
	}
	for _, p := range now {
		there[string(p.Key)] = true
		check("dropped", p.Key, engine.Batch{Deletes: [][]byte{p.Key}})
		flipped := bytes.Clone(p.Value)
		flipped[len(flipped)/2] ^= 1
		check("flipped", p.Key, engine.Batch{Sets: []engine.Pair{{Key: p.Key, Value: flipped}}})
		if old := older[string(p.Key)]; old != nil && !bytes.Equal(old, p.Value) {
			check("rolled back", p.Key, engine.Batch{Sets: []engine.Pair{{Key: p.Key, Value: old}}})
		}
	}
	for _, p := range before { // and what was deleted since is there again
		if !there[string(p.Key)] {
			check("back again", p.Key, engine.Batch{Sets: []engine.Pair{p}})
		}
	}
	if stopped == 0 || went == 0 {
		t.Error("all of them end alike")
	}
	t.Logf("%d records: %d damages stopped the cycle, with %d it went through", len(now), stopped, went)
}
