// Package genkit keeps the sessions of agents of Genkit in a store of Turnstone: a Store is the session store of an
// agent, whose snapshots other processes see and watch. It works on any turnstone.Factory: a store in the process, or
// a client of a server.
//
// A session of Genkit is a session of the store, genkit/ID in the group genkit, or genkit-of/PREFIX/ID. Its messages are
// nodes, and the rest of its state is a checkpoint part, so a snapshot stores what is new in it: a snapshot is a record of
// the session, and names the revision that has its state.
package genkit

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/ai/exp"
	"github.com/firebase/genkit/go/core/status"
	"github.com/google/uuid"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/transcript"
)

const (
	// statePart is the checkpoint part with the state without its messages.
	statePart = "state"
	// createdPrefix begins the keys of the records that list the snapshots of a session. The snapshot that was created
	// last comes first.
	createdPrefix = ".genkit-created/"
	// kept is the name that keeps the revision of the state of the snapshot that was created last. No prune removes it.
	kept = "latest"
	// Labels of a commit: the snapshot that it changed, and the snapshot's status.
	snapshotLabel, statusLabel = "snapshot", "status"
)

// A Store is an exp.SessionStore and an exp.SnapshotSubscriber. It is safe for concurrent use.
//
// The id of a snapshot, and that of a session, have at most 505 bytes. A message, and the rest of a state, have at
// most turnstone.MaxPayload bytes; a snapshot without its state has at most turnstone.MaxRecord. If two
// agents may have sessions of equal ids, give each a prefix, or a namespace of turnstone.Options.
type Store[State any] struct {
	store turnstone.Factory
	o     Options
}

var (
	_ exp.SessionStore[any]  = (*Store[any])(nil)
	_ exp.SnapshotSubscriber = (*Store[any])(nil)
)

// NewStore returns a session store on a store of Turnstone.
func NewStore[State any](store turnstone.Factory, o Options) *Store[State] {
	return &Store[State]{store, o}
}

// row is the value of a snapshot's record.
type row[State any] struct {
	Snapshot exp.SessionSnapshot[State] `json:"snapshot"`           // without its state
	Revision head.Revision              `json:"revision,omitempty"` // of the session, which has the state; 0 if there is none
	Brought  bool                       `json:"brought,omitempty"`  // by Bring, and nobody has saved it since
}

// stored is a snapshot as the store has it. The zero value is one that it does not have.
type stored[State any] struct {
	root    string
	session turnstone.Persistence
	record  turnstone.Record
	row     row[State]
	pruned  bool // A prune has taken its state.
}

// find returns the snapshot of an id.
func (s *Store[State]) find(ctx context.Context, id string) (stored[State], error) {
	root, err := s.root(ctx)
	if err != nil {
		return stored[State]{}, err
	}
	q := turnstone.RecordQuery{Prefix: root + "/" + id, Limit: 1} // A key sorts before its extensions.
	for {
		page, err := s.store.Records(ctx, q)
		if err != nil {
			return stored[State]{}, err
		}
		if len(page.Records) > 0 {
			return s.storedAs(ctx, page.Records[0], root, q.Prefix)
		}
		if q.After = page.Next; q.After == "" {
			return stored[State]{root: root}, nil
		}
	}
}

// storedAs returns the snapshot that a record holds. It returns none if the record has another key, or if the record's
// session is gone.
func (s *Store[State]) storedAs(ctx context.Context, r turnstone.Record, root, key string) (out stored[State], err error) {
	out.root = root
	if r.Key != key {
		return out, nil
	}
	if out.session, err = s.store.Session(ctx, r.Session); err != nil {
		return stored[State]{root: root}, unless(adapter.Gone, err)
	}
	out.record = r
	return out, out.row.read(r)
}

// read reads the value of a record.
func (r *row[State]) read(from turnstone.Record) error {
	if err := json.Unmarshal(from.Value, r); err != nil {
		return fmt.Errorf("genkit: session %q: record %q is no snapshot: %w", from.Session, from.Key, err)
	}
	return nil
}

