package draft

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/turnstonedb/turnstone"
)

// A Progress is what a reader of a draft sees of it.
type Progress struct {
	Kind Kind
	// Content is what comes after the content that the reader has (Grown), or all of it (Anew). The caller owns it.
	Content []byte
	// Cursor is the place behind Content: text without spaces, to go on after it.
	Cursor string
}

// A Kind says how a Progress follows from what came before.
type Kind int

// The kinds.
const (
	// Grown: nothing was lost. Content comes after what the reader has.
	Grown Kind = iota
	// Anew: the reader starts again. Content takes the place of what it has: the draft has begun, or other content was
	// set.
	Anew
	// Ended: there is no draft any more: its turn was committed, or it was removed. The session tells.
	Ended
)

// Follow yields how the draft of a name grows, to any number of readers in any process, as WatchRecords wakes them.
// After is the Cursor of the last Progress that the reader has, or "". With a cursor the first value comes at once: Grown
// if nothing was lost, also if nothing has come, and Anew or Ended otherwise. Without one it is Anew, as soon as there is
// a draft.
//
// Follow keeps nothing in memory, so a slow reader gets more at once. The sequence ends after Ended, or with the first
// error: that of ctx, turnstone.ErrSessionDeleted, or an *InvalidError of the cursor.
func Follow(ctx context.Context, s turnstone.Persistence, name, after string) iter.Seq2[Progress, error] {
	return func(yield func(Progress, error) bool) {
		f := follower{session: s, name: name, fresh: after != ""}
		err := f.parse(after)
		if s == nil || name == "" {
			err = invalid("the session is nil or the name is empty")
		}
		if err != nil {
			yield(Progress{}, err)
			return
		}
		for _, err := range s.WatchRecords(ctx, countKey(name)) {
			p, seen := Progress{}, true
			if err == nil {
				p, seen, err = f.look(ctx)
			}
			if seen && !yield(p, err) || err != nil || seen && p.Kind == Ended {
				return
			}
		}
	}
}

// A follower knows what its reader has.
type follower struct {
	session turnstone.Persistence
	name    string
	life    string // of the draft; "" if the reader has nothing
	offset  int    // how much of it the reader has
	fresh   bool   // the reader waits to be told whether its cursor holds
}

// parse goes on after a cursor: the offset, a dash, and the life.
func (f *follower) parse(cursor string) (err error) {
	if cursor == "" {
		return nil
	}
	offset, life, _ := strings.Cut(cursor, "-")
	f.offset, err = strconv.Atoi(offset)
	if f.life = life; err != nil || life == "" || f.offset < 0 || f.offset > Max {
		return invalid("%.80q is no cursor", cursor)
	}
	return nil
}

// look reads what the reader does not have. It reports false if there is nothing to see.
func (f *follower) look(ctx context.Context) (p Progress, seen bool, err error) {
	offset := f.offset
	for to := offset/piece + 2; ; to = pieces { // Mostly little has come.
		from := offset / piece
		keys := []string{countKey(f.name)}
		for i := from; i < min(to, pieces); i++ {
			keys = append(keys, key(f.name, i))
		}
		st, err := f.session.Load(ctx, turnstone.Scope{Last: 1, Records: keys})
		if err != nil {
			return p, true, err
		}
		count := st.Records[countKey(f.name)]
		if count.Version == turnstone.NoRecord {
			return Progress{Kind: Ended}, f.life != "", nil
		}
		n, life, err := parseCount(count)
		if err != nil {
			return p, true, err
		}
		if life != f.life && offset > 0 { // All of it is new.
			offset = 0
			continue
		}
		if n > to && to < pieces {
			continue
		}
		var content []byte
		for i := from; i < n; i++ {
			content = append(content, st.Records[key(f.name, i)].Value...)
		}
		if life != f.life {
			p.Kind = Anew
		}
		skip := offset - from*piece
		if skip > len(content) {
			return p, true, invalid("the cursor is behind the end of the draft")
		}
		p.Content = content[skip:]
		f.life, f.offset = life, offset+len(p.Content)
		p.Cursor = fmt.Sprintf("%d-%s", f.offset, life)
		seen = f.fresh || p.Kind == Anew || len(p.Content) > 0
		f.fresh = false
		return p, seen, nil
	}
}
