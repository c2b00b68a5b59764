package head

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// EncodeFork returns the record of an ancestor that names an attached fork. It holds the
// hash of the fork's id at the time of the fork.
func EncodeFork(key []byte, fork keys.Hash) []byte { return codec.Encode(key, keys.Fork, fork[:]) }

// EncodePredecessor returns the record of a session id that names the incarnation which had
// the id last, and when it was deleted or renamed. A request for a new session of the id guards
// the record. It has a new random value at each write, so a delayed attempt of an earlier
// request can't bring the old session back.
func EncodePredecessor(key []byte, inc Incarnation, at time.Time) []byte {
	return codec.Encode(key, keys.Predecessor, inc[:], binary.BigEndian.AppendUint64(nil, uint64(at.UnixNano())), random())
}

// DecodePredecessor decodes what EncodePredecessor encodes.
func DecodePredecessor(key, value []byte) (inc Incarnation, at time.Time, err error) {
	body, err := codec.Decode(key, value, keys.Predecessor)
	if err == nil && len(body) != 32 {
		err = fmt.Errorf("%w: predecessor", damage.ErrMalformed)
	}
	if err != nil {
		return inc, at, err
	}
	copy(inc[:], body)
	return inc, time.Unix(0, int64(binary.BigEndian.Uint64(body[16:]))).UTC(), nil
}

// Remembered is for how long a predecessor record stays. A creation that looks sooner whether it was made finds it.
const Remembered = time.Hour

// EncodeForgotten returns the record that says which predecessor records have been removed: it is
// written anew whenever some are. A request for a new session guards it as well.
func EncodeForgotten(key []byte) []byte { return codec.Encode(key, keys.Forgotten, random()) }

// EncodeDirty returns the record that says that a session changed since a collector looked.
// It has a new random value at each write, so that no change hides behind an earlier one.
func EncodeDirty(key []byte) []byte { return codec.Encode(key, keys.Dirty, random()) }

func random() []byte { return binary.LittleEndian.AppendUint64(nil, rand.Uint64()) }
