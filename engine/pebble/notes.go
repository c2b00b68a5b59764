package pebble

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Pebble takes a log or a MANIFEST for ended where it becomes unreadable, an absent log for one
// that never was, and a directory without a marker for an empty one. So the driver writes down
// what must be there, in the file turnstone.notes:
//
//	offset 0, 512   two slots for a statement, written in turns; the newer one counts
//	offset 4096     one slot for the witness
//
// A slot is shorter than a sector of a disk, which is written whole or not at all.
const (
	notesName     = "turnstone.notes"
	slotBytes     = 512
	witnessOffset = 4096
	notesBytes    = witnessOffset + slotBytes
	notesMagic    = "tsn1"
)

// A statement says what is durable. It is durable itself before Pebble relies on what it says.
type statement struct {
	seq      uint64
	manifest extent  // of the MANIFEST that was synced last
	before   extent  // of the MANIFEST before, which counts until the marker for the new one is durable
	format   uint64  // of the whole store, as Pebble counts, or 0 before its first Open has ended
	logBytes int64   // least length of a log
	logs     []begun // logs that were not removed when the statement was made, in order
}

// An extent is how much of a MANIFEST is durable.
type extent struct {
	num  uint64 // of the MANIFEST
	size int64
	sum  uint32 // CRC-32C
}

// A begun is a log, and the epoch of the Open that has begun it: 8 random bytes, which the log's batches have, too.
// Another store, and another Open of this one, can have given the same number to a log.
type begun struct{ num, epoch uint64 }

// maxLogs bounds the logs that a statement can name. Pebble has one for each memtable.
const maxLogs = 24

// A witness says how far the newest log was written. The driver writes it after each sync of the log and before it
// acknowledges the batches. The witness is not synced itself: it survives the end of the process. After a loss of
// power the disk may hold an older witness, whose claim still holds.
type witness struct {
	log    begun
	size   int64
	sum    uint32 // CRC-32C of so many bytes
	synced bool   // the bytes are durable; otherwise they are as long as the machine runs
	boot   uint64 // identifies the run of the machine that wrote the witness, or 0
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal pads a slot and ends it with a checksum.
func seal(b []byte) []byte {
	b = append(b, make([]byte, slotBytes-4-len(b))...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// sealed reports whether a slot is whole.
func sealed(slot []byte) bool {
	body := slot[:slotBytes-4]
	return string(body[:4]) == notesMagic && binary.LittleEndian.Uint32(slot[slotBytes-4:]) == crc32.Checksum(body, castagnoli)
}

func (s *statement) encode() []byte {
	b := append(make([]byte, 0, slotBytes), notesMagic...)
	for _, m := range []extent{s.manifest, s.before} {
		b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, m.num), uint64(m.size))
		b = binary.LittleEndian.AppendUint64(b, uint64(m.sum))
	}
	for _, v := range []uint64{s.seq, s.format, uint64(s.logBytes), uint64(len(s.logs))} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	for _, l := range s.logs {
		b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, l.num), l.epoch)
	}
	return seal(b)
}

// parseStatement returns the statement in a slot, nil if the slot is empty, and false if it is damaged.
func parseStatement(slot []byte) (*statement, bool) {
	if zero(slot) {
		return nil, true
	}
	if !sealed(slot) {
		return nil, false
	}
	u := func(i int) uint64 { return binary.LittleEndian.Uint64(slot[len(notesMagic)+8*i:]) }
	s := &statement{
		manifest: extent{u(0), int64(u(1)), uint32(u(2))}, before: extent{u(3), int64(u(4)), uint32(u(5))},
		seq: u(6), format: u(7), logBytes: int64(u(8)),
	}
	if s.seq == 0 || u(9) > maxLogs {
		return nil, false
	}
	for i := range int(u(9)) {
		s.logs = append(s.logs, begun{u(10 + 2*i), u(11 + 2*i)})
	}
	return s, true
}

func (w *witness) encode() []byte {
	b := append(make([]byte, 0, slotBytes), notesMagic...)
	b = binary.LittleEndian.AppendUint64(b, w.log.num)
	b = binary.LittleEndian.AppendUint64(b, w.log.epoch)
	b = binary.LittleEndian.AppendUint64(b, uint64(w.size))
	b = binary.LittleEndian.AppendUint64(b, w.boot)
	b = binary.LittleEndian.AppendUint64(b, uint64(w.sum))
	if w.synced {
		b = append(b, 1)
	}
	return seal(b)
}

