package badger

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

// stores returns a store whose process was killed while two logs were in use, one
// that was vacuumed and closed, and one that was written to after that and closed.
func stores(t *testing.T) map[string]struct {
	disk *disk
	load workload
} {
	out := map[string]struct {
		disk *disk
		load workload
	}{}
	d, l := newDisk("posix"), new(workload)
	s := &slowTables{files: d}
	e, err := openFiles(s, smallLog, nil)
	if err != nil {
		t.Fatal(err)
	}
	e.start()
	keep := func(name string) {
		out[name] = struct {
			disk *disk
			load workload
		}{d.copied(), *l}
	}
	counts := func(n int) {
		for i := range n {
			if err := l.count(e, i%3); err != nil {
				t.Fatal(err)
			}
		}
	}
	counts(150)
	// From now on no table can be created, so the next full log stays.
	if err := e.awaitFlush(ctx, 0); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	for !e.waiting() {
		counts(3)
	}
	counts(9)
	keep("killed")
	s.mu.Unlock()
	if err := errors.Join(e.Vacuum(ctx), e.Close()); err != nil {
		t.Fatal(err)
	}
	keep("vacuumed")
	if e, err = openDisk(d); err != nil {
		t.Fatal(err)
	}
	counts(9)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	keep("closed")
	return out
}

// slowTables makes the creation of tables wait while its mutex is held.
type slowTables struct {
	files
	mu sync.Mutex
}

