package turnstone

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/commit"
)

// AnyRevision as Commit.Expected appends to whatever the head is, and Session.Delete deletes a session wherever its head
// is. It goes nowhere else: as a revision to read or to keep it is an *InvalidError.
const AnyRevision = ^head.Revision(0)

// RevisionZero names the state before the first commit, in which a session is empty and a fork has what it inherits.
// Scope.At, Request.ForkAt and Checkpoint need it, because 0 is the head's revision there. Commit.Expected,
// Session.Delete, Log and Watch take it for 0.
const RevisionZero = AnyRevision - 1

// A Commit is one turn: all of it is stored, or nothing. One that changes nothing
// is a turn as well, and moves the revision.
type Commit struct {
	// Expected is the revision that the caller loaded. If the head is at
	// another one, the commit fails with *ConflictError. See AnyRevision.
	Expected head.Revision `json:"expected,omitzero"`
	// OnPath, if set, is a node that must be on the active path, or the commit fails with a *ConflictError that names
	// it. With AnyRevision such a commit goes on from what the caller has seen, whatever was appended since, unless
	// somebody has rewound behind that node.
	OnPath graph.ID `json:"onPath,omitzero"`
	// Turn, if set, makes the commit idempotent: committing the same content under the
	// same turn id again returns the first result, however far the head has moved. Other
	// content is a *TurnConflictError, unless vacuum has erased a node of that turn: then
	// the turn id alone decides.
	Turn string `json:"turn,omitempty"`
	// Nodes are appended in this order.
	Nodes []NewNode `json:"nodes,omitempty"`
	// Leaf moves the leaf: to an earlier node to rewind, with RefNone to an
	// empty conversation. The zero Ref means the last of Nodes, or where the
	// leaf is when there are none.
	Leaf Ref `json:"leaf,omitzero"`
	// Checkpoint sets parts; parts not mentioned carry over, at no cost.
	Checkpoint map[string][]byte `json:"checkpoint,omitempty"`
	// Stored sets parts to the contents of attachments, by their ids. The session has to have the attachment: one of its
	// nodes refers to it, or it has uploaded or linked it. So a host can stream a large part, and need not send again what
	// another session has. A content of more than MaxPart bytes is a *LimitError.
	Stored map[string]blob.ID `json:"stored,omitempty"`
	// Drop removes parts; one that is not there is no error.
	Drop []string `json:"drop,omitempty"`
	// Usage of this turn, by model.
	Usage []head.Usage `json:"usage,omitempty"`
	// Labels are what the host wants to say of the commit, by name: they are in the log, and part of what the
	// commit id covers.
	Labels map[string]string `json:"labels,omitempty"`
	// Tombstone hides nodes that were committed before, as Session.Tombstone does, if the commit stands. As with
	// Records, the commit id does not cover it, and a turn that is repeated hides nothing.
	Tombstone []graph.ID `json:"tombstone,omitempty"`
	// Keep, if set, keeps the revision of the commit under this name, as Session.Keep does. But a name that is in use
	// moves to this revision: a branch is a name that moves with its commits. The commit id does not cover it, and a
	// turn that is repeated moves no name.
	Keep string `json:"keep,omitempty"`
	// Records are changed if the commit stands, and not otherwise. They are not part of what the commit id
	// covers, nor of what a repeated turn is compared by. So a turn that was committed before changes no
	// records, whatever is here.
	Records []RecordChange `json:"records,omitempty"`
}

// A NewNode is a node to append.
type NewNode struct {
	// Parent is the node before. The zero Ref means the one before in
	// Commit.Nodes, and for the first one the leaf of the head.
	Parent Ref    `json:"parent,omitzero"`
	Kind   string `json:"kind"` // for example "user", "assistant", "tool_result"
	// Key is the caller's name for the event, unique on every path, which includes what a fork inherited: a node on
	// another branch may have it, for example the message before it was edited. May be empty.
	Key         string            `json:"key,omitempty"`
	Payload     []byte            `json:"payload"` // opaque, returned byte for byte
	Attachments []blob.Attachment `json:"attachments,omitempty"`
}

// A Ref names a node in a Commit. The zero Ref stands for a default.
type Ref struct{ ref commit.Ref }

