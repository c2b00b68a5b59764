package backup

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/blake3"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/push"
)

// This file restores sessions. Their bundles go into an empty store of their own, a number of sessions at a time, and
// from there the sessions are pushed to where they are to be. So the sessions that a fork goes on from need not be
// restored with it, and what was erased since goes no further.

// RestoreOptions of Restore.
type RestoreOptions struct {
	// At is the time whose state is restored: that of the last run that had ended then. Default: the last run.
	At time.Time
	// Sessions are the ids that the sessions had then. Default: all.
	Sessions []string
	// As is the id that the session gets, if Sessions names one.
	As string
	// Progress, if set, is called with each session that was made or brought forward.
	Progress func(turnstone.Unbundled)
	// Dir is where a directory for what does not fit into memory is made, and removed. Default: os.TempDir.
	Dir string
}

// A Restored says what Restore has done.
type Restored struct {
	push.Report           // of what came; its Bytes are those of the bundles that were read
	Generation  string    `json:"generation"`
	Run         int       `json:"run"`
	Time        time.Time `json:"time"`             // of the run
	Erased      []string  `json:"erased,omitempty"` // ids of sessions that were erased since, and stay so
}

// ErrNoBackup says that a target has nothing from before the time that was asked for.
var ErrNoBackup = errors.New("turnstone: no backup of that time")

// Restore brings sessions to a store as they were at a time that a backup has. A session that exists there goes on from
// where it is, if it stood there in the backup once. If it is further there, it stays. If it has gone another way, the
// error matches turnstone.ErrDiverged, and turnstone.ErrExists if another session has the id: with RestoreOptions.As,
// the one of the backup gets an id of its own. What is there and not in the backup stays.
//
// What Store.Erase and Session.Erase have erased does not come back, as far as a run of the backup knows, or the store
// that is restored to, if that is a *turnstone.Store: the sessions are in Restored.Erased, and nodes come as tombstones. A
// session that came from one that was erased, or that it came from, counts as erased too, unless it lived when the last
// run was made. A fork whose parent is
// neither there nor restored comes with a copy of what it inherits.
//
// If some sessions can't be restored, the others are, and the error is that of all of them. A call that was cut off can
// be repeated. The report is never nil.
func Restore(ctx context.Context, from Target, to push.Peer, o RestoreOptions) (*Restored, error) {
	out := &Restored{}
	switch {
	case from == nil:
		return out, invalid("the target is nil")
	case to == nil:
		return out, invalid("the store is nil")
	case o.As != "" && len(o.Sessions) != 1:
		return out, invalid("As is for one session")
	}
	x, erased, err := at(ctx, from, o.At)
	if err != nil {
		return out, err
	}
	out.Generation, out.Run, out.Time = x.generation, x.Run, x.Time
	if err := erased.settle(ctx, x, to); err != nil {
		return out, err
	}
	failed := erased.unknown
	if x.Lacking > 0 && len(o.Sessions) == 0 {
		failed = append(failed, fmt.Errorf("%w: %d sessions of the store could not be read when generation %s was made: an earlier one may have them", ErrTarget, x.Lacking, x.generation))
	}
	ids := x.named()
	var sessions []string
	take := func(id string) {
		if e := x.sessions[ids[id]]; erased.sessions[e.Session] {
			out.Erased = append(out.Erased, id)
		} else {
			sessions = append(sessions, e.Session)
		}
	}
	for _, id := range slices.Compact(slices.Sorted(slices.Values(o.Sessions))) {
		if ids[id] == "" {
			failed = append(failed, fmt.Errorf("%w: %q at %v", turnstone.ErrSessionNotFound, id, x.Time.Format(time.RFC3339)))
			continue
		}
		take(id)
	}
	if len(o.Sessions) == 0 {
		for _, id := range slices.Sorted(maps.Keys(ids)) {
			take(id)
		}
	}
	r := newRestoring(from, x, ids)
	r.to, r.o, r.erased, r.out = to, o, erased, out
	some, err := r.all(ctx, sessions)
	return out, errors.Join(append(append(failed, some...), err)...)
}

