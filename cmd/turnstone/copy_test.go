package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// The command copies a store from Badger to PostgreSQL and back.
func TestCopy(t *testing.T) {
	testkit.Slow(t)
	from := build(t, func(st *turnstone.Store) {
		s := create(t, st, turnstone.Request{ID: "s"})
		commit(t, s, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("text")}}, Checkpoint: map[string][]byte{"p": []byte("part")}})
		create(t, st, turnstone.Request{ID: "f", Parent: "s"})
	})
	server := pgtest.URL(t) + "&schema=" + pgtest.Schema(t)
	back := t.TempDir() + "/store"
	for _, args := range [][]string{{from, server}, {server, back}} {
		if out := must(t, "copy", args[0], args[1]); !strings.Contains(out, "the heads of 2 sessions") {
			t.Error(out)
		}
	}
	for _, url := range []string{server, back} {
		if got, want := must(t, "sessions", "--json", "--store", url), must(t, "sessions", "--json", "--store", from); got != want {
			t.Errorf("%s\n%s", got, want)
		}
		must(t, "verify", "--store", url)
	}
	if out := must(t, "copy", from, server, "--json"); !strings.Contains(out, `"written":0`) {
		t.Error(out)
	}
	other := build(t, func(st *turnstone.Store) { create(t, st, turnstone.Request{ID: "o"}) })
	if code, _, errs := status(t, nil, "copy", from, other); code != exitConflict || !strings.Contains(errs, "another store") {
		t.Errorf("%d: %s", code, errs)
	}
	if code, _, errs := status(t, nil, "copy", t.TempDir(), other); code != exitNotFound {
		t.Errorf("%d: %s", code, errs)
	}
}

// A store with the corpus is copied from Badger to PostgreSQL and back. The heads are
// equal, and both copies verify.
func TestCopyOfTheCorpus(t *testing.T) {
	testkit.Slow(t)
	dir := os.Getenv("TURNSTONE_CORPUS")
	if dir == "" {
		t.Skip("no corpus of transcripts: set TURNSTONE_CORPUS to a folder of them")
	}
	files, err := filepath.Glob(dir + "/*.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts in %s: %v", dir, err)
	}
	if testkit.Race {
		t.Skip("other processes, many megabytes: there is nothing for the race detector")
	}
	from, back := t.TempDir()+"/store", t.TempDir()+"/store"
	schema := pgtest.Schema(t)
	server := pgtest.URL(t) + "&schema=" + schema
	files = files[:min(len(files), testkit.Pick(len(files), 6, 2))]
	must(t, append([]string{"import", "--store", from}, files...)...)
	t.Log(must(t, "copy", from, server))
	t.Log(must(t, "copy", server, back))
	conn, err := pgx.Connect(t.Context(), pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var rows, size int64
	if err := conn.QueryRow(t.Context(), "SELECT count(*), pg_total_relation_size('"+schema+".pairs') FROM "+schema+".pairs").Scan(&rows, &size); err != nil {
		t.Fatal(err)
	}
	allocated, err := open.Allocated(back)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d rows take %d bytes on the server, %d in files", rows, size, allocated)
	want := must(t, "sessions", "--json", "--limit", "0", "--store", from)
	for _, url := range []string{server, back} {
		if got := must(t, "sessions", "--json", "--limit", "0", "--store", url); got != want || strings.Count(got, "\n") < len(files) {
			t.Errorf("%s: %d sessions, %d", url, strings.Count(got, "\n"), strings.Count(want, "\n"))
		}
		must(t, "verify", "--store", url)
	}
}
