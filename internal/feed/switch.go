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

// Start begins the feed, or, if it is on, changes what it keeps and for how long. A start writes the head of each
// session. If it is cut off, the next one goes on. Heads that are damaged are passed over, as nobody can commit to
// such sessions; the error names them. The feed is on then, and the next start or collection looks at all heads
// again. random fills a slice with random bytes.
func Start(ctx context.Context, s history.Store, keep time.Duration, records bool, random func([]byte)) error {
	var cleaned *Switch // an end that this call has finished, as far as it can be
	return history.Settle(ctx, s.Engine, func(c *history.Change) error {
		sw, err := set(ctx, c, s, func(sw *Switch, b *engine.Batch) (write bool, err error) {
			switch {
			case sw.State == Off, cleaned != nil && *sw == *cleaned:
				sw.State = Beginning
				random(sw.ID[:])
				key := s.Space.FeedEnd()
				b.Set(key, End{1, 1}.Encode(key))
			case sw.State != On: // A start or an end was cut off, or is at it.
				return false, nil
			}
			sw.Keep, sw.Records, b.Reclaim = keep, records, false
			return true, nil
		})
		switch {
		case err != nil:
		case sw.State == Ending:
			if _, err = clean(ctx, c, s, &sw); err == nil {
				cleaned, err = &sw, engine.ErrConflict // Begin anew.
			}
		case sw.State != On:
			err = begin(ctx, c, s, sw, keep, records)
		}
		return err
	})
}

// begin does the rest of a start. The error is a conflict if the feed's record has changed. begin writes that record
// only at its end, so that several calls can work on the same start.
func begin(ctx context.Context, c *history.Change, s history.Store, sw Switch, keep time.Duration, records bool) error {
	c.Partly = true
	damaged, err := sweep(ctx, c, s, &sw)
	if err != nil {
		return err
	}
	to := On
	if damaged != nil {
		to = OnInPart
	}
	if _, err := set(ctx, c, s, func(now *Switch, _ *engine.Batch) (write bool, err error) {
		if *now != sw {
			return false, engine.ErrConflict
		}
		write = now.State != to || now.Keep != keep || now.Records != records
		now.State, now.Keep, now.Records = to, keep, records
		return write, nil
	}); err != nil {
		return err
	}
	c.Unknown = false // All batches stand.
	return damaged
}

// Stop ends the feed, and removes what is in it. If it is cut off, the next one goes on. Heads that are damaged are
// passed over, and the error names them: the feed is off then, and the next end or collection looks at all heads
// again.
func Stop(ctx context.Context, s history.Store) error { return stop(ctx, s, nil) }

// stop ends the feed that has the given identity, or, if that is nil, the one that is on. It leaves a feed alone that
// was begun since.
func stop(ctx context.Context, s history.Store, of *[16]byte) error {
	return history.Settle(ctx, s.Engine, func(c *history.Change) error {
		sw, err := set(ctx, c, s, func(sw *Switch, _ *engine.Batch) (write bool, err error) {
			if of != nil && (*of != sw.ID || sw.State == Off) || sw.State == Ending {
				return false, nil
			}
			if sw.State != Off {
				sw.State = Ending
			}
			return true, nil
		})
		if err != nil || sw.State != Ending || of != nil && *of != sw.ID {
			return err
		}
		of = &sw.ID // Later attempts end this feed, and none that was begun since.
		damaged, err := clean(ctx, c, s, &sw)
		if err != nil {
			return err
		}
		if damaged != nil {
			c.Unknown = false // All batches stand.
			return damaged
		}
		_, err = set(ctx, c, s, func(now *Switch, b *engine.Batch) (write bool, err error) {
			if *now != sw {
				return false, engine.ErrConflict
			}
			now.State = Off
			b.Delete(s.Space.FeedEnd())
			return true, nil
		})
		return err
	})
}

// clean removes a feed that ends: its switch in the heads, the changes without numbers, and the changes with numbers.
// damaged names the heads that can't be read.
func clean(ctx context.Context, c *history.Change, s history.Store, sw *Switch) (damaged, err error) {
	c.Partly = true // Nobody reads the feed any more.
	if damaged, err = sweep(ctx, c, s, sw); err != nil {
		return nil, err
	}
	for _, letter := range []byte{keys.Pending, keys.Change} {
		if err := remove(ctx, c, s, letter, sw); err != nil {
			return nil, err
		}
	}
	return damaged, nil
}

