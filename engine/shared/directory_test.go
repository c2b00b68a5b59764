package shared

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

func TestASocketOfAKilledOwnerIsReplaced(t *testing.T) {
	dir, d := filepath.Join(t.TempDir(), "store"), newDisk()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, socketName), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if err := set(join(t, dir, d.driver), "a", "1"); err != nil {
		t.Fatal(err)
	}
	if get(t, join(t, dir, d.driver), "a") != "1" || d.opened.Load() != 1 {
		t.Error("the second engine did not reach the first one")
	}
}

// A socket that is removed while its owner lives is made again: others reach the owner.
func TestASocketThatIsRemovedIsMadeAgain(t *testing.T) {
	dir, d := filepath.Join(t.TempDir(), "store"), newDisk()
	first := join(t, dir, d.driver)
	if err := set(first, "a", "1"); err != nil {
		t.Fatal(err)
	}
	before := join(t, dir, d.driver)
	if get(t, before, "a") != "1" {
		t.Error("not attached")
	}
	for range 3 {
		if err := os.Remove(filepath.Join(dir, socketName)); err != nil {
			t.Fatal(err)
		}
		if get(t, before, "a") != "1" || get(t, join(t, dir, d.driver), "a") != "1" || d.opened.Load() != 1 {
			t.Error("an engine did not reach the first one")
		}
		testkit.Until(t, "the socket is there again", func() bool {
			_, err := os.Lstat(filepath.Join(dir, socketName))
			return err == nil
		})
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if get(t, join(t, dir, d.driver), "a") != "1" {
		t.Error("it was not taken over")
	}
}

func TestALongPathIsNoHindrance(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("on this system a socket needs a short path")
	}
	dir, d := filepath.Join(t.TempDir(), strings.Repeat("x", 120)), newDisk()
	if err := set(join(t, dir, d.driver), "a", "1"); err != nil {
		t.Fatal(err)
	}
	if get(t, join(t, dir, d.driver), "a") != "1" || d.opened.Load() != 1 {
		t.Error("the second engine did not reach the first one")
	}
}

// A directory without room for the lock or the socket is that of one process.
func TestAStoreThatCannotBeServedIsOpenedAllTheSame(t *testing.T) {
	dir, d := private(t), newDisk()
	if err := os.MkdirAll(filepath.Join(dir, socketName, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	e := quickly(t, dir, d.driver)
	if err := set(e, "a", "1"); err != nil || get(t, e, "a") != "1" {
		t.Error(err)
	}
	if _, err := open(ctx, dir, Driver{Name: "disk", Open: d.driver}, quick); !errors.Is(err, engine.ErrLocked) {
		t.Errorf("a second process: %v", err)
	}
}

// A directory that was moved away is not made anew, and the store in its place is another one.
func TestAStoreThatWasMovedAwayIsNotReplaced(t *testing.T) {
	dir, d := private(t), newDisk()
	owner, other := quickly(t, dir, d.driver), quickly(t, dir, d.driver)
	if err := os.Rename(dir, dir+" moved"); err != nil {
		t.Fatal(err)
	}
	replaced := newDisk()
	third := quickly(t, dir, replaced.driver)
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	if err := set(other, "a", "1"); !errors.Is(err, engine.ErrReplaced) {
		t.Errorf("a batch for the store that was moved: %v", err)
	}
	fourth := quickly(t, dir, replaced.driver) // The first owner has not removed the socket of the third.
	if err := set(fourth, "b", "2"); err != nil || get(t, third, "a")+get(t, third, "b") != "2" || replaced.opened.Load() != 1 {
		t.Error(err, replaced.opened.Load())
	}
	if err := errors.Join(fourth.Close(), third.Close()); err != nil {
		t.Fatal(err)
	}
	opened := d.opened.Load()
	if err := set(other, "a", "1"); !errors.Is(err, engine.ErrReplaced) || d.opened.Load() != opened {
		t.Errorf("a batch for the store that was moved, where another one is: %v", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := set(other, "a", "1"); !errors.Is(err, engine.ErrReplaced) {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Error("a directory was made")
	}
}

func TestASocketThatLeadsElsewhereIsNotUsed(t *testing.T) {
	dir, d := private(t), newDisk()
	join(t, dir, d.driver)
	theirs, other := private(t), newDisk()
	prepared(t, theirs)
	if err := os.Symlink(filepath.Join(dir, socketName), filepath.Join(theirs, socketName)); err != nil {
		t.Fatal(err)
	}
	e := join(t, theirs, other.driver)
	if err := set(e, "a", "1"); err != nil || other.opened.Load() != 1 {
		t.Errorf("%v, opened %d times", err, other.opened.Load())
	}
	if err := os.Chmod(theirs, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(ctx, theirs, Driver{Name: "disk", Open: other.driver}); err == nil || !strings.Contains(err.Error(), "other users") {
		t.Errorf("a directory that others can enter: %v", err)
	}
}

// Who has the store open through others has it open: nobody takes it for one that is only to be read.
func TestAStoreInUseIsNotOpenedForReadingOnly(t *testing.T) {
	dir, d := private(t), newDisk()
	owner, other := join(t, dir, d.driver), join(t, dir, d.driver)
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := localdir.OpenReadOnly(dir); !errors.Is(err, engine.ErrLocked) || !strings.Contains(err.Error(), "share") {
		t.Error(err)
	}
	if err := set(other, "a", "1"); err != nil {
		t.Error(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "turnstone.lock")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		reader, err := localdir.OpenReadOnly(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		if _, err := open(ctx, dir, Driver{Name: "disk", Open: d.driver}, quick); !errors.Is(err, engine.ErrLocked) || !strings.Contains(err.Error(), "reads it") {
			t.Errorf("beside a reader: %v", err)
		}
	}
}

// A directory that is replaced while the driver opens it is not taken for the one before.
func TestADirectoryThatIsReplacedWhileItIsOpenedIsRefused(t *testing.T) {
	dir, d := private(t), newDisk()
	_, err := Open(ctx, dir, Driver{Name: "disk", Open: func(dir string) (engine.Engine, error) {
		if err := os.Rename(dir, dir+" moved"); err != nil {
			return nil, err
		}
		return d.driver(dir)
	}})
	if !errors.Is(err, engine.ErrReplaced) {
		t.Error(err)
	}
}

// Of several processes that begin to use a directory of mode 0755 at once, none takes the files of another one for
// somebody else's.
func TestADirectoryIsMadePrivateByOneOfSeveral(t *testing.T) {
	for range 200 {
		dir := private(t)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		var uses sync.WaitGroup
		for range 3 {
			uses.Go(func() {
				d, err := localdir.Prepare(dir)
				if err == nil {
					err = errors.Join(d.Use(), d.Close())
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		uses.Wait()
	}
}
