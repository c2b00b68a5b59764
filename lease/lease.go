// Package lease gives one of many workers the right to act, for example to run the turns of a session. It refuses
// the calls of a worker that has lost this right.
//
// A lease is two records of a session (see turnstone.Record). One says who holds the lease, and is only
// written when the holder changes. The other one says until when, and is written whenever the
// lease is renewed. A commit that requires the lease checks the version of the first record in its own batch. So a
// commit of a replaced holder is refused, at whatever revision and at whatever time. A commit of the holder is
// never refused because the holder has just renewed. Clocks only decide when others may take the lease over: a
// clock that is wrong makes that too early or too late, and nothing else. A lease under another one (Options.Under and
// Also) has the first record alone, and lasts as long as the other one does.
//
// The token of a lease grows by 1 with each holder. It is for systems outside of the store that can compare
// tokens (Kleppmann, "How to do distributed locking", 2016); a commit needs none.
package lease

import (
	"context"
	"crypto/rand"
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
	// ErrForeign: a record under the key of a lease is of no lease. With Options.Steal a lease takes its place.
	ErrForeign = errors.New("lease: the record is of no lease")
)

// A HeldError says who holds the lease. It matches ErrHeld.
type HeldError struct {
	Key     string
	Holder  string
	Token   uint64
	Expires time.Time // from then on it can be taken over; zero if it can be now, but for With
	With    string    // the lease that it was acquired with, and with which alone it can be taken over: see Options.Also
}

func (e *HeldError) Error() string {
	with := ""
	if e.With != "" {
		with = fmt.Sprintf(" with %q", e.With)
	}
	return fmt.Sprintf("lease: %q is held by %q%s until %s", e.Key, e.Holder, with, e.Expires.Format(time.RFC3339Nano))
}

// Is reports whether target is ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// Options of Acquire.
type Options struct {
	Holder string        // who acquires, for people and for HeldError
	TTL    time.Duration // others may take the lease over when it was not renewed for this long; default 30 seconds
	Steal  bool          // take the lease over even if it has not expired, or was acquired with another one
	// Under is another lease of the session, which is under none. What is acquired under it has no TTL of its own: it
	// lasts as long as that one is held, and ends when another holder has it. So what a worker has taken is free as soon
	// as the worker has a successor, and no sooner. If that lease is lost already, the error matches ErrFenced. If the
	// call ends without a result, for example because ctx did, Acquire tries for two seconds to give back what it may
	// have acquired: nobody else would, as long as the other lease is held.
	Under *Lease
	// Also names up to MaxAlso more leases of the session by their keys. They are acquired in the same batch, all or none,
	// and last as long as this one: see Lease.Also. They belong together until this one is released or removed: when it
	// has ended, who takes it over gets all of them, and nobody gets one of them alone. Steal does not take them from
	// others.
	Also []string
	// With are changes of other records that are made when the lease is acquired, in the same batch. If one
	// of these is not as expected, the error is its *turnstone.RecordConflictError.
	With []turnstone.RecordChange
	Now  func() time.Time // default time.Now
}

// MaxAlso is how many keys Options.Also has at most.
const MaxAlso = 49

// A Lease is held until it is released or taken over. It is safe for concurrent use.
type Lease struct {
	session turnstone.Persistence
	key     string
	token   uint64
	nonce   string
	version turnstone.RecordVersion // of the record that says who holds it
	under   *Lease                  // nil if it has a TTL of its own
	also    []*Lease
	before  standing // that Acquire found
	options Options

	mu      sync.Mutex
	renewed time.Time // when the last renewal that succeeded began, by the process's clock
}

// A State is what the records of a lease say.
type State struct {
	Key     string
	Holder  string    // who acquired it, or "" if nobody has it
	Token   uint64    // of the last holder; 0 if there was none yet
	Held    bool      // somebody has acquired it since it was released last; it may have ended since
	Expires time.Time // from then on it can be taken over; zero if it can be now
	With    string    // the lease that it was acquired with, as long as that stands: see HeldError
	Also    []string  // Options.Also of the holder
}

// Read reads who holds the lease that a session has under a key. The holder may have stopped: see State.Expires.
func Read(ctx context.Context, s turnstone.Persistence, key string) (State, error) {
	if s == nil {
		return State{}, &turnstone.InvalidError{Where: "lease", Reason: "the session is nil"}
	}
	if len(key) >= turnstone.MaxRecordKey {
		return State{Key: key}, foreign(key)
	}
	st, err := look(ctx, s, key, 0)
	return st.State, err
}