// set changes the record that says whether the feed is on, if edit says so, and returns what it is then. A call that
// finds the feed as it is to be writes the record all the same: a batch of an earlier call, whose outcome is unknown,
// guards what stood there, and so can't come after this call.
func set(ctx context.Context, c *history.Change, s history.Store, edit func(*Switch, *engine.Batch) (write bool, err error)) (sw Switch, err error) {
	key := s.Space.Feed()
	vs, err := s.Engine.Get(ctx, key)
	if err != nil {
		return sw, err
	}
	if sw, err = DecodeSwitch(key, vs[0]); err != nil {
		return sw, err
	}
	b := &engine.Batch{Reclaim: true}
	if write, err := edit(&sw, b); err != nil || !write {
		return sw, err
	}
	sw.Writes++
	b.Guard(key, vs[0])
	b.Set(key, sw.Encode(key))
	return sw, c.Apply(ctx, b)
}

// sweep writes into the head of each session whether the feed is on, so that commits know it without a read. A
// session that is created or renamed meanwhile reads the feed's record itself. damaged names the heads that can't be
// read. The error is a conflict if the feed's record has changed.
func sweep(ctx context.Context, c *history.Change, s history.Store, sw *Switch) (damaged, err error) {
	const most = 10
	var named []error
	more := 0
	for p, err := range s.Engine.Scan(ctx, s.Space.All(keys.Head)) {
		if err == nil {
			err = sweepHead(ctx, c, s, p, sw)
		}
		var corrupt *damage.CorruptError
		switch {
		case err == nil:
		case !errors.As(err, &corrupt):
			return nil, err
		case len(named) == most:
			more++
		default:
			named = append(named, err)
		}
	}
	if more > 0 {
		named = append(named, fmt.Errorf("and %d more", more))
	}
	return errors.Join(named...), nil
}

// sweepHead is sweep for the head in a pair.
func sweepHead(ctx context.Context, c *history.Change, s history.Store, p engine.Pair, sw *Switch) error {
	key, tells := s.Space.Feed(), sw.tells()
	sealed := sw.Encode(key)
	for {
		h, err := head.DecodeHead(p.Key, p.Value)
		if err != nil {
			return codec.Corrupt(err, "head of %s", nameOf(ctx, s, p.Key))
		}
		if h.Tells() == tells {
			return nil
		}
		h.SetFed(tells, time.Time{}) // By no clock: the first commit that tells sets its time.
		b := &engine.Batch{Reclaim: !tells}
		b.Guard(key, sealed)
		b.Guard(p.Key, p.Value)
		b.Set(p.Key, h.Encode(p.Key))
		var conflict *engine.ConflictError
		if err = c.Apply(ctx, b); !errors.Is(err, engine.ErrConflict) || errors.As(err, &conflict) && bytes.Equal(conflict.Key, key) {
			return err
		}
		vs, err := s.Engine.Get(ctx, p.Key)
		if err != nil || vs[0] == nil { // deleted, or renamed
			return err
		}
		p.Value = vs[0]
	}
}

// nameOf returns how to call the session whose head is at a key, as far as that is known.
func nameOf(ctx context.Context, s history.Store, key []byte) string {
	if _, fields, ok := s.Space.Fields(key); ok && len(fields) == len(keys.Hash{}) {
		about := s.Space.About(keys.Hash(fields))
		if vs, err := s.Engine.Get(ctx, about); err == nil {
			if a, err := head.DecodeAbout(about, vs[0]); err == nil {
				return fmt.Sprintf("session %q", a.ID)
			}
		}
	}
	return fmt.Sprintf("the session at key %x", key)
}

// remove deletes all values whose keys have this letter (see package keys). The error is a conflict if the feed's
// record is no longer sw.
func remove(ctx context.Context, c *history.Change, s history.Store, letter byte, sw *Switch) error {
	key := s.Space.Feed()
	for {
		b := &engine.Batch{Reclaim: true}
		b.Guard(key, sw.Encode(key))
		r := s.Space.All(letter)
		r.Limit = 1000
		for p, err := range s.Engine.Scan(ctx, r) {
			if err != nil {
				return err
			}
			b.Delete(p.Key)
		}
		if len(b.Deletes) == 0 {
			return nil
		}
		if err := c.Apply(ctx, b); err != nil {
			return err
		}
	}
}

