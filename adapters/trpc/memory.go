package trpc

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"trpc.group/trpc-go/trpc-agent-go/memory"
	"trpc.group/trpc-go/trpc-agent-go/memory/inmemory"
	"trpc.group/trpc-go/trpc-agent-go/tool"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/head"
)

const (
	memoryRoot = "trpc-memory"
	// memoryPrefix begins the keys of the records that are memories.
	memoryPrefix = "memory/"
	// changedKey is the key of a record that every change sets. A change is refused if another one has set the record since
	// the memories were read.
	changedKey = "changed"
	// DefaultMemories is how many memories a user has at most, unless NewMemory is told otherwise.
	DefaultMemories = 1000
)

// Memory is a memory.Service. It is safe for concurrent use, in several processes.
//
// The memories of a user are records of a session of the store, trpc-memory/APP/USER, which no prune deletes. Each call
// reads all of them, and lets the kit's service in memory find or change them. A memory has at most turnstone.MaxRecord
// bytes as JSON. Nobody can read a memory that was deleted, and it leaves the store's files with vacuum.
type Memory struct {
	store turnstone.Factory
	limit int
	o     []inmemory.ServiceOpt
	tools []tool.Tool
	jobs  jobs

	// extracting has for each worker a kit with the extractor of the options. busy is full while the kit is in use. NewMemory
	// makes the kits, because the making of a kit sets up the extractor, which must not work then.
	extracting [workers]struct {
		kit  *inmemory.MemoryService
		busy chan struct{}
	}
}

// errAtLimit says that a user has more memories than the kit of a worker may hold.
var errAtLimit = errors.New("trpc: the user has more memories than the limit is now")

var _ memory.Service = (*Memory)(nil)

// NewMemory returns a memory service on a store. A user has at most limit memories; 0 stands for DefaultMemories. The
// service takes the options of the kit's service in memory, and ignores those for a limit, for workers and for a queue.
// Close ends it.
func NewMemory(store turnstone.Factory, limit int, o ...inmemory.ServiceOpt) *Memory {
	m := &Memory{store: store, limit: cmp.Or(max(limit, 0), DefaultMemories), o: slices.Clone(o)}
	m.tools = m.kit(m.limit).Tools()
	for i := range m.extracting {
		m.extracting[i].kit, m.extracting[i].busy = m.kit(m.limit), make(chan struct{}, 1)
	}
	return m
}

// kit returns a service in memory with a limit and more options, which does all that it is told at once.
func (m *Memory) kit(limit int, o ...inmemory.ServiceOpt) *inmemory.MemoryService {
	kit := inmemory.NewMemoryService(append(append(slices.Clone(m.o), inmemory.WithMemoryLimit(limit)), o...)...)
	_ = kit.Close() // It stops the workers.
	return kit
}

// memories is what was read of a user.
type memories struct {
	kit     *inmemory.MemoryService
	handle  turnstone.Persistence   // nil if there is no session
	changed turnstone.RecordVersion // of changedKey
	stored  map[string][]byte       // the values of records, by the ids of memories
}

// read reads the memories of a user into a kit without an extractor.
func (m *Memory) read(ctx context.Context, of memory.UserKey) (*memories, error) {
	s, err := m.stored(ctx, of)
	if err != nil {
		return nil, err
	}
	limit := max(m.limit, len(s.stored)) // The limit may have been another one.
	return s, s.load(ctx, of, m.kit(limit, inmemory.WithExtractor(nil)))
}

