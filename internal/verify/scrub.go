package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	Rate     int64         // how many bytes to read in a second at most; 0 means as many as possible
	For      time.Duration // when to end, so that another call goes on; 0 means at the end of the pass
	Progress func(records int)
}

// A ScrubReport is what a call of Scrub has read and found.
type ScrubReport struct {
	ScrubState
	Records  int
	Bytes    int64   // of their keys and values
	Problems []error // the first maxProblems
	More     int     // the number of problems beyond these
}

// A ScrubState says how far the scrubbing of a store has come. It is the content of the scrub record.
type ScrubState struct {
	Began    time.Time // when the pass that is at work began; zero between two passes
	Complete time.Time // when the last complete pass began; zero before that
	Found    uint64    // how many problems that pass found
	found    uint64    // how many the pass at work has found so far
	next     []byte    // the key that it goes on with
}

// encode returns the record of s for key.
func (s *ScrubState) encode(key []byte) []byte {
	var e codec.Encoder
	e.Array(5)
	e.Bytes(s.next)
	e.Uint(nanos(s.Began))
	e.Uint(s.found)
	e.Uint(nanos(s.Complete))
	e.Uint(s.Found)
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
	d.Shape(5)
	s.next = bytes.Clone(d.Bytes())
	s.Began, s.found = instant(d.Uint()), d.Uint()
	s.Complete, s.Found = instant(d.Uint()), d.Uint()
	return s, d.Done()
}

// Scrubbed returns how far the scrubbing of a store has come. A damaged record counts as none: the next scrub begins
// anew and writes it.
func Scrubbed(ctx context.Context, s history.Store) (ScrubState, error) {
	key := s.Space.Scrub()
	vs, err := s.Engine.Get(ctx, key)
	if err != nil {
		return ScrubState{}, err
	}
	state, err := decodeScrub(key, vs[0])
	if errors.Is(err, damage.ErrFormat) {
		return ScrubState{}, codec.Corrupt(err, "scrub record")
	}
	if err != nil {
		return ScrubState{}, nil
	}
	return state, nil
}

// Scrub goes on with the pass that is at work, or begins one, up to its end or for as long as o says. If several
// processes scrub a store, each goes on where the last of them was.
func Scrub(ctx context.Context, s history.Store, now func() time.Time, o ScrubOptions) (*ScrubReport, error) {
	r := &scrubber{store: s.Uncached(), now: now, options: o, key: s.Space.Scrub()}
	err := r.run(ctx)
	r.report.ScrubState = r.state
	return &r.report, err
}

// A scrubber is one call of Scrub.
type scrubber struct {
	store   history.Store
	now     func() time.Time
	options ScrubOptions
	report  ScrubReport
	key     []byte
	value   []byte // the record as it stands
	state   ScrubState
}

const (
	// A slice is what is read between two rests.
	sliceBytes   = 1 << 20
	sliceRecords = 1000
	// saveEvery is how much of its work a pass that is cut off may repeat.
	saveEvery = 10 * time.Second
)

func (r *scrubber) run(ctx context.Context) error {
	vs, err := r.store.Engine.Get(ctx, r.key)
	if err != nil {
		return err
	}
	if err := r.take(vs[0]); err != nil {
		return err
	}
	began := time.Now()
	for saved := began; ; {
		if r.state.Began.IsZero() {
			r.state.Began, r.state.next = r.now(), r.store.Space.Everything().Start
		}
		last, err := r.slice(ctx)
		if err != nil {
			return err
		}
		ended := r.options.For > 0 && time.Since(began) >= r.options.For
		if last {
			r.state.Complete, r.state.Found = r.state.Began, r.state.found
			r.state.Began, r.state.found, r.state.next = time.Time{}, 0, nil
		}
		if last || ended || time.Since(saved) >= saveEvery {
			saved = time.Now()
			taken, err := r.save(ctx)
			if err != nil {
				return err
			}
			last = last && !taken
		}
		if last || ended {
			return nil
		}
		if err := r.rest(ctx, began); err != nil {
			return err
		}
	}
}

// take takes over what the record says.
func (r *scrubber) take(value []byte) error {
	state, err := decodeScrub(r.key, value)
	if errors.Is(err, damage.ErrFormat) {
		return codec.Corrupt(err, "scrub record")
	}
	if r.state, r.value = state, value; err != nil {
		r.state = ScrubState{}
		r.problem(err, "scrub record")
	}
	return nil
}

