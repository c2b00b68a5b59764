package turnstone

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
)

// Info is what is known of a session without reading its history.
type Info struct {
	ID          string `json:"id"`
	Incarnation string `json:"incarnation"` // the session itself, as in Change
	head.Metadata
	Summary  bool      `json:"summary,omitzero"` // as in Request
	Parent   string    `json:"parent,omitempty"` // its id now; empty if the session has none, or it was deleted
	ForkNode graph.ID  `json:"forkNode,omitzero"`
	Detached bool      `json:"detached,omitzero"`
	Created  time.Time `json:"created"`
	Updated  time.Time `json:"updated"` // by a commit or by saving metadata

	Revision head.Revision `json:"revision"`
	Leaf     graph.ID      `json:"leaf,omitzero"` // zero before the first node
	Commit   head.CommitID `json:"commit,omitzero"`
	Messages uint64        `json:"messages"`        // nodes on the path to the leaf, inherited and tombstoned ones included
	Nodes    uint64        `json:"nodes"`           // added by this session itself, tombstoned ones and those of other branches included
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

// SessionByIncarnation returns a handle on the session that Info.Incarnation or Change.Incarnation names, whatever its
// id is by now, or ErrSessionNotFound.
func (s *Store) SessionByIncarnation(ctx context.Context, incarnation string) (*Session, error) {
	if _, err := s.usable(ctx); err != nil {
		return nil, err
	}
	inc, err := parseIncarnation(cmp.Or(incarnation, "no text"))
	if err != nil {
		return nil, err
	}
	ses, err := s.byIncarnation(ctx, inc)
	if err == nil && ses == nil {
		err = fmt.Errorf("%w: %s", ErrSessionNotFound, incarnation)
	}
	return ses, err
}

// parseIncarnation reads the text form of an incarnation. That of none is empty.
func parseIncarnation(text string) (inc head.Incarnation, err error) {
	if text == "" {
		return inc, nil
	}
	if b, err := hex.DecodeString(text); err != nil || copy(inc[:], b) != len(b) || len(b) != len(inc) {
		return inc, invalid("session", "%.80q is no Info.Incarnation", text)
	}
	return inc, nil
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
	about, err := s.session.DecodeAbout(vs[0])
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
	return Info{
		ID: a.ID, Incarnation: hex.EncodeToString(a.Incarnation[:]),
		Metadata: a.Metadata,
		ForkNode: a.ForkNode, Detached: a.Detached, Summary: a.Summary,
		Created: a.Created, Updated: a.LastUpdate(h),
		Revision: h.Revision, Leaf: h.Leaf, Commit: h.Commit, Messages: h.Depth, Nodes: h.Nodes, Bytes: h.Bytes, Usage: slices.Clone(h.Usage),
	}
}

// SaveMetadata empties the fields in empty, and then merges m into the session's metadata. Fields that are empty in m,
// and labels that m does not mention, stay as they are. A label with an empty value is removed. It moves no revision
// and never makes a commit fail. It sets Info.Updated, also if nothing else changes: without m and fields, it says that
// the host has used the session.
func (s *Session) SaveMetadata(ctx context.Context, m head.Metadata, empty ...head.Field) error {
	if _, err := s.usable(ctx); err != nil {
		return err
	}
	change, err := CheckMetadata(m, empty...)
	if err != nil {
		return err
	}
	defer s.store.changed(head.Incarnation{})
	return public(s.store.lifecycle.SaveMetadata(ctx, s.session, &change, empty))
}

// Rename gives the session another id, atomically: lists, reads and commits see it under one
// or the other, and its children have it as their parent under the new id. All handles of the
// session, this one included, get ErrSessionDeleted then: open it under the new id. If another session has that id, the
// error matches ErrExists.
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

// An Upload is an attachment that waits for a commit to refer to it.
type Upload struct {
	blob.Attachment           // as PutAttachment returned it last
	Expires         time.Time `json:"expires"` // from then on the next collection removes it
}

// Uploads returns what PutAttachment has stored for this session since it last committed a reference to it. A commit
// that refers to more than 1,000 uploads leaves the others here until they expire.
func (s *Session) Uploads(ctx context.Context) ([]Upload, error) {
	return observed(ctx, s, OpList, s.ID(), func(ctx context.Context) ([]Upload, error) {
		if _, _, err := s.session.Head(ctx); err != nil {
			return nil, err
		}
		granted, err := s.store.blobs.Granted(ctx, s.session.Inc)
		if err != nil {
			return nil, err
		}
		out := make([]Upload, len(granted))
		for i, g := range granted {
			out[i] = Upload{Attachment: g.Granted, Expires: g.Expires}
		}
		return out, nil
	}, func(all []Upload, o *Outcome) { o.Items = len(all) })
}

// ReadAttachment writes the content of an attachment of this session's nodes, or one that it has uploaded, to
// w, with bounded memory, and returns its length. Another one is
// ErrBlobNotFound, whether or not another session has it.
// What was written before an error is not verified as a whole: discard it.
func (s *Session) ReadAttachment(ctx context.Context, w io.Writer, id blob.ID) (int64, error) {
	if w == nil {
		return 0, invalid("attachment", "the writer is nil")
	}
	return observed(ctx, s, OpReadAttachment, s.ID(), func(ctx context.Context) (int64, error) {
		return s.session.WriteAttachment(ctx, w, id)
	}, func(n int64, o *Outcome) { o.Bytes = n })
}

// An Attached is an attachment that a session has, or may refer to.
type Attached struct {
	blob.Attachment
	// Node is the first node of the session itself that has it, or else of its nearest ancestor that has it; zero if none
	// has.
	Node      graph.ID      `json:"node,omitzero"`
	Revision  head.Revision `json:"revision,omitzero"`  // of that node
	Inherited bool          `json:"inherited,omitzero"` // an ancestor added that node
	Time      time.Time     `json:"time,omitzero"`      // when that was committed
	Expires   time.Time     `json:"expires,omitzero"`   // of an Upload that it is as well; Attachments leaves it out
}

// Attachment returns what is known of an attachment that ReadAttachment reads, without reading it. Another one is
// ErrBlobNotFound.
func (s *Session) Attachment(ctx context.Context, id blob.ID) (Attached, error) {
	return observed(ctx, s, OpReadAttachment, s.ID(), func(ctx context.Context) (Attached, error) {
		a, err := s.session.Attachment(ctx, id)
		return Attached(a), err
	}, nil)
}

// Attachments returns the attachments of the session's nodes, tombstoned and inherited ones included, in the order of
// the times of Attached.Node. It reads each of these nodes.
func (s *Session) Attachments(ctx context.Context) ([]Attached, error) {
	return observed(ctx, s, OpList, s.ID(), func(ctx context.Context) ([]Attached, error) {
		all, err := s.session.Attachments(ctx)
		out := make([]Attached, len(all))
		for i := range all {
			out[i] = Attached(all[i])
		}
		return out, err
	}, func(all []Attached, o *Outcome) { o.Items = len(all) })
}