// stored reads the memories of a user.
func (m *Memory) stored(ctx context.Context, of memory.UserKey) (*memories, error) {
	out := &memories{changed: turnstone.NoRecord, stored: map[string][]byte{}}
	h, err := m.store.Session(ctx, adapter.Join(memoryRoot, of.AppName, of.UserID))
	if adapter.Gone(err) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	for out.handle = h; ; {
		if out.changed, err = version(ctx, h); err != nil {
			break
		}
		var all []turnstone.Record
		if all, _, err = adapter.Records(ctx, h, memoryPrefix); err != nil {
			break
		}
		clear(out.stored)
		for _, r := range all {
			out.stored[strings.TrimPrefix(r.Key, memoryPrefix)] = r.Value
		}
		var again turnstone.RecordVersion
		if again, err = version(ctx, h); err != nil || again == out.changed { // else it is of several moments
			break
		}
	}
	if adapter.Gone(err) { // Somebody has cleared them meanwhile.
		out, err = &memories{changed: turnstone.NoRecord, stored: map[string][]byte{}}, nil
	}
	return out, err
}

// version returns the version of changedKey.
func version(ctx context.Context, h turnstone.Persistence) (turnstone.RecordVersion, error) {
	r, err := h.Record(ctx, changedKey)
	if errors.Is(err, turnstone.ErrRecordNotFound) {
		return turnstone.NoRecord, nil
	}
	return r.Version, err
}

// load gives a kit what is stored.
func (s *memories) load(ctx context.Context, of memory.UserKey, kit *inmemory.MemoryService) error {
	s.kit = kit
	entries := map[string]*memory.Entry{}
	for id, value := range s.stored {
		e := &memory.Entry{}
		if err := json.Unmarshal(value, e); err != nil || e.Memory == nil {
			return fmt.Errorf("trpc: session %q: record %q is no memory: %w", s.handle.ID(), memoryPrefix+id, cmp.Or(err, errors.New("it has none")))
		}
		entries[id] = e
		about := &memory.Metadata{Kind: e.Memory.Kind, EventTime: e.Memory.EventTime, Participants: e.Memory.Participants, Location: e.Memory.Location}
		if err := s.kit.AddMemory(ctx, of, e.Memory.Memory, e.Memory.Topics, memory.WithMetadata(about)); err != nil {
			return err
		}
	}
	held, err := s.kit.ReadMemories(ctx, of, 0)
	if err != nil {
		return err
	}
	for _, e := range held { // They are what the kit holds, and not copies.
		if was := entries[e.ID]; was != nil {
			*e = *was
		}
	}
	return nil
}

// changes returns what the kit has changed.
func (s *memories) changes(ctx context.Context, of memory.UserKey) (out []turnstone.RecordChange, err error) {
	held, err := s.kit.ReadMemories(ctx, of, 0)
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	for _, e := range held {
		there[e.ID] = true
		value, err := adapter.JSON(e)
		if err != nil {
			return nil, fmt.Errorf("trpc: memory %q: %w", e.ID, err)
		}
		if !bytes.Equal(value, s.stored[e.ID]) {
			out = append(out, turnstone.RecordChange{Key: memoryPrefix + e.ID, Value: value})
		}
	}
	for id := range s.stored {
		if !there[id] {
			out = append(out, turnstone.RecordChange{Key: memoryPrefix + id, Action: turnstone.DeleteRecord})
		}
	}
	return out, nil
}

// change makes a change of the memories of a user. If somebody else changes them meanwhile, it calls f again.
func (m *Memory) change(ctx context.Context, of memory.UserKey, f func(*memories) error) error {
	for {
		s, err := m.read(ctx, of)
		if err != nil {
			return err
		}
		if err := f(s); err != nil {
			return err
		}
		changes, err := s.changes(ctx, of)
		if err != nil || len(changes) == 0 {
			return err
		}
		// The guard comes first, so that its conflict is told.
		err = m.save(ctx, of, s.handle, append([]turnstone.RecordChange{{Key: changedKey, Expect: s.changed}}, changes...))
		if errors.Is(err, turnstone.ErrOutcomeUnknown) || !errors.Is(err, turnstone.ErrRecordConflict) && !adapter.Gone(err) {
			return err
		}
	}
}

