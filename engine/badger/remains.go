package badger

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"
	"github.com/dgraph-io/ristretto/v2/z"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/remains"
)

// Remains are what can be read of a store that Open refuses, because files are damaged or missing: the pairs of all
// tables, and of the logs of memtables, in its directory, without the MANIFEST that says which of them count. Of each
// key the newest version counts that can be read. So what was overwritten or removed may be back, if the newer version
// is lost, or if a table is still there that Badger was about to remove. It is for one goroutine, and for stores that
// Open has made without Options.Configure.
type Remains struct{ files *remains.Files }

// OpenRemains opens what remains of the store in a directory that no process has open. It changes nothing there. All
// tables are open at once.
func OpenRemains(dir string) (*Remains, error) {
	trace := func(name string) bool { return Trace(name) || strings.HasSuffix(name, ".sst") }
	files, err := remains.Open(dir, trace, func(f *remains.Files, name string) error {
		switch filepath.Ext(name) {
		case ".sst":
			return addTable(f, name)
		case ".mem":
			return addLog(f, name)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &Remains{files}, nil
}

// Scan implements engine.Scanner. It passes over what is damaged.
func (r *Remains) Scan(ctx context.Context, of engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		inner := engine.Range{Start: append([]byte{pairByte}, of.Start...), End: engine.PrefixEnd([]byte{pairByte}), Limit: of.Limit}
		if of.End != nil {
			inner.End = append([]byte{pairByte}, of.End...)
		}
		for p, err := range r.files.Scan(ctx, inner) {
			if err == nil {
				p.Key = p.Key[1:]
			}
			if !yield(p, err) {
				return
			}
		}
	}
}

// Lost says which files can't be read whole, as far as Scan has read them, and why.
func (r *Remains) Lost() []string { return r.files.Lost() }

// Close closes the files.
func (r *Remains) Close() error { return r.files.Close() }

// VerifyFiles reads all tables, and compares their blocks with the checksums. Without that, Badger leaves out blocks
// that are damaged.
func (e *Engine) VerifyFiles() error {
	_, err := e.transaction(func(*badger.Txn) error {
		if err := e.db.VerifyChecksum(); err != nil {
			return fmt.Errorf("%w: badger: %s", engine.ErrCorrupt, firstLine(err))
		}
		return nil
	})
	return err
}

// A tableScan scans the versions of a table.
type tableScan struct{ *table.Table }

// Close unmaps the file. It does not give the last reference to the table back, as Badger would remove the file then.
func (t tableScan) Close() error { return t.MmapFile.Close(-1) }

func addTable(to *remains.Files, name string) error {
	if _, ok := table.ParseFileID(name); !ok {
		return errors.New("it is no table of Badger's") // which would close the file after that error, and after no other one
	}
	path := to.Path(name)
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		return cmp.Or(err, errors.New("it is empty"))
	}
	mapped, err := z.OpenMmapFile(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	t, err := remains.Safely(func() (*table.Table, error) {
		return table.OpenTable(mapped, table.Options{ReadOnly: true, ChkMode: options.OnBlockRead, Compression: options.None})
	})
	if err != nil {
		_ = mapped.Close(-1)
		return fmt.Errorf("%w: %s", engine.ErrCorrupt, firstLine(err))
	}
	to.Add(name, tableScan{t}, tableScan{t})
	return nil
}

// Scan implements engine.Scanner.
func (t tableScan) Scan(_ context.Context, of engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		it := t.NewIterator(table.NOCACHE)
		defer it.Close()
		last := of.Start
		step := func() { it.Seek(y.KeyWithTs(of.Start, math.MaxUint64)) }
		for n := 1; ; n++ {
			p, err := remains.Safely(func() (p engine.Pair, err error) {
				if step(); !it.Valid() {
					// Badger tells the end and a damaged block alike.
					if bytes.Compare(last, y.ParseKey(t.Biggest())) <= 0 {
						err = fmt.Errorf("%w: a block of the table can't be read", engine.ErrCorrupt)
					}
					return p, err
				}
				v := it.Value()
				return newVersion(it.Key(), v.Meta, v.Value)
			})
			switch {
			case err != nil:
				yield(engine.Pair{}, err)
				return
			case p.Key == nil, of.End != nil && bytes.Compare(p.Key, of.End) >= 0, !yield(p, nil), n == of.Limit:
				return
			}
			last, step = engine.Successor(p.Key), it.Next
		}
	}
}

// Bits of the meta byte of an entry (badger, value.go).
const (
	bitDelete       = 1 << 0
	bitValuePointer = 1 << 1
	bitTxn          = 1 << 6
	bitFinTxn       = 1 << 7
)

// newVersion returns the version of an entry. Its key ends with the timestamp.
func newVersion(key []byte, meta byte, value []byte) (p engine.Pair, err error) {
	if len(key) < 8 {
		return p, fmt.Errorf("%w: a key of %d bytes", engine.ErrCorrupt, len(key))
	}
	if meta&bitValuePointer > 0 {
		return p, fmt.Errorf("%w: a value in the value log, which the driver does not use", engine.ErrCorrupt)
	}
	return engine.Pair{Key: bytes.Clone(y.ParseKey(key)), Value: remains.Version(y.ParseTs(key), meta&bitDelete == 0, value)}, nil
}

// addLog reads the log of a memtable, up to where it can't be read. It begins with 20 bytes, which are about
// encryption. Then come entries: meta 1, user meta 1, lengths of key and value, expiry (uvarints), key, value, CRC-32C
// 4 (badger, structs.go and memtable.go). The last entry of a transaction says so, and has its timestamp as text.
func addLog(to *remains.Files, name string) error {
	path := to.Path(name)
	if info, err := os.Stat(path); err != nil || info.Size() > remains.MaxLog {
		return cmp.Or(err, fmt.Errorf("%w: it is too large for a log", engine.ErrCorrupt))
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	all, err := readLog(b)
	to.Add(name, remains.NewLog(all), nil)
	return err
}

func readLog(b []byte) (all []engine.Pair, err error) {
	const head = 20
	if len(b) < head {
		return nil, io.ErrUnexpectedEOF
	}
	var transaction []engine.Pair
	for b = b[head:]; ; {
		if len(bytes.TrimLeft(b[:min(len(b), 32)], "\x00")) == 0 {
			if len(bytes.TrimLeft(b, "\x00")) > 0 {
				err = fmt.Errorf("%w: zeros behind %d entries", engine.ErrCorrupt, len(all))
			} else if len(transaction) > 0 {
				err = fmt.Errorf("%w: it ends within a transaction", engine.ErrCorrupt)
			}
			return all, err
		}
		at := 2
		var numbers [3]uint64
		for i := range numbers {
			v, n := binary.Uvarint(b[min(at, len(b)):])
			if n <= 0 {
				return all, fmt.Errorf("%w: torn, or damaged, behind %d entries", engine.ErrCorrupt, len(all))
			}
			numbers[i], at = v, at+n
		}
		key, value := numbers[0], numbers[1]
		if key > 1<<20 || value > 1<<30 || uint64(len(b)) < uint64(at)+key+value+crc32.Size {
			return all, fmt.Errorf("%w: torn, or damaged, behind %d entries", engine.ErrCorrupt, len(all))
		}
		end := at + int(key) + int(value)
		if crc32.Checksum(b[:end], castagnoli) != binary.BigEndian.Uint32(b[end:]) {
			return all, fmt.Errorf("%w: torn, or damaged, behind %d entries", engine.ErrCorrupt, len(all))
		}
		k, v, meta := b[at:at+int(key)], b[at+int(key):end], b[0]
		b = b[end+crc32.Size:]
		if meta&bitFinTxn > 0 {
			if ts, perr := strconv.ParseUint(string(v), 10, 64); perr != nil || len(transaction) > 0 && ts != binary.BigEndian.Uint64(transaction[0].Value) {
				return all, fmt.Errorf("%w: a transaction that ends as another one", engine.ErrCorrupt)
			}
			all, transaction = append(all, transaction...), nil
			continue
		}
		p, err := newVersion(k, meta, v)
		if err != nil {
			return all, err
		}
		if meta&bitTxn > 0 {
			transaction = append(transaction, p)
		} else {
			all = append(all, p)
		}
	}
}
