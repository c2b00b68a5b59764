package turnstone

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// More names of other packages that most callers need.
type (
	// Attachment refers to a blob, with a media type and a name.
	Attachment = blob.Ref
	// Revision counts the commits of a session.
	Revision = head.Revision
	// Usage counts the tokens of one model.
	Usage = head.Usage
)

// Info is what is known of a session without reading its history.
type Info struct {
	ID string
	Metadata
	Checkpoint bool   // a summarisation session
	Parent     string // its id now; empty if the session has none, or it was deleted
	ForkNode   NodeID
	Detached   bool
	Created    time.Time
	Updated    time.Time // by a commit or by saving metadata

	Revision Revision
	Leaf     NodeID // zero before the first node
	Commit   CommitID
	Nodes    uint64  // added by this session itself, tombstoned ones included
	Bytes    uint64  // of their payloads
	Usage    []Usage // totals by model
}

// A Session is a handle on one session. It is cheap, safe for concurrent use,
// and holds nothing that has to be closed. Several handles, in one process or
// in many, may be used at once: commits are checked against the store.
type Session struct {
	store *Store
	id    string
	hash  keys.Hash

	history                              history.History // what was committed
	headKey, aboutKey, lifeKey, dirtyKey []byte

	// sealedRaw is head.Life.SealedRaw as it was seen last.
	sealedRaw atomic.Uint64

	mu        sync.Mutex // guards what follows: the last state that was seen
	head      *head.Head // replaced, never changed
	raw       []byte     // the record of head
	orderTime []byte     // the record of the session's time in the order of sessions
}

// Session returns a handle on the session called id, or ErrSessionNotFound.
func (s *Store) Session(ctx context.Context, id string) (*Session, error) {
	if _, err := s.usable(ctx); err != nil {
		return nil, err
	}
	if err := checkSessionID(id); err != nil {
		return nil, err
	}
	ses := s.handle(id, head.Incarnation{})
	vs, err := s.engine.Get(ctx, ses.headKey, ses.aboutKey)
	if err != nil {
		return nil, err
	}
	if vs[0] == nil && vs[1] == nil {
		return nil, fmt.Errorf("%w: %q", ErrSessionNotFound, id)
	}
	hd, err := head.OpenHead(ses.headKey, vs[0])
	if err != nil {
		return nil, codec.Corrupt(err, "head of session %q", id)
	}
	about, err := ses.openAbout(vs[1])
	if err != nil {
		return nil, err
	}
	if about.Incarnation != hd.Incarnation {
		return nil, codec.Corrupt(codec.ErrHash, "metadata of session %q", id)
	}
	ses.is(hd.Incarnation)
	originKey := s.space.Origin(ses.history.Inc)
	if vs, err = s.engine.Get(ctx, ses.lifeKey, originKey, s.space.OrderTime(ses.history.Inc)); err != nil {
		return nil, err
	}
	if about.Parent != (head.Incarnation{}) && !about.Detached {
		if ses.history.Origin, err = head.OpenOrigin(originKey, vs[1]); err != nil {
			if ses.gone(ctx) {
				return nil, fmt.Errorf("%w: %q", ErrSessionNotFound, id)
			}
			return nil, codec.Corrupt(err, "origin of session %q", id)
		}
	}
	if life, err := head.OpenLife(ses.lifeKey, vs[0]); err == nil {
		ses.sealedRaw.Store(life.SealedRaw)
	} else if !ses.gone(ctx) {
		return nil, codec.Corrupt(err, "lifecycle of session %q", id)
	}
	ses.orderTime = vs[2]
	ses.remember(hd, nil)
	return ses, nil
}

// handle returns a handle on the session called id with an incarnation. It reads
// nothing.
func (s *Store) handle(id string, inc head.Incarnation) *Session {
	h := s.space.Session(id)
	ses := &Session{store: s, id: id, hash: h, headKey: s.space.Head(h), aboutKey: s.space.About(h)}
	ses.is(inc)
	return ses
}

// is sets the incarnation of a handle.
func (s *Session) is(inc head.Incarnation) {
	s.history = history.History{Store: s.store.histories, Inc: inc, Name: fmt.Sprintf("session %q", s.id)}
	s.lifeKey, s.dirtyKey = s.store.space.Life(inc), s.store.space.Dirty(inc)
}

// gone reports whether the session was deleted since the handle was made.
func (s *Session) gone(ctx context.Context) bool {
	_, _, err := s.readHead(ctx)
	return errors.Is(err, ErrSessionDeleted)
}

