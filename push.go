package turnstone

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/bundle"
)

// A StandingQuery asks where a session stands.
type StandingQuery struct {
	ID string `json:"id"`
	// At are revisions, at most MaxStandingAt, whose commits are asked for; 0 is that before the first commit.
	At []head.Revision `json:"at,omitempty"`
}

// MaxStandingAt is how many revisions a StandingQuery asks for at most.
const MaxStandingAt = 64

// A Standing says where a session stands, so that who has the Standings of two stores knows what one of them lacks.
type Standing struct {
	ID      string        `json:"id"`
	Genesis head.CommitID `json:"genesis"` // the same in all stores that the session was brought to
	Point                 // where it stands: before the first commit, Commit is the genesis
	Parent  string        `json:"parent,omitempty"` // of an attached fork: the id of its parent, if that has not been deleted
	// Rest stands for metadata, records, tombstones and kept revisions: where they are the same, Rest is.
	Rest string          `json:"rest"`
	At   []head.CommitID `json:"at,omitempty"` // the commits at StandingQuery.At; zero beyond the head, and the genesis for 0
}

// Standings returns where sessions stand, at most MaxPage. It leaves out those that do not exist.
func (s *Store) Standings(ctx context.Context, of ...StandingQuery) ([]Standing, error) {
	if _, err := s.usable(ctx); err != nil {
		return nil, err
	}
	c := checker{of: "standings"}
	c.limit("sessions", len(of), MaxPage)
	for i := range of {
		c.limit("revisions", len(of[i].At), MaxStandingAt)
		if err := errors.Join(c.err, checkSessionID(of[i].ID)); err != nil {
			return nil, err
		}
		for _, r := range of[i].At {
			if err := checkRevision("standings", "At", r); err != nil {
				return nil, err
			}
		}
	}
	return observed(ctx, s, OpStandings, "", func(ctx context.Context) ([]Standing, error) {
		out := make([]Standing, 0, len(of))
		for i := range of {
			switch one, err := s.standing(ctx, &of[i]); {
			case errors.Is(err, ErrSessionNotFound), errors.Is(err, ErrSessionDeleted):
			case err != nil:
				return nil, fmt.Errorf("session %q: %w", of[i].ID, public(err))
			default:
				out = append(out, *one)
			}
		}
		return out, nil
	}, func(all []Standing, out *Outcome) { out.Items = len(all) })
}

func (s *Store) standing(ctx context.Context, q *StandingQuery) (*Standing, error) {
	at := slices.Clone(q.At)
	for i, r := range at {
		if r == RevisionZero {
			at[i] = 0
		}
	}
	st, err := bundle.StandingOf(ctx, s.histories, q.ID, at)
	if err != nil {
		return nil, err
	}
	out := &Standing{ID: q.ID, Genesis: st.Genesis, Point: Point(st.Head), Rest: hex.EncodeToString(st.Rest[:]), At: st.At}
	if st.Parent != (head.Incarnation{}) {
		parent, err := s.byIncarnation(ctx, st.Parent)
		if err != nil {
			return nil, err
		}
		out.Parent = parent.ID()
	}
	return out, nil
}

// A Peer is a store that sessions are pushed from or to: a *Store, or a client of one behind a server.
type Peer interface {
	// List returns sessions, the most recently updated first.
	List(ctx context.Context, o ListOptions) (Page, error)
	// Standings returns where sessions stand.
	Standings(ctx context.Context, of ...StandingQuery) ([]Standing, error)
	// Bundle writes sessions in a form that Unbundle reads.
	Bundle(ctx context.Context, w io.Writer, of ...Bundled) (*BundleReport, error)
	// Unbundle reads what Bundle has written, and makes the sessions, or brings them forward.
	Unbundle(ctx context.Context, r io.Reader, o UnbundleOptions) (*UnbundleReport, error)
}

var _ Peer = (*Store)(nil)

// PushOptions of Push say which sessions are pushed: exactly one of Sessions, Group and All is set.
type PushOptions struct {
	Sessions []string // their ids
	Group    string   // those of this group and of the groups below it
	All      bool
	// ChangedSince keeps those of Group, or of All, that were updated at that time or later: see Info.Updated.
	ChangedSince time.Time
	// As is the id that the session has in the other store, if there is only one. Default: the same.
	As string
	// Branch is UnbundleOptions.Branch, for sessions that have diverged.
	Branch string
	// Progress, if set, is called with each session that was made or brought forward.
	Progress func(Unbundled)
}

// A PushReport says what Push has done.
type PushReport struct {
	Sessions []Unbundled `json:"sessions"` // those that came
	Same     int         `json:"same"`     // how many had all already
	Bytes    int64       `json:"bytes"`    // of the bundles that were sent
}

