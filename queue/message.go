package queue

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/lease"
)

// A Message is one that was claimed.
type Message struct {
	Session  turnstone.Persistence // the session that has the message
	ID       string
	Value    []byte
	Put      time.Time // when it was put, or its time had come
	Attempts uint64    // how often it was claimed, this time included
	// Joined are the messages that were claimed with this one, in their order: see ClaimJoined. What is done with this
	// one is done with them. One that is dealt with by itself has to be taken out.
	Joined []*Message
	// Remember, if the worker sets it, is how long the ids of this message and of those that it has joined are remembered
	// after it was acknowledged, for PutOnce.
	Remember time.Duration

	queue  string
	record turnstone.Record
	claim  *lease.Lease
	now    func() time.Time
}

// Done returns the changes that acknowledge the message, for the call that has its effect: the
// Commit.Records of the message's session, or those of a part of CommitAll for that session. If the claim was
// lost, that call fails with a *turnstone.RecordConflictError, and Err says so.
func (m *Message) Done() []turnstone.RecordChange {
	var changes []turnstone.RecordChange
	for _, of := range m.all() {
		changes = append(changes, of.alone()...)
		if m.Remember > 0 {
			changes = append(changes, remember(m.queue, of.ID, m.now().Add(m.Remember))...)
		}
	}
	return changes
}

// all returns the message, and those that it has joined.
func (m *Message) all() []*Message { return append([]*Message{m}, m.Joined...) }

// alone returns the changes that remove this message and its claim.
func (m *Message) alone() []turnstone.RecordChange {
	return append(m.claim.Remove(), turnstone.RecordChange{Key: m.record.Key, Action: turnstone.DeleteRecord, Expect: m.record.Version})
}

// Err returns err, or an error that matches lease.ErrFenced if err says that a claim was lost.
func (m *Message) Err(err error) error {
	for _, of := range m.all() {
		err = of.claim.Err(err)
	}
	return err
}

// Commit commits the turn that consumed the message to the message's session, and acknowledges it. If the claim was
// lost, nothing is committed, and the error matches lease.ErrFenced. If the turn was committed before, as that of an
// earlier message of this id, the message is acknowledged by itself. If the turn id is that of the message and the turn
// stands with other content, the error matches turnstone.ErrTurnConflict, and the message does not come back; those that
// it has joined do.
func (m *Message) Commit(ctx context.Context, c turnstone.Commit) (turnstone.Result, error) {
	n := len(c.Records)
	c.Records = append(slices.Clone(c.Records), m.Done()...)
	r, err := m.Session.Commit(ctx, c)
	if errors.Is(err, turnstone.ErrTurnConflict) && c.Turn == m.ID {
		return r, errors.Join(err, m.settle(ctx, m.alone())) // Those that it has joined may be in no turn, and are free then.
	}
	if err != nil {
		return r, m.Err(err)
	}
	r.Records = r.Records[:n]
	if r.Replayed { // The turn stands, and changes no records now. If it was of this message, that is gone.
		return r, m.settle(ctx, m.Done())
	}
	m.forget(ctx)
	return r, nil
}

// settle removes messages whose turn stands. They may be gone, or another worker's by now, who settles them then.
func (m *Message) settle(ctx context.Context, changes []turnstone.RecordChange) error {
	_, err := m.Session.ChangeRecords(ctx, changes...)
	if errors.Is(err, turnstone.ErrRecordConflict) {
		return nil
	}
	return err
}

// Ack acknowledges the message without a commit.
func (m *Message) Ack(ctx context.Context) error {
	if _, err := m.Session.ChangeRecords(ctx, m.Done()...); err != nil {
		return m.Err(err)
	}
	m.forget(ctx)
	return nil
}

// Move puts the message into another queue of its session, under the same id, in one step. It is for messages that were
// claimed too often (see Attempts), or that belong elsewhere. If that queue has a message of this id, the error is a
// *turnstone.RecordConflictError, and the message stays claimed.
func (m *Message) Move(ctx context.Context, to string) error {
	var changes []turnstone.RecordChange
	for _, of := range m.all() {
		changes = append(append(changes, of.alone()...), PutAs(to, of.ID, of.Value))
	}
	_, err := m.Session.ChangeRecords(ctx, changes...)
	return m.Err(err)
}

// Return gives the message back: anybody can claim it at once.
func (m *Message) Return(ctx context.Context) error { return m.claim.Release(ctx) }

// Lease returns the lease under which the message is claimed, to renew it or keep it.
func (m *Message) Lease() *lease.Lease { return m.claim }
