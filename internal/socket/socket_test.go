package socket

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// A socket is reached in a directory of any depth, also when the directory has moved.
func TestASocketIsReachedInADirectoryOfAnyDepth(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere the path of a socket has 103 bytes at most")
	}
	deep := filepath.Join(t.TempDir(), strings.Repeat("d", 200), strings.Repeat("e", 200))
	path := filepath.Join(deep, "s")
	if _, err := Dial(context.Background(), path); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Dial(context.Background(), path); !errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), "/proc/") || !strings.Contains(err.Error(), deep) {
		t.Error(err)
	}
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	moved := deep + "f"
	if err := os.Rename(deep, moved); err != nil {
		t.Fatal(err)
	}
	c, err := Dial(context.Background(), filepath.Join(moved, "s"))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if _, err := Listen(filepath.Join(moved, strings.Repeat("s", 200))); err == nil || !strings.Contains(err.Error(), "last name") {
		t.Error(err)
	}
}
