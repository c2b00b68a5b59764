package adk_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"testing"
	"time"

	"google.golang.org/adk/v2/model"
	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adk"
	"github.com/turnstonedb/turnstone/engine/memory"
)

var update = flag.Bool("update", false, "write testdata/go.json anew")

// ofPython is the event of testdata/python.json, which the adapter for Python has written.
func ofPython() *session.Event {
	e := &session.Event{
		ID: "e1", Timestamp: time.Date(2026, 11, 28, 20, 59, 40, 492208242, time.UTC), InvocationID: "i1", Branch: "a.b", Author: "agent",
		LongRunningToolIDs: []string{"c1"},
		LLMResponse: model.LLMResponse{
			ModelVersion: "model-1", CustomMetadata: map[string]any{"k": map[string]any{"data": "a-b_c", "mimeType": "x"}},
			UsageMetadata: &genai.GenerateContentResponseUsageMetadata{PromptTokenCount: 10, CandidatesTokenCount: 3, ThoughtsTokenCount: 2, CachedContentTokenCount: 4},
			Content: &genai.Content{Role: "model", Parts: []*genai.Part{
				{Text: "é \u2028"},
				{InlineData: &genai.Blob{Data: []byte{255, 254, 251, 0}, MIMEType: "image/png"}},
				{Text: "Let me see.", Thought: true, ThoughtSignature: []byte{251, 255, 191}},
				{FunctionCall: &genai.FunctionCall{ID: "c1", Name: "find", Args: map[string]any{"n": 1.0, "deep": []any{map[string]any{"x": 1.5}}}}},
			}},
		},
	}
	e.Actions.StateDelta = map[string]any{"n": 1, "f": 2.0, "user:name": "Ann"}
	e.Actions.ArtifactDelta = map[string]int64{"report": 2}
	e.Actions.TransferToAgent = "other"
	return e
}

// What the adapters for Python and JavaScript store is read, and they have tests that read what this one writes.
func TestAD12_EventsOfPythonAndJavaScriptAreRead(t *testing.T) {
	e := memory.New()
	st, err := turnstone.Open(t.Context(), e, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	sessions := adk.NewSessions(st.Factory())
	made, err := sessions.Create(t.Context(), &session.CreateRequest{AppName: "a", UserID: "u", SessionID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	h := made.Session.(*adk.Session).Persistence()
	for _, of := range []string{"python", "js"} {
		payload, err := os.ReadFile("testdata/" + of + ".json")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Commit(t.Context(), turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "model", Payload: payload}}}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := sessions.Get(t.Context(), &session.GetRequest{AppName: "a", UserID: "u", SessionID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []*session.Event{ofPython(), ofPython()} {
		read := got.Session.Events().At(i)
		want.Actions.RequestedToolConfirmations = read.Actions.RequestedToolConfirmations // an empty one
		if i == 1 {                                                                       // JavaScript has milliseconds, and no number with a fraction of zero.
			want.Timestamp, want.Actions.StateDelta["f"] = want.Timestamp.Truncate(time.Millisecond), 2.5
		}
		if !reflect.DeepEqual(read, want) {
			a, _ := json.Marshal(read)
			b, _ := json.Marshal(want)
			t.Errorf("%s\nwant %s", a, b)
		}
	}

	if err := sessions.AppendEvent(t.Context(), got.Session, ofPython()); err != nil {
		t.Fatal(err)
	}
	state, err := h.Load(t.Context(), turnstone.Scope{Last: 1})
	if err != nil {
		t.Fatal(err)
	}
	written := append(state.Nodes[0].Payload, '\n')
	if *update {
		if err := os.WriteFile("testdata/go.json", written, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if golden, err := os.ReadFile("testdata/go.json"); err != nil || !bytes.Equal(golden, written) {
		t.Errorf("%s, want %s, %v", written, golden, err)
	}
}
