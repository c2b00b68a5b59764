package feed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

var (
	// ErrOff says that the feed of changes is off.
	ErrOff = errors.New("turnstone: the feed is off")
	// ErrTrimmed says that changes after a cursor are not kept any more.
	ErrTrimmed = errors.New("turnstone: cursor expired")
)

// page is how many changes are read, or get a number, at once. A scan of so many pairs is one snapshot: see
// engine.OnePage.
const page = engine.OnePage

// most is how many changes get a number at once where sessions are deleted: a batch of any engine has room for them.
const most = 1000

// read reads the records of the feed. The error is ErrOff unless it is on.
func read(ctx context.Context, s history.Store) (sw Switch, end End, values [][]byte, err error) {
	ks := [][]byte{s.Space.Feed(), s.Space.FeedEnd()}
	if values, err = s.Engine.Get(ctx, ks...); err != nil {
		return sw, end, nil, err
	}
	if sw, err = DecodeSwitch(ks[0], values[0]); err != nil {
		return sw, end, nil, err
	}
	if sw.State == Off && values[1] != nil {
		return sw, end, nil, codec.Corrupt(damage.ErrMissing, "record of the feed")
	}
	if !sw.on() {
		return sw, end, nil, ErrOff
	}
	end, err = DecodeEnd(ks[1], values[1])
	return sw, end, values, err
}

// Advance gives numbers to all changes that were told before it was called.
func Advance(ctx context.Context, s history.Store, now time.Time) (Switch, End, error) {
	for {
		sw, end, more, err := advance(ctx, s, now)
		if err != nil || !more {
			return sw, end, err
		}
	}
}

// advance gives numbers to a page of changes. more reports whether there may be more to do: somebody else may have
// been first.
func advance(ctx context.Context, s history.Store, now time.Time) (sw Switch, end End, more bool, err error) {
	sw, end, values, err := read(ctx, s)
	if err != nil {
		return sw, end, false, err
	}
	told, full, err := pending(ctx, s)
	if err != nil || len(told) == 0 {
		return sw, end, false, err
	}
	b, next := &engine.Batch{Reclaim: true}, end
	for i := range told {
		c := &told[i]
		c.Numbered = now
		b.Delete(c.key)
		key := s.Space.Change(sw.ID, next.Next)
		b.Set(key, c.Encode(key))
		next.Next++
	}
	err = move(ctx, s, b, values, next)
	if errors.Is(err, engine.ErrConflict) { // Somebody else was first, or an attempt whose outcome was unknown.
		return sw, end, true, nil
	}
	return sw, next, full, err
}

// move makes b guard the records of the feed and set its end, and applies it.
func move(ctx context.Context, s history.Store, b *engine.Batch, values [][]byte, next End) error {
	key := s.Space.FeedEnd()
	b.Guard(s.Space.Feed(), values[0])
	b.Guard(key, values[1])
	b.Set(key, next.Encode(key))
	_, err := engine.ApplyUntilKnown(ctx, s.Engine, b)
	return err
}

// A told change is one that is not in the feed yet.
type told struct {
	Change
	key []byte
}

// pending reads a page of the changes that were told, in order, and reports whether there may be more. Of a session
// that is deleted in that page, it reads all, or leaves the deletion for the next page.
func pending(ctx context.Context, s history.Store) (out []told, full bool, err error) {
	r := s.Space.All(keys.Pending)
	r.Limit = page
	gone := map[head.Incarnation]bool{}
	err = scanPending(ctx, s, r, func(c told) bool {
		if out = append(out, c); c.Kind == Deleted {
			gone[c.Incarnation] = true
		}
		return true
	})
	if full = len(out) == page; err != nil || len(out) == 0 {
		return out, full, err
	}
	// Changes other than commits are not in the order of the head's times, so a clock may have put one behind the
	// deletion. Nothing more is told of a session once it is deleted.
	if full && len(gone) > 0 {
		r = s.Space.All(keys.Pending)
		r.Start = engine.Successor(out[page-1].key)
		err = scanPending(ctx, s, r, func(c told) bool {
			if gone[c.Incarnation] {
				out = append(out, c)
			}
			return len(out) < most
		})
		if len(out) == most { // There may be more: the deletions wait for the next page.
			out = slices.DeleteFunc(out, func(c told) bool { return c.Kind == Deleted })
		}
	}
	return deletedLast(createdFirst(out)), full, err
}

