package langchaingo_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/tmc/langchaingo/chains"
	"github.com/tmc/langchaingo/llms"
	"github.com/tmc/langchaingo/memory"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/langchaingo"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	enginememory "github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

var ctx = context.Background()

func TestMain(m *testing.M) { os.Exit(storetest.Main(m, runAgent)) }

// every is a message of each type, with all of its fields.
var every = []llms.ChatMessage{
	llms.SystemChatMessage{Content: "Be brief."},
	llms.HumanChatMessage{Content: "Hello"},
	llms.AIChatMessage{
		Content: "Hi", FunctionCall: &llms.FunctionCall{Name: "f", Arguments: "{}"}, ReasoningContent: "well",
		ToolCalls: []llms.ToolCall{{ID: "1", Type: "function", FunctionCall: &llms.FunctionCall{Name: "g", Arguments: `{"x":1}`}}},
	},
	llms.ToolChatMessage{ID: "1", Content: "result"},
	llms.FunctionChatMessage{Name: "f", Content: "result"},
	llms.GenericChatMessage{Role: "critic", Name: "c", Content: "no"},
	llms.HumanChatMessage{},
}

func reads(t *testing.T, h *langchaingo.History, want ...llms.ChatMessage) {
	t.Helper()
	got, err := h.Messages(ctx)
	if err != nil || len(got) != len(want) || len(want) > 0 && !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}

func TestLC1_MessagesAreReadAsTheyWereAddedOnEveryEngine(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(*testing.T) turnstone.Factory) {
		store := open(t)
		h, other := langchaingo.NewHistory(store, "a"), langchaingo.NewHistory(store, "a/b")
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Error(err)
			}
		}
		reads(t, h)
		must(h.Clear(ctx))
		for _, m := range every {
			must(h.AddMessage(ctx, m))
		}
		must(other.AddUserMessage(ctx, "one"))
		must(other.AddAIMessage(ctx, "two"))
		reads(t, h, every...)
		reads(t, other, llms.HumanChatMessage{Content: "one"}, llms.AIChatMessage{Content: "two"})

		must(h.SetMessages(ctx, append(every[:2:2], every[3])))
		reads(t, h, every[0], every[1], every[3])
		must(h.AddMessage(ctx, every[4]))
		reads(t, h, every[0], every[1], every[3], every[4])
		must(h.SetMessages(ctx, nil))
		reads(t, h)
		must(h.SetMessages(ctx, every))
		reads(t, h, every...)
		must(h.Clear(ctx))
		reads(t, h)
		must(h.AddMessage(ctx, every[1]))
		reads(t, h, every[1])
		reads(t, other, llms.HumanChatMessage{Content: "one"}, llms.AIChatMessage{Content: "two"})
		must(langchaingo.NewHistory(store, "new").SetMessages(ctx, every))
		reads(t, langchaingo.NewHistory(store, "new"), every...)
		page, err := store.List(ctx, turnstone.ListOptions{Group: "langchaingo"})
		if err != nil || len(page.Sessions) != 3 {
			t.Error(page, err)
		}
	})
}

