// Package head has the records that say where a session stands, and their values that users see: a [Revision],
// the id of a commit, the parts of a checkpoint, and the tokens that were used.
//
//	Head         the revision, the leaf, the last commit, totals: every commit guards and replaces it
//	Commit       a link in a chain of hashes, and State, what the chain adds up to
//	Life         the lifecycle: what excludes tombstones, forks, deletion, sealing and vacuum from each other
//	About        the id of a session, and its metadata
//	Origin       of an attached fork: its ancestors, and how much it shares of each
//	Kept, Tombstone, Entry, Place    kept revisions, hidden nodes, and places in lists
//	Store, CopyNote                  the record of the store, and of a copy into it
//
// Package history reads what these records describe; package commit makes commits.
package head

import (
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// A Revision counts the commits of a session: it is 0 when the session is created, and
// every commit increases it by one.
//
// In JSON it is a number, except for two special values, which not all readers of JSON have as integers:
// turnstone.AnyRevision is "any", and turnstone.RevisionZero is "zero".
type Revision uint64

const (
	anyRevision  = ^Revision(0)
	revisionZero = anyRevision - 1
)

// MarshalJSON returns a number, "any" or "zero".
func (r Revision) MarshalJSON() ([]byte, error) {
	switch r {
	case anyRevision:
		return []byte(`"any"`), nil
	case revisionZero:
		return []byte(`"zero"`), nil
	}
	return strconv.AppendUint(nil, uint64(r), 10), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *Revision) UnmarshalJSON(text []byte) error {
	switch string(text) {
	case `"any"`:
		*r = anyRevision
		return nil
	case `"zero"`:
		*r = revisionZero
		return nil
	}
	n, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		return fmt.Errorf("%.80s is no revision: want a number, \"any\" or \"zero\"", text)
	}
	*r = Revision(n)
	return nil
}

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
func (id CommitID) MarshalText() ([]byte, error) { return codec.AppendHashText(nil, id), nil }

// UnmarshalText reads the form that MarshalText gives.
func (id *CommitID) UnmarshalText(text []byte) (err error) {
	*id, err = codec.ParseHashText(text)
	return err
}

// A Part describes one part of a checkpoint, without its content.
type Part struct {
	Name string   `json:"name"`
	Blob blob.ID  `json:"blob"` // the id of the content
	Size int64    `json:"size"` // of the content, in bytes
	Set  Revision `json:"set"`  // the revision that set the part last; 0 if a fork has it from its parent
	// Whole is the revision that set the nearest version before this one that is
	// stored whole, as a blob. It is Set itself if this version is. Otherwise the
	// session stores this version as a delta: one or more deltas lead to it from the version stored whole.
	Whole Revision `json:"whole"`
}

// Usage counts the tokens of one model, and what they cost. The store only adds the numbers up. So that those of
// different hosts can be compared, Input and Output should have all tokens there were, and the other three say how many
// of them were of a sort. Anthropic reports cached tokens beside the input, and Google thoughts beside the output: a
// host adds these first.
type Usage struct {
	Model       string `json:"model"`
	Input       uint64 `json:"input,omitzero"`       // all tokens of prompts
	Output      uint64 `json:"output,omitzero"`      // all tokens of answers
	CachedInput uint64 `json:"cachedInput,omitzero"` // of Input, those read from the provider's prompt cache
	CacheWrite  uint64 `json:"cacheWrite,omitzero"`  // of Input, those written to it
	Reasoning   uint64 `json:"reasoning,omitzero"`   // of Output, those of thoughts
	Cost        uint64 `json:"cost,omitzero"`        // what the provider charged, in billionths of a US dollar; 0 if it did not say
}

// Add adds v to u, whatever the model of v.
func (u *Usage) Add(v Usage) {
	u.Input += v.Input
	u.Output += v.Output
	u.CachedInput += v.CachedInput
	u.CacheWrite += v.CacheWrite
	u.Reasoning += v.Reasoning
	u.Cost += v.Cost
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
	Name     string   `json:"name"`
	Revision Revision `json:"revision"`
}
