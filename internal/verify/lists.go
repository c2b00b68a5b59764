package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file checks lists: each session has an entry in the lists that its metadata say, at the
// place that its record of the place says, and each entry is one of these.

// lists checks that a session is where lists look for it. It says nothing of a session that moves
// whenever lists reads: its entries are made anew each time.
func (v *verifier) lists(ctx context.Context, ses *checkedSession) error {
	const attempts = 10
	for range attempts {
		at, value, err := v.place(ctx, ses)
		if err != nil || at == nil {
			return err
		}
		if again, err := v.listed(ctx, ses, at, value); err != nil || !again {
			return err
		}
	}
	return nil
}

// place checks a session's place against its metadata, and returns it and its record. The place
// is nil if the check finds a problem.
func (v *verifier) place(ctx context.Context, ses *checkedSession) (*head.Place, []byte, error) {
	key := v.store.Space.Place(ses.Inc)
	h, vs, err := ses.readHead(ctx, ses.AboutKey, key)
	if err != nil {
		return nil, nil, err
	}
	about, err := ses.DecodeAbout(vs[0])
	if err != nil {
		return nil, nil, err
	}
	if o := ses.Origin; o != nil && len(o.Ancestors) > 0 && o.Ancestors[len(o.Ancestors)-1].Incarnation != about.Parent {
		v.problem(fmt.Errorf("%w: it forked from another session than its parent", damage.ErrHash), "metadata of session %q", ses.ID)
	}
	at, err := head.DecodePlace(key, vs[1])
	if err == nil && !slices.Equal(at.Lists, head.ListsOf(v.store.Space, about)) {
		err = fmt.Errorf("%w: these are not the lists of its metadata", damage.ErrHash)
	}
	if err == nil && !at.Fits(about.LastUpdate(h)) {
		err = fmt.Errorf("%w: the session was updated later than that", damage.ErrHash)
	}
	if err != nil {
		v.problem(err, "place in lists of session %q", ses.ID)
		return nil, nil, nil
	}
	return at, vs[1], nil
}

// listed checks that a session whose place is at has its entries. value is the record of the
// place. listed reports whether the session has moved meanwhile, and is to be checked again.
func (v *verifier) listed(ctx context.Context, ses *checkedSession, at *head.Place, value []byte) (again bool, err error) {
	entries := at.Entries(ses.Inc, ses.Hash)
	ks := [][]byte{ses.HeadKey, v.store.Space.Place(ses.Inc)}
	for _, e := range entries {
		ks = append(ks, v.store.Space.Entry(e.List, e.Time, e.Incarnation))
	}
	vs, err := v.store.Engine.Get(ctx, ks...)
	if err != nil {
		return false, err
	}
	if vs[0] == nil || !bytes.Equal(vs[1], value) { // It was renamed or deleted, or it has moved.
		return true, nil
	}
	for i, e := range entries {
		p := engine.Pair{Key: ks[2+i], Value: vs[2+i]}
		found, err := head.DecodeEntry(v.store.Space, p)
		switch {
		case p.Value == nil:
			err = damage.ErrMissing
		case err == nil && found != e:
			err = damage.ErrHash
		}
		v.problem(err, "list entry of session %q", ses.ID)
		delete(v.entries, string(p.Key))
	}
	return false, nil
}

// strayEntries checks the entries that the scan has found and that no session was found to have.
// Most of them are of sessions that moved or were deleted meanwhile.
func (v *verifier) strayEntries(ctx context.Context) error {
	for _, key := range slices.Sorted(maps.Keys(v.entries)) {
		if err := v.strayEntry(ctx, []byte(key)); err != nil {
			return err
		}
	}
	return nil
}

func (v *verifier) strayEntry(ctx context.Context, key []byte) error {
	_, fields, _ := v.store.Space.Fields(key)
	list, time, inc := keys.EntryFields(fields)
	placeKey := v.store.Space.Place(inc)
	vs, err := v.store.Engine.Get(ctx, key, placeKey)
	if err != nil || vs[0] == nil {
		return err
	}
	at, err := head.DecodePlace(placeKey, vs[1])
	if err == nil && at.Has(&head.Entry{List: list, Time: time}) || err != nil && vs[1] != nil {
		return nil // The scan has reported a place that is damaged.
	}
	v.problem(codec.Corrupt(errors.New("the session has no such entry"), "list entry of %s at key %x", v.name(inc), key), "")
	return nil
}
