// Package lease gives one of many workers the right to act, for example to run the turns of a session,
// and refuses what a worker does that has lost it.
//
// A lease is two records of a session (see turnstone.Record). One says who holds the lease, and is only
// written when the holder changes. The other one says until when, and is written whenever the
// lease is renewed. A commit that requires the lease checks the first one by its version, in its own batch:
// a commit of a holder that was replaced is refused, at whatever revision and at whatever time, and one of the
// holder is never refused because it has just renewed. Clocks only decide when others may take the lease
// over: a clock that is wrong makes that too early or too late, and nothing else.
//
// The token of a lease grows by 1 with each holder. It is for systems outside of the store that can compare
// tokens (Kleppmann, "How to do distributed locking", 2016); a commit needs none.
package lease

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone"
)

// Errors. Match with errors.Is.
var (
	// ErrHeld: somebody else holds the lease. See HeldError.
	ErrHeld = errors.New("lease: held by another")
	// ErrFenced: the lease was lost: it was released, or somebody else has it. The call had no effect, unless
	// the error matches turnstone.ErrOutcomeUnknown as well.
	ErrFenced = errors.New("lease: not held any more")
)

// A HeldError says who holds the lease. It matches ErrHeld.
type HeldError struct {
	Key     string
	Holder  string
	Token   uint64
	Expires time.Time // from then on it can be taken over
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("lease: %q is held by %q until %s", e.Key, e.Holder, e.Expires.Format(time.RFC3339Nano))
}

// Is reports whether target is ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// Options of Acquire.
type Options struct {
	Holder string        // who acquires, for people and for HeldError
	TTL    time.Duration // after so long without a renewal others may take over; default 30 seconds
	Steal  bool          // take the lease over even if it has not expired
	// With are changes of other records that are made when the lease is acquired, in the same batch. If one
	// of these is not as expected, the error is its *turnstone.RecordConflictError.
	With []turnstone.RecordChange
	Now  func() time.Time // default time.Now
}

// A Lease is held until it is released or taken over. It is safe for concurrent use.
type Lease struct {
	session turnstone.Persistence
	key     string
	token   uint64
	version turnstone.RecordVersion // of the record that says who holds it
	options Options

	mu      sync.Mutex
	renewed time.Time // when the last renewal that succeeded began, by the process's clock
}

// owner is the value of the record under the key of a lease.
type owner struct {
	Holder string `json:"holder"`
	Token  uint64 `json:"token"`
	Nonce  string `json:"nonce,omitempty"` // of the call that acquired it; none if it is free
}

// until is the value of the record under untilKey.
type until struct {
	Expires time.Time `json:"expires"`
}

// untilKey returns the key of the record that says until when the lease of a key is held.
func untilKey(key string) string { return "." + key }

// Acquire takes the lease that a session has under a key, if it is free or has expired. If somebody
// else holds it, the error is a *HeldError; Acquire does not wait. The key is that of a record; the
// lease has this record and the one whose key has a dot before it, so that it is shorter than
// turnstone.MaxRecordKey by 1.
func Acquire(ctx context.Context, s turnstone.Persistence, key string, o Options) (*Lease, error) {
	if o.TTL == 0 {
		o.TTL = 30 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if s == nil || o.TTL < 0 {
		return nil, &turnstone.InvalidError{Where: "lease", Reason: "the session is nil or the TTL is negative"}
	}
	mine := owner{Holder: o.Holder, Nonce: rand.Text()}
	began := time.Now()
	for unknown := false; ; {
		l, err := acquire(ctx, s, key, mine, &o, began, unknown)
		var conflict *turnstone.RecordConflictError
		lost := errors.As(err, &conflict) && (conflict.Key == key || conflict.Key == untilKey(key))
		switch {
		case err == nil:
			return l, nil
		case errors.Is(err, turnstone.ErrOutcomeUnknown) && !unknown && ctx.Err() == nil:
			unknown = true // Look whether it stands.
		case lost && ctx.Err() == nil:
		case unknown && !errors.Is(err, turnstone.ErrOutcomeUnknown) && !(errors.Is(err, ErrHeld) && len(o.With) == 0):
			return nil, fmt.Errorf("%w: %w", turnstone.ErrOutcomeUnknown, err)
		default:
			return nil, err
		}
	}
}

// acquire is one attempt. If the outcome of an earlier one is unknown, it is not repeated where that would make the
// changes of Options.With twice. The error is a conflict of one of the lease's records if somebody else was
// first, and then the next attempt finds out who.
func acquire(ctx context.Context, s turnstone.Persistence, key string, mine owner, o *Options, began time.Time, unknown bool) (*Lease, error) {
	var now owner
	version, err := read(ctx, s, key, &now)
	if err != nil {
		return nil, err
	}
	if now.Nonce == mine.Nonce { // An earlier attempt stands, whose outcome was unknown.
		return &Lease{session: s, key: key, token: now.Token, version: version, options: *o, renewed: began}, nil
	}
	if unknown && len(o.With) > 0 {
		return nil, fmt.Errorf("%w: lease %q is not held by this call now", turnstone.ErrOutcomeUnknown, key)
	}
	var end until
	endVersion, err := read(ctx, s, untilKey(key), &end)
	if err != nil {
		return nil, err
	}
	if o.Now().Before(end.Expires) && !o.Steal {
		return nil, &HeldError{Key: key, Holder: now.Holder, Token: now.Token, Expires: end.Expires}
	}
	mine.Token = now.Token + 1
	vs, err := s.ChangeRecords(ctx, append([]turnstone.RecordChange{
		change(key, mine, version),
		change(untilKey(key), until{o.Now().Add(o.TTL)}, endVersion), // It was not renewed since it was read.
	}, o.With...)...)
	if err != nil {
		return nil, err
	}
	return &Lease{session: s, key: key, token: mine.Token, version: vs[0], options: *o, renewed: began}, nil
}

// read reads a record, and returns its version.
func read(ctx context.Context, s turnstone.Persistence, key string, value any) (turnstone.RecordVersion, error) {
	r, err := s.Record(ctx, key)
	if errors.Is(err, turnstone.ErrRecordNotFound) {
		return turnstone.NoRecord, nil
	}
	if err == nil {
		if err = json.Unmarshal(r.Value, value); err != nil {
			err = fmt.Errorf("lease: record %q is of no lease: %w", key, err)
		}
	}
	return r.Version, err
}

func change(key string, value any, expect turnstone.RecordVersion) turnstone.RecordChange {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // The types are ours.
	}
	return turnstone.RecordChange{Key: key, Value: text, Expect: expect}
}