func (s *slowTables) create(name string) (file, error) {
	if strings.HasSuffix(name, tableSuffix) {
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	return s.files.create(name)
}

// If a bit of any file flips, or a file is cut or missing, an error names the file, or
// no data is affected.
func TestDamageToAnyFileIsNamedOrHarmless(t *testing.T) {
	testscale.Slow(t)
	flips, cuts := testscale.Pick(320, 60, 8), testscale.Pick(60, 12, 6)
	total, harmless := 0, 0
	for state, s := range stores(t) {
		try := func(name, how string, damage func(d *disk)) {
			t.Helper()
			d, l := s.disk.copied(), s.load
			damage(d)
			what := fmt.Sprintf("%s store, %s %s", state, name, how)
			total++
			e, err := openDisk(d)
			if err == nil {
				err = l.check(t, e, what)
				if cerr := e.Close(); cerr != nil {
					t.Errorf("%s: Close: %v", what, cerr)
				}
			}
			if err == nil {
				harmless++
				return
			}
			// The error for a missing log or table may name the file that refers to it.
			if !errors.Is(err, engine.ErrCorrupt) || !strings.Contains(err.Error(), name) && how != "removed" {
				t.Errorf("%s: %v", what, err)
			}
		}
		e, err := openDisk(s.disk.copied())
		if err != nil {
			t.Fatal(state, err)
		}
		l := s.load
		if err := errors.Join(l.check(t, e, state), e.Close()); err != nil {
			t.Fatal(state, err)
		}
		r := rand.New(rand.NewPCG(1, 2))
		for name, n := range s.disk.names {
			used := len(strings.TrimRight(string(n.data), "\x00"))
			for range flips {
				bit := r.IntN(used * 8)
				if r.IntN(8) == 0 { // more often at both ends of a file
					bit = r.IntN(min(used, 64)*8) + r.IntN(2)*(used-min(used, 64))*8
				}
				try(name, fmt.Sprintf("bit %d of byte %d of %d", bit%8, bit/8, used), func(d *disk) { d.names[name].data[bit/8] ^= 1 << (bit % 8) })
			}
			for i := range cuts {
				to := []int{0, 8, used, used - 1, used - frameHeader, len(n.data) - 1}[min(i, 5)]
				if i > 5 {
					to = r.IntN(used)
				}
				if to < 0 || to >= len(n.data) {
					continue
				}
				try(name, fmt.Sprintf("cut to %d of %d", to, len(n.data)), func(d *disk) { d.names[name].data = d.names[name].data[:to] })
			}
			if len(s.disk.names) > 1 {
				try(name, "removed", func(d *disk) { delete(d.names, name) })
			}
		}
	}
	t.Logf("%d times damaged, %d times without harm", total, harmless)
	if harmless == total {
		t.Error("nothing was noticed")
	}
}

// After a kill, a log is read up to its torn tail. Damage before the tail is not taken for
// a torn tail, although the rest of the log looks like one.
func TestATornTailIsToldFromDamage(t *testing.T) {
	d, l := newDisk("posix"), new(workload)
	e, err := openDisk(d)
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if err := l.count(e, 0); err != nil {
			t.Fatal(err)
		}
	}
	name, end := logName(e.active().log.number), e.active().log.pos
	killed := d.copied()
	torn := killed.copied()
	for i := range 100 { // the frame of a group that never was acknowledged, half of it
		torn.names[name].data[int(end)+i] = byte(i*7 + 1)
	}
	if e, err = openDisk(torn.copied()); err != nil {
		t.Fatal("a torn tail:", err)
	}
	m := *l
	if err := errors.Join(m.check(t, e, "torn"), m.count(e, 0), m.check(t, e, "after"), e.Close()); err != nil {
		t.Fatal(err)
	}
	// If Open ends anywhere while it repairs the log, the next Open can repair it.
	for n := 1; ; n++ {
		half := torn.copied()
		half.set(func(call int, op, name string) error {
			if call >= n {
				return syscall.EIO
			}
			return nil
		})
		_, err := openFiles(half, smallLog, nil)
		half.set(nil)
		for _, d := range []*disk{half, half.cut(rand.New(rand.NewPCG(uint64(n), 3)))} {
			e, err := openDisk(d)
			if err != nil {
				t.Fatalf("after an Open that ended at call %d: %v", n, err)
			}
			m := *l
			if err := errors.Join(m.check(t, e, "half open"), m.count(e, 0), e.Close()); err != nil {
				t.Fatal(err)
			}
		}
		if err == nil {
			break
		}
	}
	// The last group that was acknowledged lies before a mark.
	damaged := killed.copied()
	damaged.names[name].data[end-frameHeader-1] ^= 0x10
	damaged.names[name].data[end-frameHeader-9] ^= 0x10
	if e, err := openDisk(damaged); !errors.Is(err, engine.ErrCorrupt) || !strings.Contains(err.Error(), name) {
		t.Errorf("the last acknowledged group is damaged: %v, %v", e, err)
	}
}

// The durable timestamp in the first group of a log concerns earlier logs. It does not
// make a torn tail look like damage.
func TestATornFirstGroupIsNotDamage(t *testing.T) {
	d := newDisk("posix")
	l, err := createLog(d, 7, smallLog, nil)
	if err != nil {
		t.Fatal(err)
	}
	group := func(ts, durable uint64) {
		if err := l.append(frameGroup, ts, durable, appendSet(make([]byte, frameHeader), []byte("k"), []byte("v"))); err != nil {
			t.Fatal(err)
		}
	}
	group(501, 500)
	group(502, 500) // on the disk before the first one was
	d.names[logName(7)].data[logHeader+frameHeader] ^= 1
	c, err := readLog(d, 7, 500)
	if err != nil || len(c.groups) != 0 || c.torn == 0 {
		t.Fatalf("%+v, %v", c, err)
	}
	if err := l.mark(501); err != nil {
		t.Fatal(err)
	}
	if _, err := readLog(d, 7, 500); !errors.Is(err, engine.ErrCorrupt) {
		t.Errorf("a durable first group that is damaged: %v", err)
	}
}

