package trpc_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"trpc.group/trpc-go/trpc-agent-go/event"
	"trpc.group/trpc-go/trpc-agent-go/model"
	"trpc.group/trpc-go/trpc-agent-go/session"

	"github.com/turnstonedb/turnstone/internal/storetest"
)

var ctx = context.Background()

func TestMain(m *testing.M) { os.Exit(storetest.Main(m, runAgent)) }

// services is what the in-memory service and this one have.
type services interface {
	session.Service
	session.TrackService
	session.WindowService
	GetTrackEvents(context.Context, session.Key, session.Track, ...session.Option) (*session.TrackEvents, error)
}

// start is after all sessions were made: a summary of what is older than its session is not used.
var start = time.Now().Add(time.Hour).UTC().Truncate(time.Second)

// say returns an event n seconds after the start.
func say(n int, role model.Role, text string, delta map[string][]byte) *event.Event {
	e := event.New("invocation", "author")
	e.ID, e.Timestamp, e.StateDelta = fmt.Sprint("e", n), start.Add(time.Duration(n)*time.Second), delta
	e.Response = &model.Response{Model: "m", Choices: []model.Choice{{Message: model.Message{Role: role, Content: text}}}}
	return e
}

// shows returns all that a session has but its times.
func shows(t *testing.T, s *session.Session) string {
	t.Helper()
	if s == nil {
		return "none"
	}
	s = s.Clone()
	s.CreatedAt, s.UpdatedAt = time.Time{}, time.Time{}
	if raw := s.State["tracks"]; raw != nil {
		tracks, err := session.TracksFromState(s.State)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(tracks)
		s.State["tracks"] = []byte(fmt.Sprint(tracks))
	}
	for k, v := range s.State { // nil is told from empty
		s.State[k] = fmt.Appendf(nil, "%v %s", v == nil, v)
	}
	for track, events := range s.Tracks { // one without events is like none
		if len(events.Events) == 0 {
			delete(s.Tracks, track)
		}
	}
	return text(t, s)
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// must returns a value, and panics if there is an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

var chat = session.Key{AppName: "app", UserID: "user", SessionID: "chat"}

func texts(s *session.Session) (out []string) {
	for i := range s.Events {
		out = append(out, s.Events[i].Choices[0].Message.Content)
	}
	return out
}
