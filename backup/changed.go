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
		r.report.All = true
		return cursor, refsTo(ids), err
	}
	r.unlisted = true
	r.report.Failed = append(r.report.Failed, fmt.Errorf("the list of sessions: %w", err))
	refs := r.unseen()
	if r.older != nil {
		for session, e := range r.older.sessions {
			if !e.Gone {
				refs = append(refs, ref{session: session})
			}
		}
	}
	return "", refs, nil
}

// unseen returns the sessions of the backup that were not compared yet.
func (r *running) unseen() (refs []ref) {
	for session, e := range r.sessions {
		if !e.Gone && !r.seen[session] {
			refs = append(refs, ref{session: session})
		}
	}
	return refs
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

// A question asks where a session stands.
type question struct {
	ref
	asked string // the session whose revision in the backup is asked for as well, or ""
}

// questions returns how to ask for sessions, and notes which are gone.
func (r *running) questions(ctx context.Context, refs []ref) (out []question, err error) {
	for _, of := range refs {
		asked := of.session
		if asked == "" {
			asked = r.ids[of.id]
		} else {
			s, err := r.st.SessionByIncarnation(ctx, of.session)
			switch {
			case errors.Is(err, turnstone.ErrSessionNotFound), errors.Is(err, turnstone.ErrSessionDeleted):
				r.gone(of.session)
				continue
			case errors.Is(err, damage.ErrDamaged):
				r.fail(of.session, err)
				continue
			case err != nil:
				return nil, err
			}
			of.id = s.ID()
		}
		out = append(out, question{of, asked})
	}
	return out, nil
}

// compare returns which of some sessions have changed, and notes which are gone.
func (r *running) compare(ctx context.Context, refs []ref, attempt int) (out []*change, err error) {
	questions, err := r.questions(ctx, refs)
	if err != nil {
		return nil, err
	}
	queries := make([]turnstone.StandingQuery, len(questions))
	for i, q := range questions {
		queries[i].ID = q.id
		if e := r.alive(q.asked); e != nil {
			queries[i].At = []head.Revision{e.Revision}
		}
	}
	found, err := r.standings(ctx, queries)
	if err != nil {
		return nil, err
	}
	by := map[string]*turnstone.Standing{}
	for i := range found {
		by[found[i].ID] = &found[i]
	}
	var again []ref
	for _, q := range questions {
		switch s := by[q.id]; {
		case s == nil && r.failed[q.id]:
		case s == nil && q.session == "":
			r.missed = true
		case s == nil, q.session != "" && q.session != s.Incarnation: // It was renamed or deleted meanwhile.
			again = append(again, ref{session: q.session})
		case r.seen[s.Incarnation] && attempt == 0: // It had another id in the list as well.
		case s.Incarnation != q.asked && r.alive(s.Incarnation) != nil: // It got its id since the last run.
			again = append(again, ref{session: s.Incarnation})
		default:
			if c := r.changeOf(s); c != nil {
				out = append(out, c)
			}
		}
	}
	if len(again) == 0 || attempt == attempts { // What happens again and again, the next run is told of.
		return out, nil
	}
	more, err := r.compare(ctx, again, attempt+1)
	return append(out, more...), err
}

// changeOf returns what is to be written of a session, or nil if the backup has all of it.
func (r *running) changeOf(s *turnstone.Standing) *change {
	r.saw(s.Incarnation)
	c := &change{Standing: *s}
	switch e := r.alive(s.Incarnation); {
	case e == nil:
	case e.Run > r.Run: // It was written in this run, with a fork of it.
		return nil
	case !e.standsFor(s), r.whole[s.Incarnation]:
	case s.Revision == e.Revision && s.Rest == e.Rest && s.ID == e.ID:
		return nil
	default:
		c.since, c.before = since(e), e.Run
	}
	return c
}

// since returns since when what comes after an entry is written.
func since(e *entry) head.Revision { return cmp.Or(e.Revision, turnstone.RevisionZero) }

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

// fail notes that a session can't be read. The backup keeps what it has of it.
func (r *running) fail(id string, err error) {
	if session := r.ids[id]; session != "" {
		r.seen[session] = true
	}
	if !r.failed[id] {
		r.failed[id] = true
		r.report.Failed = append(r.report.Failed, fmt.Errorf("session %q: %w", id, err))
	}
}
