package importer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tidwall/gjson"

	"github.com/turnstonedb/turnstone"
)

// A piece is a part of a file that becomes an event: an object, or bytes that are none.
type piece struct {
	line   int // 1-based; 0 in a file that is not one of lines
	raw    []byte
	broken Mend // why the bytes can't be read; empty for an object
}

// A Mend is a fault of a file that an import mends. The text is for people.
type Mend string

// Faults of files. Nothing of such a file is dropped.
const (
	MendTorn        Mend = "unreadable line"       // the bytes become an event beside the path
	MendLarge       Mend = "line over the limit"   // it becomes several such events
	MendJoined      Mend = "two objects on a line" // each becomes an event
	MendUnfinished  Mend = "unfinished last line"  // it becomes an event when the file has all of it
	MendRepeated    Mend = "repeated line"         // it becomes an event beside the path
	MendSameID      Mend = "id of two lines"       // children of the id are those of the later line
	MendOwnParent   Mend = "line that is its own parent"
	MendRing        Mend = "ring of parents"
	MendNoParent    Mend = "parent that is not here"
	MendElsewhere   Mend = "parent in another session"
	MendUnknownKind Mend = "line of an unknown kind" // it becomes an event beside the path
)

const (
	// maxUnfinished is how much of an unfinished line is kept until the file has all of it.
	maxUnfinished = 16 << 20
	// maxBroken is the size of the events that keep bytes that can't be read.
	maxBroken = turnstone.MaxPayload / 2
	// maxObjects is how many objects a file of lines may have: each takes about 2 kB of memory while it is imported.
	maxObjects = 1 << 20
	// maxNested is how many brackets a line has before its depth is checked.
	maxNested = 10_000
)

var errObjects = fmt.Errorf("has more than %d lines", maxObjects)

// A splitter divides a file of JSON lines into pieces and the bytes between them.
type splitter struct {
	data   []byte
	begin  int // of the first line
	lines  int // number of lines before it
	before int // number of pieces before it
	pieces []piece
	gaps   gaps
	end    int                // of the last piece
	first  map[[2]string]bool // the first fields of the objects that are lines of their own
	mended map[Mend]int
}

// gaps has the bytes before each piece of a file, by its index, and behind the last one. It leaves out the
// usual ones: none before the first piece, and one line feed before the others.
type gaps map[int][]byte

// set notes the bytes before piece n.
func (g gaps) set(n int, gap []byte) {
	if n == 0 && len(gap) > 0 || n > 0 && !bytes.Equal(gap, []byte("\n")) {
		g[n] = gap
	}
}

// before returns the bytes before piece n.
func (g gaps) before(n int) []byte {
	if gap, ok := g[n]; ok || n == 0 {
		return gap
	}
	return []byte("\n")
}

// split divides data. The end of ctx ends it.
func (s *splitter) split(ctx context.Context) error {
	s.gaps, s.mended = gaps{}, map[Mend]int{}
	for at := s.begin; at < len(s.data); {
		if err := ctx.Err(); err != nil {
			return err
		}
		end, next, whole := len(s.data), len(s.data), false
		if i := bytes.IndexByte(s.data[at:], '\n'); i >= 0 {
			end, next, whole = at+i, at+i+1, true
		}
		s.lines++
		if err := s.line(ctx, s.lines, at, end, whole); err != nil {
			return err
		}
		at = next
	}
	s.gaps.set(s.before+len(s.pieces), s.data[s.end:])
	return nil
}

