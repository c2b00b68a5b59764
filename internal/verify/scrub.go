package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file goes over all records of a store again and again, in passes that take days. What it finds out is whether
// the disk still gives back what was written: the checksum of each record, and the hashes of what segments and blobs
// hold. What records say of each other is for Check, which keeps all of that in memory and so can't stop in between.

// ScrubOptions of Scrub.
type ScrubOptions struct {
	Every    time.Duration // see turnstone.ScrubOptions
	Rate     int64
	For      time.Duration
	Progress func(records int)
}

// A ScrubReport is what a call of Scrub has read and found.
type ScrubReport struct {
	ScrubState
	Ended    bool // the call has completed the pass
	Records  int
	Bytes    int64   // of their keys and values
	Problems []error // the first maxProblems
	More     int     // the number of problems beyond these
}

// A ScrubState says how far the scrubbing of a store has come. It is the content of the scrub record.
type ScrubState struct {
	Began     time.Time // when the pass that is at work began; zero between two passes
	LastBegan time.Time // when the last complete pass began; zero before that
	LastFound uint64    // how many problems that pass found
	found     uint64    // how many the pass at work has found before next
	next      []byte    // the key that it goes on with
	holder    [8]byte   // who has noted this
	noted     time.Time // and when
}

// encode returns the record of s for key.
func (s *ScrubState) encode(key []byte) []byte {
	var e codec.Encoder
	e.Array(7)
	e.Bytes(s.next)
	e.Uint(nanos(s.Began))
	e.Uint(s.found)
	e.Uint(nanos(s.LastBegan))
	e.Uint(s.LastFound)
	e.Bytes(s.holder[:])
	e.Uint(nanos(s.noted))
	return codec.Encode(key, keys.Scrub, e.B)
}

// nanos returns a time in nanoseconds since 1970, or 0 for the zero time.
func nanos(t time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	return uint64(t.UnixNano())
}

// instant is the inverse of nanos.
func instant(nanos uint64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(nanos)).UTC()
}

// decodeScrub decodes the scrub record of key. Without one, no pass has begun.
func decodeScrub(key, value []byte) (s ScrubState, err error) {
	if value == nil {
		return s, nil
	}
	body, err := codec.Decode(key, value, keys.Scrub)
	if err != nil {
		return s, err
	}
	d := codec.Decoder{B: body}
	d.Shape(7)
	s.next = bytes.Clone(d.Bytes())
	s.Began, s.found = instant(d.Uint()), d.Uint()
	s.LastBegan, s.LastFound = instant(d.Uint()), d.Uint()
	d.Fixed(s.holder[:])
	s.noted = instant(d.Uint())
	return s, d.Done()
}

// Scrubbed returns how far the scrubbing of a store has come. A record that can't be read counts as none.
func Scrubbed(ctx context.Context, s history.Store) (ScrubState, error) {
	key := s.Space.Scrub()
	vs, err := s.Engine.Get(ctx, key)
	if err != nil {
		return ScrubState{}, err
	}
	state, err := decodeScrub(key, vs[0])
	if err != nil {
		return ScrubState{}, nil
	}
	return state, nil
}

// Scrub goes on with the pass that is at work, or begins one, up to its end or for as long as o says. holder is who
// calls. The report is nil if nothing could be read.
func Scrub(ctx context.Context, s history.Store, holder [8]byte, now func() time.Time, o ScrubOptions) (*ScrubReport, error) {
	r := &scrubber{store: s.Uncached(), holder: holder, now: now, options: o, key: s.Space.Scrub()}
	if err := r.read(ctx); err != nil {
		return nil, err
	}
	err := r.run(ctx)
	r.report.ScrubState = r.state
	return &r.report, err
}

// A scrubber is one call of Scrub.
type scrubber struct {
	store   history.Store
	holder  [8]byte
	now     func() time.Time
	options ScrubOptions
	report  ScrubReport
	key     []byte
	value   []byte // the record as it stands
	state   ScrubState
	next    []byte // the key to go on with; state.next, which is noted, is this one or an earlier one
	found   uint64 // in the pass, before next
}

const (
	// A slice is what is read between two rests.
	sliceBytes   = 1 << 20 // or what may be read in a second, if that is less
	leastBytes   = 4 << 10
	sliceRecords = 1000
	// saveEvery is how much of its work a pass that is cut off may repeat.
	saveEvery = 10 * time.Second
	// silent is how long after a note of another process its scrub may be at work.
	silent = 3 * saveEvery
)

// run reads slice after slice. Before each it looks whether another process is ahead.
func (r *scrubber) run(ctx context.Context) error {
	began := time.Now()
	for r.state.Began.IsZero() && !r.waits() { // Of those who begin a pass at once, one does.
		r.state.Began, r.next = r.now(), r.store.Space.Everything().Start
		r.state.next = r.next
		if _, err := r.save(ctx); err != nil {
			return err
		}
	}
	if r.waits() {
		return nil
	}
	begin := r.state.next
	for saved := began; ; {
		sliced := time.Now()
		size, last, err := r.slice(ctx)
		if err != nil {
			return r.cut(ctx, err)
		}
		if last {
			r.state.LastBegan, r.state.LastFound = r.state.Began, r.found
			r.state.Began, r.state.found, r.state.next = time.Time{}, 0, nil
		}
		over := func() bool { // A call that comes to nothing would be repeated for ever.
			return r.options.For > 0 && time.Since(began) >= r.options.For && !bytes.Equal(r.state.next, begin)
		}
		if last || over() || time.Since(saved) >= saveEvery {
			taken, err := r.save(ctx)
			if err != nil {
				return r.cut(ctx, err)
			}
			saved, r.report.Ended = time.Now(), last && !taken
		} else if err := r.look(ctx); err != nil {
			return r.cut(ctx, err)
		}
		if r.report.Ended || r.state.Began.IsZero() || over() { // Another process may have come to the end.
			return nil
		}
		if err := r.rest(ctx, sliced, size); err != nil {
			return r.cut(ctx, err)
		}
	}
}

