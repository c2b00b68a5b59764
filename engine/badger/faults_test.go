package badger_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	db "github.com/dgraph-io/badger/v4"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/badger"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// child names the variable by which this test program is told to be another one.
const child = "TURNSTONE_BADGER_CHILD"

func TestMain(m *testing.M) {
	dir := os.Getenv(child)
	if dir == "" {
		os.Exit(m.Run())
	}
	free := uint64(0)
	if os.Getenv(child+"_FULL") != "" {
		free = 1
	}
	most, err := strconv.Atoi(os.Getenv(child + "_BATCHES"))
	if err != nil {
		most = math.MaxInt
	}
	if err := write(dir, free, most, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// write commits so many batches, four at a time, and writes the number of each that was acknowledged. Batch n sets
// two keys to values that are made from n. It closes nothing.
func write(dir string, free uint64, most int, acks io.Writer) error {
	e, err := badger.Open(dir, &badger.Options{MinFreeBytes: free})
	if err != nil {
		return err
	}
	first := uint64(time.Now().UnixNano())
	var mu sync.Mutex // guards acks and most
	failed := make(chan error, 4)
	for w := range uint64(4) {
		go func() {
			for n := first + w<<32; ; n++ {
				err := e.Apply(context.Background(), batch(n))
				mu.Lock()
				if err == nil && most > 0 {
					err = binary.Write(acks, binary.BigEndian, n)
				}
				most--
				done := most < 0
				mu.Unlock()
				if err != nil || done {
					failed <- err
					return
				}
			}
		}()
	}
	if err := <-failed; err != nil || os.Getenv(child+"_VACUUM") == "" {
		return err
	}
	return e.Vacuum(context.Background())
}

func key(side byte, n uint64) []byte { return binary.BigEndian.AppendUint64([]byte{side}, n) }

func content(side byte, n uint64) []byte {
	r := rand.New(rand.NewPCG(n, uint64(side)))
	b := make([]byte, 1+r.IntN(4000))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func batch(n uint64) *engine.Batch {
	var b engine.Batch
	b.Guard(key('a', n), nil)
	b.Set(key('a', n), content('a', n))
	b.Set(key('b', n), content('b', n))
	return &b
}

// lost compares what is in e with what was acknowledged, and returns what is wrong.
func lost(e engine.Engine, acked []uint64) error {
	ctx := context.Background()
	for _, n := range acked {
		v, err := e.Get(ctx, key('a', n), key('b', n))
		if err != nil {
			return err
		}
		if !bytes.Equal(v[0], content('a', n)) || !bytes.Equal(v[1], content('b', n)) {
			return fmt.Errorf("acknowledged batch %d is not there", n)
		}
	}
	sides := map[byte]int{}
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			return err
		}
		n := binary.BigEndian.Uint64(p.Key[1:])
		if !bytes.Equal(p.Value, content(p.Key[0], n)) {
			return fmt.Errorf("batch %d has another value", n)
		}
		sides[p.Key[0]]++
	}
	if sides['a'] != sides['b'] {
		return fmt.Errorf("%d and %d pairs of batches are there", sides['a'], sides['b'])
	}
	return nil
}

// itself is for a child that ends by itself, however slow the machine is.
const itself = 10 * time.Minute

// run runs a child on dir until it ends or is killed, and returns what it acknowledged. The command before it, if
// there is one, runs it.
func run(t *testing.T, dir string, after time.Duration, before ...string) (acked []uint64, stderr string) {
	t.Helper()
	args := append(before, os.Args[0])
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), child+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(after, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	_ = cmd.Wait()
	kill.Stop()
	for b := out.Bytes(); len(b) >= 8; b = b[8:] {
		acked = append(acked, binary.BigEndian.Uint64(b))
	}
	return acked, errs.String()
}

func TestAKillLosesNothingAcknowledged(t *testing.T) {
	dir := t.TempDir() + "/store"
	var acked []uint64
	kills := testkit.Pick(30, 8, 3)
	for range kills {
		more, stderr := run(t, dir, time.Duration(20+rand.IntN(400))*time.Millisecond)
		if stderr != "" {
			t.Fatal(stderr)
		}
		acked = append(acked, more...)
	}
	e, err := badger.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(lost(e, acked), e.Close()); err != nil {
		t.Error(err)
	}
	t.Logf("%d kills, %d acknowledged batches", kills, len(acked))
}

// at returns a copy of the store in dir.
func at(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir() + "/store"
	if err := errors.Join(os.CopyFS(to, os.DirFS(dir)), os.Chmod(to, 0o700)); err != nil {
		t.Fatal(err)
	}
	return to
}

func change(t *testing.T, name string, f func(b []byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err == nil {
		err = os.WriteFile(name, f(b), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func flip(at int) func([]byte) []byte {
	return func(b []byte) []byte {
		b[(at+len(b))%len(b)] ^= 4
		return b
	}
}

func cut(b []byte) []byte { return b[:len(b)/2] }

// filled makes a store of some batches whose tables are below level 0, and closes it.
func filled(t *testing.T) (dir string, acked []uint64) {
	t.Helper()
	dir = t.TempDir() + "/store"
	e, err := badger.Open(dir, nil)
	for n := uint64(1); n <= 300 && err == nil; n++ {
		err = e.Apply(context.Background(), batch(n))
		acked = append(acked, n)
		if n == 150 {
			err = errors.Join(err, e.Vacuum(context.Background()))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, acked
}

// The driver's witness notices this damage (docs/engines.md).
func TestDamageThatTheWitnessTells(t *testing.T) {
	closed, acked := filled(t)
	killed := t.TempDir() + "/store"
	t.Setenv(child+"_BATCHES", "500") // which Badger keeps in one log
	inLog, _ := run(t, killed, itself)
	other := t.TempDir() + "/store"
	t.Setenv(child+"_BATCHES", "900")
	run(t, other, itself)
	logs, err := filepath.Glob(other + "/*.mem")
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	foreign, err := os.ReadFile(logs[0])
	if err != nil {
		t.Fatal(err)
	}
	damage := map[string]struct {
		dir  string
		file string // a pattern
		how  func([]byte) []byte
	}{
		"a flip in MANIFEST of a closed store":                   {closed, "MANIFEST", flip(-3)},
		"a cut of MANIFEST of a closed store":                    {closed, "MANIFEST", cut},
		"a table of a closed store that is cut":                  {closed, "*.sst", cut},
		"a table of a closed store that is empty":                {closed, "*.sst", func([]byte) []byte { return nil }},
		"a flip in the first bytes of a table of a closed store": {closed, "*.sst", flip(100)},
		"a flip in the last bytes of a table of a closed store":  {closed, "*.sst", flip(-3)},
		"the log of another store, which has more batches":       {killed, "*.mem", func([]byte) []byte { return foreign }},
		"a flip in the log of a store that was killed":           {killed, "*.mem", flip(5000)},
		"the log of a store that was killed is all zero":         {killed, "*.mem", func(b []byte) []byte { return make([]byte, len(b)) }},
	}
	for name, d := range damage {
		t.Run(name, func(t *testing.T) {
			dir := at(t, d.dir)
			files, err := filepath.Glob(filepath.Join(dir, d.file))
			if err != nil || len(files) == 0 {
				t.Fatal(files, err)
			}
			change(t, files[0], d.how)
			if _, err := badger.Open(dir, nil); !errors.Is(err, engine.ErrCorrupt) {
				t.Errorf("Open: %v", err)
			}
			if _, err := badger.Open(dir, nil); !errors.Is(err, engine.ErrCorrupt) {
				t.Errorf("Open again: %v", err)
			}
		})
	}
	for dir, acked := range map[string][]uint64{closed: acked, killed: inLog} { // and nothing is wrong without damage
		e, err := badger.Open(at(t, dir), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(lost(e, acked), e.Close()); err != nil {
			t.Error(err)
		}
	}
}

// Nobody notices this damage (docs/engines.md). The test fails when a new version of Badger does.
func TestDamageThatBadgerDoesNotTell(t *testing.T) {
	dir, acked := filled(t)
	silent := 0
	tables, _ := filepath.Glob(dir + "/*.sst")
	for i := range 40 {
		copied := at(t, dir)
		change(t, filepath.Join(copied, filepath.Base(tables[i%len(tables)])), flip(i*7919))
		e, err := badger.Open(copied, nil)
		if err != nil {
			continue
		}
		if err := lost(e, acked); err != nil && !errors.Is(err, engine.ErrCorrupt) {
			silent++
		}
		e.Close()
	}
	if silent == 0 {
		t.Error("every flip in a table is noticed")
	}
	t.Logf("%d of 40 flips in tables: other values, or none, without an error", silent)
}

// A host's keys and the store's do not meet, and the host's database stays open.
func TestADatabaseServesItsHostAndTheStore(t *testing.T) {
	d, err := db.Open(db.DefaultOptions(t.TempDir()).WithSyncWrites(true).WithLogger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	set := func(k string) {
		t.Helper()
		if err := d.Update(func(txn *db.Txn) error { return txn.Set([]byte(k), []byte("host")) }); err != nil {
			t.Fatal(err)
		}
	}
	set("a")
	set("turnstone")
	set("turnstone0")
	e, err := badger.Use(d, []byte("turnstone/"), nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := badger.Use(d, []byte("other/"), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	var wg sync.WaitGroup
	for w := range uint64(4) {
		wg.Go(func() {
			for n := range uint64(50) {
				if err := errors.Join(e.Apply(ctx, batch(w<<32|n)), other.Apply(ctx, batch(n<<32|w))); err != nil {
					t.Error(err)
				}
				set(fmt.Sprint("host", w, n))
			}
		})
	}
	wg.Wait()
	if err := errors.Join(lost(e, nil), lost(other, nil), e.Vacuum(ctx), e.Close()); err != nil {
		t.Error(err)
	}
	if err := e.Apply(ctx, batch(1<<60)); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("Apply after Close: %v", err)
	}
	set("after")
	n := 0
	for _, err := range other.Scan(ctx, engine.Range{}) {
		if n++; err != nil {
			t.Fatal(err)
		}
	}
	if n != 400 {
		t.Errorf("the other store has %d pairs", n)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}

func TestADatabaseThatCanNotServeIsRefused(t *testing.T) {
	small, err := db.Open(db.DefaultOptions(t.TempDir()).WithMemTableSize(8 << 20).WithSyncWrites(true).WithLogger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	lazy, err := db.Open(db.DefaultOptions(t.TempDir()).WithLogger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer lazy.Close()
	managed, err := db.OpenManaged(db.DefaultOptions(t.TempDir()).WithSyncWrites(true).WithLogger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer managed.Close()
	for name, d := range map[string]*db.DB{"memtables": small, "sync": lazy, "managed": managed} {
		if _, err := badger.Use(d, nil, nil); !errors.Is(err, engine.ErrInvalid) || !strings.Contains(strings.ToLower(err.Error()), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	e, err := badger.Use(lazy, nil, &badger.Options{Durability: badger.Process})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// With Process the last groups can go with the power, and then what the witness knows of them says nothing, now and
// later.
func TestAWitnessOfAnotherRunOfTheMachineSaysNothing(t *testing.T) {
	dir, acked := filled(t)
	name := filepath.Join(dir, "turnstone.witness")
	before, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, synced := range []byte{0, 1} {
		head := binary.LittleEndian.AppendUint64(nil, 1<<40) // groups, far more than there are
		head = binary.LittleEndian.AppendUint64(head, 1)     // a run of the machine
		head = append(head, before[16:24]...)                // the store
		head = append(head, synced)
		head = binary.LittleEndian.AppendUint32(head, crc32.Checksum(head, crc32.MakeTable(crc32.Castagnoli)))
		change(t, name, func([]byte) []byte { return head })
		for range 2 {
			e, err := badger.Open(dir, nil)
			if synced == 1 {
				if !errors.Is(err, engine.ErrCorrupt) {
					t.Errorf("groups that were synced are missing: %v", err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(lost(e, acked), e.Close()); err != nil {
				t.Error(err)
			}
		}
	}
}

// A file that is none of Badger's does not matter.
func TestAForeignFileBesideTheStoreIsNoDamage(t *testing.T) {
	dir, acked := filled(t)
	if err := os.WriteFile(filepath.Join(dir, ".DS_Store"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := badger.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(lost(e, acked), e.Close()); err != nil {
		t.Error(err)
	}
}

// A new store is made in a directory without other files, and never over what is left of an old one.
func TestANewStoreNeedsADirectoryOfItsOwn(t *testing.T) {
	dir := t.TempDir() + "/store"
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(dir+"/notes.txt", []byte("mine"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := badger.Open(dir, nil); !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), "notes.txt") {
		t.Errorf("a directory with another file: %v", err)
	}
	if _, err := badger.Open("", nil); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("no directory: %v", err)
	}
	killed := t.TempDir() + "/store"
	acked, _ := run(t, killed, 300*time.Millisecond)
	for _, left := range []string{"witness", "logs"} {
		dir := at(t, killed)
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if own := strings.HasPrefix(e.Name(), "turnstone."); left == "witness" && !own || left == "logs" && (own || e.Name() == "MANIFEST") {
				if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
					t.Fatal(err)
				}
			}
		}
		before, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := badger.Open(dir, nil); !errors.Is(err, engine.ErrCorrupt) {
			t.Errorf("only the %s of %d batches are left: %v", left, len(acked), err)
		}
		if after, err := os.ReadDir(dir); err != nil || len(after) < len(before) {
			t.Errorf("%v, %v after %v", err, after, before)
		}
	}
}

// A call that waits while the engine is closed is refused, and finds no damage.
func TestCallsBesideCloseAreRefused(t *testing.T) {
	for range 20 {
		e, err := badger.Open(t.TempDir(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for w := range uint64(6) {
			wg.Go(func() {
				for n := uint64(0); ; n++ {
					var err error
					if w%2 == 0 {
						err = e.Apply(context.Background(), batch(w<<32|n))
					} else {
						for _, err = range e.Scan(context.Background(), engine.Range{}) {
							if err != nil {
								break
							}
						}
					}
					if err != nil {
						if !errors.Is(err, engine.ErrClosed) {
							t.Errorf("beside Close: %v", err)
						}
						return
					}
				}
			})
		}
		time.Sleep(5 * time.Millisecond)
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}
