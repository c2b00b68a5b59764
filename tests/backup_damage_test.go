package tests

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/backup"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// spoil alters the records of a store that a function names, and returns how to put them back.
func spoil(t *testing.T, e *memory.Engine, which func(p engine.Pair) bool) (mend func()) {
	t.Helper()
	var whole engine.Batch
	for _, p := range pairs(t, e) {
		if which(p) {
			whole.Set(p.Key, p.Value)
			value := bytes.Clone(p.Value)
			value[len(value)/2]++
			must(t, e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: p.Key, Value: value}}}))
		}
	}
	if len(whole.Sets) == 0 {
		t.Fatal("there is no such record")
	}
	return func() { must(t, e.Apply(ctx, &whole)) }
}

// commitsOf names the commits of a session.
func commitsOf(t *testing.T, st *turnstone.Store, id string) func(engine.Pair) bool {
	t.Helper()
	inc := incarnationOf(session(t, st, id))
	return func(p engine.Pair) bool { return p.Key[4] == 'p' && bytes.Equal(p.Key[5:21], inc[:]) }
}

func restoredAnyway(t *testing.T, from backup.Target) (*turnstone.Store, error) {
	t.Helper()
	_, to := onMemory(t, nil)
	_, err := backup.Restore(ctx, from, to, backup.RestoreOptions{})
	return to, err
}

// Whatever is damaged, missing or exchanged in a target, Verify finds it, and Restore restores the rest, or says why it
// can't.
func TestBK3_DamageIsFoundAndNamed(t *testing.T) {
	root := t.TempDir() + "/backup"
	to := backup.Directory(root)
	_, st := onMemory(t, nil)
	p := newPast(t, st, 3)
	known := map[string]bool{} // of each session, at each run
	for range 5 {
		for range 10 {
			p.step()
		}
		backedUp(t, st, to, backup.Options{})
		for id, text := range aliveIn(t, st) {
			known[prunedIsNoMatter(id+text)] = true
		}
	}
	want := aliveIn(t, st)
	check := func(what string) {
		t.Helper()
		v, err := backup.Verify(ctx, to, backup.VerifyOptions{})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if len(v.Problems) == 0 || !errors.Is(v.Err(), backup.ErrTarget) {
			t.Errorf("%s: problems %v", what, v.Problems)
		}
		_, got := onMemory(t, nil)
		_, err = backup.Restore(ctx, to, got, backup.RestoreOptions{})
		if err == nil {
			sameAlive(t, want, aliveIn(t, got))
		} else if !errors.Is(err, backup.ErrTarget) {
			t.Errorf("%s: %v", what, err)
		}
		for id, text := range aliveIn(t, got) {
			if !known[prunedIsNoMatter(id+text)] {
				t.Errorf("%s: session %q never was so: %s", what, id, text)
			}
		}
		verify(t, got)
	}
	var files []string
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	}))
	r := rand.New(rand.NewPCG(3, 3))
	for _, file := range files {
		whole, err := os.ReadFile(file)
		must(t, err)
		for name, content := range map[string][]byte{
			"a bit":     func() []byte { b := bytes.Clone(whole); b[r.IntN(len(b))] ^= 1 << r.IntN(8); return b }(),
			"truncated": whole[:r.IntN(len(whole))],
			"empty":     {},
		} {
			must(t, os.WriteFile(file, content, 0o600))
			check(name + " " + file)
		}
		must(t, os.Remove(file))
		if !strings.HasSuffix(file, "/runs/00000005") { // Without the last run, it is an older backup.
			check("missing " + file)
		}
		must(t, os.WriteFile(file, whole, 0o600))
	}
	for i := range files[:len(files)-1] {
		a, err := os.ReadFile(files[i])
		must(t, err)
		b, err := os.ReadFile(files[i+1])
		must(t, err)
		must(t, os.WriteFile(files[i], b, 0o600))
		check("exchanged " + files[i])
		must(t, os.WriteFile(files[i], a, 0o600))
	}
	verified(t, to)
}

