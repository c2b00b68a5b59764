// Package bundle writes sessions to a stream, and makes them of it in another store: docs/format.md has the form.
//
//	write.go     a session (source.go), and a copy of what it inherits if its parent is not in the bundle
//	receive.go   reads all frames, stores the blobs and spools the rest (spool.go)
//	check.go     checks each section as it comes; parts.go its checkpoints, twins.go what it has twice
//	links.go     reads the spool: what nodes, commits and forks refer to
//	decide.go    which sessions exist here, and whether they go on from where they are
//	apply.go     reads the spool again: makes sessions that nobody sees before they are whole (package commit,
//	             arrive.go); forward.go brings one that exists forward
//
// What comes from a stream is hostile. All hashes are computed, and nothing is visible before the end of the stream was
// checked. Memory is bounded by the largest turn, and by a room for what has to be remembered of the whole: see room.
package bundle

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// Magic begins a bundle. What follows is one zstd frame.
const Magic = "turnstone bundle 1\n"

// Kinds of frames.
const (
	kindSection   = 'S' // a session or a copy begins
	kindStones    = 'X' // its tombstones
	kindKept      = 'K' // its kept revisions
	kindBlob      = 'B' // a blob begins; its content follows
	kindVersion   = 'V' // a version of a checkpoint part begins; its data follow
	kindData      = 'D' // a piece of content or data
	kindTurns     = 'T' // turns
	kindRecords   = 'R' // records
	kindEnd       = 'Z' // the section ends
	kindBundleEnd = 'E' // the bundle ends
)

// Sizes in bytes.
const (
	window    = 8 << 20   // of the compression: how far back equal bytes are found
	dataBytes = 256 << 10 // of the largest piece
	fewBytes  = 4 << 20   // of the largest frame of any other kind than turns
	turnBytes = 64 << 20  // of the largest frame of turns, uncompressed
)

// limitOf returns how long a frame of a kind may be, or 0 if there is no such kind.
func limitOf(kind byte) int {
	switch kind {
	case kindTurns:
		return turnBytes
	case kindData:
		return dataBytes
	case kindSection, kindStones, kindKept, kindBlob, kindVersion, kindRecords, kindEnd, kindBundleEnd:
		return fewBytes
	}
	return 0
}

// A frameWriter writes frames: a kind, the length of the body (uvarint), and the body.
type frameWriter struct {
	w   io.Writer
	sum *codec.Hasher // of what was written, or nil
	n   int64         // bytes that were written
}

func (f *frameWriter) write(kind byte, body []byte) error {
	front := binary.AppendUvarint([]byte{kind}, uint64(len(body)))
	for _, b := range [][]byte{front, body} {
		if f.sum != nil {
			f.sum.Write(b)
		}
		if _, err := f.w.Write(b); err != nil {
			return err
		}
		f.n += int64(len(b))
	}
	return nil
}

// data writes the pieces of content.
func (f *frameWriter) data(content []byte) error {
	for len(content) > 0 {
		n := min(len(content), dataBytes)
		if err := f.write(kindData, content[:n]); err != nil {
			return err
		}
		content = content[n:]
	}
	return nil
}

// A frameReader reads frames.
type frameReader struct {
	r   *bufio.Reader
	sum *codec.Hasher // of the frames before the one that was read last, or nil
	buf bytes.Buffer  // the body of that frame
	was []byte        // all of it, which is not in sum yet
}

// next returns the next frame. The body is valid until the next call. It takes memory for what is there, not for what
// the frame announces. The error is io.EOF if there is none.
func (f *frameReader) next() (kind byte, body []byte, err error) {
	if f.sum != nil {
		f.sum.Write(f.was)
		f.sum.Write(f.buf.Bytes())
	}
	f.was = f.was[:0]
	f.buf.Reset()
	if kind, err = f.r.ReadByte(); err != nil {
		return 0, nil, err
	}
	n, err := f.length()
	if err != nil {
		return 0, nil, err
	}
	most := limitOf(kind)
	if most == 0 {
		return 0, nil, malformed("frame of kind %q", kind)
	}
	if n > uint64(most) {
		return 0, nil, malformed("frame of kind %q has %d bytes, at most %d", kind, n, most)
	}
	f.was = binary.AppendUvarint(append(f.was, kind), n)
	if _, err := io.CopyN(&f.buf, f.r, int64(n)); err != nil {
		return 0, nil, cut(err)
	}
	return kind, f.buf.Bytes(), nil
}

// length reads the length of a frame, in its shortest form.
func (f *frameReader) length() (uint64, error) {
	var b []byte
	for len(b) < 5 {
		c, err := f.r.ReadByte()
		if err != nil {
			return 0, cut(err)
		}
		if b = append(b, c); c < 0x80 {
			break
		}
	}
	n, size := codec.Uvarint(b)
	if size <= 0 {
		return 0, malformed("length of a frame")
	}
	return n, nil
}

// cut returns err, or io.ErrUnexpectedEOF if it is io.EOF.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// content reads content of size bytes, and calls take with each piece of it.
func (f *frameReader) content(size int64, take func([]byte) error) error {
	for left := size; left > 0; {
		kind, body, err := f.next()
		if err != nil {
			return cut(err)
		}
		if kind != kindData || len(body) == 0 || int64(len(body)) > left {
			return malformed("frame of kind %q with %d bytes, where %d of content are left", kind, len(body), left)
		}
		if err := take(body); err != nil {
			return err
		}
		left -= int64(len(body))
	}
	return nil
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{damage.ErrMalformed}, args...)...)
}

// compressor returns a writer that compresses into w.
func compressor(w io.Writer, level zstd.EncoderLevel) (*zstd.Encoder, error) {
	return zstd.NewWriter(w, zstd.WithEncoderLevel(level), zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
}

// expander returns a reader of what compressor wrote. It takes memory for a window.
func expander(r io.Reader) (*zstd.Decoder, error) {
	return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(window), zstd.WithDecoderMaxMemory(1<<30))
}
