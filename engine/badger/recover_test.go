package badger

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dgraph-io/ristretto/v2/z"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

func put(t *testing.T, e *Engine, key, value string, absent ...string) {
	t.Helper()
	var b engine.Batch
	for _, k := range absent {
		b.Guard([]byte(k), nil)
	}
	b.Set([]byte(key), []byte(value))
	if err := e.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
}

func mustOpen(t *testing.T, d files) *Engine {
	t.Helper()
	e, err := openFiles(d, smallLog, nil)
	if err != nil {
		t.Fatal(err)
	}
	e.start()
	return e
}

// A log that Close has cut gets its size back before it leads to another one.
func TestALogThatWasClosedLeadsToAnother(t *testing.T) {
	d := newDisk("posix")
	e := mustOpen(t, d)
	put(t, e, "k", "v")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	s := &slowTables{files: d}
	e = mustOpen(t, s)
	s.mu.Lock()
	done := make(chan error)
	go func() { done <- e.Vacuum(ctx) }()
	for !e.waiting() {
		time.Sleep(time.Millisecond)
	}
	killed := d.copied()
	s.mu.Unlock()
	if err := errors.Join(<-done, e.Close()); err != nil {
		t.Fatal(err)
	}
	e = mustOpen(t, killed)
	defer e.Close()
	if got := value(t, e, "k"); got != "v" {
		t.Errorf("%q", got)
	}
}

// A cutter cuts the power each time that a log is about to be synced.
type cutter struct {
	files
	cut func()
}

type cutFile struct {
	file
	cut func()
}

func (f cutFile) SyncData() error {
	f.cut()
	return f.file.SyncData()
}

func (c cutter) open(name string) (file, error) {
	f, err := c.files.open(name)
	if err == nil && strings.HasSuffix(name, logSuffix) {
		f = cutFile{f, c.cut}
	}
	return f, err
}

// Without syncs, a loss of power loses the last groups, but never the store.
func TestWithoutSyncsALossOfPowerTakesTheLastGroups(t *testing.T) {
	testscale.Slow(t)
	d := newDisk("posix")
	if _, err := openFiles(d, smallLog, nil); err != nil {
		t.Fatal(err)
	}
	r, cuts := rand.New(rand.NewPCG(1, 1)), 0
	c := cutter{d, func() {
		for range 60 {
			cuts++
			if _, err := openFiles(d.cut(r), smallLog, nil); err != nil {
				t.Errorf("cut %d: %v", cuts, err)
			}
		}
	}}
	e, err := openFiles(c, smallLog, &Options{Durability: Process})
	if err != nil {
		t.Fatal(err)
	}
	e.start()
	for i := range 40 {
		put(t, e, string(rune('a'+i)), strings.Repeat("v", 2000))
	}
	if err := e.Vacuum(ctx); err != nil { // begins a log
		t.Fatal(err)
	}
	put(t, e, "last", "v")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if cuts < 120 {
		t.Errorf("only %d cuts", cuts)
	}
}

// A batch whose write failed has an unknown outcome or is never seen again. This is so
// even if the bytes that were not written are zeros, which the file has anyway.
func TestAFailedWriteIsTold(t *testing.T) {
	for _, c := range []struct {
		errno   syscall.Errno
		forever bool
		want    error
	}{{syscall.ENOSPC, false, engine.ErrNoSpace}, {syscall.ENOSPC, true, engine.ErrUnknown}, {syscall.EIO, false, engine.ErrUnknown}, {syscall.EIO, true, engine.ErrUnknown}} {
		d := newDisk("posix")
		e := mustOpen(t, d)
		put(t, e, "k", "v")
		failed := false
		d.set(func(call int, op, name string) error {
			if op == "write" && (c.forever || !failed) {
				failed = true
				return c.errno
			}
			return nil
		})
		var b engine.Batch
		b.Set([]byte("z"), []byte(strings.Repeat("a", 100)+strings.Repeat("\x00", 3000)))
		err := e.Apply(ctx, &b)
		if !errors.Is(err, c.want) {
			t.Errorf("%v, for ever %v: %v", c.errno, c.forever, err)
		}
		d.set(nil)
		again := mustOpen(t, d.copied()) // as after a kill
		if got := value(t, again, "z"); got != "" && !errors.Is(err, engine.ErrUnknown) {
			t.Errorf("%v, for ever %v: refused, and there after a kill", c.errno, c.forever)
		}
		e.Close()
		again.Close()
	}
}

