// Package verify checks a store as a whole: every hash, link, checksum and reference.
//
// It reads all records in one scan and gathers what they say of each other: who has a
// lifecycle record, who is whose fork, which blobs are stored. Then it reads each
// incarnation once, ancestors before their forks, from the head down to the nodes, and
// notes which blobs they refer to. At last it reads these blobs and checks the collector's
// index.
//
// It runs beside commits and maintenance. What looks missing or wrong may have been moved,
// changed or removed while it was read. So each finding is looked at again at one moment,
// or under a lifecycle record that has not changed, before it becomes a problem.
package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/pack"
	"github.com/turnstonedb/turnstone/internal/reclaim"
	"github.com/turnstonedb/turnstone/record"
)

// A Report is what Run found.
type Report struct {
	Sessions, Commits, Nodes int
	Blobs                    int // stored
	Unreferenced             int // blobs that nothing refers to: garbage, no damage
	Condemned                int // blobs that a collector was about to delete
	Records                  int // all records, each with its checksum checked
	Problems                 []error
	More                     int // problems beyond the first 1,000
}

// Run checks a store. It calls progress, if that is not nil, with the number of sessions
// and blobs done. The error says that Run could not go on, and then the report tells what
// it found until then.
func Run(ctx context.Context, s history.Store, collector *reclaim.Collector, progress func(done int)) (*Report, error) {
	for attempt := 0; ; attempt++ {
		v := newVerifier(s, collector, progress)
		for _, step := range []func(context.Context) error{v.records, v.owners, v.histories, v.contents, v.index} {
			if err := step(ctx); err != nil {
				return &v.Report, err
			}
		}
		// What maintenance removed meanwhile looks like missing: look again.
		if attempt == 2 || v.More > 0 || !slices.ContainsFunc(v.Problems, func(err error) bool { return errors.Is(err, record.ErrMissing) }) {
			return &v.Report, nil
		}
	}
}

// A verifier gathers in one scan what the records say of each other, and then looks
// at each incarnation once, ancestors before their forks.
type verifier struct {
	Report
	store     history.Store
	collector *reclaim.Collector
	progress  func(int)
	done      int

	lives   map[heads.Incarnation]*heads.Life   // as the scan met them
	seen    map[heads.Incarnation][]byte        // who has records or is named by some, and the key of one
	stones  map[heads.Incarnation]uint64        // tombstones
	forks   map[heads.Incarnation]uint64        // entries of forks by ancestor
	entries map[forkEntry]bool                  // the entries of forks that no origin has explained yet
	depth   map[heads.Incarnation]int           // how many ancestors a fork has
	shared  map[heads.Incarnation]history.Layer // how far living forks share a history

	damaged []badRecord
	stored  blobTable

	names  map[heads.Incarnation]string                     // what problems call an incarnation
	places map[heads.Incarnation]map[graph.ID]pack.Position // of the nodes of those that have forks
	held   map[heads.Ancestor]bool                          // ends of shared histories that were checked
	blobs  map[blob.ID]string                               // referred to, and by which session
	uses   map[blobUse]head.Revision                        // of blobs by nodes that were read: the first of them
}

// A blobUse is a blob and who refers to it.
type blobUse struct {
	blob keys.Hash
	inc  heads.Incarnation
}

// A forkEntry is the key of the record by which a fork holds an ancestor.
type forkEntry struct{ ancestor, fork heads.Incarnation }

func newVerifier(s history.Store, collector *reclaim.Collector, progress func(int)) *verifier {
	return &verifier{
		store: s, collector: collector, progress: progress,
		lives: map[heads.Incarnation]*heads.Life{}, seen: map[heads.Incarnation][]byte{},
		stones: map[heads.Incarnation]uint64{}, forks: map[heads.Incarnation]uint64{}, entries: map[forkEntry]bool{},
		depth: map[heads.Incarnation]int{}, shared: map[heads.Incarnation]history.Layer{},
		names: map[heads.Incarnation]string{}, places: map[heads.Incarnation]map[graph.ID]pack.Position{},
		held: map[heads.Ancestor]bool{}, blobs: map[blob.ID]string{}, uses: map[blobUse]head.Revision{},
	}
}

// problem adds err to the problems, unless it is nil. An error that names no object
// yet is of the one that format says.
func (v *verifier) problem(err error, format string, args ...any) {
	if err == nil {
		return
	}
	if len(v.Problems) == 1000 {
		v.More++
		return
	}
	v.Problems = append(v.Problems, codec.Corrupt(err, format, args...))
}

