package verify

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A scrub reads all records of a store, in passes that may take days. It finds out whether the disk still gives back
// what was written. This file says when a scrub reads, and how it goes on after an interruption; scrub_read.go says how
// it reads and verifies.
//
// A scrub verifies the checksum of each record, and the hashes of what segments and blobs hold. What records say of each
// other is for Check. Check keeps all of that in memory, so it can't stop and go on later.

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
	next      []byte    // the key with which the pass at work goes on
	found     uint64    // how many problems that pass has found before this key
	holder    [8]byte   // the store that wrote the record
	noted     time.Time // when it did
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

// Scrub goes on with the pass that is at work, or begins one. It reads up to the end of the pass, or for as long as o
// says. holder is random bytes of the store that calls. The report is nil if the scrub record can't be read.
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
	next    []byte // the key of the next record to read; state.next may be an earlier one
	found   uint64 // the number of problems that the pass has found before this key
}

const (
	// These bound a slice, which is what a scrub reads between two rests. With a low rate it is what may be read in a
	// second, but at least leastBytes.
	sliceBytes   = 1 << 20
	sliceRecords = 1000
	leastBytes   = 4 << 10
	// saveEvery is the time between two notes. A pass that is cut off repeats what it has read since the last one.
	saveEvery = 10 * time.Second
	// silent is the time after which a process that has noted nothing is taken for gone.
	silent = 3 * saveEvery
)

// run reads slice after slice. After each it takes over what another process has noted meanwhile.
func (r *scrubber) run(ctx context.Context) error {
	began := time.Now()
	for r.state.Began.IsZero() && !r.idle() { // If several processes begin a pass at once, one of them does.
		r.state.Began, r.next = r.now(), r.store.Space.Everything().Start
		r.state.next = r.next
		if _, err := r.save(ctx); err != nil {
			return err
		}
	}
	if r.idle() {
		return nil
	}
	begin := r.state.next
	over := func() bool { // The call makes progress first: otherwise the next call would only repeat it.
		return r.options.For > 0 && time.Since(began) >= r.options.For && !bytes.Equal(r.state.next, begin)
	}
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
		if last || over() || time.Since(saved) >= saveEvery {
			taken, err := r.save(ctx)
			if err != nil {
				return r.cut(ctx, err)
			}
			saved, r.report.Ended = time.Now(), last && !taken
		} else if err := r.look(ctx); err != nil {
			return r.cut(ctx, err)
		}
		if r.state.Began.IsZero() || over() { // This call, or another process, has come to the end of the pass.
			return nil
		}
		if err := r.rest(ctx, sliced, size); err != nil {
			return r.cut(ctx, err)
		}
	}
}

// idle reports whether the call has nothing to do, because the next pass is not due or another process is at work.
func (r *scrubber) idle() bool {
	if r.options.Every <= 0 {
		return false
	}
	within := func(since time.Time, d time.Duration) bool { // The clock may have been ahead then.
		age := r.now().Sub(since)
		return age >= 0 && age < d
	}
	if r.state.Began.IsZero() {
		return !r.state.LastBegan.IsZero() && within(r.state.LastBegan, r.options.Every)
	}
	return r.state.holder != r.holder && within(r.state.noted, silent)
}

// cut notes how far the scrub came, and returns the error that ends it. ctx may have ended.
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

// look takes over the record if another process has written it.
func (r *scrubber) look(ctx context.Context) error {
	vs, err := r.store.Engine.Get(ctx, r.key)
	if err != nil || bytes.Equal(vs[0], r.value) {
		return err
	}
	return r.take(vs[0])
}

// take makes the scrub go on where the record says.
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

// save writes the record. If another process has written it since, save takes over what that one says instead.
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

// rest sleeps until a slice has taken as long as its size may take at the rate. begun is when the slice was begun.
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
