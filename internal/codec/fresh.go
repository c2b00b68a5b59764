package codec

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	deflater "github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"
)

// This file compresses the fresh bytes of a delta with the windows as dictionary, and expands them.

const (
	// deflateBytes is the largest number of fresh bytes that become a DEFLATE stream. More become a zstd frame.
	// Before its first byte, the zstd encoder clears tables of 512 KiB and fills them from the dictionary. The
	// DEFLATE encoder has one table of 16 KiB, and writes shorter headers. BenchmarkAppend compares both: for
	// an appended message of 400 bytes, a whole delta takes 0.6 of the time that zstd alone takes, and about as
	// many bytes. At 2.4 KB both take the same time, and zstd makes fewer bytes.
	deflateBytes = 2 << 10
	// deflateDict is the largest size of all windows of a DEFLATE stream. The encoder looks back no further.
	deflateDict = 8 << 10
)

// compressFresh appends the windows and the fresh bytes of a delta to dst.
func compressFresh(dst, base []byte, runs []Run, fresh []byte) ([]byte, error) {
	few, most := len(fresh) <= deflateBytes, dictBytes
	if few {
		most = deflateDict
	}
	spans := windows(len(base), runs, min(most, max(leastDict, dictShare*len(fresh))))
	dst = binary.AppendUvarint(dst, uint64(len(spans)))
	last := 0
	for _, s := range spans {
		dst = binary.AppendUvarint(dst, uint64(s.from-last))
		dst = binary.AppendUvarint(dst, uint64(s.to-s.from))
		last = s.to
	}
	if few {
		return deflate(dst, joined(make([]byte, 0, deflateDict), base, spans), fresh)
	}
	return frame(dst, base, spans, fresh)
}

// frame appends fresh bytes as a zstd frame to dst.
func frame(dst, base []byte, spans []span, fresh []byte) ([]byte, error) {
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
	// StatelessDeflate found no string that occurs twice, and stored the bytes without compression. A Huffman
	// code alone can still make them shorter, for example if they are hexadecimal digits.
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
		panic(err) // can't happen: the level is constant
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

// expand returns the fresh bytes of s.
func (s *deltaScript) expand(base *Pieces) ([]byte, error) {
	if len(s.windows) == 0 {
		return bytes.Clone(s.data), nil
	}
	if s.fresh <= deflateBytes {
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
	// The limit is one byte more than the delta claims. So a stream that is too long is noticed, and a stream of
	// the right length is read to its end.
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
	// The standard library's reader, because klauspost's (v1.20.3) keeps the codes of a block or stream before, and so
	// accepts some streams that are none.
	inflaters = coderPool[io.ReadCloser]{make: func() (io.ReadCloser, error) { return flate.NewReader(nil), nil }}
)