func (s *Session) openAbout(value []byte) (*head.About, error) {
	about, err := head.OpenAbout(s.aboutKey, value)
	if err == nil && about.ID != s.id {
		err = fmt.Errorf("%w: it is of session %q", codec.ErrHash, about.ID)
	}
	return about, codec.Corrupt(err, "metadata of session %q", s.id)
}

// ID returns the session's id.
func (s *Session) ID() string {
	if s == nil {
		return ""
	}
	return s.id
}

// remember keeps the newest head that was seen. raw may be nil when it is not
// at hand; a commit then reads it.
func (s *Session) remember(h *head.Head, raw []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.head == nil || h.Revision >= s.head.Revision {
		s.head, s.raw = h, raw
	}
}

// forget makes the next commit read the head.
func (s *Session) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.raw = nil
}

// readHead reads the head and, in the same snapshot, the commit that it names
// and the one after it, which must not exist: a head that was rolled back
// beneath us is noticed.
func (s *Session) readHead(ctx context.Context, also ...[]byte) (*head.Head, [][]byte, error) {
	s.mu.Lock()
	guess := s.head
	s.mu.Unlock()
	rev := Revision(0)
	if guess != nil {
		rev = guess.Revision
	}
	for {
		ks := append([][]byte{s.headKey, s.commitKey(rev), s.commitKey(rev + 1)}, also...)
		vs, err := s.store.engine.Get(ctx, ks...)
		if err != nil {
			return nil, nil, err
		}
		if vs[0] == nil {
			return nil, nil, fmt.Errorf("%w: %q", ErrSessionDeleted, s.id)
		}
		h, err := head.OpenHead(s.headKey, vs[0])
		if err != nil {
			return nil, nil, codec.Corrupt(err, "head of session %q", s.id)
		}
		if h.Incarnation != s.history.Inc {
			return nil, nil, fmt.Errorf("%w: %q", ErrSessionDeleted, s.id)
		}
		if h.Revision != rev {
			rev = h.Revision
			continue
		}
		if vs[2] != nil {
			return nil, nil, codec.Corrupt(fmt.Errorf("commit %d exists: the head was rolled back", rev+1), "head of session %q", s.id)
		}
		if err := s.checkHead(h, vs[1]); err != nil {
			return nil, nil, err
		}
		s.remember(h, vs[0])
		return h, vs[3:], nil
	}
}

// checkHead verifies h against its commit.
func (s *Session) checkHead(h *head.Head, value []byte) error {
	if h.Revision == 0 {
		if h.Commit != head.Genesis(s.history.Inc, s.history.Origin) {
			return codec.Corrupt(codec.ErrHash, "head of session %q", s.id)
		}
		return nil
	}
	c, id, err := head.OpenCommit(s.commitKey(h.Revision), value)
	if err == nil && (id != h.Commit || c.Revision != h.Revision || c.Leaf != h.Leaf || c.Last != h.Last || c.PartsAt != h.PartsAt) {
		err = codec.ErrHash
	}
	return codec.Corrupt(err, "commit %d of session %q", h.Revision, s.id)
}

func (s *Session) commitKey(r Revision) []byte { return s.store.space.Commit(s.history.Inc, uint64(r)) }

// Info returns the session's metadata and where it stands.
func (s *Session) Info(ctx context.Context) (Info, error) {
	if _, err := s.usable(ctx); err != nil {
		return Info{}, err
	}
	h, vs, err := s.readHead(ctx, s.aboutKey)
	if err != nil {
		return Info{}, err
	}
	about, err := s.openAbout(vs[0])
	if err != nil {
		return Info{}, err
	}
	i := info(about, h)
	if about.Parent != (head.Incarnation{}) {
		parents, err := s.store.ids(ctx, []head.Incarnation{about.Parent})
		if err != nil {
			return Info{}, err
		}
		i.Parent = parents[about.Parent]
	}
	return i, nil
}

// ids returns the ids of those of incs that live.
func (s *Store) ids(ctx context.Context, incs []head.Incarnation) (map[head.Incarnation]string, error) {
	out := map[head.Incarnation]string{}
	for _, inc := range incs {
		about, err := s.aboutOf(ctx, inc)
		if err != nil {
			return nil, err
		}
		if about != nil {
			out[inc] = about.ID
		}
	}
	return out, nil
}

