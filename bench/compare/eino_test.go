package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	turnstoneeino "github.com/turnstonedb/turnstone/adapters/eino"
)

// A checkPointStore is Eino's interface.
type checkPointStore interface {
	Get(ctx context.Context, id string) ([]byte, bool, error)
	Set(ctx context.Context, id string, checkpoint []byte) error
}

// checkPointFiles keeps each checkpoint in a file of its own. Set writes and syncs a new file, and renames it over
// the old one, as a host without a store would do.
type checkPointFiles struct{ dir string }

func (f checkPointFiles) Get(_ context.Context, id string) ([]byte, bool, error) {
	b, err := os.ReadFile(filepath.Join(f.dir, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	return b, err == nil, err
}

func (f checkPointFiles) Set(_ context.Context, id string, checkpoint []byte) error {
	t, err := os.CreateTemp(f.dir, "new")
	if err != nil {
		return err
	}
	_, err = t.Write(checkpoint)
	if err == nil {
		err = t.Sync()
	}
	if err := errors.Join(err, t.Close()); err != nil {
		return err
	}
	return os.Rename(t.Name(), filepath.Join(f.dir, id))
}

var checkPointStores = map[string]func(b *testing.B, dir string) (s checkPointStore, end func()){
	"turnstone": func(b *testing.B, dir string) (checkPointStore, func()) {
		st, end := openPebble(b, dir)
		return turnstoneeino.NewCheckPointStore(st), end
	},
	"file": func(_ *testing.B, dir string) (checkPointStore, func()) { return checkPointFiles{dir}, func() {} },
}

// BenchmarkEinoSet sets the checkpoints of ten conversations, one after the other, 50 times each. A checkpoint begins
// with 20 KB and grows by 400 bytes each time. It reports sets a second, and what the store takes on disk.
func BenchmarkEinoSet(b *testing.B) {
	const ids, times = 10, 50
	for name, open := range checkPointStores {
		b.Run("store="+name, func(b *testing.B) {
			dir := ""
			for b.Loop() {
				b.StopTimer()
				dir = b.TempDir()
				s, end := open(b, dir)
				var state [ids]bytes.Buffer
				b.StartTimer()
				for n := range times {
					for i := range ids {
						for state[i].Len() < 20_000+400*n {
							fmt.Fprintf(&state[i], `{"role":"user","content":"message %d of %d: %x"}`, state[i].Len(), i, state[i].Len()*7919)
						}
						if err := s.Set(ctx, fmt.Sprint(i), state[i].Bytes()); err != nil {
							b.Fatal(err)
						}
					}
				}
				b.StopTimer()
				end()
				b.StartTimer()
			}
			b.ReportMetric(float64(b.N*ids*times)/b.Elapsed().Seconds(), "sets/s")
			reportDisk(b, dir)
		})
	}
}

// BenchmarkEinoResume opens a store and reads a checkpoint of 40 KB that was set 50 times.
func BenchmarkEinoResume(b *testing.B) {
	for name, open := range checkPointStores {
		b.Run("store="+name, func(b *testing.B) {
			dir := b.TempDir()
			s, end := open(b, dir)
			checkpoint := make([]byte, 0, 40_000)
			for n := range 50 {
				checkpoint = fmt.Appendf(checkpoint, "%800d", n)
				if err := s.Set(ctx, "chat", checkpoint); err != nil {
					b.Fatal(err)
				}
			}
			end()
			for b.Loop() {
				s, end := open(b, dir)
				got, ok, err := s.Get(ctx, "chat")
				if err != nil || !ok || !bytes.Equal(got, checkpoint) {
					b.Fatal(len(got), ok, err)
				}
				b.StopTimer()
				end()
				b.StartTimer()
			}
		})
	}
}
