package pebble

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/cockroachdb/pebble/v2/batchrepr"
)

// Pebble replays a log up to the first chunk that it can't read, and takes that place for the end that a crash tore. A
// flipped bit before acknowledged batches would lose them without an error. So each batch begins with a promise, a
// record that exists only in the log:
//
//	kind 1 | length 1 | epoch 8 | start 8 | durable 8
//
// The epoch is that of the log: one whose batches have another epoch was put there from elsewhere.
// Batches have numbers (Pebble's sequence numbers). All below durable were synced
// when the batch was written. Those from start on are in the same log. If a log becomes unreadable before batch n, and
// a promise behind that place says that n was durable, the log is damaged. If no promise and no witness says so, the
// log has a torn end. Pebble has a check of its own: it writes into each chunk how far the log was synced. That check
// is too weak here, because Pebble counts only the newest block of each sync, and because it looks only at blocks after
// the unreadable one.
type promise struct{ epoch, start, durable uint64 }

const (
	promiseBytes = 24
	promiseAt    = batchrepr.HeaderLen + 2 // its place in a batch
	batchHead    = promiseAt + promiseBytes
	kindLogData  = 3 // of a record in a batch

	logBlock  = 32 << 10
	leastHead = 7  // of a chunk of an old kind: a block ends where not even that fits
	shortHead = 11 // of a chunk: checksum 4, length 2, kind 1, log 4
	longHead  = 19 // and how far the log was synced 8
)

func (p promise) put(b []byte) {
	binary.LittleEndian.PutUint64(b, p.epoch)
	binary.LittleEndian.PutUint64(b[8:], p.start)
	binary.LittleEndian.PutUint64(b[16:], p.durable)
}

// promiseIn returns the promise that a batch begins with.
func promiseIn(batch []byte) (p promise, ok bool) {
	if len(batch) < batchHead || batch[promiseAt-2] != kindLogData || batch[promiseAt-1] != promiseBytes {
		return p, false
	}
	u := func(i int) uint64 { return binary.LittleEndian.Uint64(batch[promiseAt+8*i:]) }
	return promise{u(0), u(1), u(2)}, true
}

// Kinds of chunks, as in Pebble's package record: the first of four for a chunk that is whole, or the first, a middle
// or the last one of a batch.
const (
	recyclableChunk = 5 // with the number of the log
	walSyncChunk    = 9 // with that, and how much of the log is durable
	lastChunk       = walSyncChunk + 3
)

// A chunk is a piece of a batch within a block of a log.
type chunk struct {
	first, last bool
	payload     []byte
	end         int // in its block
}

// chunkAt returns the valid chunk of log num at offset off of block.
func chunkAt(block []byte, off int, num uint64) (c chunk, ok bool) {
	b := block[off:]
	if len(b) < shortHead {
		return c, false
	}
	kind, head := b[6], shortHead
	if kind >= walSyncChunk {
		head = longHead
	}
	n := head + int(binary.LittleEndian.Uint16(b[4:]))
	if kind < recyclableChunk || kind > lastChunk || len(b) < n || binary.LittleEndian.Uint32(b[7:]) != uint32(num) ||
		blockSum(b[6:n]) != binary.LittleEndian.Uint32(b) {
		return c, false
	}
	place := (kind - recyclableChunk) % 4 // whole, first, middle, last
	return chunk{place <= 1, place == 0 || place == 3, b[head:n], off + n}, true
}

// logEndAt reports whether the mark of a log that was closed is at off.
func logEndAt(block []byte, off int, num uint64) bool {
	b := block[off:]
	return len(b) >= shortHead && binary.LittleEndian.Uint32(b) == 0 && binary.LittleEndian.Uint16(b[4:]) == 0 &&
		b[6] == recyclableChunk && binary.LittleEndian.Uint32(b[7:]) == uint32(num)+1
}

// A logReader walks one log like Pebble does, and then looks behind where Pebble ends.
type logReader struct {
	r      io.Reader
	log    begun
	block  []byte
	base   int64 // offset of block in the log
	off    int   // in block
	next   uint64
	reason string // why walk stopped before the end of the log
	closed bool   // the log ends with an end mark
	alien  string // why a whole batch is not of this log, or ""
}

// fill reads the next block and reports whether there is one.
func (l *logReader) fill() (bool, error) {
	l.base += int64(len(l.block))
	l.block, l.off = l.block[:logBlock], 0
	n, err := io.ReadFull(l.r, l.block)
	l.block = l.block[:n]
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return n > 0, err
}