// unless returns an error, or nil if it is of that kind.
func unless(kind func(error) bool, err error) error {
	if kind(err) {
		return nil
	}
	return err
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
	if err != nil {
		return nil, unless(adapter.Gone, err)
	}
	out.State = new(exp.SessionState[State])
	if err := json.Unmarshal(st.Contents[statePart], out.State); err != nil {
		return nil, fmt.Errorf("genkit: session %q: part %q is no state: %w", of.session.ID(), statePart, err)
	}
	for _, n := range st.Nodes {
		var m *ai.Message
		if err := json.Unmarshal(n.Payload, &m); err != nil {
			return nil, fmt.Errorf("genkit: session %q: node %s is no message: %w", of.session.ID(), n.ID, err)
		}
		out.State.Messages = append(out.State.Messages, m)
	}
	return &out, nil
}

// GetLatestSnapshot returns the snapshot of a session that was created last, or nil. Of those that were created at
// the same time it is always the same one.
func (s *Store[State]) GetLatestSnapshot(ctx context.Context, session string) (*exp.SessionSnapshot[State], error) {
	if session == "" {
		return nil, errors.New("genkit: the session ID is empty")
	}
	root, err := s.root(ctx)
	if err != nil {
		return nil, err
	}
	h, err := s.store.Session(ctx, root+"/"+session)
	if err != nil {
		return nil, unless(adapter.Gone, err)
	}
	for last := ""; ; {
		listed, err := h.Records(ctx, turnstone.RecordQuery{Prefix: createdPrefix, Limit: 1})
		if err != nil || len(listed.Records) == 0 {
			return nil, unless(adapter.Gone, err)
		}
		id := string(listed.Records[0].Value)
		of := stored[State]{session: h}
		var snap *exp.SessionSnapshot[State]
		if of.record, err = h.Record(ctx, root+"/"+id); err == nil {
			err = of.row.read(of.record)
		}
		if err == nil {
			snap, err = of.snapshot(ctx)
		}
		if missing(err) && id != last {
			last = id // Somebody has saved a newer one meanwhile, and the chain had too many, or there was a prune.
			continue
		}
		return snap, unless(adapter.Gone, err)
	}
}

// isLatest reports whether a snapshot, when it is saved, is the one that was created last in its session of those that have a
// state. It leaves out the snapshots that changes of records delete.
func (s *Store[State]) isLatest(ctx context.Context, root string, of *exp.SessionSnapshot[State], changes []turnstone.RecordChange) (bool, error) {
	h, err := s.store.Session(ctx, root+"/"+of.SessionID)
	if err != nil {
		return true, unless(adapter.Gone, err)
	}
	for q := (turnstone.RecordQuery{Prefix: createdPrefix, Limit: 2}); ; q.Limit = turnstone.MaxPage {
		listed, err := h.Records(ctx, q)
		if err != nil {
			return true, unless(adapter.Gone, err)
		}
		for _, created := range listed.Records {
			if created.Key >= createdKey(of) {
				return true, nil
			}
			id := string(created.Value)
			isGone := func(c turnstone.RecordChange) bool { return c.Key == root+"/"+id && c.Action == turnstone.DeleteRecord }
			if id == of.SnapshotID || slices.ContainsFunc(changes, isGone) {
				continue
			}
			var other row[State]
			r, err := h.Record(ctx, root+"/"+id)
			if err == nil {
				err = other.read(r)
			}
			if missing(err) {
				continue
			}
			if err != nil || other.Revision != 0 {
				return false, err
			}
		}
		if q.After = listed.Next; q.After == "" {
			return true, nil
		}
	}
}

// createdKey returns the key of the record that lists a snapshot.
func createdKey[State any](of *exp.SessionSnapshot[State]) string {
	at, id := of.CreatedAt, sha256.Sum256([]byte(of.SnapshotID))
	return fmt.Sprintf("%s%016x%08x/%x", createdPrefix, ^(uint64(at.Unix()) ^ 1<<63), ^uint32(at.Nanosecond()), id[:16])
}