// RefTo refers to a node that exists.
func RefTo(id graph.ID) Ref { return Ref{commit.Ref{Kind: commit.RefExisting, ID: id}} }

// RefNew refers to Commit.Nodes[i].
func RefNew(i int) Ref { return Ref{commit.Ref{Kind: commit.RefNew, Index: i}} }

// RefNone is the parent of a root, and the leaf of an empty conversation.
func RefNone() Ref { return Ref{commit.Ref{Kind: commit.RefNone}} }

// A Result says where a commit stands.
type Result struct {
	Revision head.Revision `json:"revision"`
	Commit   head.CommitID `json:"commit,omitzero"`
	Leaf     graph.ID      `json:"leaf,omitzero"`
	Nodes    []graph.ID    `json:"nodes,omitempty"` // ids of Commit.Nodes, in order
	// Records has a version for each of Commit.Records, in their order: the one that the commit gave the
	// record, or NoRecord if it has none now. A replayed turn returns the versions of the first time.
	Records []RecordVersion `json:"records,omitempty"`
	// Replayed says that the turn had been committed before and this call
	// changed nothing.
	Replayed bool `json:"replayed,omitzero"`
	Created  bool `json:"created,omitzero"` // the session was made with this commit: see SessionCommit.Create
}

// Commit stores c: all of it or nothing. In the common case it takes one call of the engine:
// nobody else has committed since this handle saw the head last, c goes on from the head's
// leaf, has no attachments, has no event keys in an attached fork, and fits a batch.
//
// An error that matches ErrOutcomeUnknown leaves open whether the commit
// stands; after any other error nothing of it is visible.
func (s *Session) Commit(ctx context.Context, c Commit) (Result, error) {
	store, err := s.usable(ctx)
	if err != nil {
		return Result{}, err
	}
	ctx, end := store.begin(ctx, OpCommit, s.session.ID)
	if end == nil {
		r, _, err := s.commit(ctx, &c)
		return r, err
	}
	o := Outcome{Err: errPanicked}
	defer func() { end(o) }()
	r, stats, err := s.commit(ctx, &c)
	o = outcomeOf(&c, &r, &stats, err)
	return r, err
}

func (s *Session) commit(ctx context.Context, c *Commit) (Result, commit.Stats, error) {
	if err := s.store.check(ctx, s.ID(), c, false); err != nil {
		return Result{}, commit.Stats{}, err
	}
	if err := ctx.Err(); err != nil {
		return Result{}, commit.Stats{}, err
	}
	r, stats, err := s.store.commits.Commit(ctx, commit.Participant{Session: s.session, Request: c.request()})
	if err != nil {
		return Result{}, stats[0], public(err)
	}
	s.committed(c.Records, &r[0], &stats[0])
	return resultOf(&r[0]), stats[0], nil
}

func resultOf(r *commit.Result) Result {
	out := Result{Revision: r.Revision, Commit: r.Commit, Leaf: r.Leaf, Nodes: r.Nodes, Replayed: r.Replayed, Created: r.Created}
	for _, v := range r.Records {
		out.Records = append(out.Records, versionOf(v))
	}
	return out
}

// check fails if a commit to a session is invalid, or the host's validator refuses it. Changes of records
// alone are no commit.
func (s *Store) check(ctx context.Context, session string, c *Commit, recordsOnly bool) error {
	if err := c.Check(); err != nil {
		return err
	}
	if v := s.opts.Validator; v != nil && !recordsOnly {
		if err := v(ctx, session, c.clone()); err != nil {
			return rejected(err)
		}
	}
	return nil
}

// rejected returns the error of a commit that a validator refuses. It matches no other error of the store, whatever the
// validator has called: who meets a conflict tries again, and a refusal stays one.
func rejected(err error) error {
	switch KindOf(err).Err {
	case nil, context.Canceled, context.DeadlineExceeded:
		return fmt.Errorf("%w: %w", ErrRejected, err)
	}
	return fmt.Errorf("%w: %v", ErrRejected, err)
}

// committed tells those who watch the session of a commit, and seals in the background what is due.
func (s *Session) committed(records []RecordChange, r *commit.Result, stats *commit.Stats) {
	s.store.lifecycle.Telling.Store(stats.Tells)
	s.store.changed(s.session.Inc)
	if changesAny(records) {
		s.store.recordsChanged(s.session.Inc)
	}
	if !r.Replayed && s.store.sizes.Due(*s.sealed.Load(), r.Revision, stats.PackBytes) {
		s.sealLater()
	}
}

