package langchaingo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"

	"github.com/tmc/langchaingo/llms"
	"github.com/tmc/langchaingo/schema"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/head"
)

// Bring adds the messages that another history has and this one has not yet. The other one may be LangChainGo's on SQLite:
// set its Limit so that it reads all messages. Bring goes on where an earlier call was cut off. It leaves this history
// alone if that has other messages already.
func (h *History) Bring(ctx context.Context, from schema.ChatMessageHistory, o adapter.BringOptions) (*adapter.Brought, error) {
	out := &adapter.Brought{Found: 1}
	for {
		want, err := from.Messages(ctx)
		if err != nil {
			return nil, fmt.Errorf("langchaingo: the other history: %w", err)
		}
		s, err := h.store.Session(ctx, h.id)
		if err != nil && !adapter.Gone(err) {
			return nil, err
		}
		st := &turnstone.State{}
		if err == nil {
			if st, err = s.Load(ctx, turnstone.Scope{}); err != nil {
				return nil, err
			}
		}
		has := make([]llms.ChatMessage, len(st.Nodes))
		for i := range st.Nodes {
			if has[i], err = messageOf(&st.Nodes[i]); err != nil {
				return nil, fmt.Errorf("langchaingo: session %q: node %s is no message: %w", h.id, st.Nodes[i].ID, err)
			}
		}
		both := min(len(has), len(want))
		switch {
		case !reflect.DeepEqual(has[:both], want[:both]):
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
		if errors.Is(err, turnstone.ErrConflict) && !errors.Is(err, turnstone.ErrOutcomeUnknown) {
			continue // Somebody else has added messages.
		}
		if err != nil {
			return nil, err
		}
		got, err := h.Messages(ctx)
		if err != nil {
			return nil, err
		}
		if out.Brought = len(want) - both; len(got) < len(want) || !reflect.DeepEqual(got[:len(want)], want) {
			out.Different = []string{h.id}
		}
		return out, nil
	}
}

// bring adds messages to a session of that revision.
func (h *History) bring(ctx context.Context, at head.Revision, messages []llms.ChatMessage) error {
	nodes := make([]turnstone.NewNode, len(messages))
	for i, m := range messages {
		var err error
		if nodes[i], err = nodeOf(m); err != nil {
			return err
		}
	}
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