// Runs before one that is damaged can be restored, and a run that expands to too much is refused.
func TestBK3_EarlierRunsStandWhateverALaterOneIs(t *testing.T) {
	_, st, to, dir := telling(t)
	s := create(t, st, turnstone.Request{ID: "s"}, []byte("text"))
	var times []time.Time
	for range 6 {
		times = append(times, backedUp(t, st, to, backup.Options{}).Time)
		commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("more"))})
	}
	var bomb bytes.Buffer
	z, err := zstd.NewWriter(&bomb)
	must(t, err)
	fmt.Fprintf(z, "{\"format\":1,\"run\":4,\"time\":%q,\"complete\":4,\"store\":\"\",\"before\":%q,\"entries\":100000000}\n", time.Now().Format(time.RFC3339Nano), strings.Repeat("0", 64))
	for i := range 100_000 {
		fmt.Fprintf(z, "{\"session\":\"%032x\",\"id\":%q,\"run\":4,\"bundle\":{\"pack\":\"00000004-00000000\",\"offset\":0,\"size\":1,\"sum\":%q},\"expanded\":1}\n", i, strings.Repeat("x", 500), strings.Repeat("0", 64))
	}
	must(t, z.Close())
	files, err := filepath.Glob(dir + "/*/runs/00000004")
	must(t, err)
	for _, content := range [][]byte{[]byte("no run"), bomb.Bytes()} {
		must(t, os.WriteFile(files[0], content, 0o600))
		for i, at := range times[:3] {
			_, got := onMemory(t, nil)
			r, err := backup.Restore(ctx, to, got, backup.RestoreOptions{At: at})
			if info, ierr := session(t, got, "s").Info(ctx); !r.Time.Equal(at) || ierr != nil || info.Revision != head.Revision(i+1) {
				t.Errorf("run %d: %+v %v %v", i+1, r, err, ierr)
			}
		}
		_, got := onMemory(t, nil)
		r, err := backup.Restore(ctx, to, got, backup.RestoreOptions{})
		if r.Run != 3 || !errors.Is(err, backup.ErrTarget) || len(content) > 100 && !strings.Contains(err.Error(), "expands to more than") {
			t.Errorf("%+v, %v", r, err)
		}
		all, err := backup.Generations(ctx, to)
		if err != nil || len(all) != 1 {
			t.Error(all, err)
		}
	}
	// The next backup begins a generation, and says why.
	r, err := backup.Run(ctx, st, to, backup.Options{})
	if err != nil || !errors.Is(r.Damaged, backup.ErrTarget) || !r.New || len(r.Failed) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
	got, err := restoredAnyway(t, to)
	if !errors.Is(err, backup.ErrTarget) && err != nil {
		t.Error(err)
	}
	sameAlive(t, aliveIn(t, st), aliveIn(t, got))
}

// A bundle that is damaged costs the sessions that need it, whatever ids they have got since.
func TestBK3_ADamagedBundleCostsItsSessionsAlone(t *testing.T) {
	_, st, to, dir := telling(t)
	create(t, st, turnstone.Request{ID: "a"}, random(3000, 1))
	for i := range 4 {
		create(t, st, turnstone.Request{ID: fmt.Sprint("z", i)}, []byte("text"))
	}
	backedUp(t, st, to, backup.Options{})
	must(t, rename(ctx, st, "a", "b"))
	create(t, st, turnstone.Request{ID: "fork", Parent: "b"}, []byte("of b"))
	backedUp(t, st, to, backup.Options{})
	packs, err := filepath.Glob(dir + "/*/packs/00000001-*")
	must(t, err)
	whole, err := os.ReadFile(packs[0])
	must(t, err)
	whole[1000]++ // within a, which is the oldest
	must(t, os.WriteFile(packs[0], whole, 0o600))
	got, err := restoredAnyway(t, to)
	if !errors.Is(err, backup.ErrTarget) || !strings.Contains(err.Error(), `"b"`) || !strings.Contains(err.Error(), `"fork"`) || strings.Contains(err.Error(), `"z1"`) {
		t.Error(err)
	}
	if have := ids(t, got); len(have) != 4 {
		t.Error(have)
	}
	v, err := backup.Verify(ctx, to, backup.VerifyOptions{})
	if err != nil || len(v.Problems) != 3 {
		t.Error(err, v.Problems)
	}
}

// Where nothing was backed up, nothing is verified.
func TestBK3_NothingIsNoBackup(t *testing.T) {
	if _, err := backup.Verify(ctx, backup.Directory(t.TempDir()+"/nowhere"), backup.VerifyOptions{}); !errors.Is(err, backup.ErrNoBackup) {
		t.Error(err)
	}
}

// A session that is damaged in the store stays in the backup as it was, is named, and keeps nothing from the others.
func TestBK7_ADamagedSessionIsNamedAndTheOthersAreCopied(t *testing.T) {
	to := backup.Directory(t.TempDir() + "/backup")
	e, st := onMemory(t, nil)
	for _, id := range []string{"a", "b", "c"} {
		create(t, st, turnstone.Request{ID: id}, random(500, 1))
	}
	backedUp(t, st, to, backup.Options{})
	want := everythingOf(t, st, "b", true)
	for _, id := range []string{"a", "b", "c"} {
		commitTo(t, session(t, st, id), turnstone.Commit{Nodes: saying(random(500, 2))})
	}
	spoil(t, e, commitsOf(t, st, "b"))
	st = openStore(t, e, nil)
	r, err := backup.Run(ctx, st, to, backup.Options{})
	must(t, err)
	if len(r.Failed) != 1 || !errors.Is(r.Err(), damage.ErrDamaged) || !strings.Contains(r.Err().Error(), `"b"`) || r.Sessions != 2 {
		t.Fatalf("%+v", r)
	}
	got, _ := restored(t, to, backup.RestoreOptions{})
	if have := everythingOf(t, got, "b", true); have != want {
		t.Errorf("%s\nwant\n%s", have, want)
	}
	for _, id := range []string{"a", "c"} {
		sameThere(t, st, got, true, id)
	}
	verified(t, to)
}

