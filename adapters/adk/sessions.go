package adk

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/adk/v2/platform"
	"google.golang.org/adk/v2/session"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// statePart is the checkpoint part with a session's own state, a JSON object.
const statePart = "state"

// Sessions is a session.Service. It is safe for concurrent use.
//
// Values of state are stored as JSON and keep their types: bool, string, all integers and floats, time.Time,
// time.Duration, json.Number, json.RawMessage, slices of these and of any, and maps of them by strings, up to 1,000 deep.
// A value of another type is refused, as is text that is not UTF-8. A value of user or app state has at most 12.5 MiB as
// JSON and its key 506 bytes; what an event changes of such state takes at most turnstone.MaxCommitBytes, compressed. An
// event and all of a session's own state have at most turnstone.MaxPayload each. The id of a session of the store names
// app, user and session: who renames it there moves it to another user.
type Sessions struct {
	store  turnstone.Factory
	states *adapter.States // of users and apps
}

var _ session.Service = (*Sessions)(nil)

// NewSessions returns a session service on a store.
func NewSessions(store turnstone.Factory) *Sessions {
	return &Sessions{store: store, states: adapter.NewStates(store, stateGroup)}
}

// Create makes a session. If there is one of that id, the error matches turnstone.ErrExists. After an error that
// matches turnstone.ErrOutcomeUnknown, the session may be there.
func (s *Sessions) Create(ctx context.Context, r *session.CreateRequest) (*session.CreateResponse, error) {
	if err := required([2]string{"AppName", r.AppName}, [2]string{"UserID", r.UserID}); err != nil {
		return nil, err
	}
	out := &Session{app: r.AppName, user: r.UserID, id: r.SessionID, updated: platform.Now(ctx)}
	if out.id == "" {
		out.id = platform.NewUUID(ctx)
	}
	d, err := deltaOf(r.State)
	if err != nil {
		return nil, err
	}
	out.own = d.own
	part, err := json.Marshal(d.own)
	if err != nil {
		return nil, fmt.Errorf("adk: the state: %w", err)
	}
	if err := s.readState(ctx, out, map[string]map[string][]byte{}); err != nil { // before anything is stored
		return nil, err
	}
	maps.Copy(out.state, d.shown)
	id := adapter.Join(sessionRoot, out.app, out.user, out.id)
	result, err := s.commit(ctx, out, turnstone.SessionCommit{
		Create: &turnstone.Request{ID: id, Metadata: head.Metadata{Group: adapter.Join(sessionRoot, out.app, out.user)}},
		// The turn id makes a client repeat the commit when the answer is lost.
		Commit: turnstone.Commit{Turn: rand.Text(), Checkpoint: map[string][]byte{statePart: part}},
	}, d)
	switch {
	case errors.Is(err, turnstone.ErrConflict) && !errors.Is(err, turnstone.ErrOutcomeUnknown):
		return nil, fmt.Errorf("adk: session %q: %w", out.id, turnstone.ErrExists)
	case err != nil:
		return nil, err
	}
	out.revision = result.Revision
	if out.handle, err = s.store.Session(ctx, id); err != nil {
		return nil, fmt.Errorf("%w: %w", turnstone.ErrOutcomeUnknown, err) // It was made, and may be deleted.
	}
	return &session.CreateResponse{Session: out}, nil
}

// Get reads a session with its events. If there is none, the error matches turnstone.ErrSessionNotFound.
func (s *Sessions) Get(ctx context.Context, r *session.GetRequest) (*session.GetResponse, error) {
	out, err := s.find(ctx, r.AppName, r.UserID, r.SessionID)
	if err != nil {
		return nil, err
	}
	scope := turnstone.Scope{Parts: []string{statePart, adapter.LatePart}, Last: max(r.NumRecentEvents, 0)}
	if !r.After.IsZero() {
		scope.Last = 1
	}
	st, err := out.load(ctx, scope)
	if err == nil && !r.After.IsZero() {
		err = out.loadSince(ctx, st, r.After)
	}
	if err != nil {
		return nil, err
	}
	if !r.After.IsZero() {
		out.events = slices.DeleteFunc(out.events, func(e *session.Event) bool { return e.Timestamp.Before(r.After) })
		if n := len(out.events); r.NumRecentEvents > 0 && n > r.NumRecentEvents {
			out.events = out.events[n-r.NumRecentEvents:]
		}
	}
	if err := s.readState(ctx, out, map[string]map[string][]byte{}); err != nil {
		return nil, err
	}
	return &session.GetResponse{Session: out}, nil
}

