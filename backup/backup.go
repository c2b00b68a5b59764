// Package backup copies the sessions of a store to a directory or an object store again and again, each time what has
// changed, and restores them as they were at any time that is kept.
//
//	backup.go   what the caller sees of a backup, and Follow
//	run.go      one run, from the newest generation to a new object of it
//	changed.go  which sessions have changed
//	write.go    the bundles that are written of them
//	pack.go     bundles in objects
//	index.go    the objects that say which sessions are where
//	restore.go  which run is restored, and the sessions of it
//	erased.go   what was erased, and stays so
//	chain.go    which bundles make a session
//	scratch.go  a store that the bundles are read into
//	verify.go   reads all that is kept
//	expire.go   generations, and those that are kept no longer
//	dir.go      a directory as a target
//
// # What a target has
//
// A generation begins with a copy of all sessions, and needs nothing of the generations before it. Its runs are
// numbered from 1. Each run is one object that says where sessions stood, and which part of which pack has what was
// written of them. A pack is an object with bundles, one after the other: see turnstone.Store.Bundle. In most of them
// is one session, and only what came after the run before.
//
//	20261127T231731.004821905Z-9f1c2b3a/runs/00000001
//	20261127T231731.004821905Z-9f1c2b3a/packs/00000001-5d0e77c2
//
// So that nobody has to read all runs, the object of run n has the entries of more than that run: of the last 2, 4, 8
// and so on runs, if n can be divided by that number. What sessions there are at run n is in run n, then in run n less
// the last of its binary digits that is not zero, and so on, at most log₂ n objects (as in a Fenwick tree: P. Fenwick,
// "A new data structure for cumulative frequency tables", 1994).
package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/turnstonedb/turnstone"
)

// A Target keeps the objects of backups: a Directory, or a bucket of an object store, as package bucket has it. The
// names of objects are made of ASCII letters, digits, "-" and ".", with "/" between them.
type Target interface {
	// Put stores what r yields under a name. When it returns nil, all of it is there, and stays. If r fails, nothing is
	// stored, and the error is that of r. If there is an object of the name already, it stays as it is, and the error
	// matches fs.ErrExist. After another error, the object is there whole, or not at all.
	Put(ctx context.Context, name string, r io.Reader) error
	// Get returns length bytes of an object from an offset on, or all that follow if length is negative. The error matches
	// fs.ErrNotExist if there is no object of the name.
	Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error)
	// List yields what is in a directory, in order: names of objects, and of directories with a "/" at the end. Dir is ""
	// or ends with "/".
	List(ctx context.Context, dir string) iter.Seq2[string, error]
	// Delete removes an object, if it is there. If the name ends with "/", it removes a directory and all that is in it.
	Delete(ctx context.Context, name string) error
}

// ErrTarget says that a target has what no backup writes, or lacks what one has written.
var ErrTarget = errors.New("turnstone: damaged backup")

// ErrOther says that another process has made a backup to the same target meanwhile. The next run goes on from that.
var ErrOther = errors.New("turnstone: another process makes a backup to the same target")

// Options of Run and Follow.
type Options struct {
	// Keep is for how long a time can be restored. A run removes a generation if the next one had its first complete
	// run so long ago. Default 0: nothing is removed. Content that is erased in the store is gone from the target when
	// the generations that have it are: as long as runs are made, Keep and GenerationEvery later.
	Keep time.Duration
	// GenerationEvery is when a new generation begins, with a copy of all sessions. Default 7 days. After 10,000 runs one
	// begins as well.
	GenerationEvery time.Duration
	// NewGeneration makes Run begin a new generation. Follow ignores it.
	NewGeneration bool
	// Every is the time from the end of a run to the next one of Follow. Default a minute.
	Every time.Duration
	// Report, if set, is called after each run of Follow, with what Run returns.
	Report func(*Report, error)
}

