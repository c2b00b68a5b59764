package turnstone

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/moving"
)

// MoveOptions of Move and CancelMove.
type MoveOptions struct {
	Namespace string // as in Options; others of the database stay
	// To is the name of the database that the namespace moves to. Stores give it to their Options.Database.
	To string
	// Pause is how long commits wait at most at a time, before the namespace is in the other database: mostly it is some
	// milliseconds. If Move does not end within half of it, commits go on, and Move tries again, ten times at most. If
	// Move has died, commits wait for all of it. Default 5 seconds.
	Pause time.Duration
	// Progress, if set, is called from the calling goroutine. The phases "copy" and "check" count the records that were
	// compared, "changes" counts the commits and other batches that came meanwhile, and "remove" the records that were
	// removed.
	Progress func(gc.Progress)
}

// A MoveReport says what Move did, as far as it got.
type MoveReport struct {
	Records int           `json:"records"` // that were compared
	Written int           `json:"written"` // that were written to the other database, again when they have changed
	Bytes   int64         `json:"bytes"`   // of those, keys and values
	Deleted int           `json:"deleted"` // that only the other database had
	Changes int           `json:"changes"` // batches that were applied meanwhile
	Removed int           `json:"removed"` // records that were removed from the database that the namespace has left
	Paused  time.Duration `json:"paused"`  // how long commits waited, in all
}

func (o *MoveOptions) internal(from, to engine.Engine) moving.Options {
	m := moving.Options{From: from, To: to, Name: o.To, Pause: o.Pause, Of: moving.Namespace{Name: o.Namespace, Known: head.Known}}
	if o.Progress != nil {
		m.Progress = func(phase string, done int) { o.Progress(gc.Progress{Phase: phase, Done: done}) }
	}
	return m
}

// check returns an error if the options or the engines can't be used.
func (o *MoveOptions) check(ctx context.Context, from engine.Engine) error {
	switch {
	case ctx == nil:
		return invalid("context", "it is nil")
	case from == nil:
		return invalid("move", "the engine is nil")
	}
	c := checker{of: "options"}
	c.text("namespace", o.Namespace, 0, MaxNamespace)
	c.text("To", o.To, 1, MaxDatabase)
	c.positive("Pause", int64(cmp.Or(o.Pause, moving.DefaultPause)))
	return c.err
}

// exists returns ErrStoreNotFound if e never had the namespace.
func (o *MoveOptions) exists(ctx context.Context, e engine.Engine) error {
	w, err := Where(ctx, e, o.Namespace)
	if err == nil && w == (Whereabouts{}) {
		err = fmt.Errorf("%w: namespace %q", ErrStoreNotFound, o.Namespace)
	}
	return err
}

// Move moves a namespace to another database while stores have it open, and returns when it is there. Reads go on all the
// time. Commits go on as well, but for a moment at the end: then they wait until the last changes are copied. Stores with
// Options.Database go on in the other database by themselves; those without it fail with engine.ErrMoved.
//
// Move copies all records, reads them back, copies again what has changed meanwhile, and at the end removes the records
// from the database that the namespace has left. A record stays there that says where the namespace is. Sessions, ids,
// the feed and its cursors, leases and records are the same in the other database.
//
// If Move fails or is killed, the namespace is in one of both databases: where it was, and the next call goes on, or in
// the other one, and the next call removes what is left. Until a move that was begun goes on, or is given up with
// CancelMove, each commit writes a note of what it changes.
//
// A database with another store of the namespace's name is ErrOtherStore. If the namespace is being moved elsewhere, if
// the database has a copy of the store, if another call takes over, or if more is written than can be copied, the error
// is ErrConflict. If the namespace has moved already, elsewhere, the error is an *engine.MovedError.
func Move(ctx context.Context, from, to engine.Engine, o MoveOptions) (*MoveReport, error) {
	if err := o.check(ctx, from); err != nil {
		return nil, err
	}
	if to == nil {
		return nil, invalid("move", "the engine to move to is nil")
	}
	if err := o.exists(ctx, from); err != nil {
		return nil, err
	}
	r, err := moving.Move(ctx, o.internal(from, to))
	return (*MoveReport)(r), err
}

// CancelMove gives up a move: the namespace stays where it is. It removes what the other database has of it, also if an
// earlier call was cut off. If that database is lost, to is nil. MoveOptions.To may be empty. If the namespace has moved
// already, the error is an *engine.MovedError.
func CancelMove(ctx context.Context, from, to engine.Engine, o MoveOptions) error {
	o.To = cmp.Or(o.To, "any")
	if err := o.check(ctx, from); err != nil {
		return err
	}
	if err := o.exists(ctx, from); err != nil {
		return err
	}
	return moving.Cancel(ctx, o.internal(from, to))
}

// A Whereabouts says what a database knows of where a namespace is.
type Whereabouts struct {
	Here   bool   `json:"here,omitzero"` // the namespace is in this database
	To     string `json:"to,omitempty"`  // the name of the database that it has moved to, or, with Here, is being moved to
	Paused bool   `json:"paused,omitzero"`
}

// Where returns what a database knows of where a namespace is: nothing, if it never had the namespace.
func Where(ctx context.Context, e engine.Engine, namespace string) (Whereabouts, error) {
	o := MoveOptions{Namespace: namespace, To: "any"}
	if err := o.check(ctx, e); err != nil {
		return Whereabouts{}, err
	}
	m, found, err := moving.Where(ctx, e, o.internal(e, nil).Of)
	if err != nil || !found {
		return Whereabouts{}, err
	}
	return Whereabouts{Here: m.Phase != head.Moved, To: m.To, Paused: m.Phase == head.Paused}, nil
}
