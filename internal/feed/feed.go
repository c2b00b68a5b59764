// Package feed has the changes of all sessions in one order.
//
// Nobody could give every commit a number of one sequence without making all commits wait for each other. So a commit
// tells of itself beside the head, under a key that nobody else writes, and whoever reads the feed first gives
// numbers to what was told since. Numbering is one batch, which guards and sets the record of the feed's end: so each
// change gets one number, whoever else is at it.
//
//	told       [t1 A][t2 B][t3 A]             by the batch of the change, in the order of times
//	numbered   [7 A][8 B][9 A]                by the next reader, who removes what was told
//	trimmed    the oldest, by collections, when they have had their numbers for as long as the feed keeps them
//
// What is told is numbered from one snapshot, the oldest first. The times of one session's commits grow in their order,
// whatever clocks say, because the head has the time of the last one. So the numbers of a session's commits are in their
// order, and a deletion has its number after all that was told of the session. Of two sessions, what was acknowledged
// before something else began has the lower number, unless more than a page waits and clocks differ.
//
// While the feed is off, commits do not look at it: the head of each session says whether they tell. All other
// changes, those of records too, read the record that says whether the feed is on, and guard it. Of the changes of one
// record the order is that of the clocks of those who made them.
package feed

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A Kind says what has changed.
type Kind byte

// The kinds.
const (
	Created Kind = 1 + iota
	Committed
	Saved      // metadata
	Tombstoned // nodes, by a call or a commit
	Renamed
	Deleted
	Record // one record, if the feed has those
	kinds
)

// A Change is one change of a session.
type Change struct {
	Kind        Kind
	Incarnation head.Incarnation
	Session     string        // the id that the session had then; empty if the session was erased
	To          string        // of Renamed the new id, of Record its key; empty if the session was erased
	Revision    head.Revision // of Committed
	Time        time.Time     // when it was told, which for commits grows within a session
	Number      uint64        // in the feed, from 1
	Numbered    time.Time     // when it got its number
}

// A Switch says whether the feed is on. There is no record of it until the feed is first begun or ended.
type Switch struct {
	State   State
	Records bool          // whether changes of records are told
	ID      [16]byte      // random, new whenever the feed is begun
	Keep    time.Duration // how long changes are kept
	Writes  uint64        // how often the record was written, so that no value of it recurs
}

// A State is that of the feed.
type State byte

// The states.
const (
	Off       State = iota
	Beginning       // changes are told, but not all commits are
	On
	Ending   // no change has to be told
	OnInPart // on, and heads that could not be read were passed over
)

// on reports whether the feed can be read.
func (s *Switch) on() bool { return s.State == On || s.State == OnInPart }

// tells reports whether changes have to be told.
func (s *Switch) tells() bool { return s.State == Beginning || s.on() }

// Encode returns s's record for key.
func (s *Switch) Encode(key []byte) []byte {
	body := append([]byte{byte(s.State), 0}, s.ID[:]...)
	if s.Records {
		body[1] = 1
	}
	body = binary.AppendUvarint(binary.AppendUvarint(body, uint64(s.Keep)), s.Writes)
	return codec.Encode(key, keys.Feed, body)
}

// DecodeSwitch decodes the record of key, which may be nil.
func DecodeSwitch(key, value []byte) (s Switch, err error) {
	if value == nil {
		return s, nil
	}
	body, err := codec.Decode(key, value, keys.Feed)
	if err == nil {
		keep, n, m := uint64(0), 0, 0
		if len(body) > 18 {
			s.State, s.Records = State(body[0]), body[1] == 1
			copy(s.ID[:], body[2:])
			keep, n = codec.Uvarint(body[18:])
			s.Writes, m = codec.Uvarint(body[18+max(n, 0):])
			s.Keep = time.Duration(keep)
		}
		if n <= 0 || m <= 0 || 18+n+m != len(body) || body[1] > 1 || s.State > OnInPart || s.Keep < 0 || s.Writes == 0 {
			err = fmt.Errorf("%w: feed", damage.ErrMalformed)
		}
	}
	return s, codec.Corrupt(err, "record of the feed")
}

// An End says which changes are in the feed: those from number First up to, but not including, number Next.
type End struct{ First, Next uint64 }

// Encode returns e's record for key.
func (e End) Encode(key []byte) []byte {
	return codec.Encode(key, keys.FeedEnd, binary.AppendUvarint(binary.AppendUvarint(nil, e.First), e.Next))
}

