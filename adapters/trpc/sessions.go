package trpc

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"trpc.group/trpc-go/trpc-agent-go/event"
	"trpc.group/trpc-go/trpc-agent-go/session"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/head"
)

// Names of sessions and groups. How many names an id has tells what it is of.
const (
	root       = "trpc"
	stateGroup = "trpc-state"
)

const (
	maxReads = 100 // attempts to read a session that others change and prune
)

// Sessions is a session.Service. It is safe for concurrent use, and any number of processes may share a store.
//
// It differs from the in-memory service of trpc-agent-go:
//   - CreateSession does not replace a session that exists: it sets the state, and returns the session as it is then. So
//     two first runs of a session at once both go on.
//   - An event that could not be stored is not added to the caller's session.
//   - Sessions and states do not expire, and events are not dropped.
//   - AppendEvent asks the store nothing if the event has nothing to store. So the session's time of update stays, and
//     the session may not exist.
//   - Pages of events are supported.
//   - Events are stored as JSON. Fields that JSON leaves out, such as StructuredOutput, are lost, and numbers of type any
//     become float64. Text that is not UTF-8 is refused.
//   - The list of tracks is sorted by name.
//
// An update of user or app state has at most 255 keys, and large values count once more for each 64 KiB. Such a key has at
// most 506 bytes and no zero byte, and its value at most 12.5 MiB. What an update changes takes at most
// turnstone.MaxCommitBytes, compressed. A session has at most 1,024
// keys of its own state, tracks and summaries together, and each of their values is a little smaller than
// turnstone.MaxPart. An event has at most turnstone.MaxPayload bytes.
type Sessions struct {
	store   turnstone.Factory
	o       Options
	states  *adapter.States
	handles *adapter.Handles
	jobs    jobs
}

var (
	_ session.Service       = (*Sessions)(nil)
	_ session.TrackService  = (*Sessions)(nil)
	_ session.WindowService = (*Sessions)(nil)
)

// NewSessions returns a session service on a store. Close waits for its summaries, and leaves the store open.
func NewSessions(store turnstone.Factory, o Options) *Sessions {
	return &Sessions{store: store, o: o, states: adapter.NewStates(store, stateGroup), handles: adapter.NewHandles(store)}
}

func appID(app string) string { return adapter.Join(root, app) }

func userID(app, user string) string { return adapter.Join(root, app, user) }

func sessionID(k session.Key) string { return adapter.Join(root, k.AppName, k.UserID, k.SessionID) }

// with calls f with a session of the store.
func (s *Sessions) with(ctx context.Context, key session.Key, f func(turnstone.Persistence) error) error {
	return s.handles.With(ctx, sessionID(key), f)
}

// commit commits to a session that exists, wherever its head is.
func (s *Sessions) commit(ctx context.Context, key session.Key, c turnstone.Commit) error {
	c.Expected, c.Turn = turnstone.AnyRevision, rand.Text() // A turn id is what makes a client repeat a commit whose answer is lost.
	return s.with(ctx, key, func(h turnstone.Persistence) error {
		_, err := h.Commit(ctx, c)
		return err
	})
}