// parseWitness returns the witness in a slot. One that can't be read says nothing: a loss of
// power can leave it half written.
func parseWitness(slot []byte) (w witness) {
	if sealed(slot) {
		u := func(i int) uint64 { return binary.LittleEndian.Uint64(slot[4+8*i:]) }
		w = witness{log: begun{u(0), u(1)}, size: int64(u(2)), boot: u(3), sum: uint32(u(4)), synced: slot[4+40] == 1}
	}
	return w
}

// past are the notes that an earlier process left.
type past struct {
	said    *statement // the newest one, or nil
	witness witness
}

// readNotes returns the notes in the directory, or nil if there are none.
func (n *noted) readNotes() (*past, error) {
	b, err := n.readAll(notesName)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(b) != notesBytes {
		if len(b) < notesBytes && zero(b) {
			return nil, nil // a creation was interrupted
		}
		return nil, &damage{file: notesName, what: fmt.Sprintf("it has %d bytes instead of %d", len(b), notesBytes)}
	}
	p := &past{witness: parseWitness(b[witnessOffset:])}
	for slot := range 2 {
		s, ok := parseStatement(b[slot*slotBytes:][:slotBytes])
		if !ok || s != nil && s.seq%2 != uint64(slot) {
			return nil, &damage{file: notesName, what: fmt.Sprintf("slot %d is damaged", slot)}
		}
		if s != nil && (p.said == nil || s.seq > p.said.seq) {
			p.said = s
		}
	}
	return p, nil
}

// whole reports whether the store was opened once.
func (p *past) whole() bool { return p != nil && p.said != nil && p.said.format != 0 }

// about returns what is known of a MANIFEST, and whether that is anything.
func (p *past) about(manifest string) (extent, bool) {
	if p.said != nil {
		for _, m := range []extent{p.said.manifest, p.said.before} {
			if m.num != 0 && manifestName(m.num) == manifest {
				return m, true
			}
		}
	}
	return extent{}, false
}

func manifestName(num uint64) string { return fmt.Sprintf("MANIFEST-%06d", num) }
func logName(num uint64) string      { return fmt.Sprintf("%06d.log", num) }

// numbered returns the number in a name that begins and ends so.
func numbered(name, prefix, suffix string) (uint64, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	digits, ok2 := strings.CutSuffix(digits, suffix)
	num, err := strconv.ParseUint(digits, 10, 64)
	return num, ok && ok2 && err == nil
}

// logNumber returns the number of the log called name, for example "000012.log".
func logNumber(name string) (uint64, bool) { return numbered(name, "", ".log") }

// noted is the file system that Pebble sees. It keeps the notes, checks blocks of tables, uses
// the files of old logs again, and keeps Pebble's OPTIONS from the disk.
type noted struct {
	*fence
	dir      string
	names    vfs.File // the directory
	logBytes int64
	noSync   bool
	boot     uint64           // of this run of the machine, or 0
	epoch    uint64           // of this Open
	prefixes map[string]int64 // set by Open, then constant: length of the MANIFEST that counts
	newest   atomic.Uint64    // number of the log that was begun last

	mu    sync.Mutex // guards the fields below; held while a statement is synced
	notes vfs.File   // nil before begin
	said  statement  // the newest one
	spare bool       // there is a spare log
	anew  bool       // logs are made anew, because old files hold removed pairs: a vacuum runs
}

// spareName is the file of a removed log. It becomes the next log, because a sync of overwritten bytes needs no
// change of the file system's metadata. What the file had before is never read, because each chunk of a log has the
// number of its log.
const spareName = "turnstone.spare"

func (n *noted) path(name string) string { return n.PathJoin(n.dir, name) }

// syncDir makes the names in the directory durable.
func (n *noted) syncDir() error { return n.names.Sync() }

