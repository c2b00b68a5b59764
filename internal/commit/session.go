package commit

import (
	"context"
	"sync"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
)

// A Session is a session that commits can be written to. It remembers the head that it saw last,
// so that a commit reads nothing as long as nobody else commits. It is safe for concurrent use.
type Session struct {
	*history.Session

	mu        sync.Mutex  // guards the fields below
	head      *heads.Head // never changed, only replaced
	record    []byte      // the record of head, or nil if the next commit has to read the head
	orderTime []byte      // the record of the session's time in the order of sessions
}

// NewSession returns a session that has not seen its head yet.
func NewSession(s *history.Session) *Session { return &Session{Session: s} }

// See tells the session of a head that was read or written. The session ignores the head if it
// has seen a newer one. If record is nil, the next commit reads the head.
func (s *Session) See(h *heads.Head, record []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.head == nil || h.Revision >= s.head.Revision {
		s.head, s.record = h, record
	}
}

// SeeOrderTime tells the session of the record of its time in the order of sessions.
func (s *Session) SeeOrderTime(record []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.orderTime = record
}

// forget makes the next commit read the head.
func (s *Session) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record = nil
}

// Revision returns the newest revision that was seen.
func (s *Session) Revision() head.Revision {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.head == nil {
		return 0
	}
	return s.head.Revision
}

// Head reads the head, and the values of more keys as they stood at the same moment: see
// history.Session.ReadHead.
func (s *Session) Head(ctx context.Context, more ...[]byte) (*heads.Head, [][]byte, error) {
	h, record, values, err := s.ReadHead(ctx, s.Revision(), more...)
	if err != nil {
		return nil, nil, err
	}
	s.See(h, record)
	return h, values, nil
}

// current returns the head that was seen last, with its record. If there is none, it reads the
// head, and fresh is true.
func (s *Session) current(ctx context.Context) (h *heads.Head, record []byte, fresh bool, err error) {
	s.mu.Lock()
	h, record = s.head, s.record
	s.mu.Unlock()
	if record != nil {
		return h, record, false, nil
	}
	h, record, err = s.readRecord(ctx)
	return h, record, true, err
}

// readRecord reads the head and its record.
func (s *Session) readRecord(ctx context.Context) (*heads.Head, []byte, error) {
	h, values, err := s.Head(ctx, s.HeadKey)
	if err != nil {
		return nil, nil, err
	}
	return h, values[0], nil
}