// find returns a session of which nothing was read.
func (s *Sessions) find(ctx context.Context, app, user, id string) (*Session, error) {
	if err := required([2]string{"AppName", app}, [2]string{"UserID", user}, [2]string{"SessionID", id}); err != nil {
		return nil, err
	}
	h, err := s.store.Session(ctx, adapter.Join(sessionRoot, app, user, id))
	if err != nil {
		return nil, err
	}
	return &Session{handle: h, app: app, user: user, id: id}, nil
}

// List returns the sessions of a user, or of all users of an app, the most recently updated first, with their state
// and without events. It reads the state of each.
func (s *Sessions) List(ctx context.Context, r *session.ListRequest) (*session.ListResponse, error) {
	if err := required([2]string{"AppName", r.AppName}); err != nil {
		return nil, err
	}
	group := adapter.Join(sessionRoot, r.AppName)
	if r.UserID != "" {
		group = adapter.Join(sessionRoot, r.AppName, r.UserID)
	}
	found, err := adapter.Listed(ctx, s.store, group)
	if err != nil {
		return nil, err
	}
	out := &session.ListResponse{Sessions: []session.Session{}}
	shared := map[string]map[string][]byte{}
	for _, i := range found {
		of := adapter.Names(i.ID)
		if len(of) != 3 || of[0] != r.AppName || r.UserID != "" && of[1] != r.UserID {
			continue // Somebody else has put it into the group.
		}
		one, err := s.find(ctx, of[0], of[1], of[2])
		if err == nil {
			_, err = one.load(ctx, turnstone.Scope{Last: 1, Parts: []string{statePart}})
		}
		if adapter.Gone(err) {
			continue
		}
		if err == nil {
			err = s.readState(ctx, one, shared)
		}
		if err != nil {
			return nil, err
		}
		one.events = nil
		out.Sessions = append(out.Sessions, one)
	}
	return out, nil
}

// Delete removes a session and its artifacts, and leaves the state and the artifacts of its user. One that does not
// exist is no error. After an error the artifacts may be deleted and the session not: Delete again does the rest.
func (s *Sessions) Delete(ctx context.Context, r *session.DeleteRequest) error {
	if err := required([2]string{"AppName", r.AppName}, [2]string{"UserID", r.UserID}, [2]string{"SessionID", r.SessionID}); err != nil {
		return err
	}
	// The session is deleted last, so that it is in lists as long as anything is left of it.
	for _, root := range []string{artifactRoot, sessionRoot} {
		if err := s.store.Delete(ctx, adapter.Join(root, r.AppName, r.UserID, r.SessionID), turnstone.KeepChildren); err != nil {
			return err
		}
	}
	return nil
}

// Rewind makes an event the last one of a session, or leaves it without events if last is "". The session's own state is
// what it was then; that of the user and the app stays. Rewind returns the session as it is then. What was appended
// since stays in the store, where Session.Persistence leads to it, and sessions that were read before are stale. If the
// session has no event of that id, the error matches turnstone.ErrNodeNotFound.
//
// Rewind does not go back to where nobody knows the state. In a session that Bring has brought, that is before the last event
// that it has brought, and that event as well while a Bring is not done; in a fork, it is before the fork. The error matches
// turnstone.ErrInvalid then.
func (s *Sessions) Rewind(ctx context.Context, of session.Session, last string) (*Session, error) {
	out, err := s.find(ctx, of.AppName(), of.UserID(), of.ID())
	if err != nil {
		return nil, err
	}
	is := func(n *turnstone.Node) bool {
		var e struct{ ID string }
		return json.Unmarshal(n.Payload, &e) == nil && e.ID == last
	}
	if last == "" {
		is = nil
	}
	if err := knowsState(ctx, out.handle, is); err != nil {
		return nil, err
	}
	if err := adapter.Rewind(ctx, out.handle, is); err != nil {
		return nil, fmt.Errorf("adk: session %q: event %q: %w", out.id, last, err)
	}
	r, err := s.Get(ctx, &session.GetRequest{AppName: out.app, UserID: out.user, SessionID: out.id})
	if err != nil {
		return nil, err
	}
	return r.Session.(*Session), nil
}

