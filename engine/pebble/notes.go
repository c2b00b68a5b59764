package pebble

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// noted is the file system that Pebble sees. It writes notes beside Pebble's files
// that say what must be in them, as Pebble takes a log or a MANIFEST for ended
// where it becomes unreadable, and an absent log for one that never was:
//
//	turnstone.log-000012-25165824  log 000012.log was begun, and has 25165824 bytes at least
//	turnstone.MANIFEST-000005      says how many bytes of MANIFEST-000005 are durable, and their checksum
//
// A note is durable before Pebble relies on what it says. Stores of earlier
// versions have no notes; their files are taken as they are.
type noted struct {
	*fence
	dir      string
	names    vfs.File // the directory
	logBytes int64
	noSync   bool
	durable  map[string]int64 // set by Open, then constant: length of the MANIFEST that counts

	newestLog atomic.Uint64 // number of the log that was begun last
}

const (
	logNote      = "turnstone.log-"
	manifestNote = "turnstone."
)

func (n *noted) path(name string) string { return n.PathJoin(n.dir, name) }

// syncDir makes the names in the directory durable.
func (n *noted) syncDir() error { return n.names.Sync() }

func logNoteName(num uint64, size int64) string { return fmt.Sprintf("%s%06d-%d", logNote, num, size) }

// parseLogNote returns what the note called name says.
func parseLogNote(name string) (num uint64, size int64, ok bool) {
	rest, ok := strings.CutPrefix(name, logNote)
	a, b, found := strings.Cut(rest, "-")
	num, err1 := strconv.ParseUint(a, 10, 64)
	size, err2 := strconv.ParseInt(b, 10, 64)
	return num, size, ok && found && err1 == nil && err2 == nil
}

// logNumber returns the number of the log called name, as "000012.log".
func logNumber(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, ".log")
	if !ok {
		return 0, false
	}
	num, err := strconv.ParseUint(digits, 10, 64)
	return num, err == nil
}

// Create implements vfs.FS.
func (n *noted) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := n.fence.Create(name, c)
	if err != nil {
		return nil, err
	}
	base := n.PathBase(name)
	if num, ok := logNumber(base); ok {
		n.beginLog(f, num)
		if n.noSync {
			return unsynced{f}, nil
		}
	}
	if strings.HasPrefix(base, "MANIFEST-") {
		return &manifest{File: f, n: n, name: base}, nil
	}
	return f, nil
}

// beginLog gives a new log its least length, with a hole instead of blocks, and
// writes its note. A log that is shorter than that later was truncated. Pebble has
// unlocked a mutex here that it unlocks again when it panics, which no recover
// survives: an error must not reach it.
func (n *noted) beginLog(f vfs.File, num uint64) {
	_, err := f.WriteAt([]byte{0}, n.logBytes-1)
	if err == nil {
		err = errors.Join(f.Sync(), n.syncDir())
	}
	var note vfs.File
	if err == nil {
		note, err = n.fence.Create(n.path(logNoteName(num, n.logBytes)), vfs.WriteCategoryUnspecified)
	}
	if err == nil {
		err = note.Close() // Pebble syncs the directory before it uses the log
	}
	if err != nil {
		n.stop(err)
	}
	n.newestLog.Store(num)
}

// An unsynced is a log of an engine with NoSync: a batch counts as synced when it is
// written. The log is synced when the next one begins, because Pebble takes a torn
// end of any log but the last for damage.
type unsynced struct{ vfs.File }

func (unsynced) Sync() error { return nil }

func (unsynced) SyncData() error { return nil }

func (u unsynced) Close() error { return errors.Join(u.File.Sync(), u.File.Close()) }

// Remove implements vfs.FS. It removes the note of a file after the file, and an
// old marker only when the new one is durable, which Pebble leaves to chance.
func (n *noted) Remove(name string) error {
	base := n.PathBase(name)
	if strings.HasPrefix(base, "marker.") {
		if err := n.syncDir(); err != nil {
			return err
		}
	}
	if err := n.fence.Remove(name); err != nil {
		return err
	}
	if num, ok := logNumber(base); ok {
		return n.fence.Remove(n.path(logNoteName(num, n.logBytes)))
	}
	if strings.HasPrefix(base, "MANIFEST-") {
		return n.fence.Remove(n.path(manifestNote + base))
	}
	return nil
}

