package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/push"
)

// A ref names a session: by its incarnation, or else by its id.
type ref struct{ session, id string }

func refsTo(ids []string) []ref {
	refs := make([]ref, len(ids))
	for i, id := range ids {
		refs[i].id = id
	}
	return refs
}

// changed returns the sessions that may have changed since the last run, and up to where the feed was read.
func (r *running) changed(ctx context.Context) (turnstone.Cursor, []ref, error) {
	var cursor turnstone.Cursor
	switch feed, err := r.st.Feed(ctx); {
	case errors.Is(err, turnstone.ErrFeedOff):
	case errors.Is(err, damage.ErrDamaged):
		r.report.Failed = append(r.report.Failed, fmt.Errorf("the feed: %w", err))
	case err != nil:
		return "", nil, err
	case feed.Records:
		cursor, r.switches = feed.End, feed.Switches
	}
	if cursor != "" && r.Cursor != "" && r.Switches == r.switches && r.Store == r.st.ID() {
		refs, told, err := r.told(ctx, cursor)
		if err != nil || told {
			return cursor, refs, err
		}
	}
	ids, err := push.List(ctx, r.st, "", time.Time{})
	if !errors.Is(err, damage.ErrDamaged) {
		r.report.AllOfThem = true
		return cursor, refsTo(ids), err
	}
	// Nothing tells which sessions there are, but for those that were there before.
	r.report.Failed = append(r.report.Failed, fmt.Errorf("the list of sessions: %w", err))
	var refs []ref
	for _, x := range []*index{r.index, r.before} {
		for session, e := range x.all() {
			if !e.Gone {
				refs = append(refs, ref{session: session})
			}
		}
	}
	return "", refs, nil
}

// told reads in the feed which sessions have changed up to a cursor. ok is false if it does not tell.
func (r *running) told(ctx context.Context, end turnstone.Cursor) (refs []ref, ok bool, err error) {
	if r.Cursor == end {
		return nil, true, nil
	}
	told := map[string]bool{}
	for c, err := range r.st.Watch(ctx, r.Cursor) {
		switch {
		case errors.Is(err, turnstone.ErrCursorExpired), errors.Is(err, turnstone.ErrFeedOff), errors.Is(err, turnstone.ErrInvalid):
			return nil, false, nil
		case errors.Is(err, damage.ErrDamaged):
			r.report.Failed = append(r.report.Failed, fmt.Errorf("the feed: %w", err))
			return nil, false, nil
		case err != nil:
			return nil, false, err
		}
		if !told[c.Incarnation] {
			told[c.Incarnation] = true
			refs = append(refs, ref{session: c.Incarnation})
		}
		if c.Cursor == end {
			break
		}
	}
	return refs, true, nil
}

// noteErased notes what the store has erased that the backup does not know of.
func (r *running) noteErased(ctx context.Context, during bool) error {
	for e, err := range r.st.Erasures(ctx) {
		if errors.Is(err, damage.ErrDamaged) {
			if !during { // Else it is told already.
				r.report.Failed = append(r.report.Failed, fmt.Errorf("what was erased: %w", err))
			}
			break
		}
		if err != nil {
			return err
		}
		if one := (&erasure{Erased: e, Store: r.st.ID(), Run: r.Run + 1, During: during}); r.erased[one.what()] == nil {
			r.erased[one.what()] = one
		}
	}
	return nil
}