// named returns the sessions that are there, by their ids. Of two that had one id while the run was made, one after the
// other, the one that was seen first has a part of its incarnation behind it.
func (x *index) named() map[string]string {
	out := map[string]string{}
	for session, e := range x.sessions {
		if e.Gone {
			continue
		}
		if x.ids[e.ID] == session {
			out[e.ID] = session
		} else {
			out[strings.ToValidUTF8(e.ID[:min(len(e.ID), turnstone.MaxSessionID-9)], "")+"/"+session[:8]] = session
		}
	}
	return out
}

// at returns where all sessions stood at a time, and what was erased since.
func at(ctx context.Context, from Target, when time.Time) (*index, *erasures, error) {
	names, err := generations(ctx, from)
	if err != nil {
		return nil, nil, err
	}
	erased := &erasures{since: map[erasedKey]bool{}, living: map[string]bool{}}
	settled := false
	for _, name := range slices.Backward(names) {
		x, latest, err := readLast(ctx, from, name, when)
		if errors.Is(err, ErrTarget) {
			erased.unknown = append(erased.unknown, fmt.Errorf("in generation %s something is damaged, so what was erased in its time may be back: %w", name, err))
		} else if err != nil {
			return nil, nil, err
		}
		if latest != nil {
			for session, e := range latest.sessions {
				if _, known := erased.living[session]; !known && !settled {
					erased.living[session] = !e.Gone
				}
			}
			settled = settled || latest.Complete > 0 && latest.Lacking == 0 // Then a session that it does not have is gone.
			for key := range latest.erased {
				erased.since[key] = true
			}
		}
		if x == nil {
			continue
		}
		return x, erased, nil
	}
	return nil, nil, errors.Join(append(erased.unknown, ErrNoBackup)...)
}

// readLast returns where all sessions stood at the last complete run of a generation that had ended at a time, or at
// the last one of all if the time is zero, and at the last run. What can't be read is nil, and an earlier run stands
// for it; then the error says so.
func readLast(ctx context.Context, from Target, generation string, when time.Time) (x, latest *index, damaged error) {
	last, err := runsOf(ctx, from, generation)
	if err != nil && !errors.Is(err, ErrTarget) {
		return nil, nil, err
	}
	damaged = err
	run := last
	if !when.IsZero() {
		run, err = searchRuns(last, func(run int) (bool, error) {
			h, err := readHeader(ctx, from, generation, run)
			return h.Time.After(when), err
		})
		if errors.Is(err, ErrTarget) {
			damaged, run = err, last // Then one by one.
		} else if err != nil {
			return nil, nil, err
		}
	}
	read := func(run int) (*index, error) {
		one, err := readIndex(ctx, from, generation, run)
		if errors.Is(err, ErrTarget) {
			damaged, err = cmp.Or(damaged, err), nil
		}
		return one, err
	}
	if last > 0 {
		if latest, err = read(last); err != nil {
			return nil, nil, err
		}
	}
	for run > 0 {
		h, err := readHeader(ctx, from, generation, run)
		if err != nil && !errors.Is(err, ErrTarget) {
			return nil, nil, err
		}
		if err != nil || !when.IsZero() && h.Time.After(when) {
			damaged = cmp.Or(damaged, err)
			run--
			continue
		}
		if h.Complete == 0 {
			break
		}
		if run = h.Complete; latest != nil && run == latest.Run {
			x = latest
		} else if x, err = read(run); err != nil {
			return nil, nil, err
		}
		if x != nil {
			break
		}
		run--
	}
	return x, latest, damaged
}

// erasures are what was erased.
type erasures struct {
	since    map[erasedKey]bool
	living   map[string]bool // the sessions that are there at the newest run
	sessions map[string]bool // those that were erased
	nodes    map[string][]graph.ID
	unknown  []error // of what can't be read
}