func (n *noted) readAll(name string) ([]byte, error) {
	f, err := n.fence.Open(n.path(name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// begin opens the notes for writing, and makes them if there are none. It removes the spare.
func (n *noted) begin(in *inspection) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if in.spare {
		if err := n.fence.Remove(n.path(spareName)); err != nil {
			return err
		}
	}
	var err error
	if in.past != nil {
		if in.past.said != nil {
			n.said = *in.past.said
			n.said.manifest = in.manifest // an earlier process may have begun another one, which never counted
			n.said.logs = slices.DeleteFunc(slices.Clone(n.said.logs), func(l begun) bool { return !slices.Contains(in.logs, l.num) })
		}
		n.notes, err = n.fence.OpenReadWrite(n.path(notesName), vfs.WriteCategoryUnspecified)
		return err
	}
	if n.notes, err = n.fence.Create(n.path(notesName), vfs.WriteCategoryUnspecified); err != nil {
		return err
	}
	if _, err = n.notes.WriteAt(make([]byte, notesBytes), 0); err != nil {
		return err
	}
	return errors.Join(n.notes.Sync(), n.syncDir())
}

// state changes the statement and makes it durable.
func (n *noted) state(change func(*statement)) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.said.seq++
	change(&n.said)
	n.said.logBytes = n.logBytes
	if _, err := n.notes.WriteAt(n.said.encode(), int64(n.said.seq%2)*slotBytes); err != nil {
		return err
	}
	return n.notes.SyncData()
}

// complete states that the store is whole and has a format.
func (n *noted) complete(format uint64) error {
	n.mu.Lock()
	same := n.said.format == format
	n.mu.Unlock()
	if n.notes == nil || same {
		return nil
	}
	return n.state(func(s *statement) { s.format = format })
}

// end closes the notes. If the logs have nothing that is not in tables, they are removed: a closed
// store then takes no space for them, and has nothing to replay.
func (n *noted) end(flushed bool) error {
	n.mu.Lock()
	logs, notes := slices.Clone(n.said.logs), n.notes
	n.mu.Unlock()
	if notes == nil {
		return nil
	}
	if err := n.freshLogs(true); err != nil {
		return err
	}
	if flushed {
		if err := n.state(func(s *statement) { s.logs = nil }); err != nil {
			return err
		}
		for _, l := range logs {
			if err := n.fence.Remove(n.path(logName(l.num))); err != nil {
				return err
			}
		}
	}
	return notes.Close()
}

// Create implements vfs.FS. It notes logs and the MANIFEST, and discards Pebble's options: see isOptions.
func (n *noted) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	base := n.PathBase(name)
	if isOptions(base) {
		return discarded{}, nil
	}
	if num, ok := logNumber(base); ok {
		return n.createLog(name, num, c)
	}
	f, err := n.fence.Create(name, c)
	if err != nil {
		return nil, err
	}
	if num, ok := numbered(base, "MANIFEST-", ""); ok {
		return &manifest{File: f, n: n, num: num}, nil
	}
	return f, nil
}

// createLog gives a new log its least length, with a hole instead of blocks, or takes the file
// of an old one. A log that is shorter than that later was truncated. Pebble has unlocked a
// mutex here that it unlocks again when it panics, which no recover survives: an error must not
// reach it.
func (n *noted) createLog(name string, num uint64, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := n.logFile(name, c)
	if err == nil {
		err = n.syncDir()
	}
	log := begun{num, n.epoch}
	if err == nil {
		err = n.state(func(s *statement) {
			if s.logs = append(s.logs, log); len(s.logs) > maxLogs {
				s.logs = s.logs[1:]
			}
		})
	}
	if err != nil {
		n.stop(err)
	}
	n.newest.Store(num)
	return &wal{File: f, n: n, log: log}, nil
}

