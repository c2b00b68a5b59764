//go:build linux || darwin

package open_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A replacement takes the directory of a store that is open from its path, and returns where it is then, or "".
type replacement struct {
	name string
	link bool // the path is a link to the directory
	do   func(t *testing.T, path string) (was string)
}

var replacements = []replacement{
	{"moved", false, func(t *testing.T, path string) string {
		must(t, os.Rename(path, path+".was"))
		return path + ".was"
	}},
	{"behind a link that is set anew", true, func(t *testing.T, path string) string {
		must(t, os.Mkdir(path+".new", 0o700))
		must(t, os.Symlink(path+".new", path+".link"))
		must(t, os.Rename(path+".link", path))
		return path + ".first"
	}},
	{"removed", false, func(t *testing.T, path string) string {
		for os.RemoveAll(path) != nil { // the engine may create a file meanwhile
		}
		return ""
	}},
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// what returns the batch that sets a number.
func what(n uint64) *engine.Batch {
	b := &engine.Batch{}
	b.Set(binary.BigEndian.AppendUint64(nil, n), fmt.Appendf(nil, "the value of %d", n))
	return b
}

// has returns an error unless e has all pairs of some numbers, and, if only is set, no other pair.
func has(e engine.Engine, numbers []uint64, only bool) error {
	for _, n := range numbers {
		v, err := e.Get(context.Background(), binary.BigEndian.AppendUint64(nil, n))
		if err != nil || string(v[0]) != fmt.Sprintf("the value of %d", n) {
			return fmt.Errorf("%d, which was acknowledged, is %q: %w", n, v, err)
		}
	}
	count := 0
	for _, err := range e.Scan(context.Background(), engine.Range{}) {
		if err != nil {
			return err
		}
		count++
	}
	if only && count != len(numbers) {
		return fmt.Errorf("there are %d pairs, and %d were written", count, len(numbers))
	}
	return nil
}

// What an engine acknowledged is in the directory that it opened. When that is not at its path any more, it
// acknowledges nothing more, its calls say so, and another store at the path is not touched.
func TestAnEngineWhoseDirectoryIsReplacedAcknowledgesNothingMore(t *testing.T) {
	testkit.Slow(t)
	for _, name := range open.Schemes() {
		scheme := name + ":"
		for _, o := range []*open.Options{{}, {Exclusive: true}} {
			for _, r := range replacements {
				t.Run(fmt.Sprint(scheme, "exclusive=", o.Exclusive, "/", r.name), func(t *testing.T) {
					var told time.Duration
					rounds := testkit.Pick(10, 1, 1)
					for range rounds {
						told = max(told, replaced(t, scheme, o, r))
					}
					t.Logf("%d times; the last of several writers was told after %v at most", rounds, told.Round(time.Millisecond))
				})
			}
		}
	}
}

// replaced replaces the directory of a store beside writers, and returns how long it took until all of them were told.
func replaced(t *testing.T, scheme string, o *open.Options, r replacement) time.Duration {
	path := t.TempDir() + "/store"
	if r.link {
		must(t, os.Mkdir(path+".first", 0o700))
		must(t, os.Symlink(path+".first", path))
	}
	engines := []engine.Engine{}
	for range 2 { // if it is shared, the second one reaches the first
		e, err := open.Open(t.Context(), scheme+path, o)
		must(t, err)
		engines = append(engines, e)
		if o.Exclusive {
			break
		}
	}
	var mu sync.Mutex
	var acked []uint64
	var writers sync.WaitGroup
	for w := range uint64(4) {
		e := engines[int(w)%len(engines)]
		writers.Go(func() {
			for n := w << 32; ; n++ {
				err := e.Apply(context.Background(), what(n))
				if err == nil {
					mu.Lock()
					acked = append(acked, n)
					mu.Unlock()
					continue
				}
				if !errors.Is(err, engine.ErrReplaced) {
					t.Errorf("a batch after the directory was replaced: %v", err)
				}
				return
			}
		})
	}
	time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
	was := r.do(t, path)
	begun := time.Now()
	other, err := open.Open(t.Context(), scheme+path, &open.Options{Exclusive: true})
	must(t, err)
	var others []uint64
	for n := range uint64(20) {
		must(t, other.Apply(t.Context(), what(n<<48)))
		others = append(others, n<<48)
	}
	writers.Wait()
	told := time.Since(begun)
	for _, e := range engines {
		_, get := e.Get(t.Context(), []byte("key"))
		var scan error
		for _, err := range e.Scan(t.Context(), engine.Range{}) {
			scan = err
		}
		for name, err := range map[string]error{"Get": get, "Scan": scan, "Apply": e.Apply(t.Context(), what(1)), "Vacuum": e.Vacuum(t.Context())} {
			if !errors.Is(err, engine.ErrReplaced) {
				t.Errorf("%s of an engine whose directory was replaced: %v", name, err)
			}
		}
		_ = e.Close() // it may tell that files are gone
	}
	must(t, other.Close())
	other, err = open.Open(t.Context(), scheme+path, &open.Options{Exclusive: true})
	must(t, err)
	if err := errors.Join(has(other, others, true), other.Close()); err != nil {
		t.Errorf("the other store: %v", err)
	}
	if was == "" {
		return told
	}
	old, err := open.Open(t.Context(), scheme+was, &open.Options{Exclusive: true})
	must(t, err)
	if err := errors.Join(has(old, acked, false), old.Close()); err != nil {
		t.Errorf("the store that was replaced: %v", err)
	}
	return told
}
