package head

import (
	"encoding/binary"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
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
		err = fmt.Errorf("%w: order", codec.ErrMalformed)
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
