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
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/lease"
)

var (
	// ErrEmpty says that no message can be claimed: there is none, or others have claimed all.
	ErrEmpty = errors.New("queue: no message to claim")
	// ErrAllClaimed says that there are messages, and that others have claimed all of them. It matches ErrEmpty.
	ErrAllClaimed = fmt.Errorf("%w: others have claimed all", ErrEmpty)
)

// A DeferredError says that all messages are for later, and when the first of them can be claimed. It matches ErrEmpty.
type DeferredError struct{ At time.Time }

func (e *DeferredError) Error() string {
	return fmt.Sprintf("%v before %s", ErrEmpty, e.At.UTC().Format(time.RFC3339Nano))
}

// Is reports whether target is ErrEmpty.
func (e *DeferredError) Is(target error) bool { return target == ErrEmpty }

// Claim claims the first message of a session's queue that nobody has claimed. The options are those of the lease under
// which it is claimed. If all messages are claimed and o.Steal is set, Claim takes the first one from its worker. The
// error matches ErrEmpty if there is no message to claim.
func Claim(ctx context.Context, s turnstone.Persistence, name string, o lease.Options) (*Message, error) {
	if err := check(s != nil, name, o); err != nil {
		return nil, err
	}
	return claim(ctx, name, o, of(s))
}

// of returns one session as a source.
func of(s turnstone.Persistence) source {
	return source{list: s.Records, session: func(string) (turnstone.Persistence, error) { return s, nil }}
}

// ClaimAny claims a message of the queues that sessions have under a name, the first one of all by its id.
func ClaimAny(ctx context.Context, f turnstone.Factory, name string, o lease.Options) (*Message, error) {
	if err := checkAny(f, name, o); err != nil {
		return nil, err
	}
	return claim(ctx, name, o, source{list: f.Records, session: func(id string) (turnstone.Persistence, error) { return f.Session(ctx, id) }})
}

// ClaimID claims the message of an id. The error matches ErrEmpty if there is none, and is a *lease.HeldError if
// somebody else has claimed it. It claims a message that is put for later as well.
func ClaimID(ctx context.Context, s turnstone.Persistence, name, id string, o lease.Options) (*Message, error) {
	if err := check(s != nil && id != "", name, o); err != nil {
		return nil, err
	}
	for {
		m, err := claimNow(ctx, s, name, id, o)
		if m != nil || !errors.Is(err, ErrEmpty) || !isLater(id) {
			return m, err
		}
		r, err := s.Record(ctx, laterKey(name, id))
		if errors.Is(err, turnstone.ErrRecordNotFound) { // Somebody may have fetched it between the two reads.
			return claimNow(ctx, s, name, id, o)
		}
		if err != nil {
			return nil, err
		}
		early := o // One batch claims it and puts it where claimed messages are.
		early.With = append(slices.Clone(o.With), turnstone.RecordChange{Key: r.Key, Action: turnstone.DeleteRecord, Expect: r.Version}, PutAs(name, id, r.Value))
		l, err := lease.Acquire(ctx, s, claimKey(prefix(name)+id), early)
		var moved *turnstone.RecordConflictError
		if errors.As(err, &moved) && (moved.Key == r.Key || moved.Key == prefix(name)+id) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if r, err = s.Record(ctx, prefix(name)+id); err != nil {
			return nil, orReturned(ctx, l, err)
		}
		return claimed(ctx, s, name, r, l)
	}
}

// claimNow claims the message of an id, unless it is for later.
func claimNow(ctx context.Context, s turnstone.Persistence, name, id string, o lease.Options) (*Message, error) {
	for {
		r, err := s.Record(ctx, prefix(name)+id)
		if errors.Is(err, turnstone.ErrRecordNotFound) {
			err = fmt.Errorf("%w: there is no message %q", ErrEmpty, id)
		}
		if err != nil {
			return nil, err
		}
		if m, err := take(ctx, s, name, r, o); m != nil || err != nil {
			return m, err
		}
	}
}

// Cancel removes the message of an id, and reports whether there was one. If somebody has claimed it, the error is a
// *lease.HeldError; with o.Steal it is removed all the same, and its worker's commit is refused.
func Cancel(ctx context.Context, s turnstone.Persistence, name, id string, o lease.Options) (bool, error) {
	if isLater(id) && check(s != nil, name, o) == nil { // Nobody has it before its time.
		r, err := s.Record(ctx, laterKey(name, id))
		if err == nil {
			_, err = s.ChangeRecords(ctx, turnstone.RecordChange{Key: r.Key, Action: turnstone.DeleteRecord, Expect: r.Version})
		}
		if !errors.Is(err, turnstone.ErrRecordNotFound) && !errors.Is(err, turnstone.ErrRecordConflict) {
			return err == nil, err
		}
	}
	m, err := ClaimID(ctx, s, name, id, o)
	if errors.Is(err, ErrEmpty) {
		return false, nil
	}
	if err == nil { // Those that were joined to it are free then.
		_, err = s.ChangeRecords(ctx, m.alone()...)
		err = m.claim.Err(err)
	}
	return err == nil, err
}

