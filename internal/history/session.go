package history

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

var (
	// ErrSessionNotFound says that no session has the id.
	ErrSessionNotFound = errors.New("turnstone: session not found")
	// ErrSessionDeleted says that the incarnation does not live any more under its id.
	ErrSessionDeleted = errors.New("turnstone: session deleted")
	// ErrBlobNotFound says that no node of the session's graph has the attachment.
	ErrBlobNotFound = errors.New("turnstone: attachment not found")
)

// A Session is the history of an incarnation that lives under a session id. It remembers the
// head that it saw last, so that a commit reads nothing as long as nobody else commits. It is
// safe for concurrent use.
type Session struct {
	History
	ID   string
	Hash keys.Hash // The hash of ID in keys.
	// HeadKey and the others are the keys of the session's head, metadata, lifecycle
	// record and dirty record.
	HeadKey, AboutKey, LifeKey, DirtyKey []byte

	mu        sync.Mutex // guards the fields below
	head      *head.Head // never changed, only replaced
	headValue []byte     // the record of head, or nil if the next commit has to read the head
	place     []byte     // the record of the session's place in lists
}

// Session returns the session with an id and an incarnation. It reads nothing.
func (s Store) Session(id string, inc head.Incarnation) *Session {
	hash := s.Space.Session(id)
	return &Session{
		History: History{Store: s, Inc: inc, Name: fmt.Sprintf("session %q", id)},
		ID:      id, Hash: hash, HeadKey: s.Space.Head(hash), AboutKey: s.Space.About(hash),
		LifeKey: s.Space.Life(inc), DirtyKey: s.Space.Dirty(inc),
	}
}

// A State is the state of a session when it was opened.
type State struct {
	Head  *head.Head
	Life  *head.Life
	Place []byte // The record of the session's place in lists.
}

// OpenSession returns the session that has an id, and its state. The error is ErrSessionNotFound
// if there is none.
func (s Store) OpenSession(ctx context.Context, id string) (*Session, *State, error) {
	out := s.Session(id, head.Incarnation{})
	missing := fmt.Errorf("%w: %q", ErrSessionNotFound, id)
	values, err := s.Engine.Get(ctx, out.HeadKey, out.AboutKey)
	if err != nil {
		return nil, nil, err
	}
	if values[0] == nil && values[1] == nil {
		return nil, nil, missing
	}
	st := &State{}
	if st.Head, err = head.DecodeHead(out.HeadKey, values[0]); err != nil {
		return nil, nil, codec.Corrupt(err, "head of %s", out.Name)
	}
	about, err := out.DecodeAbout(values[1])
	if err != nil {
		return nil, nil, err
	}
	inc := st.Head.Incarnation
	if about.Incarnation != inc {
		return nil, nil, codec.Corrupt(damage.ErrHash, "metadata of %s", out.Name)
	}
	out.Inc, out.LifeKey, out.DirtyKey = inc, s.Space.Life(inc), s.Space.Dirty(inc)
	originKey := s.Space.Origin(inc)
	if values, err = s.Engine.Get(ctx, out.LifeKey, originKey, s.Space.Place(inc)); err != nil {
		return nil, nil, err
	}
	if values[1] != nil || about.Parent != (head.Incarnation{}) && !about.Detached {
		out.Origin, err = head.DecodeOrigin(originKey, values[1])
		err = codec.Corrupt(err, "origin of %s", out.Name)
	}
	if err == nil {
		st.Life, err = head.DecodeLife(out.LifeKey, values[0])
		err = codec.Corrupt(err, "lifecycle of %s", out.Name)
	}
	if err != nil {
		if err = out.unlessGone(ctx, err); errors.Is(err, ErrSessionDeleted) {
			err = missing
		}
		return nil, nil, err
	}
	st.Place = values[2]
	return out, st, nil
}

// unlessGone returns found, the damage that a record of the session seems to have. But if the session was deleted
// or renamed since it was opened, it returns ErrSessionDeleted, and if the engine can't tell, the engine's error.
func (s *Session) unlessGone(ctx context.Context, found error) error {
	_, _, _, err := s.ReadHead(ctx, 0)
	var more *damage.CorruptError
	if err == nil || errors.As(err, &more) || errors.Is(err, damage.ErrFormat) {
		return found
	}
	return err
}

// DecodeAbout decodes the session's metadata, and checks that they are of its id.
func (s *Session) DecodeAbout(value []byte) (*head.About, error) {
	about, err := head.DecodeAbout(s.AboutKey, value)
	if err == nil && about.ID != s.ID {
		err = fmt.Errorf("%w: it is of session %q", damage.ErrHash, about.ID)
	}
	return about, codec.Corrupt(err, "metadata of %s", s.Name)
}