// Push brings sessions of one store to another, with all that Bundle writes of them. It compares where they stand
// there, and sends what is missing, of many sessions in one bundle. A session goes forward only, as Unbundle says, and
// what the other store has of its own stays. A deletion is not pushed. To pull is to push from the other store.
//
// Of a session that has diverged nothing is pushed, and the error, which comes when all others were, matches
// ErrDiverged: with As, it gets an id of its own there, and with Branch, it becomes a branch. If another session has
// the id there, the error matches ErrExists, and ErrSessionNotFound of one that was named and does not exist.
//
// A new fork whose parent is there brings the parent forward as well, and shares its history. If the parent is not
// there, or has diverged, or shows other nodes there, the fork comes with a copy of what it inherits, and without a
// parent.
//
// When a connection is cut, or a session is changed meanwhile, Push compares again, and goes on with the sessions
// that have not come, until nothing has come several times in turn. So does a later call. The report is never nil.
func Push(ctx context.Context, from, to Peer, o PushOptions) (*PushReport, error) {
	p := &pushing{from: from, to: to, o: o, report: &PushReport{}, tried: map[string]Unbundled{}}
	ids, refused, err := p.chosen(ctx)
	if err != nil {
		return p.report, err
	}
	for some := range slices.Chunk(ids, pushedTogether) {
		more, err := p.some(ctx, some)
		refused = append(refused, more...)
		if err != nil {
			return p.report, errors.Join(append(refused, err)...)
		}
	}
	return p.report, errors.Join(refused...)
}

const (
	pushedTogether = 100 // sessions of a bundle
	pushAttempts   = 6   // in turn without a session that has come
)

// A pushing is one call of Push.
type pushing struct {
	from, to Peer
	o        PushOptions
	report   *PushReport
	tried    map[string]Unbundled // where those stood in the other store that were sent and have not come, by their ids there
}

// chosen returns the ids of the sessions that are to be pushed, parents before their forks, and the errors of those
// that do not exist.
func (p *pushing) chosen(ctx context.Context) (ids []string, missing []error, err error) {
	o := &p.o
	switch {
	case p.from == nil || p.to == nil:
		return nil, nil, invalid("push", "a store is nil")
	case len(o.Sessions) > 0 && (o.Group != "" || o.All), o.Group != "" && o.All, len(o.Sessions) == 0 && o.Group == "" && !o.All:
		return nil, nil, invalid("push", "want one of Sessions, Group and All")
	case len(o.Sessions) > 0 && !o.ChangedSince.IsZero():
		return nil, nil, invalid("push", "ChangedSince is for a group or all sessions, and sessions are named")
	case o.As != "" && len(o.Sessions) != 1:
		return nil, nil, invalid("push", "As is for one session")
	case len(o.Sessions) > 0:
		return p.named(ctx)
	}
	all, err := p.listed(ctx)
	if err != nil {
		return nil, nil, err
	}
	for i := range all {
		ids = append(ids, all[i].id)
	}
	return ids, nil, nil
}

// A listed is a session in a list.
type listed struct {
	id      string
	created time.Time
}

// listed returns the sessions of the group, or all, the oldest first. A session that is updated meanwhile moves to the
// front of the list, which may be behind the reader: so the front is read again until there is nothing new.
func (p *pushing) listed(ctx context.Context) (all []listed, err error) {
	seen := map[string]bool{}
	since, limit := p.o.ChangedSince, MaxPage
	for more := 1; more > 0; limit = 50 {
		newest := since
		before := len(all)
		o := ListOptions{Group: p.o.Group, Limit: limit}
		for page := true; page; page = o.After != "" {
			got, err := p.from.List(ctx, o)
			if err != nil {
				return nil, err
			}
			o.After = got.Next
			for i := range got.Sessions {
				info := &got.Sessions[i]
				if info.Updated.Before(since) {
					o.After = "" // The others were updated before.
					break
				}
				if info.Updated.After(newest) {
					newest = info.Updated
				}
				if !seen[info.ID] {
					seen[info.ID] = true
					all = append(all, listed{info.ID, info.Created})
				}
			}
		}
		more = len(all) - before
		since = newest
	}
	slices.SortStableFunc(all, func(a, b listed) int { return a.created.Compare(b.created) })
	return all, nil
}

