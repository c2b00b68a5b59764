package eino_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/cloudwego/eino/adk"
	"github.com/cloudwego/eino/components/model"
	"github.com/cloudwego/eino/components/tool"
	"github.com/cloudwego/eino/compose"
	"github.com/cloudwego/eino/schema"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/eino"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

var ctx = context.Background()

var (
	_ compose.CheckPointStore = (*eino.CheckPointStore)(nil)
	_ adk.CheckPointDeleter   = (*eino.CheckPointStore)(nil)
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m, runAgent)) }

func TestEI1_TheLastCheckpointOfAnIDIsReadOnEveryEngine(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(*testing.T) turnstone.Factory) {
		store := open(t)
		s := eino.NewCheckPointStore(store)
		if _, _, err := store.Create(ctx, turnstone.Request{ID: "eino/a"}); err != nil { // by somebody else
			t.Fatal(err)
		}
		if got, ok, err := s.Get(ctx, "a"); ok || err != nil {
			t.Error(got, ok, err)
		}
		if err := s.Delete(ctx, "a"); err != nil {
			t.Error(err)
		}
		large := make([]byte, 3<<20)
		rand.NewChaCha8([32]byte{}).Read(large)
		for _, id := range []string{"a", "a/b", "", "ü %2F"} {
			for _, want := range [][]byte{[]byte("one"), large, append(large[:1<<20:1<<20], "more"...), {}, []byte("last")} {
				if err := s.Set(ctx, id, want); err != nil {
					t.Fatal(err)
				}
				if got, ok, err := s.Get(ctx, id); !ok || err != nil || !bytes.Equal(got, want) {
					t.Errorf("%q: %d bytes of %d, %v, %v", id, len(got), len(want), ok, err)
				}
			}
		}
		for range 2 {
			if err := s.Delete(ctx, "a"); err != nil {
				t.Error(err)
			}
		}
		if got, ok, err := s.Get(ctx, "a"); ok || err != nil {
			t.Error(got, ok, err)
		}
		if got, ok, err := s.Get(ctx, "a/b"); !ok || err != nil || string(got) != "last" {
			t.Error(got, ok, err)
		}
		if err := s.Set(ctx, "a", []byte("again")); err != nil {
			t.Error(err)
		}
		if got, ok, err := s.Get(ctx, "a"); !ok || err != nil || string(got) != "again" {
			t.Error(got, ok, err)
		}
	})
}

func TestEI1_WhoSetsAtOnceSetsWhole(t *testing.T) {
	s := eino.NewCheckPointStore(storetest.Pebble(t))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 5 {
				if err := s.Set(ctx, "shared", bytes.Repeat([]byte{byte(i)}, 10_000)); err != nil {
					t.Error(err)
				}
				got, _, err := s.Get(ctx, "shared")
				if err != nil || len(got) != 10_000 || bytes.Count(got, got[:1]) != len(got) {
					t.Error("a mixture", err)
				}
			}
		})
	}
	wg.Wait()
}