// Tidy trims the feed if it is on. It also finishes a start or an end that was cut off, because until then nobody gives
// numbers to new changes. A start for which there is no space waits for the next call.
func Tidy(ctx context.Context, s history.Store, now time.Time) error {
	key := s.Space.Feed()
	vs, err := s.Engine.Get(ctx, key)
	if err != nil {
		return err
	}
	sw, err := DecodeSwitch(key, vs[0])
	switch {
	case err != nil:
	case sw.State == Beginning:
		c := &history.Change{Engine: s.Engine}
		if err = c.Result(begin(ctx, c, s, sw, sw.Keep, sw.Records)); errors.Is(err, engine.ErrNoSpace) && !c.Unknown {
			err = nil
		}
	case sw.State == Ending:
		err = stop(ctx, s, &sw.ID)
	case sw.on():
		if _, _, err = Advance(ctx, s, now); err == nil {
			err = Trim(ctx, s, now)
		}
		if err == nil && sw.State == OnInPart {
			c := &history.Change{Engine: s.Engine}
			err = c.Result(begin(ctx, c, s, sw, sw.Keep, sw.Records))
		}
	}
	if errors.Is(err, ErrOff) || errors.Is(err, ErrTrimmed) || errors.Is(err, engine.ErrConflict) { // Somebody else began or ended it.
		err = nil
	}
	return err
}

// Erased says which sessions' ids to remove from the feed: the sessions of Incarnations, and all deleted sessions that
// had one of IDs.
type Erased struct {
	Incarnations []head.Incarnation
	IDs          []string
}

// is reports whether a change is of one of the sessions.
func (e *Erased) is(ctx context.Context, s history.Store, c *Change) (bool, error) {
	if c.Session+c.To == "" {
		return false, nil
	}
	if slices.Contains(e.Incarnations, c.Incarnation) {
		return true, nil
	}
	if !slices.Contains(e.IDs, c.Session) && (c.Kind != Renamed || !slices.Contains(e.IDs, c.To)) {
		return false, nil
	}
	life, err := s.Life(ctx, c.Incarnation)
	return err == nil && (life == nil || life.State == head.Deleted), err
}

// Forget removes the ids of sessions that are deleted from what is in the feed and what is to be. It reads all of it.
func Forget(ctx context.Context, s history.Store, e Erased, now time.Time) error {
	for {
		told, err := forget(ctx, s, keys.Pending, &e)
		if err != nil {
			return err
		}
		// Whoever has read what was told before, with its ids, can't give it a number after this: it has one, or the end
		// has moved.
		if _, _, err := Advance(ctx, s, now); err != nil && !errors.Is(err, ErrOff) {
			return err
		}
		numbered, err := forget(ctx, s, keys.Change, &e)
		if err != nil || !told && !numbered {
			return err
		}
	}
}

// forget is Forget for the records of a letter. It reports whether one of them was changed meanwhile.
func forget(ctx context.Context, s history.Store, letter byte, e *Erased) (conflict bool, err error) {
	for p, err := range s.Engine.Scan(ctx, s.Space.All(letter)) {
		if err != nil {
			return false, err
		}
		_, fields, ok := s.Space.Fields(p.Key)
		if !ok {
			return false, codec.Corrupt(damage.ErrMalformed, "change at key %x", p.Key)
		}
		var c Change
		if letter == keys.Pending {
			c, err = decodePending(p.Key, fields, p.Value)
		} else {
			c, err = DecodeChange(p.Key, keys.ChangeFields(fields), p.Value)
		}
		if err != nil {
			return false, err
		}
		if erased, err := e.is(ctx, s, &c); err != nil || !erased {
			if err != nil {
				return false, err
			}
			continue
		}
		c.Session, c.To = "", ""
		b := &engine.Batch{Reclaim: true}
		b.Guard(p.Key, p.Value)
		if letter == keys.Pending {
			b.Set(p.Key, c.encodePending(p.Key))
		} else {
			b.Set(p.Key, c.Encode(p.Key))
		}
		_, err = engine.ApplyUntilKnown(ctx, s.Engine, b)
		if errors.Is(err, engine.ErrConflict) {
			conflict = true
		} else if err != nil {
			return false, err
		}
	}
	return conflict, nil
}