// slice reads the next records and verifies them. It reports whether they are the last ones.
func (r *scrubber) slice(ctx context.Context) (last bool, err error) {
	all := r.store.Space.Everything()
	all.Start = r.state.next
	var pairs []engine.Pair
	size := 0
	last = true
	for p, err := range r.store.Engine.Scan(ctx, all) {
		if err != nil {
			return false, err
		}
		pairs, size = append(pairs, p), size+len(p.Key)+len(p.Value)
		if size >= sliceBytes || len(pairs) == sliceRecords {
			last = false
			break
		}
	}
	for _, p := range pairs {
		if err := r.check(ctx, p); err != nil {
			return false, err
		}
		r.state.next = engine.Successor(p.Key)
	}
	r.report.Records, r.report.Bytes = r.report.Records+len(pairs), r.report.Bytes+int64(size)
	if r.options.Progress != nil {
		r.options.Progress(r.report.Records)
	}
	return last, nil
}

// check verifies a record. The error ends the scrub.
func (r *scrubber) check(ctx context.Context, p engine.Pair) error {
	letter, fields, ok := r.store.Space.Fields(p.Key)
	what, err := "record", error(nil)
	if ok {
		what = recordNames[letter]
		_, err = codec.Decode(p.Key, p.Value, letter)
	} else {
		err = codec.Unknown(p.Key, p.Value)
	}
	switch {
	case letter == keys.Scrub: // take has read it.
	case errors.Is(err, damage.ErrFormat):
		return codec.Corrupt(err, "%s at key %x", what, p.Key)
	case err != nil:
		if inc, owned := owner(letter, fields); ok && owned {
			what += " of " + r.name(ctx, inc)
		}
		r.problem(err, "%s at key %x", what, p.Key)
	case letter == keys.Segment:
		if last, value := keys.SegmentFields(fields); value == 0 {
			return r.object(ctx, p, r.segment(ctx, head.Incarnation(fields), head.Revision(last)))
		}
	case letter == keys.Blob && fields[16] == 0:
		return r.object(ctx, p, r.store.Blobs.Check(ctx, keys.Hash(fields)))
	}
	return nil
}

// segment verifies the hashes of a segment.
func (r *scrubber) segment(ctx context.Context, inc head.Incarnation, last head.Revision) error {
	_, err := history.ReadBeside(ctx, r.store.Engine, [][]byte{r.store.Space.Life(inc)}, func(life [][]byte) (struct{}, error) {
		if life[0] == nil { // Vacuum removes the session.
			return struct{}{}, nil
		}
		_, err := r.store.Reader.At(ctx, inc, fmt.Sprintf("incarnation %x", inc), last)
		return struct{}{}, err
	})
	var corrupt *damage.CorruptError
	if errors.As(err, &corrupt) {
		err = codec.Corrupt(corrupt.Err, "commit %d of %s", last, r.name(ctx, inc))
	}
	return err
}

// object reports the error of an object whose first record is p, unless maintenance has moved or removed it meanwhile.
func (r *scrubber) object(ctx context.Context, p engine.Pair, err error) error {
	var corrupt *damage.CorruptError
	if !errors.As(err, &corrupt) {
		return err
	}
	if errors.Is(err, damage.ErrFormat) {
		return err
	}
	vs, gerr := r.store.Engine.Get(ctx, p.Key)
	if gerr == nil && bytes.Equal(vs[0], p.Value) {
		r.problem(err, "record at key %x", p.Key)
	}
	return gerr
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
	r.state.found++
	if len(r.report.Problems) == maxProblems {
		r.report.More++
		return
	}
	r.report.Problems = append(r.report.Problems, codec.Corrupt(err, format, args...))
}

// save writes the record. If another process has written it since, save takes over what that one says.
func (r *scrubber) save(ctx context.Context) (taken bool, err error) {
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

// rest waits until what was read since the call began is not more than the rate allows.
func (r *scrubber) rest(ctx context.Context, began time.Time) error {
	if r.options.Rate <= 0 {
		return ctx.Err()
	}
	due := time.Duration(float64(r.report.Bytes) / float64(r.options.Rate) * float64(time.Second))
	select {
	case <-time.After(due - time.Since(began)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
