package badger

import (
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

// A log holds the groups of one memtable, in order, until the memtable is a
// table. It is a file of a fixed size: a shorter one was truncated, unless a
// clean Close cut it behind its last frame.
//
//	header   magic, number, salt, size, checksum
//	frame    checksum, length and checksum of the body, kind, ts, durable; body
//	frame    …
//	zeros    up to size
//
// A frame is one of
//
//	group    the writes of the group with timestamp ts
//	mark     nothing but durable
//	next     the log ends here and goes on in the one whose number is in ts
//	closed   the log ends here: Close was the last to write to it
//
// Every frame says in durable up to which timestamp groups had been synced when
// it was written, and a mark follows each sync. That tells a torn tail from
// damage. A frame that can't be read was never synced if no later frame says
// that it was, and so nobody was told that it is stored; otherwise it is damaged,
// and the log is refused.
//
// Checksums are CRC-32C (RFC 3720) and begin with the log's random salt, so that
// bytes that a user stores are never taken for a frame.
type log struct {
	f      file
	number uint64
	size   int64  // of the file, unless short
	seed   uint32 // of checksums

	mu       sync.Mutex // guards the rest; the committer appends groups, syncLoop marks
	pos      int64      // where the next frame goes
	reserved int64      // up to where space is allocated
	short    bool       // the file has not got its full size (back) yet
}

const (
	// A log is so much larger than its memtable, which counts more for every
	// write than the log takes for it, with its part of frames and marks.
	logExtra   = 64 << 10
	logMagic   = "turnstone log 1\n"
	logHeader  = 64
	maxLogSize = 1 << 30 // that Open reads into memory
	logSuffix  = ".log"

	frameHeader = 32
	frameAlign  = 8

	// The log's space is allocated in steps of reserveStep. The last
	// reclaimReserve of it, and of a memtable, are for batches that reclaim, which
	// so go on for a while on a disk that has no room at all.
	reserveStep    = 1 << 20
	firstReserve   = 256 << 10
	reclaimReserve = 128 << 10
	closedReserve  = 16 << 10 // of it, in a store that nobody has open
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

// numbered returns the number of a log or table by its name.
func numbered(name, suffix string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	return n, err == nil && n > 0
}

// createLog makes an empty log and syncs its content; its name is the caller's to
// sync.
func createLog(d files, number uint64, size int64) (*log, error) {
	f, err := d.create(logName(number))
	if err != nil {
		return nil, err
	}
	header := make([]byte, logHeader)
	copy(header, logMagic)
	binary.LittleEndian.PutUint64(header[16:], number)
	rand.Read(header[24:40])
	binary.LittleEndian.PutUint64(header[40:], uint64(size))
	binary.LittleEndian.PutUint32(header[logHeader-4:], crc32.Checksum(header[:logHeader-4], castagnoli))
	l := &log{f: f, number: number, size: size, seed: logSeed(header), pos: logHeader}
	_, err = f.WriteAt(header, 0)
	if err == nil {
		err = f.Truncate(size)
	}
	if err == nil {
		l.reserved = firstReserve
		err = f.Reserve(0, firstReserve)
	}
	if err == nil {
		err = f.SyncData()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), d.remove(logName(number)))
	}
	return l, nil
}

func logSeed(header []byte) uint32 { return crc32.Checksum(header[16:40], castagnoli) }

// reserve makes sure that a frame with so many bytes of body, and a mark behind it,
// can be written without running out of space, and that so much is kept beside.
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
	if kept == 0 && localdir.Short(err) { // what was allocated before needs no room
		err = l.f.Reserve(l.pos, need-l.pos)
	}
	return err
}

// restore gives a log that a clean Close has cut its full size again, before
// anything is written to it.
func (l *log) restore() error {
	err := l.f.Truncate(l.size)
	if err == nil {
		err = lost(l.f.SyncData())
	}
	l.short = err != nil
	return err
}

// frameRoom is what begins the buffer of a frame's body, for append to fill.
const frameRoom = frameHeader

