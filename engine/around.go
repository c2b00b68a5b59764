package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/big"
)

// A Scanner is a database, or a part of one, whose files may be damaged. After an error, Scan can be called again for a
// range that begins further on. Every Engine is a Scanner.
type Scanner interface {
	Scan(ctx context.Context, r Range) iter.Seq2[Pair, error]
}

// A Gap is a range of keys that Around has passed over. Between two damaged places that are near to each other, it may
// have keys that could be read.
type Gap struct {
	After, Before []byte // the keys that are missing are from After to before Before, or to the end if that is nil
	Err           error  // what the database says
}

// Around yields the pairs of a range that can be read, in order, and calls gap where it goes on behind some that can't.
// It may pass over some that could be read between two damaged places. An error is that of the context, or says that the
// database can't be reached; it ends the sequence. Around is for what is to be saved of a damaged database: nothing else
// may pass over an error.
func Around(ctx context.Context, from Scanner, of Range, gap func(Gap)) iter.Seq2[Pair, error] {
	return func(yield func(Pair, error) bool) {
		var last []byte // A key may come several times: see remains.Files.
		for next := of.Start; ; {
			failed := error(nil)
			for p, err := range from.Scan(ctx, Range{Start: next, End: of.End}) {
				if failed = err; err != nil {
					break
				}
				if bytes.Compare(p.Key, last) < 0 || bytes.Compare(p.Key, next) < 0 && !bytes.Equal(p.Key, last) {
					failed = fmt.Errorf("%w: keys out of order", ErrCorrupt)
					break
				}
				if !yield(p, nil) {
					return
				}
				last, next = p.Key, Successor(p.Key)
			}
			if failed == nil {
				return
			}
			const page = 1000                                 // pairs, and more than any engine reads at once
			for n := 0; n < page && !ends(ctx, failed); n++ { // A page has failed as a whole, and its first pairs may be there.
				p, found, err := firstOf(ctx, from, Range{Start: next, End: of.End})
				if failed = err; err != nil {
					break
				}
				if !found || !yield(p, nil) {
					return
				}
				last, next = p.Key, Successor(p.Key)
			}
			if failed == nil { // It was a moment's.
				continue
			}
			var to []byte
			if !ends(ctx, failed) {
				var err error
				if to, err = behind(ctx, from, Range{Start: next, End: of.End}); err == nil {
					gap(Gap{next, to, failed})
				} else {
					failed = err
				}
			}
			if ends(ctx, failed) {
				if ctx.Err() != nil {
					failed = ctx.Err()
				}
				yield(Pair{}, failed)
				return
			}
			if bytes.Compare(to, next) <= 0 {
				return
			}
			next = to
		}
	}
}

// ends reports whether an error is not about what is read.
func ends(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrClosed)
}

// firstOf returns the first pair of a range.
func firstOf(ctx context.Context, from Scanner, of Range) (p Pair, found bool, err error) {
	of.Limit = 1
	for p, err := range from.Scan(ctx, of) {
		if err == nil && bytes.Compare(p.Key, of.Start) < 0 {
			err = fmt.Errorf("%w: keys out of order", ErrCorrupt)
		}
		return p, err == nil, err
	}
	return p, false, nil
}

// behind returns a key from which on a range can be read again, near to its start, or nil if there is none. The blocks
// of a database are not known here. So it makes one byte of the start larger and larger, the last one first, and then
// halves the distance some times.
func behind(ctx context.Context, from Scanner, of Range) (to []byte, err error) {
	readable := func(at []byte) (bool, error) {
		_, _, err := firstOf(ctx, from, Range{Start: at, End: of.End})
		if err != nil && ends(ctx, err) {
			return false, err
		}
		return err == nil, nil
	}
	bad := of.Start
search:
	for n := len(of.Start) - 1; n >= -1 && to == nil; n-- { // the place of the byte that is made larger
		at := append(bytes.Clone(of.Start[:max(n, 0)]), 0)
		last := len(at) - 1
		low := 0
		if n >= 0 {
			low = int(of.Start[n])
		} else if len(of.Start) > 0 {
			break
		}
		for step := 1; low < 0xff && step < 0x200; step *= 2 {
			at[last] = byte(min(low+step, 0xff))
			if of.End != nil && bytes.Compare(at, of.End) >= 0 {
				continue search
			}
			switch ok, err := readable(at); {
			case err != nil:
				return nil, err
			case ok:
				to = bytes.Clone(at)
				continue search
			}
			bad = bytes.Clone(at)
		}
	}
	end := to == nil
	if end { // Behind the end nothing is damaged.
		if to = of.End; to == nil {
			to = bytes.Repeat([]byte{0xff}, len(bad)+8)
		}
	}
	const halvings = 128
	for range halvings {
		at := between(bad, to)
		if at == nil {
			break
		}
		switch ok, err := readable(at); {
		case err != nil:
			return nil, err
		case ok:
			to, end = at, false
		default:
			bad = at
		}
	}
	if at := Successor(bad); bytes.Compare(at, to) < 0 { // which differs by zeros at its end
		switch ok, err := readable(at); {
		case err != nil:
			return nil, err
		case ok:
			to, end = at, false
		}
	}
	if end {
		return nil, nil
	}
	return to, nil
}

// between returns a key in the middle of two, or nil if there is none that is not longer than both by more than two
// bytes.
func between(low, high []byte) []byte {
	size := max(len(low), len(high)) + 2
	number := func(k []byte) *big.Int {
		return new(big.Int).SetBytes(append(bytes.Clone(k), make([]byte, size-len(k))...))
	}
	a, b := number(low), number(high)
	middle := a.Rsh(a.Add(a, b), 1)
	at := bytes.TrimRight(middle.FillBytes(make([]byte, size)), "\x00")
	if bytes.Compare(at, low) <= 0 || bytes.Compare(at, high) >= 0 {
		return nil
	}
	return at
}
