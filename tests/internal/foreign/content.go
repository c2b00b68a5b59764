package foreign

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

var errShort = errors.New("bytes end early")

// A reader takes uvarints and bytes. The first error sticks.
type reader struct {
	b   []byte
	err error
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.b, r.err = nil, errShort
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.b, r.err = nil, errShort
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

// expand returns the content of compressed bytes. base is that of a delta.
func expand(b, base []byte) ([]byte, error) {
	r := reader{b: b}
	method := r.take(1)
	length := r.uvarint()
	if r.err != nil {
		return nil, r.err
	}
	var out []byte
	var err error
	switch method[0] {
	case 0:
		out = r.b
	case 1:
		out, err = unzstd(r.b, nil)
	case 2:
		out, err = undelta(r.b, base)
	case 3:
		out, err = s2.Decode(nil, r.b)
	default:
		err = fmt.Errorf("method %d", method[0])
	}
	if err == nil && uint64(len(out)) != length {
		err = fmt.Errorf("%d bytes of content instead of %d", len(out), length)
	}
	return out, err
}

func unzstd(b, dictionary []byte) ([]byte, error) {
	o := []zstd.DOption{zstd.WithDecoderConcurrency(1)}
	if dictionary != nil {
		o = append(o, zstd.WithDecoderDictRaw(1, dictionary))
	}
	d, err := zstd.NewReader(nil, o...)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.DecodeAll(b, nil)
}

// undelta makes the content from base.
func undelta(b, base []byte) ([]byte, error) {
	r := reader{b: b}
	type run struct{ from, copied, fresh uint64 }
	runs := make([]run, 0, 16)
	end, fresh := uint64(0), uint64(0)
	for n := r.uvarint(); n > 0 && r.err == nil; n-- {
		z := r.uvarint()
		one := run{from: end + uint64(int64(z>>1)^-int64(z&1)), copied: r.uvarint(), fresh: r.uvarint()}
		if one.from > uint64(len(base)) || one.copied > uint64(len(base))-one.from {
			return nil, errors.New("a run outside of the base")
		}
		end = one.from + one.copied
		fresh += one.fresh
		runs = append(runs, one)
	}
	var dictionary []byte
	windows, at := r.uvarint(), uint64(0)
	for n := windows; n > 0 && r.err == nil; n-- {
		at += r.uvarint()
		length := r.uvarint()
		if at > uint64(len(base)) || length > uint64(len(base))-at {
			return nil, errors.New("a window outside of the base")
		}
		dictionary = append(dictionary, base[at:at+length]...)
		at += length
	}
	if r.err != nil {
		return nil, r.err
	}
	news := r.b
	var err error
	switch {
	case windows == 0:
	case fresh <= 2048:
		left := bytes.NewReader(r.b)
		if news, err = io.ReadAll(flate.NewReaderDict(left, dictionary)); err == nil && left.Len() > 0 {
			err = errors.New("bytes behind a DEFLATE stream")
		}
	default:
		news, err = unzstd(r.b, dictionary)
	}
	if err == nil && uint64(len(news)) != fresh {
		err = fmt.Errorf("%d fresh bytes instead of %d", len(news), fresh)
	}
	if err != nil {
		return nil, err
	}
	var out []byte
	for _, one := range runs {
		out = append(out, base[one.from:one.from+one.copied]...)
		out, news = append(out, news[:one.fresh]...), news[one.fresh:]
	}
	return out, nil
}

// blob returns the content of a blob.
func (s *Store) blob(id ID, size uint64) ([]byte, error) {
	out, err := s.content(id, size)
	if err == nil && (derived("blob", out) != id || uint64(len(out)) != size) {
		err = errors.New("it has another content")
	}
	if err != nil {
		return nil, fmt.Errorf("blob %x: %w", id, err)
	}
	return out, nil
}

func (s *Store) content(id ID, size uint64) ([]byte, error) {
	key := "b" + s.h('b', id[:])
	first, err := s.must(key + "\x00")
	if err != nil {
		return nil, err
	}
	r := bodyOf(first, 5)
	have, length, values := r.id(), r.uint(), r.uint()
	list := r.next()
	if list != nil { // the item was taken: give it back for each
		r.items = append([]any{list}, r.items...)
		var out []byte
		r.each(func(i *row) {
			part, perr := s.blob(i.id(), i.uint())
			i.fail(perr)
			out = append(out, part...)
		}, 2)
		return out, r.err
	}
	data := r.bytes()
	if r.err != nil || have != id || length != size {
		return nil, fmt.Errorf("it is blob %x of %d bytes, not of %d: %w", have, length, size, r.err)
	}
	for v := uint64(1); v < values; v++ {
		more, err := s.must(key + string(byte(v)))
		if err != nil {
			return nil, err
		}
		data = append(data, more...)
	}
	return expand(data, nil)
}
