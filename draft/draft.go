// Package draft keeps the part of a turn that is there already, such as the text that a model has streamed so far,
// until the commit of the turn takes its place. So a host that was killed goes on with what its users have seen.
//
// A draft is records of a session (see turnstone.Record): pieces of 16 KiB, of which Set writes those
// that have changed. It is no part of the history: no revision has it, and a fork begins without it.
package draft

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/turnstonedb/turnstone"
)

// Max is how many bytes a draft has at most.
const Max = pieces * piece

const (
	piece  = 16 << 10 // bytes of a record
	pieces = 64
	prefix = ".draft/" // With a dot, so that the list of all sessions' records does not have them.
)

// A Draft is what stands of a turn. It is used by one goroutine at a time.
type Draft struct {
	session  turnstone.Persistence
	name     string
	content  []byte
	versions []turnstone.RecordVersion // of the pieces
}

// key returns the key of the record that has a piece.
func key(name string, i int) string { return fmt.Sprintf("%s%s/%02d", prefix, name, i) }

// Open returns the draft of a name, for example the id of the turn, with what stands of it.
func Open(ctx context.Context, s turnstone.Persistence, name string) (*Draft, error) {
	if s == nil || name == "" {
		return nil, &turnstone.InvalidError{Where: "draft", Reason: "the session is nil or the name is empty"}
	}
	keys := make([]string, pieces)
	for i := range keys {
		keys[i] = key(name, i)
	}
	st, err := s.Load(ctx, turnstone.Scope{Last: 1, Records: keys})
	if err != nil {
		return nil, err
	}
	d := &Draft{session: s, name: name}
	for _, k := range keys {
		r := st.Records[k]
		if r.Version == turnstone.NoRecord {
			break
		}
		d.content, d.versions = append(d.content, r.Value...), append(d.versions, r.Version)
	}
	return d, nil
}

// Content returns what stands. It is the caller's.
func (d *Draft) Content() []byte { return bytes.Clone(d.content) }

// Set replaces what stands, all of it or nothing, in one call of the store. It writes the pieces that have
// changed: the last one if content has grown at its end. A draft without content is none. If somebody else has written the
// draft since it was opened, the error is a *turnstone.RecordConflictError. After an error, open the draft again.
func (d *Draft) Set(ctx context.Context, content []byte) error {
	if len(content) > Max {
		return &turnstone.LimitError{Limit: "draft bytes", Have: int64(len(content)), Max: Max}
	}
	var changes []turnstone.RecordChange
	var changed []int
	versions := slices.Clone(d.versions)
	was := slices.Collect(slices.Chunk(d.content, piece))
	i := 0
	for p := range slices.Chunk(content, piece) {
		c := turnstone.RecordChange{Key: key(d.name, i), Value: p, Expect: turnstone.NoRecord}
		if i < len(was) {
			c.Expect = d.versions[i]
		} else {
			versions = append(versions, "")
		}
		if i >= len(was) || !bytes.Equal(p, was[i]) {
			changes, changed = append(changes, c), append(changed, i)
		}
		i++
	}
	changes = append(changes, d.drop(i)...)
	if len(changes) == 0 {
		return nil
	}
	set, err := d.session.ChangeRecords(ctx, changes...)
	if err != nil {
		return err
	}
	for n, i := range changed {
		versions[i] = set[n]
	}
	d.content, d.versions = bytes.Clone(content), versions[:i]
	return nil
}

// Append adds to the end of what stands: see Set. Every call writes up to 16 KiB, so a host should gather what comes within a
// fraction of a second.
func (d *Draft) Append(ctx context.Context, more []byte) error {
	return d.Set(ctx, slices.Concat(d.content, more))
}

// Done returns the changes of records that remove the draft. With them in Commit.Records the turn takes the place of
// its draft: both stand or neither. The commit is refused with a *turnstone.RecordConflictError if somebody else has written the draft.
func (d *Draft) Done() []turnstone.RecordChange { return d.drop(0) }

// drop returns the changes that remove the pieces from the i-th on.
func (d *Draft) drop(i int) (out []turnstone.RecordChange) {
	for ; i < len(d.versions); i++ {
		out = append(out, turnstone.RecordChange{Key: key(d.name, i), Action: turnstone.DeleteRecord, Expect: d.versions[i]})
	}
	return out
}

// Names returns the names of the drafts that a session has, in byte order.
func Names(ctx context.Context, s turnstone.Persistence) (names []string, err error) {
	if s == nil {
		return nil, &turnstone.InvalidError{Where: "draft", Reason: "the session is nil"}
	}
	for q := (turnstone.RecordQuery{Prefix: prefix}); ; {
		page, err := s.Records(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range page.Records {
			if name, first := strings.CutSuffix(page.Records[i].Key[len(prefix):], "/00"); first {
				names = append(names, name)
			}
		}
		if q.After = page.Next; q.After == "" {
			return names, nil
		}
	}
}
