// Package langchaingo keeps chat histories of LangChainGo in a store of Turnstone. It works on any turnstone.Factory:
// a store in the process, or a client of a server.
package langchaingo

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"

	"github.com/tmc/langchaingo/llms"
	"github.com/tmc/langchaingo/schema"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/transcript"
)

const group = "langchaingo"

// A History is a schema.ChatMessageHistory. It is safe for concurrent use, also with others of the same id.
//
// It is a session of the store, langchaingo/ID in the group langchaingo, with a node for each message, which keeps
// all that the message has: also the tool calls, which LangChainGo's own histories drop. The id has at most 500
// bytes, and a message at most turnstone.MaxPayload.
type History struct {
	store turnstone.Factory
	id    string
}

var _ schema.ChatMessageHistory = (*History)(nil)

// NewHistory returns the history of an id. The first message makes the session.
func NewHistory(store turnstone.Factory, id string) *History {
	return &History{store, group + "/" + id}
}

// stored is the payload of a node: the type of a message, and its fields.
type stored struct {
	Type llms.ChatMessageType `json:"type"`
	Data json.RawMessage      `json:"data"`
}

// aiMessage is the Data of a message of a model.
type aiMessage struct {
	llms.AIChatMessage
	ToolCalls []toolCall `json:"tool_calls,omitempty"`
}

// toolCall is an llms.ToolCall without its methods: what they marshal they unmarshal without the function.
type toolCall llms.ToolCall

// nodeOf returns a message as a node.
func nodeOf(m llms.ChatMessage) (turnstone.NewNode, error) {
	var fields any = m
	switch m := m.(type) {
	case llms.AIChatMessage:
		ai := aiMessage{AIChatMessage: m}
		for _, c := range m.ToolCalls {
			ai.ToolCalls = append(ai.ToolCalls, toolCall(c))
		}
		fields = ai
	case llms.HumanChatMessage, llms.SystemChatMessage, llms.GenericChatMessage, llms.FunctionChatMessage, llms.ToolChatMessage:
	default: // It could not be told apart when it is read.
		return turnstone.NewNode{}, &turnstone.InvalidError{Where: "message", Reason: fmt.Sprintf("it is a %T, and no message type of package llms", m)}
	}
	data, err := adapter.JSON(fields)
	if err != nil {
		return turnstone.NewNode{}, fmt.Errorf("langchaingo: the message: %w", err)
	}
	payload, err := adapter.JSON(stored{m.GetType(), data})
	return turnstone.NewNode{Kind: string(m.GetType()), Payload: payload}, err
}

// messageOf returns the message that a node is.
func messageOf(n *turnstone.Node) (llms.ChatMessage, error) {
	var s stored
	if err := json.Unmarshal(n.Payload, &s); err != nil {
		return nil, err
	}
	switch s.Type {
	case llms.ChatMessageTypeHuman:
		return decode[llms.HumanChatMessage](s.Data)
	case llms.ChatMessageTypeAI:
		var ai aiMessage
		err := json.Unmarshal(s.Data, &ai)
		for _, c := range ai.ToolCalls {
			ai.AIChatMessage.ToolCalls = append(ai.AIChatMessage.ToolCalls, llms.ToolCall(c))
		}
		return ai.AIChatMessage, err
	case llms.ChatMessageTypeSystem:
		return decode[llms.SystemChatMessage](s.Data)
	case llms.ChatMessageTypeGeneric:
		return decode[llms.GenericChatMessage](s.Data)
	case llms.ChatMessageTypeFunction:
		return decode[llms.FunctionChatMessage](s.Data)
	case llms.ChatMessageTypeTool:
		return decode[llms.ToolChatMessage](s.Data)
	}
	return nil, fmt.Errorf("its type is %q", s.Type)
}

func decode[M llms.ChatMessage](data []byte) (llms.ChatMessage, error) {
	var m M
	err := json.Unmarshal(data, &m)
	return m, err
}

// AddMessage adds a message behind all others.
func (h *History) AddMessage(ctx context.Context, m llms.ChatMessage) error {
	n, err := nodeOf(m)
	if err != nil {
		return err
	}
	_, err = h.store.CommitAll(ctx, turnstone.SessionCommit{
		Create: &turnstone.Request{ID: h.id, Metadata: head.Metadata{Group: group}},
		// The turn id makes a client repeat the commit when the answer is lost.
		Commit: turnstone.Commit{Expected: turnstone.AnyRevision, Turn: rand.Text(), Nodes: []turnstone.NewNode{n}},
	})
	return err
}

// AddUserMessage adds a message of a human.
func (h *History) AddUserMessage(ctx context.Context, text string) error {
	return h.AddMessage(ctx, llms.HumanChatMessage{Content: text})
}

// AddAIMessage adds a message of a model.
func (h *History) AddAIMessage(ctx context.Context, text string) error {
	return h.AddMessage(ctx, llms.AIChatMessage{Content: text})
}

// Clear deletes the session, and so all messages.
func (h *History) Clear(ctx context.Context) error {
	return h.store.Delete(ctx, h.id, turnstone.KeepChildren)
}

// Messages returns all messages.
func (h *History) Messages(ctx context.Context) ([]llms.ChatMessage, error) {
	out := []llms.ChatMessage{}
	s, err := h.store.Session(ctx, h.id)
	var st *turnstone.State
	if err == nil {
		st, err = s.Load(ctx, turnstone.Scope{})
	}
	if adapter.Gone(err) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	for i := range st.Nodes {
		m, err := messageOf(&st.Nodes[i])
		if err != nil {
			return nil, fmt.Errorf("langchaingo: session %q: node %s is no message: %w", h.id, st.Nodes[i].ID, err)
		}
		out = append(out, m)
	}
	return out, nil
}

// SetMessages puts messages in place of those that there are. What both begin with stays as it is stored. Messages
// that are replaced stay in the session's graph, as a branch; Clear removes them.
func (h *History) SetMessages(ctx context.Context, messages []llms.ChatMessage) error {
	s := transcript.Snapshot{Metadata: head.Metadata{Group: group}}
	for i, m := range messages {
		n, err := nodeOf(m)
		if err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		s.Messages = append(s.Messages, transcript.Message{Kind: n.Kind, Payload: n.Payload})
	}
	_, err := transcript.New(h.store).Save(ctx, h.id, s)
	return err
}
