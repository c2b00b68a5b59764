package commit

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/feed"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/session"
)

// A keeper makes what a call writes to the records of one participant.
type keeper struct {
	*call
	s        *history.Session
	in       *Request
	writer   int      // its index in call.writers, or -1 if there is no commit
	keys     [][]byte // for each of in.Records, its key in the engine
	values   [][]byte // for each key, the value in the store, if the request expects one
	life     []byte   // the session's lifecycle record, if there is no commit and the session exists
	birth             // of the session, if there is no commit
	sealed   [][]byte // for each key, the encoded value to write, or nil
	versions []session.RecordVersion
}

func newKeeper(c *call, p Participant, writer int) keeper {
	k := keeper{call: c, in: p.Request, writer: writer}
	n := len(k.in.Records)
	k.keys, k.sealed, k.versions = make([][]byte, n), make([][]byte, n), make([]session.RecordVersion, n)
	if writer < 0 {
		k.creator = p.Creator
	}
	if p.Session != nil {
		k.of(p.Session)
	}
	return k
}

// of sets the session that the keeper is for.
func (k *keeper) of(s *history.Session) {
	k.s, k.values = s, make([][]byte, len(k.in.Records))
	for i := range k.in.Records {
		k.keys[i] = s.Space.Record(s.Inc, k.in.Records[i].Key)
	}
}

// checkRecords fails if a record is not of the version that a request expects. It also fails if a session whose
// records alone are changed was deleted. It believes what this call or another one has seen, as long as no guard
// was false.
func (c *call) checkRecords(ctx context.Context) error {
	for {
		if err := c.readRecords(ctx); err != nil {
			return err
		}
		var err error
		for i := range c.keepers {
			if err = c.keepers[i].check(ctx); err != nil {
				break
			}
		}
		if err == nil || c.recordsRead {
			return err
		}
		c.recordsFresh = true
	}
}

// readRecords sets the values that the batch is to guard. Without a reason to doubt it, the feed's record is taken to be
// what another call has read, or not to be there.
func (c *call) readRecords(ctx context.Context) error {
	if c.recordsRead {
		return nil
	}
	var ks [][]byte
	var at []*[]byte
	need := func(key []byte, value *[]byte) {
		if *value = c.store.Recent.get(key); *value == nil || c.recordsFresh {
			ks, at = append(ks, key), append(at, value)
		}
	}
	if c.changesRecords() {
		if c.feed = c.store.Recent.get(c.feedKey()); c.recordsFresh {
			need(c.feedKey(), &c.feed)
		}
	}
	for i := range c.keepers {
		k := &c.keepers[i]
		if k.born != nil {
			continue
		}
		if k.writer < 0 {
			need(k.s.LifeKey, &k.life)
		}
		for j := range k.in.Records {
			if e := k.in.Records[j].Expect; e.Version != (session.RecordVersion{}) || e.Absent && c.recordsFresh {
				need(k.keys[j], &k.values[j])
			}
		}
	}
	c.recordsRead = c.recordsFresh
	if len(ks) == 0 {
		return nil
	}
	values, err := c.Engine.Get(ctx, ks...)
	if err != nil {
		return err
	}
	for i, v := range values {
		*at[i] = v
		c.store.Recent.put(ks[i], v)
	}
	return nil
}

// check fails if a record is not what the request expects.
func (k *keeper) check(ctx context.Context) error {
	if k.writer < 0 && k.born == nil {
		life, err := k.s.DecodeLife(ctx, k.life)
		if err == nil && life.Session != k.s.Hash {
			err = fmt.Errorf("%w: %q", history.ErrSessionDeleted, k.s.ID) // It was renamed.
		}
		if err != nil {
			return err
		}
	}
	for i := range k.in.Records {
		c := &k.in.Records[i]
		if c.Expect == (Expectation{}) {
			continue
		}
		have, err := k.version(i)
		if err != nil {
			return err
		}
		if have != c.Expect.Version {
			return &RecordConflict{Session: k.s.ID, Key: c.Key, Expected: c.Expect.Version, Version: have}
		}
	}
	return nil
}

// version returns the version of a record that was read, or zero if it is not there.
func (k *keeper) version(i int) (v session.RecordVersion, err error) {
	if k.values[i] != nil {
		v, err = session.DecodeRecordVersion(k.keys[i], k.values[i])
	}
	return v, codec.Corrupt(err, "record %q of %s", k.in.Records[i].Key, k.s.Name)
}

// seed returns the seed of the versions that the keeper gives. It is the id of its participant's commit. If the
// participant has none, it is the smallest id of the call's commits: so a call that is repeated gives the same
// versions, in whatever order its participants are. If the call has none, it is random, and not from Options.Random,
// which may repeat itself. commitOf returns the id of a writer's commit.
func (k *keeper) seed(commitOf func(writer int) head.CommitID) (seed [codec.HashSize]byte) {
	if k.writer >= 0 {
		return commitOf(k.writer)
	}
	for i := range k.writers {
		if id := commitOf(i); i == 0 || bytes.Compare(id[:], seed[:]) < 0 {
			seed = id
		}
	}
	if len(k.writers) > 0 {
		return seed
	}
	if k.random == ([codec.HashSize]byte{}) {
		rand.Read(k.random[:])
	}
	return k.random
}

func (c *call) feedKey() []byte { return c.store.Space.Feed() }

// changesRecords reports whether the call changes any records.
func (c *call) changesRecords() bool {
	return slices.ContainsFunc(c.keepers, func(k keeper) bool {
		return slices.ContainsFunc(k.in.Records, func(r RecordChange) bool { return r.Action != CheckRecord })
	})
}

