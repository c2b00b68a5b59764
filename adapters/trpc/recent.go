package trpc

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"trpc.group/trpc-go/trpc-agent-go/event"
	"trpc.group/trpc-go/trpc-agent-go/session"
	"trpc.group/trpc-go/trpc-agent-go/session/inmemory"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/head"
)

// newest reads the nodes of a session that filter needs for the options: the last ones.
func newest(ctx context.Context, h turnstone.Persistence, at head.Revision, parts map[string][]byte, o *session.Options) ([]turnstone.Node, error) {
	values, err := readParts(parts)
	if err != nil {
		return nil, err
	}
	w := wanted{o: o, parts: parts, tracks: map[session.Track]int{}}
	for name := range values[trackPart] {
		w.tracks[session.Track(name)] = 0
	}
	return adapter.Newest(ctx, h, cmp.Or(at, turnstone.RevisionZero), w.enough)
}

// A wanted says when the events that options ask for were read, from the last one on.
type wanted struct {
	o            *session.Options
	parts        map[string][]byte
	events, user int                   // that were read, and those of the user among them
	tracks       map[session.Track]int // of each track: events that were read
}

// enough reports whether nothing before a node is needed.
func (w *wanted) enough(n *turnstone.Node) bool {
	switch {
	case n.Kind == trackKind:
		var e struct{ Track session.Track }
		if json.Unmarshal(n.Payload, &e) != nil {
			return false // read says so.
		}
		w.tracks[e.Track]++
	default:
		if w.events++; n.Kind == "user" {
			w.user++
		}
	}
	o := w.o
	if p := o.EventPage; p != nil { // Tracks are not cut into pages.
		return len(w.tracks) == 0 && w.events-p.Offset >= p.Limit
	}
	if w.user == 0 { // What is left begins with the user, if possible.
		return false
	}
	if !o.EventTime.IsZero() { // All from the first event of that time on are meant, and of these the last ones.
		return adapter.Before(n, o.EventTime, w.parts)
	}
	for _, events := range w.tracks {
		if events < o.EventNum {
			return false
		}
	}
	return o.EventNum > 0 && w.events >= o.EventNum
}

// GetEventWindow returns the events around one. The in-memory service of trpc-agent-go says which they are. It reads what
// comes since that event, and as many events before it as are needed.
func (s *Sessions) GetEventWindow(ctx context.Context, r session.EventWindowRequest) (*session.EventWindow, error) {
	if r.Key.CheckSessionKey() != nil {
		return window(ctx, nil, r)
	}
	var out *session.EventWindow
	err := s.with(ctx, r.Key, func(h turnstone.Persistence) error {
		of := &session.Session{}                                         // its events, the newest first
		before, enough, seen := 0, min(max(r.Before, 0), 1<<20)+1, false // events before that of the request, how many are enough, and whether it was read
		for n, err := range h.Nodes(ctx, turnstone.Scope{Reverse: true}) {
			if err != nil {
				return err
			}
			if n.Kind == trackKind {
				continue
			}
			if err := addNode(of, &n); err != nil {
				return fmt.Errorf("trpc: session %q: node %s is no event: %w", r.Key.SessionID, n.ID, err)
			}
			switch {
			case seen:
				before++
			case of.Events[len(of.Events)-1].ID == r.AnchorEventID:
				seen = true
			}
			if !seen || before < enough {
				continue
			}
			if out, err = window(ctx, of.Events, r); err != nil {
				return err
			}
			if i := slices.IndexFunc(out.Entries, func(e session.EventWindowEntry) bool { return e.Event.ID == r.AnchorEventID }); i >= r.Before {
				return nil
			}
			enough *= 2 // Some are not of the roles that are asked for.
		}
		var err error
		out, err = window(ctx, of.Events, r)
		return err
	})
	if adapter.Gone(err) {
		return window(ctx, nil, r)
	}
	return out, err
}

// window returns the events around one of some, of which the newest is the first.
func window(ctx context.Context, events []event.Event, r session.EventWindowRequest) (*session.EventWindow, error) {
	memory := inmemory.NewSessionService(inmemory.WithSessionEventLimit(0))
	defer memory.Close()
	if events != nil {
		if _, err := memory.CreateSession(ctx, r.Key, nil); err != nil {
			return nil, err
		}
		for i := range slices.Backward(events) {
			if err := memory.AppendEvent(ctx, session.NewSession(r.Key.AppName, r.Key.UserID, r.Key.SessionID), &events[i]); err != nil {
				return nil, err
			}
		}
	}
	return memory.GetEventWindow(ctx, r)
}

// eventID returns the id of the event that a node has, or "".
func eventID(n *turnstone.Node) string {
	var e struct {
		ID string `json:"id"`
	}
	if n.Kind == trackKind || json.Unmarshal(n.Payload, &e) != nil {
		return ""
	}
	return e.ID
}

// Rewind makes an event the last one of a session, or leaves it without events if last is "". State, summaries and tracks
// of the session are what they were then; the state of the user and the app stays. Rewind returns the session as it is
// then. What was appended since stays in the store, on a branch of its own. If the session has no event of that id, the
// error matches turnstone.ErrNodeNotFound. In a fork, Rewind refuses "" and the events from before the fork.
func (s *Sessions) Rewind(ctx context.Context, key session.Key, last string) (*session.Session, error) {
	if err := key.CheckSessionKey(); err != nil {
		return nil, err
	}
	is := func(n *turnstone.Node) bool { return eventID(n) == last }
	if last == "" {
		is = nil
	}
	err := s.with(ctx, key, func(h turnstone.Persistence) error { return adapter.Rewind(ctx, h, is) })
	if err != nil {
		return nil, fmt.Errorf("trpc: session %q: event %q: %w", key.SessionID, last, err)
	}
	return s.get(ctx, key, &session.Options{})
}
