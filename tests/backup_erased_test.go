package tests

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/backup"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// What was erased does not come back, whatever is restored from whichever run: sessions, also after they were renamed,
// and nodes. What a fork still shows is restored with the fork alone.
func TestBK4_WhatWasErasedStaysSo(t *testing.T) {
	to := backup.Directory(t.TempDir() + "/backup")
	_, st := onMemory(t, nil)
	secret, note := []byte("the secret of the session that is erased"), []byte("a note that is erased by itself")
	gone := create(t, st, turnstone.Request{ID: "gone"}, secret)
	s := create(t, st, turnstone.Request{ID: "s"}, []byte("stays"))
	node := commitTo(t, s, turnstone.Commit{Nodes: saying(note)}).Nodes[0]
	commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("after it"))})
	create(t, st, turnstone.Request{ID: "held"}, []byte("shown by a fork"))
	create(t, st, turnstone.Request{ID: "fork", Parent: "held"}, []byte("own"))
	create(t, st, turnstone.Request{ID: "deleted"}, []byte("deleted by mistake"))
	first := backedUp(t, st, to, backup.Options{})

	must(t, gone.Rename(ctx, "renamed"))
	_, err := st.Erase(ctx, "renamed", turnstone.KeepChildren, turnstone.EraseOptions{})
	must(t, err)
	_, err = session(t, st, "s").Erase(ctx, turnstone.EraseOptions{}, node)
	must(t, err)
	_, err = st.Erase(ctx, "held", turnstone.KeepChildren, turnstone.EraseOptions{})
	must(t, err)
	remove(t, st, "deleted")

	check := func(got *turnstone.Store, e *memory.Engine, r *backup.Restored) {
		t.Helper()
		if want := []string{"gone", "held"}; !slices.Equal(r.Erased, want) {
			t.Errorf("erased %q, want %q", r.Erased, want)
		}
		if ids := ids(t, got); !slices.Contains(ids, "deleted") || slices.Contains(ids, "gone") || slices.Contains(ids, "held") {
			t.Error(ids)
		}
		for _, b := range [][]byte{secret, note} {
			if holds(t, e, b) {
				t.Errorf("%q is back", b)
			}
		}
		texts := nodesOf(t, session(t, got, "fork"))
		if !slices.Contains(slices.Collect(maps.Values(texts)), "shown by a fork") {
			t.Error(texts)
		}
		if n := len(nodesOf(t, session(t, got, "s"))); n != 2 {
			t.Errorf("%d nodes", n)
		}
		verify(t, got)
	}
	// The store knows, and the backup does not yet.
	_, err = backup.Restore(ctx, to, st, backup.RestoreOptions{At: first.Time, Sessions: []string{"gone"}})
	must(t, err)
	if slices.Contains(ids(t, st), "gone") {
		t.Error("it is back in the store that erased it")
	}
	// The backup knows.
	backedUp(t, st, to, backup.Options{})
	for range 2 {
		e, got := onMemory(t, nil)
		r, err := backup.Restore(ctx, to, got, backup.RestoreOptions{At: first.Time})
		must(t, err)
		check(got, e, r)
		backedUp(t, st, to, backup.Options{NewGeneration: true}) // An older generation then.
	}
	// When the generations that have it are kept no longer, it is in no file.
	time.Sleep(2 * time.Millisecond)
	if r := backedUp(t, st, to, backup.Options{Keep: time.Millisecond}); r.Expired != 2 {
		t.Errorf("%+v", r)
	}
	if _, err := backup.Restore(ctx, to, st, backup.RestoreOptions{At: first.Time}); !errors.Is(err, backup.ErrNoBackup) {
		t.Error(err)
	}
	verified(t, to)
}

// A session that came a second time, under another id, has the same genesis: to erase one of them leaves the other.
func TestBK4_TheTwinOfAnErasedSessionIsRestored(t *testing.T) {
	to := backup.Directory(t.TempDir() + "/backup")
	_, st := onMemory(t, nil)
	create(t, st, turnstone.Request{ID: "a"}, []byte("text"))
	_, err := st.Unbundle(ctx, bytes.NewReader(bundleOf(t, st, turnstone.Bundled{ID: "a"})), turnstone.UnbundleOptions{As: "b"})
	must(t, err)
	first := backedUp(t, st, to, backup.Options{})
	_, err = st.Erase(ctx, "b", turnstone.KeepChildren, turnstone.EraseOptions{})
	must(t, err)
	for range 2 {
		got, _ := restored(t, to, backup.RestoreOptions{At: first.Time})
		if have := ids(t, got); !slices.Contains(have, "a") {
			t.Error(have)
		}
		last := backedUp(t, st, to, backup.Options{})
		got, r := restored(t, to, backup.RestoreOptions{At: last.Time})
		if have := ids(t, got); !slices.Equal(have, []string{"a"}) || len(r.Erased) > 0 {
			t.Error(have, r.Erased)
		}
		got, r = restored(t, to, backup.RestoreOptions{At: first.Time})
		if have := ids(t, got); !slices.Equal(have, []string{"a"}) || !slices.Equal(r.Erased, []string{"b"}) {
			t.Error(have, r.Erased)
		}
	}
}

