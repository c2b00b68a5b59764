// Package remains reads what can be read of a database in a directory from its tables and logs, where the database itself
// does not open any more.
package remains

import (
	"bytes"
	"cmp"
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

// Files are what can be read of a database: its tables and logs, without the list of them that the database keeps. Of
// each key the newest version counts that can be read. So what was overwritten or removed may be back, if the newer
// version is lost, or if a table is still there that the database was about to remove.
type Files struct {
	dir   *localdir.Dir
	files []file
	lost  []string
}

type file struct {
	name     string
	versions engine.Scanner
	close    io.Closer
}

// Add adds a file. Its pairs have the values that Version makes; of a key, the newest one comes first. closer may be nil.
func (f *Files) Add(name string, versions engine.Scanner, closer io.Closer) {
	f.files = append(f.files, file{name, versions, closer})
}

// Lose notes that a file can't be read whole.
func (f *Files) Lose(name string, err error) {
	text := err.Error()
	if !strings.Contains(text, name) {
		text = fmt.Sprintf("%s: %s", name, text)
	}
	if !slices.Contains(f.lost, text) {
		f.lost = append(f.lost, text)
	}
}

// MaxLog bounds the files of logs, which are read into memory, in bytes: many times what the drivers let them grow to.
const MaxLog = 1 << 30

// Open opens the files of a directory that no process has open, and changes nothing there. trace reports whether a file of
// a name tells of a store; add adds the file of a name, or returns why it can't be read. A lack of descriptors or of
// permissions is an error.
func Open(dir string, trace func(name string) bool, add func(f *Files, name string) error) (*Files, error) {
	d, err := localdir.OpenReadOnly(dir)
	if err != nil {
		return nil, err
	}
	f := &Files{dir: d}
	entries, err := os.ReadDir(d.At())
	if err == nil && !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return trace(e.Name()) }) {
		err = fmt.Errorf("%w: there is no store in %s", engine.ErrInvalid, d.Path)
	}
	for _, e := range entries {
		if err != nil {
			break
		}
		why := add(f, e.Name())
		for _, of := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EACCES} {
			if errors.Is(why, of) {
				err = fmt.Errorf("%s: %w", e.Name(), why)
			}
		}
		if why != nil {
			f.Lose(e.Name(), why)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Path returns the path of a file.
func (f *Files) Path(name string) string { return filepath.Join(f.dir.At(), name) }

// Lost says which files can't be read whole, as far as Scan has read them, and why.
func (f *Files) Lost() []string { return f.lost }

// Close closes the files.
func (f *Files) Close() error {
	var err error
	for _, file := range f.files {
		if file.close != nil {
			err = errors.Join(err, file.close.Close())
		}
	}
	return errors.Join(err, f.dir.Close())
}

// Scan implements engine.Scanner. It passes over what is damaged in each file by itself. It is for one goroutine.
func (f *Files) Scan(ctx context.Context, of engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		m := &merged{}
		defer m.stop()
		for _, file := range f.files {
			next, stop := iter.Pull2(engine.Around(ctx, file.versions, engine.Range{Start: of.Start, End: of.End}, func(g engine.Gap) {
				f.Lose(file.name, g.Err)
			}))
			if err := m.push(&source{next: next, stop: stop}); err != nil {
				yield(engine.Pair{}, err)
				return
			}
		}
		n := 0
		var last []byte
		for m.Len() > 0 {
			if err := ctx.Err(); err != nil {
				yield(engine.Pair{}, err)
				return
			}
			p := m.sources[0].pair
			if err := m.advance(); err != nil {
				yield(engine.Pair{}, err)
				return
			}
			if last != nil && bytes.Compare(p.Key, last) <= 0 { // an older version
				continue
			}
			last = p.Key
			if p.Value[versionHead-1] == 0 {
				continue
			}
			if n++; !yield(engine.Pair{Key: p.Key, Value: p.Value[versionHead:]}, nil) || n == of.Limit {
				return
			}
		}
	}
}

const versionHead = 9

// Version encodes a version of a value: a number, which is larger if the version is newer, 8 bytes; 1 if it sets the key
// or 0 if it removes it, one byte; and the value.
func Version(number uint64, set bool, value []byte) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, versionHead+len(value)), number)
	if set {
		return append(append(b, 1), value...)
	}
	return append(b, 0)
}

func newestFirst(a, b engine.Pair) int {
	return cmp.Or(bytes.Compare(a.Key, b.Key), bytes.Compare(b.Value[:8], a.Value[:8]))
}

// A Log has versions in memory.
type Log []engine.Pair

// NewLog returns a Log of versions in any order.
func NewLog(versions []engine.Pair) Log {
	slices.SortStableFunc(versions, newestFirst)
	return versions
}

// Scan implements engine.Scanner.
func (l Log) Scan(_ context.Context, of engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		at, _ := slices.BinarySearchFunc(l, of.Start, func(p engine.Pair, key []byte) int { return bytes.Compare(p.Key, key) })
		for n, p := range l[at:] {
			if of.End != nil && bytes.Compare(p.Key, of.End) >= 0 || of.Limit > 0 && n == of.Limit || !yield(p, nil) {
				return
			}
		}
	}
}

// Safely calls f, and makes a panic of the database's an error, also where a file that is mapped into memory can't be
// read.
func Safely[T any](f func() (T, error)) (v T, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: the database panics: %.200v", engine.ErrCorrupt, p)
		}
	}()
	return f()
}

// A source is a sequence of versions, with the next one in pair.
type source struct {
	next func() (engine.Pair, error, bool)
	stop func()
	pair engine.Pair
}

// merged are sources by their next keys, and for equal keys the newest version first.
type merged struct {
	sources []*source
	all     []*source
}

func (m *merged) Len() int      { return len(m.sources) }
func (m *merged) Swap(i, j int) { m.sources[i], m.sources[j] = m.sources[j], m.sources[i] }
func (m *merged) Push(s any)    { m.sources = append(m.sources, s.(*source)) }

func (m *merged) Less(i, j int) bool {
	return newestFirst(m.sources[i].pair, m.sources[j].pair) < 0
}

func (m *merged) Pop() any {
	s := m.sources[len(m.sources)-1]
	m.sources = m.sources[:len(m.sources)-1]
	return s
}

// push adds a source.
func (m *merged) push(s *source) error {
	m.all = append(m.all, s)
	p, err, ok := s.next()
	if ok && err == nil {
		s.pair = p
		heap.Push(m, s)
	}
	return err
}

// advance goes on in the first source.
func (m *merged) advance() error {
	p, err, ok := m.sources[0].next()
	switch {
	case !ok:
		heap.Pop(m)
		return nil
	case err != nil:
		return err
	}
	m.sources[0].pair = p
	heap.Fix(m, 0)
	return nil
}

func (m *merged) stop() {
	for _, s := range m.all {
		s.stop()
	}
}