// Key returns the key of the lease.
func (l *Lease) Key() string { return l.key }

// Token returns the number of this holder among those of the lease, from 1. Every later holder has a
// larger one.
func (l *Lease) Token() uint64 { return l.token }

// Require returns the check that makes a commit, or a change of records, fail unless the lease is still
// held: for Commit.Records of the session that has the lease, and in a call of CommitAll for others.
func (l *Lease) Require() turnstone.RecordChange {
	return turnstone.RecordChange{Key: l.key, Action: turnstone.CheckRecord, Expect: l.version}
}

// Err returns err, or an error that matches ErrFenced if err says that the lease is lost.
func (l *Lease) Err(err error) error {
	var lost *turnstone.RecordConflictError
	if errors.As(err, &lost) && lost.Expected == l.version {
		return fmt.Errorf("%w: %w", ErrFenced, err)
	}
	return err
}

// Commit commits to the session that has the lease, if the lease is still held. Otherwise the error
// matches ErrFenced. A turn that was committed before is repeated nevertheless.
func (l *Lease) Commit(ctx context.Context, c turnstone.Commit) (turnstone.Result, error) {
	c.Records = append(slices.Clone(c.Records), l.Require())
	r, err := l.session.Commit(ctx, c)
	if err != nil {
		return r, l.Err(err)
	}
	r.Records = r.Records[:len(r.Records)-1]
	return r, nil
}

// Renew makes the lease last for the TTL from now on. If it is lost, the error matches ErrFenced.
func (l *Lease) Renew(ctx context.Context) error {
	at := time.Now()
	_, err := l.session.ChangeRecords(ctx, l.Require(), change(untilKey(l.key), until{l.options.Now().Add(l.options.TTL)}, ""))
	if err == nil {
		l.mu.Lock()
		l.renewed = at
		l.mu.Unlock()
	}
	return l.Err(err)
}

// ends returns when the lease has not been renewed for its TTL.
func (l *Lease) ends() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.renewed.Add(l.options.TTL)
}

// Release gives the lease back: anybody can acquire it at once. If it was lost before, the error
// matches ErrFenced.
func (l *Lease) Release(ctx context.Context) error {
	_, err := l.session.ChangeRecords(ctx,
		change(l.key, owner{Token: l.token}, l.version),
		turnstone.RecordChange{Key: untilKey(l.key), Action: turnstone.DeleteRecord})
	return l.Err(err)
}

// Remove returns the changes that give the lease back and remove its records, for a commit or a change of
// records: what the lease is for ends with that call. A later lease under the key begins at token 1 again.
func (l *Lease) Remove() []turnstone.RecordChange {
	return []turnstone.RecordChange{
		{Key: l.key, Action: turnstone.DeleteRecord, Expect: l.version},
		{Key: untilKey(l.key), Action: turnstone.DeleteRecord},
	}
}

// Keep renews the lease three times within its TTL, until ctx ends or stop is called. The context that
// it returns ends with ctx, and before that when the lease is lost, or was not renewed for its TTL: then
// context.Cause matches ErrFenced, or is the error of the last renewal.
func (l *Lease) Keep(ctx context.Context) (held context.Context, stop context.CancelFunc) {
	held, end := context.WithCancelCause(ctx)
	go func() {
		var failed error // of the last renewal that ended by itself
		ticks := time.NewTicker(max(l.options.TTL/3, time.Millisecond))
		defer ticks.Stop()
		for {
			select {
			case <-held.Done():
				return
			case <-ticks.C:
			}
			renewing, done := context.WithDeadline(held, l.ends())
			err := l.Renew(renewing)
			done()
			if err == nil || failed == nil || !errors.Is(err, context.DeadlineExceeded) {
				failed = err
			}
			if err != nil && (errors.Is(err, ErrFenced) || errors.Is(err, turnstone.ErrSessionDeleted) || !time.Now().Before(l.ends())) {
				end(failed)
			}
		}
	}()
	return held, func() { end(context.Canceled) }
}
