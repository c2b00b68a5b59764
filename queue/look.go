package queue

import (
	"context"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/lease"
)

// A Waiting message is one that was looked at, and not claimed.
type Waiting struct {
	ID        string
	Value     []byte
	Put       time.Time   // when it was put, or its time had come
	NotBefore time.Time   // when it can be claimed at the earliest; zero if it can be claimed
	Claim     lease.State // who has claimed it, if anybody has; its Token says how often it was claimed
}

// PeekLater is Peek for the messages that are for later, the first one first.
func PeekLater(ctx context.Context, s turnstone.Persistence, name, after string, limit int) (page []Waiting, next string, err error) {
	records, err := peek(ctx, s, name, laterPrefix(name), after, limit)
	for _, r := range records.Records {
		if id, at, ok := dueOf(r.Key[len(laterPrefix(name)):]); ok {
			page = append(page, Waiting{ID: id, Value: r.Value, Put: r.Time, NotBefore: at})
		}
	}
	return page, records.Next, err
}

// Peek returns a page of the messages of a session's queue in their order, claimed or not, but not those for later. The
// page has at most limit messages. It comes after the page whose next is after, and is the first one if that is empty.
// Peek reads two records for each message.
func Peek(ctx context.Context, s turnstone.Persistence, name, after string, limit int) (page []Waiting, next string, err error) {
	records, err := peek(ctx, s, name, prefix(name), after, limit)
	for _, r := range records.Records {
		w := Waiting{ID: r.Key[len(prefix(name)):], Value: r.Value, Put: r.Time}
		if w.Claim, err = lease.Read(ctx, s, claimKey(r.Key)); err != nil {
			return nil, "", err
		}
		page = append(page, w)
	}
	return page, records.Next, err
}

// peek returns a page of the records of a queue whose keys begin with one of its prefixes.
func peek(ctx context.Context, s turnstone.Persistence, name, prefix, after string, limit int) (turnstone.RecordPage, error) {
	if err := check(s != nil, name, lease.Options{}); err != nil {
		return turnstone.RecordPage{}, err
	}
	return s.Records(ctx, turnstone.RecordQuery{Prefix: prefix, Limit: limit, After: after})
}

// A Stat says how many messages a queue of a session has.
type Stat struct {
	Free    int       // nobody has claimed them
	Claimed int       // others have
	Later   int       // they are for later
	Next    time.Time // when the first of those for later can be claimed; zero if there is none
}

// Count returns the Stat of a session's queue. It reads all messages, as Peek and PeekLater do.
func Count(ctx context.Context, s turnstone.Persistence, name string) (st Stat, err error) {
	now := time.Now()
	for after := ""; ; {
		page, next, err := Peek(ctx, s, name, after, turnstone.MaxPage)
		if err != nil {
			return Stat{}, err
		}
		for i := range page {
			if now.Before(page[i].Claim.Expires) {
				st.Claimed++
			} else {
				st.Free++
			}
		}
		if after = next; after == "" {
			break
		}
	}
	for after := ""; ; {
		page, next, err := PeekLater(ctx, s, name, after, turnstone.MaxPage)
		if err != nil {
			return Stat{}, err
		}
		if st.Later += len(page); st.Next.IsZero() && len(page) > 0 {
			st.Next = page[0].NotBefore
		}
		if after = next; after == "" {
			return st, nil
		}
	}
}