// addRecords adds all changes of records to the batch. A batch that changes records guards the feed's record.
func (c *call) addRecords() error {
	if c.changesRecords() {
		var err error
		if c.tellsRecords, err = feed.TellsRecords(c.feedKey(), c.feed); err != nil {
			return err
		}
		c.batch.Guard(c.feedKey(), c.feed)
	}
	for i := range c.keepers {
		c.keepers[i].add(c.batch)
	}
	return nil
}

// add adds the changes to the batch.
func (k *keeper) add(b *engine.Batch) {
	if k.writer < 0 && k.born == nil {
		b.Guard(k.s.LifeKey, k.life)
	}
	seed := k.seed(func(i int) head.CommitID { return k.writers[i].built.turn.ID })
	for i := range k.in.Records {
		c, key := &k.in.Records[i], k.keys[i]
		listing := k.s.Space.Listing(c.Key, k.s.Inc)
		if k.tellsRecords && c.Action != CheckRecord {
			v := session.NewRecordVersion(seed, k.s.Inc, c.Key) // differs for each call and record
			feed.TellRecord(b, k.s.Space, k.s.Inc, k.s.ID, c.Key, binary.BigEndian.Uint64(v[:8]), k.now)
		}
		known := c.Expect != (Expectation{})
		if known {
			b.Guard(key, k.values[i])
		}
		switch c.Action {
		case SetRecord:
			r := session.Record{Value: c.Value, Version: session.NewRecordVersion(seed, k.s.Inc, c.Key), Time: k.now}
			if c.As != nil {
				r.Version, r.Time = c.As.Version, c.As.Time
			}
			k.versions[i], k.sealed[i] = r.Version, r.Encode(key)
			b.Set(key, k.sealed[i])
			if session.RecordListed(c.Key) && (!known || c.Expect.Absent) {
				b.Set(listing, session.EncodeListing(listing))
			}
		case DeleteRecord:
			b.Delete(key)
			if session.RecordListed(c.Key) {
				b.Delete(listing)
			}
		case CheckRecord:
			k.versions[i] = c.Expect.Version
		}
	}
}

// done notes what stands now, and returns the versions.
func (k *keeper) done() []session.RecordVersion {
	for i := range k.in.Records {
		if k.in.Records[i].Action != CheckRecord {
			k.store.Recent.put(k.keys[i], k.sealed[i])
		}
	}
	return k.versions
}

// again returns the versions that an earlier call has given, which made these commits.
func (k *keeper) again(commits []Result) []session.RecordVersion {
	seed := k.seed(func(i int) head.CommitID { return commits[i].Commit })
	out := make([]session.RecordVersion, len(k.in.Records))
	if k.born != nil { // The session that had them is gone.
		return out
	}
	for i := range out {
		switch c := &k.in.Records[i]; c.Action {
		case SetRecord:
			out[i] = session.NewRecordVersion(seed, k.s.Inc, c.Key)
		case CheckRecord:
			out[i] = c.Expect.Version
		}
	}
	return out
}

// apply applies the batch. One that makes no commit may guard nothing that it changes, so that it would
// succeed again: over what others have done since. It is applied once, and if its outcome is unknown, what it
// guards is changed. So it can't come late either, and what stands tells. A session is made once.
func (c *call) apply(ctx context.Context) error {
	if len(c.writers) > 0 || slices.ContainsFunc(c.births(), func(b *birth) bool { return b.born != nil }) {
		return c.Apply(ctx, c.batch)
	}
	err := c.Engine.Apply(ctx, c.batch)
	if !errors.Is(err, engine.ErrUnknown) {
		return err
	}
	c.Unknown = true
	k := &c.keepers[0]
	life, err := head.DecodeLife(k.s.LifeKey, k.life)
	if err != nil {
		return err
	}
	next := life.Next()
	var fence engine.Batch
	fence.Guard(k.s.LifeKey, k.life)
	fence.Set(k.s.LifeKey, next.Encode(k.s.LifeKey))
	if err := c.Apply(ctx, &fence); err != nil && !errors.Is(err, engine.ErrConflict) {
		return err
	}
	return engine.ErrConflict
}

// recordsOutcome finds out whether an earlier attempt of a call without commits stands. If a record has the version that
// the call gives, the attempt stands, and the error is errStands. If a record still has the version that the call
// expects, the attempt does not stand, as no version recurs.
func (c *call) recordsOutcome(ctx context.Context, conflict error) error {
	if !c.Unknown {
		return nil
	}
	for _, b := range c.births() {
		if b.born == nil {
			continue
		}
		made, err := b.creator.Made(ctx) // All was in one batch.
		if made {
			err = errStands
		}
		return err
	}
	untouched := false
	for i := range c.keepers {
		k := &c.keepers[i]
		values, err := c.Engine.Get(ctx, k.keys...)
		if err != nil {
			return err
		}
		for j, value := range values {
			e := k.in.Records[j].Expect
			if value == nil {
				continue
			}
			v, err := session.DecodeRecordVersion(k.keys[j], value)
			if err != nil {
				return codec.Corrupt(err, "record %q of %s", k.in.Records[j].Key, k.s.Name)
			}
			if k.sealed[j] != nil && bytes.Equal(value, k.sealed[j]) {
				return errStands
			}
			untouched = untouched || k.in.Records[j].Action != CheckRecord && v == e.Version
		}
	}
	if untouched {
		c.Unknown = false
		return nil
	}
	return fmt.Errorf("%w: %w", history.ErrMayStand, conflict)
}
