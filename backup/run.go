package backup

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/zeebo/blake3"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/push"
)

const (
	maxRuns  = 10_000 // of a generation
	maxGroup = 100    // sessions of a bundle
	attempts = 6      // to write a bundle of sessions that are changed meanwhile
)

// A running is one run.
type running struct {
	*backup
	*index
	report *Report
	pack   *pack
	whole  map[string]bool // sessions of which what comes after the last bundle can't be told
	leaned map[string]bool // sessions that bundles of this run go on from without having an entry
}

// run makes one run.
func (b *backup) run(ctx context.Context) (_ *Report, err error) {
	r := &running{backup: b, report: &Report{}, whole: map[string]bool{}, leaned: map[string]bool{}}
	x := b.at
	b.at = nil // If the run fails, the next one reads what stands.
	if x == nil {
		if x, err = b.newest(ctx, r.report); err != nil {
			return nil, err
		}
	}
	if x == nil || b.o.NewGeneration || b.due(x) {
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
		if errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("%w: %w", ErrOther, err)
		}
		return nil, err
	}
	b.at = x
	r.report.Generation, r.report.Run, r.report.Time = x.generation, x.Run, x.Time
	if b.o.Keep > 0 {
		if r.report.Expired, err = Expire(ctx, b.to, b.now().Add(-b.o.Keep)); err != nil {
			return nil, err
		}
	}
	return r.report, nil
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
		case errors.Is(err, ErrTarget):
			r.Failed = append(r.Failed, fmt.Errorf("a new generation begins, as this one is damaged: %w", err))
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
	return err != nil || b.now().Sub(at) >= b.o.GenerationEvery || x.Run >= maxRuns
}

// generationTime is what the name of a generation begins with; the rest tells apart those that begin at the same time.
const generationTime = "20060102T150405.000000000Z"

