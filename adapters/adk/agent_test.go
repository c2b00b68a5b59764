package adk_test

import (
	"bufio"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"testing"

	"google.golang.org/adk/v2/agent"
	"google.golang.org/adk/v2/model"
	"google.golang.org/adk/v2/runner"
	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adk"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// agentStore makes a process of the test binary run the agent on the store that it names.
const agentStore = "TURNSTONE_TEST_AGENT"

// agentProcess runs the agent of TestAD6 until it is killed, and prints a line for each invocation that has ended.
func agentProcess(dir string) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	e, err := open.Open(ctx, dir, nil)
	if err != nil {
		return fail(err)
	}
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		return fail(err)
	}
	sessions := adk.NewSessions(st.Factory())
	counter, err := agent.New(agent.Config{Name: "counter", Run: count})
	if err != nil {
		return fail(err)
	}
	r, err := runner.New(runner.Config{AppName: "app", Agent: counter, SessionService: sessions, AutoCreateSession: true})
	if err != nil {
		return fail(err)
	}
	for {
		for event, err := range r.Run(ctx, "user", "chat", genai.NewContentFromText("count", genai.RoleUser), agent.RunConfig{}) {
			if err != nil {
				return fail(err)
			}
			_ = event
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
		p := exec.Command(os.Args[0])
		p.Env = append(os.Environ(), agentStore+"="+dir)
		p.Stderr = os.Stderr
		out, err := p.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for range 3 + round {
			if !lines.Scan() {
				t.Fatal("the agent has ended: ", lines.Err())
			}
			counted++
		}
		if err := p.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // what it had counted when it was killed
			counted++
		}
		_ = p.Wait() // It was killed.
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
	r, err := st.Verify(ctx, turnstone.VerifyOptions{})
	if err != nil || len(r.Problems) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
}