// If the manifest of a store is missing, Open does not create a new store.
func TestAnIncompleteStoreIsNotTakenForANewOne(t *testing.T) {
	for state, s := range stores(t) {
		d := s.disk.copied()
		delete(d.names, manifestName)
		before := d.copied()
		if e, err := openDisk(d); !errors.Is(err, engine.ErrCorrupt) {
			t.Errorf("%s: %v, %v", state, e, err)
		}
		for name, n := range before.names {
			if got := d.names[name]; got == nil || string(got.data) != string(n.data) {
				t.Errorf("%s: %s was changed", state, name)
			}
		}
	}
	// If an Open was killed while it created a store, the next Open creates it.
	for n := 1; ; n++ {
		d := newDisk("posix")
		d.set(func(call int, op, name string) error {
			if call >= n {
				return syscall.EIO
			}
			return nil
		})
		_, err := openFiles(d, smallLog, nil)
		d.set(nil)
		if err == nil {
			break
		}
		e, err := openDisk(d)
		if err != nil {
			t.Fatalf("after call %d failed: %v", n, err)
		}
		if err := errors.Join(new(workload).count(e, 0), e.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// A full disk is ErrNoSpace. Opening, reading and batches that reclaim go on, and
// when there is space again everything does.
func TestAFullDiskIsAnError(t *testing.T) {
	testscale.Slow(t)
	for _, free := range []int64{0, 20 << 10, 200 << 10, 700 << 10, 1500 << 10, 4 << 20} {
		what := fmt.Sprintf("%d bytes free", free)
		d, l := newDisk("posix"), new(workload)
		e, err := openDisk(d)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 60 {
			if err := l.count(e, i%3); err != nil {
				t.Fatal(err)
			}
		}
		d.mu.Lock()
		d.capacity = d.used() + free // another process takes all but this
		d.mu.Unlock()
		for i := 0; err == nil; i++ {
			err = l.count(e, i%3)
		}
		if !errors.Is(err, engine.ErrNoSpace) {
			t.Fatalf("%s: %v", what, err)
		}
		reclaim := func(e *Engine, n int) {
			t.Helper()
			b := engine.Batch{Reclaim: true}
			b.Guard(fmt.Append(nil, "x", n), nil)
			b.Delete(fmt.Append(nil, "x", n))
			b.Delete(fmt.Append(nil, "y", n))
			if err := e.Apply(ctx, &b); err != nil {
				t.Fatalf("%s: a batch that reclaims: %v", what, err)
			}
		}
		for n := range 50 {
			reclaim(e, n)
		}
		// With some space, a flush that was tried again meanwhile may have made enough of it.
		if err := e.Vacuum(ctx); !errors.Is(err, engine.ErrNoSpace) && (err != nil || free < 100<<10) {
			t.Errorf("%s: Vacuum: %v", what, err)
		}
		if err := l.check(t, e, what); err != nil {
			t.Fatal(what, err)
		}
		if err := e.Close(); err != nil && !errors.Is(err, engine.ErrNoSpace) {
			t.Fatal(what, err)
		}
		d.mu.Lock()
		d.capacity = d.used() // the other process takes the rest as well
		d.mu.Unlock()
		if e, err = openDisk(d); err != nil {
			t.Fatalf("%s: opening a store on a full disk: %v", what, err)
		}
		if err := l.check(t, e, what); err != nil {
			t.Fatal(what, err)
		}
		for n := range 50 {
			reclaim(e, n)
		}
		d.mu.Lock()
		d.capacity = 0
		d.mu.Unlock()
		for i := range 30 {
			err = nil
			for tries := 0; ; tries++ { // a flush may be about to try again
				if err = l.count(e, i%3); !errors.Is(err, engine.ErrNoSpace) || tries == 300 {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			if err != nil {
				t.Fatalf("%s: with space again: %v", what, err)
			}
		}
		for tries := 0; e.waiting() && tries < 300; tries++ {
			time.Sleep(10 * time.Millisecond)
		}
		if err := errors.Join(e.Vacuum(ctx), l.check(t, e, what), e.Close()); err != nil {
			t.Fatal(what, err)
		}
	}
}