// compare returns which of some sessions have changed, and notes which are gone.
func (r *running) compare(ctx context.Context, refs []ref, attempt int) (out []*change, err error) {
	var queries []turnstone.StandingQuery
	wanted := map[string]string{} // the sessions that are looked for, by their ids
	asked := map[string]string{}  // of which session the revision is asked for, by the id
	for _, of := range refs {
		session := of.session
		if session == "" {
			session = r.ids[of.id]
		} else {
			s, err := r.st.SessionByIncarnation(ctx, session)
			switch {
			case errors.Is(err, turnstone.ErrSessionNotFound), errors.Is(err, turnstone.ErrSessionDeleted):
				r.gone(session)
				continue
			case errors.Is(err, damage.ErrDamaged):
				r.fail(session, err)
				continue
			case err != nil:
				return nil, err
			}
			of.id = s.ID()
			wanted[of.id] = session
		}
		q := turnstone.StandingQuery{ID: of.id}
		if e := r.alive(session); e != nil {
			q.At = []head.Revision{e.Revision}
		}
		asked[of.id] = session
		queries = append(queries, q)
	}
	found, err := r.standings(ctx, queries)
	if err != nil {
		return nil, err
	}
	var again []ref
	there := map[string]bool{}
	for i := range found {
		s := &found[i]
		there[s.ID] = true
		if session := wanted[s.ID]; session == s.Incarnation {
			delete(wanted, s.ID)
		}
		if r.seen[s.Incarnation] && attempt == 0 {
			continue
		}
		c := &change{Standing: *s}
		if e := r.alive(s.Incarnation); e != nil && asked[s.ID] != s.Incarnation {
			again = append(again, ref{session: s.Incarnation})
			continue
		} else if e != nil && e.Run > r.Run { // It was written before, in this run.
			r.saw(s.Incarnation)
			continue
		} else if e != nil && e.standsFor(s) {
			if s.Revision == e.Revision && s.Rest == e.Rest && s.ID == e.ID {
				r.saw(s.Incarnation)
				continue
			}
			if !r.whole[s.Incarnation] {
				c.since, c.before = cmp.Or(e.Revision, turnstone.RevisionZero), e.Run
			}
		}
		r.saw(s.Incarnation)
		out = append(out, c)
	}
	for i := range queries {
		if id := queries[i].ID; wanted[id] == "" && !there[id] && !r.failed(id) {
			r.missed = true
		}
	}
	for id, session := range wanted {
		if !r.failed(id) { // It was renamed or deleted meanwhile.
			again = append(again, ref{session: session})
		}
	}
	if len(again) == 0 || attempt == attempts {
		return out, nil
	}
	more, err := r.compare(ctx, again, attempt+1)
	return append(out, more...), err
}

func (r *running) saw(session string) {
	if !r.seen[session] {
		r.seen[session] = true
		r.report.Compared++
	}
}

// gone notes that a session is not there any more.
func (r *running) gone(session string) {
	r.saw(session)
	if r.alive(session) != nil {
		r.set(&entry{Session: session, Run: r.Run + 1, Gone: true})
		r.report.Gone++
	}
}

// standsFor reports whether an entry is of an earlier time of a session. s.At has the commit at the entry's revision.
func (e *entry) standsFor(s *turnstone.Standing) bool {
	return e.Genesis == s.Genesis && len(s.At) == 1 && s.At[0] == e.Commit
}

// standings asks the store where sessions stand. Those that are damaged are noted as failed.
func (r *running) standings(ctx context.Context, queries []turnstone.StandingQuery) ([]turnstone.Standing, error) {
	found, err := r.st.Standings(ctx, queries...)
	if !errors.Is(err, damage.ErrDamaged) {
		return found, err
	}
	if len(queries) == 1 {
		r.fail(queries[0].ID, err)
		return nil, nil
	}
	found = nil
	for half := range slices.Chunk(queries, (len(queries)+1)/2) {
		some, err := r.standings(ctx, half)
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}

// A sessionError says which session could not be read.
type sessionError struct {
	id  string
	err error
}

func (e *sessionError) Error() string { return fmt.Sprintf("session %q: %v", e.id, e.err) }
func (e *sessionError) Unwrap() error { return e.err }

// fail notes that a session can't be read. The backup keeps what it has of it.
func (r *running) fail(id string, err error) {
	if session := r.ids[id]; session != "" {
		r.seen[session] = true
	}
	if !r.failed(id) {
		r.report.Failed = append(r.report.Failed, &sessionError{id, err})
	}
}

// failed reports whether a session could not be read.
func (r *running) failed(id string) bool {
	return slices.ContainsFunc(r.report.Failed, func(err error) bool {
		var of *sessionError
		return errors.As(err, &of) && of.id == id
	})
}