// DecodeLife decodes the session's lifecycle record. The error is ErrSessionDeleted if the
// incarnation does not live any more. value is nil if there is no record.
func (s *Session) DecodeLife(ctx context.Context, value []byte) (*head.Life, error) {
	l, err := head.DecodeLife(s.LifeKey, value)
	if err == nil && l.State != head.Live {
		return nil, fmt.Errorf("%w: %q", ErrSessionDeleted, s.ID)
	}
	err = codec.Corrupt(err, "lifecycle of %s", s.Name)
	if value == nil { // Vacuum removes the record of a deleted session.
		err = s.unlessGone(ctx, err)
	}
	return l, err
}

// ReadHead returns the session's head and its record, and the values of more keys as they
// stood at the same moment. The error is ErrSessionDeleted if the incarnation does not live
// under the id any more.
//
// guess is the revision at which the caller expects the head. ReadHead calls the engine once if
// the guess is right, and twice otherwise, however fast others commit. Only if what was committed
// between the two calls is sealed by then, it calls the engine for those segments.
//
// ReadHead also reads the segment that ends with the commit that the head names, and the commit after
// that, which must not exist. So it notices a head that is older than the last commit, which an intact engine never
// returns.
func (s *Session) ReadHead(ctx context.Context, guess head.Revision, more ...[]byte) (h *head.Head, value []byte, values [][]byte, err error) {
	h, values, err = s.headAt(ctx, guess, more)
	if err != nil {
		return nil, nil, nil, err
	}
	if h.Revision == guess {
		return h, values[0], values[3:], nil
	}
	now, again, err := s.headAt(ctx, h.Revision, more)
	if err != nil {
		return nil, nil, nil, err
	}
	if now.Revision == h.Revision {
		return now, again[0], again[3:], nil
	}
	// The head has moved again.
	if now.Revision < h.Revision {
		return nil, nil, nil, codec.Corrupt(errors.New("the head was rolled back"), "head of %s", s.Name)
	}
	if again[2] == nil || again[1] == nil && h.Revision > 0 {
		err = s.verifyPassed(ctx, h)
	} else {
		err = s.verifyHead(h, again[1])
	}
	if err != nil {
		return nil, nil, nil, err
	}
	return h, values[0], values[3:], nil
}

// verifyPassed compares a head that has moved on with its commit and the one after it, which no
// segment need end with any more: they may have been sealed.
func (s *Session) verifyPassed(ctx context.Context, h *head.Head) error {
	if h.Revision > 0 {
		t, err := s.TurnAt(ctx, h.Revision)
		if err != nil {
			return err
		}
		if t.Base(t.ID) != h.Base {
			return codec.Corrupt(damage.ErrHash, "commit %d of %s", h.Revision, s.Name)
		}
	}
	t, err := s.TurnAt(ctx, h.Revision+1)
	if err == nil && t.Previous != h.Commit {
		err = codec.Corrupt(damage.ErrHash, "commit %d of %s", h.Revision+1, s.Name)
	}
	return err
}

// Head reads the head, and the values of more keys as they stood at the same moment: see
// ReadHead. It guesses the revision that was seen last, and remembers the head that it reads.
func (s *Session) Head(ctx context.Context, more ...[]byte) (*head.Head, [][]byte, error) {
	guess := head.Revision(0)
	if seen, _ := s.Seen(); seen != nil {
		guess = seen.Revision
	}
	h, value, values, err := s.ReadHead(ctx, guess, more...)
	if err != nil {
		return nil, nil, err
	}
	s.See(h, value)
	return h, values, nil
}

// See tells the session of a head that was read or written. The session ignores the head if it
// has seen a newer one. If value, the record of the head, is nil, the next commit reads the head.
func (s *Session) See(h *head.Head, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.head == nil || h.Revision >= s.head.Revision {
		s.head, s.headValue = h, value
	}
}

// Seen returns the head that was seen last and its record. The head is nil if none was seen, and
// the record is nil if it is not known, or may not stand any more.
func (s *Session) Seen() (h *head.Head, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.head, s.headValue
}

// Forget makes the next commit read the head.
func (s *Session) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.headValue = nil
}

// SeePlace makes the session remember the record of its place in lists.
func (s *Session) SeePlace(value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.place = value
}

// Place returns the record of the session's place in lists, as it was seen last.
func (s *Session) Place() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.place
}

