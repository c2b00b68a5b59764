package turnstone

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/lifecycle"
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
	session *commit.Session

	// sealedRaw is head.Life.SealedRaw as it was seen last.
	sealedRaw atomic.Uint64
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
	return s.handle(commit.NewSession(h), st), nil
}

// handle returns a handle on a session. st is the state in which it was opened, or nil if
// it was created just now.
func (s *Store) handle(h *commit.Session, st *history.State) *Session {
	out := &Session{store: s, session: h}
	if st == nil {
		return out
	}
	if st.Life != nil {
		out.sealedRaw.Store(st.Life.SealedRaw)
	}
	h.SeeOrderTime(st.OrderTime)
	h.See(st.Head, nil)
	return out
}

// byIncarnation returns the session that lives with an incarnation, or nil.
func (s *Store) byIncarnation(ctx context.Context, inc head.Incarnation) (*Session, error) {
	h, st, err := s.histories.ByIncarnation(ctx, inc)
	if err != nil || h == nil {
		return nil, err
	}
	return s.handle(commit.NewSession(h), st), nil
}

// ID returns the session's id.
func (s *Session) ID() string {
	if s == nil || s.session == nil {
		return ""
	}
	return s.session.ID
}

// Info returns the session's metadata and where it stands.
func (s *Session) Info(ctx context.Context) (Info, error) {
	if _, err := s.usable(ctx); err != nil {
		return Info{}, err
	}
	h, vs, err := s.session.Head(ctx, s.session.AboutKey)
	if err != nil {
		return Info{}, err
	}
	about, err := s.session.OpenAbout(vs[0])
	if err != nil {
		return Info{}, err
	}
	i := info(about, h)
	if about.Parent != (head.Incarnation{}) {
		parent, err := s.store.histories.About(ctx, about.Parent)
		if err != nil {
			return Info{}, err
		}
		if parent != nil {
			i.Parent = parent.ID
		}
	}
	return i, nil
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
	about := head.About{Name: m.Name, Model: m.Model, Cwd: m.Cwd, Keep: uint64(m.Retention), Labels: m.Labels}
	fields := make([]lifecycle.Field, len(empty))
	for i, f := range empty {
		fields[i] = emptied[f]
	}
	return public(s.store.lifecycle.SaveMetadata(ctx, s.session, &about, fields))
}
