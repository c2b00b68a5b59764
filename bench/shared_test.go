package bench

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/engine/shared"
)

// ownerVariable is the environment variable that makes the test binary the owner of a store for BenchmarkShared. Its
// value is the directory of that store.
const ownerVariable = "TURNSTONE_BENCH_OWNER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(ownerVariable); dir != "" {
		if err := own(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// own shares the store in dir until standard input ends.
func own(dir string) error {
	e, err := shared.Open(ctx, dir, shared.Driver{Name: "pebble", Open: openPebble})
	if err != nil {
		return err
	}
	defer e.Close()
	fmt.Println("open")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func openPebble(dir string) (engine.Engine, error) { return pebble.Open(dir, nil) }

// BenchmarkShared commits turns of four nodes, and loads the last of them, on Badger that this process has alone,
// that it shares and has opened, and that another process has opened.
func BenchmarkShared(b *testing.B) {
	for _, c := range []struct {
		name string
		open func(b *testing.B, dir string) (engine.Engine, error)
	}{
		{"alone", func(_ *testing.B, dir string) (engine.Engine, error) { return openPebble(dir) }},
		{"owner", func(_ *testing.B, dir string) (engine.Engine, error) {
			return shared.Open(ctx, dir, shared.Driver{Name: "pebble", Open: openPebble})
		}},
		{"attached", func(b *testing.B, dir string) (engine.Engine, error) {
			owner := exec.Command(os.Args[0])
			owner.Env = append(os.Environ(), ownerVariable+"="+dir)
			owner.Stderr = os.Stderr
			in, err := owner.StdinPipe()
			if err != nil {
				return nil, err
			}
			out, err := owner.StdoutPipe()
			if err != nil {
				return nil, err
			}
			if err := owner.Start(); err != nil {
				return nil, err
			}
			b.Cleanup(func() {
				in.Close()
				if err := owner.Wait(); err != nil {
					b.Error(err)
				}
			})
			if _, err := io.ReadFull(out, make([]byte, len("open\n"))); err != nil {
				return nil, err
			}
			return shared.Open(ctx, dir, shared.Driver{Name: "pebble", Open: func(string) (engine.Engine, error) { return nil, fmt.Errorf("the other process has gone") }})
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			e, err := c.open(b, b.TempDir()+"/store")
			if err != nil {
				b.Fatal(err)
			}
			st := storeOn(b, e)
			var s *turnstone.Session
			b.Run("commit", func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					s = sessionOf(b, st, s, i)
					c := turn(1, i)
					c.Expected = turnstone.AnyRevision
					if _, err := s.Commit(ctx, c); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("commit64", func(b *testing.B) {
				for round := 0; b.Loop(); round++ {
					b.StopTimer()
					sessions, commits := newSessions(b, st, b.N*1000+round), script()
					b.StartTimer()
					commitAll(b, sessions, commits)
				}
				report(b)
			})
			b.Run("load", func(b *testing.B) {
				for b.Loop() {
					if _, err := s.Load(ctx, turnstone.Scope{Last: 20}); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}