// AppendEvent stores an event and its changes to the state of the session, the user and the app. It stores all of
// this or nothing. The session must be one that this service has returned. If somebody else has appended to the
// session since it was read, the error matches turnstone.ErrConflict: read the session again. After an error that
// matches turnstone.ErrOutcomeUnknown, append the same event again: it is stored once. After a rewind that took it away, it
// is refused with an error that matches turnstone.ErrTurnConflict.
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
	d, err := deltaOf(e.Actions.StateDelta)
	if err != nil {
		return err
	}
	stored := *e
	if e.Actions.StateDelta != nil {
		stored.Actions.StateDelta = d.all
	}
	payload, err := adapter.JSON(&stored)
	if err != nil {
		return fmt.Errorf("adk: the event: %w", err)
	}

	of.appending.Lock()
	defer of.appending.Unlock()
	c := turnstone.Commit{
		Expected: of.revision, Turn: e.ID, Usage: usage(e),
		Nodes: []turnstone.NewNode{{Kind: kind(e), Payload: payload}},
	}
	if adapter.Late(e.Timestamp) {
		c.Checkpoint = map[string][]byte{adapter.LatePart: nil}
	}
	own := of.own
	if len(d.own) > 0 {
		own = maps.Clone(own)
		maps.Copy(own, d.own)
		part, err := json.Marshal(own)
		if err != nil {
			return fmt.Errorf("adk: the state: %w", err)
		}
		if c.Checkpoint == nil {
			c.Checkpoint = map[string][]byte{}
		}
		c.Checkpoint[statePart] = part
	}
	result, err := s.commit(ctx, of, turnstone.SessionCommit{Session: of.handle, Commit: c}, d)
	if err != nil {
		return storedBefore(ctx, of.handle, payload, err)
	}
	if result.Replayed { // It was appended before.
		if err := checkShown(ctx, of.handle, result.Nodes[0], e.ID); err != nil {
			return err
		}
		if result.Revision != of.revision+1 { // of has it, or is stale, which the next event finds out.
			return nil
		}
	}
	of.mu.Lock()
	defer of.mu.Unlock()
	of.revision, of.own, of.updated = result.Revision, own, e.Timestamp
	if d.temporary {
		stored.Actions.StateDelta = d.shown
	} else {
		stored.Actions.StateDelta = e.Actions.StateDelta
	}
	of.events = append(of.events, &stored)
	maps.Copy(of.state, e.Actions.StateDelta)
	return nil
}

// storedBefore returns nil if an error says that the turn of an event is another one, and it is only the state beside the
// event that others have changed since it was stored.
func storedBefore(ctx context.Context, h turnstone.Persistence, payload []byte, err error) error {
	var other *turnstone.TurnConflictError
	if !errors.As(err, &other) {
		return err
	}
	st, lerr := h.Load(ctx, turnstone.Scope{At: other.Revision, Last: 1})
	if lerr != nil {
		return errors.Join(err, lerr)
	}
	if len(st.Nodes) == 1 && bytes.Equal(st.Nodes[0].Payload, payload) {
		return checkShown(ctx, h, st.Nodes[0].ID, other.Turn)
	}
	return err
}

