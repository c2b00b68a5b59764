package adk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/adk/v2/platform"
	"google.golang.org/adk/v2/session"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

const (
	// statePart is the checkpoint part with a session's own state, a JSON object.
	statePart = "state"
	// statePrefix is what the keys of records begin with that are the state of a user or an app.
	statePrefix = "state/"
)

// Sessions is a session.Service. It is safe for concurrent use.
//
// Values of state are stored as JSON, so a number comes back as float64. A value of user or app state has at most turnstone.MaxRecord
// bytes, an event and all of a session's own state at most turnstone.MaxPayload each.
type Sessions struct {
	store  turnstone.Factory
	shared sync.Map // handles of the sessions with state of users and apps, by id
}

var _ session.Service = (*Sessions)(nil)

// NewSessions returns a session service on a store.
func NewSessions(store turnstone.Factory) *Sessions { return &Sessions{store: store} }

// Create makes a session. If there is one of that id, the error matches turnstone.ErrExists.
func (s *Sessions) Create(ctx context.Context, r *session.CreateRequest) (*session.CreateResponse, error) {
	if err := required([2]string{"AppName", r.AppName}, [2]string{"UserID", r.UserID}); err != nil {
		return nil, err
	}
	out := &Session{app: r.AppName, user: r.UserID, id: r.SessionID, updated: platform.Now(ctx)}
	if out.id == "" {
		out.id = platform.NewUUID(ctx)
	}
	d := deltaOf(r.State)
	out.own = d.own
	part, err := json.Marshal(d.own)
	if err != nil {
		return nil, fmt.Errorf("adk: the state: %w", err)
	}
	id := join(sessionRoot, out.app, out.user, out.id)
	commits := []turnstone.SessionCommit{{
		Create: &turnstone.Request{ID: id, Metadata: turnstone.Metadata{Group: join(sessionRoot, out.app, out.user)}},
		Commit: turnstone.Commit{Checkpoint: map[string][]byte{statePart: part}},
	}}
	result, err := s.commit(ctx, out, commits, d)
	switch {
	case errors.Is(err, turnstone.ErrConflict) && !errors.Is(err, turnstone.ErrOutcomeUnknown):
		return nil, fmt.Errorf("adk: session %q: %w", out.id, turnstone.ErrExists)
	case err != nil:
		return nil, err
	}
	out.revision = result.Revision
	if out.handle, err = s.store.Session(ctx, id); err != nil {
		return nil, err
	}
	out.state, err = s.merged(ctx, out)
	return &session.CreateResponse{Session: out}, err
}

// Get reads a session with its events. If there is none, the error matches turnstone.ErrSessionNotFound.
func (s *Sessions) Get(ctx context.Context, r *session.GetRequest) (*session.GetResponse, error) {
	out, err := s.find(ctx, r.AppName, r.UserID, r.SessionID)
	if err != nil {
		return nil, err
	}
	scope := turnstone.Scope{Parts: []string{statePart}}
	if r.After.IsZero() {
		scope.Last = max(r.NumRecentEvents, 0)
	}
	st, err := out.handle.Load(ctx, scope)
	if err != nil {
		return nil, err
	}
	for _, n := range st.Nodes {
		var e session.Event
		if err := json.Unmarshal(n.Payload, &e); err != nil {
			return nil, fmt.Errorf("adk: session %q: node %s is no event: %w", out.id, n.ID, err)
		}
		out.events = append(out.events, &e)
	}
	out.updated = st.Time
	if n := len(out.events); n > 0 {
		out.updated = out.events[n-1].Timestamp
	}
	if !r.After.IsZero() {
		out.events = slices.DeleteFunc(out.events, func(e *session.Event) bool { return e.Timestamp.Before(r.After) })
		if n := len(out.events); r.NumRecentEvents > 0 && n > r.NumRecentEvents {
			out.events = out.events[n-r.NumRecentEvents:]
		}
	}
	out.revision = st.Revision
	if err := out.setOwn(st.Contents[statePart]); err != nil {
		return nil, err
	}
	out.state, err = s.merged(ctx, out)
	return &session.GetResponse{Session: out}, err
}

// find returns a session of which nothing was read.
func (s *Sessions) find(ctx context.Context, app, user, id string) (*Session, error) {
	if err := required([2]string{"AppName", app}, [2]string{"UserID", user}, [2]string{"SessionID", id}); err != nil {
		return nil, err
	}
	h, err := s.store.Session(ctx, join(sessionRoot, app, user, id))
	if err != nil {
		return nil, err
	}
	return &Session{handle: h, app: app, user: user, id: id}, nil
}

