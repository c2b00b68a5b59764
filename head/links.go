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

// SealFork returns the record of an ancestor that names an attached fork. It holds the
// hash of the fork's id at the time of the fork.
func SealFork(key []byte, fork keys.Hash) []byte { return codec.Seal(key, keys.Fork, fork[:]) }

// SealPredecessor returns the record of a session id that names the incarnation which had
// the id last, and when it was deleted or renamed. A request for a new session of the id guards
// the record. It has a new random value at each write, so a delayed attempt of an earlier
// request can't bring the old session back.
func SealPredecessor(key []byte, inc Incarnation, at time.Time) []byte {
	return codec.Seal(key, keys.Predecessor, inc[:], binary.BigEndian.AppendUint64(nil, uint64(at.UnixNano())), random())
}

// OpenPredecessor decodes what SealPredecessor encodes.
func OpenPredecessor(key, value []byte) (inc Incarnation, at time.Time, err error) {
	body, err := codec.Open(key, value, keys.Predecessor)
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

// SealForgotten returns the record that says which predecessor records have been removed: it is
// written anew whenever some are. A request for a new session guards it as well.
func SealForgotten(key []byte) []byte { return codec.Seal(key, keys.Forgotten, random()) }

// SealDirty returns the record that says that a session changed since a collector looked.
// It has a new random value at each write, so that no change hides behind an earlier one.
func SealDirty(key []byte) []byte { return codec.Seal(key, keys.Dirty, random()) }

func random() []byte { return binary.LittleEndian.AppendUint64(nil, rand.Uint64()) }
