package langchaingo_test

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tmc/langchaingo/llms"
	"github.com/tmc/langchaingo/memory"
	"github.com/tmc/langchaingo/memory/sqlite3"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/adapters/langchaingo"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	enginememory "github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

func TestLC4_MessagesOfAnotherHistoryAreBrought(t *testing.T) {
	old := sqlite3.NewSqliteChatMessageHistory(sqlite3.WithDBAddress(filepath.Join(t.TempDir(), "db")), sqlite3.WithSession("a"), sqlite3.WithLimit(1<<20))
	defer old.DB.Close()
	for i := range 1500 {
		if err := []func() error{
			func() error { return old.AddUserMessage(ctx, fmt.Sprint("Say ", i, " é")) },
			func() error { return old.AddAIMessage(ctx, fmt.Sprint(i)) },
			func() error { return old.AddMessage(ctx, llms.SystemChatMessage{Content: "Be brief."}) },
		}[i%3](); err != nil {
			t.Fatal(err)
		}
	}
	faulty := &enginetest.Faulty{Engine: enginememory.New()}
	store := storetest.On(t, faulty).Factory()
	h := langchaingo.NewHistory(store, "a")
	commits := 0
	faulty.Plan = func(c enginetest.Call) enginetest.Fault { // It is cut off after the first of its commits.
		if c.Apply > 0 {
			commits++
		}
		return enginetest.Fault{Crash: commits == 2}
	}
	if _, err := h.Bring(ctx, old, adapter.BringOptions{}); err == nil {
		t.Fatal("it was not cut off")
	}
	h = langchaingo.NewHistory(storetest.On(t, faulty.Engine).Factory(), "a")
	there, err := h.Messages(ctx)
	if err != nil || len(there) == 0 || len(there) >= 1500 {
		t.Fatalf("%d messages, %v", len(there), err)
	}
	if b, err := h.Bring(ctx, old, adapter.BringOptions{DryRun: true}); err != nil || b.Found != 1 || b.Brought != 1500-len(there) {
		t.Errorf("%+v, %v", b, err)
	}
	reads(t, h, there...)
	if b, err := h.Bring(ctx, old, adapter.BringOptions{}); err != nil || b.Brought != 1500-len(there) || len(b.Different) > 0 {
		t.Errorf("%+v, %v", b, err)
	}
	want, err := old.Messages(ctx)
	if err != nil {
		t.Fatal(err)
	}
	reads(t, h, want...)
	if b, err := h.Bring(ctx, old, adapter.BringOptions{}); err != nil || b.Unchanged != 1 || b.Brought != 0 {
		t.Errorf("%+v, %v", b, err)
	}
	if err := old.AddUserMessage(ctx, "since"); err != nil {
		t.Fatal(err)
	}
	if b, err := h.Bring(ctx, old, adapter.BringOptions{}); err != nil || b.Brought != 1 {
		t.Errorf("%+v, %v", b, err)
	}
	// A host goes on here: then it is the source that has less, and then another one.
	if err := h.AddUserMessage(ctx, "ours"); err != nil {
		t.Fatal(err)
	}
	if b, err := h.Bring(ctx, old, adapter.BringOptions{}); err != nil || b.Unchanged != 1 {
		t.Errorf("%+v, %v", b, err)
	}
	if err := old.AddUserMessage(ctx, "theirs"); err != nil {
		t.Fatal(err)
	}
	if b, err := h.Bring(ctx, old, adapter.BringOptions{}); err != nil || b.Brought > 0 || !reflect.DeepEqual(b.Different, []string{"langchaingo/a"}) {
		t.Errorf("%+v, %v", b, err)
	}
	ours := slices.Concat(want, []llms.ChatMessage{llms.HumanChatMessage{Content: "since"}, llms.HumanChatMessage{Content: "ours"}})
	reads(t, h, ours...)
	other := memory.NewChatMessageHistory(memory.WithPreviousMessages([]llms.ChatMessage{llms.HumanChatMessage{Content: "hello"}}))
	if b, err := langchaingo.NewHistory(storetest.Memory(t), "none").Bring(ctx, memory.NewChatMessageHistory(), adapter.BringOptions{}); err != nil || b.Unchanged != 1 {
		t.Errorf("%+v, %v", b, err)
	}
	if b, err := h.Bring(ctx, other, adapter.BringOptions{}); err != nil || len(b.Different) != 1 {
		t.Errorf("%+v, %v", b, err)
	}
	reads(t, h, ours...)
}

func TestLC4_BringChangesNothingIfAMessageIsTooLarge(t *testing.T) {
	old, store := memory.NewChatMessageHistory(), storetest.Memory(t)
	for i := range 251 {
		if err := old.AddMessage(ctx, llms.HumanChatMessage{Content: strings.Repeat("x", 1+turnstone.MaxPayload*(i/250))}); err != nil {
			t.Fatal(err)
		}
	}
	h := langchaingo.NewHistory(store, "a")
	if b, err := h.Bring(ctx, old, adapter.BringOptions{}); err != nil || len(b.Different) != 1 || !strings.Contains(b.Different[0], "message 250: ") {
		t.Errorf("%+v, %v", b, err)
	}
	if there, err := h.Messages(ctx); err != nil || len(there) > 0 {
		t.Errorf("%d messages, %v", len(there), err)
	}
}

func TestLC4_BringNamesWhatItCanNotKeep(t *testing.T) {
	old, h := memory.NewChatMessageHistory(), langchaingo.NewHistory(storetest.Memory(t), "a")
	bring := func(brought, different int) {
		t.Helper()
		if b, err := h.Bring(ctx, old, adapter.BringOptions{}); err != nil || b.Brought != brought || len(b.Different) != different {
			t.Errorf("%+v, %v", b, err)
		}
	}
	add := func(m llms.ChatMessage) {
		t.Helper()
		if err := old.AddMessage(ctx, m); err != nil {
			t.Fatal(err)
		}
	}
	add(llms.AIChatMessage{Content: "x", ToolCalls: []llms.ToolCall{}}) // It comes back without the empty list.
	bring(1, 0)
	bring(0, 0)
	add(llms.HumanChatMessage{Content: "more"})
	bring(1, 0)
	add(llms.HumanChatMessage{Content: "not UTF-8: \xff"})
	bring(0, 1)
}
