// Package genkit keeps the sessions of agents of Genkit in a store of Turnstone: a Store is the session store of an agent, whose snapshots
// other processes see and watch. It works on any turnstone.Factory: a store in the process, or a client of a server.
//
// A session of Genkit is a session of the store, genkit/ID in the group genkit. Its messages are nodes, and the rest of its state is a checkpoint
// part, so a snapshot stores what is new in it: a snapshot is a record of the session, and names the revision that has its state.
package genkit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/ai/exp"
	"github.com/firebase/genkit/go/core/status"
	"github.com/google/uuid"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/transcript"
)

const (
	group = "genkit"
	// statePart is the checkpoint part with the state but for its messages.
	statePart = "state"
	// snapshotPrefix and the id of a snapshot are the key of its record. No two sessions have one of the same id.
	snapshotPrefix = "genkit/"
	// createdPrefix is what keys of records begin with that list the snapshots of a session, the one that was created last first.
	createdPrefix = ".genkit-created/"
	// Labels of a commit: the snapshot that it changed, and the snapshot's status.
	snapshotLabel, statusLabel = "snapshot", "status"
)

// A Store is an exp.SessionStore and an exp.SnapshotSubscriber. It is safe for concurrent use.
//
// The id of a snapshot has at most 500 bytes, that of a session 505. A message, and the rest of a state, have at most turnstone.MaxPayload bytes; a snapshot without its
// state has at most turnstone.MaxRecord.
type Store[State any] struct{ store turnstone.Factory }

var (
	_ exp.SessionStore[any]  = (*Store[any])(nil)
	_ exp.SnapshotSubscriber = (*Store[any])(nil)
)

// NewStore returns a session store on a store of Turnstone.
func NewStore[State any](store turnstone.Factory) *Store[State] { return &Store[State]{store} }

// row is the value of a snapshot's record.
type row[State any] struct {
	Snapshot exp.SessionSnapshot[State] `json:"snapshot"`           // without its state
	Revision head.Revision              `json:"revision,omitempty"` // of the session, which has the state; 0 if there is none
}

// stored is a snapshot as the store has it. The zero value is one that it does not have.
type stored[State any] struct {
	session turnstone.Persistence
	record  turnstone.Record
	row     row[State]
}

// find returns the snapshot of an id.
func (s *Store[State]) find(ctx context.Context, id string) (out stored[State], err error) {
	q := turnstone.RecordQuery{Prefix: snapshotPrefix + id, Limit: 1} // The key itself is before those that it is the beginning of.
	for {
		page, err := s.store.Records(ctx, q)
		if err != nil {
			return out, err
		}
		for _, r := range page.Records {
			if r.Key != q.Prefix {
				return out, nil
			}
			out.record = r
			if err := json.Unmarshal(r.Value, &out.row); err != nil {
				return out, fmt.Errorf("genkit: session %q: record %q is no snapshot: %w", r.Session, r.Key, err)
			}
			out.session, err = s.store.Session(ctx, r.Session)
			if gone(err) {
				return stored[State]{}, nil
			}
			return out, err
		}
		if q.After = page.Next; q.After == "" {
			return out, nil
		}
	}
}

func sessionID(id string) string { return group + "/" + id }

// gone reports whether an error says that there is no such session.
func gone(err error) bool {
	return errors.Is(err, turnstone.ErrSessionNotFound) || errors.Is(err, turnstone.ErrSessionDeleted)
}

// GetSnapshot returns the snapshot of an id, or nil.
func (s *Store[State]) GetSnapshot(ctx context.Context, id string) (*exp.SessionSnapshot[State], error) {
	of, err := s.find(ctx, id)
	if err != nil || of.session == nil {
		return nil, err
	}
	return of.snapshot(ctx)
}

// snapshot returns the snapshot with its state, or nil if its session was deleted meanwhile.
func (of *stored[State]) snapshot(ctx context.Context) (*exp.SessionSnapshot[State], error) {
	out := of.row.Snapshot
	if of.row.Revision == 0 {
		return &out, nil
	}
	st, err := of.session.Load(ctx, turnstone.Scope{At: of.row.Revision, Parts: []string{statePart}})
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out.State = new(exp.SessionState[State])
	if err := json.Unmarshal(st.Contents[statePart], out.State); err != nil {
		return nil, fmt.Errorf("genkit: session %q: part %q is no state: %w", of.session.ID(), statePart, err)
	}
	for _, n := range st.Nodes {
		m := new(ai.Message)
		if err := json.Unmarshal(n.Payload, m); err != nil {
			return nil, fmt.Errorf("genkit: session %q: node %s is no message: %w", of.session.ID(), n.ID, err)
		}
		out.State.Messages = append(out.State.Messages, m)
	}
	return &out, nil
}