// Groups in a torn tail never come back after new groups, even if the tail begins with the
// closed frame of a clean Close, which the last write did not overwrite.
func TestATornEndNeverComesBack(t *testing.T) {
	d := newDisk("posix")
	e := mustOpen(t, d)
	put(t, e, "k", "v")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = mustOpen(t, d)
	l := e.active().log
	if err := l.reserve(5000, 0); err != nil {
		t.Fatal(err)
	}
	name, at := logName(l.number), l.pos
	closed := bytes.Clone(d.names[name].data[at : at+frameHeader])
	group := func(ts uint64, key, value string) { // both are written before one sync
		if err := l.append(frameGroup, ts, 1, appendSet(make([]byte, frameHeader), []byte(key), []byte(value))); err != nil {
			t.Fatal(err)
		}
	}
	group(2, "A", strings.Repeat("a", 2000))
	group(3, "B", "b")
	torn := d.copied() // the sector with the closed frame was not written
	copy(torn.names[name].data[at:], closed)
	e = mustOpen(t, torn)
	put(t, e, "C", strings.Repeat("c", 2000), "B")
	after := torn.copied() // the mark after the group was not synced and is lost
	pos := e.active().log.pos
	clear(after.names[name].data[pos-frameHeader : pos])
	e = mustOpen(t, after)
	defer e.Close()
	if a, b, c := value(t, e, "A"), value(t, e, "B"), value(t, e, "C"); a != "" || b != "" || len(c) != 2000 {
		t.Errorf("A %.5q, B %q, C %.5q", a, b, c)
	}
}

// If Open refuses damage, it changes nothing.
func TestOpenRefusesBeforeItChangesAnything(t *testing.T) {
	d := newDisk("posix")
	s := &slowTables{files: d}
	e, l := mustOpen(t, s), new(workload)
	s.mu.Lock()
	for !e.waiting() {
		if err := l.count(e, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.count(e, 0); err != nil {
		t.Fatal(err)
	}
	killed := d.copied()
	s.mu.Unlock()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	// Find the frame that leads from the first log to the second one.
	data := killed.names[logName(firstLog)].data
	end := len(bytes.TrimRight(data, "\x00"))
	lead := end / frameAlign * frameAlign
	for data[lead+12] != frameNext {
		lead -= frameAlign
	}
	data[lead+16] ^= 1
	before := killed.copied()
	if _, err := openFiles(killed, smallLog, nil); !errors.Is(err, engine.ErrCorrupt) {
		t.Fatal(err)
	}
	for name, n := range before.names {
		if !bytes.Equal(n.data, killed.names[name].data) {
			t.Errorf("%s was changed", name)
		}
	}
}

// unreadable maps tables whose pages can't be read.
type unreadable struct{ directory }

func (u unreadable) view(name string, _ int64) ([]byte, func() error, error) {
	f, err := os.Open(u.path(name))
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	data, err := z.Mmap(f, false, info.Size())
	if err == nil {
		err = os.Truncate(u.path(name), 0)
	}
	return data, func() error { return z.Munmap(data) }, err
}

// A page that can't be read is an error, not the end of the process.
func TestAPageThatCannotBeReadIsAnError(t *testing.T) {
	dir := mustDirectory(t, t.TempDir()+"/store")
	e := mustOpen(t, dir)
	put(t, e, "k", "v")
	if err := errors.Join(e.Vacuum(ctx), e.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := openFiles(unreadable{mustDirectory(t, dir.name)}, smallLog, nil); !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), tableSuffix) {
		t.Error(err)
	}
}

// A rewrite whose last sync of the directory fails stops the store: names before
// it may never become durable.
func TestAFailedSyncOfTheDirectoryIsFinal(t *testing.T) {
	d := newDisk("posix")
	e := mustOpen(t, d)
	put(t, e, "k", "v")
	removed := false
	d.set(func(call int, op, name string) error {
		removed = removed || op == "remove" && strings.HasSuffix(name, tableSuffix)
		if removed && op == "sync" {
			return syscall.EIO
		}
		return nil
	})
	if err := e.Vacuum(ctx); !errors.Is(err, engine.ErrUnknown) {
		t.Errorf("Vacuum: %v", err)
	}
	if err := e.Apply(ctx, &engine.Batch{Deletes: [][]byte{[]byte("k")}}); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("Apply: %v", err)
	}
	d.set(nil)
	e.Close()
	again := mustOpen(t, d)
	defer again.Close()
	if got := value(t, again, "k"); got != "v" {
		t.Errorf("%q", got)
	}
}
