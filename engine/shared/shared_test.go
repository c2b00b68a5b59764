package shared

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/pebble"
)

func TestOneEngineOwnsTheStoreAndTheOthersUseIt(t *testing.T) {
	dir, d := t.TempDir(), newDisk()
	var all []*Engine
	for i := range 5 {
		all = append(all, join(t, dir, d.driver))
		if err := set(all[i], fmt.Sprint(i), "x"); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range all {
		for i := range all {
			if get(t, e, fmt.Sprint(i)) != "x" {
				t.Errorf("key %d is not there", i)
			}
		}
	}
	if n := d.opened.Load(); n != 1 {
		t.Errorf("opened %d times", n)
	}
	for _, e := range all { // Each one but the last closes as the owner.
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if last := all[len(all)-1]; e != last && get(t, last, "0") != "x" {
			t.Error("lost")
		}
	}
	if _, err := os.Stat(filepath.Join(dir, socketName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestAStoreThatIsNotSharedIsRefusedAtOnce(t *testing.T) {
	dir := t.TempDir()
	alone, err := pebble.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	begun := time.Now()
	_, err = Open(ctx, dir, Driver{Name: "pebble", Open: func(dir string) (engine.Engine, error) { return pebble.Open(dir, nil) }})
	var held *engine.LockedError
	if !errors.As(err, &held) || !strings.Contains(held.Holder, fmt.Sprintf("pid %d ", os.Getpid())) {
		t.Error(err)
	}
	if time.Since(begun) > usual.open {
		t.Error("it waited for an answer")
	}
}

func TestAnOwnerThatDoesNotAnswerIsNamed(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"silent": func(c net.Conn) { io.Copy(io.Discard, c) },
		"closes": func(c net.Conn) { c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			hold(t, dir, serve)
			_, err := open(ctx, dir, Driver{Name: "disk", Open: newDisk().driver}, patience{open: 50 * time.Millisecond})
			var held *engine.LockedError
			if !errors.As(err, &held) || !strings.Contains(held.Holder, fmt.Sprintf("pid %d ", os.Getpid())) || !errors.Is(err, engine.ErrUnavailable) {
				t.Error(err)
			}
			ended, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			if _, err := Open(ended, dir, Driver{Name: "disk", Open: newDisk().driver}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("with a context that ends: %v", err)
			}
		})
	}
}

func TestAPeerOfAnotherUserIsRefused(t *testing.T) {
	dir := t.TempDir()
	hold(t, dir, func(c net.Conn) { io.Copy(io.Discard, c) })
	c, err := net.Dial("unix", filepath.Join(dir, socketName))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := sameUser(c.(*net.UnixConn)); err != nil {
		t.Error(err)
	}
	other := func(int) (int, error) { return os.Geteuid() + 1, nil }
	if err := peer(c.(*net.UnixConn), other); err == nil {
		t.Error("not refused")
	}
	unknown := errors.New("unknown")
	if err := peer(c.(*net.UnixConn), func(int) (int, error) { return os.Geteuid(), unknown }); !errors.Is(err, unknown) {
		t.Error(err)
	}
}

func TestAnOwnerWhoseDriverFailedGivesTheStoreUp(t *testing.T) {
	dir, d := t.TempDir(), newDisk()
	owner, other := join(t, dir, d.driver), join(t, dir, d.driver)
	if err := set(other, "a", "1"); err != nil {
		t.Fatal(err)
	}
	d.before = func(n int32, _ string) error {
		if n == 1 {
			return fmt.Errorf("%w until it is reopened", engine.ErrClosed)
		}
		return nil
	}
	if err := set(other, "b", "2"); err != nil {
		t.Errorf("the engine that was attached: %v", err)
	}
	if err := set(owner, "c", "3"); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("the engine that failed: %v", err)
	}
	if d.opened.Load() != 2 || get(t, other, "a")+get(t, other, "b")+get(t, other, "c") != "12" {
		t.Error("the store was not taken over")
	}
}

func TestABatchWhoseReplyIsLostHasAnUnknownOutcome(t *testing.T) {
	dir, d := t.TempDir(), newDisk()
	owner, other := join(t, dir, d.driver), join(t, dir, d.driver)
	begun, end := make(chan struct{}), make(chan struct{})
	d.after = func(n int32, err error) error {
		if n == 1 {
			close(begun)
			<-end
		}
		return err
	}
	defer close(end)
	failed := make(chan error)
	go func() { failed <- set(other, "a", "1") }()
	<-begun
	go owner.Close() // cuts off what takes longer than closeWait
	if err := <-failed; !errors.Is(err, engine.ErrUnknown) {
		t.Error(err)
	}
	if get(t, other, "a") != "1" {
		t.Error("it had an effect, and is not there")
	}
}

func TestAReadWhoseReplyIsLostIsRepeated(t *testing.T) {
	dir, d := t.TempDir(), newDisk()
	owner, other := join(t, dir, d.driver), join(t, dir, d.driver)
	if err := set(owner, "a", "1"); err != nil {
		t.Fatal(err)
	}
	begun, end := make(chan struct{}), make(chan struct{})
	d.before = func(n int32, _ string) error {
		if n == 1 {
			close(begun)
			<-end
		}
		return nil
	}
	defer close(end)
	go func() {
		<-begun
		owner.Close()
	}()
	if get(t, other, "a") != "1" {
		t.Error("not found")
	}
}

func TestACallGivesUpWhenOwnersKeepFailing(t *testing.T) {
	dir, d := t.TempDir(), newDisk()
	e := join(t, dir, d.driver)
	other := join(t, dir, func(string) (engine.Engine, error) { return nil, engine.ErrCorrupt })
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := set(other, "a", "1"); !errors.Is(err, engine.ErrUnavailable) || !errors.Is(err, engine.ErrCorrupt) {
		t.Error(err)
	}
}
