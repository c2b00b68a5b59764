package badger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

// Badger would sync its write-ahead log within each transaction, and the next
// one would wait for it. So it does not: this driver syncs the log itself, one
// group while the next one is written, and answers a group when it is synced.
//
// The log is a file for each memtable, written in order; after a loss of power
// Badger replays each up to where it is torn. So a group must not reach the file
// of a new memtable before the old file is synced, or it might survive without
// what it builds on. Badger does not say when it will begin a new file; but it
// does not before the memtable is full, and the driver knows a bound of what is
// in it. From there on groups are written one at a time, each when the one
// before is synced, until the new file is seen.

// A flight is a group on its way to the disk.
type flight struct {
	group    []*request
	verdicts []error
	ts       uint64 // of Badger, when something was written,
	file     int    // to the log of this number
}

func (f *flight) fail(err error) {
	for i := range f.verdicts {
		f.verdicts[i] = err
	}
}

func (f *flight) land() {
	for i, r := range f.group {
		r.err <- f.verdicts[i]
	}
}

// What a memtable takes at most, beside keys, values and writeBytes. A write has
// a node of 16 bytes and 4 for each level, of which it has 1.5 on average, up to 7
// for alignment, our byte before the key, Badger's timestamp behind it, and 3
// bytes of the value's head. The sum of so many random heights strays from its
// mean by less than emptyBytes: 34 KB would be 20 standard deviations of 240,000
// writes. The log takes less for a write, but endBytes for the end of a transaction.
const (
	entryBytes = 16 + 6 + 7 + 1 + 8 + 3 - writeBytes
	endBytes   = 64
	emptyBytes = 68 << 10
)

const logSuffix = ".mem"

func logName(dir string, number int) string {
	return filepath.Join(dir, fmt.Sprintf("%05d%s", number, logSuffix))
}

// followLog finds the log of the generation that has just become the current one.
// The committer is not running, or between two groups with none in flight.
func (e *Engine) followLog(fresh bool) error {
	if e.log != nil {
		e.log.Close()
		e.log = nil
	}
	dir := filepath.Join(e.dir.Path, e.gen)
	numbers, err := logs(dir)
	if err != nil {
		return err
	}
	if len(numbers) == 0 {
		return fmt.Errorf("%w: %s has no log", engine.ErrCorrupt, dir)
	}
	e.number = numbers[len(numbers)-1]
	e.logged = memTableSize // not known: it may begin another file at any time
	if fresh {
		e.logged = emptyBytes
	}
	return nil
}

// beforeWrite waits, when Badger may begin another log, until this one is synced.
func (e *Engine) beforeWrite() error {
	if e.opts.Durability == Power && e.logged >= memTableSize {
		e.landed.Wait()
		return e.usable() // the sync may have failed
	}
	return nil
}

// afterWrite finds out to which log f was written, which took so many bytes at most.
func (e *Engine) afterWrite(f *flight, bytes int) error {
	if e.opts.Durability != Power {
		return nil
	}
	bytes += endBytes
	e.logged += bytes
	_, err := os.Stat(logName(filepath.Join(e.dir.Path, e.gen), e.number+1))
	if err == nil {
		e.number++
		e.logged = emptyBytes + bytes
	} else if !errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: badger's log: %w", engine.ErrUnknown, err)
		e.fail(err)
		return err
	}
	f.file = e.number
	return nil
}

// launch makes f durable and answers its requests. If others wait, it goes on
// beside them.
func (e *Engine) launch(f *flight, others bool) {
	if e.opts.Durability != Power {
		e.settle(f)
		f.land()
		return
	}
	if e.inFlight.Load() == 0 && !others {
		e.sync(f)
		f.land()
		return
	}
	e.landed.Add(1)
	e.inFlight.Add(1)
	e.flights <- f
}

// syncLoop lands flights.
func (e *Engine) syncLoop() {
	for first := range e.flights {
		group := []*flight{first}
		for more := true; more; {
			select {
			case f, ok := <-e.flights:
				if more = ok; ok {
					group = append(group, f)
				}
			default:
				more = false
			}
		}
		e.sync(group...)
		for _, f := range group {
			f.land()
			e.inFlight.Add(-1)
			e.landed.Done()
		}
	}
}

// sync makes what was written durable. An error leaves the outcome unknown.
func (e *Engine) sync(flights ...*flight) {
	var err error
	for i, f := range flights {
		if f.ts == 0 || err == nil && i+1 < len(flights) && flights[i+1].ts > 0 && flights[i+1].file == f.file {
			continue // nothing to sync, or the next one does it
		}
		if err == nil {
			err = e.usable()
		}
		if err == nil {
			if err = e.syncLog(f.file); err != nil {
				err = fmt.Errorf("%w: sync of badger's log: %w", engine.ErrUnknown, err)
				e.fail(err)
			}
		}
		if err == nil {
			e.settle(f)
		}
	}
	failed := e.usable()
	if failed == nil {
		return
	}
	for _, f := range flights {
		if f.ts == 0 { // no effect; but what it saw may be what a sync failed on
			f.fail(failed)
		} else if f.ts > e.acked.Load() {
			f.fail(fmt.Errorf("%w: %v", engine.ErrUnknown, failed))
		}
	}
}

// settle lets readers see f.
func (e *Engine) settle(f *flight) {
	if f.ts > 0 {
		e.acked.Store(f.ts)
	}
}

// syncLog syncs the log of a number, which is the one before or a new one.
func (e *Engine) syncLog(number int) error {
	dir := filepath.Join(e.dir.Path, e.gen)
	if e.log == nil || e.logNumber != number {
		f, err := os.OpenFile(logName(dir, number), os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // its memtable is a table already, which is synced
		}
		if err != nil {
			return err
		}
		if e.log != nil {
			e.log.Close()
		}
		e.log, e.logNumber = f, number
		if err := localdir.Sync(dir); err != nil {
			return err
		}
	}
	return e.syncData(e.log)
}

// syncLogs syncs every log of a generation that is not current yet. One that goes
// meanwhile is a table by then.
func syncLogs(dir string) error {
	numbers, err := logs(dir)
	for _, n := range numbers {
		f, oerr := os.OpenFile(logName(dir, n), os.O_RDWR, 0)
		if oerr == nil {
			oerr = errors.Join(localdir.SyncData(f), f.Close())
		}
		if !errors.Is(oerr, fs.ErrNotExist) {
			err = errors.Join(err, oerr)
		}
	}
	return err
}

// logs returns the numbers of the logs in dir, in order.
func logs(dir string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	var out []int
	for _, d := range entries {
		if name, ok := strings.CutSuffix(d.Name(), logSuffix); ok {
			if n, err := strconv.Atoi(name); err == nil {
				out = append(out, n)
			}
		}
	}
	slices.Sort(out)
	return out, err
}
