package badger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/maphash"
	"io/fs"
	"sort"
	"sync"

	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"

	"github.com/turnstonedb/turnstone/engine"
)

const (
	tableSuffix = ".sst"
	tableSize   = 4 << 20 // bytes of pairs in a table; building a table takes three times as much memory
	writeChunk  = 1 << 20 // bytes of one write
)

// tableOptions returns Badger's options for tables. Tables are not compressed, because
// values are. With OnBlockRead, an iterator ends at a damaged block; see tableIterator.
func tableOptions() table.Options {
	return table.Options{
		TableSize:          tableSize,
		BlockSize:          4 << 10,
		BloomFalsePositive: 0.01,
		Compression:        options.None,
		ChkMode:            options.OnBlockRead,
	}
}

// A tableInfo is the entry of a table in the manifest. Badger ends the process if it opens
// a table whose index or footer it can't read. So the driver has its own checksum of that
// part and checks it first.
type tableInfo struct {
	number  uint64
	size    int64
	tail    int64  // size of index and footer
	tailSum uint32 // CRC-32C of index and footer
}

// lastBlock is the size of most tables' last blocks. Opening a table reads its index and
// footer, and the last block for the biggest key.
const lastBlock = 8 << 10

// An openTable is one of Badger's tables, mapped.
type openTable struct {
	tableInfo
	table    *table.Table
	sections *sections
	release  func() // lets go of the pages that were read
	unmap    func() error
}

// openTableFile opens the table that info describes. If the file is not the one that was
// written, the error matches engine.ErrCorrupt.
func openTableFile(d files, info tableInfo) (t *openTable, err error) {
	defer faults()()
	name := tableName(info.number)
	defer func() {
		if err != nil {
			err = fmt.Errorf("table %s: %w", name, err)
		}
	}()
	data, unmap, err := d.view(name, info.tail+lastBlock)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: it is missing", engine.ErrCorrupt)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unmap())
		}
	}()
	defer caught(&err)
	if int64(len(data)) != info.size {
		return nil, fmt.Errorf("%w: %d bytes long, not %d", engine.ErrCorrupt, len(data), info.size)
	}
	if info.tail > info.size || crc32.Checksum(data[info.size-info.tail:], castagnoli) != info.tailSum {
		return nil, fmt.Errorf("%w: its index is damaged", engine.ErrCorrupt)
	}
	opts := tableOptions()
	bt, err := table.OpenInMemoryTable(data, info.number, &opts)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", engine.ErrCorrupt, errText(err))
	}
	return &openTable{
		tableInfo: info, table: bt, sections: newSections(data, info.tail, d.soon),
		release: func() { d.release(data) }, unmap: unmap,
	}, nil
}

// describe returns the manifest's entry for a table that Badger has built. A table ends
// with the index, its length, a checksum, and the length of the checksum.
func describe(number uint64, data []byte) tableInfo {
	u32 := func(at int) int { return int(binary.BigEndian.Uint32(data[at:])) }
	n := len(data)
	tail := 4 + u32(n-4) + 4
	tail += u32(n - tail)
	return tableInfo{number: number, size: int64(n), tail: int64(tail), tailSum: crc32.Checksum(data[n-tail:], castagnoli)}
}

// A run is a sequence of tables in the order of their keys. No key is in two of them.
type run []*openTable

func (r run) bytes() (n int64) {
	for _, t := range r {
		n += t.size
	}
	return n
}

// find returns the index of the first table that ends at or after seek, a key with a
// timestamp.
func (r run) find(seek []byte) int {
	return sort.Search(len(r), func(i int) bool { return y.CompareKeys(r[i].table.Biggest(), seek) >= 0 })
}

// get returns a copy of the newest value of a key up to a timestamp. seek is the key with
// the timestamp, and hash the hash of the key. A nil value means that the key is deleted.
func (r run) get(seek []byte, hash uint32) (v []byte, found bool, err error) {
	i := r.find(seek)
	if i == len(r) || r[i].table.DoesNotHave(hash) {
		return nil, false, nil
	}
	it := newTableIterator(r[i], &err)
	defer it.Close()
	it.Seek(seek)
	if !it.Valid() || !y.SameKey(seek, it.Key()) {
		return nil, false, err
	}
	s := it.Value()
	if s.Meta == deletion {
		return nil, true, nil
	}
	return bytes.Clone(s.Value), true, nil
}

