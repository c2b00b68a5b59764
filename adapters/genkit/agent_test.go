package genkit_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/ai/exp"
	gk "github.com/firebase/genkit/go/genkit"
	gkx "github.com/firebase/genkit/go/genkit/exp"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/genkit"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// counter is a scripted agent: each turn it counts, and says so.
func counter(store turnstone.Factory, work func(context.Context) error) *exp.Agent[custom] {
	g := gk.Init(context.Background(), gk.WithExperimental())
	return gkx.DefineCustomAgent(g, "counter", func(ctx context.Context, _ exp.Responder, sess *exp.SessionRunner[custom]) (*exp.AgentResult, error) {
		err := sess.Run(ctx, func(ctx context.Context, _ *exp.AgentInput) (*exp.TurnResult, error) {
			if err := work(ctx); err != nil {
				return nil, err
			}
			sess.UpdateCustom(func(c custom) custom { c.Counter++; return c })
			sess.AddMessages(ai.NewModelTextMessage(fmt.Sprint(sess.Custom().Counter)))
			return &exp.TurnResult{FinishReason: exp.AgentFinishReasonStop}, nil
		})
		return sess.Result(), err
	}, exp.WithSessionStore(genkit.NewStore[custom](store, genkit.Options{})))
}

func idle(context.Context) error { return nil }

// runAgent runs the agent of TestGK6 until it is killed, and prints a line for each turn that has ended.
func runAgent(store turnstone.Factory) error {
	for a := counter(store, idle); ; fmt.Println("counted") {
		if _, err := a.RunText(ctx, "count", exp.WithSessionID[custom]("chat")); err != nil {
			return err
		}
	}
}

func TestGK6_AnAgentThatIsKilledGoesOn(t *testing.T) {
	dir := t.TempDir()
	counted := 0
	for round := range 5 {
		counted += len(storetest.Kill(t, dir, 3+round))
	}
	st := storetest.URL(t, dir)
	latest, err := on(t, st.Factory()).GetLatestSnapshot(ctx, "chat")
	if err != nil {
		t.Fatal(err)
	}
	n := latest.State.Custom.Counter
	if n < counted || counted < 25 || len(latest.State.Messages) != 2*n {
		t.Errorf("%d turns with %d messages, and %d were acknowledged", n, len(latest.State.Messages), counted)
	}
	for i, m := range latest.State.Messages {
		if want := fmt.Sprint(i/2 + 1); i%2 == 1 && m.Text() != want {
			t.Errorf("message %d is %q", i, m.Text())
		}
	}
	storetest.Verify(t, st)
}

// A run that goes on in the background is aborted through another store, as from another process.
func TestGK6_ADetachedRunIsAbortedByAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	here, there := storetest.URL(t, dir), storetest.URL(t, dir)
	began := make(chan struct{})
	a := counter(here.Factory(), func(ctx context.Context) error {
		close(began)
		<-ctx.Done()
		return ctx.Err()
	})
	c, err := a.Connect(ctx, exp.WithSessionID[custom]("chat"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SendText("count"); err != nil {
		t.Fatal(err)
	}
	<-began
	if err := c.Detach(); err != nil {
		t.Fatal(err)
	}
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	other := counter(there.Factory(), idle)
	if got, err := other.GetSnapshot(ctx, out.SnapshotID); err != nil || got.Status != exp.SnapshotStatusPending {
		t.Fatalf("%+v, %v", got, err)
	}
	if status, err := other.Abort(ctx, out.SnapshotID); err != nil || status != exp.SnapshotStatusAborted {
		t.Fatal(status, err)
	}
	for limit := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		got, err := other.GetSnapshot(ctx, out.SnapshotID)
		if err != nil || time.Now().After(limit) {
			t.Fatalf("%+v, %v", got, err)
		}
		if got.FinishReason != "" { // The run has ended.
			if got.Status != exp.SnapshotStatusAborted || got.FinishReason != exp.AgentFinishReasonAborted {
				t.Errorf("%+v", got)
			}
			return
		}
	}
}
