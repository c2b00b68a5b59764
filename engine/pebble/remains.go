package pebble

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/remains"
)

// Remains are what can be read of a store that Open refuses, because files are damaged or missing: the pairs of all
// tables and logs in its directory, without the MANIFEST that says which of them count. Of each key the newest version
// counts that can be read. So what was overwritten or removed may be back, if the newer version is lost, or if a table
// is still there that Pebble was about to remove. It is for one goroutine.
type Remains struct{ files *remains.Files }

// OpenRemains opens what remains of the store in a directory that no process has open. It changes nothing there. All
// tables are open at once.
func OpenRemains(dir string) (*Remains, error) {
	files, err := remains.Open(dir, Trace, func(f *remains.Files, name string) (err error) {
		if num, ok := logNumber(name); ok {
			err = addLog(f, name, num)
		} else if strings.HasSuffix(name, ".sst") {
			err = addTable(f, name)
		}
		if err != nil {
			err = mappedOpen(err)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Remains{files}, nil
}

// Scan implements engine.Scanner. It passes over what is damaged.
func (r *Remains) Scan(ctx context.Context, of engine.Range) iter.Seq2[engine.Pair, error] {
	return r.files.Scan(ctx, of)
}

// Lost says which files can't be read whole, as far as Scan has read them, and why.
func (r *Remains) Lost() []string { return r.files.Lost() }

// Close closes the files.
func (r *Remains) Close() error { return r.files.Close() }

// A tableScan scans the versions of a table.
type tableScan struct{ r *sstable.Reader }

func addTable(to *remains.Files, name string) error {
	f, err := vfs.Default.Open(to.Path(name))
	if err != nil {
		return err
	}
	checked, err := newTable(f, name)
	if err != nil {
		return err
	}
	readable, err := sstable.NewSimpleReadable(checked)
	if err != nil {
		return errors.Join(err, checked.Close())
	}
	table, err := remains.Safely(func() (*sstable.Reader, error) {
		return sstable.NewReader(context.Background(), readable, sstable.ReaderOptions{})
	})
	if err != nil {
		return errors.Join(err, readable.Close())
	}
	to.Add(name, tableScan{table}, table)
	return nil
}

// Scan implements engine.Scanner.
func (t tableScan) Scan(_ context.Context, of engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		it, err := remains.Safely(func() (sstable.Iterator, error) {
			return t.r.NewIter(sstable.NoTransforms, of.Start, of.End, sstable.AssertNoBlobHandles)
		})
		if err != nil {
			yield(engine.Pair{}, mapped(err))
			return
		}
		defer it.Close()
		step := it.First
		for n := 1; ; n++ {
			p, err := remains.Safely(func() (p engine.Pair, err error) {
				entry := step()
				if entry == nil {
					return p, it.Error()
				}
				value, _, err := entry.Value(nil)
				return newVersion(uint64(entry.SeqNum()), entry.Kind(), entry.K.UserKey, value), err
			})
			if err != nil {
				yield(engine.Pair{}, mapped(err))
				return
			}
			if p.Key == nil || !yield(p, nil) || n == of.Limit {
				return
			}
			step = it.Next
		}
	}
}

func newVersion(number uint64, kind pebble.InternalKeyKind, key, value []byte) engine.Pair {
	set := kind == pebble.InternalKeyKindSet || kind == pebble.InternalKeyKindSetWithDelete // This driver has others for removals only.
	return engine.Pair{Key: bytes.Clone(key), Value: remains.Version(number, set, value)}
}

// addLog reads a log, up to where it can't be read.
func addLog(to *remains.Files, name string, number uint64) error {
	f, err := vfs.Default.Open(to.Path(name))
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() > remains.MaxLog {
		return cmp.Or(err, error(&damage{file: name, what: "it is too large for a log"}))
	}
	var all []engine.Pair
	_, err = remains.Safely(func() (struct{}, error) {
		return struct{}{}, readLog(name, newRecords(record.NewReader, f, number), &all)
	})
	to.Add(name, remains.NewLog(all), nil)
	return err
}

// newRecords calls record.NewReader, the type of whose second argument has no name outside of Pebble.
func newRecords[N ~uint64](f func(io.Reader, N) *record.Reader, of io.Reader, log uint64) *record.Reader {
	return f(of, N(log))
}

// readLog adds the versions of a log to all.
func readLog(name string, from *record.Reader, all *[]engine.Pair) error {
	for {
		one, err := from.Next()
		var batch []byte
		if err == nil {
			batch, err = io.ReadAll(one)
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, record.ErrZeroedChunk):
			return nil
		case record.IsInvalidRecord(err):
			return &damage{file: name, what: fmt.Sprintf("it is torn or damaged, or ends, behind %d entries", len(*all)), cause: err}
		case err != nil:
			return err
		}
		h, ok := batchrepr.ReadHeader(batch)
		if !ok {
			return errors.New("a record that is no batch")
		}
		number := uint64(h.SeqNum)
		for entries := batchrepr.Read(batch); ; {
			kind, key, value, more, err := entries.Next()
			if err != nil {
				return err
			}
			if !more {
				break
			}
			if kind != pebble.InternalKeyKindLogData {
				*all = append(*all, newVersion(number, kind, key, value))
				number++
			}
		}
	}
}