// SaveSnapshot stores the snapshot that fn returns in place of the one of that id. If somebody else saves the same
// snapshot, or one of the same session, meanwhile, it calls fn again. The snapshot is there whole or not at all.
// Messages of a state that are too many for one commit are stored before it, in commits that no snapshot refers to
// yet.
//
// After an error that matches turnstone.ErrOutcomeUnknown the snapshot may be there.
func (s *Store[State]) SaveSnapshot(ctx context.Context, id string, fn func(*exp.SessionSnapshot[State]) (*exp.SessionSnapshot[State], error)) (*exp.SessionSnapshot[State], error) {
	return s.change(ctx, id, false, func(existing *exp.SessionSnapshot[State], _ *stored[State]) (*exp.SessionSnapshot[State], error) {
		return fn(existing)
	})
}

// change is SaveSnapshot. It gives fn also the stored snapshot. bring says that Bring calls it.
func (s *Store[State]) change(ctx context.Context, id string, bring bool, fn func(existing *exp.SessionSnapshot[State], of *stored[State]) (*exp.SessionSnapshot[State], error)) (*exp.SessionSnapshot[State], error) {
	if id == "" {
		id = uuid.NewString()
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		old, existing, err := s.existing(ctx, id)
		if err != nil {
			return nil, err
		}
		was, err := saidOf(existing) // fn may change what it is given.
		if err != nil {
			return nil, err
		}
		next, err := fn(existing, &old)
		if err != nil || next == nil {
			return nil, err
		}
		err = s.save(ctx, id, &old, was, next, bring)
		switch {
		case err == nil:
			return next, nil
		case errors.Is(err, turnstone.ErrOutcomeUnknown),
			!errors.Is(err, turnstone.ErrConflict) && !errors.Is(err, turnstone.ErrRecordConflict) && !errors.Is(err, turnstone.ErrSessionDeleted):
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(rand.N(wait)):
		}
	}
}

// existing returns the snapshot of an id, as it is stored and as fn is given it. One whose state was pruned has none.
func (s *Store[State]) existing(ctx context.Context, id string) (stored[State], *exp.SessionSnapshot[State], error) {
	old, err := s.find(ctx, id)
	if err != nil || old.session == nil {
		return old, nil, err
	}
	snap, err := old.snapshot(ctx)
	if errors.Is(err, turnstone.ErrRevisionPruned) {
		old.row.Revision, old.pruned = 0, true
		snap, err = old.snapshot(ctx)
	}
	if err == nil && snap == nil {
		old = stored[State]{root: old.root}
	}
	return old, snap, err
}

// said is what a save has to know of a snapshot before fn has changed it.
type said struct {
	status exp.SnapshotStatus
	state  []byte // as JSON; nil if there is none
}

func saidOf[State any](of *exp.SessionSnapshot[State]) (out said, err error) {
	if of == nil {
		return said{}, nil
	}
	out.status = of.Status
	out.state, err = stateJSON(of.State)
	return out, err
}

// save stores next in the place of old.
func (s *Store[State]) save(ctx context.Context, id string, old *stored[State], was said, next *exp.SessionSnapshot[State], bring bool) (err error) {
	next.SnapshotID = id
	next.SessionID = cmp.Or(old.row.Snapshot.SessionID, next.SessionID)
	next.Status = cmp.Or(next.Status, exp.SnapshotStatusCompleted)
	if next.SessionID == "" {
		return status.Errorf(exp.ErrSessionIDRequired, "genkit: a snapshot needs a sessionId")
	}
	r := row[State]{Snapshot: *next, Revision: old.row.Revision, Brought: bring}
	r.Snapshot.State = nil
	c := turnstone.SessionCommit{
		Session: old.session,
		// The turn id makes a client repeat the commit when the answer is lost.
		Commit: turnstone.Commit{Expected: turnstone.AnyRevision, Turn: uuid.NewString(), Labels: map[string]string{snapshotLabel: id, statusLabel: string(next.Status)}},
	}
	if c.Session == nil {
		c.Create = &turnstone.Request{ID: old.root + "/" + next.SessionID, Metadata: head.Metadata{Group: old.root}}
	}
	// These checks refuse a bad snapshot before any of its messages is stored.
	if c.Records, err = r.records(old); err == nil {
		err = c.Check()
	}
	if err != nil {
		return err
	}
	same := false
	if next.State == nil {
		r.Revision = 0
	} else if was.state != nil {
		now, err := stateJSON(next.State)
		if err != nil {
			return err
		}
		same = bytes.Equal(was.state, now) && createdKey(next) == createdKey(&old.row.Snapshot) // Else another one may be the latest.
	}
	past, err := s.past(ctx, old, next)
	if err != nil {
		return err
	}
	if next.State != nil && !same {
		if err := s.build(ctx, old.root, next, &c); err != nil {
			return err
		}
		r.Revision = c.Expected + 1
		latest, err := s.isLatest(ctx, old.root, next, past)
		if err != nil {
			return err
		}
		if latest { // No prune takes its state.
			c.Keep = kept
		}
	}
	if c.Records, err = r.records(old); err != nil {
		return err
	}
	c.Records = append(c.Records, past...)
	if old.session != nil && r.Revision == old.row.Revision && was.status == next.Status {
		_, err = old.session.ChangeRecords(ctx, c.Records...) // A heartbeat, for example: those who watch are not told.
	} else {
		_, err = s.store.CommitAll(ctx, c)
	}
	return err
}