// List returns the sessions of a user, or of all users of an app, the most recently updated first, with their state and without events. It reads
// the state of each.
func (s *Sessions) List(ctx context.Context, r *session.ListRequest) (*session.ListResponse, error) {
	if err := required([2]string{"AppName", r.AppName}); err != nil {
		return nil, err
	}
	group := join(sessionRoot, r.AppName)
	if r.UserID != "" {
		group = join(sessionRoot, r.AppName, r.UserID)
	}
	out := &session.ListResponse{Sessions: []session.Session{}}
	shared := map[string]map[string]any{} // by prefix and user
	for o := (turnstone.ListOptions{Group: group, Limit: turnstone.MaxPage}); ; {
		page, err := s.store.List(ctx, o)
		if err != nil {
			return nil, err
		}
		for _, i := range page.Sessions {
			of := names(i.ID)
			if len(of) != 3 {
				continue // Somebody else has put it into the group.
			}
			one, err := s.find(ctx, of[0], of[1], of[2])
			if err == nil {
				err = one.readState(ctx, &i)
			}
			if gone(err) {
				continue
			}
			if err == nil {
				one.state, err = s.mergedOnce(ctx, one, shared)
			}
			if err != nil {
				return nil, err
			}
			out.Sessions = append(out.Sessions, one)
		}
		if o.After = page.Next; o.After == "" {
			return out, nil
		}
	}
}

// Delete removes a session, and leaves the state of its user and app. One that does not exist is no error.
func (s *Sessions) Delete(ctx context.Context, r *session.DeleteRequest) error {
	if err := required([2]string{"AppName", r.AppName}, [2]string{"UserID", r.UserID}, [2]string{"SessionID", r.SessionID}); err != nil {
		return err
	}
	return s.store.Delete(ctx, join(sessionRoot, r.AppName, r.UserID, r.SessionID), turnstone.KeepChildren)
}

// AppendEvent stores an event, with what it changes of the state of session, user and app: all of it, or nothing. The session must be one that
// this service has returned. If somebody else has appended to it since it was read, the error matches turnstone.ErrConflict, and the session has to
// be read again. After an error that matches turnstone.ErrOutcomeUnknown, append the same event again: it is stored once.
func (s *Sessions) AppendEvent(ctx context.Context, to session.Session, e *session.Event) error {
	of, ok := to.(*Session)
	switch {
	case to == nil:
		return errors.New("adk: the session is nil")
	case !ok || of == nil:
		return fmt.Errorf("adk: the session is a %T, which this service has not returned", to)
	case e == nil:
		return errors.New("adk: the event is nil")
	case e.Partial:
		return nil
	}
	d := deltaOf(e.Actions.StateDelta)
	stored := *e
	if d.temporary {
		stored.Actions.StateDelta = maps.Clone(e.Actions.StateDelta)
		maps.DeleteFunc(stored.Actions.StateDelta, func(k string, _ any) bool { return strings.HasPrefix(k, session.KeyPrefixTemp) })
	}
	payload, err := json.Marshal(&stored)
	if err != nil {
		return fmt.Errorf("adk: the event: %w", err)
	}

	of.mu.Lock()
	defer of.mu.Unlock()
	c := turnstone.Commit{
		Expected: of.revision, Turn: e.ID, Usage: usage(e),
		Nodes: []turnstone.NewNode{{Kind: kind(e), Payload: payload}},
	}
	own := of.own
	if len(d.own) > 0 {
		own = maps.Clone(own)
		maps.Copy(own, d.own)
		part, err := json.Marshal(own)
		if err != nil {
			return fmt.Errorf("adk: the state: %w", err)
		}
		c.Checkpoint = map[string][]byte{statePart: part}
	}
	result, err := s.commit(ctx, of, []turnstone.SessionCommit{{Session: of.handle, Commit: c}}, d)
	switch {
	case err != nil:
		return err
	case result.Revision != of.revision+1: // It was appended before: of has it, or is stale, which the next event finds out.
		return nil
	}
	of.revision, of.own, of.updated = result.Revision, own, e.Timestamp
	of.events = append(of.events, &stored)
	maps.Copy(of.state, e.Actions.StateDelta)
	return nil
}

