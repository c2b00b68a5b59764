// Package push brings sessions from one store to another.
//
//	push.go     what to push, and the bundles that are sent
//	chosen.go   the sessions that are meant
//	compare.go  what the other store lacks of them
package push

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
)

// A Peer is a store that sessions are pushed from or to: a *Store, or a client of one behind a server.
type Peer interface {
	// List returns sessions, the most recently updated first.
	List(ctx context.Context, o turnstone.ListOptions) (turnstone.Page, error)
	// Standings returns where sessions stand.
	Standings(ctx context.Context, of ...turnstone.StandingQuery) ([]turnstone.Standing, error)
	// Bundle writes sessions in a form that Unbundle reads.
	Bundle(ctx context.Context, w io.Writer, of ...turnstone.Bundled) (*turnstone.BundleReport, error)
	// Unbundle reads what Bundle has written, and makes the sessions, or brings them forward.
	Unbundle(ctx context.Context, r io.Reader, o turnstone.UnbundleOptions) (*turnstone.UnbundleReport, error)
}

var _ Peer = (*turnstone.Store)(nil)

// Options of Sessions say which ones are pushed: exactly one of the fields Sessions, Group and All is set.
type Options struct {
	Sessions []string // their ids
	Group    string   // those of this group and of the groups below it
	All      bool
	// ChangedSince keeps those of Group, or of All, that were updated at that time or later: see turnstone.Info.Updated.
	ChangedSince time.Time
	// As is the id of the session in the other store. It is for a push of one session. Default: the same id.
	As string
	// Branch is turnstone.UnbundleOptions.Branch, for sessions that have diverged.
	Branch string
	// Progress, if set, is called with each session that was made or brought forward.
	Progress func(turnstone.Unbundled)
}

// A Report says what was pushed.
type Report struct {
	Sessions []turnstone.Unbundled `json:"sessions"` // those that came
	Same     int                   `json:"same"`     // how many had all already
	Bytes    int64                 `json:"bytes"`    // of the bundles that were sent
}

// Sessions brings sessions of one store to another, with all that Bundle writes of them. It asks both stores where the
// sessions stand, and sends what the other one lacks, many sessions in a bundle. A session only goes forward: see
// Unbundle. What the other store has of its own stays, and a deletion is not pushed. To pull is to push from the other
// store.
//
// A session that has diverged is not pushed. Options.As gives it an id of its own in the other store, and
// Options.Branch makes it a branch of the session there. Without them the error matches ErrDiverged. It matches
// ErrExists if another session has the id in the other store, and ErrSessionNotFound if a session that Options names
// does not exist. Such an error comes when all other sessions were pushed.
//
// If the other store has the parent of a new fork, the parent is brought forward as well, and the fork shares its
// history. If the parent is not there, or has diverged, or shows other nodes there, the fork comes with a copy of what
// it inherits, and without a parent.
//
// When a connection is cut, or a session is changed meanwhile, Sessions compares again, and goes on with the sessions
// that have not come, until nothing has come several times in turn. So does a later call. The report is never nil.
func Sessions(ctx context.Context, from, to Peer, o Options) (*Report, error) {
	p := &pushing{from: from, to: to, o: o, report: &Report{}, tried: map[string]turnstone.Unbundled{}}
	ids, refused, err := p.chosen(ctx)
	if err != nil {
		return p.report, err
	}
	for some := range slices.Chunk(ids, together) {
		more, err := p.some(ctx, some)
		refused = append(refused, more...)
		if err != nil {
			return p.report, errors.Join(append(refused, err)...)
		}
	}
	return p.report, errors.Join(refused...)
}

const (
	together = 100 // sessions of a bundle
	attempts = 6   // in turn without a session that has come
)

// A pushing is one call of Push.
type pushing struct {
	from, to Peer
	o        Options
	report   *Report
	tried    map[string]turnstone.Unbundled // where those stood in the other store that were sent and have not come, by their ids there
}

// there is the id that a session has in the other store.
func (p *pushing) there(id string) string { return cmp.Or(p.o.As, id) }