// A SessionCommit is what [Store.CommitAll] commits to one session.
type SessionCommit struct {
	Session Persistence // a handle of the store that commits; nil with Create
	// Create, if set, describes the session to commit to. If no session has that id, the call makes it, as Store.Create
	// does. If one has, the call commits to it, and ignores the rest of Create. Result.Created says whether the call
	// made the session, which is at revision 0 with RecordsOnly. The first commit of a fork goes on from the fork node.
	// The fork begins from the parent as it was before the call. Only one Create of a call may have a Parent.
	Create *Request
	// RecordsOnly makes no commit: the session stays at its revision, whatever that is, and only
	// Commit.Records are changed. All else of the commit must be zero.
	RecordsOnly bool
	Commit
}

// CommitAll stores all commits, each to another session, or nothing: in one call of the engine in
// the common case, as [Session.Commit] does. Each commit has its own Expected and Records; a *ConflictError
// or *RecordConflictError names the session. MaxCommitBytes limits the sum of all, and there are at
// most MaxSessions.
//
// Either all commits have a turn id or none has, but for those with RecordsOnly, which have none. With the same
// content under the same turn ids, CommitAll returns the first results. If only some of the turns were committed, the
// error is a
// *TurnConflictError that names one of them and has Alone set. An error about one of the commits
// names its session.
//
// The results are in the order of the commits. An error that matches ErrOutcomeUnknown leaves open
// whether all commits stand or none does; after any other error nothing of them is visible.
func (s *Store) CommitAll(ctx context.Context, commits ...SessionCommit) (results []Result, err error) {
	if _, err := s.usable(ctx); err != nil {
		return nil, err
	}
	ctx, end := s.begin(ctx, OpCommitAll, "")
	if end == nil {
		results, _, err = s.commitAll(ctx, commits)
		return results, err
	}
	all := Outcome{Err: errPanicked}
	defer func() { end(all) }()
	results, stats, err := s.commitAll(ctx, commits)
	all.Err = err
	for i := range stats {
		var r Result
		if err == nil {
			r = results[i]
		}
		o := outcomeOf(&commits[i].Commit, &r, &stats[i], err)
		all.Items, all.Bytes, all.Replayed = all.Items+o.Items, all.Bytes+o.Bytes, o.Replayed
		all.BaseHits, all.BaseMisses = all.BaseHits+o.BaseHits, all.BaseMisses+o.BaseMisses
	}
	return results, err
}