// A tableIterator wraps Badger's iterator, which panics at a damaged block or ends as if
// the table ended there. A tableIterator notices, because a table ends with its biggest
// key.
type tableIterator struct {
	it      *table.Iterator
	of      *openTable
	section int // the iterator was last there
	broken  bool
	damaged *error // set when the table is found to be damaged
}

func newTableIterator(t *openTable, damaged *error) *tableIterator {
	return &tableIterator{it: t.table.NewIterator(table.NOCACHE), of: t, section: -1, damaged: damaged}
}

// check ends the iterator with an error if it panicked, or if it has no pair although more
// is true. It must be deferred, and more is evaluated before the iterator moves.
func (it *tableIterator) check(more bool) {
	if r := recover(); r != nil {
		it.fail(panicked(r))
	} else if more && !it.it.Valid() {
		it.fail(fmt.Errorf("%w: a block can't be read", engine.ErrCorrupt))
	}
}

func (it *tableIterator) fail(err error) {
	it.broken = true
	*it.damaged = fmt.Errorf("table %s: %w", tableName(it.of.number), err)
}

func (it *tableIterator) Rewind() {
	defer it.check(true)
	it.it.Rewind()
}

func (it *tableIterator) Seek(key []byte) {
	defer it.check(y.CompareKeys(key, it.of.table.Biggest()) <= 0)
	it.of.sections.seek(key)
	it.it.Seek(key)
}

func (it *tableIterator) Next() {
	defer it.check(!bytes.Equal(it.it.Key(), it.of.table.Biggest()))
	it.it.Next()
	it.ahead()
}

// ahead asks for the sections behind the one that the iterator is in.
func (it *tableIterator) ahead() {
	if !it.it.Valid() {
		return
	}
	s := it.of.sections
	if at := s.at(it.it.Value().Value); at >= 0 && at != it.section {
		it.section = at
		s.need(at, at+aheadOf)
	}
}

func (it *tableIterator) Valid() bool          { return !it.broken && it.it.Valid() }
func (it *tableIterator) Key() []byte          { return it.it.Key() }
func (it *tableIterator) Value() y.ValueStruct { return it.it.Value() }
func (it *tableIterator) Close() error         { return it.it.Close() }

// A runIterator iterates over the tables of a run, one after the other.
type runIterator struct {
	run     run
	at      int
	it      *tableIterator // iterates over run[at], if at < len(run)
	once    bool           // each table is released when it was read
	damaged *error
}

func (it *runIterator) open(i int) bool {
	if it.it != nil {
		it.it.Close()
		it.it = nil
		if it.once {
			it.run[it.at].release()
		}
	}
	if it.at = i; i == len(it.run) {
		return false
	}
	it.it = newTableIterator(it.run[i], it.damaged)
	return true
}

func (it *runIterator) Rewind() {
	if it.open(0) {
		it.it.Rewind()
	}
}

func (it *runIterator) Seek(key []byte) {
	if it.open(it.run.find(key)) {
		it.it.Seek(key)
	}
}

func (it *runIterator) Next() {
	if it.it.Next(); !it.it.Valid() && *it.damaged == nil && it.open(it.at+1) {
		it.it.Rewind()
	}
}

func (it *runIterator) Valid() bool          { return it.it != nil && it.it.Valid() }
func (it *runIterator) Key() []byte          { return it.it.Key() }
func (it *runIterator) Value() y.ValueStruct { return it.it.Value() }

func (it *runIterator) Close() error {
	it.open(len(it.run))
	return nil
}

// A census is a count and a hash of a sequence of versions.
type census struct {
	n int
	h maphash.Hash
}

var censusSeed = maphash.MakeSeed()

func (c *census) add(key []byte, v y.ValueStruct) {
	if c.n++; c.n == 1 {
		c.h.SetSeed(censusSeed)
	}
	var lens [9]byte
	binary.LittleEndian.PutUint32(lens[:4], uint32(len(key)))
	binary.LittleEndian.PutUint32(lens[4:8], uint32(len(v.Value)))
	lens[8] = v.Meta
	c.h.Write(lens[:])
	c.h.Write(key)
	c.h.Write(v.Value)
}

