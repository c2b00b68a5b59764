package badger

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/internal/localdir"
)

// A log holds the groups of one memtable, in order, until the memtable is flushed to a
// table. It is a file of a fixed size. Only a clean Close leaves a shorter file, which
// ends after its last frame. Any other shorter file was truncated.
//
//	header   magic, number, salt, size, checksum
//	frame    checksum, length and checksum of the body, kind, ts, durable; body
//	frame    …
//	rest     up to size: zeros, or frames of a log that had the file before
//
// A frame is one of
//
//	group    the writes of the group with timestamp ts
//	mark     only durable
//	next     the log ends here and goes on in the log whose number is in ts
//	closed   the log ends here: Close wrote this frame last
//
// The field durable of a frame has the timestamp up to which groups were synced when the
// frame was written. A mark follows each sync. Open uses them to distinguish a torn tail
// from damage. If a frame can't be read and a later frame says that it was synced, the
// log is damaged, and Open refuses it. Otherwise the frame was never synced, no caller was
// told that its writes are stored, and Open drops it.
//
// Checksums are CRC-32C (RFC 3720). They begin with the log's random salt, so that bytes
// that a user stores, and frames of a log that had the file before, never look like a frame.
//
// When a memtable was flushed, the next log takes the file of its log. A sync of bytes that
// replace others in their place needs no change of the file system's own data.
type log struct {
	f      file
	number uint64
	size   int64  // size of the file, unless short
	seed   uint32 // seed of checksums
	reused bool   // the file may have frames of a log before

	mu       sync.Mutex // guards the fields below; the committer appends groups, and syncLoop marks
	pos      int64      // offset of the next frame
	reserved int64      // offset up to which space is allocated
	short    bool       // Close has cut the file, and it does not have its full size again
}

const (
	// logExtra is how much larger a log is than its memtable. The memtable counts more
	// for a write than the write and its share of frames and marks take in the log.
	logExtra   = 64 << 10
	logMagic   = "turnstone log 1\n"
	logHeader  = 64
	maxLogSize = 1 << 30 // Open reads a whole log into memory
	logSuffix  = ".log"

	frameHeader = 32
	frameAlign  = 8

	// Space for the log is allocated in steps of reserveStep bytes. The last
	// reclaimReserve bytes of the log and of the memtable are for batches that reclaim,
	// so that these still succeed for a while when the disk is full. In a closed store,
	// closedReserve bytes of the log stay allocated.
	reserveStep    = 1 << 20
	firstReserve   = 256 << 10
	reclaimReserve = 128 << 10
	closedReserve  = 16 << 10
)

const (
	frameGroup = iota + 1
	frameMark
	frameNext
	frameClosed
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func logName(number uint64) string   { return fmt.Sprintf("%06d%s", number, logSuffix) }
func tableName(number uint64) string { return fmt.Sprintf("%06d%s", number, tableSuffix) }

// numbered returns the number in the name of a log or table.
func numbered(name, suffix string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	return n, err == nil && n > 0
}

// createLog creates an empty log and syncs its content. It takes the file of used, a log of the
// same size that nothing refers to any more, unless that is nil. The caller has to sync the
// directory or, after an error, to remove what is left of both.
func createLog(d files, number uint64, size int64, used *log) (_ *log, err error) {
	l := &log{number: number, size: size, pos: logHeader}
	if used != nil {
		l.f, l.reserved, l.reused = used.f, used.reserved, true
		err = d.rename(logName(used.number), logName(number))
	} else if l.f, err = d.create(logName(number)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.f.Close())
		}
	}()
	header := make([]byte, logHeader)
	copy(header, logMagic)
	binary.LittleEndian.PutUint64(header[16:], number)
	rand.Read(header[24:40])
	binary.LittleEndian.PutUint64(header[40:], uint64(size))
	binary.LittleEndian.PutUint32(header[logHeader-4:], crc32.Checksum(header[:logHeader-4], castagnoli))
	l.seed = logSeed(header)
	if err == nil {
		_, err = l.f.WriteAt(header, 0)
	}
	if err == nil && used == nil {
		err = l.f.Truncate(size)
	}
	if err == nil && l.reserved < firstReserve {
		l.reserved = firstReserve
		err = l.f.Reserve(0, firstReserve)
	}
	if err == nil {
		err = l.f.SyncData()
	}
	return l, err
}

