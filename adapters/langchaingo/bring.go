package langchaingo

import (
	"bytes"
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
// set its Limit so that it reads all messages. Bring goes on where an earlier call was cut off. It leaves this history
// alone if that has other messages already, or if the store can't keep one of the other's: then Different says so. After
// Clear, Bring brings all messages again.
func (h *History) Bring(ctx context.Context, from schema.ChatMessageHistory, o adapter.BringOptions) (*adapter.Brought, error) {
	out := &adapter.Brought{Found: 1}
	for {
		messages, err := from.Messages(ctx)
		if err != nil {
			return nil, fmt.Errorf("langchaingo: the other history: %w", err)
		}
		want := make([]turnstone.NewNode, len(messages))
		for i, m := range messages {
			if want[i], err = nodeOf(m); err != nil {
				out.Different = []string{fmt.Sprintf("%s: message %d: %v", h.id, i, err)}
				return out, nil
			}
		}
		st, err := h.state(ctx)
		if err != nil {
			return nil, err
		}
		both := min(len(st.Nodes), len(want))
		switch {
		case !begins(st.Nodes, want[:both]):
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
		case errors.Is(err, turnstone.ErrInvalid), errors.Is(err, turnstone.ErrLimit): // The store has limits.
			out.Different = []string{fmt.Sprintf("%s: %v", h.id, err)}
			return out, nil
		case err != nil:
			return nil, err
		}
		if st, err = h.state(ctx); err != nil {
			return nil, err
		}
		if out.Brought = len(want) - both; len(st.Nodes) < len(want) || !begins(st.Nodes, want) {
			out.Different = []string{h.id}
		}
		return out, nil
	}
}

// state returns the nodes of the history, and its revision: none if there is no such session.
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

// begins reports whether nodes begin with messages.
func begins(nodes []turnstone.Node, messages []turnstone.NewNode) bool {
	for i, m := range messages {
		if nodes[i].Kind != m.Kind || !bytes.Equal(nodes[i].Payload, m.Payload) {
			return false
		}
	}
	return true
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
