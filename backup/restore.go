package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/push"
)

// This file restores sessions. Their bundles go into an empty store of their own, a number of sessions at a time, and
// from there the sessions are pushed to where they are to be. So the sessions that a fork goes on from need not be
// restored with it, and what was erased since goes no further.

// RestoreOptions of Restore.
type RestoreOptions struct {
	// At says which run is restored: the last one that had ended at this time. Default: the last run.
	At time.Time
	// Sessions are the ids of the sessions to restore. A session that was renamed later has its old id there. Default: all
	// sessions of the run.
	Sessions []string
	// As is the id that the session gets. It is for a restoring of one session. Default: the id that it had.
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

// ErrNoBackup says that a target has no backup, or none that had ended at the time that was asked for.
var ErrNoBackup = errors.New("turnstone: no backup of that time")

// Restore brings sessions to a store as they were at a time that a backup has. A session that exists there goes on from
// where it is, if it stood there in the backup once. If it is further there, it stays. If it has gone another way, the
// error matches turnstone.ErrDiverged, and turnstone.ErrExists if another session has the id: with RestoreOptions.As,
// the one of the backup gets an id of its own. What is there and not in the backup stays.
//
// What Store.Erase and Session.Erase have erased does not come back, as far as a run of the backup knows, or the store
// that is restored to, if that is a *turnstone.Store: the sessions are in Restored.Erased, and nodes come as
// tombstones. A session that was restored from one that was erased, or that it was restored from, counts as erased too,
// unless it lived when the last run was made. A fork whose parent is neither there nor restored comes with a copy of
// what it inherits.
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
		failed = append(failed, fmt.Errorf("%w: generation %s has nothing of %d sessions or more, which could not be read then: an earlier one may have them", ErrTarget, x.generation, x.Lacking))
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

// at returns where all sessions stood at a time, and what was erased, before it and since.
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

// batch reads the bundles of some sessions into a store, and pushes them from there. failed are the errors of sessions
// that can't be restored.
func (r *restoring) batch(ctx context.Context, f *family) (failed []error, err error) {
	if len(f.sessions) == 0 {
		return nil, nil
	}
	st, done, err := r.scratch(ctx)
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
	if err != nil && !ofTheStore(ctx, err) {
		return append(failed, err), nil // The others are restored all the same.
	}
	return failed, err
}