// append writes a frame. The buffer begins with frameRoom bytes; the body is what
// follows. After an error the next frame takes the place of this one, which is
// never read, unless the error matches engine.ErrUnknown.
func (l *log) append(kind byte, ts, durable uint64, buf []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	body := buf[frameRoom:]
	clear(buf[:frameRoom])
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
		// If what is missing is zeros, the frame is whole all the same.
		if _, zerr := l.f.WriteAt(make([]byte, min(n, frameHeader)), l.pos); zerr != nil {
			err = fmt.Errorf("%w: %v: %v", engine.ErrUnknown, err, zerr)
		}
		return err
	}
	l.pos += int64(len(buf))
	return nil
}

// mark records that groups up to a timestamp are durable.
func (l *log) mark(durable uint64) error {
	return l.append(frameMark, durable, durable, make([]byte, frameRoom, frameRoom+frameAlign))
}

// close writes a closed frame and syncs it, and then cuts the log behind it: a log
// that is shorter than it was made has a closed frame at its end, whenever the
// power goes. The groups in it are durable already.
func (l *log) close(ts uint64) error {
	err := l.append(frameClosed, ts, ts, make([]byte, frameRoom))
	if err == nil {
		err = lost(l.f.SyncData())
	}
	if err == nil {
		err = l.f.Truncate(l.pos)
	}
	if err == nil { // for who reclaims, should there be no room at the next Open
		err = l.f.Reserve(l.pos, closedReserve)
	}
	return err
}

// A frame as it was read.
type frame struct {
	kind        byte
	ts, durable uint64
	body        []byte
	size        int64 // with header and padding
}

// frameAt reads the frame that begins data, if there is one.
func frameAt(data []byte, seed uint32) (f frame, ok bool) {
	if len(data) < frameHeader || crc32.Update(seed, castagnoli, data[4:frameHeader]) != binary.LittleEndian.Uint32(data) {
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

// hasGroups reports whether the log of a number holds anything. One that is too
// short for that, or has no header, was being made.
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
	return binary.LittleEndian.Uint64(header[16:]) == number && string(header[:16]) == logMagic && header[logHeader+12] == frameGroup, nil
}

// A logContent is what a log was found to hold.
type logContent struct {
	*log
	data   []byte // up to where it can be read
	groups []frame
	next   uint64 // number of the log in which it goes on
	closed bool   // a clean Close was the last to write to it
	torn   int64  // length of what is behind its end and was never synced
}

// readLog reads the log of a number, which begins behind the group of a timestamp.
// An error matches engine.ErrCorrupt when the log is damaged.
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
	for c.torn = int64(len(rest)); c.torn > 0 && rest[c.torn-1] == 0; {
		c.torn--
	}
	if c.torn > 0 && c.next == 0 {
		// The frame at pos can't be read. Was it durable?
		for at := frameAlign; at < len(rest); at += frameAlign {
			if fr, ok := frameAt(rest[at:], c.seed); ok && fr.durable > last {
				return nil, fmt.Errorf("%w at byte %d: group %d can't be read, and was durable", engine.ErrCorrupt, pos, last+1)
			}
		}
	}
	if size != full && !(c.closed && pos == size) {
		return nil, fmt.Errorf("%w: %d bytes long, not %d", engine.ErrCorrupt, size, full)
	}
	c.data, c.pos, c.reserved, c.short = data[:pos], pos, pos, size != full
	if c.closed {
		c.pos -= frameHeader // the next frame takes the place of this one
	}
	return c, nil
}

// renew writes what the log holds once more and syncs it. A sync that failed
// before the last process ended has left pages that reading shows and that are
// not on the disk; the kernel calls them clean and never writes them again.
func (c *logContent) renew() error {
	// What was never synced becomes zeros. Cutting it off and restoring the size
	// would leave a log that looks damaged if the process ended in between.
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
	key, value []byte // no value: key is deleted
}

// appendSet and appendDelete add a write to the body of a group.
func appendSet(buf, key, value []byte) []byte {
	buf = append(binary.AppendUvarint(buf, uint64(len(key))<<1), key...)
	return append(binary.AppendUvarint(buf, uint64(len(value))), value...)
}

func appendDelete(buf, key []byte) []byte {
	return append(binary.AppendUvarint(buf, uint64(len(key))<<1|1), key...)
}

// operations calls f for each write of a group, with slices of its body.
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
