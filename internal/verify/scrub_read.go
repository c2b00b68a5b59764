package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/big"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file is how a scrub reads the records, passes over what the engine can't read, and verifies the rest.

// An object is what a scrub verifies at once: the records of a segment or of a blob, which follow each other, or one
// record of another kind.
type object []engine.Pair

// slice reads the next objects and verifies them. It returns their size in bytes, and whether they are the last ones.
func (r *scrubber) slice(ctx context.Context) (size int, last bool, err error) {
	all := r.store.Space.Everything()
	all.Start = r.next
	var objects []object
	records, most := 0, sliceBytes
	if r.options.Rate > 0 {
		most = int(min(sliceBytes, max(r.options.Rate, leastBytes)))
	}
	for p, err := range r.store.Engine.Scan(ctx, all) {
		if errors.Is(err, engine.ErrCorrupt) {
			if err := r.checkAll(ctx, objects); err != nil {
				return size, false, err
			}
			last, err = r.skip(ctx, err)
			return size, last, err
		}
		if err != nil {
			return size, false, err
		}
		n := len(objects)
		if n == 0 || !r.continues(objects[n-1], p.Key) {
			if size >= most || records >= sliceRecords {
				err = r.checkAll(ctx, objects)
				return size, false, err
			}
			objects = append(objects, nil)
			n++
		}
		objects[n-1] = append(objects[n-1], p)
		size, records = size+len(p.Key)+len(p.Value), records+1
	}
	return size, true, r.checkAll(ctx, objects)
}

// continues reports whether the record with a key is a further value of an object.
func (r *scrubber) continues(o object, key []byte) bool {
	letter, _, ok := r.store.Space.Fields(key)
	first, end := o[0].Key, len(key)-1
	return ok && (letter == keys.Segment || letter == keys.Blob) && len(first) == len(key) && bytes.Equal(first[:end], key[:end])
}

// checkAll verifies objects.
func (r *scrubber) checkAll(ctx context.Context, objects []object) error {
	for _, o := range objects {
		r.mark(o[0].Key)
		if err := r.check(ctx, o); err != nil {
			return err
		}
		for _, p := range o {
			r.report.Records++
			r.report.Bytes += int64(len(p.Key) + len(p.Value))
		}
		r.next = engine.Successor(o[len(o)-1].Key)
	}
	r.mark(r.next)
	if r.options.Progress != nil {
		r.options.Progress(r.report.Records)
	}
	return nil
}

// mark sets the key with which the pass goes on after an interruption. The key of a session's record has text of a
// caller, which an erasure would not find here: the pass goes on with the first record of that session instead. The keys
// of the list of records begin with such text: the pass goes on before the list.
func (r *scrubber) mark(key []byte) {
	begin := len(r.store.Space.Everything().Start)
	switch {
	case len(key) <= begin:
	case key[begin] == keys.Listing:
		return
	case key[begin] == keys.Record:
		if key = key[:min(begin+17, len(key))]; bytes.HasPrefix(r.state.next, key) {
			return
		}
	}
	r.state.next, r.state.found = bytes.Clone(key), r.found
}

// skip goes on behind a place that the engine can't read. It tries keys that are further and further away until the
// engine can read one, and then looks for the first such key by halving the distance. It reports whether there is none.
func (r *scrubber) skip(ctx context.Context, damaged error) (last bool, err error) {
	// A key counts as a number of 25 bytes: in most keys these are the letter, an incarnation or a hash, and a revision.
	const width = 25
	from, all := r.next, r.store.Space.Everything()
	key := func(n *big.Int) []byte { return append(bytes.Clone(all.Start), n.FillBytes(make([]byte, width))...) }
	var number [width]byte
	copy(number[:], from[len(all.Start):])
	low := new(big.Int).SetBytes(number[:]) // The engine can't read here.
	var high *big.Int                       // It can read here.
	for step := uint(0); ; {
		var at *big.Int
		if high == nil {
			at = new(big.Int).Add(low, new(big.Int).Lsh(big.NewInt(1), step))
			step += 4
		} else {
			at = new(big.Int).Rsh(new(big.Int).Add(low, high), 1)
		}
		switch {
		case at.BitLen() > 8*width:
			r.next = append(bytes.Clone(all.Start), 0xff) // No letter is as large.
			r.problem(fmt.Errorf("%w: the records from key %x on were not read", damaged, from), "files")
			return true, nil
		case high != nil && at.Cmp(low) == 0:
			r.next = key(high)
			r.problem(fmt.Errorf("%w: the records from key %x up to %x were not read", damaged, from, r.next), "files")
			r.mark(r.next)
			return false, nil
		}
		readable, err := r.readable(ctx, key(at))
		if err != nil {
			return false, err
		}
		if readable {
			high = at
		} else {
			low = at
		}
	}
}

