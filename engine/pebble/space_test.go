package pebble

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

func set(e engine.Engine, n, size int, reclaim bool) error {
	var b engine.Batch
	v := make([]byte, size)
	for i := range v {
		v[i] = byte(rand.Uint32())
	}
	b.Set(fmt.Appendf(nil, "k%06d", n), v)
	b.Reclaim = reclaim
	return e.Apply(context.Background(), &b)
}

func TestFilesAfterCloseAreInProportionToTheContent(t *testing.T) {
	testkit.Slow(t)
	dir := filepath.Join(t.TempDir(), "store")
	e, err := Open(dir, &Options{MinFreeBytes: 1, Durability: Process})
	if err != nil {
		t.Fatal(err)
	}
	content := 0
	for n := range 10_000 {
		size := 100 + n%200
		if err := set(e, n, size, false); err != nil {
			t.Fatal(err)
		}
		content += size + 7
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	blocks := int64(0)
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			blocks += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes of pairs, %d bytes of blocks", content, blocks)
	if limit := int64(content)*3/2 + 2<<20; blocks > limit {
		t.Errorf("files take %d bytes for %d of pairs, at most %d are wanted", blocks, content, limit)
	}
}

// A table that finds no space is written when there is space again. When Pebble notices that
// late, its memtables are full by then: the batch that waits within Pebble for room has an
// unknown outcome, and the others are refused.
func TestAShortageOfSpaceForTablesPasses(t *testing.T) {
	testkit.Seldom(t)
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("noticed late %v", late), func(t *testing.T) { shortage(t, late) })
	}
}

func shortage(t *testing.T, late bool) {
	fs, dir := memStore(t)
	var full atomic.Bool
	noticed := make(chan struct{}) // Pebble can notice the shortage from here on
	e, err := openOn(errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && strings.HasSuffix(op.Path, ".sst") && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpRemove {
			<-noticed
			return syscall.ENOSPC
		}
		return nil
	})), dir)
	if err != nil {
		t.Fatal(err)
	}
	notice := sync.OnceFunc(func() { close(noticed) })
	defer notice()
	if !late {
		notice()
	}
	full.Store(true)
	l := newLedger()
	refused, unknown := 0, 0
	for range 200 {
		switch err := within(t, "Apply", time.Second, func(ctx context.Context) error { return l.write(ctx, e) }); {
		case errors.Is(err, engine.ErrNoSpace):
			refused++
		case errors.Is(err, engine.ErrUnknown): // on a busy machine also when the shortage could be noticed at once
			unknown++
			notice()
		case errors.Is(err, context.DeadlineExceeded): // a batch that waits for the one within Pebble, on a busy machine
		case err != nil:
			t.Fatal(err)
		}
	}
	notice()
	if refused == 0 {
		t.Error("no Apply noticed that tables find no space")
	}
	if late && unknown != 1 {
		t.Errorf("%d batches have an unknown outcome, want that of the one within Pebble", unknown)
	}
	if err := within(t, "Vacuum", 2*time.Second, e.Vacuum); !errors.Is(err, engine.ErrNoSpace) {
		t.Errorf("Vacuum: %v", err)
	}
	full.Store(false)
	err = engine.ErrNoSpace // a table that was begun before may still fail
	for begin := time.Now(); errors.Is(err, engine.ErrNoSpace) && time.Since(begin) < 20*time.Second; {
		time.Sleep(shortFor)
		err = errors.Join(l.write(context.Background(), e), e.Vacuum(context.Background()))
	}
	if err != nil {
		t.Errorf("when there is space again: %v", err)
	}
	if wrong, err := l.check(context.Background(), e, l.acked); wrong != "" || err != nil {
		t.Error(wrong, err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	checkReopened(t, fs, dir, l, l.acked, "after a shortage")
}

func TestVacuumHeedsItsContext(t *testing.T) {
	fs, dir := memStore(t)
	slow := make(chan struct{})
	e, err := openOn(errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if strings.HasSuffix(op.Path, ".sst") && op.Kind == errorfs.OpFileWrite {
			<-slow
		}
		return nil
	})), dir)
	if err != nil {
		t.Fatal(err)
	}
	l := newLedger()
	for range 3 {
		if err := l.write(context.Background(), e); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := within(t, "Vacuum", 50*time.Millisecond, e.Vacuum); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Vacuum: %v", err)
		}
	}
	close(slow)
	if err := errors.Join(e.Vacuum(context.Background()), e.Close()); err != nil {
		t.Error(err)
	}
}

var _ vfs.FS = (*noted)(nil)