// A usedLog keeps a log that was flushed until the next one takes its file.
type usedLog struct {
	mu     sync.Mutex
	log    *log // or nil
	refuse bool
}

// put keeps l, or returns false.
func (u *usedLog) put(l *log) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.refuse || u.log != nil {
		return false
	}
	u.log = l
	return true
}

// take returns the log that is kept, or nil, and lets go of it.
func (u *usedLog) take() *log {
	u.mu.Lock()
	defer u.mu.Unlock()
	l := u.log
	u.log = nil
	return l
}

// setRefuse says whether put refuses all logs.
func (u *usedLog) setRefuse(refuse bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.refuse = refuse
}

func logSeed(header []byte) uint32 { return crc32.Checksum(header[16:40], castagnoli) }

// reserve allocates space for a frame with a body of the given size and for a mark after
// it, and for kept bytes more.
func (l *log) reserve(bytes int, kept int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.short {
		if err := l.restore(); err != nil {
			return err
		}
	}
	need := l.pos + int64(bytes) + 2*frameHeader + frameAlign
	if need+kept <= l.reserved {
		return nil
	}
	to := min(l.size, need+reserveStep)
	if to <= l.reserved {
		return nil
	}
	err := l.f.Reserve(l.reserved, to-l.reserved)
	if err == nil {
		l.reserved = to
		return nil
	}
	if kept == 0 && localdir.Short(err) { // the space may be allocated already
		err = l.f.Reserve(l.pos, need-l.pos)
	}
	return err
}

// restore gives a log that a clean Close has cut its full size again. It is called before
// anything is written to the log.
func (l *log) restore() error {
	err := l.f.Truncate(l.size)
	if err == nil {
		err = lost(l.f.SyncData())
	}
	l.short = err != nil
	return err
}

// append writes a frame. buf has frameHeader bytes, which append fills, and then the body.
// After an error the next frame overwrites this one, and the frame is never read, unless
// the error matches engine.ErrUnknown.
func (l *log) append(kind byte, ts, durable uint64, buf []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	body := buf[frameHeader:]
	clear(buf[:frameHeader])
	binary.LittleEndian.PutUint32(buf[4:], uint32(len(body)))
	binary.LittleEndian.PutUint32(buf[8:], crc32.Update(l.seed, castagnoli, body))
	buf[12] = kind
	binary.LittleEndian.PutUint64(buf[16:], ts)
	binary.LittleEndian.PutUint64(buf[24:], durable)
	binary.LittleEndian.PutUint32(buf, crc32.Update(l.seed, castagnoli, buf[4:frameHeader]))
	for len(buf)%frameAlign != 0 {
		buf = append(buf, 0)
	}
	if l.pos+int64(len(buf)) > l.size {
		return errors.New("log is full")
	}
	if n, err := l.f.WriteAt(buf, l.pos); err != nil {
		// If the bytes that were not written are zeros, the frame is valid. Overwrite its
		// header.
		if _, zerr := l.f.WriteAt(make([]byte, min(n, frameHeader)), l.pos); zerr != nil {
			err = fmt.Errorf("%w: %v: %v", engine.ErrUnknown, err, zerr)
		}
		return err
	}
	l.pos += int64(len(buf))
	return nil
}

// mark writes a mark that groups up to the timestamp durable are durable.
func (l *log) mark(durable uint64) error {
	return l.append(frameMark, durable, durable, make([]byte, frameHeader, frameHeader+frameAlign))
}

