package open_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/open"
)

func TestURLs(t *testing.T) {
	dir := t.TempDir()
	for _, url := range []string{"mem:", dir + "/a", "badger:" + dir + "/a", "pebble:" + dir + "/[b]"} {
		e, err := open.Open(url)
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
		if e, err := open.Open(url); !errors.Is(err, open.ErrURL) || e != nil {
			t.Errorf("%q: %v, %v", url, e, err)
		}
	}
	for _, url := range []string{"pebble:" + dir + "/a", "badger:" + dir + "/[b]", dir + "/[b]"} {
		if e, err := open.Open(url); err == nil || e != nil {
			t.Errorf("%q opens another engine's directory", url)
		}
	}
}

func ExampleOpen() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	e, err := open.Open("pebble:" + filepath.Join(dir, "store"))
	fmt.Println(err)
	fmt.Println(e.Close())
	// Output:
	// <nil>
	// <nil>
}
