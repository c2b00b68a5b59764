package codec

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	deflater "github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"
)

// A delta says how to make a content from a base. All numbers are uvarints:
//
//	number of runs, then for each run
//	    where the copy begins in the base, relative to the end of the copy before (zigzag)
//	    number of bytes that are copied from there
//	    number of fresh bytes after them
//	number of windows, then for each window
//	    number of bytes of the base between the window before and this one
//	    number of bytes of the window
//	the fresh bytes of all runs together
//
// The windows are pieces of the base around the places where fresh bytes go. Joined, they
// are the dictionary that the fresh bytes are compressed with: up to fewBytes of them as one
// DEFLATE stream (RFC 1951), more as one zstd frame (RFC 8878). Without windows, the fresh
// bytes are not compressed.
//
// A base of several megabytes costs 12 ms as a dictionary, and most of it is of no
// use for the few kilobytes that are fresh: the copies say where in the base bytes
// occur again, and the windows have the words and the names of their neighbourhood.

const (
	// dictBytes is the largest size of all windows together. Of 32, 64, 128 and 256 KiB this
	// one is where the time begins to grow faster than the bytes shrink: for a list
	// of messages that grows to 2.4 MB, 128 KiB make deltas of 0.99 times the bytes in
	// 1.2 times the time.
	dictBytes = 64 << 10
	// The windows are as large as so many times the fresh bytes, and at least
	// leastDict. Always dictBytes make deltas of 0.96 to 0.99 times the bytes, in 1.1
	// (for the same list) to 2.1 times the time (for five changes of 60 bytes in 200 KB).
	dictShare = 64
	leastDict = 4 << 10
	// leastWindow is the size below which windows are fewer than the places that they are for.
	leastWindow = 512
	// plainBytes is the most fresh bytes that are not compressed: their windows take 3 to 7.
	plainBytes = 16
	// fewBytes is the most fresh bytes that are a DEFLATE stream. Before its first byte, zstd clears tables of
	// 512 KiB and fills them from the dictionary; DEFLATE has one of 16 KiB, and shorter headers. For an
	// appended message of 400 bytes the whole delta takes 0.6 of the time of zstd alone, and about as many bytes; at 2.4 KB both
	// take the same time, and zstd fewer bytes (go test ./internal/codec -bench Append).
	fewBytes = 2 << 10
	// fewDict is the largest size of all windows for so few bytes: klauspost's encoder looks back no further.
	fewDict = 8 << 10
)

// Delta returns the compressed form of content relative to base.
func Delta(base, content []byte) ([]byte, error) {
	runs := Diff(base, content)
	dst := binary.AppendUvarint([]byte{methodDelta}, uint64(len(content)))
	dst = binary.AppendUvarint(dst, uint64(len(runs)))
	var fresh []byte
	at, last := 0, 0
	for _, r := range runs {
		dst = binary.AppendVarint(dst, int64(r.From-last))
		dst = binary.AppendUvarint(dst, uint64(r.Copied))
		dst = binary.AppendUvarint(dst, uint64(r.Fresh))
		at, last = at+r.Copied, r.end()
		fresh = append(fresh, content[at:at+r.Fresh]...)
		at += r.Fresh
	}
	if len(fresh) > plainBytes && len(base) > 0 {
		data, err := compressFresh(dst, base, runs, fresh)
		if err != nil || len(data) <= len(dst)+len(fresh) {
			return data, err
		}
	}
	return append(append(dst, 0), fresh...), nil
}

// compressFresh appends the windows and the fresh bytes of a delta to dst.
func compressFresh(dst, base []byte, runs []Run, fresh []byte) ([]byte, error) {
	most := dictBytes
	if len(fresh) <= fewBytes {
		most = fewDict
	}
	spans := windows(len(base), runs, min(most, max(leastDict, dictShare*len(fresh))))
	dst = binary.AppendUvarint(dst, uint64(len(spans)))
	last := 0
	for _, s := range spans {
		dst = binary.AppendUvarint(dst, uint64(s.from-last))
		dst = binary.AppendUvarint(dst, uint64(s.to-s.from))
		last = s.to
	}
	if len(fresh) <= fewBytes {
		return deflate(dst, joined(make([]byte, 0, fewDict), base, spans), fresh)
	}
	e, err := deltaEncoders.get()
	if err != nil {
		return nil, err
	}
	defer deltaEncoders.put(e)
	e.dict = joined(e.dict[:0], base, spans)
	// As a stream, because EncodeAll has another encoder beside that of the stream, and
	// both would read the dictionary.
	out := bytes.NewBuffer(dst)
	err = e.coder.ResetWithOptions(out, zstd.WithEncoderDictRaw(dictID, e.dict))
	if err == nil {
		_, err = e.coder.Write(fresh)
	}
	if err == nil {
		err = e.coder.Close()
	}
	return out.Bytes(), err
}