// aboutOf returns the metadata of an incarnation, or nil if it does not live.
func (s *Store) aboutOf(ctx context.Context, inc head.Incarnation) (*head.About, error) {
	for {
		life, err := s.lifeOf(ctx, inc)
		if err != nil || life == nil || life.State != head.Live {
			return nil, err
		}
		key := s.space.About(life.Session)
		vs, err := s.engine.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		about, err := head.OpenAbout(key, vs[0])
		if err == nil && about.Incarnation != inc {
			err = codec.ErrHash
		}
		if err == nil {
			return about, nil
		}
		if now, lerr := s.lifeOf(ctx, inc); lerr != nil || now != nil && *now == *life {
			return nil, errors.Join(lerr, codec.Corrupt(err, "metadata of incarnation %x", inc))
		}
		// It was renamed or deleted meanwhile.
	}
}

// byIncarnation returns the session that lives with an incarnation, or nil.
func (s *Store) byIncarnation(ctx context.Context, inc head.Incarnation) (*Session, error) {
	for {
		about, err := s.aboutOf(ctx, inc)
		if err != nil || about == nil {
			return nil, err
		}
		ses, err := s.Session(ctx, about.ID)
		if err == nil && ses.history.Inc == inc {
			return ses, nil
		}
		if err != nil && !errors.Is(err, ErrSessionNotFound) {
			return nil, err
		}
	}
}

func info(a *head.About, h *head.Head) Info {
	i := Info{
		ID:       a.ID,
		Metadata: Metadata{Name: a.Name, Model: a.Model, Cwd: a.Cwd, Labels: a.Labels, Retention: Retention(a.Keep)},
		ForkNode: a.ForkNode, Detached: a.Detached, Checkpoint: a.Checkpoint,
		Created: a.Created, Updated: a.Updated,
		Revision: h.Revision, Leaf: h.Leaf, Commit: h.Commit, Nodes: h.Nodes, Bytes: h.Bytes, Usage: slices.Clone(h.Usage),
	}
	if h.Updated.After(i.Updated) {
		i.Updated = h.Updated
	}
	return i
}

// SaveMetadata empties the fields that are to be unset, and then merges m into the
// session's metadata: empty fields of m, and labels that it does not mention, stay
// as they are, and a label with an empty value is removed. It moves no revision and
// never makes a commit fail.
func (s *Session) SaveMetadata(ctx context.Context, m Metadata, empty ...Field) error {
	if _, err := s.usable(ctx); err != nil {
		return err
	}
	if err := checkMetadata(&m); err != nil {
		return err
	}
	for _, f := range empty {
		if err := f.Check(); err != nil {
			return err
		}
	}
	return s.store.settle(ctx, func(c *change) error {
		timeKey := s.store.space.OrderTime(s.history.Inc)
		vs, err := s.store.engine.Get(ctx, s.headKey, s.aboutKey, timeKey)
		if err != nil {
			return err
		}
		if vs[0] == nil {
			return fmt.Errorf("%w: %q", ErrSessionDeleted, s.id)
		}
		about, err := s.openAbout(vs[1])
		if err != nil {
			return err
		}
		if about.Incarnation != s.history.Inc {
			return fmt.Errorf("%w: %q", ErrSessionDeleted, s.id)
		}
		unset(about, empty)
		for dst, v := range map[*string]string{&about.Name: m.Name, &about.Model: m.Model, &about.Cwd: m.Cwd} {
			if v != "" {
				*dst = v
			}
		}
		if m.Retention != 0 {
			about.Keep = uint64(m.Retention)
		}
		about.Labels = merged(about.Labels, m.Labels)
		if len(about.Labels) > MaxLabels {
			return &LimitError{Limit: "labels", Where: "session " + s.id, Have: int64(len(about.Labels)), Max: MaxLabels}
		}
		about.Updated = s.store.now()
		var b engine.Batch
		b.Guard(s.aboutKey, vs[1])
		b.Set(s.aboutKey, about.Seal(s.aboutKey))
		s.store.moveOrder(&b, s.history.Inc, s.hash, vs[2], about.Updated)
		return c.apply(ctx, &b)
	})
}

// openLife decodes the lifecycle record of a session that is to be alive.
func (s *Session) openLife(ctx context.Context, value []byte) (*head.Life, error) {
	l, err := head.OpenLife(s.lifeKey, value)
	if value == nil && s.gone(ctx) || err == nil && l.State != head.Live { // vacuum leaves nothing
		return nil, fmt.Errorf("%w: %q", ErrSessionDeleted, s.id)
	}
	return l, codec.Corrupt(err, "lifecycle of session %q", s.id)
}