func (s *Store) commitAll(ctx context.Context, commits []SessionCommit) ([]Result, []commit.Stats, error) {
	of, err := s.checkAll(ctx, commits)
	if err != nil || len(commits) == 0 {
		return nil, nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	rs, stats, err := s.commits.Commit(ctx, of...)
	if err != nil {
		return nil, stats, public(err)
	}
	out := make([]Result, len(rs))
	for i := range rs {
		out[i] = resultOf(&rs[i])
		switch of := s.handleOf(&commits[i], &rs[i]); {
		case !commits[i].RecordsOnly:
			of.committed(commits[i].Records, &rs[i], &stats[i])
		case rs[i].Created:
			s.changed(head.Incarnation{})
			s.recordsChanged(of.session.Inc)
		case changesAny(commits[i].Records):
			s.recordsChanged(of.session.Inc)
		}
	}
	return out, stats, nil
}

// handleOf returns a handle of the session of a commit that stands.
func (s *Store) handleOf(c *SessionCommit, r *commit.Result) *Session {
	if of, ok := c.Session.(*Session); ok {
		return of
	}
	return s.handle(r.Session, nil)
}

// checkAll returns what commits ask for. It fails if one is invalid by itself or beside the others.
func (s *Store) checkAll(ctx context.Context, commits []SessionCommit) ([]commit.Participant, error) {
	if n := len(commits); n > MaxSessions {
		return nil, &LimitError{Limit: "sessions", Where: "commit", Have: int64(n), Max: MaxSessions}
	}
	out := make([]commit.Participant, len(commits))
	first, fork := map[string]int{}, -1
	turn := slices.IndexFunc(commits, func(c SessionCommit) bool { return !c.RecordsOnly }) // the first commit
	for i := range commits {
		c, where := &commits[i], fmt.Sprintf("commit %d", i)
		id, err := s.participant(c, where, &out[i])
		if err != nil {
			return nil, err
		}
		if j, twice := first[id]; twice {
			return nil, invalid(where, "it is to session %q, as is commit %d", id, j)
		}
		if c.RecordsOnly && !c.Commit.recordsOnly() {
			return nil, invalid(where, "it is of records only, and has more than records")
		}
		if !c.RecordsOnly && (c.Turn == "") != (commits[turn].Turn == "") {
			return nil, invalid(where, "either all commits have a turn id or none has")
		}
		if c.Create != nil && c.Create.Parent != "" {
			if fork >= 0 {
				return nil, invalid(where, "its session has a parent, as that of commit %d has", fork)
			}
			fork = i
		}
		if err := s.check(ctx, id, &c.Commit, c.RecordsOnly); err != nil {
			if len(commits) > 1 {
				err = fmt.Errorf("%s: %w", where, err)
			}
			return nil, err
		}
		first[id] = i
	}
	return out, nil
}

// participant sets what takes part in a commit, and returns the id of its session.
func (s *Store) participant(c *SessionCommit, where string, p *commit.Participant) (id string, err error) {
	p.Request = c.request()
	p.Request.RecordsOnly = c.RecordsOnly
	if c.Create == nil {
		of, ok := c.Session.(*Session)
		if !ok || of == nil || of.store != s {
			return "", invalid(where, "it is to no session of this store")
		}
		p.Session = of.session
		return of.ID(), nil
	}
	if c.Session != nil {
		return "", invalid(where, "it has Create and a session")
	}
	r, err := c.Create.request()
	if err != nil {
		return "", fmt.Errorf("%s: %w", where, err)
	}
	p.Creator = s.lifecycle.Creator(r)
	return c.Create.ID, nil
}

// recordsOnly reports whether all fields but Records are zero.
func (c *Commit) recordsOnly() bool {
	return c.Expected == 0 && c.Turn == "" && len(c.Nodes) == 0 && c.Leaf == (Ref{}) && len(c.Checkpoint) == 0 && len(c.Stored) == 0 && len(c.Drop) == 0 && len(c.Usage) == 0 &&
		len(c.Labels) == 0 && c.OnPath.IsZero() && len(c.Tombstone) == 0 && c.Keep == ""
}

// expectedOf returns the revision at which a head is expected: RevisionZero as the number 0, and any other as it is.
func expectedOf(r head.Revision) head.Revision {
	if r == RevisionZero {
		return 0
	}
	return r
}

// request returns what c asks for. It shares memory with c.
func (c *Commit) request() *commit.Request {
	r := &commit.Request{
		Expected: expectedOf(c.Expected), OnPath: c.OnPath, Turn: c.Turn, Nodes: make([]commit.Node, len(c.Nodes)), Leaf: c.Leaf.ref,
		Checkpoint: c.Checkpoint, Stored: c.Stored, Drop: c.Drop, Usage: c.Usage, Labels: c.Labels,
		Tombstone: c.Tombstone, Keep: c.Keep, Records: recordChanges(c.Records),
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		r.Nodes[i] = commit.Node{Parent: n.Parent.ref, Kind: n.Kind, Key: n.Key, Payload: n.Payload, Attachments: n.Attachments}
	}
	return r
}

// clone returns a copy of in that shares no memory with it.
func (in *Commit) clone() *Commit {
	out := *in
	out.Nodes = slices.Clone(in.Nodes)
	for i := range out.Nodes {
		n := &out.Nodes[i]
		n.Payload, n.Attachments = bytes.Clone(n.Payload), slices.Clone(n.Attachments)
	}
	out.Checkpoint, out.Stored = maps.Clone(in.Checkpoint), maps.Clone(in.Stored)
	for name, content := range out.Checkpoint {
		out.Checkpoint[name] = bytes.Clone(content)
	}
	out.Drop, out.Usage, out.Labels = slices.Clone(in.Drop), slices.Clone(in.Usage), maps.Clone(in.Labels)
	out.Tombstone, out.Records = slices.Clone(in.Tombstone), slices.Clone(in.Records)
	for i := range out.Records {
		out.Records[i].Value = bytes.Clone(out.Records[i].Value)
	}
	return &out
}

// PutAttachment stores what r delivers, with bounded memory, and returns a
// reference for NewNode.Attachments. Equal bytes give equal ids and are stored
// once per namespace. size is the length announced, or negative when it is not
// known; a stream of another length is blob.ErrSize. The session has the
// attachment from the commit on that refers to it; until then Uploads lists it, this session alone can read it,
// and it is kept for Options.UploadTTL. A commit that comes later than that, and
// after a collection, is ErrUploadExpired. If the session is
// deleted, before the call or meanwhile, the error is ErrSessionDeleted.
func (s *Session) PutAttachment(ctx context.Context, r io.Reader, size int64, mediaType, name string) (blob.Attachment, error) {
	c := checker{of: "attachment"}
	if r == nil {
		c.invalid("the reader is nil")
	}
	c.text("media type", mediaType, 0, MaxAttachmentText)
	c.text("name", name, 0, MaxAttachmentText)
	if c.err == nil && size > MaxBlob {
		c.err = &LimitError{Limit: "bytes", Where: "attachment", Have: size, Max: MaxBlob}
	}
	if c.err != nil {
		return blob.Attachment{}, c.err
	}
	return observed(ctx, s, OpPutAttachment, s.ID(), func(ctx context.Context) (blob.Attachment, error) {
		d, err := s.store.commits.Upload(ctx, s.session, r, size, mediaType, name)
		if err != nil {
			return blob.Attachment{}, err
		}
		return blob.Attachment{ID: d.ID, Size: d.Size, MediaType: mediaType, Name: name}, nil
	}, func(a blob.Attachment, o *Outcome) { o.Bytes = a.Size })
}

// newUpload returns an upload for a session, which may be collected after Options.UploadTTL. Its
// id does not come from Options.Random: two uploads with the same id would end each other.
func (s *Store) newUpload(owner head.Incarnation) *blob.Upload {
	var id [16]byte
	rand.Read(id[:])
	return s.blobs.NewUpload(id, owner, s.now().Add(s.opts.UploadTTL))
}

// LinkAttachment makes an attachment of another session of the store one that commits of this session may refer to, and
// returns a reference with the same media type and name. No byte of it is read or stored again. After that it is what
// PutAttachment has stored. If the session from does not have the attachment, the error is ErrBlobNotFound; if there is
// no such session, it is ErrSessionNotFound.
func (s *Session) LinkAttachment(ctx context.Context, from string, id blob.ID) (blob.Attachment, error) {
	return observed(ctx, s, OpPutAttachment, s.ID(), func(ctx context.Context) (blob.Attachment, error) {
		other, err := s.store.Session(ctx, from)
		if err != nil {
			return blob.Attachment{}, err
		}
		a, err := other.session.Attachment(ctx, id)
		if err == nil {
			err = s.store.commits.Link(ctx, s.session, a.Attachment)
		}
		return a.Attachment, err
	}, nil)
}

// MarshalJSON returns the id of the node for RefTo, the index for RefNew, "none" for RefNone, and null for the zero
// Ref.
func (r Ref) MarshalJSON() ([]byte, error) {
	switch r.ref.Kind {
	case commit.RefExisting:
		return json.Marshal(r.ref.ID)
	case commit.RefNew:
		return json.Marshal(r.ref.Index)
	case commit.RefNone:
		return []byte(`"none"`), nil
	}
	return []byte("null"), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *Ref) UnmarshalJSON(text []byte) error {
	var index int
	var id graph.ID
	switch {
	case bytes.Equal(text, []byte("null")):
		*r = Ref{}
	case bytes.Equal(text, []byte(`"none"`)):
		*r = RefNone()
	case json.Unmarshal(text, &index) == nil:
		*r = RefNew(index)
	case text[0] == '"' && json.Unmarshal(text, &id) == nil:
		*r = RefTo(id)
	default:
		return fmt.Errorf("%.80s refers to no node: want its id, the index of a new one, or \"none\"", text)
	}
	return nil
}