func check(given bool, name string, o lease.Options) error {
	switch {
	case !given || name == "":
		return invalid("the session or factory is nil, or the name or the id is empty")
	case len(o.Also) > 0:
		return invalid("Also of the options: it is for leases by themselves")
	}
	return nil
}

// checkAny is check for the queues of all sessions.
func checkAny(f turnstone.Factory, name string, o lease.Options) error {
	if o.Under != nil {
		return invalid("Under of the options: that lease is of one session")
	}
	return check(f != nil, name, o)
}

func invalid(reason string) error {
	return &turnstone.InvalidError{Where: "queue", Reason: reason}
}

// Wait is Claim that waits until it has a message, or ctx ends. It sees a message that is put at once, and one whose
// claim has ended, or whose time has come, within a second.
func Wait(ctx context.Context, s turnstone.Persistence, name string, o lease.Options) (*Message, error) {
	if err := check(s != nil, name, o); err != nil {
		return nil, err
	}
	return wait(ctx, s, name, func(ctx context.Context) (*Message, error) { return Claim(ctx, s, name, o) })
}

// WaitAny is Wait for the queues that sessions have under a name.
func WaitAny(ctx context.Context, f turnstone.Factory, name string, o lease.Options) (*Message, error) {
	if err := checkAny(f, name, o); err != nil {
		return nil, err
	}
	return wait(ctx, f, name, func(ctx context.Context) (*Message, error) { return ClaimAny(ctx, f, name, o) })
}

func wait(ctx context.Context, on turnstone.RecordWatcher, name string, claim func(context.Context) (*Message, error)) (m *Message, err error) {
	err = turnstone.AwaitRecords(ctx, on, prefix(name), func(ctx context.Context) (done bool, again time.Duration, err error) {
		m, err = claim(ctx)
		if errors.Is(err, ErrEmpty) {
			return false, time.Second, nil
		}
		return true, 0, err
	})
	return m, err
}

// A source is one session, or all of a factory.
type source struct {
	list    func(context.Context, turnstone.RecordQuery) (turnstone.RecordPage, error)
	session func(id string) (turnstone.Persistence, error)
	join    *Join // nil if messages are claimed one by one
}

// claim claims a message of a source: a free one, if there is any, before one that has to be stolen.
func claim(ctx context.Context, name string, o lease.Options, from source) (*Message, error) {
	next, err := from.fetch(ctx, name, o)
	if err != nil {
		return nil, err
	}
	free := o
	free.Steal = false
	m, err := from.claim(ctx, name, free)
	if errors.Is(err, ErrAllClaimed) && o.Steal {
		m, err = from.claim(ctx, name, o)
	}
	if err == ErrEmpty && !next.IsZero() {
		err = &DeferredError{next}
	}
	return m, err
}

// most is how many messages one call fetches at most. The others are for the next call.
const most = 100

