package ui

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

const (
	heartbeat = 15 * time.Second // Something is sent so often, so that who is gone is noticed.
	listPause = 2 * time.Second  // The list of sessions is looked at so often.
)

// live sends an event for each commit of a session, or, without one, when the list of sessions has changed
// (server-sent events, https://html.spec.whatwg.org/multipage/server-sent-events.html).
func (v *visit) live() error {
	rc := http.NewResponseController(v.w)
	var events func(send func(id, data string) bool) error
	if v.q.Get("id") == "" {
		events = v.listEvents
	} else {
		s, err := v.subject()
		if err != nil {
			return err
		}
		after, err := revision(v.r.Header.Get("Last-Event-ID"))
		if err != nil || after == 0 {
			after, err = revision(v.q.Get("after"))
		}
		if err != nil {
			return err
		}
		events = func(send func(id, data string) bool) error { return v.commitEvents(s, after, send) }
	}
	v.w.Header().Set("Content-Type", "text/event-stream")
	v.w.WriteHeader(http.StatusOK)
	sent := func(format string, args ...any) bool {
		_, err := fmt.Fprintf(v.w, format, args...)
		return err == nil && rc.Flush() == nil
	}
	if !sent(": it begins\n\n") {
		return nil
	}
	type event struct{ id, data string }
	come := make(chan event)
	go func() {
		defer close(come)
		_ = events(func(id, data string) bool { // If it ends with an error, the browser asks again.
			select {
			case come <- event{id, data}:
				return true
			case <-v.r.Context().Done():
				return false
			}
		})
	}()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for ok := true; ok; {
		select {
		case <-v.r.Context().Done():
			return nil
		case <-beat.C:
			ok = sent(": it goes on\n\n")
		case e, more := <-come:
			ok = more && sent("id: %s\ndata: %s\n\n", e.id, e.data)
		}
	}
	return nil
}

// commitEvents calls send for each commit of a session after a revision. It waits for new commits until the visitor is
// gone.
func (v *visit) commitEvents(s *subject, after head.Revision, send func(id, data string) bool) error {
	for e, err := range s.Watch(v.r.Context(), after) {
		if err != nil {
			return err
		}
		data, err := json.Marshal(map[string]any{"revision": e.Revision, "leaf": e.Leaf})
		if err != nil {
			return err
		}
		if !send(fmt.Sprint(e.Revision), string(data)) {
			return nil
		}
	}
	return nil
}

// listEvents sends an event whenever a session was made, changed or deleted.
func (v *visit) listEvents(send func(id, data string) bool) error {
	before := ""
	for first := true; ; first = false {
		p, err := v.db.List(v.r.Context(), turnstone.ListOptions{Limit: shownSessions})
		if err != nil {
			return err
		}
		now := ""
		for i := range p.Sessions {
			now += p.Sessions[i].Incarnation + p.Sessions[i].Updated.String()
		}
		if !first && now != before && !send("", "{}") {
			return nil
		}
		before = now
		select {
		case <-v.r.Context().Done():
			return nil
		case <-time.After(listPause):
		}
	}
}
