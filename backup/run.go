package backup

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/sealed"
	"github.com/turnstonedb/turnstone/push"
)

// maxRuns is how many runs a generation has at most.
const maxRuns = 10_000

// A running is one run.
type running struct {
	*backup
	*index
	report   *Report
	pack     *pack
	used     bool            // the pack has a bundle
	older    *index          // of the generation before, if the run begins one
	switches uint64          // of the feed that is followed
	seen     map[string]bool // sessions that were compared
	failed   map[string]bool // sessions that can't be read, by their ids, or by their incarnations if the ids are not known
	unlisted bool            // Nothing tells which sessions there are.
	missed   bool            // A session was not there any more under the id that it had in the list.
	whole    map[string]bool // sessions of which what comes after the last bundle can't be told
}

// run makes one run, and notes in the store how it went. A store that may only be read has no such note.
func (b *backup) run(ctx context.Context) (*Report, error) {
	began := time.Now()
	r, err := b.attempt(ctx)
	problem := err
	if r != nil {
		problem = errors.Join(err, r.Err())
	}
	_ = b.st.NoteMaintenance(ctx, "backup", time.Since(began), r, problem)
	return r, err
}

// attempt is run, without the note.
func (b *backup) attempt(ctx context.Context) (*Report, error) {
	r := &running{backup: b, report: &Report{}, seen: map[string]bool{}, failed: map[string]bool{}, whole: map[string]bool{}}
	x := b.at
	b.at = nil // If the run fails, the next one reads what stands.
	if stands, err := b.stands(ctx, x); err != nil {
		return nil, err
	} else if !stands {
		if x, err = b.newest(ctx, r.report); err != nil {
			return nil, err
		}
	}
	if x == nil || b.o.NewGeneration || b.due(x) {
		var err error
		r.older = x
		if x, err = b.begin(ctx); err != nil {
			return nil, err
		}
		r.report.New = true
	}
	r.index = x
	if err := r.all(ctx); err != nil {
		if r.pack != nil {
			err = cmp.Or(r.pack.abort(), err) // A pack that can't be stored is why its bundle was cut off.
		}
		newest, nerr := b.isNewest(ctx, x)
		if errors.Is(err, fs.ErrExist) || nerr == nil && !newest && x.Run > 0 {
			err = fmt.Errorf("%w: %w", ErrOther, err)
		}
		return nil, err
	}
	if newest, err := b.isNewest(ctx, x); err != nil {
		return nil, err
	} else if !newest {
		return nil, fmt.Errorf("%w: it has begun a generation, or removed one", ErrOther)
	}
	b.at = x
	r.report.Generation, r.report.Run, r.report.Time = x.generation, x.Run, x.Time
	if b.o.Keep == 0 {
		return r.report, nil
	}
	var err error
	r.report.Expired, err = Expire(ctx, b.to, time.Now().Add(-b.o.Keep))
	return r.report, err
}

// stands reports whether the target has the newest generation as x has it.
func (b *backup) stands(ctx context.Context, x *index) (bool, error) {
	if x == nil || x.Run == 0 {
		return false, nil
	}
	if newest, err := b.isNewest(ctx, x); err != nil || !newest {
		return false, err
	}
	h, err := readHeader(ctx, b.to, x.generation, x.Run)
	if errors.Is(err, ErrTarget) {
		return false, nil
	}
	return h.Time.Equal(x.Time) && h.Before == x.Before, err
}

// isNewest reports whether no generation with runs is newer than that of x, which is there.
func (b *backup) isNewest(ctx context.Context, x *index) (bool, error) {
	names, err := generations(ctx, b.to)
	if err != nil {
		return false, err
	}
	for _, name := range slices.Backward(names) {
		if name == x.generation {
			return true, nil
		}
		if runs, err := runsOf(ctx, b.to, name); err != nil || runs > 0 {
			return false, err
		}
	}
	return false, nil
}

