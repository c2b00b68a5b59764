package importer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// A Loss is a session that Options.Replace deletes.
type Loss struct {
	turnstone.Info
	Kept     int // number of revisions that are kept by name
	Children int // number of forks of the session, which stay whole and have no parent then
}

// Losses returns the sessions that Load would delete for convs with Options.Replace.
func Losses(ctx context.Context, st *turnstone.Store, convs []Conversation) ([]Loss, error) {
	l := &loader{st: st}
	var out []Loss
	seen := map[string]bool{}
	for i := range convs {
		convs[i].seal()
		h, err := l.find(ctx, &convs[i])
		if err != nil {
			return nil, err
		}
		if h == nil || h.same || seen[h.session.ID()] {
			continue
		}
		seen[h.session.ID()] = true
		loss, err := l.loss(ctx, h)
		if err != nil {
			return nil, err
		}
		out = append(out, loss)
	}
	return out, nil
}

// loss returns the loss of a session.
func (l *loader) loss(ctx context.Context, h *held) (Loss, error) {
	kept, err := h.session.Kept(ctx)
	if err != nil {
		return Loss{}, err
	}
	loss := Loss{Info: h.info, Kept: len(kept)}
	for _, err := range Sessions(ctx, l.st, turnstone.ListOptions{Parent: h.info.ID}) {
		if err != nil {
			return Loss{}, err
		}
		loss.Children++
	}
	return loss, nil
}

// replace makes a session of c that takes the place and the id of another one. That is deleted when
// the new one is whole. If replace fails, it leaves the old session; if the process is killed, it may leave both.
func (l *loader) replace(ctx context.Context, c *Conversation, r *Result, old *held) error {
	expected := old.info.Revision
	if l.Only != nil {
		asked, found := l.Only[old.info.Incarnation]
		switch {
		case !found:
			return fmt.Errorf("session %q was made since it was asked which ones may be replaced", old.info.ID)
		case asked != turnstone.AnyRevision:
			expected = asked
		}
	}
	id := old.session.ID()
	h, err := l.make(ctx, c, clip(id, maxID)+"~"+strings.ToLower(rand.Text()[:8]), false)
	if err != nil {
		return err
	}
	_, last := h.end(c)
	if err = l.commit(ctx, c, r, h, plan{last: last}); err == nil {
		l.Clock.set(c.ended())
		err = h.session.SaveMetadata(ctx, head.Metadata{Labels: map[string]string{IdentityLabel: c.Identity}})
		l.Clock.set(noTime)
	}
	if err != nil { // The new session goes also if the caller's context has ended. Nobody else knows it.
		return errors.Join(err, h.session.Delete(context.WithoutCancel(ctx), turnstone.AnyRevision, turnstone.KeepChildren))
	}
	err = old.session.Delete(ctx, expected, turnstone.KeepChildren)
	if err != nil && !errors.Is(err, turnstone.ErrOutcomeUnknown) { // It stays. If somebody has gone on with it, nobody was told that this is lost.
		return errors.Join(err, h.session.Delete(context.WithoutCancel(ctx), turnstone.AnyRevision, turnstone.KeepChildren))
	}
	if err != nil {
		return err
	}
	r.Session, r.Outcome = h.session.ID(), Replaced
	err = h.session.Rename(ctx, id)
	if err == nil {
		r.Session = id
	}
	if errors.Is(err, turnstone.ErrExists) { // Somebody has made a session of that id meanwhile.
		return nil
	}
	return err
}
