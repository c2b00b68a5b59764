package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
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
// are the dictionary that the fresh bytes are compressed with: up to deflateBytes of them as one
// DEFLATE stream (RFC 1951), more as one zstd frame (RFC 8878). Without windows, the fresh
// bytes are not compressed.
//
// A base of several megabytes costs 12 ms as a dictionary, and most of it is of no
// use for the few kilobytes that are fresh: the copies say where in the base bytes
// occur again, and the windows have the words and the names of their neighbourhood.

const (
	// dictBytes is the largest size of all windows together. Among 32, 64, 128 and 256 KiB, the time begins to
	// grow faster than the bytes shrink at 64 KiB. For a list of messages that grows to 2.4 MB, 128 KiB make
	// deltas of 0.99 times the bytes in 1.2 times the time.
	dictBytes = 64 << 10
	// The windows are as large as so many times the fresh bytes, and at least
	// leastDict. Always dictBytes make deltas of 0.96 to 0.99 times the bytes, in 1.1
	// (for the same list) to 2.1 times the time (for five changes of 60 bytes in 200 KB).
	dictShare = 64
	leastDict = 4 << 10
	// leastWindow is the size below which windows are fewer than the places that they are for.
	leastWindow = 512
	// plainBytes is the largest number of fresh bytes that are not compressed. The description of their windows
	// would take 3 to 7 bytes.
	plainBytes = 16
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

// A span is a piece of a base.
type span struct{ from, to int }

// windows returns the windows of a delta with these runs. It divides size equally among windows around places
// where fresh bytes go. Three quarters of each window are before its place. The windows are in order, and do
// not overlap. There is at least one if base and the fresh bytes are not empty.
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
