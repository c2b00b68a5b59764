package trpc_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"trpc.group/trpc-go/trpc-agent-go/agent"
	"trpc.group/trpc-go/trpc-agent-go/event"
	"trpc.group/trpc-go/trpc-agent-go/model"
	"trpc.group/trpc-go/trpc-agent-go/runner"
	"trpc.group/trpc-go/trpc-agent-go/tool"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/trpc"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// counter is a scripted agent: it counts in the state of its session, in two events.
type counter struct{}

func (counter) Info() agent.Info { return agent.Info{Name: "counter"} }

func (counter) Tools() []tool.Tool { return nil }

func (counter) SubAgents() []agent.Agent { return nil }

func (counter) FindSubAgent(string) agent.Agent { return nil }

func (counter) Run(ctx context.Context, in *agent.Invocation) (<-chan *event.Event, error) {
	out := make(chan *event.Event)
	go func() {
		defer close(out)
		n := 0
		if v, ok := in.Session.GetState("n"); ok {
			n, _ = strconv.Atoi(string(v))
		}
		for i := range 2 {
			text := strconv.Itoa(n + i + 1)
			e := event.NewResponseEvent(in.InvocationID, "counter", &model.Response{
				Done: true, Choices: []model.Choice{{Message: model.NewAssistantMessage(text)}},
			})
			e.StateDelta = map[string][]byte{"n": []byte(text)}
			if agent.EmitEvent(ctx, in, out, e) != nil {
				return
			}
		}
	}()
	return out, nil
}

// runAgent runs the agent until it is killed, and prints a line for each invocation that has ended.
func runAgent(store turnstone.Factory) error {
	r := runner.NewRunner("app", counter{}, runner.WithSessionService(trpc.NewSessions(store, trpc.Options{})))
	for {
		events, err := r.Run(context.Background(), "user", "chat", model.NewUserMessage("count"))
		if err != nil {
			return err
		}
		for e := range events {
			if e.Error != nil {
				return fmt.Errorf("%v", e.Error)
			}
		}
		fmt.Println("counted")
	}
}

func TestTR5_AnAgentThatIsKilledGoesOn(t *testing.T) {
	dir := t.TempDir()
	counted := 0
	for round := range 5 {
		counted += len(storetest.Kill(t, dir, 3+round))
	}
	st := storetest.URL(t, dir)
	s := must(trpc.NewSessions(st.Factory(), trpc.Options{}).GetSession(ctx, chat))
	n := 0
	for _, text := range texts(s) {
		if text == "count" {
			continue
		}
		n++
		if text != strconv.Itoa(n) {
			t.Errorf("answer %d says %s", n, text)
		}
	}
	if got := string(s.State["n"]); got != strconv.Itoa(n) || n < 2*counted || counted < 25 {
		t.Errorf("n is %s after %d answers, and %d invocations were acknowledged", got, n, counted)
	}
	storetest.Verify(t, st)
}