// stateJSON returns a state as JSON, or nil if there is none.
func stateJSON[State any](state *exp.SessionState[State]) ([]byte, error) {
	if state == nil {
		return nil, nil
	}
	b, err := adapter.JSON(state)
	if err != nil {
		return nil, fmt.Errorf("genkit: the state: %w", err)
	}
	return b, nil
}

// records returns the changes of records that put r in the place of old.
func (r *row[State]) records(old *stored[State]) ([]turnstone.RecordChange, error) {
	value, err := adapter.JSON(r)
	if err != nil {
		return nil, fmt.Errorf("genkit: the snapshot: %w", err)
	}
	id := r.Snapshot.SnapshotID
	changes := []turnstone.RecordChange{{Key: old.root + "/" + id, Value: value, Expect: cmp.Or(old.record.Version, turnstone.NoRecord)}}
	before, listed := "", createdKey(&r.Snapshot)
	if old.session != nil {
		before = createdKey(&old.row.Snapshot)
	}
	if before != listed {
		changes = append(changes, turnstone.RecordChange{Key: listed, Value: []byte(id)})
		if before != "" {
			changes = append(changes, turnstone.RecordChange{Key: before, Action: turnstone.DeleteRecord})
		}
	}
	return changes, nil
}

// build makes c a commit that gives its session the state of a snapshot: it adds the messages that are new, behind
// those that the session's head, or else the snapshot's parent, has as well.
func (s *Store[State]) build(ctx context.Context, root string, of *exp.SessionSnapshot[State], c *turnstone.SessionCommit) error {
	rest := *of.State
	rest.Messages = nil
	part, err := stateJSON(&rest)
	if err != nil {
		return err
	}
	messages := make([]turnstone.NewNode, len(of.State.Messages))
	for i, m := range of.State.Messages {
		payload, err := adapter.JSON(m)
		if err != nil {
			return fmt.Errorf("genkit: message %d: %w", i, err)
		}
		messages[i] = turnstone.NewNode{Kind: "message", Payload: payload}
		if m != nil && m.Role != "" {
			messages[i].Kind = string(m.Role)
		}
	}
	c.Checkpoint = map[string][]byte{statePart: part}
	for stored := false; ; stored = true {
		base, err := s.base(ctx, root, of, c, messages)
		if err != nil {
			return err
		}
		parent := turnstone.RefNone()
		if len(base) > 0 {
			parent = turnstone.RefTo(base[len(base)-1].ID)
		}
		c.Nodes, c.Leaf = slices.Clone(messages[len(base):]), parent
		if len(c.Nodes) > 0 {
			c.Nodes[0].Parent, c.Leaf = parent, turnstone.RefNew(len(c.Nodes)-1)
		}
		if err := c.Check(); err == nil || stored || !errors.Is(err, turnstone.ErrLimit) {
			return err
		}
		// More than one commit takes: the messages come before the snapshot, in several.
		all := transcript.Snapshot{Metadata: head.Metadata{Group: root}}
		for _, m := range messages {
			all.Messages = append(all.Messages, transcript.Message{Kind: m.Kind, Payload: m.Payload})
		}
		if _, err := transcript.New(s.store).Save(ctx, root+"/"+of.SessionID, all); err != nil {
			return err
		}
	}
}

