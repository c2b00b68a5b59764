// Package queue has queues of messages in the records of sessions (see turnstone.Record): inputs of turns,
// jobs, notices between agents.
//
// A message is put with any commit, or alone. A worker claims one under a lease (package lease), and acknowledges
// it with the commit of the turn that consumed it: in one batch, so a message has exactly one
// effect, whoever crashes when. If the worker's lease ends before, another one claims the message, and the first
// one's commit is refused.
//
// A queue is a name. Each session has its own messages under it; ClaimAny serves those of all sessions.
package queue

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/lease"
)

// ErrEmpty says that no message can be claimed: there is none, or others have claimed all.
var ErrEmpty = errors.New("queue: no message to claim")

// prefix returns what the keys of the messages of a queue begin with. The name is escaped, so that no slash
// in it can be taken for the one at its end.
func prefix(name string) string { return "queue/" + url.PathEscape(name) + "/" }

// Put returns the change that puts a message into a queue of a session: for Commit.Records,
// Session.ChangeRecords or CommitAll. Messages are claimed in the order of the times at which Put was called,
// as far as clocks agree. An empty name is refused by the call that gets the change, as an *turnstone.InvalidError.
func Put(name string, value []byte) turnstone.RecordChange {
	var id [8]byte
	rand.Read(id[:])
	return PutAs(name, fmt.Sprintf("%016x-%s", time.Now().UnixNano(), hex.EncodeToString(id[:])), value)
}

// PutAs returns the change that puts a message under an id that the caller chooses. Messages are claimed in the
// byte order of their ids. Name and id are parts of the key of a record, which has at most turnstone.MaxRecordKey
// bytes. An id that is used as a turn id, too, has at most turnstone.MaxTurnID bytes and should not come back. As
// long as there is a message of that id, putting it again is a *turnstone.RecordConflictError.
func PutAs(name, id string, value []byte) turnstone.RecordChange {
	if name == "" || id == "" {
		return turnstone.RecordChange{Value: value} // It has no key, which is refused.
	}
	return turnstone.RecordChange{Key: prefix(name) + id, Value: value, Expect: turnstone.NoRecord}
}

// A Message is one that was claimed.
type Message struct {
	Session  turnstone.Persistence // that has the message
	ID       string
	Value    []byte
	Put      time.Time // when it was put
	Attempts uint64    // how often it was claimed, this time included

	record turnstone.Record
	claim  *lease.Lease
}

// Claim claims the first message of a session's queue that nobody has claimed. The options are those of
// the lease under which it is claimed. The error matches ErrEmpty if there is none.
func Claim(ctx context.Context, s turnstone.Persistence, name string, o lease.Options) (*Message, error) {
	if err := check(s != nil, name); err != nil {
		return nil, err
	}
	return claim(ctx, name, o, s.Records, func(string) (turnstone.Persistence, error) { return s, nil })
}

// ClaimAny claims a message of the queues that sessions have under a name, the first one of all by its id.
func ClaimAny(ctx context.Context, f turnstone.Factory, name string, o lease.Options) (*Message, error) {
	if err := check(f != nil, name); err != nil {
		return nil, err
	}
	return claim(ctx, name, o, f.Records, func(id string) (turnstone.Persistence, error) { return f.Session(ctx, id) })
}

func check(given bool, name string) error {
	if !given || name == "" {
		return &turnstone.InvalidError{Where: "queue", Reason: "the session or factory is nil, or the name is empty"}
	}
	return nil
}

// claim goes through the messages of a list until it can claim one.
func claim(ctx context.Context, name string, o lease.Options,
	list func(context.Context, turnstone.RecordQuery) (turnstone.RecordPage, error), session func(id string) (turnstone.Persistence, error),
) (*Message, error) {
	for q := (turnstone.RecordQuery{Prefix: prefix(name), Limit: 20}); ; {
		page, err := list(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Records {
			s, err := session(r.Session)
			if err == nil {
				var m *Message
				if m, err = take(ctx, s, r, r.Key[len(q.Prefix):], o); m != nil {
					return m, nil
				}
			}
			if err != nil && !errors.Is(err, lease.ErrHeld) && !errors.Is(err, turnstone.ErrSessionNotFound) && !errors.Is(err, turnstone.ErrSessionDeleted) {
				return nil, err
			}
		}
		if q.After = page.Next; q.After == "" {
			return nil, ErrEmpty
		}
	}
}

// take claims a message, if it still stands. It returns nil if the message is gone.
func take(ctx context.Context, s turnstone.Persistence, r turnstone.Record, id string, o lease.Options) (*Message, error) {
	o.With = append(slices.Clone(o.With), turnstone.RecordChange{Key: r.Key, Action: turnstone.CheckRecord, Expect: r.Version})
	l, err := lease.Acquire(ctx, s, claimKey(r.Key), o)
	var gone *turnstone.RecordConflictError
	if errors.As(err, &gone) && gone.Key == r.Key {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &Message{Session: s, ID: id, Value: r.Value, Put: r.Time, Attempts: l.Token(), record: r, claim: l}, nil
}

// claimKey returns the key of the lease by which a message is claimed. A lease's key is shorter than that of
// a record may be.
func claimKey(message string) string {
	if len(message) > turnstone.MaxRecordKey-2 {
		sum := sha256.Sum256([]byte(message))
		return ".queue/" + hex.EncodeToString(sum[:])
	}
	return "." + message
}

// Done returns the changes that acknowledge the message, for the call that has its effect: the
// Commit.Records of the message's session, or those of a part of CommitAll for that session. If the claim was
// lost, that call fails with a *turnstone.RecordConflictError, and Err says so.
func (m *Message) Done() []turnstone.RecordChange {
	return append(m.claim.Remove(), turnstone.RecordChange{Key: m.record.Key, Action: turnstone.DeleteRecord, Expect: m.record.Version})
}

// Err returns err, or an error that matches lease.ErrFenced if err says that the claim was lost.
func (m *Message) Err(err error) error { return m.claim.Err(err) }

// Commit commits the turn that consumed the message to the message's session, and acknowledges it. If the claim was
// lost, nothing is committed, and the error matches lease.ErrFenced. If the turn was committed before, as that of an
// earlier message of this id, the message is acknowledged by itself.
func (m *Message) Commit(ctx context.Context, c turnstone.Commit) (turnstone.Result, error) {
	n := len(c.Records)
	c.Records = append(slices.Clone(c.Records), m.Done()...)
	r, err := m.Session.Commit(ctx, c)
	if err != nil {
		return r, m.Err(err)
	}
	r.Records = r.Records[:n]
	if r.Replayed { // The turn stands, and changes no records now. If it was of this message, that is gone.
		err = m.Ack(ctx)
		if errors.Is(err, lease.ErrFenced) || errors.Is(err, turnstone.ErrRecordConflict) {
			err = nil
		}
	}
	return r, err
}

// Ack acknowledges the message without a commit.
func (m *Message) Ack(ctx context.Context) error {
	_, err := m.Session.ChangeRecords(ctx, m.Done()...)
	return m.Err(err)
}

// Return gives the message back: anybody can claim it at once.
func (m *Message) Return(ctx context.Context) error { return m.claim.Release(ctx) }

// Lease returns the lease under which the message is claimed, to renew it or keep it.
func (m *Message) Lease() *lease.Lease { return m.claim }
