// Package verify checks a store as a whole: every hash, link, checksum and reference. [Copy] copies a store to another
// engine, and verifies both.
//
// A check has three parts. It reads all records in one scan and gathers what they say of
// each other: which incarnations have a lifecycle record, which session is a fork of which,
// which blobs are stored. Then it reads each incarnation, ancestors before their forks,
// from the head down to the nodes, and gathers which blobs they refer to. Finally it reads
// these blobs, and has the collector check its index.
//
// A check runs beside commits and maintenance. A record that looks missing or wrong may
// have been moved, changed or removed while the check read. So the check looks at a finding
// again before it reports a problem: it reads all records that the finding is about in one
// call, or makes sure that the lifecycle record has not changed meanwhile. If something is
// missing in the end, the whole check starts over, up to two times.
package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A Report is what Check found.
type Report struct {
	Sessions     int
	Commits      int
	Nodes        int
	Blobs        int     // Stored blobs.
	Unreferenced int     // Blobs that nothing refers to. They are garbage, not damage.
	Condemned    int     // Blobs that a collector was about to delete.
	Records      int     // All records. Check verifies the checksum of each.
	Problems     []error // The first maxProblems problems.
	More         int     // The number of problems beyond these.
}

// maxProblems bounds Report.Problems.
const maxProblems = 1000

// Check checks a store. It calls progress, if that is not nil, with the number of sessions
// and blobs done. If Check returns an error, it could not go on, and the report has what it
// found until then.
func Check(ctx context.Context, s history.Store, collector *gc.Collector, progress func(done int)) (*Report, error) {
	const attempts = 3
	for attempt := 1; ; attempt++ {
		v := newVerifier(s.Uncached(), collector, progress)
		for _, step := range []func(context.Context) error{
			v.scan, v.blobValues, v.owners, v.forkEntries, v.counts, v.histories, v.strayEntries, v.unlisted, v.feedChanges, v.contents, v.index,
		} {
			if err := step(ctx); err != nil {
				return &v.Report, err
			}
		}
		// A record that maintenance removed meanwhile looks missing, so check once more.
		if attempt == attempts || v.More > 0 || !v.anyMissing() {
			return &v.Report, nil
		}
	}
}

// A verifier is one attempt of Check. Its maps hold what it has read so far.
type verifier struct {
	Report
	store     history.Store
	collector *gc.Collector
	progress  func(int)
	done      int // sessions and blobs

	// The scan sets the fields below.

	// lives has the lifecycle records.
	lives map[head.Incarnation]*head.Life
	// mentioned has the incarnations that have records or are named by one, each with
	// the key of such a record.
	mentioned map[head.Incarnation][]byte
	// tombstones and forks count the tombstones and the fork entries of an incarnation.
	tombstones, forks map[head.Incarnation]uint64
	// unmatched has the fork entries that no origin confirms, and those that an origin
	// implies and that were not found.
	unmatched map[forkEntry]bool
	// entries has the keys of the list entries that no session's place confirms.
	entries map[string]bool
	// listings has the keys of the entries in the list of records that no record was found for, and of those
	// that a record implies and that were not found.
	listings map[string]bool
	// parents has the last ancestor of each fork, the one that it was forked from.
	parents map[head.Incarnation]head.Incarnation
	// shared says how much of an incarnation's history forks share that live.
	shared map[head.Incarnation]history.Layer
	// names is what problems call an incarnation.
	names   map[head.Incarnation]string
	damaged []badRecord
	// values has the blobs of which a value was found, marks those of which a mark was found.
	values, marks storedBlobs

	// The check of the histories sets the fields below.

	// positions has the nodes of the incarnations that have forks.
	positions map[head.Incarnation]map[graph.ID]graph.Position
	// lengths has how many nodes the paths to them have.
	lengths map[head.Incarnation]map[graph.ID]uint64
	// checkedEnds has the ends of shared histories that were compared with their commits.
	checkedEnds map[head.Ancestor]bool
	// referenced has the blobs that something refers to, each with the name of a session
	// that does.
	referenced map[blob.ID]string
	// uses has the first revision in which a node of an incarnation refers to a blob.
	uses map[blobUse]head.Revision
}

// A blobUse is a blob and an incarnation whose nodes refer to it.
type blobUse struct {
	blob keys.Hash
	inc  head.Incarnation
}

func newVerifier(s history.Store, collector *gc.Collector, progress func(int)) *verifier {
	return &verifier{
		store: s, collector: collector, progress: progress,
		lives:       map[head.Incarnation]*head.Life{},
		mentioned:   map[head.Incarnation][]byte{},
		tombstones:  map[head.Incarnation]uint64{},
		forks:       map[head.Incarnation]uint64{},
		unmatched:   map[forkEntry]bool{},
		entries:     map[string]bool{},
		listings:    map[string]bool{},
		parents:     map[head.Incarnation]head.Incarnation{},
		shared:      map[head.Incarnation]history.Layer{},
		names:       map[head.Incarnation]string{},
		positions:   map[head.Incarnation]map[graph.ID]graph.Position{},
		lengths:     map[head.Incarnation]map[graph.ID]uint64{},
		checkedEnds: map[head.Ancestor]bool{},
		referenced:  map[blob.ID]string{},
		uses:        map[blobUse]head.Revision{},
	}
}

// anyMissing reports whether a problem is that something is missing.
func (v *verifier) anyMissing() bool {
	return slices.ContainsFunc(v.Problems, func(err error) bool { return errors.Is(err, damage.ErrMissing) })
}

// problem adds err to the problems, unless it is nil. format says which object is damaged,
// in case err does not name one.
func (v *verifier) problem(err error, format string, args ...any) {
	if err == nil {
		return
	}
	if len(v.Problems) == maxProblems {
		v.More++
		return
	}
	v.Problems = append(v.Problems, codec.Corrupt(err, format, args...))
}

// problemOf adds err to the problems, unless it is nil. If err names an object of the
// session without the session, problemOf adds the session's name.
func (v *verifier) problemOf(session string, err error) {
	var corrupt *damage.CorruptError
	if errors.As(err, &corrupt) && !strings.Contains(corrupt.Object, session) {
		err = &damage.CorruptError{Object: corrupt.Object + " of " + session, Err: corrupt.Err}
	}
	v.problem(err, "%s", session)
}

// name returns what problems call an incarnation: the id of its session if that is known.
func (v *verifier) name(inc head.Incarnation) string {
	if name := v.names[inc]; name != "" {
		return name
	}
	return fmt.Sprintf("incarnation %x", inc)
}

// step reports progress after a session or a blob.
func (v *verifier) step() {
	if v.done++; v.progress != nil {
		v.progress(v.done)
	}
}

// get returns the value of one key, or nil if there is no such record.
func (v *verifier) get(ctx context.Context, key []byte) ([]byte, error) {
	values, err := v.store.Engine.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	return values[0], nil
}

// endsCheck reports whether err ends the whole check. Damage is a problem instead, and a
// session that is deleted while it is read is neither.
func endsCheck(err error) bool {
	var corrupt *damage.CorruptError
	return err != nil && !errors.As(err, &corrupt) && !errors.Is(err, history.ErrNodeNotFound) && !isGone(err)
}

// isGone reports whether err says that a session was deleted or renamed meanwhile.
func isGone(err error) bool {
	return errors.Is(err, history.ErrSessionNotFound) || errors.Is(err, history.ErrSessionDeleted)
}

// endsSession reports whether err ends the check of a session, or the whole check.
func endsSession(err error) bool {
	return endsCheck(err) || errors.Is(err, history.ErrSessionDeleted)
}
