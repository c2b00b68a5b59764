package ui

import (
	"errors"
	"html/template"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/page"
	"github.com/turnstonedb/turnstone/lease"
	"github.com/turnstonedb/turnstone/queue"
)

const (
	maxWork     = 1000 // records that are looked at, for queues and leases
	maxMessages = 100  // of a queue that are shown, free or claimed, and as many for later
	maxQueues   = 20   // that are shown
	maxGlimpse  = 2000 // bytes of a message that are shown
)

// A queueView is a queue of a session that is shown.
type queueView struct {
	Name  string
	Ready []messageRow
	Later []messageRow
	More  bool  // there are more messages than those
	Err   error // why they can't be read
}

// A messageRow is a message that is shown.
type messageRow struct {
	queue.Waiting
	Now time.Time
}

// Glimpse returns the beginning of the message.
func (m messageRow) Glimpse() template.HTML {
	if len(m.Value) <= maxGlimpse {
		return shownValue(m.Value)
	}
	return page.Code(strings.ToValidUTF8(string(m.Value[:maxGlimpse]), "")+"…", "")
}

// Claimed reports whether somebody works on the message.
func (m messageRow) Claimed() bool { return m.Now.Before(m.Claim.Expires) }

// A leaseRow is a lease that is shown.
type leaseRow struct {
	lease.State
	Now time.Time
}

// Current reports whether the lease has not ended.
func (l leaseRow) Current() bool { return l.Held && l.Now.Before(l.Expires) }

// work shows the queues and leases of a session.
func (v *visit) work() error {
	s, err := v.subject()
	if err != nil {
		return err
	}
	body := struct {
		*subject
		Queues []queueView
		Leases []leaseRow
		More   bool // there are more records than those that were looked at
	}{subject: s}
	keys, more, err := v.keys(s)
	if err != nil {
		return err
	}
	body.More = more
	now := time.Now()
	var names []string
	for _, key := range keys {
		if name, ok := queueOf(key); ok {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
			continue
		}
		state, err := lease.Read(v.r.Context(), s.Persistence, key)
		switch {
		case errors.Is(err, lease.ErrForeign), errors.Is(err, turnstone.ErrInvalid), errors.Is(err, turnstone.ErrLimit):
			continue // It is another record.
		case err != nil:
			return err
		case state.Token > 0:
			body.Leases = append(body.Leases, leaseRow{state, now})
		}
	}
	body.More = body.More || len(names) > maxQueues
	for _, name := range names[:min(len(names), maxQueues)] {
		body.Queues = append(body.Queues, v.queue(s, name, now))
	}
	v.render(200, "work", view{Title: "Queues and leases of " + body.Row.Called(), Body: &body})
	return nil
}

// keys returns the keys of the records of a session that are in its list.
func (v *visit) keys(s *subject) (keys []string, more bool, err error) {
	for after := ""; ; {
		page, err := s.Persistence.Records(v.r.Context(), turnstone.RecordQuery{After: after, Limit: turnstone.MaxPage})
		if err != nil {
			return nil, false, err
		}
		for _, r := range page.Records {
			keys = append(keys, r.Key)
		}
		if after = page.Next; after == "" || len(keys) >= maxWork {
			return keys, after != "", nil
		}
	}
}

// queueOf returns the name of the queue that a record is a message of.
func queueOf(key string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(key, "queue/")
	if !ok {
		rest, ok = strings.CutPrefix(key, "queue.later/")
	}
	escaped, _, slash := strings.Cut(rest, "/")
	name, err := url.PathUnescape(escaped)
	return name, ok && slash && err == nil && name != "" && url.PathEscape(name) == escaped
}

// queue returns the first messages of a queue.
func (v *visit) queue(s *subject, name string, now time.Time) queueView {
	q := queueView{Name: name}
	ready, next, err := queue.Peek(v.r.Context(), s.Persistence, name, "", maxMessages)
	later, nextLater, lerr := queue.PeekLater(v.r.Context(), s.Persistence, name, "", maxMessages)
	for _, m := range ready {
		q.Ready = append(q.Ready, messageRow{m, now})
	}
	for _, m := range later {
		q.Later = append(q.Later, messageRow{m, now})
	}
	q.More, q.Err = next != "" || nextLater != "", errors.Join(err, lerr)
	return q
}
