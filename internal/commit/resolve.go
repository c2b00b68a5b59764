package commit

import (
	"bytes"
	"cmp"
	"context"
	"errors"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/session"
)

// decided reports whether err says that no attempt of the commit stands.
func decided(err error) bool {
	// A version never recurs, so what guards another one than stands can't come late. The head has told
	// before that no attempt stands.
	var r *RecordConflict
	if errors.As(err, &r) && r.Expected != (session.RecordVersion{}) {
		return true
	}
	return errors.Is(err, history.ErrConflict) || errors.Is(err, ErrTurnConflict) || errors.Is(err, history.ErrInvalid)
}

var (
	// errStands says that the commit stands: an earlier attempt, whose outcome was unknown, has
	// succeeded.
	errStands = errors.New("the commit stands")
	// errTurnStands says that a turn was committed before.
	errTurnStands = errors.New("the turn stands")
)

// A replayed is the error for turns that were all committed before with the same content.
type replayed struct {
	results []Result      // of those commits
	first   *TurnConflict // the error in its place if other turns of the call were not committed
}

func (*replayed) Error() string { return "turn replayed" }

// resolve finds out why a guard was false. It reads the heads, for another attempt, or returns
// the error that the commit ends with.
func (c *call) resolve(ctx context.Context, conflict error) error {
	c.recordsFresh, c.recordsRead = true, false
	if len(c.writers) == 0 {
		if err := c.recordsOutcome(ctx, conflict); err != nil {
			return err
		}
		return c.open(ctx)
	}
	if err := c.readOutcome(ctx); err != nil {
		return err
	}
	if err := c.orReplayed(ctx, nil); err != nil {
		return err
	}
	if err := c.checkExpected(ctx); err != nil {
		return err
	}
	var ce *engine.ConflictError
	if errors.As(conflict, &ce) && c.store.Space.Letter(ce.Key) == keys.Mark { // A mark has changed, or the cache of marks was wrong.
		ids := c.stage.IDs()
		for i := range c.writers {
			ids = append(ids, c.writers[i].in.referred()...)
		}
		if _, err := c.store.Blobs.Refresh(ctx, c.stage.Marks, ids); err != nil {
			return err
		}
	}
	return nil
}

// readOutcome reads the heads. If an earlier attempt may have taken effect, and every session that can
// be read has its commit, the error is errStands: one batch had all of these commits. One session alone
// proves nothing: somebody else may have made the same commit to it.
func (c *call) readOutcome(ctx context.Context) error {
	var failed error
	stands, contradicted, moved := false, false, false
	for i := range c.writers {
		w := &c.writers[i]
		if w.born != nil {
			if c.Unknown {
				made, err := w.creator.Made(ctx)
				failed, stands = cmp.Or(failed, err), stands || made
			}
			continue
		}
		guarded := w.record
		err := w.readHead(ctx)
		moved = moved || err == nil && !bytes.Equal(guarded, w.record)
		if err == nil && c.Unknown {
			made := &w.built.turn
			if w.head.Revision < made.Revision {
				contradicted = true
			} else if t, terr := w.s.TurnAt(ctx, made.Revision); terr != nil {
				err = terr
			} else if t.ID == made.ID {
				stands = true
			} else {
				contradicted = true
			}
		}
		if w.creator == nil || c.Unknown || !errors.Is(err, history.ErrSessionDeleted) { // Else it is made anew.
			failed = cmp.Or(failed, err)
		}
	}
	if stands && !contradicted {
		return errStands
	}
	if failed != nil {
		return failed
	}
	if moved { // What guards that head, which never recurs, can't come late.
		c.Unknown = false
	}
	return c.reopen(ctx)
}