// walk reads batches up to the first place that is unreadable, out of order, or
// the end. Batches must have the numbers from l.next on, if that is not 0.
func (l *logReader) walk() error {
	l.block = make([]byte, 0, logBlock)
	var head []byte // of the batch that is being read
	reading, length := false, 0
	for {
		if left := len(l.block) - l.off; left < leastHead || left < longHead && zero(l.block[l.off:]) {
			if more, err := l.fill(); err != nil || !more {
				l.reason = "the file ends"
				return err
			}
		}
		c, ok := chunkAt(l.block, l.off, l.log.num)
		switch {
		case !ok && !reading && logEndAt(l.block, l.off, l.log.num):
			l.closed = true
			return nil
		case !ok:
			l.reason = "no valid chunk"
			return nil
		case c.first == reading: // a beginning within a batch, or a continuation of none
			l.reason = "a chunk out of order"
			return nil
		}
		if c.first {
			head, length = head[:0], 0
		}
		head = append(head, c.payload[:min(len(c.payload), batchHead-min(len(head), batchHead))]...)
		length += len(c.payload)
		reading = !c.last
		if c.last {
			h, ok := batchrepr.ReadHeader(head)
			if !ok {
				l.reason = "no batch"
				return nil
			}
			// Pebble would replay it.
			if p, ok := promiseIn(head); !ok || p.epoch != l.log.epoch {
				l.alien = "is of another store, or of an older log of this number"
				return nil
			}
			if l.next != 0 && uint64(h.SeqNum) != l.next {
				l.alien = fmt.Sprintf("has number %d instead of %d", h.SeqNum, l.next)
				return nil
			}
			l.next = uint64(h.SeqNum) + uint64(h.Count)
		}
		l.off = c.end
	}
}

// promised looks for promises behind where walk ended, at every offset, because
// the length of what is damaged can't be trusted. It returns the last of them.
func (l *logReader) promised() (last promise, err error) {
	for {
		for off := l.off; off+longHead+batchHead <= len(l.block); off++ {
			if kind := l.block[off+6]; kind != 5 && kind != 6 && kind != 9 && kind != 10 {
				continue
			}
			c, ok := chunkAt(l.block, off, l.log.num)
			if !ok {
				continue
			}
			p, ok := promiseIn(c.payload)
			if !ok || p.epoch != l.log.epoch {
				continue
			}
			if p.durable > last.durable {
				last = p
			}
			off = c.end - 1
		}
		for { // most of the rest is a hole
			more, err := l.fill()
			if err != nil || !more {
				return last, err
			}
			if !zero(l.block) {
				break
			}
		}
	}
}

// inspectLogs checks the logs from number first on, which Pebble will replay.
func (n *noted) inspectLogs(in *inspection, first uint64) error {
	said := in.past.said
	epochs := map[uint64]uint64{}
	for _, l := range said.logs {
		if epochs[l.num] = l.epoch; l.num >= first && !slices.Contains(in.logs, l.num) {
			return &damage{file: logName(l.num), what: "the file is missing"}
		}
	}
	replayed := slices.DeleteFunc(slices.Clone(in.logs), func(num uint64) bool { return num < first })
	next := uint64(0)
	for i, num := range replayed {
		l := &logReader{log: begun{num, epochs[num]}, next: next}
		least, seen := int64(0), witness{}
		if l.log.epoch != 0 {
			least = said.logBytes
		}
		if w := in.past.witness; w.log == l.log && (w.synced || w.boot != 0 && w.boot == n.boot) {
			seen = w
		}
		used, err := n.inspectLog(l, least, i == len(replayed)-1, seen)
		if err != nil {
			return err
		}
		in.logUsed += used
		next = l.next
	}
	return nil
}

// inspectLog checks one log, which was begun with least bytes, or 0 if that is not known. seen is the witness of it, or
// claims nothing. inspectLog returns how many bytes Pebble will read.
func (n *noted) inspectLog(l *logReader, least int64, last bool, seen witness) (used int64, err error) {
	name := logName(l.log.num)
	f, err := n.fence.Open(n.path(name))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if info.Size() < least {
		return 0, &damage{file: name, what: fmt.Sprintf("it has %d bytes, and was made with %d", info.Size(), least)}
	}
	sum := crc32.New(castagnoli)
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, seen.size)); err != nil {
		return 0, err
	}
	l.r = io.NewSectionReader(f, 0, info.Size())
	err = l.walk()
	used = l.base + int64(l.off)
	switch {
	case err != nil:
		return 0, err
	case l.alien != "":
		return 0, &damage{file: name, what: fmt.Sprintf("a batch behind offset %d %s", used, l.alien)}
	case !l.closed && used < seen.size:
		return 0, &damage{file: name, what: fmt.Sprintf("%s at offset %d, and %d bytes were written", l.reason, used, seen.size)}
	case sum.Sum32() != seen.sum:
		return 0, &damage{file: name, what: fmt.Sprintf("its first %d bytes are not those that were written", seen.size)}
	case l.closed:
		return used, nil
	}
	if !last {
		return 0, &damage{file: name, what: fmt.Sprintf("%s at offset %d, and another log follows", l.reason, used)}
	}
	p, err := l.promised()
	if err != nil {
		return 0, err
	}
	next := l.next
	if next == 0 {
		next = p.start
	}
	if p.durable > next {
		return 0, &damage{file: name, what: fmt.Sprintf("%s at offset %d, before batches that were durable", l.reason, used)}
	}
	return used, nil
}
