package codec

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/turnstonedb/turnstone/damage"
)

// Compressed bytes are a method, the length of the content (uvarint), and data.
// The length is known before anything is expanded, so a decompression bomb ends
// at what its record admits.
const (
	methodRaw   = 0
	methodZstd  = 1 // a frame without checksum (RFC 8878); the record has one
	methodDelta = 2 // what to copy from a base, and what to insert: see Delta
	methodS2    = 3 // an S2 block (a superset of Snappy's): a third of zstd's time for 2 KB
)

// Level chooses between speed and size.
type Level int

const (
	Fast   Level = iota // on the commit path: S2, 2 µs for 2 KB where zstd takes 6
	Medium              // sealing beside commits: zstd at its fastest
	Best                // vacuum, which compresses all of the above again: zstd, as small as it gets
)

func encoder(level zstd.EncoderLevel) func() *zstd.Encoder {
	return sync.OnceValue(func() *zstd.Encoder {
		w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(level), zstd.WithEncoderCRC(false),
			zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(1<<20))
		if err != nil {
			panic(err) // constant options
		}
		return w
	})
}

var (
	encoders = [...]func() *zstd.Encoder{Medium: encoder(zstd.SpeedFastest), Best: encoder(zstd.SpeedBestCompression)}
	decoder  = sync.OnceValue(func() *zstd.Decoder {
		r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxMemory(1<<30), zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			panic(err)
		}
		return r
	})
)

// Plain returns content in the form that Compress gives to what does not shrink.
func Plain(content []byte) []byte {
	dst := binary.AppendUvarint(append(make([]byte, 0, len(content)+8), methodRaw), uint64(len(content)))
	return append(dst, content...)
}

// Compress appends the compressed form of content to dst; content that does not
// shrink is stored as it is.
func Compress(dst, content []byte, level Level) []byte {
	start := len(dst)
	dst = binary.AppendUvarint(append(dst, methodZstd), uint64(len(content)))
	data := len(dst)
	if level == Fast {
		dst[start] = methodS2
		dst = slices.Grow(dst, max(s2.MaxEncodedLen(len(content)), 0))
		dst = dst[:data+len(s2.Encode(dst[data:cap(dst)], content))]
	} else {
		dst = encoders[level]().EncodeAll(content, dst)
	}
	if len(dst)-data >= len(content) {
		dst[start] = methodRaw
		dst = append(dst[:data], content...)
	}
	return dst
}

// Decompress returns the content of data, which must be at most limit bytes.
// Base is the content that a delta was made against.
func Decompress(data, base []byte, limit int) ([]byte, error) {
	var pieces *Pieces
	if base != nil {
		pieces = NewPieces(base)
	}
	p, err := Expand(data, pieces, limit)
	if err != nil {
		return nil, err
	}
	return p.Bytes(), nil
}

// Expand returns the content of data in pieces, which must be at most limit bytes. Base is the
// content that a delta was made against. The pieces share its memory.
func Expand(data []byte, base *Pieces, limit int) (*Pieces, error) {
	if len(data) == 0 {
		return nil, fmt.Errorf("%w: no data", damage.ErrMalformed)
	}
	method := data[0]
	size, n := Uvarint(data[1:])
	if n <= 0 || size > uint64(limit) {
		return nil, fmt.Errorf("%w: content of %d bytes, at most %d", damage.ErrMalformed, size, limit)
	}
	if data = data[1+n:]; method != methodDelta {
		out, err := expand(method, data, int(size))
		return NewPieces(out), err
	}
	if base == nil {
		return nil, fmt.Errorf("%w: delta without its base", damage.ErrMalformed)
	}
	out, err := patch(data, base, int(size))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", damage.ErrMalformed, err)
	}
	return out, nil
}

// expand returns the content of size bytes that a method other than a delta has made data of.
func expand(method byte, data []byte, size int) (out []byte, err error) {
	switch method {
	case methodRaw:
		out = append([]byte{}, data...)
	case methodZstd:
		// At least one byte of capacity: with none the decoder allocates freely.
		out, err = decoder().DecodeAll(data, make([]byte, 0, max(size, 1)))
	case methodS2:
		if n, lerr := s2.DecodedLen(data); lerr != nil || n != size {
			return nil, fmt.Errorf("%w: block of %d bytes, not %d", damage.ErrMalformed, n, size)
		}
		out, err = s2.Decode(nil, data)
	default:
		return nil, fmt.Errorf("%w: compression method %d", damage.ErrMalformed, method)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", damage.ErrMalformed, err)
	}
	if len(out) != size {
		return nil, fmt.Errorf("%w: content of %d bytes, not %d", damage.ErrMalformed, len(out), size)
	}
	return out, nil
}
