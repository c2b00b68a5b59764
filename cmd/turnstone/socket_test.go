//go:build unix

package main

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
)

// A socket whose file is removed is made again, and who is connected stays so.
func TestSV10_ASocketThatIsRemovedIsMadeAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := startServe(t, "--store", dir)
	c, err := client.Open(t.Context(), s.address, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	path := filepath.Join(dir, socketName)
	for range 3 {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if _, err := c.List(t.Context(), turnstone.ListOptions{}); err != nil {
			t.Error("connected before:", err)
		}
		for {
			if _, err := os.Lstat(path); err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		other, err := client.Open(t.Context(), s.address, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
		if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", i, err)
		}
	}
	s.stop(t)
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is left")
	}
}

// Another user is refused, also where the file lets him connect, as it does for a moment when it is made.
func TestSV10_ASocketIsForItsUser(t *testing.T) {
	if path := os.Getenv("TURNSTONE_TEST_CONNECT"); path != "" {
		c, err := net.Dial("unix", path)
		if err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		_, _ = os.Stdout.WriteString(fmt.Sprintln(err))
		os.Exit(0)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	dir, err := os.MkdirTemp("", "socket")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "test"), program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "socket")
	l, err := listen(t.Context(), "unix:"+path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.WriteString(c, "x")
			_ = c.Close()
		}
		accepted <- err
	}()
	as := func(user uint32) string {
		c := exec.Command(filepath.Join(dir, "test"), "-test.run", "ASocketIsForItsUser")
		c.Dir = dir
		c.Env = append(os.Environ(), "TURNSTONE_TEST_CONNECT="+path)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if got := as(65534); got != "EOF" {
		t.Errorf("another user: %s", got)
	}
	select {
	case err := <-accepted:
		t.Fatal("it was accepted:", err)
	default:
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if b, err := io.ReadAll(c); string(b) != "x" || err != nil {
		t.Errorf("this user: %q, %v", b, err)
	}
	if err := <-accepted; err != nil {
		t.Error(err)
	}
}