// settle finds out which sessions of a run, and which of their nodes, were erased. A session that was restored, or that
// came a second time, has another incarnation and the same genesis. So an erasure is about all sessions of that genesis,
// but for those that live all the same.
func (e *erasures) settle(ctx context.Context, x *index, to push.Peer) error {
	e.sessions, e.nodes = map[string]bool{}, map[string][]graph.ID{}
	by := map[head.CommitID][]*entry{}
	for _, one := range x.sessions {
		if !one.Gone {
			by[one.Genesis] = append(by[one.Genesis], one)
		}
	}
	about := func(k erasedKey, lives func(session string) (bool, error)) error {
		for _, one := range by[k.genesis] {
			if known := x.erased[k]; known != nil && (known.Run < one.Run || known.Run == one.Run && !known.During) {
				continue // What the entry has is what was left.
			}
			if k.session != one.Session {
				alive, err := lives(one.Session)
				if err != nil {
					return err
				}
				if alive {
					continue
				}
			}
			if k.node.IsZero() {
				e.sessions[one.Session] = true
			} else {
				e.nodes[one.Session] = append(e.nodes[one.Session], k.node)
			}
		}
		return nil
	}
	for k := range e.since {
		if err := about(k, func(session string) (bool, error) { return e.living[session], nil }); err != nil {
			return err
		}
	}
	st, ok := to.(*turnstone.Store)
	if !ok {
		return nil
	}
	for one, err := range st.Erasures(ctx) {
		if err != nil {
			return err
		}
		k := (&erasure{Erased: one, Store: st.ID()}).what()
		if e.since[k] {
			continue
		}
		err := about(k, func(session string) (bool, error) {
			_, err := st.SessionByIncarnation(ctx, session)
			if errors.Is(err, turnstone.ErrSessionNotFound) || errors.Is(err, turnstone.ErrSessionDeleted) {
				return false, nil
			}
			return err == nil, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// A restoring is one call of Restore.
type restoring struct {
	from   Target
	to     push.Peer
	o      RestoreOptions
	at     *index
	names  map[string]string // the ids that sessions get
	erased *erasures
	out    *Restored
	runs   map[int]map[string]*entry // that were read: what each has made itself
	check  bool                      // compares what the bundles make with the entries, instead of pushing it
}

func newRestoring(from Target, x *index, ids map[string]string) *restoring {
	names := map[string]string{}
	for id, session := range ids {
		names[session] = id
	}
	return &restoring{from: from, at: x, names: names, erased: &erasures{}, out: &Restored{}, runs: map[int]map[string]*entry{}}
}

// A step is a bundle that has to be read.
type step struct {
	run      int
	at       extent
	content  int64             // bytes that it has
	whole    bool              // it needs nothing that was read before
	sessions map[string]string // those in it, by the ids that they have there
	needed   []string          // those of them that it is read for
}

func (s *step) compare(other *step) int {
	return cmp.Or(cmp.Compare(s.run, other.run), cmp.Compare(s.at.Pack, other.at.Pack), cmp.Compare(s.at.Offset, other.at.Offset))
}

// A family are sessions that have bundles in common, or that go on from each other.
type family struct {
	sessions []string // those that are to be restored
	steps    map[extent]*step
	of       map[string]map[extent]bool // the steps that each session needs
	bytes    int64
}

const (
	batchBytes = 32 << 20 // of contents that a store in memory takes
)

// all restores sessions, a number of families at a time. failed are the errors of those that can't be restored.
func (r *restoring) all(ctx context.Context, sessions []string) (failed []error, err error) {
	slices.Sort(sessions)
	families, failed, err := r.families(ctx, sessions)
	if err != nil {
		return failed, err
	}
	batch := newFamily()
	flush := func() error {
		some, err := r.batch(ctx, batch)
		failed = append(failed, some...)
		batch = newFamily()
		return err
	}
	for _, f := range families {
		if err = r.skip(ctx, f); err != nil {
			return failed, err
		}
		if len(f.sessions) == 0 {
			continue
		}
		if batch.bytes+f.bytes > batchBytes && len(batch.sessions) > 0 {
			if err := flush(); err != nil {
				return failed, err
			}
		}
		batch.add(f)
	}
	return failed, flush()
}

func newFamily() *family {
	return &family{steps: map[extent]*step{}, of: map[string]map[extent]bool{}}
}

// add adds another family.
func (f *family) add(other *family) {
	f.sessions = append(f.sessions, other.sessions...)
	f.bytes += other.bytes
	maps.Copy(f.of, other.of)
	maps.Copy(f.steps, other.steps)
}

// take adds a step.
func (f *family) take(s *step) {
	mine := f.steps[s.at]
	if mine == nil {
		f.steps[s.at] = s
		return
	}
	for _, session := range s.needed {
		if !slices.Contains(mine.needed, session) {
			mine.needed = append(mine.needed, session)
		}
	}
}

// skip leaves out those sessions of a family that the store has already.
func (r *restoring) skip(ctx context.Context, f *family) error {
	if r.check || r.o.As != "" {
		return nil
	}
	has := map[string]bool{}
	for some := range slices.Chunk(f.sessions, turnstone.MaxPage) {
		queries, by := make([]turnstone.StandingQuery, len(some)), map[string]*entry{}
		for i, session := range some {
			e := r.at.sessions[session]
			queries[i] = turnstone.StandingQuery{ID: r.names[session], At: []head.Revision{e.Revision}}
			by[r.names[session]] = e
		}
		found, err := r.to.Standings(ctx, queries...)
		if err != nil {
			return err
		}
		for i := range found {
			e := by[found[i].ID]
			has[e.Session] = e.standsFor(&found[i]) && found[i].Revision == e.Revision && found[i].Rest == e.Rest
		}
	}
	before := len(f.sessions)
	f.sessions = slices.DeleteFunc(f.sessions, func(session string) bool { return has[session] })
	r.out.Same += before - len(f.sessions)
	return nil
}

// families finds out which bundles sessions need. failed are the errors of those of which that is not known.
func (r *restoring) families(ctx context.Context, sessions []string) (out []*family, failed []error, err error) {
	sets := disjoint{}
	steps := map[string]map[extent]*step{}
	for _, session := range sessions {
		of, err := r.stepsOf(ctx, session)
		if errors.Is(err, ErrTarget) {
			failed = append(failed, fmt.Errorf("session %q: %w", r.names[session], err))
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		steps[session] = of
		for at, s := range of {
			sets.join(session, at)
			for _, other := range s.needed {
				sets.join(session, other)
			}
		}
	}
	by := map[any]*family{}
	for _, session := range sessions {
		if steps[session] == nil {
			continue
		}
		f := by[sets.of(session)]
		if f == nil {
			f = newFamily()
			by[sets.of(session)] = f
			out = append(out, f)
		}
		f.sessions = append(f.sessions, session)
		f.of[session] = map[extent]bool{}
		for at, s := range steps[session] {
			f.of[session][at] = true
			if f.steps[at] == nil {
				f.bytes += at.Size + steps[session][at].content
			}
			f.take(s)
		}
	}
	return out, failed, nil
}

// disjoint are sets of sessions and of bundles (R. Tarjan, "Efficiency of a good but not linear set union algorithm",
// 1975).
type disjoint map[any]any

// of returns what stands for the set that a member is in.
func (d disjoint) of(member any) any {
	for d[member] != nil && d[member] != member {
		if up := d[d[member]]; up != nil {
			d[member] = up
		}
		member = d[member]
	}
	return member
}

func (d disjoint) join(a, b any) {
	if a, b = d.of(a), d.of(b); a != b {
		d[a] = b
	}
}

// stepsOf returns the bundles that make a session.
func (r *restoring) stepsOf(ctx context.Context, session string) (map[extent]*step, error) {
	steps := map[extent]*step{}
	needs := []*entry{r.at.sessions[session]}
	seen := map[*entry]bool{}
	before := func(session string, run int) error {
		made, err := r.made(ctx, run)
		if err != nil {
			return err
		}
		if made[session] == nil {
			return fmt.Errorf("%w: %s lacks session %s", ErrTarget, runName(r.at.generation, run), session)
		}
		needs = append(needs, made[session])
		return nil
	}
	for len(needs) > 0 {
		e := needs[len(needs)-1]
		needs = needs[:len(needs)-1]
		if e.Gone || seen[e] {
			continue
		}
		seen[e] = true
		s, err := r.step(ctx, steps, e)
		if err != nil {
			return nil, err
		}
		s.needed = append(s.needed, e.Session)
		if e.Parent != nil {
			err = before(e.Parent.Session, e.Parent.Run)
		}
		if err == nil && e.Before > 0 {
			err = before(e.Session, e.Before)
		}
		if err != nil {
			return nil, err
		}
	}
	return steps, nil
}

// step returns the step with the bundle of an entry.
func (r *restoring) step(ctx context.Context, steps map[extent]*step, e *entry) (*step, error) {
	if s := steps[e.Bundle]; s != nil {
		return s, nil
	}
	s := &step{run: e.Run, at: e.Bundle, content: e.Content, whole: e.Before == 0 && e.Parent == nil, sessions: map[string]string{e.ID: e.Session}}
	made, err := r.made(ctx, e.Run)
	if err != nil {
		return nil, err
	}
	for _, other := range made {
		if other.Bundle == e.Bundle {
			s.sessions[other.ID] = other.Session
		}
	}
	if e.Parent != nil {
		s.sessions[e.Parent.ID] = e.Parent.Session
	}
	steps[e.Bundle] = s
	return s, nil
}

// made returns the entries that a run has made.
func (r *restoring) made(ctx context.Context, run int) (map[string]*entry, error) {
	if made := r.runs[run]; made != nil {
		return made, nil
	}
	made := map[string]*entry{}
	_, _, err := readRun(ctx, r.from, r.at.generation, run, func(e *entry) error {
		if e.Run == run {
			made[e.Session] = e
		}
		return nil
	}, nil)
	if err == nil {
		r.runs[run] = made
	}
	return made, err
}

// batch reads the bundles of some sessions into a store, and pushes them from there. failed are the errors of sessions
// that can't be restored.
func (r *restoring) batch(ctx context.Context, f *family) (failed []error, err error) {
	if len(f.sessions) == 0 {
		return nil, nil
	}
	st, done, err := r.scratch(ctx, f.bytes)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	lost := map[string]bool{}    // sessions of the store that lack a bundle
	broken := map[string]error{} // why sessions can't be restored
	for _, s := range slices.SortedFunc(maps.Values(f.steps), (*step).compare) {
		if !s.whole && slices.ContainsFunc(s.needed, func(session string) bool { return lost[session] }) {
			continue
		}
		err := r.read(ctx, st, s)
		if err != nil && !errors.Is(err, ErrTarget) {
			return failed, err
		}
		for _, session := range s.needed {
			lost[session] = err != nil
		}
		for _, session := range f.sessions {
			if err != nil && f.of[session][s.at] && broken[session] == nil {
				broken[session] = err
			}
		}
	}
	var sessions []string
	for _, session := range f.sessions {
		if err := cmp.Or(broken[session], r.finish(ctx, st, session)); err != nil {
			if !errors.Is(err, ErrTarget) {
				return failed, err
			}
			failed = append(failed, fmt.Errorf("session %q: %w", r.names[session], err))
			continue
		}
		sessions = append(sessions, session)
	}
	if len(sessions) == 0 || r.check {
		return failed, nil
	}
	ids := make([]string, len(sessions))
	for i, session := range sessions {
		ids[i] = r.names[session]
	}
	p, err := push.Sessions(ctx, st, r.to, push.Options{Sessions: ids, As: r.o.As, Progress: r.o.Progress})
	r.out.Sessions = append(r.out.Sessions, p.Sessions...)
	r.out.Same += p.Same
	if err != nil && (errors.Is(err, turnstone.ErrDiverged) || errors.Is(err, turnstone.ErrExists)) && ctx.Err() == nil {
		return append(failed, err), nil // The others are restored all the same.
	}
	return failed, err
}

// A scratch is a store that bundles are read into. Its sessions have ids of their own, by their incarnations where
// they come from.
type scratch struct {
	*turnstone.Store
	prefix string
	n      int // how many sessions had to make room
}

// id returns the id that a session has in the store.
func (st *scratch) id(session string) string { return st.prefix + session }

// scratch makes an empty store for bundles of some bytes.
func (r *restoring) scratch(ctx context.Context, bytes int64) (_ *scratch, done func() error, err error) {
	var e engine.Engine = memory.New()
	dir := ""
	if bytes > batchBytes {
		if dir, err = os.MkdirTemp(r.o.Dir, "turnstone-restore-"); err != nil {
			return nil, nil, err
		}
		if e, err = pebble.Open(dir, nil); err != nil {
			return nil, nil, errors.Join(err, os.RemoveAll(dir))
		}
	}
	remove := func() error {
		if dir == "" {
			return nil
		}
		return os.RemoveAll(dir)
	}
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		return nil, nil, errors.Join(err, e.Close(), remove())
	}
	return &scratch{Store: st, prefix: rand.Text() + "/"}, func() error { return errors.Join(st.Close(), e.Close(), remove()) }, nil
}

// read reads a bundle into a store.
func (r *restoring) read(ctx context.Context, st *scratch, s *step) error {
	err := r.unbundle(ctx, st, s)
	if s.whole && (errors.Is(err, turnstone.ErrDiverged) || errors.Is(err, turnstone.ErrConflict)) {
		// The store that it comes from was put back to what it had been. What went on from the session as it was holds what
		// it needs.
		for _, session := range s.sessions {
			st.n++
			if err := st.rename(ctx, st.id(session), fmt.Sprint(st.prefix, st.n)); err != nil && !errors.Is(err, turnstone.ErrSessionNotFound) {
				return err
			}
		}
		err = r.unbundle(ctx, st, s)
	}
	if err != nil {
		return fmt.Errorf("%s, %d bytes at %d: %w", packPath(r.at.generation, s.at.Pack), s.at.Size, s.at.Offset, err)
	}
	return nil
}

func (st *scratch) rename(ctx context.Context, from, to string) error {
	s, err := st.Session(ctx, from)
	if err != nil {
		return err
	}
	return s.Rename(ctx, to)
}

func (r *restoring) unbundle(ctx context.Context, st *scratch, s *step) error {
	o, err := r.from.Get(ctx, packPath(r.at.generation, s.at.Pack), s.at.Offset, s.at.Size)
	if err != nil {
		return lacking(err)
	}
	defer o.Close()
	ids := map[string]string{}
	for id, session := range s.sessions {
		ids[id] = st.id(session)
	}
	hash := blake3.New()
	kept := &failing{r: o}
	_, err = st.Unbundle(ctx, io.TeeReader(kept, hash), turnstone.UnbundleOptions{IDs: ids, MaxBytes: 1<<20 + 4*s.content + 256*s.at.Size})
	if kept.err != nil {
		return kept.err
	}
	r.out.Bytes += s.at.Size
	switch {
	case err == nil && sum(hash.Sum(nil)) != s.at.Sum:
		return fmt.Errorf("%w: its hash is another one", ErrTarget)
	case err == nil, ctx.Err() != nil, errors.Is(err, engine.ErrNoSpace), errors.Is(err, engine.ErrUnavailable), errors.Is(err, turnstone.ErrOutcomeUnknown):
		return err
	}
	return fmt.Errorf("%w: %w", ErrTarget, err)
}

// finish compares a session that bundles have made with its entry, tombstones those of its nodes that were erased since,
// and gives it its id.
func (r *restoring) finish(ctx context.Context, st *scratch, session string) error {
	e := r.at.sessions[session]
	found, err := st.Standings(ctx, turnstone.StandingQuery{ID: st.id(session), At: []head.Revision{e.Revision}})
	if err != nil {
		return err
	}
	if len(found) != 1 || !e.standsFor(&found[0]) {
		return fmt.Errorf("%w: it is not what the run says", ErrTarget)
	}
	if nodes := r.erased.nodes[session]; len(nodes) > 0 {
		if err := hide(ctx, st, st.id(session), nodes); err != nil {
			return err
		}
	}
	return st.rename(ctx, st.id(session), r.names[session])
}

// hide tombstones nodes of a session, as far as it has them.
func hide(ctx context.Context, st *scratch, id string, nodes []graph.ID) error {
	s, err := st.Session(ctx, id)
	if err != nil {
		return err
	}
	var there []graph.ID
	for _, n := range nodes {
		switch _, err := s.Node(ctx, n); {
		case err == nil:
			there = append(there, n)
		case !errors.Is(err, turnstone.ErrNodeNotFound):
			return err
		}
	}
	for some := range slices.Chunk(there, turnstone.MaxNodes) {
		if err := s.Tombstone(ctx, some...); err != nil {
			return err
		}
	}
	return nil
}

// lacking says of an object that is not there that the target is damaged.
func lacking(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrTarget, err)
	}
	return err
}
