package langchaingo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/tmc/langchaingo/schema"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/head"
)

// Bring adds the messages that another history has and this one has not yet. The other one may be LangChainGo's on SQLite:
// set its Limit so that it reads all messages. Bring goes on where an earlier call was cut off. After Clear it brings all
// messages again. If this history has other messages already, or if a message of the other one can't be kept, Bring changes
// nothing, and Different says so. If a validator refuses messages, Different says so as well, and those before them are stored.
func (h *History) Bring(ctx context.Context, from schema.ChatMessageHistory, o adapter.BringOptions) (*adapter.Brought, error) {
	out := &adapter.Brought{Found: 1}
	for {
		messages, err := from.Messages(ctx)
		if err != nil {
			return nil, fmt.Errorf("langchaingo: the other history: %w", err)
		}
		want := make([]turnstone.NewNode, len(messages))
		for i, m := range messages {
			if want[i], err = nodeOf(m); err == nil && len(want[i].Payload) > turnstone.MaxPayload {
				err = &turnstone.LimitError{Limit: "payload bytes", Have: int64(len(want[i].Payload)), Max: turnstone.MaxPayload}
			}
			if err != nil {
				out.Different = []string{fmt.Sprintf("%s: message %d: %v", h.id, i, err)}
				return out, nil
			}
		}
		st, err := h.state(ctx)
		if err != nil {
			return nil, err
		}
		both := adapter.Common(st.Nodes, want)
		switch {
		case both < min(len(st.Nodes), len(want)):
			out.Different = []string{h.id}
			return out, nil
		case both == len(want):
			out.Unchanged = 1
			return out, nil
		case o.DryRun:
			out.Brought = len(want) - both
			return out, nil
		}
		err = h.bring(ctx, st.Revision, want[both:])
		switch {
		case errors.Is(err, turnstone.ErrConflict) && !errors.Is(err, turnstone.ErrOutcomeUnknown):
			continue // Somebody else has added messages.
		case adapter.Refused(err):
			out.Different = []string{fmt.Sprintf("%s: %v", h.id, err)}
			return out, nil
		case err != nil:
			return nil, err
		}
		if st, err = h.state(ctx); err != nil {
			return nil, err
		}
		if out.Brought = len(want) - both; adapter.Common(st.Nodes, want) < len(want) {
			out.Different = []string{h.id}
		}
		return out, nil
	}
}

// state returns the session of the history as it stands. If there is no such session, the state has no nodes, and revision 0.
func (h *History) state(ctx context.Context) (*turnstone.State, error) {
	s, err := h.store.Session(ctx, h.id)
	if err == nil {
		var st *turnstone.State
		if st, err = s.Load(ctx, turnstone.Scope{}); err == nil {
			return st, nil
		}
	}
	if adapter.Gone(err) {
		return &turnstone.State{}, nil
	}
	return nil, err
}

// bring adds messages to a session of that revision.
func (h *History) bring(ctx context.Context, at head.Revision, nodes []turnstone.NewNode) error {
	for _, some := range adapter.InCommits(nodes, func(n turnstone.NewNode) int { return len(n.Payload) }) {
		results, err := h.store.CommitAll(ctx, turnstone.SessionCommit{
			Create: &turnstone.Request{ID: h.id, Metadata: head.Metadata{Group: group}},
			Commit: turnstone.Commit{Expected: at, Turn: rand.Text(), Nodes: some},
		})
		if err != nil {
			return err
		}
		at = results[0].Revision
	}
	return nil
}