// What is erased while a run has it already does not come back from that run.
func TestBK4_WhatIsErasedMeanwhileStaysSo(t *testing.T) {
	for _, whole := range []bool{true, false} {
		_, st, to, _ := telling(t)
		x := create(t, st, turnstone.Request{ID: "x"}, []byte("a secret"), []byte("another one"))
		state, err := x.Load(ctx, turnstone.Scope{})
		must(t, err)
		crowd(t, st, 40)
		r := backedUp(t, st, &meanwhile{Target: to, after: 3000, do: func() {
			if whole {
				_, err = st.Erase(ctx, "x", turnstone.KeepChildren, turnstone.EraseOptions{})
			} else {
				_, err = session(t, st, "x").Erase(ctx, turnstone.EraseOptions{}, state.Nodes[0].ID)
			}
			must(t, err)
		}}, backup.Options{})
		for range 2 {
			e, got := onMemory(t, nil)
			_, err = backup.Restore(ctx, to, got, backup.RestoreOptions{At: r.Time})
			must(t, err)
			if holds(t, e, []byte("a secret")) || whole == slices.Contains(ids(t, got), "x") {
				t.Error("it is back")
			}
			_, err = backup.Restore(ctx, to, st, backup.RestoreOptions{At: r.Time})
			must(t, err)
			if whole == slices.Contains(ids(t, st), "x") {
				t.Error("it is back in the store that erased it")
			}
			backedUp(t, st, to, backup.Options{})
		}
	}
}

// A session that was restored and erased then does not come back as the one that it was before.
func TestBK4_WhatWasRestoredAndErasedStaysSo(t *testing.T) {
	_, st, to, _ := telling(t)
	create(t, st, turnstone.Request{ID: "x"}, []byte("a secret"))
	first := backedUp(t, st, to, backup.Options{})
	remove(t, st, "x")
	_, err := backup.Restore(ctx, to, st, backup.RestoreOptions{At: first.Time})
	must(t, err)
	if !slices.Contains(ids(t, st), "x") {
		t.Fatal("what was deleted does not come back")
	}
	_, err = st.Erase(ctx, "x", turnstone.KeepChildren, turnstone.EraseOptions{})
	must(t, err)
	for range 2 {
		r, err := backup.Restore(ctx, to, st, backup.RestoreOptions{At: first.Time})
		must(t, err)
		if !slices.Equal(r.Erased, []string{"x"}) || slices.Contains(ids(t, st), "x") {
			t.Errorf("%+v", r)
		}
		backedUp(t, st, to, backup.Options{})
	}
}

// A session or node that was erased does not come back. That holds if the session, or a second one of the same genesis,
// can't be read when the backup learns of it. It holds as well if the store has no other session.
func TestBK4_WhatWasErasedStaysSoWhateverIsDamaged(t *testing.T) {
	t.Run("nothing else", func(t *testing.T) {
		_, st, to, _ := telling(t)
		create(t, st, turnstone.Request{ID: "x"}, []byte("a secret"))
		first := backedUp(t, st, to, backup.Options{})
		remove(t, st, "x")
		_, err := backup.Restore(ctx, to, st, backup.RestoreOptions{At: first.Time})
		must(t, err)
		_, err = st.Erase(ctx, "x", turnstone.KeepChildren, turnstone.EraseOptions{})
		must(t, err)
		backedUp(t, st, to, backup.Options{NewGeneration: true})
		got, r := restored(t, to, backup.RestoreOptions{At: first.Time})
		if len(ids(t, got)) > 0 || !slices.Equal(r.Erased, []string{"x"}) {
			t.Error(ids(t, got), r.Erased)
		}
	})
	t.Run("node", func(t *testing.T) {
		e, st, to, _ := telling(t)
		x := create(t, st, turnstone.Request{ID: "x"}, []byte("a secret"), []byte("keep me"))
		state, err := x.Load(ctx, turnstone.Scope{})
		must(t, err)
		backedUp(t, st, to, backup.Options{})
		_, err = x.Erase(ctx, turnstone.EraseOptions{}, state.Nodes[0].ID)
		must(t, err)
		commitTo(t, x, turnstone.Commit{Nodes: saying(random(300, 1))})
		spoil(t, e, commitsOf(t, st, "x"))
		st = openStore(t, e, nil)
		r, err := backup.Run(ctx, st, to, backup.Options{})
		if err != nil || len(r.Failed) != 1 {
			t.Fatalf("%+v, %v", r, err)
		}
		there, got := onMemory(t, nil)
		_, err = backup.Restore(ctx, to, got, backup.RestoreOptions{})
		must(t, err)
		if holds(t, there, []byte("a secret")) || !holds(t, there, []byte("keep me")) {
			t.Error("it is back, or more is gone")
		}
	})
	t.Run("twin", func(t *testing.T) {
		e, st, to, _ := telling(t)
		create(t, st, turnstone.Request{ID: "a"}, random(400, 1))
		create(t, st, turnstone.Request{ID: "z"}, random(400, 2))
		_, err := st.Unbundle(ctx, bytes.NewReader(bundleOf(t, st, turnstone.Bundled{ID: "a"})), turnstone.UnbundleOptions{As: "b"})
		must(t, err)
		first := backedUp(t, st, to, backup.Options{})
		_, err = st.Erase(ctx, "b", turnstone.KeepChildren, turnstone.EraseOptions{})
		must(t, err)
		spoil(t, e, commitsOf(t, st, "a"))
		st = openStore(t, e, nil)
		_, err = backup.Run(ctx, st, to, backup.Options{NewGeneration: true})
		must(t, err)
		got, r := restored(t, to, backup.RestoreOptions{At: first.Time})
		if have := ids(t, got); len(have) != 2 || slices.Contains(have, "b") || !slices.Equal(r.Erased, []string{"b"}) {
			t.Error(have, r.Erased)
		}
	})
}
