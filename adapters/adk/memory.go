package adk

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"google.golang.org/adk/v2/memory"
	"google.golang.org/adk/v2/session"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/head"
)

const (
	memoryRoot = "adk-memory"
	// deletedPrefix and the id of an event is the key of the record that says that it was deleted.
	deletedPrefix = "deleted/"
	// DefaultMemories is how many memories a search returns at most, unless Memory is told otherwise.
	DefaultMemories = 10
)

// Memory is a memory.Service: it finds what a user and the agents have said in all sessions that were added, by words. It
// is safe for concurrent use, in several processes.
//
// What a user has is a session of the store, adk-memory/APP/USER, with a node for each event that has a text. An event
// that is added again is not stored again. A search reads all of them.
type Memory struct {
	store turnstone.Factory
	most  int
}

var _ memory.Service = (*Memory)(nil)

// NewMemory returns a memory service on a store. A search returns so many memories at most, or DefaultMemories for 0.
func NewMemory(store turnstone.Factory, most int) *Memory {
	return &Memory{store, cmp.Or(max(most, 0), DefaultMemories)}
}

// AddSessionToMemory implements memory.Service.
func (m *Memory) AddSessionToMemory(ctx context.Context, s session.Session) error {
	if s == nil {
		return errors.New("adk: the session is nil")
	}
	if err := required([2]string{"AppName", s.AppName()}, [2]string{"UserID", s.UserID()}); err != nil {
		return err
	}
	var nodes []turnstone.NewNode
	for e := range s.Events().All() {
		if len(wordsOf(textOf(e))) == 0 {
			continue
		}
		stored := *e
		stored.Actions.StateDelta = nil // It is no memory, and may have values that JSON can't keep.
		payload, err := adapter.JSON(&stored)
		if err != nil {
			return fmt.Errorf("adk: event %q: %w", e.ID, err)
		}
		id := e.ID
		if id == "" { // It has none before a service has stored it.
			id = sumOf(payload)
		}
		nodes = append(nodes, turnstone.NewNode{Kind: "memory", Key: adapter.Short(adapter.Join("event", s.ID(), id), turnstone.MaxEventKey), Payload: payload})
	}
	if len(nodes) == 0 {
		return nil
	}
	// A search changes nothing in this session: without KeepAll a prune could take it for inactive.
	h, _, err := m.store.Create(ctx, turnstone.Request{ID: adapter.Join(memoryRoot, s.AppName(), s.UserID()), Metadata: head.Metadata{
		Group: adapter.Join(memoryRoot, s.AppName()), Retention: head.KeepAll,
	}})
	if err != nil {
		return err
	}
	for _, some := range adapter.InCommits(nodes, func(n turnstone.NewNode) int { return len(n.Payload) }) {
		if err := remember(ctx, h, some); err != nil {
			return err
		}
	}
	return nil
}

// remember commits the nodes that are not there.
func remember(ctx context.Context, h turnstone.Persistence, nodes []turnstone.NewNode) error {
	keys := make([]string, len(nodes))
	for i := range nodes {
		keys[i] = nodes[i].Key
	}
	for {
		i, err := h.Info(ctx)
		if err != nil {
			return err
		}
		there, err := h.NodesByKey(ctx, keys...)
		if err != nil {
			return err
		}
		deleted, _, err := adapter.Records(ctx, h, deletedPrefix)
		if err != nil {
			return err
		}
		barred := map[string]bool{}
		for _, r := range deleted {
			barred[r.Key] = true
		}
		seen := map[string]bool{}
		fresh := slices.DeleteFunc(slices.Clone(nodes), func(n turnstone.NewNode) bool {
			_, known := there[n.Key]
			known = known || seen[n.Key] || len(barred) > 0 && barred[deletedKey(&n)]
			seen[n.Key] = true
			return known
		})
		if len(fresh) == 0 {
			return nil
		}
		_, err = h.Commit(ctx, turnstone.Commit{Expected: i.Revision, Turn: rand.Text(), Nodes: fresh})
		if !errors.Is(err, turnstone.ErrConflict) || errors.Is(err, turnstone.ErrOutcomeUnknown) {
			return err
		}
	}
}

// deletedKey returns the key of the record that says that somebody has deleted the event of a node. The adapter for Python
// makes such records.
func deletedKey(n *turnstone.NewNode) string {
	var e struct{ ID string }
	if json.Unmarshal(n.Payload, &e) != nil {
		return ""
	}
	return recordKey(deletedPrefix, e.ID)
}

// SearchMemory implements memory.Service. Those that share the most words with the query come first.
func (m *Memory) SearchMemory(ctx context.Context, r *memory.SearchRequest) (*memory.SearchResponse, error) {
	if err := required([2]string{"AppName", r.AppName}, [2]string{"UserID", r.UserID}); err != nil {
		return nil, err
	}
	out := &memory.SearchResponse{}
	asked := wordsOf(r.Query)
	type found struct {
		shared int
		entry  memory.Entry
	}
	var all []found
	h, err := m.store.Session(ctx, adapter.Join(memoryRoot, r.AppName, r.UserID))
	if adapter.Gone(err) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	for n, err := range h.Nodes(ctx, turnstone.Scope{}) {
		if adapter.Gone(err) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		var e session.Event
		if err := json.Unmarshal(n.Payload, &e); err != nil {
			return nil, fmt.Errorf("adk: session %q: node %s is no event: %w", h.ID(), n.ID, err)
		}
		shared := 0
		for w := range wordsOf(textOf(&e)) {
			if asked[w] {
				shared++
			}
		}
		if shared > 0 {
			all = append(all, found{shared, memory.Entry{ID: e.ID, Content: e.Content, Author: e.Author, Timestamp: e.Timestamp, CustomMetadata: e.CustomMetadata}})
		}
	}
	slices.SortStableFunc(all, func(a, b found) int { return cmp.Compare(b.shared, a.shared) })
	for _, f := range all[:min(len(all), m.most)] {
		out.Memories = append(out.Memories, f.entry)
	}
	return out, nil
}

// textOf returns what an event says.
func textOf(e *session.Event) string {
	var b strings.Builder
	if e.Content != nil {
		for _, p := range e.Content.Parts {
			if p != nil {
				b.WriteString(p.Text + " ")
			}
		}
	}
	return b.String()
}

// wordsOf returns the words of a text in small letters. Where scripts without spaces have Latin words between them, these
// are words of their own.
func wordsOf(text string) map[string]bool {
	out := map[string]bool{}
	latin := func(r rune) bool { return r < unicode.MaxASCII || unicode.Is(unicode.Latin, r) }
	for _, w := range strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.Is(unicode.M, r) && r != '_'
	}) {
		out[w] = true
		begin, before := 0, rune(0)
		for i, r := range w {
			if i > 0 && latin(r) != latin(before) {
				out[w[begin:i]] = true
				begin = i
			}
			before = r
		}
		out[w[begin:]] = true
	}
	return out
}