// Open implements vfs.FS. A missing table is damage here, because Pebble ends the
// process for one that the system reports as missing.
func (n *noted) Open(name string, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := n.fence.Open(name, o...)
	base := n.PathBase(name)
	table := strings.HasSuffix(base, ".sst")
	if table && errors.Is(err, os.ErrNotExist) {
		return nil, &damage{file: base, what: "the file is missing"}
	}
	if err != nil {
		return nil, err
	}
	if table {
		return newTable(f, base)
	}
	if end, ok := n.durable[base]; ok {
		return &prefix{File: f, left: end}, nil
	}
	return f, nil
}

// A prefix shows only the beginning of a file: what follows in a MANIFEST was
// never known to be durable, and nothing was done because of it.
type prefix struct {
	vfs.File
	left int64
}

func (p *prefix) Read(b []byte) (int, error) {
	if p.left == 0 {
		return 0, io.EOF
	}
	k, err := p.File.Read(b[:min(int64(len(b)), p.left)])
	p.left -= int64(k)
	return k, err
}

// A manifest is a MANIFEST that Pebble writes. Its note follows each sync.
type manifest struct {
	vfs.File
	n    *noted
	name string
	sum  uint32 // of what was written
	size int64
	note vfs.File
	seq  uint64
}

func (m *manifest) Write(p []byte) (int, error) {
	m.sum = crc32.Update(m.sum, castagnoli, p) // before Write, which may change p
	m.size += int64(len(p))
	return m.File.Write(p)
}

// Sync implements vfs.File. When it returns, the MANIFEST and its note are durable.
func (m *manifest) Sync() (err error) {
	if err := m.File.Sync(); err != nil {
		return err
	}
	first := m.note == nil
	if first {
		if m.note, err = m.n.fence.Create(m.n.path(manifestNote+m.name), vfs.WriteCategoryUnspecified); err != nil {
			return err
		}
	}
	m.seq++
	return writeNote(m.note, note{seq: m.seq, size: m.size, sum: m.sum}, first)
}

func (m *manifest) SyncData() error { return m.Sync() }

func (m *manifest) Close() error {
	var err error
	if m.note != nil {
		err = m.note.Close()
	}
	return errors.Join(err, m.File.Close())
}

// A note says how much of a MANIFEST is durable. Its file has two slots, which are
// written in turns, each in a sector of its own: the other one is intact when a
// loss of power tears the one that is being written.
//
//	seq 8 | size 8 | checksum of the MANIFEST 4 | checksum of this slot 4
type note struct {
	seq  uint64
	size int64
	sum  uint32
}

const (
	noteSlot  = 512
	noteBytes = 2 * noteSlot
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (n note) encode() []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, 24), n.seq)
	b = binary.LittleEndian.AppendUint64(b, uint64(n.size))
	b = binary.LittleEndian.AppendUint32(b, n.sum)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// writeNote writes n into its slot of f, or into a whole new file, and syncs f.
func writeNote(f vfs.File, n note, fresh bool) error {
	b, off := n.encode(), int64(n.seq%2)*noteSlot
	if fresh {
		whole := make([]byte, noteBytes)
		copy(whole[off:], b)
		b, off = whole, 0
	}
	if _, err := f.WriteAt(b, off); err != nil {
		return err
	}
	return f.Sync()
}

// parseNote returns the newest note in the file content b. A slot that is neither
// whole nor empty is damage: a sector is written whole or not at all.
func parseNote(file string, b []byte) (newest note, err error) {
	if len(b) != noteBytes {
		return note{}, &damage{file: file, what: fmt.Sprintf("it has %d bytes instead of %d", len(b), noteBytes)}
	}
	for slot := range 2 {
		s := b[slot*noteSlot:][:24]
		n := note{binary.LittleEndian.Uint64(s), int64(binary.LittleEndian.Uint64(s[8:])), binary.LittleEndian.Uint32(s[16:])}
		if n == (note{}) && binary.LittleEndian.Uint32(s[20:]) == 0 {
			continue
		}
		if binary.LittleEndian.Uint32(s[20:]) != crc32.Checksum(s[:20], castagnoli) || n.seq%2 != uint64(slot) {
			return note{}, &damage{file: file, what: fmt.Sprintf("the checksum of slot %d does not match", slot)}
		}
		if n.seq > newest.seq {
			newest = n
		}
	}
	if newest.seq == 0 {
		return note{}, &damage{file: file, what: "it is empty"}
	}
	return newest, nil
}
