// Package trpc keeps the sessions of trpc-agent-go in a store of Turnstone, and the checkpoints of its graphs:
// NewSessions returns a session.Service, which is a session.TrackService and a session.WindowService as well,
// NewArtifacts an artifact.Service, NewMemory a memory.Service, and NewCheckpoints a graph.CheckpointSaver. All work on
// any turnstone.Factory: a store in the process, or a client of a server.
//
// A session is a session of the store, trpc/APP/USER/ID, in the group of its user. An event is a commit with one
// node, and with what it changes of the session's state. Values of state, summaries and the list of tracks are
// checkpoint parts, which each revision and each fork has as they were then. State of a user or an app is records of
// a session of its own.
package trpc

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"trpc.group/trpc-go/trpc-agent-go/event"
	"trpc.group/trpc-go/trpc-agent-go/model"
	"trpc.group/trpc-go/trpc-agent-go/session"
	"trpc.group/trpc-go/trpc-agent-go/session/summary"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/head"
)

// Options are options of a session service. The zero value has no summaries and no hooks.
type Options struct {
	// Summarizer makes summaries. Without one there are none.
	Summarizer summary.SessionSummarizer
	// SummaryFilterKeys are the branches that may be summarized, in the form that inmemory.WithSummaryFilterAllowlist
	// takes. Nil allows all branches.
	SummaryFilterKeys []string
	// BranchSummariesOnly leaves the summary of the whole session as it is when a branch is summarized.
	BranchSummariesOnly bool
	// SummaryTimeout is how long a summary that was enqueued may take: a minute without it.
	SummaryTimeout time.Duration

	// AppendEventHooks and GetSessionHooks are around AppendEvent and GetSession, the first one outermost.
	AppendEventHooks []session.AppendEventHook
	GetSessionHooks  []session.GetSessionHook
}

// What the parts of a checkpoint are, by the first letters of their names.
const (
	statePart   = "s"
	trackPart   = "t"
	summaryPart = "m"
)

// trackKind is the kind of the nodes that are events of tracks.
const trackKind = "track"

// partName returns the name of the part with the value of a key.
func partName(of, key string) string {
	if len(key) <= turnstone.MaxPartName-len("s/") {
		return of + "/" + key
	}
	sum := sha256.Sum256([]byte(key))
	return of + "#" + hex.EncodeToString(sum[:30])
}

// A partHeader is the first line of a part.
type partHeader struct {
	Key string `json:"key"`
	Nil bool   `json:"nil,omitzero"` // the value is nil, and not empty
}

// setPart adds the part with the value of a key to those that a commit sets.
func setPart(parts map[string][]byte, of, key string, value []byte) error {
	if !utf8.ValidString(key) {
		return fmt.Errorf("trpc: the key %q is not UTF-8", key)
	}
	line, err := adapter.JSON(partHeader{key, value == nil})
	if err != nil {
		return err
	}
	parts[partName(of, key)] = append(append(line, '\n'), value...)
	return nil
}

// readParts returns the values of the parts of a checkpoint, by what they are and by their keys.
func readParts(parts map[string][]byte) (map[string]session.StateMap, error) {
	out := map[string]session.StateMap{statePart: {}, trackPart: {}, summaryPart: {}}
	for name, content := range parts {
		values, ours := out[name[:1]]
		if !ours || len(name) < 2 || name[1] != '/' && name[1] != '#' {
			continue // Somebody else has put it there.
		}
		line, value, _ := bytes.Cut(content, []byte{'\n'})
		var h partHeader
		if err := json.Unmarshal(line, &h); err != nil {
			return nil, fmt.Errorf("trpc: part %q: %w", name, err)
		}
		if name != partName(name[:1], h.Key) {
			return nil, fmt.Errorf("trpc: part %q has the key %q", name, h.Key)
		}
		if h.Nil {
			value = nil
		}
		values[h.Key] = value
	}
	return out, nil
}

// isStored reports whether an event is one of the session's: what it changes of the state is stored in any case.
func isStored(e *event.Event) bool { return e.Response != nil && !e.IsPartial && e.IsValidContent() }

// eventNode returns the node for an event.
func eventNode(e *event.Event) (turnstone.NewNode, error) {
	payload, err := adapter.JSON(e)
	if err != nil {
		return turnstone.NewNode{}, fmt.Errorf("trpc: the event: %w", err)
	}
	kind := "event"
	switch {
	case e.IsUserMessage():
		kind = "user"
	case e.IsToolResultResponse():
		kind = "tool"
	case len(e.Choices) > 0 && e.Choices[0].Message.Role == model.RoleAssistant:
		kind = "assistant"
	}
	return turnstone.NewNode{Kind: kind, Payload: payload}, nil
}

// usage returns the tokens that the model has counted.
func usage(e *event.Event) []head.Usage {
	if e.Response == nil || e.Usage == nil {
		return nil
	}
	name := e.Model
	if name == "" || len(name) > turnstone.MaxModel || !utf8.ValidString(name) {
		name = "unknown"
	}
	n := func(v int) uint64 { return uint64(max(v, 0)) }
	in, out := e.Usage.PromptTokensDetails, e.Usage.CompletionTokensDetails
	// Only Anthropic's model sets CacheReadTokens and CacheCreationTokens. Its prompt tokens are those beside them.
	return []head.Usage{{
		Model: name, Input: n(e.Usage.PromptTokens) + n(in.CacheReadTokens) + n(in.CacheCreationTokens), Output: n(e.Usage.CompletionTokens),
		CachedInput: n(max(in.CachedTokens, in.CacheReadTokens)), CacheWrite: n(in.CacheCreationTokens), Reasoning: n(out.ReasoningTokens),
	}}
}