// close writes a closed frame, syncs it, and then cuts the log after it. So a log that
// Close has cut ends with a closed frame, whenever the power fails. The groups of the log
// must be durable already.
func (l *log) close(ts uint64) error {
	err := l.append(frameClosed, ts, ts, make([]byte, frameHeader))
	if err == nil {
		err = lost(l.f.SyncData())
	}
	if err == nil {
		err = l.f.Truncate(l.pos)
	}
	if err == nil { // for batches that reclaim, if the disk is full at the next Open
		err = l.f.Reserve(l.pos, closedReserve)
	}
	return err
}

// A frame is a frame of a log as it was read.
type frame struct {
	kind        byte
	ts, durable uint64
	body        []byte
	size        int64 // including header and padding
}

// hasHeader reports whether data begins with the header of a frame.
func hasHeader(data []byte, seed uint32) bool {
	return len(data) >= frameHeader && crc32.Update(seed, castagnoli, data[4:frameHeader]) == binary.LittleEndian.Uint32(data)
}

// frameAt reads the frame at the beginning of data. It returns false if there is none.
func frameAt(data []byte, seed uint32) (f frame, ok bool) {
	if !hasHeader(data, seed) {
		return f, false
	}
	f = frame{kind: data[12], ts: binary.LittleEndian.Uint64(data[16:]), durable: binary.LittleEndian.Uint64(data[24:])}
	n := int64(binary.LittleEndian.Uint32(data[4:]))
	f.size = (frameHeader + n + frameAlign - 1) / frameAlign * frameAlign
	if f.kind < frameGroup || f.kind > frameClosed || f.size > int64(len(data)) {
		return f, false
	}
	f.body = data[frameHeader : frameHeader+n]
	return f, crc32.Update(seed, castagnoli, f.body) == binary.LittleEndian.Uint32(data[8:])
}

// hasGroups reports whether the log with a number holds any group. A log that is too
// short or has no header was not complete. A frame of a log that had the file before
// doesn't count; firstLog has a new file.
func hasGroups(d files, number uint64) (bool, error) {
	f, err := d.open(logName(number))
	if err != nil {
		return false, err
	}
	defer f.Close()
	header := make([]byte, logHeader+frameHeader)
	if _, err := f.ReadAt(header, 0); errors.Is(err, io.EOF) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	frame := header[logHeader:]
	if string(header[:16]) != logMagic || binary.LittleEndian.Uint64(header[16:]) != number || frame[12] != frameGroup {
		return false, nil
	}
	return number == firstLog || hasHeader(frame, logSeed(header)), nil
}

// A logContent is a log that was read.
type logContent struct {
	*log
	data   []byte // the part that can be read
	groups []frame
	next   uint64 // number of the next log, or 0
	closed bool   // a clean Close wrote the last frame
	torn   int64  // length of the torn tail after data, up to its last header; it was never synced
}

// readLog reads the log with a number. Its first group must follow the group with the
// timestamp after. If the log is damaged, the error matches engine.ErrCorrupt.
func readLog(d files, number, after uint64) (*logContent, error) {
	name := logName(number)
	f, err := d.open(name)
	if err != nil {
		return nil, err
	}
	c, err := readFrames(f, number, after)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("log %s: %w", name, err)
	}
	return c, nil
}