// waits reports whether there is nothing to do: the next pass is not due, or another process is at work.
func (r *scrubber) waits() bool {
	if r.options.Every <= 0 {
		return false
	}
	now := r.now()
	if age := now.Sub(r.state.noted); !r.state.Began.IsZero() && r.state.holder != r.holder && age >= 0 && age < silent {
		return true
	}
	age := now.Sub(r.state.LastBegan)
	return r.state.Began.IsZero() && !r.state.LastBegan.IsZero() && age >= 0 && age < r.options.Every
}

// cut notes how far a scrub came that ends with an error, and returns the error.
func (r *scrubber) cut(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, serr := r.save(ctx)
	return errors.Join(err, serr)
}

// read reads the scrub record.
func (r *scrubber) read(ctx context.Context) error {
	vs, err := r.store.Engine.Get(ctx, r.key)
	if err != nil {
		return err
	}
	return r.take(vs[0])
}

// look takes over what another process has noted since.
func (r *scrubber) look(ctx context.Context) error {
	vs, err := r.store.Engine.Get(ctx, r.key)
	if err != nil || bytes.Equal(vs[0], r.value) {
		return err
	}
	return r.take(vs[0])
}

// take takes over what the record says.
func (r *scrubber) take(value []byte) error {
	state, err := decodeScrub(r.key, value)
	if errors.Is(err, damage.ErrFormat) {
		return codec.Corrupt(err, "scrub record")
	}
	if r.state, r.value, r.found = state, value, state.found; err != nil {
		r.state, r.found = ScrubState{}, 0
		r.problem(err, "scrub record")
	}
	if r.next = r.state.next; !bytes.HasPrefix(r.next, r.store.Space.Everything().Start) {
		r.next = r.store.Space.Everything().Start
	}
	return nil
}

// An object is the records of a segment or of a blob, which follow each other, or one other record.
type object []engine.Pair

// slice reads the next objects and verifies them. It returns their size, and whether they are the last ones.
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

// mark notes that the pass has come to a key, if its text is not somebody's: an erasure could not find that here. Of the
// records of a session, it notes the first one by its session; in the list of all records there is no such place.
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

// skip goes on behind a place that the engine can't read. It takes longer and longer steps until the engine can read
// again, and then halves the last one. It reports whether there is nothing behind.
func (r *scrubber) skip(ctx context.Context, damaged error) (last bool, err error) {
	from, all := r.next, r.store.Space.Everything()
	const width = 25 // bytes that are counted: the letter, and in most keys an incarnation or a hash, and a revision
	var number [width]byte
	copy(number[:], from[len(all.Start):])
	key := func(n *big.Int) []byte { return append(bytes.Clone(all.Start), n.FillBytes(make([]byte, width))...) }
	low := new(big.Int).SetBytes(number[:]) // can't be read
	var high *big.Int                       // can
	for step := uint(0); high == nil; step += 4 {
		at := new(big.Int).Add(low, new(big.Int).Lsh(big.NewInt(1), step))
		if at.BitLen() > 8*width {
			r.next = append(bytes.Clone(all.Start), 0xff) // no letter is as large
			r.problem(fmt.Errorf("%w: the records from key %x on were not read", damaged, from), "files")
			return true, nil
		}
		readable, err := r.readable(ctx, key(at))
		switch {
		case err != nil:
			return false, err
		case readable:
			high = at
		default:
			low = at
		}
	}
	for {
		at := new(big.Int).Add(low, high)
		if at.Rsh(at, 1).Cmp(low) == 0 {
			break
		}
		readable, err := r.readable(ctx, key(at))
		switch {
		case err != nil:
			return false, err
		case readable:
			high = at
		default:
			low = at
		}
	}
	r.next = key(high)
	r.problem(fmt.Errorf("%w: the records from key %x up to %x were not read", damaged, from, r.next), "files")
	r.mark(r.next)
	return false, nil
}

// readable reports whether the engine can read the next record from a key on.
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

// check verifies an object. The error ends the scrub.
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

// confirm reads an object again, in one call, that was read in several pages, and reports it unless it is whole, or was
// moved or removed meanwhile. of is the session whose segment it is, or zero.
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

// save notes how far the pass has come. If another process has noted something since, save takes over what that says.
func (r *scrubber) save(ctx context.Context) (taken bool, err error) {
	r.state.holder, r.state.noted = r.holder, r.now()
	record := r.state.encode(r.key)
	err = history.Settle(ctx, r.store.Engine, func(c *history.Change) error {
		vs, err := r.store.Engine.Get(ctx, r.key)
		switch {
		case err != nil:
			return err
		case bytes.Equal(vs[0], record): // An attempt whose outcome was unknown has taken effect.
			r.value = record
			return nil
		case !bytes.Equal(vs[0], r.value):
			taken = true
			return r.take(vs[0])
		}
		var b engine.Batch
		b.Guard(r.key, r.value)
		b.Set(r.key, record)
		if err := c.Apply(ctx, &b); err != nil {
			return err
		}
		r.value = record
		return nil
	})
	return taken, err
}

// rest waits until a slice that was begun at a time has taken as long as the rate asks for.
func (r *scrubber) rest(ctx context.Context, begun time.Time, size int) error {
	if r.options.Rate <= 0 {
		return ctx.Err()
	}
	due := begun.Add(time.Duration(float64(size) / float64(r.options.Rate) * float64(time.Second)))
	select {
	case <-time.After(time.Until(due)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