// save changes records of a user's session, which it makes if h is nil.
func (m *Memory) save(ctx context.Context, of memory.UserKey, h turnstone.Persistence, changes []turnstone.RecordChange) (err error) {
	if h == nil {
		// Reading memories changes nothing in this session: without KeepAll a prune could take it for inactive.
		h, _, err = m.store.Create(ctx, turnstone.Request{ID: adapter.Join(memoryRoot, of.AppName, of.UserID), Metadata: head.Metadata{
			Group: adapter.Join(memoryRoot, of.AppName), Retention: head.KeepAll,
		}})
		if err != nil {
			return err
		}
	}
	_, err = h.ChangeRecords(ctx, changes...)
	return err
}

// AddMemory implements memory.Service. A memory that is there already is added anew.
func (m *Memory) AddMemory(ctx context.Context, of memory.UserKey, text string, topics []string, o ...memory.AddOption) error {
	if err := of.CheckUserKey(); err != nil {
		return err
	}
	return m.change(ctx, of, func(s *memories) error {
		if n := len(s.stored); n >= m.limit {
			return &turnstone.LimitError{Limit: "memories", Where: fmt.Sprintf("user %q", of.UserID), Have: int64(n) + 1, Max: int64(m.limit)}
		}
		return s.kit.AddMemory(ctx, of, text, topics, o...)
	})
}

// UpdateMemory implements memory.Service.
func (m *Memory) UpdateMemory(ctx context.Context, key memory.Key, text string, topics []string, o ...memory.UpdateOption) error {
	if err := key.CheckMemoryKey(); err != nil {
		return err
	}
	wanted := memory.ResolveUpdateResult(o)
	var got memory.UpdateResult // of the call that is stored
	err := m.change(ctx, memory.UserKey{AppName: key.AppName, UserID: key.UserID}, func(s *memories) error {
		return s.kit.UpdateMemory(ctx, key, text, topics, append(slices.Clone(o), memory.WithUpdateResult(&got))...)
	})
	if err == nil && wanted != nil {
		*wanted = got
	}
	return err
}

// DeleteMemory implements memory.Service.
func (m *Memory) DeleteMemory(ctx context.Context, key memory.Key) error {
	if err := key.CheckMemoryKey(); err != nil {
		return err
	}
	return m.change(ctx, memory.UserKey{AppName: key.AppName, UserID: key.UserID}, func(s *memories) error { return s.kit.DeleteMemory(ctx, key) })
}

// ClearMemories implements memory.Service.
func (m *Memory) ClearMemories(ctx context.Context, of memory.UserKey) error {
	if err := of.CheckUserKey(); err != nil {
		return err
	}
	err := m.store.Delete(ctx, adapter.Join(memoryRoot, of.AppName, of.UserID), turnstone.KeepChildren)
	if adapter.Gone(err) && !errors.Is(err, turnstone.ErrOutcomeUnknown) {
		return nil
	}
	return err
}

// ReadMemories implements memory.Service: those that were updated last come first.
func (m *Memory) ReadMemories(ctx context.Context, of memory.UserKey, limit int) ([]*memory.Entry, error) {
	if err := of.CheckUserKey(); err != nil {
		return nil, err
	}
	s, err := m.read(ctx, of)
	if err != nil {
		return nil, err
	}
	return s.kit.ReadMemories(ctx, of, limit)
}

// SearchMemories implements memory.Service.
func (m *Memory) SearchMemories(ctx context.Context, of memory.UserKey, query string, o ...memory.SearchOption) ([]*memory.Entry, error) {
	if err := of.CheckUserKey(); err != nil {
		return nil, err
	}
	s, err := m.read(ctx, of)
	if err != nil {
		return nil, err
	}
	return s.kit.SearchMemories(ctx, of, query, o...)
}

// Tools implements memory.Service.
func (m *Memory) Tools() []tool.Tool { return slices.Clone(m.tools) }

// Close waits for the memories that EnqueueAutoMemoryJob was asked for before. Later calls of it extract theirs themselves, and
// nothing waits for these. The store stays open.
func (m *Memory) Close() error {
	m.jobs.close()
	return nil
}