// begin begins a generation behind all others.
func (b *backup) begin(ctx context.Context) (*index, error) {
	names, err := generations(ctx, b.to)
	if err != nil {
		return nil, err
	}
	at := b.now().UTC()
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
	cursor, ids, err := r.changed(ctx)
	if err != nil {
		return err
	}
	r.report.Compared = len(ids)
	for some := range slices.Chunk(ids, turnstone.MaxPage) {
		if err := r.some(ctx, some, 0); err != nil {
			return err
		}
	}
	if err := r.noteErased(ctx); err != nil {
		return err
	}
	if r.Run == r.Complete && r.Run > 0 && len(r.made[r.Run+1]) == 0 && r.Cursor == cursor && !r.knowsMore() {
		return nil
	}
	return r.flush(ctx, cursor, true)
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

// changed returns the ids of the sessions that may have changed since the last run, and up to where the feed was read.
func (r *running) changed(ctx context.Context) (turnstone.Cursor, []string, error) {
	var cursor turnstone.Cursor
	switch feed, err := r.st.Feed(ctx); {
	case errors.Is(err, turnstone.ErrFeedOff):
	case err != nil:
		return "", nil, err
	case feed.Records:
		cursor = feed.End
	}
	if cursor != "" && r.Cursor != "" {
		ids, told, err := r.told(ctx, cursor)
		if err != nil || told {
			return cursor, ids, err
		}
	}
	r.report.AllOfThem = true
	ids, err := push.List(ctx, r.st, "", time.Time{})
	if err != nil {
		return "", nil, err
	}
	listed := map[string]bool{}
	for _, id := range ids {
		listed[id] = true
	}
	for id, e := range r.sessions {
		if !e.Gone && !listed[id] {
			ids = append(ids, id)
		}
	}
	return cursor, ids, nil
}

// told reads in the feed which sessions have changed up to a cursor. ok is false if it does not tell.
func (r *running) told(ctx context.Context, end turnstone.Cursor) (ids []string, ok bool, err error) {
	if r.Cursor == end {
		return nil, true, nil
	}
	seen := map[string]bool{}
	for c, err := range r.st.Watch(ctx, r.Cursor) {
		switch {
		case errors.Is(err, turnstone.ErrCursorExpired), errors.Is(err, turnstone.ErrFeedOff), errors.Is(err, turnstone.ErrInvalid):
			return nil, false, nil
		case err != nil:
			return nil, false, err
		case c.Session == "": // It was erased, and nothing tells what its id was.
			return nil, false, nil
		}
		for _, id := range []string{c.Session, c.To} {
			if id != "" && !seen[id] {
				seen[id] = true
				ids = append(ids, id)
			}
		}
		if c.Cursor == end {
			break
		}
	}
	return ids, true, nil
}

// noteErased notes what the store has erased that the backup does not know of.
func (r *running) noteErased(ctx context.Context) error {
	for e, err := range r.st.Erasures(ctx) {
		if err != nil {
			return err
		}
		if one := (&erasure{Erased: e, Run: r.Run + 1}); r.erased[one.what()] == nil {
			r.erased[one.what()] = one
		}
	}
	return nil
}

// A change is a session of which something is to be written.
type change struct {
	turnstone.Standing
	since  head.Revision
	before int    // the run whose bundle goes before; 0 if all is written
	was    string // the id at that run, if it was another one
	with   []*change
	joined bool // It is written, or in the bundle of another one.
}

// some writes what has changed of some sessions. attempt counts how often that was not possible.
func (r *running) some(ctx context.Context, ids []string, attempt int) error {
	changes, err := r.compare(ctx, ids)
	if err != nil {
		return err
	}
	// A new fork is written with its parent, if that is new as well.
	by := map[string]*change{}
	for _, c := range changes {
		by[c.ID] = c
	}
	root := func(c *change) *change {
		for range maxGroup {
			p := by[c.Parent]
			if c.Parent == "" || c.before > 0 || p == nil || p.before > 0 {
				return c
			}
			c = p
		}
		return c
	}
	if attempt < attempts/2 {
		for _, c := range changes {
			if to := root(c); to != c && !to.joined && len(c.with) == 0 && len(to.with) < maxGroup-1 {
				to.with, c.joined = append(to.with, c), true
			}
		}
	}
	var write func(c *change) error
	write = func(c *change) error {
		if c.joined {
			return nil
		}
		c.joined = true
		if p := by[c.Parent]; p != nil { // Its entry is what the bundle of c goes on from.
			if err := write(p); err != nil {
				return err
			}
		}
		return r.write(ctx, c, attempt)
	}
	for _, c := range changes {
		if err := write(c); err != nil {
			return err
		}
	}
	return nil
}

// compare returns which of some sessions have changed, and notes which are gone.
func (r *running) compare(ctx context.Context, ids []string) ([]*change, error) {
	queries := make([]turnstone.StandingQuery, len(ids))
	for i, id := range ids {
		queries[i].ID = id
		if e := r.alive(id); e != nil {
			queries[i].At = []head.Revision{e.Revision}
		}
	}
	found, err := r.standings(ctx, queries)
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	var out []*change
	for i := range found {
		s := &found[i]
		there[s.ID] = true
		c := &change{Standing: *s}
		e := r.alive(s.ID)
		switch {
		case e == nil || !e.standsFor(s):
			if e, err = r.renamed(ctx, s); err != nil {
				return nil, err
			}
			if e != nil {
				c.was = e.ID
			}
		case s.Revision == e.Revision && s.Rest == e.Rest:
			continue
		}
		if e != nil && !r.whole[s.ID] {
			c.since, c.before = cmp.Or(e.Revision, turnstone.RevisionZero), e.Run
		} else {
			c.was = ""
		}
		out = append(out, c)
	}
	for _, id := range ids {
		if r.alive(id) != nil && !there[id] && !r.failed(id) {
			r.set(&entry{ID: id, Run: r.Run + 1, Gone: true})
			r.report.Gone++
		}
	}
	return out, nil
}

// renamed returns the entry of a session under the id that it had at the last run, or nil if that is not known.
func (r *running) renamed(ctx context.Context, s *turnstone.Standing) (*entry, error) {
	e := r.alive(r.by[s.Genesis])
	if e == nil || e.ID == s.ID {
		return nil, nil
	}
	found, err := r.standings(ctx, []turnstone.StandingQuery{{ID: s.ID, At: []head.Revision{e.Revision}}, {ID: e.ID}})
	if err != nil {
		return nil, err
	}
	stands := false
	for i := range found {
		switch {
		case found[i].ID == s.ID:
			stands = e.standsFor(&found[i])
		case found[i].Genesis == s.Genesis: // There are two of them.
			return nil, nil
		}
	}
	if !stands {
		return nil, nil
	}
	return e, nil
}

// standsFor reports whether an entry is of an earlier time of a session. s.At has the commit at the entry's revision.
func (e *entry) standsFor(s *turnstone.Standing) bool {
	return e.Genesis == s.Genesis && len(s.At) == 1 && s.At[0] == e.Commit
}

// standings asks the store where sessions stand. Those that are damaged are noted as failed.
func (r *running) standings(ctx context.Context, queries []turnstone.StandingQuery) ([]turnstone.Standing, error) {
	found, err := r.st.Standings(ctx, queries...)
	if !errors.Is(err, damage.ErrDamaged) {
		return found, err
	}
	if len(queries) == 1 {
		r.fail(queries[0].ID, err)
		return nil, nil
	}
	found = nil
	for half := range slices.Chunk(queries, (len(queries)+1)/2) {
		some, err := r.standings(ctx, half)
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}

// A sessionError says which session could not be read.
type sessionError struct {
	id  string
	err error
}

func (e *sessionError) Error() string { return fmt.Sprintf("session %q: %v", e.id, e.err) }
func (e *sessionError) Unwrap() error { return e.err }

func (r *running) fail(id string, err error) {
	r.report.Failed = append(r.report.Failed, &sessionError{id, err})
}

// failed reports whether a session could not be read.
func (r *running) failed(id string) bool {
	return slices.ContainsFunc(r.report.Failed, func(err error) bool {
		var of *sessionError
		return errors.As(err, &of) && of.id == id
	})
}

// write writes the bundle of a session, and of those with it.
func (r *running) write(ctx context.Context, c *change, attempt int) error {
	of := []turnstone.Bundled{{ID: c.ID, Since: c.since}}
	ids := []string{c.ID}
	for _, with := range c.with {
		of = append(of, turnstone.Bundled{ID: with.ID})
		ids = append(ids, with.ID)
	}
	if c.before == 0 && r.leaned[c.ID] { // What goes on from it is to find it at the run before.
		if err := r.flush(ctx, r.Cursor, false); err != nil {
			return err
		}
	}
	parent, err := r.parentOf(ctx, c, attempt)
	if err != nil {
		return err
	}
	if parent != nil {
		of = append([]turnstone.Bundled{{ID: parent.ID, Since: cmp.Or(parent.Revision, turnstone.RevisionZero)}}, of...)
	}
	if r.pack == nil {
		r.pack = newPack(ctx, r.to, r.generation, r.Run+1)
	}
	begin, hash := r.pack.n, blake3.New()
	_, err = r.st.Bundle(ctx, io.MultiWriter(r.pack, hash), of...)
	switch again := attempt+1 < attempts; {
	case err == nil:
	case ctx.Err() != nil, errors.Is(err, errEnded), errors.Is(err, io.ErrClosedPipe):
		return err
	case errors.Is(err, turnstone.ErrRevisionPruned) && again:
		r.whole[c.ID] = true
		return r.some(ctx, ids, attempt+1)
	case again && (errors.Is(err, turnstone.ErrConflict) || errors.Is(err, turnstone.ErrSessionNotFound) || errors.Is(err, turnstone.ErrSessionDeleted) || errors.Is(err, turnstone.ErrRevisionNotFound)):
		return r.some(ctx, ids, attempt+1)
	case errors.Is(err, damage.ErrDamaged) && len(ids) > 1:
		for _, id := range ids {
			if err := r.some(ctx, []string{id}, max(attempt, attempts/2)); err != nil {
				return err
			}
		}
		return nil
	case errors.Is(err, damage.ErrDamaged):
		r.fail(c.ID, err)
		return nil
	default:
		return fmt.Errorf("session %q: %w", c.ID, err)
	}
	at := extent{Pack: r.pack.name, Offset: begin, Size: r.pack.n - begin, Sum: sum(hash.Sum(nil))}
	r.report.Bytes += at.Size
	for _, one := range append([]*change{c}, c.with...) {
		e := &entry{
			ID: one.ID, Run: r.Run + 1, Genesis: one.Genesis, Revision: one.Revision, Commit: one.Commit, Rest: one.Rest, Bundle: at, Before: one.before, Was: one.was,
		}
		if parent != nil {
			e.Parent = parent.ID
			r.leaned[parent.ID] = true
		}
		r.set(e)
		r.report.Sessions++
	}
	if r.pack.n < packBytes {
		return nil
	}
	return r.flush(ctx, r.Cursor, false)
}

// parentOf returns the entry of the session that a new fork goes on from, or nil if it comes with a copy of what it
// inherits.
func (r *running) parentOf(ctx context.Context, c *change, attempt int) (*entry, error) {
	p := r.alive(c.Parent)
	if c.Parent == "" || c.before > 0 || p == nil || attempt >= attempts/2 {
		return nil, nil
	}
	found, err := r.standings(ctx, []turnstone.StandingQuery{{ID: p.ID, At: []head.Revision{p.Revision}}})
	if err != nil || len(found) != 1 || !p.standsFor(&found[0]) {
		return nil, err
	}
	return p, nil
}

// flush stores what was written, and makes it a run. complete says that the run has come to all sessions.
func (r *running) flush(ctx context.Context, cursor turnstone.Cursor, complete bool) error {
	if p := r.pack; p != nil {
		r.pack = nil
		if err := p.close(ctx, r.to); err != nil {
			return err
		}
	}
	h := header{Time: r.now().UTC(), Complete: r.Complete, Cursor: cursor}
	if !h.Time.After(r.Time) {
		h.Time = r.Time.Add(1)
	}
	if complete {
		h.Complete = r.Run + 1
	}
	clear(r.leaned)
	return r.writeRun(ctx, r.to, h)
}
