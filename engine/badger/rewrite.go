package badger

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/pb"
	"github.com/dgraph-io/ristretto/v2/z"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

// A rewrite replaces compaction. Badger's own deletes its inputs even when it
// could not create an output (a shortage of inodes or descriptors: 46,679 of
// 60,000 keys gone, no error), so it is switched off and a store is copied when
// level 0 has grown as large as the rest: about two writes of a byte over the
// life of a store, plus the first. The copy is compared with its source before
// anything of the source is removed, and leaves behind no byte of what was
// deleted, which is what Vacuum promises.
//
// A copy runs beside commits: it takes what is live at one timestamp, then, in
// rounds, what has changed since; the last round and the switch are done by the
// committer, between two groups.
const (
	growTables  = 16       // rewrite when level 0 has this many tables and as many bytes as the rest, …
	maxTables   = 32       // … or this many however small, as every read looks into each, …
	tableShare  = 64 << 20 // … plus one for so many bytes of the rest, as a copy costs by its size
	smallRound  = 1000
	maxRounds   = 8
	closeBytes  = 32 << 20              // rewrite on Close what takes a blink, and …
	closeMax    = 2                     // … more only when level 0 is so many times over its limit
	mappedBytes = 64 << 20              // of pairs that are read or written before their pages are given back
	trimEvery   = 50 * time.Millisecond // while a rewrite goes on
	bufferBytes = 1 << 20               // of pairs that Badger is handed at a time, and …
	maxPending  = 32                    // … so many times before they are in a table, unless …
	paceWait    = time.Millisecond
	paceWaits   = 100 // … that takes so long for the next buffer
)

// Vacuum implements engine.Engine. It needs as much free space as the live data.
func (e *Engine) Vacuum(ctx context.Context) error {
	select {
	case e.rewriting <- struct{}{}:
	case <-e.stop:
		return engine.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-e.rewriting }()
	return e.rewrite(ctx)
}

// rewriteIfGrown starts a rewrite in the background when level 0 has grown.
func (e *Engine) rewriteIfGrown() {
	if !measure(e.db).grown(1) {
		return
	}
	select {
	case e.rewriting <- struct{}{}:
	default:
		return // one is running, or Close is
	}
	go func() {
		defer func() { <-e.rewriting }()
		e.report(e.rewrite(e.ctx))
	}()
}

// trim keeps what is resident of the current generation small, beside the committer.
func (e *Engine) trim() {
	if !e.trimming.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer e.trimming.Store(false)
		e.mu.RLock() // nobody closes it meanwhile
		defer e.mu.RUnlock()
		if !e.db.IsClosed() {
			e.unmap(e.db)
		}
	}()
}

// trimBeside trims while something reads all of the current generation.
func (e *Engine) trimBeside() (stop func()) {
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(trimEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				e.trim()
			}
		}
	}()
	return func() { close(done) }
}

// unmap gives the pages of db's tables back. What prevents it is said once.
func (e *Engine) unmap(db *badger.DB) {
	if err := unmapTables(db); err != nil && e.opts.Logger != nil && !e.resident.Swap(true) {
		e.opts.Logger.Warn("badger: its tables stay resident", "error", err)
	}
}

// rewriteOnClose keeps stores small that are only opened for a moment, again
// and again: each leaves a table in level 0. The caller has taken e.rewriting.
func (e *Engine) rewriteOnClose() {
	m := measure(e.db)
	if m.grown(closeMax) || m.bytes() <= closeBytes && m.grown(1) {
		e.report(e.rewrite(context.Background()))
	}
}

// report logs why a rewrite that nobody asked for was given up.
func (e *Engine) report(err error) {
	if err != nil && e.ctx.Err() == nil && e.opts.Logger != nil {
		e.opts.Logger.Error("badger: rewrite given up, the store goes on as it is", "error", err)
	}
}

// A measurement of the tables of a generation.
type measurement struct {
	tables       int // of level 0
	level0, rest int64
	pairs        int
}

func measure(db *badger.DB) (m measurement) {
	for _, t := range db.Tables() {
		m.pairs += int(t.KeyCount)
		if t.Level == 0 {
			m.tables++
			m.level0 += int64(t.OnDiskSize)
		} else {
			m.rest += int64(t.OnDiskSize)
		}
	}
	return m
}

func (m measurement) bytes() int64 { return m.level0 + m.rest }

// grown reports whether level 0 is over its limit, or so many times over it.
func (m measurement) grown(times int) bool {
	if m.tables >= times*(maxTables+int(m.rest/tableShare)) {
		return true
	}
	return times == 1 && m.tables >= growTables && m.level0 >= m.rest
}