// A Report says what a run has done.
type Report struct {
	Generation string    `json:"generation"`
	Run        int       `json:"run"`              // its number in the generation; the last one if nothing has changed
	New        bool      `json:"new,omitzero"`     // it has begun the generation
	Time       time.Time `json:"time"`             // to which the run can be restored
	Compared   int       `json:"compared"`         // sessions that were compared with the backup
	Sessions   int       `json:"sessions"`         // that have changed
	Gone       int       `json:"gone"`             // that were deleted
	Bytes      int64     `json:"bytes"`            // of packs
	Expired    int       `json:"expired,omitzero"` // generations that were removed
	All        bool      `json:"all,omitzero"`     // all sessions were compared, as the feed could not tell which have changed
	Damaged    error     `json:"-"`                // why the generation before can't go on, so that this one was begun; else nil
	// Failed are the errors of what could not be read: sessions, the feed, the list of sessions, or what was erased. The
	// generation keeps what it had of such a session.
	Failed []error `json:"-"`
}

// Err returns the errors of Failed as one, or nil.
func (r *Report) Err() error { return errors.Join(r.Failed...) }

// Run copies what has changed in the sessions of a store since the last run to a target, and removes what is kept no
// longer. Sessions may be committed to meanwhile. Each is copied as it stands at one moment of the run; those of one
// CommitAll may be copied at different ones.
//
// If the feed of the store is on, and tells of records, Run reads from it which sessions have changed; see
// turnstone.Store.StartFeed. Otherwise, and for the first run of a generation, it compares all sessions with the
// backup.
//
// Every object is read back, and compared with what was written. If a run fails or is cut off, either it is complete,
// or what can be restored is the same as before. The next run goes on behind the last pack that was written. Only one
// process at a time is to make a backup to a target: of two, one fails with ErrOther. Sessions that can't be read are
// in Report.Failed, and the next run looks at them again. The report is nil if there is an error, but for one: the run
// is complete, and what is kept no longer could not be removed.
//
// The store must not be put back to an earlier state behind Run, by a copy of its files or its database: the feed can't
// tell what is different then. If it was, begin a generation.
func Run(ctx context.Context, st *turnstone.Store, to Target, o Options) (*Report, error) {
	b, err := newBackup(st, to, o)
	if err != nil {
		return nil, err
	}
	return b.run(ctx)
}

// Follow makes a run again and again until ctx ends, and returns the error of ctx. It keeps in memory where each
// session stands in the backup, about 700 bytes a session, and reads little more of the target than what it has
// written. It goes on after errors, which Report is told.
func Follow(ctx context.Context, st *turnstone.Store, to Target, o Options) error {
	o.NewGeneration = false
	b, err := newBackup(st, to, o)
	if err != nil {
		return err
	}
	for {
		r, err := b.run(ctx)
		if o.Report != nil && (r != nil || ctx.Err() == nil) {
			o.Report(r, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(b.o.Every):
		}
	}
}

// A backup is a call of Run or Follow.
type backup struct {
	st *turnstone.Store
	to Target
	o  Options
	at *index // where the newest generation stands; nil if it was not read yet
}

func newBackup(st *turnstone.Store, to Target, o Options) (*backup, error) {
	o.GenerationEvery, o.Every = cmp.Or(o.GenerationEvery, 7*24*time.Hour), cmp.Or(o.Every, time.Minute)
	switch {
	case st == nil:
		return nil, invalid("the store is nil")
	case to == nil:
		return nil, invalid("the target is nil")
	case o.Keep < 0, o.GenerationEvery < 0, o.Every < 0:
		return nil, invalid("a time is negative: Keep is %v, GenerationEvery %v, Every %v", o.Keep, o.GenerationEvery, o.Every)
	}
	return &backup{st: st, to: to, o: o}, nil
}

func invalid(format string, args ...any) error {
	return &turnstone.InvalidError{Where: "backup", Reason: fmt.Sprintf(format, args...)}
}
