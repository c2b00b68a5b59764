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
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/history"
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
	store   *Store
	history *history.Session // what was committed

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
	h, st, err := s.histories.OpenSession(ctx, id)
	if err != nil {
		return nil, err
	}
	ses := &Session{store: s, history: h, orderTime: st.OrderTime}
	if st.Life != nil {
		ses.sealedRaw.Store(st.Life.SealedRaw)
	}
	ses.remember(st.Head, nil)
	return ses, nil
}

// ID returns the session's id.
func (s *Session) ID() string {
	if s == nil || s.history == nil {
		return ""
	}
	return s.history.ID
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

// revision returns the newest revision that the handle has seen.
func (s *Session) revision() Revision {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.head == nil {
		return 0
	}
	return s.head.Revision
}

// readHead reads the head, and more records as they stood at the same moment: see
// history.Session.ReadHead.
func (s *Session) readHead(ctx context.Context, more ...[]byte) (*head.Head, [][]byte, error) {
	h, raw, values, err := s.history.ReadHead(ctx, s.revision(), more...)
	if err != nil {
		return nil, nil, err
	}
	s.remember(h, raw)
	return h, values, nil
}

// Info returns the session's metadata and where it stands.
func (s *Session) Info(ctx context.Context) (Info, error) {
	if _, err := s.usable(ctx); err != nil {
		return Info{}, err
	}
	h, vs, err := s.readHead(ctx, s.history.AboutKey)
	if err != nil {
		return Info{}, err
	}
	about, err := s.history.OpenAbout(vs[0])
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
		about, err := s.histories.About(ctx, inc)
		if err != nil {
			return nil, err
		}
		if about != nil {
			out[inc] = about.ID
		}
	}
	return out, nil
}

// byIncarnation returns the session that lives with an incarnation, or nil.
func (s *Store) byIncarnation(ctx context.Context, inc head.Incarnation) (*Session, error) {
	for {
		about, err := s.histories.About(ctx, inc)
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
	return change.Settle(ctx, s.store.engine, func(c *change.Change) error {
		timeKey := s.store.space.OrderTime(s.history.Inc)
		vs, err := s.store.engine.Get(ctx, s.history.HeadKey, s.history.AboutKey, timeKey)
		if err != nil {
			return err
		}
		if vs[0] == nil {
			return fmt.Errorf("%w: %q", ErrSessionDeleted, s.history.ID)
		}
		about, err := s.history.OpenAbout(vs[1])
		if err != nil {
			return err
		}
		if about.Incarnation != s.history.Inc {
			return fmt.Errorf("%w: %q", ErrSessionDeleted, s.history.ID)
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
			return &LimitError{Limit: "labels", Where: "session " + s.history.ID, Have: int64(len(about.Labels)), Max: MaxLabels}
		}
		about.Updated = s.store.now()
		var b engine.Batch
		b.Guard(s.history.AboutKey, vs[1])
		b.Set(s.history.AboutKey, about.Seal(s.history.AboutKey))
		s.store.moveOrder(&b, s.history.Inc, s.history.Hash, vs[2], about.Updated)
		return c.Apply(ctx, &b)
	})
}
