package heads

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/record"
)

// An OrderEntry is a session's entry in the order of sessions by last update. Another
// record of the session holds the time, so that the entry can be found and moved.
type OrderEntry struct {
	Time        uint64 // nanoseconds since 1970
	Incarnation Incarnation
	Session     keys.Hash // of the session's id
}

// Seal returns the entry as a record.
func (e *OrderEntry) Seal(space *keys.Space) (key, value []byte) {
	key = space.Order(e.Time, e.Incarnation)
	return key, codec.Seal(key, keys.Order, e.Session[:])
}

// OpenOrder decodes what Seal encodes.
func OpenOrder(space *keys.Space, p engine.Pair) (e OrderEntry, err error) {
	_, fields, ok := space.Fields(p.Key)
	body, err := codec.Open(p.Key, p.Value, keys.Order)
	if err == nil && (!ok || len(body) != len(e.Session)) {
		err = fmt.Errorf("%w: order", record.ErrMalformed)
	}
	if err != nil {
		return e, codec.Corrupt(err, "order of sessions at key %x", p.Key)
	}
	e.Time = ^binary.BigEndian.Uint64(fields)
	copy(e.Incarnation[:], fields[8:])
	copy(e.Session[:], body)
	return e, nil
}

// SealOrderTime returns the record of the time under which a session's entry in the order
// of sessions is found.
func SealOrderTime(key []byte, time uint64) []byte {
	return codec.Seal(key, keys.OrderTime, binary.BigEndian.AppendUint64(nil, time))
}

// OpenOrderTime decodes what SealOrderTime encodes. It reports false for a record that is
// missing or damaged: the entry is then made anew.
func OpenOrderTime(key, value []byte) (time uint64, ok bool) {
	body, err := codec.Open(key, value, keys.OrderTime)
	if err != nil || len(body) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(body), true
}

// OrderWindow is how old the entry of a session in the order by last update has to be for an
// update to move it. Moving it at every commit would leave so many deleted keys that a list
// takes 90 ms for its first page after a million commits of 64 sessions; with four moves a
// second it takes 1 ms. So a session that was updated at time T has an entry of a time t with
// t <= T < t+OrderWindow, and package list sorts by the times in the heads: it reads all sessions
// that have an entry within one window, which are many only if they were created in a burst
// (5,000 at 20,000 a second).
const OrderWindow = 250 * time.Millisecond

// AddToOrder makes b add a session to the order, and returns the record of its time there.
func AddToOrder(b *engine.Batch, space *keys.Space, inc Incarnation, session keys.Hash, now time.Time) []byte {
	entry := OrderEntry{Time: uint64(now.UnixNano()), Incarnation: inc, Session: session}
	b.Set(entry.Seal(space))
	key := space.OrderTime(inc)
	record := SealOrderTime(key, entry.Time)
	b.Set(key, record)
	return record
}

// MoveInOrder makes b move a session to the front of the order, if its entry is older than
// the window. old is the record of its time there. An entry that is missing or damaged is
// made anew.
func MoveInOrder(b *engine.Batch, space *keys.Space, inc Incarnation, session keys.Hash, old []byte, now time.Time) {
	key := space.OrderTime(inc)
	at, ok := OpenOrderTime(key, old)
	if ok && uint64(now.UnixNano()) < at+uint64(OrderWindow) {
		return
	}
	if ok {
		b.Delete(space.Order(at, inc))
	}
	b.Guard(key, old)
	AddToOrder(b, space, inc, session, now)
}

// RemoveFromOrder makes b take a session out of the order. old is the record of its time
// there.
func RemoveFromOrder(b *engine.Batch, space *keys.Space, inc Incarnation, old []byte) {
	key := space.OrderTime(inc)
	if at, ok := OpenOrderTime(key, old); ok {
		b.Delete(space.Order(at, inc))
	}
	b.Delete(key)
}