// rewrite copies the store into the next generation and switches to it. The
// caller holds e.rewriting, so e.db and e.gen do not change but by us.
func (e *Engine) rewrite(ctx context.Context) (err error) {
	if err := e.usable(); err != nil {
		return err
	}
	defer e.trimBeside()()
	if err := verifyChecksums(e.db); err != nil {
		return err
	}
	if err := e.dir.RoomFor(uint64(measure(e.db).bytes()) + 4*memTableSize); err != nil {
		return err
	}
	n, err := strconv.Atoi(strings.TrimPrefix(e.gen, genPrefix))
	if err != nil {
		return fmt.Errorf("%w: generation %q", engine.ErrCorrupt, e.gen)
	}
	gen := fmt.Sprintf("%s%06d", genPrefix, n+1)
	dir := filepath.Join(e.dir.Path, gen)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	to, err := e.openDB(gen)
	if err != nil {
		return err
	}
	switched, begun := false, false
	defer func() {
		if !switched {
			to.Close()
		}
		if !begun { // else CURRENT may name it
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	base := e.acked.Load()
	copied, err := e.copyLive(ctx, e.db, to, base)
	if err == nil {
		// Opened anew it is compared as it will be found, and without what Badger
		// keeps of the memory that tables were built in.
		err = to.Close()
	}
	if err == nil {
		var again *badger.DB
		if again, err = e.openDB(gen); err == nil {
			to = again
			err = e.compareLive(ctx, to, base, copied)
		}
	}
	if err != nil {
		return fmt.Errorf("engine: rewrite: %w", err)
	}
	since := base
	for range maxRounds {
		last := e.acked.Load()
		changes, err := copyChanges(ctx, e.db, to, since, last)
		if err == nil {
			err = compareChanges(ctx, e.db, to, since, last)
		}
		if err != nil {
			return fmt.Errorf("engine: rewrite: %w", err)
		}
		if since = last; changes < smallRound {
			break
		}
	}
	if err := verifyChecksums(e.db); err != nil { // of what was flushed meanwhile
		return err
	}
	if err := syncLogs(dir); err != nil {
		return fmt.Errorf("engine: rewrite: %w", err)
	}
	var old *badger.DB
	var serr error
	err = e.submit(&request{ctx: ctx, err: make(chan error, 1), pause: func() {
		old, begun, serr = e.switchTo(ctx, to, gen, since)
		switched = old != nil
	}})
	if err = errors.Join(err, serr); err != nil {
		return fmt.Errorf("engine: rewrite: %w", err)
	}
	e.trim()
	oldDir := old.Opts().Dir
	if err := old.Close(); err != nil {
		return fmt.Errorf("engine: close replaced generation: %w", errText(err))
	}
	return errors.Join(os.RemoveAll(oldDir), localdir.Sync(e.dir.Path))
}

// switchTo runs in the committer: it brings to up to date, compares it with the
// current generation, and makes it the current one. It returns the old one, and
// whether CURRENT may name the new one, which it does without an error.
func (e *Engine) switchTo(ctx context.Context, to *badger.DB, gen string, since uint64) (old *badger.DB, begun bool, err error) {
	if err := e.usable(); err != nil {
		return nil, false, err
	}
	last := e.acked.Load() // nothing is in flight
	if _, err := copyChanges(ctx, e.db, to, since, last); err != nil {
		return nil, false, err
	}
	if err := compareChanges(ctx, e.db, to, since, last); err != nil {
		return nil, false, err
	}
	dir := filepath.Join(e.dir.Path, gen)
	if err := errors.Join(syncLogs(dir), localdir.Private(dir), localdir.Sync(dir)); err != nil {
		return nil, false, err
	}
	if begun, err = localdir.ReplaceFile(filepath.Join(e.dir.Path, currentName), []byte(gen)); err != nil {
		if begun { // which generation the next Open takes is not known: stop here
			err = fmt.Errorf("%w: switch of generations: %w", engine.ErrUnknown, err)
			e.fail(err)
		}
		return nil, begun, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	old = e.db
	e.db, e.gen = to, gen
	if err := e.followLog(false); err != nil {
		e.fail(err) // the switch stands
	}
	return old, true, nil
}

// verifyChecksums refuses to copy from damaged tables: their iterators end
// early without an error. Badger panics on some kinds of damage.
func verifyChecksums(db *badger.DB) (err error) {
	defer caught(&err)
	if err := db.VerifyChecksum(); err != nil {
		return fmt.Errorf("%w: %w", engine.ErrCorrupt, errText(err))
	}
	return nil
}

// copyLive writes the pairs of from that were live at a timestamp into tables of
// the empty to, and returns what they were.
func (e *Engine) copyLive(ctx context.Context, from, to *badger.DB, at uint64) (*census, error) {
	w := to.NewStreamWriter()
	defer w.Cancel()
	if err := w.Prepare(); err != nil {
		return nil, errText(err)
	}
	buf := z.NewBuffer(bufferBytes, "turnstone rewrite")
	defer buf.Release()
	c := new(census)
	var pending []int // how many pairs there were with each of the last buffers that are not in a table yet
	written := 0      // bytes, since pages were given back
	err := e.live(ctx, from, at, func(item *badger.Item, v []byte) error {
		c.add(item.Key(), v)
		badger.KVToBuffer(&pb.KV{Key: item.KeyCopy(nil), Value: v, Version: item.Version(), StreamId: 1}, buf)
		if buf.LenNoPadding() < bufferBytes {
			return nil
		}
		if written += buf.LenNoPadding(); written >= mappedBytes {
			written = 0
			e.unmap(to)
		}
		// Badger would build up to 16 tables at a time, each in twice its size of memory.
		pending = append(pending, c.n)
		for i := 0; len(pending) > maxPending && i < paceWaits; i++ {
			if built := measure(to).pairs; pending[0] <= built {
				pending = pending[1:]
			} else {
				time.Sleep(paceWait)
			}
		}
		err := w.Write(buf)
		buf.Reset()
		return errors.Join(err, e.dir.Room())
	})
	if err == nil {
		err = w.Write(buf)
	}
	if err == nil {
		err = w.Flush()
	}
	return c, err
}

// compareLive checks that the copy to has the pairs that c counts, and no other.
func (e *Engine) compareLive(ctx context.Context, to *badger.DB, at uint64, c *census) error {
	var got census
	if err := e.live(ctx, to, at, func(item *badger.Item, v []byte) error { got.add(item.Key(), v); return nil }); err != nil {
		return err
	}
	if !got.equal(c) {
		return fmt.Errorf("%w: the copy has %d pairs, its source %d, or they differ", engine.ErrCorrupt, got.n, c.n)
	}
	return nil
}

// live calls f for every pair of db that was live at a timestamp, in order; v is
// f's to keep. Only the caller may close db.
func (e *Engine) live(ctx context.Context, db *badger.DB, at uint64, f func(item *badger.Item, v []byte) error) (err error) {
	defer caught(&err)
	txn := db.NewTransactionAt(at, false)
	defer txn.Discard()
	it := txn.NewIterator(badger.IteratorOptions{})
	defer it.Close()
	size := 0
	for it.Rewind(); it.Valid(); it.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		v, err := it.Item().ValueCopy(nil)
		if err == nil && len(v) == 0 {
			err = fmt.Errorf("%w: empty value", engine.ErrCorrupt)
		}
		if err != nil {
			return err
		}
		if err := f(it.Item(), v); err != nil {
			return err
		}
		if size += len(it.Item().Key()) + len(v); size >= mappedBytes {
			size = 0
			e.unmap(db)
		}
	}
	return nil
}

// changes calls f for every key that was written after since and until last: its
// newest value, or nil when it was deleted.
func changes(ctx context.Context, db *badger.DB, since, last uint64, f func(key, v []byte) error) (err error) {
	defer caught(&err)
	if last <= since {
		return nil
	}
	txn := db.NewTransactionAt(last, false)
	defer txn.Discard()
	it := txn.NewIterator(badger.IteratorOptions{AllVersions: true, SinceTs: since})
	defer it.Close()
	var seen []byte
	for it.Rewind(); it.Valid(); it.Next() {
		item := it.Item()
		if seen != nil && string(seen) == string(item.Key()) {
			continue // older than what was taken
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		seen = item.KeyCopy(seen)
		var v []byte
		if !item.IsDeletedOrExpired() {
			var err error
			if v, err = item.ValueCopy(nil); err != nil {
				return errText(err)
			}
		}
		if err := f(item.KeyCopy(nil), v); err != nil {
			return err
		}
	}
	return nil
}

// copyChanges applies to to what changed in from after since and until last, at
// that timestamp.
func copyChanges(ctx context.Context, from, to *badger.DB, since, last uint64) (n int, err error) {
	if last <= since {
		return 0, nil
	}
	w := to.NewWriteBatchAt(last)
	defer w.Cancel()
	err = changes(ctx, from, since, last, func(key, v []byte) error {
		n++
		if v == nil {
			return w.Delete(key)
		}
		return w.Set(key, v)
	})
	if err == nil {
		err = w.Flush()
	}
	return n, err
}

// compareChanges checks that to agrees with from on every key written after since.
func compareChanges(ctx context.Context, from, to *badger.DB, since, last uint64) error {
	txn := to.NewTransactionAt(last, false)
	defer txn.Discard()
	err := changes(ctx, from, since, last, func(key, v []byte) error {
		got, err := get(txn, key)
		if err != nil {
			return err
		}
		if string(got) != string(v) {
			return fmt.Errorf("%w: the copy differs from its source", engine.ErrCorrupt)
		}
		return nil
	})
	return err
}

// A census identifies a sequence of pairs.
type census struct {
	n int
	h maphash.Hash
}

var censusSeed = maphash.MakeSeed()

func (c *census) add(key, v []byte) {
	if c.n++; c.n == 1 {
		c.h.SetSeed(censusSeed)
	}
	var lens [8]byte
	binary.LittleEndian.PutUint32(lens[:4], uint32(len(key)))
	binary.LittleEndian.PutUint32(lens[4:], uint32(len(v)))
	c.h.Write(lens[:])
	c.h.Write(key)
	c.h.Write(v)
}

func (c *census) equal(o *census) bool {
	return c.n == o.n && (c.n == 0 || c.h.Sum64() == o.h.Sum64())
}