// Versions that were replaced, and checkpoints that were deleted, leave the store.
func TestEI2_OnlyTheLastVersionStays(t *testing.T) {
	store := storetest.URL(t, "mem:")
	s := eino.NewCheckPointStore(store.Factory())
	retained := func() int {
		t.Helper()
		if _, err := store.Prune(ctx, gc.PruneOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
			t.Fatal(err)
		}
		r, err := store.GC(ctx, gc.Options{Full: true})
		if err != nil {
			t.Fatal(err)
		}
		return r.Retained
	}
	source := rand.NewChaCha8([32]byte{1})
	for range 20 {
		random := make([]byte, 10_000)
		source.Read(random)
		if err := s.Set(ctx, "a", random); err != nil {
			t.Fatal(err)
		}
	}
	if n := retained(); n != 1 {
		t.Errorf("%d blobs of 20 versions", n)
	}
	if err := s.Delete(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if n := retained(); n != 0 {
		t.Errorf("%d blobs are left", n)
	}
}

func TestEI2_ErrorsOfTheStoreAreNotMistakenForNothing(t *testing.T) {
	faulty := &enginetest.Faulty{Engine: memory.New()}
	s := eino.NewCheckPointStore(storetest.On(t, faulty).Factory())
	if err := s.Set(ctx, "a", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := s.Set(ctx, strings.Repeat("x", turnstone.MaxSessionID), nil); !errors.Is(err, turnstone.ErrLimit) {
		t.Error(err)
	}
	faulty.Plan = func(enginetest.Call) enginetest.Fault { return enginetest.Fault{Err: engine.ErrUnavailable} }
	if got, ok, err := s.Get(ctx, "a"); ok || !errors.Is(err, engine.ErrUnavailable) {
		t.Error(got, ok, err)
	}
	for what, err := range map[string]error{"set": s.Set(ctx, "a", nil), "delete": s.Delete(ctx, "a")} {
		if !errors.Is(err, engine.ErrUnavailable) {
			t.Error(what, err)
		}
	}
}

// scripted is a model that asks for the tool, and then says what the tool has returned.
type scripted struct{}

func (scripted) Generate(_ context.Context, in []*schema.Message, _ ...model.Option) (*schema.Message, error) {
	if last := in[len(in)-1]; last.Role == schema.Tool {
		return schema.AssistantMessage("Done: "+last.Content, nil), nil
	}
	return schema.AssistantMessage("", []schema.ToolCall{{ID: "call-1", Function: schema.FunctionCall{Name: "transfer", Arguments: `{"amount":7}`}}}), nil
}

func (m scripted) Stream(ctx context.Context, in []*schema.Message, o ...model.Option) (*schema.StreamReader[*schema.Message], error) {
	out, err := m.Generate(ctx, in, o...)
	return schema.StreamReaderFromArray([]*schema.Message{out}), err
}

func (m scripted) WithTools([]*schema.ToolInfo) (model.ToolCallingChatModel, error) { return m, nil }

// transfer is a tool that waits for somebody's consent.
type transfer struct{}

func (transfer) Info(context.Context) (*schema.ToolInfo, error) {
	return &schema.ToolInfo{Name: "transfer", Desc: "transfers an amount"}, nil
}

func (transfer) InvokableRun(ctx context.Context, args string, _ ...tool.Option) (string, error) {
	interrupted, _, asked := tool.GetInterruptState[string](ctx)
	if !interrupted {
		return "", tool.StatefulInterrupt(ctx, "May I?", args)
	}
	_, _, consent := tool.GetResumeContext[string](ctx)
	return "transferred " + asked + ", " + consent, nil
}

// runnerOn returns the runner of an agent with these on a store.
func runnerOn(store turnstone.Factory) (*adk.Runner, error) {
	agent, err := adk.NewChatModelAgent(ctx, &adk.ChatModelAgentConfig{
		Name: "banker", Description: "transfers", Model: scripted{},
		ToolsConfig: adk.ToolsConfig{ToolsNodeConfig: compose.ToolsNodeConfig{Tools: []tool.BaseTool{transfer{}}}},
	})
	if err != nil {
		return nil, err
	}
	return adk.NewRunner(ctx, adk.RunnerConfig{Agent: agent, CheckPointStore: eino.NewCheckPointStore(store)}), nil
}

// results returns what an agent says, and the id of what has interrupted it.
func results(events *adk.AsyncIterator[*adk.AgentEvent]) (said, interrupt string, err error) {
	for {
		e, ok := events.Next()
		switch {
		case !ok:
			return said, interrupt, nil
		case e.Err != nil:
			return "", "", e.Err
		case e.Action != nil && e.Action.Interrupted != nil:
			for _, c := range e.Action.Interrupted.InterruptContexts {
				if c.IsRootCause {
					interrupt = c.ID
				}
			}
		case e.Output != nil && e.Output.MessageOutput != nil:
			said = e.Output.MessageOutput.Message.Content
		}
	}
}

// runAgent runs the agent of TestEI3 until it is interrupted, prints by what, and waits until it is killed.
func runAgent(store turnstone.Factory) error {
	runner, err := runnerOn(store)
	if err != nil {
		return err
	}
	_, interrupt, err := results(runner.Query(ctx, "Transfer 7.", adk.WithCheckPointID("chat")))
	if err != nil {
		return err
	}
	fmt.Println(interrupt)
	select {}
}

func TestEI3_AToolThatWasInterruptedGoesOnAfterItsProcessWasKilled(t *testing.T) {
	dir := t.TempDir()
	interrupt := storetest.Kill(t, dir, 1)[0]
	runner, err := runnerOn(storetest.URL(t, dir).Factory())
	if err != nil {
		t.Fatal(err)
	}
	events, err := runner.ResumeWithParams(ctx, "chat", &adk.ResumeParams{Targets: map[string]any{interrupt: "with consent"}})
	if err != nil {
		t.Fatal(err)
	}
	said, _, err := results(events)
	if want := `Done: transferred {"amount":7}, with consent`; err != nil || said != want {
		t.Errorf("%q, %v", said, err)
	}
}
