package queue

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone"
)

// prefix returns the prefix of the keys of a queue's messages. The name is escaped, so that no slash in it can be taken
// for the one at its end.
func prefix(name string) string { return "queue/" + url.PathEscape(name) + "/" }

// Put returns the change that puts a message into a queue of a session: for Commit.Records,
// Session.ChangeRecords or CommitAll. Messages are claimed in the order of the times at which Put was called,
// as far as clocks agree. The call that gets the change refuses an empty name, with a *turnstone.InvalidError.
func Put(name string, value []byte) turnstone.RecordChange {
	return PutWith(name, value, PutOptions{})
}

// A Priority decides which messages are claimed first.
type Priority int

// The priorities. Messages of a higher one come before those of a lower one. Of those for later whose time has come
// since the last call, that holds for the first 100.
const (
	Normal Priority = iota
	High
	Low
)

// PutOptions of PutWith.
type PutOptions struct {
	Priority Priority
	// NotBefore, if set, is when the message can be claimed at the earliest, by the clock of who claims. From then on its
	// place is that of a message that was put at that time. ClaimID claims it earlier, too.
	NotBefore time.Time
}

// An id of Put or PutWith is the constant ordered, the digit of a lane, 16 hexadecimal digits of a time in nanoseconds,
// a mark, and random digits.
const (
	ordered = "!"
	lanes   = "123" // of the priorities High, Normal and Low
	timeAt  = len(ordered) + 1
	markAt  = timeAt + 16
	later   = '+' // the mark of a message for later; that of others is a dash
)

// PutWith is Put with a priority, or for later. The change may be made again as long as the message is there. After
// that only a commit whose turn id is Message.ID keeps it from having two effects. The call that gets the change
// refuses a priority other than those above.
func PutWith(name string, value []byte, o PutOptions) turnstone.RecordChange {
	lane := map[Priority]byte{High: lanes[0], Normal: lanes[1], Low: lanes[2]}[o.Priority]
	if lane == 0 {
		return turnstone.RecordChange{Value: value} // It has no key, which is refused.
	}
	at, mark := time.Now(), '-'
	if o.NotBefore.After(at) {
		at, mark = o.NotBefore, later
	}
	nanos := at.UnixNano()
	if at.Year() > 2261 { // It does not fit.
		nanos = math.MaxInt64
	}
	var random [8]byte
	rand.Read(random[:])
	id := fmt.Sprintf("%s%c%016x%c%s", ordered, lane, nanos, mark, hex.EncodeToString(random[:]))
	c := PutAs(name, id, value)
	if mark == later && c.Key != "" {
		c.Key = laterKey(name, id)
	}
	return c
}

// laterPrefix returns the prefix of the keys of the messages that are for later. The time of each follows it.
func laterPrefix(name string) string { return "queue.later/" + url.PathEscape(name) + "/" }

// laterKey returns the key of a message that is for later.
func laterKey(name, id string) string { return laterPrefix(name) + id[timeAt:markAt] + "/" + id }

// dueOf returns the id of a message that is for later from what its key has behind the prefix, and from when on it can
// be claimed. It reports false if that is no such message.
func dueOf(rest string) (id string, at time.Time, ok bool) {
	hexTime, id, ok := strings.Cut(rest, "/")
	nanos, err := strconv.ParseInt(hexTime, 16, 64)
	ok = ok && err == nil && isLater(id) && hexTime == id[timeAt:markAt] && hexTime == fmt.Sprintf("%016x", nanos)
	return id, time.Unix(0, nanos), ok
}

// isLater reports whether a message of an id was put for later.
func isLater(id string) bool {
	return len(id) > markAt && id[:len(ordered)] == ordered && id[markAt] == later
}

// PutAs returns the change that puts a message under an id that the caller chooses. Such messages are claimed in the
// byte order of their ids, after those of Put if the ids begin with a letter or a digit. Name and id are parts of the
// key of a record, which has at most turnstone.MaxRecordKey bytes. An id that is used as a turn id, too, has at most
// turnstone.MaxTurnID bytes and should not come back. As long as there is a message of that id, putting it again is a
// *turnstone.RecordConflictError.
func PutAs(name, id string, value []byte) turnstone.RecordChange {
	if name == "" || id == "" {
		return turnstone.RecordChange{Value: value} // It has no key, which is refused.
	}
	return turnstone.RecordChange{Key: prefix(name) + id, Value: value, Expect: turnstone.NoRecord}
}
