package queue

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/lease"
)

// PutOnce is PutAs for an id that may come back, for example that of a request which its sender repeats. The call that
// gets the changes fails with a *turnstone.RecordConflictError if there is a message of that id, or one was
// acknowledged whose id is remembered: see Message.Remember.
func PutOnce(name, id string, value []byte) []turnstone.RecordChange {
	put := PutAs(name, id, value)
	if put.Key == "" {
		return []turnstone.RecordChange{put}
	}
	return []turnstone.RecordChange{put, {Key: doneKey(name, id), Action: turnstone.CheckRecord, Expect: turnstone.NoRecord}}
}

// Two records remember an id: one of the id, whose value is the time until when, and one of that time, whose value is
// the key of the first. Ids and names are hashed, so that these keys are never too long.

const donePrefix = ".queue.done/"

func doneKey(name, id string) string { return donePrefix + hash(name) + "/" + hash(id) }

func forgetPrefix(name string) string { return ".queue.forget/" + hash(name) + "/" }

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// remember returns the changes that remember an id until a time.
func remember(name, id string, until time.Time) []turnstone.RecordChange {
	key, at := doneKey(name, id), timeText(until)
	return []turnstone.RecordChange{{Key: key, Value: []byte(at)}, {Key: forgetPrefix(name) + at + "/" + hash(id), Value: []byte(key)}}
}

// timeText returns text of 16 digits that is in the order of times.
func timeText(t time.Time) string {
	nanos := t.UnixNano()
	if t.Year() > 2261 { // It does not fit.
		nanos = math.MaxInt64
	}
	return fmt.Sprintf("%016x", nanos)
}

// Forget removes what remembers ids whose time is over, of at most 100 messages, and returns their number. Message.Commit
// and Message.Ack do so for messages with Remember; who acknowledges with Message.Done calls it now and then.
func Forget(ctx context.Context, s turnstone.Persistence, name string) (int, error) {
	if err := check(s != nil, name, lease.Options{}); err != nil {
		return 0, err
	}
	return forget(ctx, s, name, time.Now())
}

// forget forgets what was to be remembered until now. What it leaves is for the next message: this one is acknowledged.
func (m *Message) forget(ctx context.Context) {
	if m.Remember > 0 {
		_, _ = forget(ctx, m.Session, m.queue, m.now())
	}
}

func forget(ctx context.Context, s turnstone.Persistence, name string, now time.Time) (n int, err error) {
	page, err := s.Records(ctx, turnstone.RecordQuery{Prefix: forgetPrefix(name), Limit: most})
	if err != nil {
		return 0, err
	}
	var changes []turnstone.RecordChange
	done := map[string]bool{}
	for _, r := range page.Records {
		until, _, _ := strings.Cut(r.Key[len(forgetPrefix(name)):], "/")
		if until > timeText(now) {
			break
		}
		changes = append(changes, turnstone.RecordChange{Key: r.Key, Action: turnstone.DeleteRecord})
		key := string(r.Value)
		if done[key] || !strings.HasPrefix(key, donePrefix+hash(name)+"/") {
			continue
		}
		done[key] = true
		d, err := s.Record(ctx, key)
		switch {
		case errors.Is(err, turnstone.ErrRecordNotFound) || err == nil && string(d.Value) > timeText(now): // It was acknowledged again since.
		case err != nil:
			return 0, err
		default:
			changes = append(changes, turnstone.RecordChange{Key: key, Action: turnstone.DeleteRecord, Expect: d.Version})
			n++
		}
	}
	if len(changes) == 0 {
		return 0, nil
	}
	_, err = s.ChangeRecords(ctx, changes...)
	if errors.Is(err, turnstone.ErrRecordConflict) { // Somebody else does it.
		return 0, nil
	}
	return n, err
}
