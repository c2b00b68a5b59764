package gc_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/keys"
)

func snapshot(t *testing.T, e engine.Engine) []engine.Pair {
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

func restored(t *testing.T, pairs []engine.Pair) engine.Engine {
	t.Helper()
	e := memory.New()
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
		c.Nodes[0].Attachments = []turnstone.Attachment{a}
		must(w.commit(id, c))
	}
	_, err = w.create(turnstone.Request{ID: "f", Parent: "b"})
	must(err)
	s, err := w.Session(ctx, "c")
	must(err, s.Keep(ctx, "k", 2), w.Seal(ctx), vacuum(w))
	before = snapshot(t, e)
	st, err := s.Load(ctx, turnstone.Scope{})
	must(err, s.Tombstone(ctx, st.Nodes[1].ID))
	_, err = w.Prune(ctx)
	must(err, w.commit("c", says(noise(6000, 1), noise(6000, 9))), w.commit("f", says(noise(6000, 2))))
	must(w.Delete(ctx, "a", turnstone.KeepChildren), w.Delete(ctx, "b", turnstone.KeepChildren), w.Close())
	return snapshot(t, e), before
}

// Obligation 4: with any one record dropped, damaged or rolled back under the
// engine, a collection and a vacuum delete nothing that they would not delete in
// the healthy store, or stop.
func TestDamageDeletesNothing(t *testing.T) {
	now, before := worn(t)
	run := func(e engine.Engine) error {
		w, err := open(e, 200, time.Minute, 2)
		if err != nil {
			return err
		}
		defer w.Close()
		return vacuum(w)
	}
	whole := restored(t, now)
	if err := run(whole); err != nil {
		t.Fatal(err)
	}
	var keep []engine.Pair
	for _, p := range snapshot(t, whole) {
		switch letter(p.Key) {
		case keys.Blob, keys.Commit, keys.Pack, keys.Head, keys.Life, keys.Origin, keys.Ref:
			keep = append(keep, p)
		}
	}
	stopped, went := 0, 0
	check := func(name string, e engine.Engine, damaged engine.Pair) {
		t.Helper()
		if err := run(e); err != nil {
			stopped++
		} else {
			went++
		}
		vs, err := e.Get(ctx, damaged.Key)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range keep {
			if bytes.Equal(p.Key, damaged.Key) {
				continue
			}
			got, err := e.Get(ctx, p.Key)
			if err != nil {
				t.Fatal(err)
			}
			if got[0] == nil {
				t.Errorf("record %q %s: record %q is deleted", letter(damaged.Key), name, letter(p.Key))
				return
			}
		}
		_ = vs
	}
	older := map[string][]byte{}
	for _, p := range before {
		older[string(p.Key)] = p.Value
	}
	for _, p := range now {
		e := restored(t, now)
		if err := e.Apply(ctx, &engine.Batch{Deletes: [][]byte{p.Key}}); err != nil {
			t.Fatal(err)
		}
		check("dropped", e, p)
		flipped := bytes.Clone(p.Value)
		flipped[len(flipped)/2] ^= 1
		e = restored(t, now)
		if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: p.Key, Value: flipped}}}); err != nil {
			t.Fatal(err)
		}
		check("flipped", e, p)
		if old := older[string(p.Key)]; old != nil && !bytes.Equal(old, p.Value) {
			e = restored(t, now)
			if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: p.Key, Value: old}}}); err != nil {
				t.Fatal(err)
			}
			check("rolled back", e, p)
		}
	}
	for _, p := range before { // and what was deleted since is there again
		e := restored(t, now)
		vs, err := e.Get(ctx, p.Key)
		if err != nil {
			t.Fatal(err)
		}
		if vs[0] == nil {
			if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{p}}); err != nil {
				t.Fatal(err)
			}
			check("back again", e, p)
		}
	}
	t.Logf("%d records: %d damages stopped the run, with %d it went through", len(now), stopped, went)
}