// line adds the pieces of a line. One that is not whole has no line feed yet: what can't be read of it stays in
// the gap behind the last piece.
func (s *splitter) line(ctx context.Context, number, at, end int, whole bool) error {
	const space = " \t\r"
	raw := bytes.TrimRight(s.data[at:end], space)
	end = at + len(raw)
	at = end - len(bytes.TrimLeft(raw, space))
	if at < end && s.data[at] == '{' && valid(s.data[at:end]) {
		s.add(number, at, end, "")
		return s.check(ctx)
	}
	objects := 0
	for budget := 16*(end-at) + 1<<20; at < end; {
		if err := s.check(ctx); err != nil {
			return err
		}
		if n, _ := object(s.data[at:end]); n > 0 {
			s.add(number, at, at+n, "")
			objects++
			at += n
			at = end - len(bytes.TrimLeft(s.data[at:end], space))
			continue
		}
		next := s.resume(at, end, &budget)
		if next == end && !whole && end-at <= maxUnfinished {
			s.mended[MendUnfinished]++
			break
		}
		s.mended[MendTorn]++
		for ; next-at > maxBroken; at += maxBroken {
			s.add(number, at, at+maxBroken, MendTorn)
		}
		s.add(number, at, next, MendTorn)
		at = next
	}
	if objects > 1 {
		s.mended[MendJoined]++
	}
	return nil
}

// check returns an error if ctx has ended, or the file has too many objects.
func (s *splitter) check(ctx context.Context) error {
	if s.before+len(s.pieces) > maxObjects {
		return errObjects
	}
	if len(s.pieces)%1000 == 0 {
		return ctx.Err()
	}
	return nil
}

// resume returns where a whole object begins behind what can't be read, or the end of the line. The object is one
// of the file if it follows zero bytes, or looks like others of the file; it could be a part of the torn one
// otherwise. budget is how many bytes resume may read, so that no line takes long.
func (s *splitter) resume(at, end int, budget *int) int {
	for next := at + 1; *budget > 0; next++ {
		i := bytes.Index(s.data[next:end], []byte(`{"`))
		if i < 0 {
			break
		}
		next += i
		*budget -= i
		n, read := object(s.data[next:end])
		*budget -= max(read, 512) // A decoder reads that much at least.
		if n == 0 {
			continue
		}
		behind := bytes.TrimLeft(s.data[next+n:end], " \t\r")
		if (len(behind) == 0 || behind[0] == '{') && (s.data[next-1] == 0 || s.known(s.data[next:next+n])) {
			return next
		}
	}
	return end
}

// known reports whether an object has the same first fields as one that is a line of its own.
func (s *splitter) known(object []byte) bool {
	if s.first == nil {
		s.first = map[[2]string]bool{}
		for line := range bytes.Lines(s.data) {
			if line = bytes.TrimSpace(line); len(line) > 0 && line[0] == '{' && valid(line) {
				s.first[firstFields(line)] = true
			}
		}
	}
	return s.first[firstFields(object)]
}

// firstFields returns the names of the first two fields of an object.
func firstFields(object []byte) (names [2]string) {
	n := 0
	gjson.ParseBytes(object).ForEach(func(name, _ gjson.Result) bool {
		names[n] = name.Str
		n++
		return n < len(names)
	})
	return names
}

// add adds a piece. An object over the limit of a payload is kept in parts.
func (s *splitter) add(line, at, end int, broken Mend) {
	if end-at > turnstone.MaxPayload {
		s.mended[MendLarge]++
		for ; end-at > maxBroken; at += maxBroken {
			s.add(line, at, at+maxBroken, MendLarge)
		}
		broken = MendLarge
	}
	s.gaps.set(s.before+len(s.pieces), s.data[s.end:at])
	s.pieces = append(s.pieces, piece{line, s.data[at:end], broken})
	s.end = end
}

// object returns the length of the JSON object that b begins with, or 0 if it begins with none, and how many bytes
// were read to find that out.
func object(b []byte) (n, read int) {
	if len(b) == 0 || b[0] != '{' {
		return 0, 1
	}
	d := json.NewDecoder(bytes.NewReader(b))
	var v json.RawMessage
	err := d.Decode(&v)
	var wrong *json.SyntaxError
	switch {
	case err == nil:
		return int(d.InputOffset()), int(d.InputOffset())
	case errors.As(err, &wrong):
		return 0, int(wrong.Offset)
	}
	return 0, len(b)
}

// valid reports whether b is JSON that is not nested too deeply to be read.
func valid(b []byte) bool {
	if bytes.Count(b, []byte("{"))+bytes.Count(b, []byte("[")) > maxNested {
		return json.Valid(b) // It limits the depth; the quicker one does not.
	}
	return gjson.ValidBytes(b)
}