// readable reports whether the engine can read the first record at a key or behind it.
func (r *scrubber) readable(ctx context.Context, from []byte) (bool, error) {
	all := r.store.Space.Everything()
	all.Start = from
	for _, err := range r.store.Engine.Scan(ctx, all) {
		if errors.Is(err, engine.ErrCorrupt) {
			return false, nil
		}
		return err == nil, err
	}
	return true, nil
}

// check verifies an object, and notes what is wrong with it. An error ends the scrub.
func (r *scrubber) check(ctx context.Context, o object) error {
	letter, fields, ok := r.store.Space.Fields(o[0].Key)
	if ok && letter == keys.Scrub { // take has read it.
		return nil
	}
	whole := true
	for _, p := range o {
		err := error(nil)
		if ok {
			_, err = codec.Decode(p.Key, p.Value, letter)
		} else {
			err = codec.Unknown(p.Key, p.Value)
		}
		if errors.Is(err, damage.ErrFormat) { // Its checksum is right. A newer version of Turnstone can tell what it says.
			return nil
		}
		if err != nil {
			whole = false
			r.problem(err, "%s", r.describe(ctx, letter, fields, ok, p.Key))
		}
	}
	switch {
	case !whole:
	case letter == keys.Segment:
		if err := history.CheckSegment(r.store.Space, o); err != nil {
			return r.confirm(ctx, o, head.Incarnation(fields))
		}
	case letter == keys.Blob:
		if err := r.store.Blobs.Check(o); err != nil {
			return r.confirm(ctx, o, head.Incarnation{})
		}
	}
	return nil
}

// describe names a record by its kind and what it belongs to.
func (r *scrubber) describe(ctx context.Context, letter byte, fields []byte, ok bool, key []byte) string {
	if !ok {
		return fmt.Sprintf("record at key %x", key)
	}
	what := recordNames[letter]
	if inc, owned := owner(letter, fields); owned {
		what += " of " + r.name(ctx, inc)
	}
	return fmt.Sprintf("%s at key %x", what, key)
}

// confirm verifies an object again that seems to be damaged. The scan may have read it in several pages, between which
// maintenance has moved or removed it; confirm reads it in one call. of is the session whose segment it is, or zero.
func (r *scrubber) confirm(ctx context.Context, o object, of head.Incarnation) error {
	const most = 256 // values
	letter, fields, _ := r.store.Space.Fields(o[0].Key)
	ks := [][]byte{r.store.Space.Life(of)}
	last := len(o[0].Key) - 1
	for i := range most {
		key := bytes.Clone(o[0].Key)
		key[last] = byte(i)
		ks = append(ks, key)
	}
	vs, err := r.store.Engine.Get(ctx, ks...)
	if err != nil {
		if errors.Is(err, engine.ErrCorrupt) {
			r.problem(err, "%s", r.describe(ctx, letter, fields, true, o[0].Key))
			return nil
		}
		return err
	}
	var now object
	for i, v := range vs[1:] {
		if v != nil {
			now = append(now, engine.Pair{Key: ks[i+1], Value: v})
		}
	}
	removed := letter == keys.Segment && vs[0] == nil // Vacuum is at it.
	if len(now) == 0 || removed {
		return nil
	}
	if letter == keys.Segment {
		err = history.CheckSegment(r.store.Space, now)
	} else {
		err = r.store.Blobs.Check(now)
	}
	if errors.Is(err, damage.ErrFormat) {
		return nil
	}
	r.problem(err, "%s", r.describe(ctx, letter, fields, true, now[0].Key))
	return nil
}

// name returns what problems call an incarnation.
func (r *scrubber) name(ctx context.Context, inc head.Incarnation) string {
	if about, err := r.store.About(ctx, inc); err == nil && about != nil {
		return fmt.Sprintf("session %q", about.ID)
	}
	return fmt.Sprintf("incarnation %x", inc)
}

// problem adds err to the problems, unless it is nil.
func (r *scrubber) problem(err error, format string, args ...any) {
	if err == nil {
		return
	}
	r.found++
	if len(r.report.Problems) == maxProblems {
		r.report.More++
		return
	}
	r.report.Problems = append(r.report.Problems, codec.Corrupt(err, format, args...))
}