// newest returns where the newest generation stands, or nil if there is none that can go on.
func (b *backup) newest(ctx context.Context, r *Report) (*index, error) {
	all, err := generations(ctx, b.to)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Backward(all) {
		last, err := runsOf(ctx, b.to, name)
		var x *index
		if err == nil && last > 0 {
			x, err = readIndex(ctx, b.to, name, last)
		}
		switch {
		case errors.Is(err, ErrTarget), errors.Is(err, sealed.ErrKey) && b.o.NewGeneration:
			r.Damaged = err
			return nil, nil
		case err != nil || x != nil:
			return x, err
		}
	}
	return nil, nil
}

// due reports whether a new generation is to begin.
func (b *backup) due(x *index) bool {
	at, err := began(x.generation)
	return err != nil || x.Complete > 0 && time.Since(at) >= b.o.GenerationEvery || x.Run >= maxRuns
}

// generationTime is what the name of a generation begins with; the rest tells apart those that begin at the same time.
const generationTime = "20060102T150405.000000000Z"

// begin begins a generation behind all others.
func (b *backup) begin(ctx context.Context) (*index, error) {
	names, err := generations(ctx, b.to)
	if err != nil {
		return nil, err
	}
	at := time.Now().UTC()
	if len(names) > 0 {
		if last, err := began(names[len(names)-1]); err == nil && !at.After(last) {
			at = last.Add(1)
		}
	}
	var random [4]byte
	_, _ = rand.Read(random[:]) // does not fail
	return newIndex(at.Format(generationTime) + "-" + hex.EncodeToString(random[:])), nil
}

// all writes what has changed.
func (r *running) all(ctx context.Context) error {
	if err := r.noteErased(ctx, false); err != nil {
		return err
	}
	cursor, refs, err := r.changed(ctx)
	if err != nil {
		return err
	}
	if err := r.pages(ctx, refs); err != nil {
		return err
	}
	if r.report.All { // Those that are not in the list are gone, or were renamed while it was read.
		if err := r.pages(ctx, r.unseen()); err != nil {
			return err
		}
		for n := 0; r.missed && n < attempts; n++ {
			r.missed = false
			ids, err := push.List(ctx, r.st, "", time.Time{})
			if err == nil {
				err = r.pages(ctx, refsTo(ids))
			}
			if err != nil {
				return err
			}
		}
	}
	if err := r.noteErased(ctx, true); err != nil {
		return err
	}
	h := header{Complete: r.Run + 1, Cursor: cursor, Switches: r.switches, Lacking: r.lacking()}
	if len(r.report.Failed) > 0 { // The next run is to look at them again.
		h.Cursor, h.Switches = r.Cursor, r.Switches
	}
	if r.Run == r.Complete && r.Run > 0 && len(r.made[r.Run+1]) == 0 && r.Cursor == h.Cursor && r.Switches == h.Switches && r.Lacking == h.Lacking && !r.knowsMore() {
		if r.pack != nil { // with what was begun of a session that can't be read
			return r.pack.abort()
		}
		return nil
	}
	return r.flush(ctx, h)
}

// lacking counts the sessions that could not be read, and of which the generation has nothing. Those that are not
// known, because nothing tells which there are, count as one.
func (r *running) lacking() (n int) {
	for id := range r.failed {
		if r.ids[id] == "" && r.alive(id) == nil {
			n++
		}
	}
	if r.unlisted {
		n++
	}
	return n
}

// page is how many sessions are compared at once.
const page = turnstone.MaxPage / 2

func (r *running) pages(ctx context.Context, refs []ref) error {
	for some := range slices.Chunk(refs, page) {
		if err := r.some(ctx, some, 0); err != nil {
			return err
		}
	}
	return nil
}

// knowsMore reports whether the run has learned of erasures.
func (r *running) knowsMore() bool {
	for _, e := range r.erased {
		if e.Run > r.Run {
			return true
		}
	}
	return false
}