// fetch puts the messages that are for later, and whose time has come, among those that can be claimed. It returns the
// time of the next one, or zero if there is none.
func (from source) fetch(ctx context.Context, name string, o lease.Options) (next time.Time, err error) {
	now := time.Now
	if o.Now != nil {
		now = o.Now
	}
	q := turnstone.RecordQuery{Prefix: laterPrefix(name), Limit: 20}
	for n := 0; n < most; {
		page, err := from.list(ctx, q)
		if err != nil {
			return next, err
		}
		for _, r := range page.Records {
			n++
			id, at, ok := dueOf(r.Key[len(q.Prefix):])
			if !ok {
				continue // somebody else's record
			}
			if at.After(now()) {
				return at, nil
			}
			s, err := from.session(r.Session)
			if err == nil {
				remove := turnstone.RecordChange{Key: r.Key, Action: turnstone.DeleteRecord, Expect: r.Version}
				_, err = s.ChangeRecords(ctx, remove, PutAs(name, id, r.Value))
				var c *turnstone.RecordConflictError
				if errors.As(err, &c) && c.Key != r.Key { // It was put again when it could be claimed already.
					_, err = s.ChangeRecords(ctx, remove)
				}
			}
			if err != nil && !errors.Is(err, turnstone.ErrRecordConflict) && !errors.Is(err, turnstone.ErrSessionNotFound) && !errors.Is(err, turnstone.ErrSessionDeleted) {
				return next, err
			}
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	return next, nil
}

// claim goes through the messages until it can claim one.
func (from source) claim(ctx context.Context, name string, o lease.Options) (*Message, error) {
	none := ErrEmpty
	for q := (turnstone.RecordQuery{Prefix: prefix(name), Limit: 20}); ; {
		page, err := from.list(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Records {
			s, err := from.session(r.Session)
			if err == nil {
				var m *Message
				if from.join != nil {
					m, err = from.takeJoined(ctx, s, name, r, o)
				} else {
					m, err = take(ctx, s, name, r, o)
				}
				if m != nil {
					return m, nil
				}
			}
			// A record that is no claim, in the place of one, does not hide the messages behind it.
			held := errors.Is(err, lease.ErrHeld) || errors.Is(err, lease.ErrForeign)
			if held {
				none = ErrAllClaimed
			}
			if err != nil && !held && !errors.Is(err, turnstone.ErrSessionNotFound) && !errors.Is(err, turnstone.ErrSessionDeleted) {
				return nil, err
			}
		}
		if q.After = page.Next; q.After == "" {
			return nil, none
		}
	}
}

// take claims the message of a record, and those that were joined to it. It returns nil if the message is gone.
func take(ctx context.Context, s turnstone.Persistence, name string, r turnstone.Record, o lease.Options) (*Message, error) {
	o.With = append(slices.Clone(o.With), standsAs(r))
	for {
		l, err := lease.Acquire(ctx, s, claimKey(r.Key), o)
		var gone *turnstone.RecordConflictError
		if errors.As(err, &gone) && gone.Key == r.Key {
			return nil, nil
		}
		var held *lease.HeldError
		// A joined message is claimed again with the first one of its batch.
		if errors.As(err, &held) && strings.HasPrefix(held.With, claimPrefix+prefix(name)) && !o.Steal {
			_, rerr := s.Record(ctx, strings.TrimPrefix(held.With, claimPrefix))
			if errors.Is(rerr, turnstone.ErrRecordNotFound) { // Somebody has removed the first one without this package.
				o.Steal = true
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		return claimed(ctx, s, name, r, l)
	}
}

// standsAs returns the change that succeeds only if the record of a message is as it was read.
func standsAs(r turnstone.Record) turnstone.RecordChange {
	return turnstone.RecordChange{Key: r.Key, Action: turnstone.CheckRecord, Expect: r.Version}
}

// claimed returns the message of a record that was claimed, with those that were claimed with it.
func claimed(ctx context.Context, s turnstone.Persistence, name string, r turnstone.Record, l *lease.Lease) (*Message, error) {
	m := messageOf(s, name, r, l)
	for _, of := range l.Also() {
		key, is := strings.CutPrefix(of.Key(), claimPrefix+prefix(name))
		if !is {
			continue // It is no message: somebody else wrote the record of the claim.
		}
		r, err := s.Record(ctx, prefix(name)+key)
		if errors.Is(err, turnstone.ErrRecordNotFound) {
			continue // Somebody has removed it without this package.
		}
		if err != nil {
			return nil, orReturned(ctx, l, err)
		}
		m.Joined = append(m.Joined, messageOf(s, name, r, of))
	}
	return m, nil
}

// orReturned returns err, after it has tried to give back what nobody will get.
func orReturned(ctx context.Context, l *lease.Lease, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_ = l.Release(ctx) // If it fails, the claim ends as that of a worker that has crashed.
	return l.Err(err)
}

func messageOf(s turnstone.Persistence, name string, r turnstone.Record, l *lease.Lease) *Message {
	return &Message{Session: s, ID: r.Key[len(prefix(name)):], Value: r.Value, Put: r.Time, Attempts: l.Token(), queue: name, record: r, claim: l, now: l.Now}
}

// claimKey returns the key of the lease by which a message is claimed. A lease's key is shorter than that of
// a record may be.
func claimKey(message string) string {
	if !short(message) {
		sum := sha256.Sum256([]byte(message))
		return ".queue/" + hex.EncodeToString(sum[:])
	}
	return claimPrefix + message
}

// short reports whether the key of a message's claim tells that of the message.
func short(message string) bool { return len(message) <= maxShort }

const maxShort = turnstone.MaxRecordKey - 2

const claimPrefix = "."