// scanPending calls f for the changes of a range that were told, until it reports false.
func scanPending(ctx context.Context, s history.Store, r engine.Range, f func(told) bool) error {
	for p, err := range s.Engine.Scan(ctx, r) {
		if err != nil {
			return err
		}
		_, fields, ok := s.Space.Fields(p.Key)
		if !ok {
			return codec.Corrupt(damage.ErrMalformed, "change at key %x", p.Key)
		}
		c, err := decodePending(p.Key, fields, p.Value)
		if err != nil {
			return err
		}
		if !f(told{c, bytes.Clone(p.Key)}) {
			return nil
		}
	}
	return nil
}

// createdFirst moves each creation before the first change of its session: the clock of who changed a record of it may
// be behind.
func createdFirst(all []told) []told {
	for i := range all {
		if all[i].Kind != Created {
			continue
		}
		first := slices.IndexFunc(all[:i], func(c told) bool { return c.Incarnation == all[i].Incarnation })
		if first >= 0 {
			c := all[i]
			copy(all[first+1:i+1], all[first:i])
			all[first] = c
		}
	}
	return all
}

// deletedLast moves each deletion behind the last change of its session.
func deletedLast(all []told) []told {
	for i := 0; i < len(all); i++ {
		if all[i].Kind != Deleted {
			continue
		}
		last := i
		for j := i + 1; j < len(all); j++ {
			if all[j].Incarnation == all[i].Incarnation {
				last = j
			}
		}
		if last > i {
			c := all[i]
			copy(all[i:], all[i+1:last+1])
			all[last] = c
			i--
		}
	}
	return all
}

// Trim removes the changes that got their numbers before as long as the feed keeps them.
func Trim(ctx context.Context, s history.Store, now time.Time) error {
	for {
		sw, end, values, err := read(ctx, s)
		if err != nil {
			return err
		}
		changes, err := scan(ctx, s, &sw, end.First, end)
		if err != nil {
			return err
		}
		b, next := &engine.Batch{Reclaim: true}, end
		for _, c := range changes {
			if !c.Numbered.Before(now.Add(-sw.Keep)) {
				break
			}
			b.Delete(s.Space.Change(sw.ID, next.First))
			next.First++
		}
		if next == end {
			return nil
		}
		if err := move(ctx, s, b, values, next); err != nil && !errors.Is(err, engine.ErrConflict) {
			return err
		}
	}
}

// scan reads a page of a feed, from a number on. One that is missing is damage, unless it was trimmed meanwhile, or
// the feed ended.
func scan(ctx context.Context, s history.Store, sw *Switch, from uint64, end End) (out []Change, err error) {
	if from >= end.Next {
		return nil, nil
	}
	r := s.Space.Changes(sw.ID)
	r.Start = s.Space.Change(sw.ID, from)
	r.Limit = int(min(page, end.Next-from))
	for p, err := range s.Engine.Scan(ctx, r) {
		if err != nil {
			return nil, err
		}
		_, fields, ok := s.Space.Fields(p.Key)
		if !ok {
			return nil, codec.Corrupt(damage.ErrMalformed, "change at key %x", p.Key)
		}
		c, err := DecodeChange(p.Key, keys.ChangeFields(fields), p.Value)
		if err != nil {
			return nil, err
		}
		if c.Number != from+uint64(len(out)) {
			break
		}
		out = append(out, c)
	}
	if len(out) == r.Limit {
		return out, nil
	}
	now, at, _, err := read(ctx, s)
	switch lost := from + uint64(len(out)); {
	case err != nil:
		return nil, err
	case now.ID != sw.ID:
		return nil, ErrTrimmed
	case lost < at.First:
		return out, nil
	default:
		return nil, codec.Corrupt(damage.ErrMissing, "change %d of the feed", lost)
	}
}

// expired returns the error for a cursor whose changes a feed with that end does not have.
func expired(end End) error {
	if end.Next <= end.First {
		return fmt.Errorf("%w: the feed keeps no change", ErrTrimmed)
	}
	return fmt.Errorf("%w: the feed keeps the changes %d to %d", ErrTrimmed, end.First, end.Next-1)
}

// Read returns the changes after a number, at most a page of them, and the end of the feed. If the change that
// follows the number is not kept any more, the error is ErrTrimmed.
func Read(ctx context.Context, s history.Store, id [16]byte, after uint64) ([]Change, End, error) {
	sw, end, _, err := read(ctx, s)
	if err != nil {
		return nil, end, err
	}
	if sw.ID != id || after+1 < end.First || after >= end.Next {
		return nil, end, expired(end)
	}
	changes, err := scan(ctx, s, &sw, after+1, end)
	if err == nil && len(changes) == 0 && after+1 < end.Next {
		err = ErrTrimmed // meanwhile
	}
	return changes, end, err
}