// reopen opens the sessions that the call may create once more: somebody else may have made or deleted
// one, or changed its parent.
func (c *call) reopen(ctx context.Context) error {
	if err := c.open(ctx); err != nil {
		return err
	}
	for i := range c.writers {
		if w := &c.writers[i]; w.head == nil {
			if err := w.readHead(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// orReplayed returns err, unless turns of the commit were committed before, up to the heads. If all of
// them were, with the same content, the error is a *replayed, and else a TurnConflict.
func (c *call) orReplayed(ctx context.Context, err error) error {
	if len(c.writers) == 0 || c.writers[0].in.Turn == "" {
		return err
	}
	again, rerr := c.findTurns(ctx)
	if rerr == nil && 0 < len(again.results) && len(again.results) < len(c.writers) {
		// The heads were read one after the other, and somebody may have made this very commit
		// between two of them. From now on all of its turns are found.
		if rerr = c.readHeads(ctx); rerr == nil {
			again, rerr = c.findTurns(ctx)
		}
	}
	switch {
	case rerr != nil:
		return rerr
	case len(again.results) == len(c.writers):
		return again
	case len(again.results) > 0:
		again.first.Alone = true
		return again.first
	}
	return err
}

// findTurns returns those turns of the commit that were committed before, up to the heads. The error
// is a TurnConflict if one of them has other content.
func (c *call) findTurns(ctx context.Context) (*replayed, error) {
	out := new(replayed)
	for i := range c.writers {
		w := &c.writers[i]
		if w.born != nil {
			continue
		}
		t, err := history.Try(ctx, w.s, func() (*history.Turn, error) { return w.s.FindTurn(ctx, w.head.Revision, w.in.Turn) })
		if err != nil {
			return nil, err
		}
		if t == nil {
			continue
		}
		other := &TurnConflict{Session: w.s.ID, Turn: w.in.Turn, Revision: t.Revision, Commit: t.ID}
		if same, err := w.same(ctx, t); err != nil || !same {
			return nil, cmp.Or(err, error(other))
		}
		if out.first == nil {
			out.first = other
		}
		out.results = append(out.results, resultOf(t))
	}
	return out, nil
}

// resultOf returns the result of a commit that stands.
func resultOf(t *history.Turn) Result {
	r := Result{Revision: t.Revision, Commit: t.ID, Leaf: t.Leaf, Replayed: true}
	for i := range t.Pack.Nodes {
		r.Nodes = append(r.Nodes, t.Pack.Nodes[i].ID)
	}
	return r
}

// same reports whether the commit that is stored under the turn id of the request has its content.
func (w *writer) same(ctx context.Context, stored *history.Turn) (bool, error) {
	if stored.Pack.Erased() { // The content can't be compared any more, so the turn id decides.
		return true, nil
	}
	before, err := history.Try(ctx, w.s, func() (head.State, error) { return w.s.StateAt(ctx, stored.Revision-1) })
	if err != nil {
		return false, err
	}
	inherited, err := w.inherited(ctx, &before.Base)
	if errors.Is(err, history.ErrInvalid) {
		return false, nil // The commit that stands named no such node.
	}
	if err != nil {
		return false, err
	}
	made, err := assemble(w.in, make([]payload, len(w.in.Nodes)), w.digests(&stored.Commit), &before, inherited, stored.Pack.Salt, stored.Time)
	return err == nil && made.turn.ID == stored.ID, nil
}

// digests returns the parts of the request as assemble takes them, but only with their ids and
// sizes. Whether a part is a delta is taken from the commit to compare with, since it depends on
// what the cache had at that time.
func (w *writer) digests(with *head.Commit) map[string]*version {
	parts := map[string]*version{}
	for name, content := range w.in.Checkpoint {
		parts[name] = &version{id: blob.Sum(content), size: int64(len(content))}
	}
	for name, id := range w.in.Stored {
		parts[name] = &version{id: id, stored: true}
	}
	for _, p := range with.Parts {
		if v := parts[p.Name]; v != nil && v.stored && v.id == p.Blob {
			v.size = p.Size
		}
		if v := parts[p.Name]; v != nil && p.Set == with.Revision {
			v.delta = head.IsDelta(p)
		}
	}
	return parts
}
