// Package head has the types that say where a session stands: its revision, the id of its
// commit, the parts of its checkpoint and the tokens that it has used. The stored record of a head
// is in package internal/heads.
package head

import (
	"encoding/hex"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/internal/hash"
)

// A Revision counts the commits of a session: it is 0 when the session is created, and
// every commit increases it by one.
type Revision uint64

// CommitID identifies a commit and, because it is the hash of a record that has the id of
// the commit before, all earlier commits of the session. The zero CommitID is no commit's.
//
// As text, in JSON too, an id is 64 lower-case hex digits, and the zero id is empty.
type CommitID [32]byte

// String returns the id in lower-case hex.
func (id CommitID) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether id is no commit's.
func (id CommitID) IsZero() bool { return id == CommitID{} }

// MarshalText returns the id in lower-case hex, or nothing if it is zero.
func (id CommitID) MarshalText() ([]byte, error) { return hash.AppendText(nil, id), nil }

// UnmarshalText reads the form that MarshalText gives.
func (id *CommitID) UnmarshalText(text []byte) (err error) {
	*id, err = hash.ParseText(text)
	return err
}

// A Part describes one part of a checkpoint, without its content.
type Part struct {
	Name string
	Blob blob.ID  // the id of the content
	Size int64    // of the content, in bytes
	Set  Revision // the revision that set the part last; 0 if a fork has it from its parent
	// Whole is the revision that set the nearest version before this one that is
	// stored whole, as a blob. It is Set itself if this version is. Otherwise the
	// session stores this version as a delta, some deltas away from that one.
	Whole Revision
}

// Usage counts the tokens of one model.
type Usage struct {
	Model       string
	Input       uint64 // prompt tokens, the cached ones included or not as the provider counts
	Output      uint64
	CachedInput uint64 // read from the provider's prompt cache
	CacheWrite  uint64 // written to it
	Reasoning   uint64
}

// Add adds v to u, whatever the model of v.
func (u *Usage) Add(v Usage) {
	u.Input += v.Input
	u.Output += v.Output
	u.CachedInput += v.CachedInput
	u.CacheWrite += v.CacheWrite
	u.Reasoning += v.Reasoning
}

// AddUsage adds more to total, model by model, and returns it; models that total lacks come
// after those that it has. Like append, it may change total's array.
func AddUsage(total, more []Usage) []Usage {
next:
	for _, u := range more {
		for i := range total {
			if total[i].Model == u.Model {
				total[i].Add(u)
				continue next
			}
		}
		total = append(total, u)
	}
	return total
}

// A Kept revision has a name, and can be read whatever retention says.
type Kept struct {
	Name     string
	Revision Revision
}
