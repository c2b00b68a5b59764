package head

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// EncodeErased returns the record for key that a session, or a node of it, was erased at a time.
func EncodeErased(key []byte, at time.Time) []byte {
	return codec.Encode(key, keys.Erased, binary.BigEndian.AppendUint64(nil, uint64(at.UnixNano())))
}

// DecodeErased returns the time in the record of key.
func DecodeErased(key, value []byte) (time.Time, error) {
	body, err := codec.Decode(key, value, keys.Erased)
	if err != nil {
		return time.Time{}, err
	}
	if len(body) != 8 {
		return time.Time{}, fmt.Errorf("%w: an erasure of %d bytes", damage.ErrMalformed, len(body))
	}
	return time.Unix(0, int64(binary.BigEndian.Uint64(body))).UTC(), nil
}