// base returns the nodes that the session has of the messages, from the first one on, and sets the revision that c
// expects.
func (s *Store[State]) base(ctx context.Context, root string, of *exp.SessionSnapshot[State], c *turnstone.SessionCommit, messages []turnstone.NewNode) ([]turnstone.Node, error) {
	c.Expected = 0
	h := c.Session
	if h == nil { // of a new snapshot
		var err error
		if h, err = s.store.Session(ctx, root+"/"+of.SessionID); err != nil {
			return nil, unless(adapter.Gone, err)
		}
	}
	head, err := h.Load(ctx, turnstone.Scope{})
	if err != nil {
		return nil, err
	}
	c.Expected = head.Revision
	same := adapter.Common(head.Nodes, messages)
	if of.ParentID == "" || same > 0 && same == len(head.Nodes) {
		return head.Nodes[:same], nil
	}
	// The session has branched. The parent's state is where this one goes on from.
	r, err := h.Record(ctx, root+"/"+of.ParentID)
	if err != nil {
		return head.Nodes[:same], unless(missing, err)
	}
	var parent row[State]
	if err := parent.read(r); err != nil || parent.Revision == 0 {
		return head.Nodes[:same], err
	}
	st, err := h.Load(ctx, turnstone.Scope{At: parent.Revision})
	if err != nil {
		return head.Nodes[:same], unless(missing, err)
	}
	return longer(head.Nodes[:same], st.Nodes[:adapter.Common(st.Nodes, messages)]), nil
}

// missing reports whether an error says that what was to be read is not there, or not any more.
func missing(err error) bool {
	return adapter.Gone(err) || errors.Is(err, turnstone.ErrRecordNotFound) || errors.Is(err, turnstone.ErrRevisionPruned)
}

func longer(a, b []turnstone.Node) []turnstone.Node {
	if len(b) > len(a) {
		return b
	}
	return a
}

// OnSnapshotStatusChange sends the status of a snapshot, and each one that it has later, whichever process saves it:
// at once if the snapshot is saved through the same store or server, and otherwise within
// turnstone.Options.PollEvery. A slow receiver gets the last status. The channel is closed at once if there is no such
// snapshot, and later when ctx ends or somebody deletes the session. It stays open when Options.MaxChain deletes the
// snapshot. While the store fails, nothing is sent.
func (s *Store[State]) OnSnapshotStatusChange(ctx context.Context, id string) <-chan exp.SnapshotStatus {
	out := make(chan exp.SnapshotStatus, 1)
	go func() {
		defer close(out)
		var last exp.SnapshotStatus
		send := func(next exp.SnapshotStatus) {
			if next == last {
				return
			}
			last = next
			select { // in place of one that was not received
			case <-out:
			default:
			}
			out <- next
		}
		for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
			begun := time.Now()
			if s.watch(ctx, id, send) || ctx.Err() != nil {
				return
			}
			if time.Since(begun) > time.Second {
				wait = time.Millisecond
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait): // The store fails.
			}
		}
	}()
	return out
}

// watch sends the statuses of a snapshot until the store fails, or reports that there is no such snapshot.
func (s *Store[State]) watch(ctx context.Context, id string, send func(exp.SnapshotStatus)) (none bool) {
	of, err := s.find(ctx, id)
	if err != nil || of.session == nil {
		return err == nil
	}
	// The record, and the revision that it is of.
	page, err := of.session.Records(ctx, turnstone.RecordQuery{Prefix: of.root + "/" + id, Limit: 1})
	if err != nil || len(page.Records) == 0 {
		return adapter.Gone(err)
	}
	var r row[State]
	if r.read(page.Records[0]) != nil {
		return false
	}
	send(r.Snapshot.Status)
	for e, err := range of.session.Watch(ctx, page.Revision) {
		if err != nil {
			return adapter.Gone(err)
		}
		if e.Labels[snapshotLabel] == id {
			send(exp.SnapshotStatus(e.Labels[statusLabel]))
		}
	}
	return false
}
