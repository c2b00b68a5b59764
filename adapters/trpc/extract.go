package trpc

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"

	"trpc.group/trpc-go/trpc-agent-go/log"
	"trpc.group/trpc-go/trpc-agent-go/memory"
	"trpc.group/trpc-go/trpc-agent-go/session"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
)

// EnqueueAutoMemoryJob makes the extractor of the options find memories in a session later. Without an extractor it does
// nothing. Jobs of several sessions may run at once, and those of one session run one after the other. A job leaves alone what
// others change meanwhile. It logs and does not store the memories that are above the limit. If too many jobs wait, or after
// Close, the call does the job itself: once the extractor has begun, the call lasts until the memories are stored, even if ctx
// ends. An error of a later job goes to the log of trpc-agent-go, and the next job of the session reads the same events again.
func (m *Memory) EnqueueAutoMemoryJob(ctx context.Context, of *session.Session) error {
	if of == nil {
		return nil
	}
	key := memory.UserKey{AppName: of.AppName, UserID: of.UserID}
	if key.CheckUserKey() != nil {
		return nil // The kit does nothing then.
	}
	return m.jobs.later(ctx, of, "memories", func(ctx context.Context) error { return m.extract(ctx, key, of) })
}

// extract stores what the extractor finds in a session. The kit says how long that may take.
func (m *Memory) extract(ctx context.Context, key memory.UserKey, of *session.Session) error {
	worker := workerOf(of)
	err := m.extractWith(ctx, key, of, worker, worker+1)
	if errors.Is(err, errAtLimit) { // It takes a kit that is made for it, while no other extraction works.
		err = m.extractWith(ctx, key, of, 0, workers)
	}
	return err
}

// extractWith is extract. It waits for the kits of the workers from up to to, as long as ctx lasts, and keeps them meanwhile.
func (m *Memory) extractWith(ctx context.Context, key memory.UserKey, of *session.Session, from, to int) error {
	for i := from; i < to; i++ {
		select {
		case m.extracting[i].busy <- struct{}{}:
			defer func() { <-m.extracting[i].busy }()
		case <-ctx.Done(): // of a request that does the job itself
			return ctx.Err()
		}
	}
	reading, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	s, err := m.stored(reading, key)
	if err != nil {
		return err
	}
	kit := m.extracting[workerOf(of)].kit
	if len(s.stored) > m.limit {
		if to-from < workers {
			return errAtLimit
		}
		kit = m.kit(len(s.stored))
	}
	request := ctx
	ctx = context.WithoutCancel(ctx) // The kit goes on with the model whatever becomes of the request.
	defer func() { _ = kit.ClearMemories(ctx, key) }()
	if err := s.load(reading, key, kit); err != nil {
		return err
	}
	if request.Err() != nil {
		return request.Err()
	}
	before, was := of.GetState(memory.SessionStateKeyAutoMemoryLastExtractAt)
	if err = s.kit.EnqueueAutoMemoryJob(ctx, of); err != nil {
		return err
	}
	changes, err := s.changes(ctx, key)
	if err == nil && len(changes) > 0 {
		storing, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		err = m.saveAll(storing, key, s.stored, changes)
	}
	if err != nil { // The events are read again.
		if was {
			of.SetState(memory.SessionStateKeyAutoMemoryLastExtractAt, before)
		} else {
			of.DeleteState(memory.SessionStateKeyAutoMemoryLastExtractAt)
		}
	}
	return err
}

// saveAll makes changes of memories that were stored as they were. It leaves those that others have changed meanwhile. If
// others have left no room for all that is new, it stores what there is room for, and deletes nothing.
func (m *Memory) saveAll(ctx context.Context, of memory.UserKey, were map[string][]byte, changes []turnstone.RecordChange) error {
	for some := range slices.Chunk(changes, turnstone.MaxRecords-1) {
		for {
			s, err := m.read(ctx, of)
			if err != nil {
				return err
			}
			kept := m.fitting(ctx, of, s, were, some)
			if len(kept) == 0 {
				break
			}
			err = m.save(ctx, of, s.handle, append([]turnstone.RecordChange{{Key: changedKey, Expect: s.changed}}, kept...))
			if err == nil {
				break
			}
			if errors.Is(err, turnstone.ErrOutcomeUnknown) || !errors.Is(err, turnstone.ErrRecordConflict) && !adapter.Gone(err) {
				return err
			}
		}
	}
	return nil
}

// fitting returns those of some changes that saveAll makes of what is stored.
func (m *Memory) fitting(ctx context.Context, of memory.UserKey, s *memories, were map[string][]byte, changes []turnstone.RecordChange) []turnstone.RecordChange {
	idOf := func(c turnstone.RecordChange) string { return strings.TrimPrefix(c.Key, memoryPrefix) }
	kept := slices.DeleteFunc(slices.Clone(changes), func(c turnstone.RecordChange) bool {
		return !bytes.Equal(s.stored[idOf(c)], were[idOf(c)])
	})
	room := m.limit - len(s.stored)
	grows := 0
	for _, c := range kept {
		switch _, there := s.stored[idOf(c)]; {
		case c.Action == turnstone.DeleteRecord:
			grows--
		case !there:
			grows++
		}
	}
	if grows <= max(room, 0) {
		return kept
	}
	log.WarnfContext(ctx, "turnstone: user %q has %d memories: not all that is found beside them is stored", of.UserID, len(s.stored))
	return slices.DeleteFunc(kept, func(c turnstone.RecordChange) bool {
		if c.Action == turnstone.DeleteRecord { // What it gives way to may not be stored.
			return true
		}
		if _, there := s.stored[idOf(c)]; there {
			return false
		}
		room--
		return room < 0
	})
}
