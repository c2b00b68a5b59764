package badger

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dgraph-io/badger/v4"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

// Badger opens a damaged MANIFEST or log as an older store, or an empty one, without an error, and deletes the tables
// that it does not know of then. The file turnstone.witness, beside Badger's, tells:
//
//	group 8 | boot 8 | store 8 | synced 1 | CRC-32C 4 | files n | CRC-32C 4
//
// Each group of batches has a number, which stands in the database, too, with the store's id. The witness is written,
// and not synced, when the group is durable, before it is acknowledged. So a database whose number is lower has lost
// acknowledged batches, if the process ended. After a loss of power the disk may hold an older witness, whose claim
// still holds. When the store was closed, files has the name, the length and a checksum of each file of Badger's, a
// line for each; otherwise it is not there. The checksum is that of MANIFEST, and of the first and the last 4 KiB of
// others, which tell files apart: a log begins with random bytes, and a table ends with its index, whose damage
// Badger answers with a panic (of a large table only the end of the index is in it). A part whose checksum does not
// match says nothing, because a loss of power can leave it half written.
type witness struct {
	group  uint64
	boot   uint64 // the run of the machine in which the group was committed
	store  uint64 // random, the same as long as the store lives, or 0 if it is not known
	synced bool   // the group survives a loss of power
	files  string // of a closed store

	file *os.File
}

const (
	witnessName = "turnstone.witness"
	witnessHead = 8 + 8 + 8 + 1 + 4
	endBytes    = 4 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// summed returns b with its checksum behind it.
func summed(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// unsummed returns b without its checksum, or nil if that does not match.
func unsummed(b []byte) []byte {
	if len(b) < 4 || !bytes.Equal(summed(bytes.Clone(b[:len(b)-4])), b) {
		return nil
	}
	return b[:len(b)-4]
}

func (w *witness) head() []byte {
	b := binary.LittleEndian.AppendUint64(nil, w.group)
	b = binary.LittleEndian.AppendUint64(b, w.boot)
	b = binary.LittleEndian.AppendUint64(b, w.store)
	if w.synced {
		return summed(append(b, 1))
	}
	return summed(append(b, 0))
}

// readWitness returns what an earlier process left, or a zero witness, and compares it with the files of a closed
// store.
func readWitness(dir string) (*witness, error) {
	w := &witness{}
	b, err := os.ReadFile(filepath.Join(dir, witnessName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if head := unsummed(b[:min(len(b), witnessHead)]); len(head) == witnessHead-4 {
		w.group, w.boot, w.synced = binary.LittleEndian.Uint64(head), binary.LittleEndian.Uint64(head[8:]), head[24] == 1
		w.store = binary.LittleEndian.Uint64(head[16:])
	}
	if w.files = string(unsummed(b[min(len(b), witnessHead):])); w.files == "" {
		return w, nil
	}
	now, err := describe(dir)
	if err == nil && now != w.files {
		err = fmt.Errorf("%w: %s is not as the store was closed with (if a tool changed it, remove %s)", engine.ErrCorrupt, differing(w.files, now), witnessName)
	}
	return w, err
}

// ofBadger reports whether a file is one whose content Badger needs.
func ofBadger(name string) bool {
	switch filepath.Ext(name) {
	case ".sst", ".vlog", ".mem":
		return true
	}
	return name == badger.ManifestFilename || name == badger.KeyRegistryFileName
}

// describe returns the names, lengths and checksums of Badger's files.
func describe(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, d := range entries {
		if !ofBadger(d.Name()) {
			continue
		}
		info, err := d.Info()
		if err != nil {
			return "", err
		}
		sum, err := sumOf(filepath.Join(dir, d.Name()), info.Size())
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%s %d %08x\n", d.Name(), info.Size(), sum)
	}
	return b.String(), nil
}

// sumOf returns the checksum of a file: see witness.
func sumOf(path string, size int64) (uint32, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	first, last := int64(endBytes), max(size-endBytes, endBytes)
	if filepath.Base(path) == badger.ManifestFilename {
		first, last = size, size
	}
	sum := crc32.New(castagnoli)
	_, err = io.Copy(sum, io.NewSectionReader(f, 0, first))
	if err == nil {
		_, err = io.Copy(sum, io.NewSectionReader(f, last, size-last))
	}
	return sum.Sum32(), err
}

// differing returns the name of the first file that two descriptions differ in.
func differing(a, b string) string {
	lines := append(strings.Split(a, "\n"), strings.Split(b, "\n")...)
	slices.Sort(lines)
	for i, line := range lines {
		twin := i > 0 && lines[i-1] == line || i+1 < len(lines) && lines[i+1] == line
		if !twin {
			name, _, _ := strings.Cut(line, " ")
			return name
		}
	}
	return "a file"
}

// begin makes it durable that the store is not closed any more, before Badger changes a file, and returns the witness
// of this process.
func (w *witness) begin(dir string, synced bool) (*witness, error) {
	f, err := os.OpenFile(filepath.Join(dir, witnessName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := f.WriteAt(w.head(), 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := errors.Join(f.Truncate(witnessHead), f.Sync(), localdir.Sync(dir)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &witness{group: w.group, boot: localdir.Boot(), store: w.store, synced: synced, file: f}, nil
}

// write writes the number of the last group, if there is a witness. If the write fails, the file keeps an older
// witness, whose claim still holds.
func (w *witness) write() {
	if w != nil {
		_, _ = w.file.WriteAt(w.head(), 0)
	}
}

// end writes that the store is closed.
func (w *witness) end(dir string) error {
	if w == nil {
		return nil
	}
	files, err := describe(dir)
	if err != nil {
		return err
	}
	for line := range strings.Lines(files) { // Badger does not sync the last change of a file's length
		name, _, _ := strings.Cut(line, " ")
		if err := localdir.Sync(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if _, err := w.file.WriteAt(append(w.head(), summed([]byte(files))...), 0); err != nil {
		return err
	}
	return w.file.Sync()
}

func (w *witness) close() error {
	if w == nil {
		return nil
	}
	return w.file.Close()
}

// groups returns the number of the last group that the database has, and its store; zeros if there was none yet.
func (e *Engine) groups() (last, store uint64, err error) {
	err = e.db.View(func(txn *badger.Txn) error {
		v, err := get(txn, e.inner(groupByte, nil))
		if err == nil && len(v) == 16 {
			last, store = binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(v[8:])
		}
		return err
	})
	return last, store, err
}

// missing returns an error if the database is of another store than seen, or has lost groups that seen knows of.
func (e *Engine) missing(seen *witness) error {
	have, store, err := e.groups()
	if err != nil {
		return err
	}
	if store != 0 && seen.store != 0 && store != seen.store {
		return fmt.Errorf("%w: the database and %s are of different stores", engine.ErrCorrupt, witnessName)
	}
	// The witness stays as it is then: it tells the next Open.
	if have < seen.group && (seen.synced || seen.boot != 0 && seen.boot == localdir.Boot()) {
		return fmt.Errorf("%w: acknowledged batches are missing: %d groups of %d are there", engine.ErrCorrupt, have, seen.group)
	}
	if store == 0 {
		store = cmp.Or(seen.store, rand.Uint64()|1)
	}
	if e.witness != nil {
		e.witness.group, e.witness.store = have, store
	}
	return nil
}

// Trace reports whether a file of a name tells that its directory has, or had, a store of Badger, and of nothing else.
func Trace(name string) bool {
	return name == "MANIFEST" || name == "KEYREGISTRY" || name == witnessName || strings.HasSuffix(name, ".vlog") || strings.HasSuffix(name, ".mem")
}
