package open_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone/internal/testkit"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/internal/pgtest"
)

func TestURLs(t *testing.T) {
	dir := t.TempDir()
	for _, url := range []string{"mem:", dir + "/a", "pebble:" + dir + "/a", "badger:" + dir + "/[b]", dir + "/[b]"} {
		e, err := open.Open(t.Context(), url, nil)
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		if err := e.Apply(context.Background(), &engine.Batch{Sets: []engine.Pair{{Key: []byte("k"), Value: []byte("v")}}}); err != nil {
			t.Errorf("%s: %v", url, err)
		}
		if err := e.Close(); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, url := range []string{"", "mem:x", "mysql://host", "badger:", "pebble:"} {
		if e, err := open.Open(t.Context(), url, nil); !errors.Is(err, open.ErrURL) || e != nil {
			t.Errorf("%q: %v, %v", url, e, err)
		}
	}
	for _, url := range []string{"badger:" + dir + "/a", "pebble:" + dir + "/[b]"} {
		if e, err := open.Open(t.Context(), url, nil); err == nil || e != nil {
			t.Errorf("%q opens another engine's directory", url)
		}
	}
}

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestPostgresURLs(t *testing.T) {
	testkit.Slow(t)
	url, schema := pgtest.URL(t), pgtest.Schema(t)
	e, err := open.Open(t.Context(), url+"&schema="+schema, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.Apply(t.Context(), &engine.Batch{Sets: []engine.Pair{{Key: []byte("k"), Value: []byte("v")}}}); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"postgres://user:secret@%zz/db", "postgres://user:secret@localhost:notaport/db", "postgres://user:secret@127.0.0.1:1/db?connect_timeout=1", "postgres://user:sec/ret@localhost/db", "Postgres://user:secret@h/db", "postgres:/user:secret@h", "postgres://localhost/db?sslmode=verify-full;"} {
		e, err := open.Open(t.Context(), bad, nil)
		if err == nil || e != nil || strings.Contains(err.Error(), "sec") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func ExampleOpen() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	e, err := open.Open(context.Background(), "pebble:"+filepath.Join(dir, "store"), nil)
	fmt.Println(err)
	fmt.Println(e.Close())
	// Output:
	// <nil>
	// <nil>
}
