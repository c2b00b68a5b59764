// A record is one value in the engine. A second value lists it among the records of all sessions, in the
// order of their keys. A record whose key begins with a dot is not listed. Both are written and deleted
// together, so where only one of them stands, the store is damaged.

package session

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A RecordVersion is what a record gets whenever it is set. It never recurs.
type RecordVersion [16]byte

// NewRecordVersion returns the version of a record that was set by what has the seed: a commit, by its id,
// or else random bytes. So a commit that is repeated tells the same versions.
func NewRecordVersion(seed [codec.HashSize]byte, inc keys.Incarnation, key string) (v RecordVersion) {
	sum := codec.RecordHash.Sum(seed[:], inc[:], []byte(key))
	copy(v[:], sum[:])
	return v
}

func (v RecordVersion) String() string { return hex.EncodeToString(v[:]) }

// ParseRecordVersion reads the form that String gives, and no other.
func ParseRecordVersion(text string) (v RecordVersion, ok bool) {
	n, err := hex.Decode(v[:], []byte(text[:min(len(text), 2*len(v))]))
	return v, err == nil && n == len(v) && v.String() == text
}

// A Record is a record of a session.
type Record struct {
	Key     string
	Value   []byte
	Version RecordVersion
	Time    time.Time // when it was set
}

// MaxRecord bounds the value of a record.
const MaxRecord = 64 << 10

const fixed = len(RecordVersion{}) + 8 // bytes of the body before the value

// Encode returns r's value for a key of the engine.
func (r *Record) Encode(key []byte) []byte {
	body := append(make([]byte, 0, fixed+16+len(r.Value)), r.Version[:]...)
	body = binary.BigEndian.AppendUint64(body, uint64(r.Time.UnixNano()))
	return codec.Encode(key, keys.Record, codec.Compress(body, r.Value, codec.Fast))
}

// DecodeRecord decodes the value of a key of the engine, which is of the record called name.
func DecodeRecord(key []byte, name string, value []byte) (*Record, error) {
	r := &Record{Key: name}
	body, err := decode(key, value, r)
	if err == nil {
		r.Value, err = codec.Decompress(body, nil, MaxRecord)
	}
	return r, err
}

// DecodeRecordVersion returns the version alone.
func DecodeRecordVersion(key, value []byte) (RecordVersion, error) {
	var r Record
	_, err := decode(key, value, &r)
	return r.Version, err
}

// decode sets what stands before the value, and returns that.
func decode(key, value []byte, r *Record) ([]byte, error) {
	body, err := codec.Decode(key, value, keys.Record)
	if err != nil {
		return nil, err
	}
	if len(body) < fixed {
		return nil, fmt.Errorf("%w: record", damage.ErrMalformed)
	}
	copy(r.Version[:], body)
	r.Time = time.Unix(0, int64(binary.BigEndian.Uint64(body[len(r.Version):]))).UTC()
	return body[fixed:], nil
}

// RecordListed reports whether a record of this key is in the list of all sessions' records.
func RecordListed(key string) bool { return !strings.HasPrefix(key, ".") }

// EncodeListing returns the value of a key of that list.
func EncodeListing(key []byte) []byte { return codec.Encode(key, keys.Listing) }

// DecodeListing checks the value of such a key.
func DecodeListing(key, value []byte) error {
	body, err := codec.Decode(key, value, keys.Listing)
	if err == nil && len(body) > 0 {
		err = fmt.Errorf("%w: list of records", damage.ErrMalformed)
	}
	return err
}
