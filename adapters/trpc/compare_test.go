package trpc_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"trpc.group/trpc-go/trpc-agent-go/model"
	"trpc.group/trpc-go/trpc-agent-go/session"
	"trpc.group/trpc-go/trpc-agent-go/session/inmemory"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/trpc"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

func TestTR1_TheServiceDoesWhatTheInMemoryOneDoes(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(*testing.T) turnstone.Factory) {
		for seed := range uint64(4) {
			compare(t, trpc.NewSessions(open(t), trpc.Options{}), rand.New(rand.NewPCG(seed, 0)))
		}
	})
}

// compare makes random calls of a service and of the in-memory one.
func compare(t *testing.T, ours services, random *rand.Rand) {
	t.Helper()
	both := [2]services{ours, inmemory.NewSessionService(inmemory.WithSessionEventLimit(0))}
	one := func(from ...string) string { return from[random.IntN(len(from))] }
	key := func() session.Key {
		return session.Key{AppName: one("a", "a/b"), UserID: one("u", "%2F"), SessionID: one("s1", "s2/", "s3")}
	}
	value := func() []byte { return [][]byte{nil, {}, []byte("x"), []byte(`{"y":1}`), {0, 255}}[random.IntN(5)] }
	state := func(prefixes ...string) map[string][]byte {
		out := map[string][]byte{}
		for range random.IntN(3) {
			out[one(append(prefixes, "")...)+one("k", "l", strings.Repeat("long", 30))] = value()
		}
		return out
	}
	live := [2]map[session.Key]*session.Session{{}, {}} // the callers' sessions
	for step := range 120 {
		k := key()
		user := session.UserKey{AppName: k.AppName, UserID: k.UserID}
		var do func(i int, s services) (any, error)
		name := ""
		switch n := random.IntN(16); n {
		case 0, 1:
			name = "create"
			st := session.StateMap(state("user:", "temp:"))
			if live[0][k] != nil {
				continue // The in-memory service replaces it.
			}
			do = func(i int, s services) (any, error) {
				made, err := s.CreateSession(ctx, k, st)
				live[i][k] = made
				return shows(t, made), err
			}
		case 2, 3, 4, 5, 6:
			name = "append"
			if live[0][k] == nil {
				continue
			}
			e := say(step, model.Role(one("user", "assistant", "tool", "system")), one("", "hello", "…"), state("app:", "user:", "temp:"))
			e.IsPartial = random.IntN(5) == 0
			if random.IntN(8) == 0 {
				e.Response = nil
			}
			if random.IntN(4) == 0 {
				e.FilterKey, e.Branch, e.LongRunningToolIDs = "a/b", "a", map[string]struct{}{"x": {}}
				e.Extensions = map[string]json.RawMessage{"ext": json.RawMessage(`{"a":[1]}`)}
			}
			if e.Response == nil || e.IsPartial || !e.IsValidContent() {
				e.StateDelta["k"] = value() // Of an event that changes nothing the in-memory service notes the time.
			}
			var options []session.Option
			if random.IntN(4) == 0 {
				options = append(options, session.WithEventNum(2))
			}
			do = func(i int, s services) (any, error) {
				copied := *e
				err := s.AppendEvent(ctx, live[i][k], &copied, options...)
				return shows(t, live[i][k]), err
			}
		case 7, 8:
			name = "track"
			if live[0][k] == nil {
				continue
			}
			e := session.TrackEvent{Track: session.Track(one("t1", "t/2")), Payload: json.RawMessage(`{"n":1}`), Timestamp: start.Add(time.Duration(step) * time.Second)}
			do = func(i int, s services) (any, error) {
				err := s.AppendTrackEvent(ctx, live[i][k], &e)
				return shows(t, live[i][k]), err
			}
		case 9:
			name = "app state"
			st, gone := state("app:"), one("k", "app:k", "none")
			do = func(_ int, s services) (any, error) {
				if err := s.UpdateAppState(ctx, k.AppName, st); err != nil {
					return nil, err
				}
				if err := s.DeleteAppState(ctx, k.AppName, gone); err != nil {
					return nil, err
				}
				return s.ListAppStates(ctx, k.AppName)
			}
		case 10:
			name = "user state"
			st, gone := state("user:", "app:", "temp:", "user:"), one("k", "user:k", "none")
			do = func(_ int, s services) (any, error) {
				if err := s.UpdateUserState(ctx, user, st); err != nil {
					return nil, err
				}
				if err := s.DeleteUserState(ctx, user, gone); err != nil {
					return nil, err
				}
				return s.ListUserStates(ctx, user)
			}
		case 11:
			name = "session state"
			st := state("app:", "temp:", "temp:")
			do = func(_ int, s services) (any, error) { return nil, s.UpdateSessionState(ctx, k, st) }
		case 12:
			name = "delete"
			if random.IntN(3) > 0 {
				continue
			}
			do = func(i int, s services) (any, error) {
				delete(live[i], k)
				return nil, s.DeleteSession(ctx, k)
			}
		case 13:
			name = "window"
			r := session.EventWindowRequest{
				Key: k, AnchorEventID: fmt.Sprint("e", random.IntN(step+1)), Before: random.IntN(4) - 1, After: random.IntN(3),
				Roles: []model.Role{model.RoleUser, model.RoleAssistant}[:random.IntN(3)],
			}
			do = func(_ int, s services) (any, error) {
				w, err := s.GetEventWindow(ctx, r)
				if w != nil {
					for i := range w.Entries {
						w.Entries[i].CreatedAt = time.Time{}
					}
				}
				return w, err
			}
		case 14:
			name = "list"
			var options []session.Option
			if random.IntN(2) == 0 {
				options = append(options, session.WithListSessionOnlyMeta())
			}
			if random.IntN(2) == 0 {
				options = append(options, session.WithEventNum(random.IntN(3)))
			}
			if random.IntN(2) == 0 {
				options = append(options, session.WithListSessionPage(random.IntN(3), 1+random.IntN(2)))
			}
			do = func(_ int, s services) (any, error) {
				found, err := s.ListSessions(ctx, user, options...)
				var out []string
				for _, f := range found {
					out = append(out, shows(t, f))
				}
				return out, err
			}
		default:
			name = "tracks"
			track := session.Track(one("t1", "t/2", "none"))
			do = func(_ int, s services) (any, error) { return s.GetTrackEvents(ctx, k, track) }
		}
		var got [2]string
		for i, s := range both {
			result, err := do(i, s)
			got[i] = text(t, result) + fmt.Sprint(err != nil)
			if i == 0 && name != "delete" && name != "create" {
				time.Sleep(time.Millisecond) // so that the times of updates differ
			}
		}
		if got[0] != got[1] {
			t.Fatalf("step %d: %s of %v: %s, want %s", step, name, k, got[0], got[1])
		}
		options := []session.Option{session.WithEventNum(random.IntN(4))}
		if random.IntN(2) == 0 {
			options = append(options, session.WithEventTime(start.Add(time.Duration(random.IntN(step+1))*time.Second)))
		}
		for i, s := range both {
			read, err := s.GetSession(ctx, k, options...)
			if err != nil {
				t.Fatal(err)
			}
			got[i] = shows(t, read)
		}
		if got[0] != got[1] {
			t.Fatalf("step %d: after %s, %v is %s, want %s", step, name, k, got[0], got[1])
		}
	}
}