// GetLatestSnapshot returns the snapshot of a session that was created last, or nil. Of those that were created at the same time it is the one
// whose id is first.
func (s *Store[State]) GetLatestSnapshot(ctx context.Context, session string) (*exp.SessionSnapshot[State], error) {
	if session == "" {
		return nil, errors.New("genkit: the session ID is empty")
	}
	h, err := s.store.Session(ctx, sessionID(session))
	if err == nil {
		var page turnstone.RecordPage
		if page, err = h.Records(ctx, turnstone.RecordQuery{Prefix: createdPrefix, Limit: 1}); err == nil && len(page.Records) > 0 {
			return s.GetSnapshot(ctx, string(page.Records[0].Value))
		}
	}
	if gone(err) {
		err = nil
	}
	return nil, err
}

// createdKey returns the key of the record that lists a snapshot.
func createdKey[State any](of *exp.SessionSnapshot[State]) string {
	at := of.CreatedAt
	return fmt.Sprintf("%s%016x%08x/%s", createdPrefix, ^(uint64(at.Unix()) ^ 1<<63), ^uint32(at.Nanosecond()), of.SnapshotID)
}

// SaveSnapshot stores the snapshot that fn returns in place of the one of that id, in one commit: all of it, or nothing. If somebody else saves
// the same snapshot, or one of the same session, meanwhile, it calls fn again.
//
// An error that matches turnstone.ErrOutcomeUnknown leaves open whether the snapshot was stored. Saving it again with the same id is safe.
func (s *Store[State]) SaveSnapshot(ctx context.Context, id string, fn func(*exp.SessionSnapshot[State]) (*exp.SessionSnapshot[State], error)) (*exp.SessionSnapshot[State], error) {
	if id == "" {
		id = uuid.NewString()
	}
	for {
		next, err := s.save(ctx, id, fn)
		switch {
		case ctx.Err() != nil, errors.Is(err, turnstone.ErrOutcomeUnknown), errors.Is(err, turnstone.ErrRejected):
		case errors.Is(err, turnstone.ErrConflict), errors.Is(err, turnstone.ErrRecordConflict), errors.Is(err, turnstone.ErrSessionDeleted):
			continue
		}
		return next, err
	}
}

// save is SaveSnapshot, once.
func (s *Store[State]) save(ctx context.Context, id string, fn func(*exp.SessionSnapshot[State]) (*exp.SessionSnapshot[State], error)) (*exp.SessionSnapshot[State], error) {
	old, err := s.find(ctx, id)
	if err != nil {
		return nil, err
	}
	var existing *exp.SessionSnapshot[State]
	var before []byte
	var was exp.SnapshotStatus
	if old.session != nil {
		if existing, err = old.snapshot(ctx); err != nil {
			return nil, err
		}
	}
	if existing != nil { // fn may change what it is given.
		if before, err = stateJSON(existing.State); err != nil {
			return nil, err
		}
		was = existing.Status
	}
	next, err := fn(existing)
	if err != nil || next == nil {
		return nil, err
	}
	next.SnapshotID = id
	next.SessionID = cmp.Or(old.row.Snapshot.SessionID, next.SessionID)
	next.Status = cmp.Or(next.Status, exp.SnapshotStatusCompleted)
	if next.SessionID == "" {
		return nil, status.Errorf(exp.ErrSessionIDRequired, "genkit: a snapshot needs a sessionId")
	}
	h := old.session
	if h == nil {
		if h, _, err = s.store.Create(ctx, turnstone.Request{ID: sessionID(next.SessionID), Metadata: turnstone.Metadata{Group: group}}); err != nil {
			return nil, err
		}
	}
	r := row[State]{Snapshot: *next, Revision: old.row.Revision}
	r.Snapshot.State = nil
	c := turnstone.Commit{Expected: turnstone.AnyRevision, Labels: map[string]string{snapshotLabel: id, statusLabel: string(next.Status)}}
	same := false
	if before != nil && next.State != nil {
		after, err := stateJSON(next.State)
		if err != nil {
			return nil, err
		}
		same = bytes.Equal(before, after)
	}
	switch {
	case next.State == nil:
		r.Revision = 0
	case !same:
		if err := build(ctx, s.store, h, next.State, &c); err != nil {
			return nil, err
		}
		r.Revision = c.Expected + 1
	}
	if c.Records, err = r.records(&old); err != nil {
		return nil, err
	}
	if existing != nil && r.Revision == old.row.Revision && was == next.Status {
		_, err = h.ChangeRecords(ctx, c.Records...) // A heartbeat, for example: those who watch are not told.
	} else {
		_, err = h.Commit(ctx, c)
	}
	if err != nil {
		return nil, err
	}
	return next, nil
}

