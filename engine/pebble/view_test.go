package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/turnstonedb/turnstone/engine"
)

func put(e engine.Engine, key, value string) error {
	var b engine.Batch
	if value == "" {
		b.Delete([]byte(key))
	} else {
		b.Set([]byte(key), []byte(value))
	}
	return e.Apply(context.Background(), &b)
}

// reads returns what a Get and a Scan show of a key, which agree.
func reads(t *testing.T, e engine.Engine, key string) string {
	t.Helper()
	var got [][]byte
	scanned := ""
	if err := within(t, "a Get and a Scan", 100*time.Millisecond, func(ctx context.Context) (err error) {
		if got, err = e.Get(ctx, []byte(key), []byte("absent")); err != nil {
			return err
		}
		for p, err := range e.Scan(ctx, engine.PrefixRange([]byte(key))) {
			if err != nil {
				return err
			}
			scanned = string(p.Value)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if string(got[0]) != scanned {
		t.Errorf("a Get shows %q, a Scan %q", got[0], scanned)
	}
	return scanned
}

func TestAReadWaitsForNoSyncAndShowsWhatIsDurable(t *testing.T) {
	fs, dir := memStore(t)
	var slow atomic.Bool
	release, reached := make(chan struct{}), make(chan struct{}, 10)
	e, err := openOn(errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if slow.Load() && op.Kind == errorfs.OpFileSyncData && strings.HasSuffix(op.Path, ".log") {
			reached <- struct{}{}
			<-release
		}
		return nil
	})), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := put(e, "k", "old"); err != nil {
		t.Fatal(err)
	}
	slow.Store(true)
	applied := make(chan error, 2)
	for _, v := range []string{"new", "newer"} {
		go func() { applied <- put(e, "k", v) }()
	}
	<-reached
	if got := reads(t, e, "k"); got != "old" {
		t.Errorf("beside a sync: %q", got)
	}
	close(release)
	if err := errors.Join(<-applied, <-applied); err != nil {
		t.Fatal(err)
	}
	if got := reads(t, e, "k"); got != "new" && got != "newer" {
		t.Errorf("after the sync: %q", got)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// hold begins a read, and returns what ends it.
func hold(t *testing.T, e *Engine) (end func()) {
	t.Helper()
	begun, ended, done := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		done <- e.read(context.Background(), func(*pebble.Snapshot) error {
			close(begun)
			<-ended
			return nil
		})
	}()
	<-begun
	return func() {
		close(ended)
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// A removed pair that a reader could still see when its table was written is in no file after a
// vacuum, although nothing lies above that table.
func TestVacuumRemovesWhatAReaderStillSaw(t *testing.T) {
	for name, c := range map[string]struct {
		keys  int
		after string // the value that takes the place of the secret one, or none
	}{"removed": {20, ""}, "replaced": {20, "other"}, "the only key": {0, "other"}} {
		t.Run(name, func(t *testing.T) { removesWhatAReaderSaw(t, c.keys, c.after) })
	}
}

func removesWhatAReaderSaw(t *testing.T, keys int, after string) {
	fs, dir := memStore(t)
	e, err := openOn(fs, dir)
	if err != nil {
		t.Fatal(err)
	}
	secret := string(ledgerValue("s", 1)[:50]) // which does not compress
	there := func() (files []string) {
		names, err := fs.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if b, err := fs.UnsafeGetFileDataBuffer(fs.PathJoin(dir, n)); err == nil && bytes.Contains(b, []byte(secret)) {
				files = append(files, n)
			}
		}
		return files
	}
	for i := range keys {
		if err := put(e, fmt.Sprint("k", i), "value"); err != nil {
			t.Fatal(err)
		}
	}
	if err := put(e, "k5", secret); err != nil {
		t.Fatal(err)
	}
	end := hold(t, e)
	if err := put(e, "k5", after); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	if err := e.Vacuum(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a vacuum beside a reader: %v", err)
	}
	cancel()
	if err := e.db.Compact(context.Background(), []byte("a"), []byte("z"), false); err != nil {
		t.Fatal(err)
	}
	levels, err := e.db.SSTables(pebble.WithProperties())
	if err != nil {
		t.Fatal(err)
	}
	if bottom := levels[len(levels)-1]; len(bottom) != 1 || bottom[0].Properties.SnapshotPinnedKeys == 0 || len(there()) == 0 {
		t.Fatal("no table keeps the pair for the reader: the test shows nothing")
	}
	end()
	if err := e.Vacuum(context.Background()); err != nil {
		t.Fatal(err)
	}
	if files := there(); len(files) > 0 {
		t.Errorf("the removed value is in %v", files)
	}
	if got := reads(t, e, "k5"); got != after {
		t.Errorf("k5 is %q", got)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

func TestRangesThatReadersFindRemovedAreCompacted(t *testing.T) {
	fs, dir := memStore(t)
	e, err := Open(dir, &Options{MinFreeBytes: 1, fs: fs})
	if err != nil {
		t.Fatal(err)
	}
	const n = 3 * manySkipped
	var set, del engine.Batch
	for i := range n {
		k := fmt.Appendf(nil, "q%06d", i)
		set.Set(k, []byte("x"))
		del.Delete(k)
	}
	for _, b := range []*engine.Batch{&set, &del} {
		for b.Ops() > 0 { // a batch takes fewer
			part := engine.Batch{Sets: b.Sets[:min(len(b.Sets), 8000)], Deletes: b.Deletes[:min(len(b.Deletes), 8000)]}
			b.Sets, b.Deletes = b.Sets[len(part.Sets):], b.Deletes[len(part.Deletes):]
			if err := e.Apply(context.Background(), &part); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := engine.PrefixRange([]byte("q"))
	skipped := func() (k int) {
		if err := e.read(context.Background(), func(s *pebble.Snapshot) (err error) {
			_, _, k, err = onePage(context.Background(), s, r)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return k
	}
	if k := skipped(); k <= manySkipped {
		t.Fatalf("a page steps over %d pairs: the test shows nothing", k)
	}
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		if reads(t, e, "q") != "" {
			t.Fatal("a removed pair is there")
		}
		if k := skipped(); k == 0 {
			break
		} else if time.Since(begun) > 20*time.Second {
			t.Fatalf("a page still steps over %d pairs", k)
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