// commit makes commits together with the changes of the state of user and app, and returns the result of the first one.
func (s *Sessions) commit(ctx context.Context, of *Session, commits []turnstone.SessionCommit, d delta) (turnstone.Result, error) {
	own := len(commits)
	for again := false; ; again = true {
		commits = commits[:own]
		for id, changes := range map[string]map[string]any{join(sessionRoot, of.app): d.app, join(sessionRoot, of.app, of.user): d.user} {
			if len(changes) == 0 {
				continue
			}
			h, err := s.sharedState(ctx, id)
			if err != nil {
				return turnstone.Result{}, err
			}
			c := turnstone.SessionCommit{Session: h, RecordsOnly: true}
			for _, k := range slices.Sorted(maps.Keys(changes)) {
				value, err := json.Marshal(changes[k])
				if err != nil {
					return turnstone.Result{}, fmt.Errorf("adk: state %q: %w", k, err)
				}
				c.Records = append(c.Records, turnstone.RecordChange{Key: statePrefix + k, Value: value})
			}
			commits = append(commits, c)
		}
		results, err := s.store.CommitAll(ctx, commits...)
		if err == nil {
			return results[0], nil
		}
		if !gone(err) || errors.Is(err, turnstone.ErrOutcomeUnknown) || again || len(commits) == own {
			return turnstone.Result{}, err
		}
		for _, c := range commits[own:] { // Somebody has deleted the state of the user or the app.
			s.shared.Delete(c.Session.ID())
		}
	}
}

// sharedState returns the session with the state of a user or an app, which it makes if there is none.
func (s *Sessions) sharedState(ctx context.Context, id string) (turnstone.Persistence, error) {
	if h, ok := s.shared.Load(id); ok {
		return h.(turnstone.Persistence), nil
	}
	h, _, err := s.store.Create(ctx, turnstone.Request{ID: id, Metadata: turnstone.Metadata{Group: stateGroup}})
	if err != nil {
		return nil, err
	}
	s.shared.Store(id, h)
	return h, nil
}

// merged returns a session's own state with that of its user and app.
func (s *Sessions) merged(ctx context.Context, of *Session) (map[string]any, error) {
	return s.mergedOnce(ctx, of, map[string]map[string]any{})
}

// mergedOnce is merged, and keeps what it has read of users and apps in read.
func (s *Sessions) mergedOnce(ctx context.Context, of *Session, read map[string]map[string]any) (map[string]any, error) {
	out := maps.Clone(of.own)
	for prefix, id := range map[string]string{session.KeyPrefixApp: join(sessionRoot, of.app), session.KeyPrefixUser: join(sessionRoot, of.app, of.user)} {
		state, known := read[id]
		if !known {
			var err error
			if state, err = s.readShared(ctx, id, prefix); err != nil {
				return nil, err
			}
			read[id] = state
		}
		maps.Copy(out, state)
	}
	return out, nil
}

// readShared reads the state of a user or an app. Its keys begin with prefix.
func (s *Sessions) readShared(ctx context.Context, id, prefix string) (map[string]any, error) {
	out := map[string]any{}
	h, err := s.store.Session(ctx, id)
	for q := (turnstone.RecordQuery{Prefix: statePrefix, Limit: turnstone.MaxPage}); err == nil; {
		var page turnstone.RecordPage
		if page, err = h.Records(ctx, q); err != nil {
			break
		}
		for _, r := range page.Records {
			var v any
			if err := json.Unmarshal(r.Value, &v); err != nil {
				return nil, fmt.Errorf("adk: session %q: record %q is no state: %w", id, r.Key, err)
			}
			out[prefix+strings.TrimPrefix(r.Key, statePrefix)] = v
		}
		if q.After = page.Next; q.After == "" {
			return out, nil
		}
	}
	if gone(err) {
		return nil, nil
	}
	return nil, err
}

// A delta is what is changed of a state, by what it belongs to. Keys have no prefixes.
type delta struct {
	app, user, own map[string]any
	temporary      bool // it has keys that are not stored
}

func deltaOf(state map[string]any) delta {
	d := delta{app: map[string]any{}, user: map[string]any{}, own: map[string]any{}}
	for k, v := range state {
		if name, ok := strings.CutPrefix(k, session.KeyPrefixApp); ok {
			d.app[name] = v
		} else if name, ok := strings.CutPrefix(k, session.KeyPrefixUser); ok {
			d.user[name] = v
		} else if strings.HasPrefix(k, session.KeyPrefixTemp) {
			d.temporary = true
		} else {
			d.own[k] = v
		}
	}
	return d
}

// kind returns the kind of an event's node.
func kind(e *session.Event) string {
	if e.Author == "user" {
		return "user"
	}
	if e.Content != nil {
		for _, p := range e.Content.Parts {
			if p.FunctionResponse != nil {
				return "tool"
			}
		}
	}
	return "model"
}

// usage returns the tokens that the model has counted.
func usage(e *session.Event) []head.Usage {
	u := e.UsageMetadata
	if u == nil {
		return nil
	}
	model := e.ModelVersion
	if model == "" || len(model) > turnstone.MaxModel {
		model = "unknown"
	}
	n := func(v int32) uint64 { return uint64(max(v, 0)) }
	return []head.Usage{{
		Model: model, Input: n(u.PromptTokenCount), Output: n(u.CandidatesTokenCount), CachedInput: n(u.CachedContentTokenCount), Reasoning: n(u.ThoughtsTokenCount),
	}}
}
