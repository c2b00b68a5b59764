package backup

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"os"
	"slices"
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
// What Store.Erase and Session.Erase had erased since, as far as a run of the backup or the store that is restored to
// knows, does not come back: the sessions are in Restored.Erased, and nodes come as tombstones. A fork whose parent is
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
	if st, ok := to.(interface {
		Erasures(ctx context.Context) iter.Seq2[turnstone.Erased, error]
	}); ok {
		if err := erased.addThose(ctx, to, x, st.Erasures(ctx)); err != nil {
			return out, err
		}
	}
	missing := erased.unknown
	var ids []string
	if len(o.Sessions) > 0 {
		for _, id := range o.Sessions {
			switch {
			case x.alive(id) == nil:
				missing = append(missing, fmt.Errorf("%w: %q at %v", turnstone.ErrSessionNotFound, id, x.Time.Format(time.RFC3339)))
			case !slices.Contains(ids, id):
				ids = append(ids, id)
			}
		}
	} else {
		for id, e := range x.sessions {
			if !e.Gone {
				ids = append(ids, id)
			}
		}
	}
	ids = slices.DeleteFunc(ids, func(id string) bool {
		gone := erased.has(x.sessions[id])
		if gone {
			out.Erased = append(out.Erased, id)
		}
		return gone
	})
	slices.Sort(out.Erased)
	r := newRestoring(from, x)
	r.to, r.o, r.erased, r.out = to, o, erased, out
	failed, err := r.all(ctx, ids)
	return out, errors.Join(append(append(missing, failed...), err)...)
}