// headAt reads the head, the ends of segments at revision r and at the one after it, and more keys in one call.
// If the head is at r, headAt verifies it. The values are those of all these keys.
func (s *Session) headAt(ctx context.Context, r head.Revision, more [][]byte) (*head.Head, [][]byte, error) {
	ks := append([][]byte{s.HeadKey, s.endKey(r), s.endKey(r + 1)}, more...)
	values, err := s.Engine.Get(ctx, ks...)
	if err != nil {
		return nil, nil, err
	}
	if values[0] == nil {
		return nil, nil, fmt.Errorf("%w: %q", ErrSessionDeleted, s.ID)
	}
	h, err := head.DecodeHead(s.HeadKey, values[0])
	if err != nil {
		return nil, nil, codec.Corrupt(err, "head of %s", s.Name)
	}
	if h.Incarnation != s.Inc {
		return nil, nil, fmt.Errorf("%w: %q", ErrSessionDeleted, s.ID)
	}
	if h.Revision != r {
		return h, values, nil
	}
	if values[2] != nil {
		err := fmt.Errorf("commit %d exists: the head was rolled back", r+1)
		return nil, nil, codec.Corrupt(err, "head of %s", s.Name)
	}
	return h, values, s.verifyHead(h, values[1])
}

// verifyHead compares a head with its commit. value is the first one of the commit's segment.
func (s *Session) verifyHead(h *head.Head, value []byte) error {
	if h.Revision == 0 {
		if h.Commit != head.Genesis(s.Inc, s.Origin) {
			return codec.Corrupt(damage.ErrHash, "head of %s", s.Name)
		}
		return nil
	}
	base, err := DecodeLast(s.Space, s.endKey(h.Revision), value)
	if err == nil && base != h.Base {
		err = damage.ErrHash
	}
	return codec.Corrupt(err, "commit %d of %s", h.Revision, s.Name)
}

// endKey returns the key of the first value of the segment that ends with revision r.
func (h *History) endKey(r head.Revision) []byte { return h.Space.Segment(h.Inc, uint64(r), 0) }

// Life returns the lifecycle record of an incarnation, or nil if there is none.
func (s Store) Life(ctx context.Context, inc head.Incarnation) (*head.Life, error) {
	key := s.Space.Life(inc)
	values, err := s.Engine.Get(ctx, key)
	if err != nil || values[0] == nil {
		return nil, err
	}
	life, err := head.DecodeLife(key, values[0])
	return life, codec.Corrupt(err, "lifecycle of %s", nameOf(inc))
}

// About returns the metadata of an incarnation, or nil if it does not live.
func (s Store) About(ctx context.Context, inc head.Incarnation) (*head.About, error) {
	for {
		life, err := s.Life(ctx, inc)
		if err != nil || life == nil || life.State != head.Live {
			return nil, err
		}
		key := s.Space.About(life.Session)
		values, err := s.Engine.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		about, err := head.DecodeAbout(key, values[0])
		if err == nil && about.Incarnation != inc {
			err = damage.ErrHash
		}
		if err == nil {
			return about, nil
		}
		if now, lerr := s.Life(ctx, inc); lerr != nil || now != nil && now.Epoch == life.Epoch {
			return nil, errors.Join(lerr, codec.Corrupt(err, "metadata of %s", nameOf(inc)))
		}
		// It was renamed or deleted meanwhile.
	}
}

// AboutsOf returns the metadata of those incarnations that live. It calls the engine twice, however
// many they are, and more often only if one of them is renamed or deleted meanwhile.
func (s Store) AboutsOf(ctx context.Context, incs []head.Incarnation) (map[head.Incarnation]*head.About, error) {
	out := make(map[head.Incarnation]*head.About, len(incs))
	incs, aboutKeys, err := s.aboutKeys(ctx, incs)
	if err != nil || len(incs) == 0 {
		return out, err
	}
	values, err := s.Engine.Get(ctx, aboutKeys...)
	if err != nil {
		return nil, err
	}
	for i, inc := range incs {
		about, err := head.DecodeAbout(aboutKeys[i], values[i])
		if err != nil || about.Incarnation != inc {
			if about, err = s.About(ctx, inc); err != nil {
				return nil, err
			}
		}
		if about != nil {
			out[inc] = about
		}
	}
	return out, nil
}

// aboutKeys returns the incarnations in incs that live, and the keys of their metadata.
func (s Store) aboutKeys(ctx context.Context, incs []head.Incarnation) (live []head.Incarnation, aboutKeys [][]byte, err error) {
	if len(incs) == 0 {
		return nil, nil, nil
	}
	ks := make([][]byte, len(incs))
	for i, inc := range incs {
		ks[i] = s.Space.Life(inc)
	}
	values, err := s.Engine.Get(ctx, ks...)
	if err != nil {
		return nil, nil, err
	}
	for i, inc := range incs {
		if values[i] == nil {
			continue
		}
		life, err := head.DecodeLife(ks[i], values[i])
		if err != nil {
			return nil, nil, codec.Corrupt(err, "lifecycle of %s", nameOf(inc))
		}
		if life.State == head.Live {
			live, aboutKeys = append(live, inc), append(aboutKeys, s.Space.About(life.Session))
		}
	}
	return live, aboutKeys, nil
}
