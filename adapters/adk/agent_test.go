package adk_test

import (
	"errors"
	"fmt"
	"iter"
	"testing"

	"google.golang.org/adk/v2/agent"
	"google.golang.org/adk/v2/model"
	"google.golang.org/adk/v2/runner"
	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adk"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// runAgent runs the agent of TestAD6 until it is killed, and prints a line for each invocation that has ended.
func runAgent(store turnstone.Factory) error {
	counter, err := agent.New(agent.Config{Name: "counter", Run: count})
	if err != nil {
		return err
	}
	r, err := runner.New(runner.Config{AppName: "app", Agent: counter, SessionService: adk.NewSessions(store), AutoCreateSession: true})
	if err != nil {
		return err
	}
	for {
		for _, err := range r.Run(ctx, "user", "chat", genai.NewContentFromText("count", genai.RoleUser), agent.RunConfig{}) {
			if err != nil {
				return err
			}
		}
		fmt.Println("counted")
	}
}

// count is a scripted agent: it counts in the state of session, user and app at once, in two events.
func count(ic agent.InvocationContext) iter.Seq2[*session.Event, error] {
	return func(yield func(*session.Event, error) bool) {
		for range 2 {
			n := 0.0 // a number of JSON
			if v, err := ic.Session().State().Get("n"); err == nil {
				n = v.(float64)
			} else if !errors.Is(err, session.ErrStateKeyNotExist) {
				yield(nil, err)
				return
			}
			e := session.NewEvent(ic, ic.InvocationID())
			e.Author = ic.Agent().Name()
			for _, k := range []string{"n", "user:n", "app:n"} {
				e.Actions.StateDelta[k] = n + 1
			}
			e.LLMResponse = model.LLMResponse{Content: genai.NewContentFromText(fmt.Sprint(n+1), genai.RoleModel)}
			if !yield(e, nil) {
				return
			}
		}
	}
}

func TestAD6_AnAgentThatIsKilledGoesOn(t *testing.T) {
	dir := t.TempDir()
	counted := 0
	for round := range 5 {
		counted += len(storetest.Kill(t, dir, 3+round))
	}
	st := storetest.URL(t, dir)
	s := chats{t, adk.NewSessions(st.Factory())}.get("chat")
	n := 0.0
	for event := range s.Events().All() {
		if event.Author == "user" {
			continue
		}
		n++
		if got := event.Content.Parts[0].Text; got != fmt.Sprint(n) {
			t.Errorf("event %v says %s", n, got)
		}
	}
	for _, k := range []string{"n", "user:n", "app:n"} {
		if v, err := s.State().Get(k); v != n {
			t.Errorf("%s is %v, of %v: %v", k, v, n, err)
		}
	}
	if n < float64(2*counted) || counted < 25 {
		t.Errorf("%v events, and %d invocations were acknowledged", n, counted)
	}
	storetest.Verify(t, st)
}