// deflate appends fresh bytes as a DEFLATE stream to dst.
func deflate(dst, dict, fresh []byte) ([]byte, error) {
	out := bytes.NewBuffer(dst)
	err := deflater.StatelessDeflate(out, fresh, true, dict)
	if err != nil || out.Len() <= len(dst)+len(fresh) {
		return out.Bytes(), err
	}
	// It has found no string again, and stored the bytes as they are. Their code alone may be shorter, as that of
	// hexadecimal digits is.
	out.Truncate(len(dst))
	w := huffmanWriters.Get().(*deflater.Writer)
	defer huffmanWriters.Put(w)
	w.Reset(out)
	_, err = w.Write(fresh)
	err = errors.Join(err, w.Close())
	return out.Bytes(), err
}

var huffmanWriters = sync.Pool{New: func() any {
	w, err := deflater.NewWriter(nil, deflater.HuffmanOnly)
	if err != nil {
		panic(err) // a constant level
	}
	return w
}}

// joined appends spans of base to dict.
func joined(dict, base []byte, spans []span) []byte {
	for _, s := range spans {
		dict = append(dict, base[s.from:s.to]...)
	}
	return dict
}

// A span is a piece of a base.
type span struct{ from, to int }

// windows returns the windows of a delta with runs: around places where fresh bytes go an equal
// share of size, three quarters of it before the place. They are in order, and do not
// overlap. There is at least one if base and the fresh bytes are not empty.
func windows(base int, runs []Run, size int) (out []span) {
	var places []int
	for _, r := range runs {
		if r.Fresh > 0 {
			places = append(places, r.end())
		}
	}
	slices.Sort(places)
	n := min(len(places), size/leastWindow)
	for i := range n {
		share := size / n
		from := max(0, min(places[i*len(places)/n]-share*3/4, base-share))
		to := min(base, from+share)
		if last := len(out) - 1; last >= 0 && from <= out[last].to {
			out[last].to = max(to, out[last].to)
		} else {
			out = append(out, span{from, to})
		}
	}
	return out
}

// A deltaScript is a delta as it was read.
type deltaScript struct {
	runs    []Run
	windows []span
	fresh   int    // number of fresh bytes of all runs
	data    []byte // the fresh bytes, compressed if there are windows
}

// patch returns the content of size bytes that data, which is a delta, makes from base. Its
// pieces may be pieces of base.
func patch(data []byte, base *Pieces, size int) (*Pieces, error) {
	s, err := readDelta(data, base.Len(), size)
	if err != nil {
		return nil, err
	}
	fresh, err := s.expand(base)
	if err != nil {
		return nil, err
	}
	if len(fresh) != s.fresh {
		return nil, fmt.Errorf("delta with %d fresh bytes, not %d", len(fresh), s.fresh)
	}
	out := new(Pieces)
	for _, r := range s.runs {
		base.each(r.From, r.end(), out.add)
		out.add(fresh[:r.Fresh])
		fresh = fresh[r.Fresh:]
	}
	return out.compact(), nil
}

// expand returns the fresh bytes of s.
func (s *deltaScript) expand(base *Pieces) ([]byte, error) {
	if len(s.windows) == 0 {
		return bytes.Clone(s.data), nil
	}
	if s.fresh <= fewBytes {
		return s.inflate(base)
	}
	d, err := deltaDecoders.get()
	if err != nil {
		return nil, err
	}
	defer deltaDecoders.put(d)
	d.dict = s.joined(d.dict[:0], base)
	if err := d.coder.ResetWithOptions(nil, zstd.WithDecoderDictRaw(dictID, d.dict)); err != nil {
		return nil, err
	}
	// At least one byte of capacity: with none the decoder allocates freely.
	return d.coder.DecodeAll(s.data, make([]byte, 0, max(s.fresh, 1)))
}