func (n *noted) logFile(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	n.mu.Lock()
	reuse := n.spare && !n.anew
	n.spare = n.spare && !reuse
	n.mu.Unlock()
	var f vfs.File
	var err error
	if reuse {
		f, err = n.fence.ReuseForWrite(n.path(spareName), name, c)
	} else {
		f, err = n.fence.Create(name, c)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil || info.Size() >= n.logBytes {
		return f, err
	}
	if _, err = f.WriteAt([]byte{0}, n.logBytes-1); err != nil {
		return nil, err
	}
	return f, f.Sync()
}

// Remove implements vfs.FS. It keeps the file of one removed log as the spare, and removes an old
// marker only when the new one is durable, which Pebble leaves to chance.
func (n *noted) Remove(name string) error {
	base := n.PathBase(name)
	if isOptions(base) {
		return nil
	}
	if strings.HasPrefix(base, "marker.") {
		if err := n.syncDir(); err != nil {
			return err
		}
	}
	num, isLog := logNumber(base)
	if !isLog {
		return n.fence.Remove(name)
	}
	n.mu.Lock()
	keep := !n.spare && !n.anew && !n.opening.Load()
	n.mu.Unlock()
	var err error
	if keep {
		err = n.fence.Rename(name, n.path(spareName))
	} else {
		err = n.fence.Remove(name)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.spare = n.spare || keep
	n.said.logs = slices.DeleteFunc(n.said.logs, func(l begun) bool { return l.num == num })
	return err
}

// freshLogs makes logs anew from now on, or uses old files again. The spare is removed.
func (n *noted) freshLogs(fresh bool) error {
	n.mu.Lock()
	n.anew = fresh
	remove := n.spare
	n.spare = false
	n.mu.Unlock()
	if !remove {
		return nil
	}
	return n.fence.Remove(n.path(spareName))
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
	if end, ok := n.prefixes[base]; ok {
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

// A wal is a log that Pebble writes. The witness follows each sync. Without syncs (Durability
// Process) a batch counts as synced when it is written, and the log is synced when the next one
// begins, because Pebble takes a torn end of any log but the last for damage.
type wal struct {
	vfs.File
	n    *noted
	log  begun
	size int64
	sum  uint32
}

func (w *wal) Write(p []byte) (int, error) {
	sum := crc32.Update(w.sum, castagnoli, p) // before Write, which may change p
	k, err := w.File.Write(p)
	w.size, w.sum = w.size+int64(k), sum
	return k, err
}

func (w *wal) Sync() error { return w.SyncData() }

func (w *wal) SyncData() error {
	if !w.n.noSync {
		if err := w.File.SyncData(); err != nil {
			return err
		}
	}
	said := witness{log: w.log, size: w.size, sum: w.sum, synced: !w.n.noSync, boot: w.n.boot}
	_, err := w.n.notes.WriteAt(said.encode(), witnessOffset)
	return err
}

func (w *wal) Close() error {
	var err error
	if w.n.noSync {
		err = w.File.Sync()
	}
	return errors.Join(err, w.File.Close())
}

// A manifest is a MANIFEST that Pebble writes. A statement follows each sync.
type manifest struct {
	vfs.File
	n    *noted
	num  uint64
	sum  uint32 // of what was written
	size int64
}

func (m *manifest) Write(p []byte) (int, error) {
	m.sum = crc32.Update(m.sum, castagnoli, p) // before Write, which may change p
	m.size += int64(len(p))
	return m.File.Write(p)
}

// Sync implements vfs.File. When it returns, the MANIFEST and the statement are durable.
func (m *manifest) Sync() error {
	if err := m.File.Sync(); err != nil {
		return err
	}
	return m.n.state(func(s *statement) {
		if s.manifest.num != m.num {
			s.before = s.manifest
		}
		s.manifest = extent{m.num, m.size, m.sum}
	})
}

func (m *manifest) SyncData() error { return m.Sync() }

// Pebble writes its options into a file when it opens a store, and refuses to open a store whose
// options it can't read. The driver sets all options itself, so it keeps that file from the disk:
// what is not there can't be damaged, and three syncs of each Open are saved.
func isOptions(base string) bool {
	return strings.HasPrefix(base, "OPTIONS-") || strings.HasSuffix(base, ".dbtmp")
}

// Rename implements vfs.FS.
func (n *noted) Rename(old, name string) error {
	if isOptions(n.PathBase(old)) {
		return nil
	}
	return n.fence.Rename(old, name)
}

// List implements vfs.FS.
func (n *noted) List(dir string) ([]string, error) {
	names, err := n.fence.List(dir)
	return slices.DeleteFunc(names, isOptions), err
}

// discarded is a file that keeps nothing.
type discarded struct{ vfs.File }

func (discarded) Write(p []byte) (int, error) { return len(p), nil }
func (discarded) Sync() error                 { return nil }
func (discarded) Close() error                { return nil }

func zero(b []byte) bool { return len(bytes.TrimLeft(b, "\x00")) == 0 }

// hasLogBefore reports whether a log with a number below num was not removed yet.
func (n *noted) hasLogBefore(num uint64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.said.logs) > 0 && n.said.logs[0].num < num
}