func TestLC1_MessagesThatAreAddedAtOnceAreAllThere(t *testing.T) {
	h := langchaingo.NewHistory(storetest.Pebble(t), "a")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 5 {
				if err := h.AddUserMessage(ctx, fmt.Sprint(i, n)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got, err := h.Messages(ctx)
	if err != nil || len(got) != 40 {
		t.Error(len(got), err)
	}
}

// strange is a message of nobody's type.
type strange struct{ llms.HumanChatMessage }

func TestLC2_WhatIsWrongIsRefusedBeforeAnyEffect(t *testing.T) {
	faulty := &enginetest.Faulty{Engine: enginememory.New()}
	store := storetest.On(t, faulty).Factory()
	h := langchaingo.NewHistory(store, "a")
	for _, m := range []llms.ChatMessage{nil, strange{}, &llms.HumanChatMessage{}} {
		if err := h.AddMessage(ctx, m); !errors.Is(err, turnstone.ErrInvalid) {
			t.Error(err)
		}
		if err := h.SetMessages(ctx, []llms.ChatMessage{every[0], m}); !errors.Is(err, turnstone.ErrInvalid) {
			t.Error(err)
		}
	}
	if err := langchaingo.NewHistory(store, strings.Repeat("x", 512)).AddUserMessage(ctx, "x"); !errors.Is(err, turnstone.ErrLimit) {
		t.Error(err)
	}
	page, err := store.List(ctx, turnstone.ListOptions{})
	if err != nil || len(page.Sessions) > 0 {
		t.Error(page, err)
	}
	// What is no message is not left out.
	s, _, err := store.Create(ctx, turnstone.Request{ID: "langchaingo/b"})
	if err == nil {
		_, err = s.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "k", Payload: []byte(`{"type":"k"}`)}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, err := langchaingo.NewHistory(store, "b").Messages(ctx); err == nil {
		t.Error(got)
	}
	faulty.Plan = func(enginetest.Call) enginetest.Fault { return enginetest.Fault{Err: engine.ErrUnavailable} }
	if got, err := h.Messages(ctx); !errors.Is(err, engine.ErrUnavailable) {
		t.Error(got, err)
	}
}

// counting is a model that answers with how often the prompt has its name.
type counting struct{}

func (counting) GenerateContent(_ context.Context, in []llms.MessageContent, _ ...llms.CallOption) (*llms.ContentResponse, error) {
	n := 0
	for _, m := range in {
		for _, p := range m.Parts {
			n += strings.Count(fmt.Sprint(p), "AI: answer")
		}
	}
	return &llms.ContentResponse{Choices: []*llms.ContentChoice{{Content: fmt.Sprint("answer ", n+1)}}}, nil
}

func (c counting) Call(ctx context.Context, prompt string, o ...llms.CallOption) (string, error) {
	return llms.GenerateFromSinglePrompt(ctx, c, prompt, o...)
}

// conversation returns a chain whose memory is a history.
func conversation(store turnstone.Factory) chains.LLMChain {
	return chains.NewConversation(counting{}, memory.NewConversationBuffer(memory.WithChatHistory(langchaingo.NewHistory(store, "chat"))))
}

// runAgent runs the chain of TestLC3 until it is killed, and prints its answers.
func runAgent(store turnstone.Factory) error {
	for {
		answer, err := chains.Run(ctx, conversation(store), "question")
		if err != nil {
			return err
		}
		fmt.Println(answer)
	}
}

func TestLC3_AConversationThatIsKilledGoesOn(t *testing.T) {
	dir := t.TempDir()
	last := ""
	for round := range 4 {
		answers := storetest.Kill(t, dir, 3+round)
		last = answers[len(answers)-1]
	}
	got, err := langchaingo.NewHistory(storetest.URL(t, dir).Factory(), "chat").Messages(ctx)
	if err != nil {
		t.Fatal(err)
	}
	answers, found := 0, false
	for _, m := range got {
		if m.GetType() == llms.ChatMessageTypeAI {
			answers++
			if want := fmt.Sprint("answer ", answers); m.GetContent() != want {
				t.Errorf("%q, want %q", m.GetContent(), want)
			}
			found = found || m.GetContent() == last
		}
	}
	if !found || answers < 18 {
		t.Errorf("%d answers, and %q was acknowledged", answers, last)
	}
}

func Example() {
	e, err := open.Open(ctx, "mem:", nil) // or a directory, or the URL of a PostgreSQL database
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close()
	store, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()

	buffer := memory.NewConversationBuffer(memory.WithChatHistory(langchaingo.NewHistory(store.Factory(), "chat")))
	for range 2 {
		answer, err := chains.Run(ctx, chains.NewConversation(counting{}, buffer), "Hello")
		fmt.Println(answer, err)
	}
	// Output:
	// answer 1 <nil>
	// answer 2 <nil>
}