// readFrames reads frames up to one that can't be read, or one that ends the log. What follows
// is the torn tail, as far as it has frames of this log. If a frame there says that a group was
// durable that was not read, the log is damaged.
func readFrames(f file, number, after uint64) (*logContent, error) {
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > maxLogSize {
		return nil, fmt.Errorf("%w: %d bytes long, more than %d", engine.ErrCorrupt, size, maxLogSize)
	}
	data := make([]byte, size)
	if _, err := f.ReadAt(data, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if size < logHeader || crc32.Checksum(data[:logHeader-4], castagnoli) != binary.LittleEndian.Uint32(data[logHeader-4:logHeader]) {
		return nil, fmt.Errorf("%w: its header can't be read", engine.ErrCorrupt)
	}
	if err := checkMagic(data, logMagic); err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint64(data[16:]) != number {
		return nil, fmt.Errorf("%w: its header has the number of another log", engine.ErrCorrupt)
	}
	full := int64(binary.LittleEndian.Uint64(data[40:]))
	c := &logContent{log: &log{f: f, number: number, size: full, seed: logSeed(data)}}
	pos, last := int64(logHeader), after
	for c.next == 0 && !c.closed {
		fr, ok := frameAt(data[pos:], c.seed)
		if !ok {
			break
		}
		pos += fr.size
		switch fr.kind {
		case frameGroup:
			if fr.ts != last+1 {
				return nil, fmt.Errorf("%w: group %d follows group %d", engine.ErrCorrupt, fr.ts, last)
			}
			last = fr.ts
			c.groups = append(c.groups, fr)
		case frameNext:
			c.next = fr.ts
		case frameClosed:
			c.closed = true
		}
	}
	rest := data[pos:]
	c.reused = len(bytes.TrimRight(rest, "\x00")) > 0
	// Nothing is written behind a frame that leads to the next log. Otherwise the frame at pos
	// can't be read. Look for a later frame that says that it was durable.
	for at := 0; at < len(rest) && c.next == 0; at += frameAlign {
		if !hasHeader(rest[at:], c.seed) {
			continue
		}
		if fr, ok := frameAt(rest[at:], c.seed); ok && fr.durable > last && at > 0 {
			return nil, fmt.Errorf("%w at byte %d: group %d can't be read, and was durable", engine.ErrCorrupt, pos, last+1)
		}
		c.torn = int64(at + frameHeader)
	}
	if size != full && !(c.closed && pos == size) {
		return nil, fmt.Errorf("%w: %d bytes long, not %d", engine.ErrCorrupt, size, full)
	}
	c.data, c.pos, c.reserved, c.short = data[:pos], pos, pos, size != full
	if c.closed {
		c.pos -= frameHeader // the next frame overwrites the closed frame
	}
	return c, nil
}

// renew writes the content of the log once more and syncs it. If a sync failed before the
// last process ended, pages may differ from the disk although the kernel takes them for
// clean: reads see them, but the kernel never writes them again.
func (c *logContent) renew() error {
	// Overwrite the torn tail with zeros. Truncating the file and restoring its size would
	// leave a log that looks damaged if the process ended in between.
	if _, err := c.f.WriteAt(make([]byte, c.torn), int64(len(c.data))); err != nil {
		return err
	}
	if _, err := c.f.WriteAt(c.data, 0); err != nil {
		return err
	}
	return lost(c.f.SyncData())
}

// An operation is one write of a group.
type operation struct {
	key, value []byte // an empty value deletes the key
}

// appendSet and appendDelete add a write to the body of a group.
func appendSet(buf, key, value []byte) []byte {
	buf = append(binary.AppendUvarint(buf, uint64(len(key))<<1), key...)
	return append(binary.AppendUvarint(buf, uint64(len(value))), value...)
}

func appendDelete(buf, key []byte) []byte {
	return append(binary.AppendUvarint(buf, uint64(len(key))<<1|1), key...)
}

// operations calls f for each write of a group. Keys and values are slices of body.
func operations(body []byte, f func(operation)) error {
	bad := fmt.Errorf("%w: a group can't be decoded", engine.ErrCorrupt)
	piece := func(n uint64) ([]byte, bool) {
		if n > uint64(len(body)) {
			return nil, false
		}
		p := body[:n]
		body = body[n:]
		return p, true
	}
	for len(body) > 0 {
		n, size := binary.Uvarint(body)
		if size <= 0 {
			return bad
		}
		body = body[size:]
		var op operation
		var ok bool
		if op.key, ok = piece(n >> 1); !ok {
			return bad
		}
		if n&1 == 0 {
			if n, size = binary.Uvarint(body); size <= 0 || n == 0 {
				return bad
			}
			body = body[size:]
			if op.value, ok = piece(n); !ok {
				return bad
			}
		}
		f(op)
	}
	return nil
}