// A session that could not be read is looked at again by each run, until it can.
func TestBK7_ADamagedSessionIsLookedAtAgain(t *testing.T) {
	e, st, to, _ := telling(t)
	create(t, st, turnstone.Request{ID: "a"}, random(500, 1))
	backedUp(t, st, to, backup.Options{})
	commitTo(t, session(t, st, "a"), turnstone.Commit{Nodes: saying(random(500, 2))})
	mend := spoil(t, e, commitsOf(t, st, "a"))
	for range 3 {
		r, err := backup.Run(ctx, openStore(t, e, nil), to, backup.Options{})
		must(t, err)
		if len(r.Failed) != 1 || !errors.Is(r.Err(), damage.ErrDamaged) {
			t.Fatalf("%+v", r)
		}
	}
	mend()
	st = openStore(t, e, nil)
	backedUp(t, st, to, backup.Options{})
	asItStands(t, st, to)
}

// Whichever record of a store is damaged, a backup has the sessions that can be read, says what can't, and has all when
// it is mended.
func TestBK7_WhateverIsDamagedTheOthersAreCopied(t *testing.T) {
	testkit.OneGoroutine(t)
	e, st, _, _ := telling(t)
	for _, id := range []string{"a", "b", "c"} {
		commitTo(t, create(t, st, turnstone.Request{ID: id}, random(400, 1)), turnstone.Commit{Checkpoint: map[string][]byte{"p": random(300, 2)}})
		change(t, session(t, st, id), turnstone.RecordChange{Key: "r", Value: []byte("v")})
	}
	create(t, st, turnstone.Request{ID: "erased"}, []byte("text"))
	_, err := st.Erase(ctx, "erased", turnstone.KeepChildren, turnstone.EraseOptions{})
	must(t, err)
	for n, p := range pairs(t, e) {
		if p.Key[4] == 'A' { // Without it nobody opens the store.
			continue
		}
		for _, first := range []bool{true, false} {
			e := cloned(t, e)
			to := backup.Directory(t.TempDir() + "/backup")
			if !first {
				backedUp(t, openStore(t, cloned(t, e), nil), to, backup.Options{})
			}
			mend := spoil(t, e, func(q engine.Pair) bool { return bytes.Equal(p.Key, q.Key) })
			r, err := backup.Run(ctx, openStore(t, e, nil), to, backup.Options{NewGeneration: !first && n%2 == 0})
			if err != nil || r.Err() != nil && !errors.Is(r.Err(), damage.ErrDamaged) {
				t.Errorf("%c: %+v, %v", p.Key[4], r, err)
			}
			mend()
			st := openStore(t, e, nil)
			backedUp(t, st, to, backup.Options{})
			asItStands(t, st, to)
		}
	}
}

// A generation that lacks a session because it was damaged does not make the one before go, which has it, and says so.
func TestBK7_AGenerationThatLacksASessionDoesNotStandForTheOneBefore(t *testing.T) {
	e, st, to, _ := telling(t)
	create(t, st, turnstone.Request{ID: "a"}, random(400, 1))
	create(t, st, turnstone.Request{ID: "z"}, random(400, 2))
	first := backedUp(t, st, to, backup.Options{})
	spoil(t, e, commitsOf(t, st, "a"))
	st = openStore(t, e, nil)
	for range 2 {
		r, err := backup.Run(ctx, st, to, backup.Options{NewGeneration: true, Keep: time.Nanosecond})
		if err != nil || len(r.Failed) != 1 || r.Expired > 0 {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	_, got := onMemory(t, nil)
	if _, err := backup.Restore(ctx, to, got, backup.RestoreOptions{}); !errors.Is(err, backup.ErrTarget) || !slices.Equal(ids(t, got), []string{"z"}) {
		t.Error(err, ids(t, got))
	}
	if _, err := backup.Restore(ctx, to, got, backup.RestoreOptions{At: first.Time}); err != nil || len(ids(t, got)) != 2 {
		t.Error(err, ids(t, got))
	}
}