func (c *census) equal(o *census) bool {
	return c.n == o.n && (c.n == 0 || c.h.Sum64() == o.h.Sum64())
}

// A tableWriter writes a run. Badger builds the tables in memory. The driver writes them,
// so that a full or failing disk is an error.
type tableWriter struct {
	files   files
	number  func() uint64 // returns the number for the next table
	builder *table.Builder
	pending int // bytes of pairs in builder
	infos   []tableInfo
	all     census
}

func (w *tableWriter) add(key []byte, v y.ValueStruct) error {
	if w.builder == nil {
		w.builder = table.NewTableBuilder(tableOptions())
	}
	w.builder.Add(key, v, 0)
	w.all.add(key, v)
	if w.pending += len(key) + len(v.Value); w.pending < tableSize {
		return nil
	}
	return w.flush()
}

// flush writes the table that is being built.
func (w *tableWriter) flush() error {
	if w.builder == nil {
		return nil
	}
	data := w.builder.Finish()
	w.builder.Close()
	w.builder, w.pending = nil, 0
	info := describe(w.number(), data)
	f, err := w.files.create(tableName(info.number))
	if err != nil {
		return err
	}
	w.infos = append(w.infos, info)
	for at := 0; at < len(data) && err == nil; at += writeChunk {
		_, err = f.WriteAt(data[at:min(at+writeChunk, len(data))], int64(at))
	}
	if err == nil {
		err = f.SyncData()
	}
	return errors.Join(err, f.Close())
}

// finish makes the tables of the run durable and opens it. It reads the run and compares
// it with the versions that were added. The caller has to list the run in the manifest.
func (w *tableWriter) finish() (run, error) {
	if err := w.flush(); err != nil {
		return nil, err
	}
	if err := w.files.sync(); err != nil {
		return nil, lost(err)
	}
	runs, err := openRuns(w.files, [][]tableInfo{w.infos})
	if err != nil {
		return nil, err
	}
	r := runs[0]
	var got census
	var damaged error
	it := &runIterator{run: r, once: true, damaged: &damaged}
	for it.Rewind(); it.Valid(); it.Next() {
		got.add(it.Key(), it.Value())
	}
	it.Close()
	if damaged == nil && !got.equal(&w.all) {
		damaged = fmt.Errorf("%w: the tables that were written have %d pairs, their source %d, or they differ", engine.ErrCorrupt, got.n, w.all.n)
	}
	if damaged != nil {
		return nil, errors.Join(damaged, r.close())
	}
	return r, nil
}

// discard ends the run, and returns the names of the tables that were written.
func (w *tableWriter) discard() (names []string) {
	if w.builder != nil {
		w.builder.Close()
	}
	for _, info := range w.infos {
		names = append(names, tableName(info.number))
	}
	return names
}

// openAtOnce is how many tables are opened at the same time. A table that no cache has takes
// two or three reads of the disk, one after the other.
const openAtOnce = 16

// openRuns opens the tables of runs. If it fails, none is open.
func openRuns(d files, infos [][]tableInfo) ([]run, error) {
	runs := make([]run, len(infos))
	var opening sync.WaitGroup
	slots := make(chan struct{}, openAtOnce)
	var mu sync.Mutex // guards failed
	var failed error
	for i := range infos {
		runs[i] = make(run, len(infos[i]))
		for j, info := range infos[i] {
			slots <- struct{}{}
			opening.Go(func() {
				defer func() { <-slots }()
				var err error
				if runs[i][j], err = openTableFile(d, info); err != nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
				}
			})
		}
	}
	opening.Wait()
	if failed == nil {
		return runs, nil
	}
	for _, r := range runs {
		failed = errors.Join(failed, r.close())
	}
	return nil, failed
}

// close unmaps the tables, of which those that could not be opened are nil. No reader may
// use them.
func (r run) close() error {
	var err error
	for _, t := range r {
		if t != nil {
			err = errors.Join(err, t.unmap())
		}
	}
	return err
}