// inflate returns the fresh bytes of s, which are a DEFLATE stream. The caller looks at how many there are.
func (s *deltaScript) inflate(base *Pieces) ([]byte, error) {
	d, err := inflaters.get()
	if err != nil {
		return nil, err
	}
	defer inflaters.put(d)
	d.dict = s.joined(d.dict[:0], base)
	data := bytes.NewReader(s.data)
	if err := d.coder.(flate.Resetter).Reset(data, d.dict); err != nil {
		return nil, err
	}
	// One byte more than there should be: to see that there are not more, the stream is read to its end.
	fresh := bytes.NewBuffer(make([]byte, 0, s.fresh+1+bytes.MinRead))
	if _, err := fresh.ReadFrom(io.LimitReader(d.coder, int64(s.fresh)+1)); err != nil {
		return nil, err
	}
	if data.Len() > 0 {
		return nil, fmt.Errorf("delta with %d bytes behind its fresh ones", data.Len())
	}
	return fresh.Bytes(), nil
}

// joined appends the windows of s to dict.
func (s *deltaScript) joined(dict []byte, base *Pieces) []byte {
	for _, w := range s.windows {
		base.each(w.from, w.to, func(b []byte) { dict = append(dict, b...) })
	}
	return dict
}

// readDelta decodes the runs and windows of a delta. They must lie within a base of the
// given size, and the runs must make size bytes.
func readDelta(data []byte, base, size int) (*deltaScript, error) {
	r := deltaReader{data: data}
	s := new(deltaScript)
	end, total := 0, 0
	for n := r.uint(len(data)); n > 0 && !r.bad; n-- {
		from := end + r.int(base)
		if from < 0 || from > base {
			return nil, errDelta
		}
		next := Run{From: from, Copied: r.uint(base - from), Fresh: r.uint(size)}
		end = next.end()
		total += next.Copied + next.Fresh
		s.fresh += next.Fresh
		if total > size {
			return nil, errDelta
		}
		s.runs = append(s.runs, next)
	}
	at := 0
	for n := r.uint(len(data)); n > 0 && !r.bad; n-- {
		from := at + r.uint(base-at)
		at = from + r.uint(base-from)
		s.windows = append(s.windows, span{from, at})
	}
	if s.data = r.data; r.bad || total != size {
		return nil, errDelta
	}
	return s, nil
}

var errDelta = errors.New("delta with pieces outside of its base or its content")

// A deltaReader reads the numbers of a delta. After a number that can't be read or is too
// large, bad is set and all numbers are 0.
type deltaReader struct {
	data []byte
	bad  bool
}

// uint reads a number of at most the given size.
func (r *deltaReader) uint(most int) int {
	v, n := Uvarint(r.data)
	if n <= 0 || r.bad || v > uint64(most) {
		r.bad = true
		return 0
	}
	r.data = r.data[n:]
	return int(v)
}

// int reads a zigzag number of at most the given size.
func (r *deltaReader) int(most int) int {
	v := r.uint(2*most + 1)
	if v&1 != 0 {
		return -(v >> 1) - 1
	}
	return v >> 1
}

// dictID is what a zstd frame calls its raw dictionary.
const dictID = 1

// A dictCoder is an encoder or a decoder, and the memory for its dictionary.
type dictCoder[C any] struct {
	coder C
	dict  []byte
}

// A coderPool keeps coders, because a new one of zstd allocates a megabyte, and one of DEFLATE 45 KB.
type coderPool[C any] struct {
	pool sync.Pool
	make func() (C, error)
}

func (p *coderPool[C]) get() (*dictCoder[C], error) {
	if c, ok := p.pool.Get().(*dictCoder[C]); ok {
		return c, nil
	}
	c, err := p.make()
	return &dictCoder[C]{coder: c}, err
}

func (p *coderPool[C]) put(c *dictCoder[C]) {
	if cap(c.dict) <= 2*dictBytes { // a delta of others may have a larger one
		p.pool.Put(c)
	}
}

var (
	deltaEncoders = coderPool[*zstd.Encoder]{make: func() (*zstd.Encoder, error) {
		return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false),
			zstd.WithAllLitEntropyCompression(true), zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(4*dictBytes),
			zstd.WithEncoderDictRaw(dictID, []byte("replaced by each user")))
	}}
	deltaDecoders = coderPool[*zstd.Decoder]{make: func() (*zstd.Decoder, error) {
		return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxMemory(1<<30), zstd.WithDecodeAllCapLimit(true))
	}}
	// The standard library's reader, because klauspost's (v1.20.3) keeps the codes of a block or stream before, and so accepts
	// some streams that are none.
	inflaters = coderPool[io.ReadCloser]{make: func() (io.ReadCloser, error) { return flate.NewReader(nil), nil }}
)
