// Package draft keeps the part of a turn that is there already, such as the text that a model has streamed so far,
// until the commit of the turn takes its place. So a host that was killed goes on with what its users have seen.
//
// A draft consists of records of a session (see turnstone.Record). Its content is in pieces of 16 KiB. One record more
// has the number of pieces, and the draft's life: random text, which is new whenever the content changes otherwise than
// by growing at its end. Set writes only the pieces that have changed. Set and Done guard the record with the number, and
// every change writes or deletes it. A draft is not part of the history: no revision has it, and a fork begins without it.
package draft

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/turnstonedb/turnstone"
)

// Max is how many bytes a draft has at most.
const Max = pieces * piece

const (
	piece  = 16 << 10 // bytes of a record
	pieces = 64
	prefix = ".draft/" // With a dot, so that the list of all sessions' records does not have them.

	countSuffix = "/n"
)

// A Draft is the part of a turn that was written before the commit of the turn. Only one goroutine may use it at a
// time.
type Draft struct {
	session turnstone.Persistence
	name    string
	content []byte
	life    string                  // "" if there is none
	version turnstone.RecordVersion // of the record that says how many pieces there are; every call guards it
}

// key returns the key of the record that has a piece.
func key(name string, i int) string { return fmt.Sprintf("%s%s/%02d", prefix, name, i) }

// countKey returns the key of the record that says how many pieces there are.
func countKey(name string) string { return prefix + name + countSuffix }

// Open returns the draft of a name, for example the id of the turn, with its content.
func Open(ctx context.Context, s turnstone.Persistence, name string) (*Draft, error) {
	if s == nil || name == "" {
		return nil, invalid("the session is nil or the name is empty")
	}
	keys := []string{countKey(name)}
	for i := range pieces {
		keys = append(keys, key(name, i))
	}
	st, err := s.Load(ctx, turnstone.Scope{Last: 1, Records: keys})
	if err != nil {
		return nil, err
	}
	count := st.Records[countKey(name)]
	d := &Draft{session: s, name: name, version: count.Version}
	if count.Version == turnstone.NoRecord {
		return d, nil
	}
	n, life, err := parseCount(count)
	if err != nil {
		return nil, err
	}
	d.life = life
	for i := range n {
		d.content = append(d.content, st.Records[key(name, i)].Value...)
	}
	return d, nil
}

// parseCount returns what the record says that has the number of pieces.
func parseCount(r turnstone.Record) (n int, life string, err error) {
	number, life, ok := strings.Cut(string(r.Value), " ")
	n, err = strconv.Atoi(number)
	if err != nil || !ok || n < 1 || n > pieces {
		return 0, "", invalid("record %q is not of a draft", r.Key)
	}
	return n, life, nil
}

func invalid(reason string, args ...any) error {
	return &turnstone.InvalidError{Where: "draft", Reason: fmt.Sprintf(reason, args...)}
}

// Content returns the content of the draft. The caller owns the slice.
func (d *Draft) Content() []byte { return bytes.Clone(d.content) }

// Set replaces the content of the draft in one call of the store, wholly or not at all. It writes only the pieces
// that have changed: if content has grown at its end, only the last one. Empty content removes the draft. If
// somebody else has written the draft since it was opened, or its turn was committed, the error is a
// *turnstone.RecordConflictError. After an error, open the draft again.
func (d *Draft) Set(ctx context.Context, content []byte) error {
	if d == nil || d.session == nil {
		return invalid("it was not opened")
	}
	if len(content) > Max {
		return &turnstone.LimitError{Limit: "draft bytes", Have: int64(len(content)), Max: Max}
	}
	was := slices.Collect(slices.Chunk(d.content, piece))
	var changes []turnstone.RecordChange
	n := 0
	for p := range slices.Chunk(content, piece) {
		if n >= len(was) || !bytes.Equal(p, was[n]) {
			changes = append(changes, turnstone.RecordChange{Key: key(d.name, n), Value: p})
		}
		n++
	}
	for i := n; i < len(was); i++ {
		changes = append(changes, turnstone.RecordChange{Key: key(d.name, i), Action: turnstone.DeleteRecord})
	}
	life := d.life
	if life == "" || !bytes.HasPrefix(content, d.content) {
		life = rand.Text()
	}
	count := turnstone.RecordChange{Key: countKey(d.name), Value: fmt.Appendf(nil, "%d %s", n, life), Expect: d.version}
	switch {
	case len(changes) == 0:
		count = turnstone.RecordChange{Key: count.Key, Action: turnstone.CheckRecord, Expect: d.version}
	case n == 0:
		life = ""
		count = turnstone.RecordChange{Key: count.Key, Action: turnstone.DeleteRecord, Expect: d.version}
	}
	versions, err := d.session.ChangeRecords(ctx, append(changes, count)...)
	if err != nil {
		return err
	}
	d.content, d.life, d.version = bytes.Clone(content), life, versions[len(changes)]
	return nil
}

// Append adds to the end of what stands: see Set. Every call writes up to 16 KiB, so a host should gather what comes
// within a fraction of a second.
func (d *Draft) Append(ctx context.Context, more []byte) error {
	if d == nil {
		return invalid("it was not opened")
	}
	return d.Set(ctx, slices.Concat(d.content, more))
}

// Done returns the changes of records that remove the draft. With them in Commit.Records the turn takes the place of
// its draft: both stand or neither. The commit is refused with a *turnstone.RecordConflictError if somebody else has
// written the draft.
func (d *Draft) Done() (out []turnstone.RecordChange) {
	if d == nil || d.session == nil {
		return nil
	}
	if len(d.content) == 0 { // Nobody else may have begun it.
		return []turnstone.RecordChange{{Key: countKey(d.name), Action: turnstone.CheckRecord, Expect: d.version}}
	}
	for i := range (len(d.content) + piece - 1) / piece {
		out = append(out, turnstone.RecordChange{Key: key(d.name, i), Action: turnstone.DeleteRecord})
	}
	return append(out, turnstone.RecordChange{Key: countKey(d.name), Action: turnstone.DeleteRecord, Expect: d.version})
}

// Names returns the names of the drafts that a session has, in byte order.
func Names(ctx context.Context, s turnstone.Persistence) (names []string, err error) {
	if s == nil {
		return nil, invalid("the session is nil")
	}
	for q := (turnstone.RecordQuery{Prefix: prefix}); ; {
		page, err := s.Records(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range page.Records {
			if name, is := strings.CutSuffix(page.Records[i].Key[len(prefix):], countSuffix); is {
				names = append(names, name)
			}
		}
		if q.After = page.Next; q.After == "" {
			slices.Sort(names)
			return names, nil
		}
	}
}
