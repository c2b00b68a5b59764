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
	report   *Report
	pack     *pack
	seen     map[string]bool // sessions that were compared
	whole    map[string]bool // sessions of which what comes after the last bundle can't be told
	before   *index          // the generation before, if the run begins one
	switches uint64          // of the feed that is followed
	used     bool            // the pack has a bundle
	missed   bool            // A session was not there any more under the id that it had in the list.
}

// run makes one run.
func (b *backup) run(ctx context.Context) (*Report, error) {
	r := &running{backup: b, report: &Report{}, seen: map[string]bool{}, whole: map[string]bool{}}
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
		r.before = x
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
	r.report.Expired, err = Expire(ctx, b.to, b.now().Add(-b.o.Keep))
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
		case errors.Is(err, ErrTarget):
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
	return err != nil || x.Complete > 0 && b.now().Sub(at) >= b.o.GenerationEvery || x.Run >= maxRuns
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

// A ref names a session: by its incarnation, or else by its id.
type ref struct{ session, id string }

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
	if r.report.AllOfThem { // Those that are not in the list are gone, or were renamed while it was read.
		var rest []ref
		for session, e := range r.sessions {
			if !e.Gone && !r.seen[session] {
				rest = append(rest, ref{session: session})
			}
		}
		if err := r.pages(ctx, rest); err != nil {
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

// lacking counts the sessions that could not be read, and of which the generation has nothing.
func (r *running) lacking() (n int) {
	for _, err := range r.report.Failed {
		var of *sessionError
		if !errors.As(err, &of) || r.ids[of.id] == "" && r.sessions[of.id] == nil {
			n++
		}
	}
	return n
}

func refsTo(ids []string) []ref {
	refs := make([]ref, len(ids))
	for i, id := range ids {
		refs[i].id = id
	}
	return refs
}

func (r *running) pages(ctx context.Context, refs []ref) error {
	for some := range slices.Chunk(refs, turnstone.MaxPage/2) {
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

// changed returns the sessions that may have changed since the last run, and up to where the feed was read.
func (r *running) changed(ctx context.Context) (turnstone.Cursor, []ref, error) {
	var cursor turnstone.Cursor
	switch feed, err := r.st.Feed(ctx); {
	case errors.Is(err, turnstone.ErrFeedOff):
	case errors.Is(err, damage.ErrDamaged):
		r.report.Failed = append(r.report.Failed, fmt.Errorf("the feed: %w", err))
	case err != nil:
		return "", nil, err
	case feed.Records:
		cursor, r.switches = feed.End, feed.Switches
	}
	if cursor != "" && r.Cursor != "" && r.Switches == r.switches && r.Store == r.st.ID() {
		refs, told, err := r.told(ctx, cursor)
		if err != nil || told {
			return cursor, refs, err
		}
	}
	ids, err := push.List(ctx, r.st, "", time.Time{})
	if !errors.Is(err, damage.ErrDamaged) {
		r.report.AllOfThem = true
		return cursor, refsTo(ids), err
	}
	// Nothing tells which sessions there are, but for those that were there before.
	r.report.Failed = append(r.report.Failed, fmt.Errorf("the list of sessions: %w", err))
	var refs []ref
	for _, x := range []*index{r.index, r.before} {
		for session, e := range x.all() {
			if !e.Gone {
				refs = append(refs, ref{session: session})
			}
		}
	}
	return "", refs, nil
}

// told reads in the feed which sessions have changed up to a cursor. ok is false if it does not tell.
func (r *running) told(ctx context.Context, end turnstone.Cursor) (refs []ref, ok bool, err error) {
	if r.Cursor == end {
		return nil, true, nil
	}
	told := map[string]bool{}
	for c, err := range r.st.Watch(ctx, r.Cursor) {
		switch {
		case errors.Is(err, turnstone.ErrCursorExpired), errors.Is(err, turnstone.ErrFeedOff), errors.Is(err, turnstone.ErrInvalid):
			return nil, false, nil
		case errors.Is(err, damage.ErrDamaged):
			r.report.Failed = append(r.report.Failed, fmt.Errorf("the feed: %w", err))
			return nil, false, nil
		case err != nil:
			return nil, false, err
		}
		if !told[c.Incarnation] {
			told[c.Incarnation] = true
			refs = append(refs, ref{session: c.Incarnation})
		}
		if c.Cursor == end {
			break
		}
	}
	return refs, true, nil
}

// noteErased notes what the store has erased that the backup does not know of.
func (r *running) noteErased(ctx context.Context, during bool) error {
	for e, err := range r.st.Erasures(ctx) {
		if err != nil {
			return err
		}
		if one := (&erasure{Erased: e, Store: r.st.ID(), Run: r.Run + 1, During: during}); r.erased[one.what()] == nil {
			r.erased[one.what()] = one
		}
	}
	return nil
}

// A change is a session of which something is to be written.
type change struct {
	turnstone.Standing
	since  head.Revision
	before int // the run whose bundle goes before; 0 if all is written
	with   []*change
	done   bool // It is written, or in the bundle of another one.
}

// some writes what has changed of some sessions. attempt counts how often that was not possible.
func (r *running) some(ctx context.Context, refs []ref, attempt int) error {
	changes, err := r.compare(ctx, refs, attempt)
	if err != nil {
		return err
	}
	by := map[string]*change{}
	for _, c := range changes {
		by[c.ID] = c
	}
	// A new fork is written with its parent, if that is new as well.
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
			if to := root(c); to != c && !to.done && len(c.with) == 0 && len(to.with) < maxGroup-1 {
				to.with, c.done = append(to.with, c), true
			}
		}
	}
	var write func(c *change) error
	write = func(c *change) error {
		if c.done {
			return nil
		}
		c.done = true
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
func (r *running) compare(ctx context.Context, refs []ref, attempt int) (out []*change, err error) {
	var queries []turnstone.StandingQuery
	wanted := map[string]string{} // the sessions that are looked for, by their ids
	asked := map[string]string{}  // of which session the revision is asked for, by the id
	for _, of := range refs {
		session := of.session
		if session == "" {
			session = r.ids[of.id]
		} else {
			s, err := r.st.SessionByIncarnation(ctx, session)
			switch {
			case errors.Is(err, turnstone.ErrSessionNotFound), errors.Is(err, turnstone.ErrSessionDeleted):
				r.gone(session)
				continue
			case errors.Is(err, damage.ErrDamaged):
				r.fail(session, err)
				continue
			case err != nil:
				return nil, err
			}
			of.id = s.ID()
			wanted[of.id] = session
		}
		q := turnstone.StandingQuery{ID: of.id}
		if e := r.alive(session); e != nil {
			q.At = []head.Revision{e.Revision}
		}
		asked[of.id] = session
		queries = append(queries, q)
	}
	found, err := r.standings(ctx, queries)
	if err != nil {
		return nil, err
	}
	var again []ref
	there := map[string]bool{}
	for i := range found {
		s := &found[i]
		there[s.ID] = true
		if session := wanted[s.ID]; session == s.Incarnation {
			delete(wanted, s.ID)
		}
		if r.seen[s.Incarnation] && attempt == 0 {
			continue
		}
		c := &change{Standing: *s}
		if e := r.alive(s.Incarnation); e != nil && asked[s.ID] != s.Incarnation {
			again = append(again, ref{session: s.Incarnation})
			continue
		} else if e != nil && e.Run > r.Run { // It was written before, in this run.
			r.saw(s.Incarnation)
			continue
		} else if e != nil && e.standsFor(s) {
			if s.Revision == e.Revision && s.Rest == e.Rest && s.ID == e.ID {
				r.saw(s.Incarnation)
				continue
			}
			if !r.whole[s.Incarnation] {
				c.since, c.before = cmp.Or(e.Revision, turnstone.RevisionZero), e.Run
			}
		}
		r.saw(s.Incarnation)
		out = append(out, c)
	}
	for i := range queries {
		if id := queries[i].ID; wanted[id] == "" && !there[id] && !r.failed(id) {
			r.missed = true
		}
	}
	for id, session := range wanted {
		if !r.failed(id) { // It was renamed or deleted meanwhile.
			again = append(again, ref{session: session})
		}
	}
	if len(again) == 0 || attempt == attempts {
		return out, nil
	}
	more, err := r.compare(ctx, again, attempt+1)
	return append(out, more...), err
}

func (r *running) saw(session string) {
	if !r.seen[session] {
		r.seen[session] = true
		r.report.Compared++
	}
}

// gone notes that a session is not there any more.
func (r *running) gone(session string) {
	r.saw(session)
	if r.alive(session) != nil {
		r.set(&entry{Session: session, Run: r.Run + 1, Gone: true})
		r.report.Gone++
	}
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

// fail notes that a session can't be read. The backup keeps what it has of it.
func (r *running) fail(id string, err error) {
	if session := r.ids[id]; session != "" {
		r.seen[session] = true
	}
	if !r.failed(id) {
		r.report.Failed = append(r.report.Failed, &sessionError{id, err})
	}
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
	of := []turnstone.Bundled{{ID: c.ID, Since: c.since, Incarnation: c.Incarnation}}
	refs := []ref{{session: c.Incarnation}}
	for _, with := range c.with {
		of = append(of, turnstone.Bundled{ID: with.ID, Incarnation: with.Incarnation})
		refs = append(refs, ref{session: with.Incarnation})
	}
	p, since, err := r.parentOf(ctx, c, attempt)
	if err != nil {
		return err
	}
	if p != nil {
		of = append([]turnstone.Bundled{{ID: p.ID, Since: since, Incarnation: p.Session}}, of...)
	}
	if r.pack == nil {
		r.pack = newPack(ctx, r.to, r.generation, r.Run+1)
	}
	begin, hash := r.pack.n, blake3.New()
	bundled, err := r.st.Bundle(ctx, io.MultiWriter(r.pack, hash), of...)
	switch again := attempt+1 < attempts; {
	case err == nil:
	case ctx.Err() != nil, errors.Is(err, errEnded), errors.Is(err, io.ErrClosedPipe):
		return err
	case errors.Is(err, turnstone.ErrRevisionPruned) && again:
		r.whole[c.Incarnation] = true
		return r.some(ctx, refs, attempt+1)
	case again && (errors.Is(err, turnstone.ErrConflict) || errors.Is(err, turnstone.ErrSessionNotFound) || errors.Is(err, turnstone.ErrSessionDeleted) || errors.Is(err, turnstone.ErrRevisionNotFound)):
		return r.some(ctx, refs, attempt+1)
	case errors.Is(err, damage.ErrDamaged) && len(of) > 1:
		for _, one := range refs {
			if err := r.some(ctx, []ref{one}, max(attempt+1, attempts/2)); err != nil {
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
		r.set(&entry{
			Session: one.Incarnation, ID: one.ID, Run: r.Run + 1, Genesis: one.Genesis, Revision: one.Revision, Commit: one.Commit, Rest: one.Rest,
			Bundle: at, Content: bundled.Content, Before: one.before, Parent: p,
		})
		r.report.Sessions++
	}
	r.used = true
	if r.pack.n < packBytes {
		return nil
	}
	return r.flush(ctx, header{Complete: r.Complete, Cursor: r.Cursor, Switches: r.Switches, Lacking: r.Lacking})
}

// parentOf returns the session that a new fork goes on from, if the backup has it as it is now, and since when it is
// written once more. It returns nil if the fork comes with a copy of what it inherits.
func (r *running) parentOf(ctx context.Context, c *change, attempt int) (*parent, head.Revision, error) {
	if c.Parent == "" || c.before > 0 || attempt >= attempts/2 {
		return nil, 0, nil
	}
	q := turnstone.StandingQuery{ID: c.Parent}
	for range 2 { // The first answer says which session that is.
		found, err := r.standings(ctx, []turnstone.StandingQuery{q})
		if err != nil || len(found) != 1 {
			return nil, 0, err
		}
		e := r.alive(found[0].Incarnation)
		if e == nil {
			return nil, 0, nil
		}
		if e.standsFor(&found[0]) {
			return &parent{Session: e.Session, ID: c.Parent, Run: e.Run}, cmp.Or(e.Revision, turnstone.RevisionZero), nil
		}
		q.At = []head.Revision{e.Revision}
	}
	return nil, 0, nil
}

// flush stores what was written, and makes it a run with a header.
func (r *running) flush(ctx context.Context, h header) error {
	if p := r.pack; p != nil {
		r.pack = nil
		var err error
		if r.used {
			err = p.close(ctx, r.to)
		} else {
			err = p.abort()
		}
		if err != nil {
			return err
		}
		r.used = false
	}
	h.Time, h.Store = r.now().UTC(), r.st.ID()
	if !h.Time.After(r.Time) {
		h.Time = r.Time.Add(1)
	}
	return r.writeRun(ctx, r.to, h)
}
