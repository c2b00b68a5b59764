package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/lease"
)

// MaxJoined is how many messages are claimed together at most.
const MaxJoined = lease.MaxAlso + 1

// A Join says which messages are claimed together.
type Join struct {
	Limit int // how many messages at most; default MaxJoined
	// Same reports whether a message goes with the first one, for example because both have the same key. The first
	// message that does not ends the claim, so none of them overtakes it. By default all go together.
	Same func(first, next Waiting) bool

	now func() time.Time
}

// ClaimJoined is Claim for several messages, which one turn is to consume: the first one that nobody has claimed, and as
// Message.Joined those behind it that go with it and that nobody has claimed either. They are claimed in one batch,
// acknowledged in one, and given back together. If the worker crashes, those that were not acknowledged are claimed
// again together and with no others, by Claim as well, whatever Join says then: a turn that is run again has the same
// input. Of such messages ClaimID claims the first one only. Messages whose ids are longer than about half a kilobyte are
// not joined.
func ClaimJoined(ctx context.Context, s turnstone.Persistence, name string, o lease.Options, j Join) (*Message, error) {
	if err := check(s != nil, name, o); err != nil {
		return nil, err
	}
	if j.Limit == 0 {
		j.Limit = MaxJoined
	}
	if j.Limit < 1 || j.Limit > MaxJoined {
		return nil, &turnstone.LimitError{Limit: "joined messages", Have: int64(j.Limit), Max: MaxJoined}
	}
	if j.Same == nil {
		j.Same = func(Waiting, Waiting) bool { return true }
	}
	if j.now = o.Now; j.now == nil {
		j.now = time.Now
	}
	from := of(s)
	from.join = &j
	return claim(ctx, name, o, from)
}

// ClaimIDs claims the messages of several ids together, as ClaimJoined does, the first one first: all of them or none. If
// one of them is not there, or is for later, the error matches ErrEmpty; if somebody has claimed one, it is a
// *lease.HeldError.
func ClaimIDs(ctx context.Context, s turnstone.Persistence, name string, o lease.Options, ids ...string) (*Message, error) {
	if err := check(s != nil && len(ids) > 0 && !slices.Contains(ids, ""), name, o); err != nil {
		return nil, err
	}
	if len(ids) > MaxJoined {
		return nil, &turnstone.LimitError{Limit: "joined messages", Have: int64(len(ids)), Max: MaxJoined}
	}
	for {
		all := o
		var first turnstone.Record
		for i, id := range ids {
			if n := len(prefix(name) + id); len(ids) > 1 && !short(prefix(name)+id) {
				return nil, &turnstone.LimitError{Limit: "bytes of the key of a joined message", Have: int64(n), Max: maxShort}
			}
			r, err := s.Record(ctx, prefix(name)+id)
			if errors.Is(err, turnstone.ErrRecordNotFound) {
				err = fmt.Errorf("%w: there is no message %q", ErrEmpty, id)
			}
			if err != nil {
				return nil, err
			}
			if i == 0 {
				first = r
			} else {
				all.Also = append(all.Also[:len(all.Also):len(all.Also)], claimKey(r.Key))
			}
			all.With = append(all.With[:len(all.With):len(all.With)], standsAs(r))
		}
		l, err := lease.Acquire(ctx, s, claimKey(first.Key), all)
		if gone := (*turnstone.RecordConflictError)(nil); errors.As(err, &gone) && hasOwn(o, &all, gone.Key) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return claimed(ctx, s, name, first, l)
	}
}

// takeJoined is take for a message and those behind it. It returns nil if the first one is gone.
func (from source) takeJoined(ctx context.Context, s turnstone.Persistence, name string, first turnstone.Record, o lease.Options) (*Message, error) {
	for {
		st, err := lease.Read(ctx, s, claimKey(first.Key))
		if err != nil && !(o.Steal && errors.Is(err, lease.ErrForeign)) {
			return nil, err
		}
		if st.Held || !short(first.Key) { // It is claimed again as it was, alone or with others.
			return take(ctx, s, name, first, o)
		}
		all := o
		all.With = append(slices.Clone(o.With), standsAs(first))
		joined, err := from.behind(ctx, s, name, first)
		if err != nil {
			return nil, err
		}
		for _, r := range joined {
			all.Also = append(all.Also, claimKey(r.Key))
			all.With = append(all.With, standsAs(r))
		}
		l, err := lease.Acquire(ctx, s, claimKey(first.Key), all)
		var held *lease.HeldError
		var gone *turnstone.RecordConflictError
		switch {
		case err == nil:
			return claimed(ctx, s, name, first, l)
		case errors.As(err, &held) && slices.Contains(all.Also, held.Key), errors.As(err, &gone) && gone.Key != first.Key && hasOwn(o, &all, gone.Key):
			continue // Somebody was first.
		case errors.As(err, &gone) && gone.Key == first.Key:
			return nil, nil
		default:
			return nil, err
		}
	}
}

// hasOwn reports whether this package has added a change of the record to the caller's options, which makes all.
func hasOwn(callers lease.Options, all *lease.Options, key string) bool {
	of := func(c turnstone.RecordChange) bool { return c.Key == key }
	return slices.ContainsFunc(all.With, of) && !slices.ContainsFunc(callers.With, of)
}

// behind returns the free messages behind the first one that go with it. It passes over those that others are at work on,
// and ends before one that was claimed and whose worker has crashed: it is claimed again as it was.
func (from source) behind(ctx context.Context, s turnstone.Persistence, name string, first turnstone.Record) (joined []turnstone.Record, err error) {
	seen := false
	for q := (turnstone.RecordQuery{Prefix: prefix(name), Limit: 20}); len(joined) < from.join.Limit-1; {
		page, err := from.list(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Records {
			if !seen {
				if seen = r.Key >= first.Key; r.Key <= first.Key {
					continue
				}
			}
			if len(joined) == from.join.Limit-1 || !short(r.Key) || !from.join.Same(waitingOf(name, first), waitingOf(name, r)) {
				return joined, nil
			}
			st, err := lease.Read(ctx, s, claimKey(r.Key))
			switch {
			case errors.Is(err, lease.ErrForeign):
			case err != nil:
				return nil, err
			case !st.Held:
				joined = append(joined, r)
			case !from.join.now().Before(st.Expires):
				return joined, nil
			}
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	return joined, nil
}

func waitingOf(name string, r turnstone.Record) Waiting {
	return Waiting{ID: r.Key[len(prefix(name)):], Value: r.Value, Put: r.Time}
}
