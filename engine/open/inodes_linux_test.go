package open_test

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/open"
)

// Opening a store, reading it and reclaiming need no space, not even an inode for a socket. A second process is told
// then who has the store.
func TestAFileSystemWithoutInodesIsNoHindrance(t *testing.T) {
	root := t.TempDir()
	if err := syscall.Mount("none", root, "tmpfs", 0, "size=64m,nr_inodes=64,mode=0700"); err != nil {
		t.Skip("only root can mount: ", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(root, syscall.MNT_DETACH) })
	dir := root + "/store"
	batch := func(f func(*engine.Batch)) *engine.Batch {
		b := &engine.Batch{Reclaim: true}
		f(b)
		return b
	}
	for _, o := range []*open.Options{{Exclusive: true}, {}} { // Only the second one leaves the files of those who share.
		e, err := open.Open(t.Context(), dir, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(e.Apply(t.Context(), batch(func(b *engine.Batch) { b.Set([]byte("a"), []byte("1")) })), e.Close()); err != nil {
			t.Fatal(err)
		}
		var fill []string
		for i := 0; ; i++ {
			name := fmt.Sprint(root, "/fill", i)
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				break
			}
			fill = append(fill, name)
		}
		if e, err = open.Open(t.Context(), dir, nil); err != nil {
			t.Fatal(err)
		}
		if v, err := e.Get(t.Context(), []byte("a")); err != nil || string(v[0]) != "1" {
			t.Error(v, err)
		}
		if err := e.Apply(t.Context(), batch(func(b *engine.Batch) { b.Delete([]byte("a")) })); !errors.Is(err, engine.ErrNoSpace) {
			t.Errorf("Apply without inodes: %v", err) // Pebble needs some to open a store for changes
		}
		if _, err := open.Open(t.Context(), dir, nil); !errors.Is(err, engine.ErrLocked) {
			t.Errorf("a second opening: %v", err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		for _, name := range fill {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
	}
}
