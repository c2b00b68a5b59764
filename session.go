package turnstone

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/history"
)

// Info is what is known of a session without reading its history.
type Info struct {
	ID string `json:"id"`
	Of string `json:"of"` // the session itself, as in Change
	Metadata
	Summary  bool      `json:"summary,omitzero"` // as in Request
	Parent   string    `json:"parent,omitempty"` // its id now; empty if the session has none, or it was deleted
	ForkNode graph.ID  `json:"forkNode,omitzero"`
	Detached bool      `json:"detached,omitzero"`
	Created  time.Time `json:"created"`
	Updated  time.Time `json:"updated"` // by a commit or by saving metadata

	Revision head.Revision `json:"revision"`
	Leaf     graph.ID      `json:"leaf,omitzero"` // zero before the first node
	Commit   head.CommitID `json:"commit,omitzero"`
	Nodes    uint64        `json:"nodes"`           // added by this session itself, tombstoned ones included
	Bytes    uint64        `json:"bytes"`           // of their payloads
	Usage    []head.Usage  `json:"usage,omitempty"` // totals by model
}

// A Session is a handle on one session. It is cheap, safe for concurrent use,
// and holds nothing that has to be closed. Several handles, in one process or
// in many, may be used at once: commits are checked against the store.
type Session struct {
	store   *Store
	session *history.Session

	sealed atomic.Pointer[history.Sealed] // as it was seen last
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
	return s.handle(h, st), nil
}

// SessionOf returns a handle on the session whose Info.Of, or Change.Of, is of, whatever its id
// is by now, or ErrSessionNotFound.
func (s *Store) SessionOf(ctx context.Context, of string) (*Session, error) {
	if _, err := s.usable(ctx); err != nil {
		return nil, err
	}
	var inc head.Incarnation
	if b, err := hex.DecodeString(of); err != nil || copy(inc[:], b) != len(b) || len(b) != len(inc) {
		return nil, invalid("session", "%.80q is no Info.Of", of)
	}
	ses, err := s.byIncarnation(ctx, inc)
	if err == nil && ses == nil {
		err = fmt.Errorf("%w: %s", ErrSessionNotFound, of)
	}
	return ses, err
}

// handle returns a handle on a session. st is the state in which it was opened, or nil if
// it was created just now.
func (s *Store) handle(h *history.Session, st *history.State) *Session {
	out := &Session{store: s, session: h}
	out.sealed.Store(&history.Sealed{})
	if st == nil {
		return out
	}
	if st.Life != nil {
		out.sealed.Store(&history.Sealed{Revision: st.Life.Sealed, Bytes: st.Life.SealedBytes})
	}
	h.SeePlace(st.Place)
	h.See(st.Head, nil)
	return out
}