// at returns where all sessions stood at a time, and what was erased since.
func at(ctx context.Context, from Target, when time.Time) (*index, *erasures, error) {
	names, err := generations(ctx, from)
	if err != nil {
		return nil, nil, err
	}
	after := func(t time.Time) bool { return !when.IsZero() && t.After(when) }
	erased := &erasures{since: map[erasedKey]bool{}, living: map[string]head.CommitID{}, nodes: map[head.CommitID][]graph.ID{}}
	newest := true
	for _, name := range slices.Backward(names) {
		g, err := generationOf(ctx, from, name)
		var latest *index
		if err == nil {
			latest, err = readIndex(ctx, from, name, g.Runs)
		}
		if errors.Is(err, ErrTarget) { // An earlier generation is better than none.
			erased.unknown = append(erased.unknown, fmt.Errorf("generation %s can't be read, so what was erased in its time is not known: %w", name, err))
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if g.Runs == 0 {
			continue
		}
		if newest && g.Complete > 0 {
			erased.lives(latest)
			newest = false
		}
		erased.add(maps.Keys(latest.erased))
		if g.Complete == 0 || after(g.First) {
			continue
		}
		run := g.Complete
		if after(g.Last) {
			h, err := search(ctx, from, name, g.Complete, func(h *header) bool { return after(h.Time) })
			if err != nil {
				return nil, nil, err
			}
			if h, err = readHeader(ctx, from, name, h.Run-1); err != nil {
				return nil, nil, err
			}
			run = h.Complete
		}
		x := latest
		if run != latest.Run {
			if x, err = readIndex(ctx, from, name, run); err != nil {
				return nil, nil, err
			}
		}
		for of := range x.erased { // What lives at the run lives after these.
			delete(erased.since, of)
		}
		erased.settle()
		return x, erased, nil
	}
	return nil, nil, errors.Join(append(erased.unknown, ErrNoBackup)...)
}

// erasures are what was erased after a run.
type erasures struct {
	since   map[erasedKey]bool
	living  map[string]head.CommitID // the sessions of the newest run, with their geneses
	there   map[string]bool          // ids of sessions that were erased in the store that is restored to
	nodes   map[head.CommitID][]graph.ID
	unknown []error // of generations that can't be read
}

func (e *erasures) add(all iter.Seq[erasedKey]) {
	for of := range all {
		e.since[of] = true
	}
}

func (e *erasures) lives(x *index) {
	for id, s := range x.sessions {
		if !s.Gone {
			e.living[id] = s.Genesis
		}
	}
}

// settle sorts nodes out.
func (e *erasures) settle() {
	for of := range e.since {
		if of.node != (graph.ID{}) {
			e.nodes[of.genesis] = append(e.nodes[of.genesis], of.node)
		}
	}
}

// addThose adds what the store that is restored to has erased itself.
func (e *erasures) addThose(ctx context.Context, to push.Peer, x *index, all iter.Seq2[turnstone.Erased, error]) error {
	geneses := map[head.CommitID]bool{}
	for one, err := range all {
		if err != nil {
			return err
		}
		key := erasedKey{one.Genesis, one.Node}
		if x.erased[key] != nil || e.since[key] {
			continue
		}
		if one.Node.IsZero() {
			geneses[one.Genesis] = true
		} else {
			e.nodes[one.Genesis] = append(e.nodes[one.Genesis], one.Node)
		}
	}
	e.there = map[string]bool{}
	for id, s := range x.sessions {
		if s.Gone || !geneses[s.Genesis] {
			continue
		}
		found, err := to.Standings(ctx, turnstone.StandingQuery{ID: id})
		if err != nil {
			return err
		}
		e.there[id] = len(found) == 0 || found[0].Genesis != s.Genesis
	}
	return nil
}

// has reports whether a session was erased. A session that came to the store a second time under another id has the
// same genesis: while it lives under that, it was not the one that was erased.
func (e *erasures) has(s *entry) bool {
	return e.there[s.ID] || e.since[erasedKey{genesis: s.Genesis}] && e.living[s.ID] != s.Genesis
}

// A restoring is one call of Restore.
type restoring struct {
	from    Target
	to      push.Peer
	o       RestoreOptions
	at      *index
	erased  *erasures
	out     *Restored
	runs    map[int]map[string]*entry // that were read: what each has made itself
	indexes map[int]*index            // that were read
	check   bool                      // compares what the bundles make with the entries, instead of pushing it
}

func newRestoring(from Target, x *index) *restoring {
	return &restoring{from: from, at: x, erased: &erasures{}, out: &Restored{}, runs: map[int]map[string]*entry{}, indexes: map[int]*index{}}
}

// A step is a bundle that has to be read.
type step struct {
	run   int
	at    extent
	whole bool     // it needs nothing that was read before
	ids   []string // of the sessions in it that are needed
	was   string   // the id that the session has before it, if it gets another one
}

func (s *step) compare(other *step) int {
	return cmp.Or(cmp.Compare(s.run, other.run), cmp.Compare(s.at.Pack, other.at.Pack), cmp.Compare(s.at.Offset, other.at.Offset))
}

// A family are sessions that have bundles in common, or that go on from each other.
type family struct {
	ids   []string // those that are to be restored
	steps map[extent]*step
	of    map[string]map[extent]bool // the steps that each session needs
	bytes int64
}

const (
	batchBytes = 8 << 20 // of bundles that a store in memory takes
)

// all restores sessions, a number of families at a time. failed are the errors of those that can't be restored.
func (r *restoring) all(ctx context.Context, ids []string) (failed []error, err error) {
	slices.Sort(ids)
	families, failed, err := r.families(ctx, ids)
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
		if f, err = r.missing(ctx, f); err != nil {
			return failed, err
		}
		if batch.bytes+f.bytes > batchBytes && len(batch.ids) > 0 {
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
	f.ids = append(f.ids, other.ids...)
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
	for _, id := range s.ids {
		if !slices.Contains(mine.ids, id) {
			mine.ids = append(mine.ids, id)
		}
	}
}

// missing returns a family without those of its sessions that the store has already.
func (r *restoring) missing(ctx context.Context, f *family) (*family, error) {
	if r.check || r.o.As != "" {
		return f, nil
	}
	has := map[string]bool{}
	for some := range slices.Chunk(f.ids, turnstone.MaxPage) {
		queries := make([]turnstone.StandingQuery, len(some))
		for i, id := range some {
			queries[i] = turnstone.StandingQuery{ID: id, At: []head.Revision{r.at.sessions[id].Revision}}
		}
		found, err := r.to.Standings(ctx, queries...)
		if err != nil {
			return nil, err
		}
		for i := range found {
			s := &found[i]
			e := r.at.sessions[s.ID]
			has[s.ID] = e.standsFor(s) && s.Revision == e.Revision && s.Rest == e.Rest
		}
	}
	kept := slices.DeleteFunc(slices.Clone(f.ids), func(id string) bool { return has[id] })
	r.out.Same += len(f.ids) - len(kept)
	if len(kept) == 0 {
		return newFamily(), nil
	}
	out := *f
	out.ids = kept
	return &out, nil
}

// families finds out which bundles sessions need. failed are the errors of those of which that is not known.
func (r *restoring) families(ctx context.Context, ids []string) (out []*family, failed []error, err error) {
	sets := disjoint{}
	steps := map[string]map[extent]*step{}
	for _, id := range ids {
		of, err := r.stepsOf(ctx, id)
		if errors.Is(err, ErrTarget) {
			failed = append(failed, fmt.Errorf("session %q: %w", id, err))
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		steps[id] = of
		for at, s := range of {
			sets.join(id, at)
			for _, other := range s.ids {
				sets.join(id, other)
			}
		}
	}
	by := map[any]*family{}
	for _, id := range ids {
		if steps[id] == nil {
			continue
		}
		f := by[sets.of(id)]
		if f == nil {
			f = newFamily()
			by[sets.of(id)] = f
			out = append(out, f)
		}
		f.ids = append(f.ids, id)
		f.of[id] = map[extent]bool{}
		for at, s := range steps[id] {
			f.of[id][at] = true
			if f.steps[at] == nil {
				f.bytes += at.Size
			}
			f.take(s)
		}
	}
	return out, failed, nil
}

// disjoint are sets of sessions, by their ids, and of bundles, by where they are (R. Tarjan, "Efficiency of a good but
// not linear set union algorithm", 1975).
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
func (r *restoring) stepsOf(ctx context.Context, id string) (map[extent]*step, error) {
	steps := map[extent]*step{}
	type need struct {
		id string
		at int // the run
	}
	seen := map[need]bool{}
	needs := []need{{id, r.at.Run}}
	for len(needs) > 0 {
		n := needs[len(needs)-1]
		needs = needs[:len(needs)-1]
		if seen[n] {
			continue
		}
		seen[n] = true
		e, err := r.entryAt(ctx, n.id, n.at)
		if err != nil {
			return nil, err
		}
		for id := n.id; ; {
			if e == nil || e.Gone {
				return nil, fmt.Errorf("%w: run %d of %s lacks session %q", ErrTarget, n.at, r.at.generation, id)
			}
			s := steps[e.Bundle]
			if s == nil {
				s = &step{run: e.Run, at: e.Bundle, whole: e.Before == 0 && e.Parent == "", was: e.Was}
				steps[e.Bundle] = s
			}
			if !slices.Contains(s.ids, id) {
				s.ids = append(s.ids, id)
			}
			if e.Parent != "" {
				needs = append(needs, need{e.Parent, e.Run})
			}
			if e.Before == 0 {
				break
			}
			made, err := r.made(ctx, e.Before)
			if err != nil {
				return nil, err
			}
			id = cmp.Or(e.Was, id)
			e = made[id]
		}
	}
	return steps, nil
}

// entryAt returns the entry that a session had at a run.
func (r *restoring) entryAt(ctx context.Context, id string, run int) (*entry, error) {
	for e := r.at.sessions[id]; e != nil; {
		if e.Run <= run {
			return e, nil
		}
		if e.Gone || e.Before == 0 || e.Was != "" {
			break
		}
		made, err := r.made(ctx, e.Before)
		if err != nil {
			return nil, err
		}
		e = made[id]
	}
	// The session was made anew since, or is gone.
	x, err := r.indexAt(ctx, run)
	if err != nil {
		return nil, err
	}
	return x.sessions[id], nil
}

// indexAt returns where all sessions stood at a run.
func (r *restoring) indexAt(ctx context.Context, run int) (*index, error) {
	if x := r.indexes[run]; x != nil {
		return x, nil
	}
	x, err := readIndex(ctx, r.from, r.at.generation, run)
	if err != nil {
		return nil, err
	}
	if len(r.indexes) == 2 { // Each has all sessions.
		clear(r.indexes)
	}
	r.indexes[run] = x
	return x, nil
}

// made returns the entries that a run has made.
func (r *restoring) made(ctx context.Context, run int) (map[string]*entry, error) {
	if made := r.runs[run]; made != nil {
		return made, nil
	}
	made := map[string]*entry{}
	_, _, err := readRun(ctx, r.from, r.at.generation, run, func(e *entry) error {
		if e.Run == run {
			made[e.ID] = e
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
	if len(f.ids) == 0 {
		return nil, nil
	}
	st, done, err := r.scratch(ctx, f.bytes)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	steps := slices.SortedFunc(maps.Values(f.steps), (*step).compare)
	lost := map[string]bool{}    // sessions of the store that lack a bundle
	broken := map[string]error{} // why sessions can't be restored
	for _, s := range steps {
		if !s.whole && slices.ContainsFunc(s.ids, func(id string) bool { return lost[id] }) {
			continue
		}
		err := r.read(ctx, st, s)
		if err != nil && !errors.Is(err, ErrTarget) {
			return failed, err
		}
		for _, id := range s.ids {
			lost[id] = err != nil
		}
		for _, id := range f.ids {
			if err != nil && f.of[id][s.at] && broken[id] == nil {
				broken[id] = err
			}
		}
	}
	var ids []string
	for _, id := range f.ids {
		if err := broken[id]; err != nil {
			failed = append(failed, fmt.Errorf("session %q: %w", id, err))
			continue
		}
		if err := r.hide(ctx, st, id); err != nil {
			return failed, err
		}
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return failed, nil
	}
	if r.check {
		some, err := r.compare(ctx, st, ids)
		return append(failed, some...), err
	}
	p, err := push.Sessions(ctx, st, r.to, push.Options{Sessions: ids, As: r.o.As, Progress: r.o.Progress})
	r.out.Sessions = append(r.out.Sessions, p.Sessions...)
	r.out.Same += p.Same
	if err != nil && (errors.Is(err, turnstone.ErrDiverged) || errors.Is(err, turnstone.ErrExists)) && ctx.Err() == nil {
		return append(failed, err), nil // The others are restored all the same.
	}
	return failed, err
}

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
	return &scratch{Store: st}, func() error { return errors.Join(st.Close(), e.Close(), remove()) }, nil
}

// A scratch is a store that bundles are read into.
type scratch struct {
	*turnstone.Store
	run  int               // whose bundles are read
	away map[string]string // the ids that sessions have which had to give theirs to others in that run
	n    int               // how many had to
}

// move gives a session another id, and the one that has that id already one that nobody asks for.
func (st *scratch) move(ctx context.Context, from, to string) error {
	if err := st.moveAway(ctx, to); err != nil {
		return err
	}
	return st.rename(ctx, cmp.Or(st.away[from], from), to)
}

func (st *scratch) moveAway(ctx context.Context, id string) error {
	st.n++
	to := fmt.Sprintf("%d %s", st.n, rand.Text())
	err := st.rename(ctx, id, to)
	if errors.Is(err, turnstone.ErrSessionNotFound) {
		return nil
	}
	if err == nil {
		st.away[id] = to
	}
	return err
}

func (st *scratch) rename(ctx context.Context, from, to string) error {
	s, err := st.Session(ctx, from)
	if err != nil {
		return err
	}
	return s.Rename(ctx, to)
}

// read reads a bundle into a store.
func (r *restoring) read(ctx context.Context, st *scratch, s *step) (err error) {
	if s.run != st.run {
		st.run, st.away = s.run, map[string]string{}
	}
	if s.was != "" {
		err = st.move(ctx, s.was, s.ids[0])
	}
	if err == nil {
		err = r.unbundle(ctx, st, s)
	}
	if s.whole && (errors.Is(err, turnstone.ErrExists) || errors.Is(err, turnstone.ErrDiverged) || errors.Is(err, turnstone.ErrConflict)) {
		for _, id := range s.ids { // Another one has the id, which was deleted or is to get another id.
			if err := st.moveAway(ctx, id); err != nil {
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

func (r *restoring) unbundle(ctx context.Context, st *scratch, s *step) error {
	o, err := r.from.Get(ctx, packPath(r.at.generation, s.at.Pack), s.at.Offset, s.at.Size)
	if err != nil {
		return lacking(err)
	}
	defer o.Close()
	hash := blake3.New()
	kept := &failing{r: o}
	_, err = st.Unbundle(ctx, io.TeeReader(kept, hash), turnstone.UnbundleOptions{})
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

// hide tombstones the nodes of a session that were erased since.
func (r *restoring) hide(ctx context.Context, st *scratch, id string) error {
	nodes := r.erased.nodes[r.at.sessions[id].Genesis]
	if len(nodes) == 0 {
		return nil
	}
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

// compare compares sessions that bundles have made with their entries.
func (r *restoring) compare(ctx context.Context, st *scratch, ids []string) (failed []error, err error) {
	for some := range slices.Chunk(ids, turnstone.MaxPage) {
		queries := make([]turnstone.StandingQuery, len(some))
		for i, id := range some {
			queries[i] = turnstone.StandingQuery{ID: id, At: []head.Revision{r.at.sessions[id].Revision}}
		}
		found, err := st.Standings(ctx, queries...)
		if err != nil {
			return failed, err
		}
		by := map[string]*turnstone.Standing{}
		for i := range found {
			by[found[i].ID] = &found[i]
		}
		for _, id := range some {
			if s := by[id]; s == nil || !r.at.sessions[id].standsFor(s) {
				failed = append(failed, fmt.Errorf("%w: session %q is not what the backup says", ErrTarget, id))
			}
		}
	}
	return failed, nil
}

// lacking says of an object that is not there that the target is damaged.
func lacking(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrTarget, err)
	}
	return err
}