// some pushes some sessions. refused are the errors of those that can't be.
func (p *pushing) some(ctx context.Context, ids []string) (refused []error, err error) {
	var last []turnstone.Bundled
	parents := true // those of new forks go with them
	for failed := 1; ; failed++ {
		var l lacking
		l, err = p.compare(ctx, ids, parents)
		if err == nil {
			if !slices.Equal(l.of, last) {
				failed, last = 1, l.of
			}
			var received bool
			received, err = p.sendAll(ctx, &l)
			parents = parents && !(received && errors.Is(err, turnstone.ErrConflict))
		}
		switch {
		case err == nil:
			p.report.Same += l.same
			return l.refused, nil
		case errors.Is(err, turnstone.ErrBundle) && len(ids) > 1: // because of one of them
			return p.each(ctx, ids)
		case errors.Is(err, turnstone.ErrBundle) && parents && len(l.of) > 1: // perhaps because of the parent
			parents = false
			continue
		case failed == attempts || !goesOn(err) || ctx.Err() != nil:
			return l.refused, err
		}
		pause := time.Duration(failed*failed)*20*time.Millisecond + rand.N(20*time.Millisecond)
		select {
		case <-ctx.Done():
			return l.refused, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// sendAll sends what the other store lacks: what has diverged one by one.
func (p *pushing) sendAll(ctx context.Context, l *lacking) (received bool, err error) {
	if len(l.of) > 0 {
		if received, err = p.send(ctx, "", l.of...); err != nil {
			return received, err
		}
	}
	for _, one := range l.diverged {
		received, err = p.send(ctx, p.o.Branch, one)
		if one.Since > 0 && errors.Is(err, turnstone.ErrRevisionPruned) { // What came after it is relative to what is not there any more.
			one.Since = 0
			received, err = p.send(ctx, p.o.Branch, one)
		}
		if err != nil {
			return received, err
		}
	}
	return true, nil
}

// each pushes sessions one by one.
func (p *pushing) each(ctx context.Context, ids []string) (refused []error, err error) {
	for _, id := range ids {
		some, err := p.some(ctx, []string{id})
		refused = append(refused, some...)
		switch {
		case errors.Is(err, turnstone.ErrBundle):
			refused = append(refused, err)
		case err != nil:
			return refused, err
		}
	}
	return refused, nil
}

// goesOn reports whether another attempt may do what failed with err: the connection was cut, or a session was changed
// meanwhile.
func goesOn(err error) bool {
	for _, of := range []error{engine.ErrUnavailable, turnstone.ErrOutcomeUnknown, turnstone.ErrConflict, turnstone.ErrDiverged, turnstone.ErrSessionDeleted, turnstone.ErrSessionNotFound, io.ErrUnexpectedEOF} {
		if errors.Is(err, of) {
			return true
		}
	}
	return false
}

// send sends a bundle from one store to the other. received tells that it has come whole.
func (p *pushing) send(ctx context.Context, branch string, of ...turnstone.Bundled) (received bool, err error) {
	r, w := io.Pipe()
	written := make(chan error, 1)
	count := &counter{w: w}
	go func() {
		_, err := p.from.Bundle(ctx, count, of...)
		_ = w.CloseWithError(err)
		written <- err
	}()
	got, err := p.to.Unbundle(ctx, r, turnstone.UnbundleOptions{As: p.o.As, Branch: branch})
	_ = r.CloseWithError(errEnded)
	bundled := <-written
	p.report.Bytes += count.n
	if bundled != nil && !errors.Is(bundled, errEnded) {
		return false, bundled
	}
	if err != nil {
		return true, err
	}
	for _, in := range got.Sessions {
		p.came(in)
	}
	return true, nil
}

var errEnded = errors.New("turnstone: the other store has ended")

// came adds a session to the report.
func (p *pushing) came(in turnstone.Unbundled) {
	one, tried := p.tried[in.ID]
	delete(p.tried, in.ID)
	if tried { // An attempt before this one may have brought some.
		in.Created, in.From = one.Created, one.From
		in.Changed = in.Changed || in.Created || in.To > in.From
	}
	if !in.Changed { // What is different is of the other store alone.
		if tried {
			p.report.Same++
		}
		return
	}
	p.report.Sessions = append(p.report.Sessions, in)
	if p.o.Progress != nil {
		p.o.Progress(in)
	}
}

// A counter counts the bytes that are written.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}