// byIncarnation returns the session that lives with an incarnation, or nil.
func (s *Store) byIncarnation(ctx context.Context, inc head.Incarnation) (*Session, error) {
	h, st, err := s.histories.ByIncarnation(ctx, inc)
	if err != nil || h == nil {
		return nil, err
	}
	return s.handle(h, st), nil
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
	about, err := s.session.DecodeMetadata(vs[0])
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

func info(a *head.Metadata, h *head.Head) Info {
	i := Info{
		ID: a.ID, Of: hex.EncodeToString(a.Incarnation[:]),
		Metadata: Metadata{Name: a.Name, Model: a.Model, Cwd: a.Cwd, Group: a.Group, Labels: a.Labels, Retention: Retention(a.Keep)},
		ForkNode: a.ForkNode, Detached: a.Detached, Summary: a.Summary,
		Created: a.Created, Updated: a.Updated,
		Revision: h.Revision, Leaf: h.Leaf, Commit: h.Commit, Nodes: h.Nodes, Bytes: h.Bytes, Usage: slices.Clone(h.Usage),
	}
	if h.Time.After(i.Updated) {
		i.Updated = h.Time
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
	about := head.Metadata{Name: m.Name, Model: m.Model, Cwd: m.Cwd, Group: m.Group, Keep: uint64(m.Retention), Labels: m.Labels}
	fields := make([]commit.Field, len(empty))
	for i, f := range empty {
		if err := f.Check(); err != nil {
			return err
		}
		fields[i] = commit.Field(f)
	}
	defer s.store.changed(head.Incarnation{})
	return public(s.store.lifecycle.SaveMetadata(ctx, s.session, &about, fields))
}

// Rename gives the session another id, atomically: lists, reads and commits see it under one
// or the other, and its children have it as their parent under the new id. All handles of the
// session, this one included, get ErrSessionDeleted then: open it under the new id. A session
// that exists under that id is ErrExists.
func (s *Session) Rename(ctx context.Context, to string) error {
	if _, err := s.usable(ctx); err != nil {
		return err
	}
	if err := checkSessionID(to); err != nil {
		return err
	}
	defer s.store.changed(head.Incarnation{})
	return s.store.lifecycle.Rename(ctx, s.session, to)
}

// A Field names a field of Metadata, for SaveMetadata to unset.
type Field string

// The fields of Metadata.
const (
	FieldName      Field = "name"
	FieldModel     Field = "model"
	FieldCwd       Field = "cwd"
	FieldGroup     Field = "group"
	FieldRetention Field = "retention"
	FieldLabels    Field = "labels" // all of them
)

// Check returns an *InvalidError if f names no field.
func (f Field) Check() error {
	if slices.Contains(commit.Fields, commit.Field(f)) {
		return nil
	}
	return invalid("metadata", "no field is called %q", string(f))
}

// Tombstone soft-deletes nodes in this session: no read shows them from now on,
// their children are linked past them, and the head keeps its leaf. Other
// sessions that hold a node, parents and forks made before, go on showing it.
// A node that the session's graph does not have is ErrNodeNotFound, and then
// nothing is changed; one that is tombstoned already is no error.
//
// A tombstoned node is still a place: a commit may go on from it, rewind to it,
// and fork at it. Its event key stays taken, and its attachments can be read by
// their ids. Vacuum removes payload and attachments once every session that shows
// the node has tombstoned it or is gone.
func (s *Session) Tombstone(ctx context.Context, ids ...graph.ID) error {
	if len(ids) > MaxNodes {
		return &LimitError{Limit: "nodes", Where: "tombstone", Have: int64(len(ids)), Max: MaxNodes}
	}
	_, err := observed(ctx, s, OpTombstone, s.ID(), func(ctx context.Context) (int, error) {
		defer s.store.changed(head.Incarnation{})
		return len(ids), s.store.lifecycle.Tombstone(ctx, s.session, ids)
	}, func(n int, o *Outcome) { o.Items = n })
	return err
}

// ParseNodeID reads the text form of a node's id. Any other text, the empty one
// included, is an *InvalidError.
func ParseNodeID(text string) (graph.ID, error) { return parseID[graph.ID]("node id", text) }

// ParseBlobID reads the text form of a blob's id. Any other text, the empty one
// included, is an *InvalidError.
func ParseBlobID(text string) (blob.ID, error) { return parseID[blob.ID]("blob id", text) }

// ParseCommitID reads the text form of a commit's id. Any other text, the empty one
// included, is an *InvalidError.
func ParseCommitID(text string) (head.CommitID, error) {
	return parseID[head.CommitID]("commit id", text)
}

func parseID[T ~[codec.HashSize]byte](what, text string) (T, error) {
	if text == "" {
		return T{}, invalid(what, "it is empty")
	}
	sum, err := codec.ParseHashText([]byte(text))
	if err != nil {
		return T{}, invalid(what, "%v", err)
	}
	return T(sum), nil
}

// A callee is a Store or a Session. Each of their exported methods calls usable first, most
// of them through observed. A test goes through all methods.
type callee interface {
	// usable returns the store that a call is on. It fails for a nil or zero
	// receiver, and for a nil context.
	usable(ctx context.Context) (*Store, error)
}

func (s *Store) usable(ctx context.Context) (*Store, error) {
	switch {
	case s == nil || s.engine == nil:
		return nil, invalid("store", "it was not opened by Open")
	case ctx == nil:
		return nil, invalid("context", "it is nil")
	}
	return s, nil
}

func (s *Session) usable(ctx context.Context) (*Store, error) {
	if s == nil || s.store == nil {
		return nil, invalid("session", "it is no handle that a store returned")
	}
	return s.store.usable(ctx)
}