// checkShown fails if a session does not show the node of an event that was stored before: a rewind has taken it away.
func checkShown(ctx context.Context, h turnstone.Persistence, node graph.ID, event string) error {
	found := false
	_, err := adapter.Newest(ctx, h, 0, func(n *turnstone.Node) bool {
		found = n.ID == node
		return found
	})
	if err == nil && !found {
		err = fmt.Errorf("adk: event %q was appended before, and a rewind has taken it away: give it another id: %w", event, turnstone.ErrTurnConflict)
	}
	return err
}

// commit stores a commit and the changes of the user's and the app's state in one batch, and returns the result of
// the commit.
func (s *Sessions) commit(ctx context.Context, of *Session, own turnstone.SessionCommit, d delta) (turnstone.Result, error) {
	results, err := s.states.Commit(ctx, []adapter.StateChange{
		{ID: adapter.Join(sessionRoot, of.app), Values: d.app.changes()},
		{ID: adapter.Join(sessionRoot, of.app, of.user), Values: d.user.changes()},
	}, own)
	if err != nil {
		return turnstone.Result{}, err
	}
	return results[0], nil
}

// readState sets what State of a session shows: its own state, and that of its user and app. What it reads of these
// it keeps in read, by the ids of their sessions.
func (s *Sessions) readState(ctx context.Context, of *Session, read map[string]map[string][]byte) error {
	of.state = map[string]any{}
	if err := show(of, "", of.own); err != nil {
		return err
	}
	for _, shared := range [][2]string{{session.KeyPrefixApp, adapter.Join(sessionRoot, of.app)}, {session.KeyPrefixUser, adapter.Join(sessionRoot, of.app, of.user)}} {
		values, known := read[shared[1]]
		if !known {
			var err error
			if values, err = s.states.Read(ctx, shared[1]); err != nil {
				return err
			}
			read[shared[1]] = values
		}
		if err := show(of, shared[0], values); err != nil {
			return err
		}
	}
	return nil
}

// show adds values to what State of a session shows.
func show[Value ~[]byte](of *Session, prefix string, values map[string]Value) error {
	for k, value := range values {
		v, err := adapter.Unmarshal(value)
		if err != nil {
			return fmt.Errorf("adk: session %q: the state of %q is none: %w", of.id, prefix+k, err)
		}
		of.state[prefix+k] = v
	}
	return nil
}

// A state is values as JSON, by keys without prefixes.
type state map[string]json.RawMessage

// changes returns what sets the values.
func (s state) changes() (out []turnstone.RecordChange) {
	for _, k := range slices.Sorted(maps.Keys(s)) {
		out = append(out, turnstone.RecordChange{Key: k, Value: s[k]})
	}
	return out
}

// A delta is what is changed of a state, by what it belongs to.
type delta struct {
	app, user, own state
	shown          map[string]any // all of these, as they were given
	all            map[string]any // and as they are stored in an event
	temporary      bool           // there are others, which are not stored
}

func deltaOf(given map[string]any) (delta, error) {
	d := delta{app: state{}, user: state{}, own: state{}, shown: map[string]any{}, all: map[string]any{}}
	for k, v := range given {
		if strings.HasPrefix(k, session.KeyPrefixTemp) {
			d.temporary = true
			continue
		}
		value, err := adapter.Marshal(v)
		if err != nil {
			return d, fmt.Errorf("adk: state %q: %w", k, err)
		}
		d.all[k] = json.RawMessage(value)
		d.shown[k] = v
		if name, ok := strings.CutPrefix(k, session.KeyPrefixApp); ok {
			d.app[name] = value
		} else if name, ok := strings.CutPrefix(k, session.KeyPrefixUser); ok {
			d.user[name] = value
		} else {
			d.own[k] = value
		}
	}
	return d, nil
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
		Model: model, Input: n(u.PromptTokenCount) + n(u.ToolUsePromptTokenCount), Output: n(u.CandidatesTokenCount) + n(u.ThoughtsTokenCount), CachedInput: n(u.CachedContentTokenCount), Reasoning: n(u.ThoughtsTokenCount),
	}}
}