// of adds err to the problems of a session. What err names is said to be of the
// session if it does not say so itself.
func (v *verifier) of(session string, err error) {
	var damage *record.CorruptError
	if errors.As(err, &damage) && !strings.Contains(damage.Object, session) {
		err = &record.CorruptError{Object: damage.Object + " of " + session, Err: damage.Err}
	}
	v.problem(err, "%s", session)
}

// name is what problems call an incarnation: by the id of its session if it lives
// and the id can be found.
func (v *verifier) name(inc heads.Incarnation) string {
	if name := v.names[inc]; name != "" {
		return name
	}
	return fmt.Sprintf("incarnation %x", inc)
}

func (v *verifier) step() {
	if v.done++; v.progress != nil {
		v.progress(v.done)
	}
}

// stopped reports errors that end Verify, as opposed to what it looks for.
func stopped(err error) bool {
	var damage *record.CorruptError
	return err != nil && !errors.As(err, &damage) &&
		!errors.Is(err, history.ErrNodeNotFound) && !errors.Is(err, history.ErrSessionNotFound) && !errors.Is(err, history.ErrSessionDeleted)
}

// histories checks every incarnation that has a lifecycle record: ancestors before
// their forks, so that what a fork shares was checked when the fork is.
func (v *verifier) histories(ctx context.Context) error {
	order := slices.SortedFunc(maps.Keys(v.lives), func(a, b heads.Incarnation) int {
		return cmp.Or(cmp.Compare(v.depth[a], v.depth[b]), slices.Compare(a[:], b[:]))
	})
	for _, inc := range order {
		err := v.incarnation(ctx, inc)
		if stopped(err) {
			return err
		}
		if !errors.Is(err, history.ErrSessionNotFound) && !errors.Is(err, history.ErrSessionDeleted) { // gone meanwhile
			v.of(v.name(inc), err)
		}
		v.step()
	}
	return nil
}

// incarnation checks one session, whether it lives or only its forks do. What looks
// wrong beside a change of its lifecycle is looked at again.
func (v *verifier) incarnation(ctx context.Context, inc heads.Incarnation) error {
	key := v.store.Space.Life(inc)
	for attempt := 0; ; attempt++ {
		before, err := v.store.Engine.Get(ctx, key)
		if err != nil {
			return err
		}
		counted := v.Report
		err = v.once(ctx, inc)
		var damage *record.CorruptError
		if attempt == 3 || !errors.As(err, &damage) {
			return err
		}
		after, gerr := v.store.Engine.Get(ctx, key)
		if gerr != nil {
			return gerr
		}
		if string(after[0]) == string(before[0]) {
			return err
		}
		v.Sessions, v.Commits, v.Nodes = counted.Sessions, counted.Commits, counted.Nodes
	}
}

func (v *verifier) once(ctx context.Context, inc heads.Incarnation) error {
	space := v.store.Space
	key := space.Life(inc)
	for {
		vs, err := v.store.Engine.Get(ctx, key)
		if err != nil || vs[0] == nil {
			return err // removed meanwhile
		}
		life, err := heads.OpenLife(key, vs[0])
		if err != nil {
			return codec.Corrupt(err, "lifecycle of %s", v.name(inc))
		}
		if life.State != heads.Live {
			return v.deleted(ctx, inc, life)
		}
		headKey, aboutKey := space.Head(life.Session), space.About(life.Session)
		now, err := v.store.Engine.Get(ctx, key, headKey, aboutKey)
		if err != nil {
			return err
		}
		if string(now[0]) != string(vs[0]) {
			continue // renamed or deleted meanwhile
		}
		about, err := heads.OpenAbout(aboutKey, now[2])
		if err == nil && space.Session(about.ID) != life.Session {
			err = fmt.Errorf("%w: session %q is not found by its id", record.ErrHash, about.ID)
		}
		if err != nil {
			return codec.Corrupt(err, "metadata of %s", v.name(inc))
		}
		v.names[inc] = fmt.Sprintf("session %q", about.ID)
		if now[1] == nil {
			return codec.Corrupt(record.ErrMissing, "head of %s", v.name(inc))
		}
		ses, state, err := v.store.OpenSession(ctx, about.ID)
		if errors.Is(err, history.ErrSessionNotFound) || err == nil && ses.Inc != inc {
			again, gerr := v.store.Engine.Get(ctx, key)
			if gerr != nil {
				return gerr
			}
			if string(again[0]) != string(vs[0]) {
				continue
			}
			err = codec.Corrupt(fmt.Errorf("%w: it is of another incarnation than %x", record.ErrHash, inc), "head of %s", v.name(inc))
		}
		if err != nil {
			return err
		}
		v.Sessions++
		return v.session(ctx, &session{ses, state.Head.Revision})
	}
}