// DecodeEnd decodes the record of key.
func DecodeEnd(key, value []byte) (e End, err error) {
	body, err := codec.Decode(key, value, keys.FeedEnd)
	if err == nil {
		first, n := codec.Uvarint(body)
		next, m := codec.Uvarint(body[max(n, 0):])
		if e = (End{first, next}); n <= 0 || m <= 0 || n+m != len(body) || first == 0 || first > next {
			err = fmt.Errorf("%w: end of the feed", damage.ErrMalformed)
		}
	}
	return e, codec.Corrupt(err, "end of the feed")
}

// encodePending returns the record of a change that is told of.
func (c *Change) encodePending(key []byte) []byte {
	var e codec.Encoder
	e.Array(4)
	c.append(&e)
	return codec.Encode(key, keys.Pending, e.B)
}

// decodePending decodes the record of key.
func decodePending(key, fields, value []byte) (c Change, err error) {
	body, err := codec.Decode(key, value, keys.Pending)
	if err == nil {
		d := codec.Decoder{B: body}
		d.Shape(4)
		c.decode(&d)
		err = d.Done()
	}
	t, inc := keys.PendingFields(fields)
	c.Time, c.Incarnation = time.Unix(0, int64(t)).UTC(), inc
	return c, codec.Corrupt(err, "change at key %x", key)
}

// Encode returns c's record in the feed for key.
func (c *Change) Encode(key []byte) []byte {
	var e codec.Encoder
	e.Array(7)
	c.append(&e)
	e.Bytes(c.Incarnation[:])
	e.Uint(uint64(c.Time.UnixNano()))
	e.Uint(uint64(max(c.Numbered.UnixNano(), 0)))
	return codec.Encode(key, keys.Change, e.B)
}

// DecodeChange decodes the record of key, which is that of a number.
func DecodeChange(key []byte, number uint64, value []byte) (c Change, err error) {
	body, err := codec.Decode(key, value, keys.Change)
	if err == nil {
		d := codec.Decoder{B: body}
		d.Shape(7)
		c.decode(&d)
		d.Fixed(c.Incarnation[:])
		c.Time, c.Numbered = time.Unix(0, int64(d.Uint())).UTC(), time.Unix(0, int64(d.Uint())).UTC()
		err = d.Done()
	}
	c.Number = number
	return c, codec.Corrupt(err, "change %d of the feed", number)
}

func (c *Change) append(e *codec.Encoder) {
	e.Uint(uint64(c.Kind))
	e.Uint(uint64(c.Revision))
	e.Text(c.Session)
	e.Text(c.To)
}

func (c *Change) decode(d *codec.Decoder) {
	kind := d.Uint()
	if kind == 0 || kind >= uint64(kinds) {
		d.Fail("kind %d", kind)
	}
	c.Kind, c.Revision = Kind(kind), head.Revision(d.Uint())
	c.Session, c.To = d.Text(), d.Text()
}

// Tell makes b tell of a change of the session with head h. A commit sets the time in the head, which is the next
// one. Salt tells changes of one kind apart that others tell of at the same time, by a clock that is behind the
// head's.
func Tell(b *engine.Batch, space *keys.Space, h *head.Head, c Change, salt uint64, now time.Time) {
	if c.Kind != Committed {
		next := *h
		h = &next
	}
	h.SetFed(true, now)
	key := space.Pending(h.Fed>>1, h.Incarnation, byte(c.Kind), salt)
	b.Set(key, c.encodePending(key))
}

// TellsRecords reports whether changes of records have to be told. value is the feed's record.
func TellsRecords(key, value []byte) (bool, error) {
	sw, err := DecodeSwitch(key, value)
	return sw.tells() && sw.Records, err
}

// TellRecord makes b tell that a record of a session has changed. The caller guards the feed's record. Salt is of the
// record and of the call.
func TellRecord(b *engine.Batch, space *keys.Space, inc head.Incarnation, session, record string, salt uint64, now time.Time) {
	c := Change{Kind: Record, Session: session, To: record}
	key := space.Pending(uint64(now.UnixNano()), inc, byte(Record), salt)
	b.Set(key, c.encodePending(key))
}

// TellIfOn is Tell for a change that is no commit. value is the feed's record as it was read, which b guards. TellIfOn
// reports whether commits to the session have to tell of themselves.
func TellIfOn(b *engine.Batch, space *keys.Space, value []byte, h *head.Head, c Change, salt uint64, now time.Time) (on bool, err error) {
	key := space.Feed()
	sw, err := DecodeSwitch(key, value)
	if err != nil {
		return false, err
	}
	b.Guard(key, value)
	if sw.tells() {
		Tell(b, space, h, c, salt, now)
	}
	return sw.tells(), nil
}
