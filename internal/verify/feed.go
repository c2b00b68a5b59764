package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/feed"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file checks the feed: as long as it is on, all changes between its ends are there, and commits to all sessions
// tell.

// feedChanges checks the records of the feed.
func (v *verifier) feedChanges(ctx context.Context) error {
	ks := [][]byte{v.store.Space.Feed(), v.store.Space.FeedEnd()}
	before, err := v.store.Engine.Get(ctx, ks...)
	if err != nil {
		return err
	}
	known, err := feed.DecodeSwitch(ks[0], before[0])
	if err != nil {
		return v.other(err)
	}
	var numbers []uint64
	for p, err := range v.store.Engine.Scan(ctx, v.store.Space.Changes(known.ID)) {
		if err != nil {
			return err
		}
		if _, fields, ok := v.store.Space.Fields(p.Key); ok {
			numbers = append(numbers, keys.ChangeFields(fields))
		}
	}
	after, err := v.store.Engine.Get(ctx, ks...)
	if err != nil || !bytes.Equal(before[0], after[0]) { // The feed was begun or ended meanwhile.
		return err
	}
	switch known.State {
	case feed.Off:
		return v.noFeed(ctx, before)
	case feed.Ending:
		return nil // A part of it may be removed.
	}
	first, err := feed.DecodeEnd(ks[1], before[1])
	if err != nil {
		return v.other(err)
	}
	last, err := feed.DecodeEnd(ks[1], after[1])
	if err != nil {
		return v.other(err)
	}
	// What was in the feed before the scan, and was not trimmed after it.
	next := last.First
	for _, n := range numbers {
		if n >= next && next < first.Next {
			if n > next {
				break
			}
			next++
		}
	}
	if next < first.Next {
		v.problem(damage.ErrMissing, "change %d of the feed", next)
	}
	return nil
}

// noFeed checks that nothing is left of a feed that was off when its records had these values.
func (v *verifier) noFeed(ctx context.Context, values [][]byte) error {
	end := values[1] != nil
	for _, letter := range []byte{keys.Pending, keys.Change} {
		r := v.store.Space.All(letter)
		r.Limit = 1
		for _, err := range v.store.Engine.Scan(ctx, r) {
			if err != nil {
				return err
			}
			end = true
		}
	}
	if !end {
		return nil
	}
	now, err := v.store.Engine.Get(ctx, v.store.Space.Feed())
	if err == nil && bytes.Equal(now[0], values[0]) { // else it was begun meanwhile, and may have been ended again
		v.problem(damage.ErrMissing, "record of the feed")
	}
	return err
}

// other makes a record that is damaged a problem, unless the scan has reported it, and returns any other error.
func (v *verifier) other(err error) error {
	var corrupt *damage.CorruptError
	if !errors.As(err, &corrupt) || errors.Is(err, damage.ErrFormat) {
		return err
	}
	if errors.Is(err, damage.ErrMissing) {
		v.problem(err, "feed")
	}
	return nil
}

// tells checks that commits to a session tell the feed of themselves, if that is on, and do not if it is off. value
// is the feed's record as it stood when the head did.
func (v *verifier) tells(ses *checkedSession, h *head.Head, value []byte) {
	sw, err := feed.DecodeSwitch(v.store.Space.Feed(), value)
	if err == nil && (sw.State == feed.On && !h.Tells() || sw.State == feed.Off && h.Tells()) {
		v.problem(fmt.Errorf("%w: whether commits tell the feed differs from the feed's record", damage.ErrMissing), "head of %s", ses.Name)
	}
}