// Acquire takes the lease that a session has under a key, if it is free or has expired. If somebody
// else holds it, the error is a *HeldError; Acquire does not wait. The lease has two records:
// one under the key, and one under the key with a dot before it. So the key has at most turnstone.MaxRecordKey - 1
// bytes.
func Acquire(ctx context.Context, s turnstone.Persistence, key string, o Options) (*Lease, error) {
	if o.TTL == 0 {
		o.TTL = 30 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	switch {
	case s == nil || o.TTL < 0:
		return nil, invalid("the session is nil or the TTL is negative")
	case o.Under != nil && (o.Under.under != nil || o.Under.session.ID() != s.ID() || o.Under.key == key):
		return nil, invalid("Under is a lease of another session, this one, or under another lease itself")
	case slices.Contains(o.Also, key):
		return nil, invalid("Also has the key itself")
	case len(o.Also) > MaxAlso:
		return nil, &turnstone.LimitError{Limit: "leases of Also", Have: int64(len(o.Also)), Max: MaxAlso}
	}
	l := &Lease{session: s, key: key, nonce: rand.Text(), under: o.Under, options: o, renewed: time.Now()}
	for unknown := false; ; {
		err := l.acquire(ctx, unknown)
		var conflict *turnstone.RecordConflictError
		lost := errors.As(err, &conflict) && !l.givenBy(conflict.Key)
		switch {
		case err == nil:
			return l, nil
		case errors.Is(err, turnstone.ErrOutcomeUnknown) && !unknown && ctx.Err() == nil:
			unknown = true // Look whether it stands.
		case lost && ctx.Err() == nil:
		default:
			if o.Under != nil && (unknown || ctx.Err() != nil || errors.Is(err, turnstone.ErrOutcomeUnknown)) {
				l.giveBack(ctx)
			}
			if unknown && !errors.Is(err, turnstone.ErrOutcomeUnknown) && !(errors.Is(err, ErrHeld) && len(o.With) == 0) {
				return nil, fmt.Errorf("%w: %w", turnstone.ErrOutcomeUnknown, err)
			}
			if o.Under != nil {
				err = o.Under.Err(err)
			}
			return nil, err
		}
	}
}

// giveBack releases what an attempt may have acquired whose result nobody gets.
func (l *Lease) giveBack(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	for pause := time.Millisecond; ; pause *= 2 {
		st, err := look(ctx, l.session, l.key, 0)
		if err == nil && st.owner.Nonce == l.nonce {
			_, err = l.session.ChangeRecords(ctx, change(l.key, owner{Token: st.Token}, st.version))
		}
		if err == nil {
			return
		}
		select {
		case <-ctx.Done(): // The lease that it is under ends it.
			return
		case <-time.After(pause):
		}
	}
}

func invalid(reason string) error {
	return &turnstone.InvalidError{Where: "lease", Reason: reason}
}

// givenBy reports whether the caller of Acquire has said what is expected of a record.
func (l *Lease) givenBy(key string) bool {
	return l.under != nil && l.under.key == key || slices.ContainsFunc(l.options.With, func(c turnstone.RecordChange) bool { return c.Key == key })
}

// Await is Acquire that waits until the lease is free, or ctx ends. It sees a release at once. It sees within a second
// that it has expired, that the lease which it is under has ended, and that those of Options.Also are free.
func Await(ctx context.Context, s turnstone.Persistence, key string, o Options) (l *Lease, err error) {
	if s == nil {
		return Acquire(ctx, s, key, o)
	}
	now := time.Now
	if o.Now != nil {
		now = o.Now
	}
	err = turnstone.AwaitRecords(ctx, s, key, func(ctx context.Context) (bool, time.Duration, error) {
		l, err = Acquire(ctx, s, key, o)
		if held := (*HeldError)(nil); errors.As(err, &held) && !errors.Is(err, turnstone.ErrOutcomeUnknown) {
			again := held.Expires.Sub(now())
			if again <= 0 || again > time.Second { // One that is past is of a lease that can't be taken over by itself.
				again = time.Second
			}
			return false, again, nil
		}
		return true, 0, err
	})
	return l, err
}

// acquire is one attempt. After an earlier attempt whose outcome is unknown, acquire does not make the changes of
// Options.With: they could be made twice. If somebody else was first, the error is a conflict of one of the lease's
// records, and the next attempt finds out who it was.
func (l *Lease) acquire(ctx context.Context, unknown bool) error {
	st, err := look(ctx, l.session, l.key, 0)
	if err != nil && !(l.options.Steal && errors.Is(err, ErrForeign)) {
		return err
	}
	if st.owner.Nonce == l.nonce { // An earlier attempt stands, whose outcome was unknown.
		l.token, l.version = st.Token, st.version
		return l.found(ctx, st.Also)
	}
	if unknown && len(l.options.With) > 0 {
		return fmt.Errorf("%w: lease %q is not held by this call now", turnstone.ErrOutcomeUnknown, l.key)
	}
	if err := l.free(ctx, &st, l.options.Steal); err != nil {
		return err
	}
	also, err := l.alsoOf(ctx, &st)
	if err != nil {
		return err
	}
	for i := range also {
		if also[i].isUnder(&st) {
			continue
		}
		if err := l.free(ctx, &also[i], false); err != nil {
			return err
		}
	}
	l.before = st
	vs, err := l.session.ChangeRecords(ctx, l.changes(&st, also)...)
	if err != nil {
		return err
	}
	l.token, l.version, l.also = st.Token+1, vs[0], nil
	for i, a := range also {
		l.also = append(l.also, l.member(a.Key, a.Token+1, vs[1+i]))
	}
	return nil
}

// changes returns those that make l the holder of its lease, and of those that are acquired with it: first the records
// that say who holds them, in their order.
func (l *Lease) changes(st *standing, also []standing) []turnstone.RecordChange {
	me := owner{Holder: l.options.Holder, Token: st.Token + 1, Nonce: l.nonce}
	if l.under != nil {
		me.Under = &under{Key: l.under.key, Nonce: l.under.nonce}
	}
	for _, a := range also {
		me.Also = append(me.Also, a.Key)
	}
	changes := []turnstone.RecordChange{change(l.key, me, st.version)}
	for _, a := range also {
		changes = append(changes, change(a.Key, owner{Holder: me.Holder, Token: a.Token + 1, Nonce: l.nonce, Under: &under{l.key, l.nonce, true}}, a.version))
	}
	all := append([]standing{*st}, also...)
	for i, a := range all { // None was renewed since it was read.
		switch {
		case i == 0 && l.under == nil:
			changes = append(changes, change(untilKey(l.key), until{l.options.Now().Add(l.options.TTL)}, a.end))
		case a.end != turnstone.NoRecord:
			changes = append(changes, turnstone.RecordChange{Key: untilKey(a.Key), Action: turnstone.DeleteRecord, Expect: a.end})
		}
	}
	if l.under != nil {
		changes = append(changes, l.under.Require())
	}
	changes = append(changes, l.options.With...)
	for _, a := range all {
		for _, c := range a.renewed {
			if !slices.ContainsFunc(changes, func(have turnstone.RecordChange) bool { return have.Key == c.Key }) {
				changes = append(changes, c)
			}
		}
	}
	return changes
}

// free returns a *HeldError if somebody has a lease, unless it may be stolen. What was acquired under the same lease as
// this one is held as long as that is not another's, whatever clocks say.
func (l *Lease) free(ctx context.Context, st *standing, steal bool) error {
	mine := l.under != nil && slices.Contains(st.under, l.under.nonce)
	if steal || !mine && st.With == "" && !l.options.Now().Before(st.Expires) {
		return nil
	}
	if l.under != nil && !mine {
		lane, err := look(ctx, l.session, l.under.key, 0)
		if err != nil {
			return err
		}
		if lane.owner.Nonce != l.under.nonce {
			return fmt.Errorf("%w: lease %q", ErrFenced, l.under.key)
		}
	}
	return st.heldError()
}

// alsoOf reads the leases that are acquired with one. If leases that its last holder acquired with it still stand under
// it, it is these, and otherwise those of the options. Leases that belong together are not mixed with others: then the
// error is a *HeldError.
func (l *Lease) alsoOf(ctx context.Context, first *standing) (also []standing, err error) {
	for _, key := range first.owner.Also {
		st, err := look(ctx, l.session, key, 0)
		if err != nil && !errors.Is(err, ErrForeign) {
			return nil, err
		}
		if st.isUnder(first) {
			also = append(also, st)
		}
	}
	if len(also) > 0 {
		for _, key := range l.options.Also {
			if !slices.ContainsFunc(also, func(st standing) bool { return st.Key == key }) {
				return nil, first.heldError()
			}
		}
		return also, nil
	}
	for _, key := range l.options.Also {
		st, err := look(ctx, l.session, key, 0)
		if err != nil {
			return nil, err
		}
		if len(st.Also) > 0 {
			return nil, st.heldError()
		}
		also = append(also, st)
	}
	return also, nil
}

// found sets those leases that an earlier attempt has acquired with this one.
func (l *Lease) found(ctx context.Context, keys []string) error {
	l.also = nil
	for _, key := range keys {
		st, err := look(ctx, l.session, key, 0)
		if err != nil {
			return err
		}
		if st.owner.Nonce == l.nonce {
			l.also = append(l.also, l.member(key, st.Token, st.version))
		}
	}
	return nil
}

// member returns a lease that was acquired with this one.
func (l *Lease) member(key string, token uint64, version turnstone.RecordVersion) *Lease {
	return &Lease{session: l.session, key: key, token: token, nonce: l.nonce, version: version, under: l, options: l.options}
}

// Key returns the key of the lease.
func (l *Lease) Key() string { return l.key }

// Token returns the number of this holder among those of the lease, from 1. Every later holder has a
// larger one.
func (l *Lease) Token() uint64 { return l.token }

// Now returns the time of the clock that was given to Acquire.
func (l *Lease) Now() time.Time { return l.options.Now() }

// Displaced returns who had the lease when it was acquired, because it had ended or was stolen, and reports whether
// anybody had.
func (l *Lease) Displaced() (State, bool) { return l.before.State, l.before.owner.Nonce != "" }

// Also returns the leases that were acquired with this one, as Options.Also says. Each of them can be required and
// removed by itself; to renew one is to renew this one.
func (l *Lease) Also() []*Lease { return slices.Clone(l.also) }

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

// root returns the lease with whose TTL this one lasts: itself, unless it is under another one.
func (l *Lease) root() *Lease {
	for l.under != nil {
		l = l.under
	}
	return l
}

// Renew makes the lease last for the TTL from now on. If it is lost, the error matches ErrFenced. If it is under another
// one, that one is renewed.
func (l *Lease) Renew(ctx context.Context) error {
	at, root := time.Now(), l.root()
	changes := []turnstone.RecordChange{change(untilKey(root.key), until{root.options.Now().Add(root.options.TTL)}, "")}
	for of := l; of != nil; of = of.under {
		changes = append(changes, of.Require())
	}
	_, err := l.session.ChangeRecords(ctx, changes...)
	if err == nil {
		root.mu.Lock()
		root.renewed = at
		root.mu.Unlock()
	}
	for of := l; of != nil; of = of.under {
		err = of.Err(err)
	}
	return err
}

// ends returns when the lease has not been renewed for its TTL.
func (l *Lease) ends() time.Time {
	root := l.root()
	root.mu.Lock()
	defer root.mu.Unlock()
	return root.renewed.Add(root.options.TTL)
}

// Release gives the lease back, with those of Also: anybody can acquire them at once. If it was lost before, the error
// matches ErrFenced.
func (l *Lease) Release(ctx context.Context) error {
	_, err := l.session.ChangeRecords(ctx, l.without(change(l.key, owner{Token: l.token}, l.version))...)
	return l.Err(err)
}

// Remove returns the changes that give the lease back and remove its records. When the work is done for which the
// lease was taken, put these changes into its last commit, or into its last change of records. A later lease under the
// key begins at token 1 again. Those of Also end, and have records of their own.
func (l *Lease) Remove() []turnstone.RecordChange {
	return l.without(turnstone.RecordChange{Key: l.key, Action: turnstone.DeleteRecord, Expect: l.version})
}

// without returns a change of the record that says who holds the lease, and that of the other record.
func (l *Lease) without(c turnstone.RecordChange) []turnstone.RecordChange {
	if l.under != nil {
		return []turnstone.RecordChange{c}
	}
	return []turnstone.RecordChange{c, {Key: untilKey(l.key), Action: turnstone.DeleteRecord}}
}

// Keep renews the lease three times within its TTL, until ctx ends or stop is called. The context held ends with ctx.
// It ends earlier if the lease is lost, or if no renewal has succeeded for the TTL. Then context.Cause(held) matches
// ErrFenced, or is the error of the last renewal.
func (l *Lease) Keep(ctx context.Context) (held context.Context, stop context.CancelFunc) {
	held, end := context.WithCancelCause(ctx)
	go func() {
		var failed error // of the last renewal that ended by itself
		ticks := time.NewTicker(max(l.root().options.TTL/3, time.Millisecond))
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