// stateJSON returns a state as JSON, or nil if there is none.
func stateJSON[State any](state *exp.SessionState[State]) ([]byte, error) {
	if state == nil {
		return nil, nil
	}
	b, err := json.Marshal(state)
	if err != nil {
		return nil, fmt.Errorf("genkit: the state: %w", err)
	}
	return b, nil
}

// records returns the changes of records that put r in the place of old.
func (r *row[State]) records(old *stored[State]) ([]turnstone.RecordChange, error) {
	value, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("genkit: the snapshot: %w", err)
	}
	id := r.Snapshot.SnapshotID
	change := turnstone.RecordChange{Key: snapshotPrefix + id, Value: value, Expect: cmp.Or(old.record.Version, turnstone.NoRecord)}
	listed := turnstone.RecordChange{Key: createdKey(&r.Snapshot), Value: []byte(id)}
	if old.session == nil {
		return []turnstone.RecordChange{change, listed}, nil
	}
	if before := createdKey(&old.row.Snapshot); before != listed.Key {
		return []turnstone.RecordChange{change, listed, {Key: before, Action: turnstone.DeleteRecord}}, nil
	}
	return []turnstone.RecordChange{change}, nil
}

// build makes c a commit that gives a session a state: it adds the messages that are new, behind those that the session's head has as well.
func build[State any](ctx context.Context, store turnstone.Factory, h turnstone.Persistence, state *exp.SessionState[State], c *turnstone.Commit) error {
	rest := *state
	rest.Messages = nil
	part, err := json.Marshal(&rest)
	if err != nil {
		return fmt.Errorf("genkit: the state: %w", err)
	}
	messages := make([]turnstone.NewNode, len(state.Messages))
	for i, m := range state.Messages {
		payload, err := json.Marshal(m)
		if err != nil {
			return fmt.Errorf("genkit: message %d: %w", i, err)
		}
		messages[i] = turnstone.NewNode{Kind: cmp.Or(string(m.Role), "message"), Payload: payload}
	}
	for stored := false; ; stored = true {
		st, err := h.Load(ctx, turnstone.Scope{})
		if err != nil {
			return err
		}
		same, leaf := 0, graph.ID{}
		for same < min(len(messages), len(st.Nodes)) && messages[same].Kind == st.Nodes[same].Kind && bytes.Equal(messages[same].Payload, st.Nodes[same].Payload) {
			leaf = st.Nodes[same].ID
			same++
		}
		c.Expected, c.Checkpoint, c.Nodes = st.Revision, map[string][]byte{statePart: part}, messages[same:]
		parent := turnstone.RefNone()
		if same > 0 {
			parent = turnstone.RefTo(leaf)
		}
		c.Leaf = parent
		if len(c.Nodes) > 0 {
			c.Nodes[0].Parent, c.Leaf = parent, turnstone.RefNew(len(c.Nodes)-1)
		}
		if err := c.Check(); err == nil || stored || !errors.Is(err, turnstone.ErrLimit) {
			return err
		}
		// More than one commit takes: the messages come before the snapshot, in several.
		s := transcript.Snapshot{Base: st.Revision}
		for _, m := range messages {
			s.Messages = append(s.Messages, transcript.Message{Kind: m.Kind, Payload: m.Payload})
		}
		if _, err := transcript.New(store).Save(ctx, h.ID(), s); err != nil {
			return err
		}
	}
}

// OnSnapshotStatusChange sends the status of a snapshot, and each one that it has later, whichever process saves it: at once if the snapshot is saved through the same
// store or server, and otherwise within turnstone.Options.PollEvery. A slow receiver gets the last status. The channel is closed when ctx ends, and if the
// store fails.
func (s *Store[State]) OnSnapshotStatusChange(ctx context.Context, id string) <-chan exp.SnapshotStatus {
	out := make(chan exp.SnapshotStatus, 1)
	of, err := s.find(ctx, id)
	var page turnstone.RecordPage // the record, and the revision that it is of
	if err == nil && of.session != nil {
		page, err = of.session.Records(ctx, turnstone.RecordQuery{Prefix: snapshotPrefix + id, Limit: 1})
	}
	if err == nil && len(page.Records) > 0 {
		err = json.Unmarshal(page.Records[0].Value, &of.row)
	}
	if err != nil || len(page.Records) == 0 {
		close(out)
		return out
	}
	last := of.row.Snapshot.Status
	out <- last
	go func() {
		defer close(out)
		for e, err := range of.session.Watch(ctx, page.Revision) {
			if err != nil {
				return
			}
			next := exp.SnapshotStatus(e.Labels[statusLabel])
			if e.Labels[snapshotLabel] != id || next == last {
				continue
			}
			last = next
			select { // in place of one that was not received
			case <-out:
			default:
			}
			out <- last
		}
	}()
	return out
}