// CreateSession makes a session, with an id of its own if the key has none. If there is one of that id, it sets the
// state of that, and returns it.
func (s *Sessions) CreateSession(ctx context.Context, key session.Key, state session.StateMap, _ ...session.Option) (*session.Session, error) {
	if err := key.CheckUserKey(); err != nil {
		return nil, err
	}
	if key.SessionID == "" {
		key.SessionID = uuid.NewString()
	}
	parts, err := stateParts(state)
	if err != nil {
		return nil, err
	}
	out := session.NewSession(key.AppName, key.UserID, key.SessionID, session.WithSessionState(state))
	if out.State == nil {
		out.State = session.StateMap{}
	}
	if err := s.mergeState(ctx, out, nil); err != nil { // before anything is stored
		return nil, err
	}
	_, err = s.store.CommitAll(ctx, turnstone.SessionCommit{
		Create: &turnstone.Request{ID: sessionID(key), Metadata: head.Metadata{Group: userID(key.AppName, key.UserID)}},
		Commit: turnstone.Commit{Turn: rand.Text(), Checkpoint: parts},
	})
	if errors.Is(err, turnstone.ErrConflict) && !errors.Is(err, turnstone.ErrOutcomeUnknown) {
		if len(parts) > 0 {
			if err := s.commit(ctx, key, turnstone.Commit{Checkpoint: parts}); err != nil {
				return nil, err
			}
		}
		out, err = s.get(ctx, key, &session.Options{})
		if out == nil && err == nil { // Somebody has deleted it since.
			err = fmt.Errorf("trpc: session %q: %w", key.SessionID, turnstone.ErrSessionDeleted)
		}
		return out, err
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// GetSession reads a session, or returns nil if there is none. With a number or a time of events, or a page of them, it
// reads no more than that, but for what the session has since the last message of the user, and of a session with
// tracks as many events as it takes to find those of each track.
func (s *Sessions) GetSession(ctx context.Context, key session.Key, options ...session.Option) (*session.Session, error) {
	if err := key.CheckSessionKey(); err != nil {
		return nil, err
	}
	c := &session.GetSessionContext{Context: ctx, Key: key, Options: optionsOf(options)}
	next := func() (*session.Session, error) { return s.get(c.Context, c.Key, c.Options) }
	for _, hook := range slices.Backward(s.o.GetSessionHooks) {
		inner := next
		next = func() (*session.Session, error) { return hook(c, inner) }
	}
	return next()
}

func (s *Sessions) get(ctx context.Context, key session.Key, o *session.Options) (*session.Session, error) {
	if err := session.ValidateGetSessionOptions(o, true); err != nil {
		return nil, err
	}
	out, err := s.read(ctx, key, o)
	if out == nil || err != nil {
		return nil, err
	}
	filter(out, o)
	return out, s.mergeState(ctx, out, nil)
}

func optionsOf(options []session.Option) *session.Options {
	o := &session.Options{}
	for _, option := range options {
		option(o)
	}
	return o
}

// filter removes the events of a session and of its tracks that are not asked for.
func filter(of *session.Session, o *session.Options) {
	if o.EventPage != nil {
		end := max(len(of.Events)-o.EventPage.Offset, 0)
		of.Events = of.Events[max(end-o.EventPage.Limit, 0):end]
		return
	}
	of.ApplyEventFiltering(session.WithEventNum(o.EventNum), session.WithEventTime(o.EventTime))
	for _, t := range of.Tracks {
		if !o.EventTime.IsZero() {
			t.Events = slices.DeleteFunc(t.Events, func(e session.TrackEvent) bool { return e.Timestamp.Before(o.EventTime) })
		}
		if o.EventNum > 0 {
			t.Events = t.Events[max(len(t.Events)-o.EventNum, 0):]
		}
	}
}

// read reads a session without the state of its user and app, or returns nil if there is none. It reads the events
// that filter needs for the options, and none without them.
func (s *Sessions) read(ctx context.Context, key session.Key, o *session.Options) (*session.Session, error) {
	var info turnstone.Info
	var st *turnstone.State
	var parts map[string][]byte
	var nodes []turnstone.Node
	err := turnstone.ErrRevisionPruned
	for tries := 0; tries < maxReads && errors.Is(err, turnstone.ErrRevisionPruned); tries++ { // The session was changed and pruned between two of these calls.
		err = s.with(ctx, key, func(h turnstone.Persistence) (err error) {
			if info, err = h.Info(ctx); err != nil {
				return err
			}
			if st, err = h.Load(ctx, turnstone.Scope{Last: 1}); err != nil {
				return err
			}
			if parts, err = h.Checkpoint(ctx, st.Revision); err == nil && o != nil {
				nodes, err = newest(ctx, h, st.Revision, parts, o)
			}
			return err
		})
	}
	if adapter.Gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := session.NewSession(key.AppName, key.UserID, key.SessionID, session.WithSessionCreatedAt(info.Created), session.WithSessionUpdatedAt(st.Time))
	values, err := readParts(parts)
	if err != nil {
		return nil, err
	}
	out.State = values[statePart]
	for filterKey, text := range values[summaryPart] {
		var sum session.Summary
		if err := json.Unmarshal(text, &sum); err != nil {
			return nil, fmt.Errorf("trpc: session %q: the summary of %q: %w", key.SessionID, filterKey, err)
		}
		out.Summaries[filterKey] = &sum
		if !info.ForkNode.IsZero() && sum.UpdatedAt.Before(out.CreatedAt) {
			out.CreatedAt = sum.UpdatedAt // A fork has the summaries of its parent, and a summary that is older than its session is not used.
		}
	}
	if tracks := slices.Sorted(maps.Keys(values[trackPart])); len(tracks) > 0 {
		if out.State["tracks"], err = adapter.JSON(tracks); err != nil {
			return nil, err
		}
	}
	for i := range nodes {
		if err := addNode(out, &nodes[i]); err != nil {
			return nil, fmt.Errorf("trpc: session %q: node %s is no event: %w", key.SessionID, nodes[i].ID, err)
		}
	}
	return out, nil
}

// addNode adds what a node has to a session.
func addNode(to *session.Session, n *turnstone.Node) error {
	if n.Kind != trackKind {
		var e event.Event
		if err := json.Unmarshal(n.Payload, &e); err != nil {
			return err
		}
		to.Events = append(to.Events, e)
		return nil
	}
	var e session.TrackEvent
	if err := json.Unmarshal(n.Payload, &e); err != nil {
		return err
	}
	if to.Tracks == nil {
		to.Tracks = map[session.Track]*session.TrackEvents{}
	}
	if to.Tracks[e.Track] == nil {
		to.Tracks[e.Track] = &session.TrackEvents{Track: e.Track}
	}
	to.Tracks[e.Track].Events = append(to.Tracks[e.Track].Events, e)
	return nil
}

// ListSessions returns the sessions of a user, the most recently updated first. It reads each session of the page
// that is asked for.
func (s *Sessions) ListSessions(ctx context.Context, user session.UserKey, options ...session.Option) ([]*session.Session, error) {
	if err := user.CheckUserKey(); err != nil {
		return nil, err
	}
	o := optionsOf(options)
	if err := session.ValidateListSessionsOptions(o); err != nil {
		return nil, err
	}
	found, err := adapter.Listed(ctx, s.store, userID(user.AppName, user.UserID))
	if err != nil {
		return nil, err
	}
	found = slices.DeleteFunc(found, func(i turnstone.Info) bool { // Somebody else has put it into the group.
		of := adapter.Names(i.ID)
		return len(of) != 3 || of[0] != user.AppName || of[1] != user.UserID
	})
	if p := o.ListSessionPage; p != nil {
		begin := min(p.Offset, len(found))
		found = found[begin : begin+min(p.Limit, len(found)-begin)]
	}
	out := []*session.Session{}
	shared := map[string]map[string][]byte{}
	for _, i := range found {
		want := o
		if o.ListSessionOnlyMeta {
			want = nil
		}
		one, err := s.read(ctx, session.Key{AppName: user.AppName, UserID: user.UserID, SessionID: adapter.Names(i.ID)[2]}, want)
		if err != nil {
			return nil, err
		}
		if one == nil {
			continue // It was deleted meanwhile.
		}
		if !o.ListSessionOnlyMeta {
			filter(one, o)
		}
		if err := s.mergeState(ctx, one, shared); err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

// DeleteSession removes a session, and leaves the state of its user and app. One that does not exist is no error.
func (s *Sessions) DeleteSession(ctx context.Context, key session.Key, _ ...session.Option) error {
	if err := key.CheckSessionKey(); err != nil {
		return err
	}
	return s.store.Delete(ctx, sessionID(key), turnstone.KeepChildren)
}

// AppendEvent stores an event and its changes to the session's state. It stores all of this or nothing. Then it adds
// the event to the caller's session. Concurrent calls are stored one after the other. If an event has no content or is
// partial, only its changes of state are stored.
func (s *Sessions) AppendEvent(ctx context.Context, to *session.Session, e *event.Event, options ...session.Option) error {
	if to == nil {
		return session.ErrNilSession
	}
	if e == nil {
		return errors.New("trpc: the event is nil")
	}
	key := session.Key{AppName: to.AppName, UserID: to.UserID, SessionID: to.ID}
	if err := key.CheckSessionKey(); err != nil {
		return err
	}
	c := &session.AppendEventContext{Context: ctx, Session: to, Event: e, Key: key}
	next := func() error { return s.append(c.Context, c.Session, c.Event, c.Key, options) }
	for _, hook := range slices.Backward(s.o.AppendEventHooks) {
		inner := next
		next = func() error { return hook(c, inner) }
	}
	return next()
}

func (s *Sessions) append(ctx context.Context, to *session.Session, e *event.Event, key session.Key, options []session.Option) error {
	parts, err := stateParts(e.StateDelta)
	if err != nil {
		return err
	}
	c := turnstone.Commit{Checkpoint: parts}
	if isStored(e) {
		node, err := eventNode(e)
		if err != nil {
			return err
		}
		if adapter.Late(e.Timestamp) {
			parts[adapter.LatePart] = nil
		}
		c.Nodes, c.Usage = []turnstone.NewNode{node}, usage(e)
	}
	if len(c.Nodes) > 0 || len(parts) > 0 {
		if err := s.commit(ctx, key, c); err != nil {
			return err
		}
	}
	to.UpdateUserSession(e, options...)
	return nil
}

func stateParts(state map[string][]byte) (map[string][]byte, error) {
	parts := map[string][]byte{}
	for k, v := range state {
		if err := setPart(parts, statePart, k, v); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// AppendTrackEvent stores an event of a track, and adds it to the caller's session.
func (s *Sessions) AppendTrackEvent(ctx context.Context, to *session.Session, e *session.TrackEvent, options ...session.Option) error {
	if to == nil {
		return session.ErrNilSession
	}
	if e == nil {
		return errors.New("trpc: the track event is nil")
	}
	key := session.Key{AppName: to.AppName, UserID: to.UserID, SessionID: to.ID}
	if err := key.CheckSessionKey(); err != nil {
		return err
	}
	payload, err := adapter.JSON(e)
	if err != nil {
		return fmt.Errorf("trpc: the track event: %w", err)
	}
	late := adapter.Late(e.Timestamp)
	if _, err := session.TracksFromState(to.SnapshotState()); err != nil {
		return err // It could not be added to the caller's session.
	}
	parts := map[string][]byte{}
	if err := setPart(parts, trackPart, string(e.Track), nil); err != nil {
		return err
	}
	if late {
		parts[adapter.LatePart] = nil
	}
	if err := s.commit(ctx, key, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: trackKind, Payload: payload}}, Checkpoint: parts}); err != nil {
		return err
	}
	return to.AppendTrackEvent(e, options...)
}

// GetTrackEvents returns the events of a track. It returns none if there is no such track or session.
func (s *Sessions) GetTrackEvents(ctx context.Context, key session.Key, track session.Track, options ...session.Option) (*session.TrackEvents, error) {
	out := &session.TrackEvents{Track: track}
	of, err := s.GetSession(ctx, key, options...)
	if err != nil || of == nil {
		return out, err
	}
	if found := of.Tracks[track]; found != nil {
		return found, nil
	}
	return out, nil
}

// Close waits for the summaries that EnqueueSummaryJob was asked for before. Later calls of it make theirs themselves, and
// nothing waits for these. The store stays open.
func (s *Sessions) Close() error {
	s.jobs.close()
	return nil
}