// named is chosen for sessions that are named.
func (p *pushing) named(ctx context.Context) (ids []string, missing []error, err error) {
	exists := map[string]bool{}
	for some := range slices.Chunk(p.o.Sessions, MaxPage) {
		of := make([]StandingQuery, len(some))
		for i, id := range some {
			of[i].ID = id
		}
		found, err := p.from.Standings(ctx, of...)
		if err != nil {
			return nil, nil, err
		}
		for i := range found {
			exists[found[i].ID] = true
		}
	}
	for i, id := range p.o.Sessions {
		switch {
		case slices.Contains(p.o.Sessions[:i], id):
			return nil, nil, invalid("push", "session %q twice", id)
		case exists[id]:
			ids = append(ids, id)
		default:
			missing = append(missing, fmt.Errorf("%w: %q", ErrSessionNotFound, id))
		}
	}
	return ids, missing, nil
}

// there is the id that a session has in the other store.
func (p *pushing) there(id string) string { return cmp.Or(p.o.As, id) }

// some pushes some sessions. refused are the errors of those that can't be.
func (p *pushing) some(ctx context.Context, ids []string) (refused []error, err error) {
	var last []Bundled
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
			parents = parents && !(received && errors.Is(err, ErrConflict))
		}
		switch {
		case err == nil:
			p.report.Same += l.same
			return l.refused, nil
		case errors.Is(err, ErrBundle) && len(ids) > 1: // because of one of them
			return p.each(ctx, ids)
		case errors.Is(err, ErrBundle) && parents && len(l.of) > 1: // perhaps because of the parent
			parents = false
			continue
		case failed == pushAttempts || !goesOn(err) || ctx.Err() != nil:
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
		if one.Since > 0 && errors.Is(err, ErrRevisionPruned) { // What came after it is relative to what is not there any more.
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
		case errors.Is(err, ErrBundle):
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
	for _, of := range []error{engine.ErrUnavailable, ErrOutcomeUnknown, ErrConflict, ErrDiverged, ErrSessionDeleted, ErrSessionNotFound, io.ErrUnexpectedEOF} {
		if errors.Is(err, of) {
			return true
		}
	}
	return false
}

// A lacking is what the other store lacks of some sessions.
type lacking struct {
	of       []Bundled
	diverged []Bundled // those that become branches, since the last common commit
	same     int       // how many sessions it lacks nothing of
	refused  []error   // of those that can't be pushed
}

// compare finds out what the other store lacks of sessions, and of the parents of those that are new there if parents
// is set.
func (p *pushing) compare(ctx context.Context, ids []string, parents bool) (l lacking, err error) {
	pairs, err := p.pairs(ctx, ids)
	if err != nil {
		return l, err
	}
	var missing []string
	for _, id := range ids {
		pair := pairs[id]
		if pair.here == nil { // It was deleted since it was found.
			continue
		}
		if err := p.add(ctx, &l, pair); err != nil {
			return l, err
		}
		if parent := pair.here.Parent; parents && p.o.As == "" && pair.there == nil && parent != "" && !slices.Contains(missing, parent) {
			missing = append(missing, parent)
		}
	}
	missing = slices.DeleteFunc(missing, func(id string) bool {
		return slices.ContainsFunc(l.of, func(b Bundled) bool { return b.ID == id })
	})
	if pairs, err = p.pairs(ctx, missing); err != nil {
		return l, err
	}
	for _, id := range missing {
		if pair := pairs[id]; pair.here != nil && pair.there != nil {
			if since, _, err := p.lacks(ctx, pair); err == nil {
				l.of = append(l.of, Bundled{ID: id, Since: since})
			}
		}
	}
	return l, nil
}

// add adds what the other store lacks of a session.
func (p *pushing) add(ctx context.Context, l *lacking, pair pair) error {
	id := p.there(pair.here.ID)
	since, lacks, err := p.lacks(ctx, pair)
	var diverged *DivergedError
	before, tried := p.tried[id]
	switch {
	case errors.As(err, &diverged) && p.o.Branch != "":
		l.diverged = append(l.diverged, Bundled{ID: pair.here.ID, Since: diverged.Common.Revision})
	case err != nil && (diverged != nil || errors.Is(err, ErrExists)):
		l.refused = append(l.refused, err)
		return nil
	case err != nil:
		return err
	case lacks:
		l.of = append(l.of, Bundled{ID: pair.here.ID, Since: since})
	case tried: // An attempt that failed in the end has brought it.
		before.To, before.Changed = pair.there.Revision, true
		p.came(before)
		return nil
	default:
		l.same++
		return nil
	}
	if !tried {
		if before = (Unbundled{ID: id, Created: true}); pair.there != nil {
			before = Unbundled{ID: id, From: pair.there.Revision}
		}
		p.tried[id] = before
	}
	return nil
}

// A pair is where a session stands in both stores. At of each has the commit at the revision where the other one
// stands, if it is not beyond its own. A session that is not there is nil.
type pair struct{ here, there *Standing }

// pairs compares where sessions stand.
func (p *pushing) pairs(ctx context.Context, ids []string) (map[string]pair, error) {
	out := map[string]pair{}
	if len(ids) == 0 {
		return out, nil
	}
	queries := make([]StandingQuery, len(ids))
	ask := func(there bool, at func(id string) *Standing) (map[string]*Standing, error) {
		of := p.from
		if there {
			of = p.to
		}
		for i, id := range ids {
			queries[i] = StandingQuery{ID: id}
			if there {
				queries[i].ID = p.there(id)
			}
			if other := at(id); other != nil {
				queries[i].At = []head.Revision{other.Revision}
			}
		}
		found, err := of.Standings(ctx, queries...)
		by := map[string]*Standing{}
		for i := range found {
			by[found[i].ID] = &found[i]
		}
		return by, err
	}
	there, err := ask(true, func(string) *Standing { return nil })
	if err != nil {
		return nil, err
	}
	here, err := ask(false, func(id string) *Standing { return there[p.there(id)] })
	if err != nil {
		return nil, err
	}
	ahead := false
	for _, id := range ids {
		one := pair{here[id], there[p.there(id)]}
		ahead = ahead || one.here != nil && one.there != nil && one.there.Revision > one.here.Revision
		out[id] = one
	}
	if !ahead {
		return out, nil
	}
	if there, err = ask(true, func(id string) *Standing { return here[id] }); err != nil {
		return nil, err
	}
	for _, id := range ids {
		one := out[id]
		if now := there[p.there(id)]; one.there != nil && now != nil && now.Point == one.there.Point {
			one.there = now
			out[id] = one
		}
	}
	return out, nil
}

// lacks reports whether the other store lacks something of a session, and since which revision. The error is a
// *DivergedError if the session has diverged, and ErrExists if the other store has another one of the id.
func (p *pushing) lacks(ctx context.Context, of pair) (since head.Revision, lacks bool, err error) {
	here, there := of.here, of.there
	switch {
	case there == nil:
		return 0, true, nil
	case here.Genesis != there.Genesis:
		return 0, false, fmt.Errorf("%w: another session is called %q there", ErrExists, there.ID)
	case here.Point == there.Point:
		return here.Revision, here.Rest != there.Rest, nil
	case there.Revision < here.Revision && len(here.At) == 1 && here.At[0] == there.Commit:
		return there.Revision, true, nil
	case there.Revision > here.Revision && len(there.At) == 1 && there.At[0] == here.Commit:
		return here.Revision, here.Rest != there.Rest, nil
	}
	common, err := p.common(ctx, of)
	switch {
	case err != nil:
		return 0, false, err
	case common.Revision == there.Revision: // It was committed to since it was asked.
		return there.Revision, true, nil
	case common.Revision == here.Revision:
		return here.Revision, here.Rest != there.Rest, nil
	}
	return 0, false, &DivergedError{Session: there.ID, Here: there.Point, There: here.Point, Common: common}
}

// common returns the last commit that both stores have of a session that has diverged. It asks both for a number of
// commits, evenly apart, again and again.
func (p *pushing) common(ctx context.Context, of pair) (Point, error) {
	const asked = 32
	low, high := Point{}, min(of.here.Revision, of.there.Revision) // low is common, and high+1 is not
	for low.Revision < high {
		var at []head.Revision
		for i, n := head.Revision(1), min(asked, high-low.Revision); i <= n; i++ {
			at = append(at, low.Revision+(high-low.Revision)*i/n)
		}
		here, err := p.from.Standings(ctx, StandingQuery{ID: of.here.ID, At: at})
		if err != nil {
			return Point{}, err
		}
		there, err := p.to.Standings(ctx, StandingQuery{ID: of.there.ID, At: at})
		if err != nil {
			return Point{}, err
		}
		if len(here) != 1 || len(there) != 1 || len(here[0].At) != len(at) || len(there[0].At) != len(at) {
			return Point{}, fmt.Errorf("%w: %q", ErrSessionDeleted, of.here.ID)
		}
		for i, r := range at {
			if here[0].At[i] != there[0].At[i] {
				high = r - 1
				break
			}
			low = Point{r, here[0].At[i]}
		}
	}
	return low, nil
}

// send sends a bundle from one store to the other. received tells that it has come whole.
func (p *pushing) send(ctx context.Context, branch string, of ...Bundled) (received bool, err error) {
	r, w := io.Pipe()
	written := make(chan error, 1)
	count := &counter{w: w}
	go func() {
		_, err := p.from.Bundle(ctx, count, of...)
		_ = w.CloseWithError(err)
		written <- err
	}()
	got, err := p.to.Unbundle(ctx, r, UnbundleOptions{As: p.o.As, Branch: branch})
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
func (p *pushing) came(in Unbundled) {
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
