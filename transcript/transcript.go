// Package transcript keeps whole message histories in a session store. It is for
// hosts that save the full list of messages: after each turn, on every added message,
// or as one snapshot of history and settings that is restored at the start.
//
// A save stores only what changed. A save that adds messages writes the new messages.
// A save that changes nothing writes nothing. A save that edits or shortens the
// history makes a branch, and the earlier messages stay in the session's graph. So a
// host that only knows how to save a list gets the log, the forks, the checks and the
// deduplication of the store. The sessions are ordinary ones: the command and every
// call of package turnstone work on them.
package transcript

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// A Message is one entry of a history.
type Message struct {
	// ID is the node that holds the message. Load sets it and Save ignores it.
	ID          graph.ID          `json:"id,omitzero"`
	Kind        string            `json:"kind"`    // for example the role; 1 to turnstone.MaxKind bytes
	Payload     []byte            `json:"payload"` // opaque, returned byte for byte
	Attachments []blob.Attachment `json:"attachments,omitempty"`
}

// A Snapshot is what a host saves. Save keeps no reference to it.
type Snapshot struct {
	// Messages is the whole history. For an attached fork it begins with the messages
	// that the fork inherited.
	Messages []Message `json:"messages,omitempty"`
	// State has all of the host's settings by name, for example a system prompt. Nil
	// leaves the stored settings as they are.
	State map[string][]byte `json:"state,omitempty"`
	// Metadata is merged with the stored metadata, like Session.SaveMetadata does,
	// after the fields in Unset were emptied. With head.FieldAll there, they are all that the
	// session has after the save.
	head.Metadata
	Unset []head.Field `json:"empty,omitempty"`
	// New says how Save makes the session if there is none, for example as a fork of a Parent or as a Summary. The id
	// and the metadata come from the save, whatever New has there. A session that exists stays what it is.
	New turnstone.Request `json:"new,omitzero"`
	// Touch sets Info.Updated also if the save changes nothing.
	Touch bool `json:"touch,omitzero"`
	// Usage is the number of tokens that were used since the last save.
	Usage []head.Usage `json:"usage,omitempty"`
	// Turn, if set, makes the Usage count once, however often it is saved with the
	// same Turn. See Commit.Turn.
	Turn string `json:"turn,omitempty"`
	// Base, if set, is the revision at which this history was loaded or saved last.
	// If anything was committed since, Save fails with *turnstone.ConflictError, but for what is stored already, and for
	// parts of saves that were cut off.
	// If the session does not exist any more, Save fails with
	// turnstone.ErrSessionNotFound. Without a Base the last save wins, and the
	// messages of other saves become a branch.
	Base head.Revision `json:"base,omitzero"`
}

// A Transcript is a session as Load returns it. The caller owns it.
type Transcript struct {
	turnstone.Info
	Messages []Message
	State    map[string][]byte
}

// Saved describes what a save did.
type Saved struct {
	Revision head.Revision `json:"revision"` // the Base of the next save
	Kept     int           `json:"kept"`     // messages at the beginning that were already stored
	Added    int           `json:"added"`    // messages written
}

// Transcripts reads and saves the histories in a store. It holds no state of its own
// and is safe for concurrent use. Several processes can use it if the engine allows
// several processes. All calls of the zero value return an error that matches
// turnstone.ErrInvalid.
type Transcripts struct{ factory turnstone.Factory }

// New returns the histories of the store behind f. For a Store, pass Store.Factory().
func New(f turnstone.Factory) *Transcripts { return &Transcripts{factory: f} }

// store returns the factory, or one that refuses every call.
func (t *Transcripts) store() turnstone.Factory {
	if t == nil || t.factory == nil {
		return (*turnstone.Store)(nil).Factory()
	}
	return t.factory
}

// List returns a page of sessions, the most recently updated one first: see
// turnstone.Store.List.
func (t *Transcripts) List(ctx context.Context, o turnstone.ListOptions) (turnstone.Page, error) {
	return t.store().List(ctx, o)
}

// Create creates an empty session and reports whether it did. A session that exists
// stays as it is.
func (t *Transcripts) Create(ctx context.Context, r turnstone.Request) (created bool, err error) {
	_, created, err = t.store().Create(ctx, r)
	return created, err
}

// Fork creates the session that r describes as a fork of parent after the first n
// messages; n is at least 1, unless parent has none, and a negative n means all messages. The history of an
// attached fork begins with these messages, and its State is that of the last save
// that ended at one of them. A detached fork begins with an empty history and State,
// and only records where it comes from. See also Snapshot.New.
func (t *Transcripts) Fork(ctx context.Context, parent string, n int, r turnstone.Request) (created bool, err error) {
	s, err := t.store().Session(ctx, parent)
	if err != nil {
		return false, err
	}
	state, err := s.Load(ctx, turnstone.Scope{})
	if err != nil {
		return false, err
	}
	if n < 0 {
		n = len(state.Nodes)
	}
	if n > len(state.Nodes) || n == 0 && len(state.Nodes) > 0 {
		return false, &turnstone.InvalidError{Where: "fork of " + parent, Reason: fmt.Sprintf("it has %d messages, and can't be forked after %d", len(state.Nodes), n)}
	}
	r.Parent = parent
	switch {
	case n > 0:
		r.ForkNode = state.Nodes[n-1].ID
	case !state.Leaf.IsZero(): // All messages are tombstoned.
		r.ForkNode = state.Leaf
	default: // where the parent stands now, and not after what somebody saves meanwhile
		r.ForkAt = cmp.Or(state.Revision, turnstone.RevisionZero)
	}
	return t.Create(ctx, r)
}

// Load returns the history of a session. If there is no such session, ok is false
// and err is nil.
func (t *Transcripts) Load(ctx context.Context, id string) (tr *Transcript, ok bool, err error) {
	for {
		s, err := t.store().Session(ctx, id)
		if err == nil {
			tr, err = t.load(ctx, s)
		}
		switch {
		case errors.Is(err, turnstone.ErrSessionNotFound), errors.Is(err, turnstone.ErrSessionDeleted):
			return nil, false, nil
		case errors.Is(err, errMoved), errors.Is(err, turnstone.ErrRevisionPruned):
			continue
		case err != nil:
			return nil, false, err
		}
		return tr, true, nil
	}
}

// Latest returns the history that was updated last. If the store has no session, ok is false and err is nil.
func (t *Transcripts) Latest(ctx context.Context) (tr *Transcript, ok bool, err error) {
	for {
		page, err := t.store().List(ctx, turnstone.ListOptions{Limit: 1})
		if err != nil || len(page.Sessions) == 0 {
			return nil, false, err
		}
		if tr, ok, err = t.Load(ctx, page.Sessions[0].ID); ok || err != nil {
			return tr, ok, err
		} // otherwise the session was deleted after it was listed
	}
}

// errMoved means that another writer committed between two reads.
var errMoved = errors.New("the session moved")

// load reads the history, the state and the metadata at one revision. It fails with
// errMoved if the revision changes meanwhile.
func (t *Transcripts) load(ctx context.Context, s turnstone.Persistence) (*Transcript, error) {
	state, err := s.Load(ctx, turnstone.Scope{})
	if err != nil {
		return nil, err
	}
	out := &Transcript{}
	if len(state.Parts) > 0 {
		if out.State, err = s.Checkpoint(ctx, state.Revision); err != nil {
			return nil, err
		}
	}
	if out.Info, err = s.Info(ctx); err != nil {
		return nil, err
	}
	if out.Commit != state.Commit {
		return nil, errMoved
	}
	for i := range state.Nodes {
		out.Messages = append(out.Messages, messageOf(&state.Nodes[i]))
	}
	return out, nil
}

func messageOf(n *turnstone.Node) Message {
	return Message{ID: n.ID, Kind: n.Kind, Payload: n.Payload, Attachments: n.Attachments}
}

// equal reports whether a and b are the same message. It ignores their nodes.
func equal(a, b Message) bool {
	return a.Kind == b.Kind && bytes.Equal(a.Payload, b.Payload) && slices.Equal(a.Attachments, b.Attachments)
}

// Save makes the snapshot's history that of the session. It creates the session if
// there is none. A reader sees the history from before or after the save. A
// tombstoned message is not in the stored history: a host that still has it adds it
// again.
//
// After an error readers see the history as it was, unless the error matches
// turnstone.ErrOutcomeUnknown. Metadata may have been saved. If Saved.Revision is not
// 0, part of the snapshot was committed, and Saved.Revision is the Base to go on
// from. Saving again is always safe, and with a Turn it counts no usage twice.
//
// Save compares with the stored history, and so takes as long as a Load.
func (t *Transcripts) Save(ctx context.Context, id string, s Snapshot) (Saved, error) {
	if err := s.check(); err != nil {
		return Saved{}, err
	}
	for {
		session, err := t.openOrCreate(ctx, id, &s)
		if err != nil {
			return Saved{}, err
		}
		saved, err := t.save(ctx, session, &s)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, turnstone.ErrTurnConflict): // an earlier save of the turn counted its usage, with less of the history
			s.Usage, s.Turn = nil, ""
			continue
		case errors.Is(err, turnstone.ErrConflict) && s.Base == 0, errors.Is(err, turnstone.ErrSessionDeleted):
			continue // another writer committed to the session or deleted it
		}
		return saved, err
	}
}

// openOrCreate opens the session. It creates the session if there is none, unless s
// builds on a revision of it.
func (t *Transcripts) openOrCreate(ctx context.Context, id string, s *Snapshot) (turnstone.Persistence, error) {
	session, err := t.store().Session(ctx, id)
	if errors.Is(err, turnstone.ErrSessionNotFound) && s.Base == 0 {
		r := s.New
		r.ID, r.Metadata = id, s.Metadata
		session, _, err = t.store().Create(ctx, r)
	}
	return session, err
}

func (t *Transcripts) save(ctx context.Context, session turnstone.Persistence, s *Snapshot) (Saved, error) {
	info, err := session.Info(ctx)
	if err == nil && (s.Touch || s.changes(info.Metadata)) {
		err = session.SaveMetadata(ctx, s.Metadata, s.Unset...)
	}
	if err != nil {
		return Saved{}, err
	}
	state, err := session.Load(ctx, turnstone.Scope{})
	if err != nil {
		return Saved{}, err
	}
	same := s.common(state.Nodes)
	standing := s.Base == 0 || s.Base == state.Revision || s.isStored(state, same)
	if !standing {
		if standing, err = stands(ctx, session, s.Base, state.Revision); err != nil {
			return Saved{}, err
		}
	}
	if !standing {
		return Saved{}, &turnstone.ConflictError{Session: session.ID(), Expected: s.Base, Revision: state.Revision, Leaf: state.Leaf, Commit: state.Commit}
	}
	reached, err := commit(ctx, session, state, same, s)
	if err != nil {
		if reached == state.Revision {
			reached = 0
		}
		return Saved{Revision: reached}, err
	}
	return Saved{Revision: reached, Kept: same, Added: len(s.Messages) - same}, nil
}

// common returns how many messages at the beginning of s are equal to nodes.
func (s *Snapshot) common(nodes []turnstone.Node) int {
	n := 0
	for n < min(len(s.Messages), len(nodes)) && equal(s.Messages[n], messageOf(&nodes[n])) {
		n++
	}
	return n
}

// isStored reports whether a session has the history and the state of s already, for
// example because of an earlier save whose outcome was unknown. same is how many
// messages at the beginning are equal.
func (s *Snapshot) isStored(state *turnstone.State, same int) bool {
	return same == len(s.Messages) && same == len(state.Nodes) && (s.State == nil || s.stateIs(state.Parts))
}

// stands reports whether nothing was committed to a session since a revision, but parts of saves of long histories that
// were cut off: they are beside the history.
func stands(ctx context.Context, session turnstone.Persistence, since, now head.Revision) (bool, error) {
	if since > now && since != turnstone.RevisionZero {
		return false, nil
	}
	for e, err := range session.Log(ctx, since) {
		if err != nil {
			return false, err
		}
		if e.Labels[partLabel] != "part" {
			return false, nil
		}
	}
	return true, nil
}

// partLabel is the label of commits that have a part of a long history, before the one that moves the leaf.
const partLabel = "transcript"

// stateIs reports whether parts have the contents of s.State and no others.
func (s *Snapshot) stateIs(parts []head.Part) bool {
	for _, p := range parts {
		if content, ok := s.State[p.Name]; !ok || blob.Sum(content) != p.Blob {
			return false
		}
	}
	return len(parts) == len(s.State)
}

// checkpoint returns the parts that a commit has to set and to drop so that parts
// become s.State.
func (s *Snapshot) checkpoint(parts []head.Part) (set map[string][]byte, drop []string) {
	if s.State == nil {
		return nil, nil
	}
	set = maps.Clone(s.State)
	for _, p := range parts {
		if content, stays := s.State[p.Name]; !stays {
			drop = append(drop, p.Name)
		} else if blob.Sum(content) == p.Blob {
			delete(set, p.Name)
		}
	}
	return set, drop
}

// commit gives a session the history and the state of s and returns the revision that
// it reached. The session already has the first messages of s, and these stay. same is their
// number. A long history takes several commits, of which the last one moves the leaf.
func commit(ctx context.Context, session turnstone.Persistence, state *turnstone.State, same int, s *Snapshot) (head.Revision, error) {
	set, drop := s.checkpoint(state.Parts)
	rest := s.Messages[same:]
	if len(rest) == 0 && same == len(state.Nodes) && len(set) == 0 && len(drop) == 0 && len(s.Usage) == 0 {
		return state.Revision, nil
	}
	parent := turnstone.RefNone()
	if same > 0 {
		parent = turnstone.RefTo(state.Nodes[same-1].ID)
	}
	expected, oldLeaf := state.Revision, refTo(state.Leaf)
	for n := fits(rest); n < len(rest); n = fits(rest) {
		part := turnstone.Commit{Expected: expected, Nodes: nodes(rest[:n]), Leaf: oldLeaf, Labels: map[string]string{partLabel: "part"}}
		part.Nodes[0].Parent = parent
		r, err := session.Commit(ctx, part)
		if err != nil {
			return expected, err
		}
		rest, parent, expected = rest[n:], turnstone.RefTo(r.Nodes[n-1]), r.Revision
	}
	last := turnstone.Commit{Expected: expected, Nodes: nodes(rest), Leaf: parent, Checkpoint: set, Drop: drop, Usage: s.Usage, Turn: s.Turn}
	if len(rest) > 0 {
		last.Nodes[0].Parent = parent
		last.Leaf = turnstone.RefNew(len(rest) - 1)
	}
	r, err := session.Commit(ctx, last)
	if err != nil {
		return expected, err
	}
	return r.Revision, nil
}

// refTo returns a reference to a node, or to none if id is zero.
func refTo(id graph.ID) turnstone.Ref {
	if id.IsZero() {
		return turnstone.RefNone()
	}
	return turnstone.RefTo(id)
}

// check returns an error if s can't be committed, whatever the store has. It checks
// the same commits that commit would make for a new session.
func (s *Snapshot) check() (err error) {
	if s.Metadata, err = turnstone.CheckMetadata(s.Metadata, s.Unset...); err != nil {
		return err
	}
	if s.Base == turnstone.AnyRevision {
		return &turnstone.InvalidError{Where: "snapshot", Reason: "Base is AnyRevision; without one, the last save wins"}
	}
	rest := s.Messages
	for {
		n := fits(rest)
		in := turnstone.Commit{Nodes: nodes(rest[:n])}
		if n == len(rest) {
			in.Checkpoint, in.Usage = s.State, s.Usage
			return in.Check()
		}
		if err := in.Check(); err != nil {
			return err
		}
		rest = rest[n:]
	}
}

func nodes(messages []Message) []turnstone.NewNode {
	out := make([]turnstone.NewNode, len(messages))
	for i, m := range messages {
		out[i] = turnstone.NewNode{Kind: m.Kind, Payload: m.Payload, Attachments: m.Attachments}
	}
	return out
}

// fits returns how many of the messages one commit takes: at least one, if there is
// any. A large payload becomes a blob of its own, so at most maxCounts bytes of it
// count. An attachment counts because it has index entries.
func fits(messages []Message) int {
	const maxNodes, maxBytes, maxCounts, attachment = 2000, 1 << 20, 8 << 10, 400
	size := 0
	for i := range messages {
		size += len(messages[i].Kind) + min(len(messages[i].Payload), maxCounts)
		for _, a := range messages[i].Attachments {
			size += attachment + len(a.MediaType) + len(a.Name)
		}
		if i > 0 && (i == maxNodes || size > maxBytes) {
			return i
		}
	}
	return len(messages)
}

// changes reports whether saving the metadata of s changes have.
func (s *Snapshot) changes(have head.Metadata) bool {
	after := have
	after.Merge(&s.Metadata, s.Unset...)
	return !reflect.DeepEqual(after, have)
}

// Clear empties the history and the state of a session and keeps the session. It
// reports whether there is such a session. The messages stay in the graph until the
// session is deleted or its nodes are tombstoned.
func (t *Transcripts) Clear(ctx context.Context, id string) (existed bool, err error) {
	for {
		session, err := t.store().Session(ctx, id)
		if err == nil {
			_, err = t.save(ctx, session, &Snapshot{State: map[string][]byte{}})
		}
		switch {
		case errors.Is(err, turnstone.ErrSessionNotFound), errors.Is(err, turnstone.ErrSessionDeleted):
			return false, nil
		case errors.Is(err, turnstone.ErrConflict) && ctx.Err() == nil:
			continue
		}
		return err == nil, err
	}
}

// Delete deletes a session and reports whether there was one. Sessions that forked
// from it keep their whole history.
func (t *Transcripts) Delete(ctx context.Context, id string) (existed bool, err error) {
	if _, err := t.store().Session(ctx, id); errors.Is(err, turnstone.ErrSessionNotFound) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	return true, t.store().Delete(ctx, id, turnstone.KeepChildren)
}

// merge makes s the snapshot that has the same effect as saving s and then newer.
func (s *Snapshot) merge(newer Snapshot) {
	if newer.State == nil {
		newer.State = s.State
	}
	newer.Base = max(newer.Base, s.Base)
	if newer.Turn == "" {
		newer.Turn = s.Turn
	}
	if reflect.ValueOf(newer.New).IsZero() {
		newer.New = s.New
	}
	newer.mergeMetadata(s)
	newer.Usage = head.AddUsage(s.Usage, newer.Usage)
	*s = newer
}

// mergeMetadata makes the metadata of s what has the same effect as those of older and then those of s.
func (s *Snapshot) mergeMetadata(older *Snapshot) {
	both := older.Metadata
	both.Merge(&s.Metadata, s.Unset...)
	gone := map[string]string{} // the labels that are removed
	if !slices.Contains(s.Unset, head.FieldLabels) && !slices.Contains(s.Unset, head.FieldAll) {
		maps.Copy(gone, older.Labels)
	}
	maps.Copy(gone, s.Labels)
	maps.DeleteFunc(gone, func(_, value string) bool { return value != "" })
	if len(gone) > 0 {
		maps.Copy(gone, both.Labels)
		both.Labels = gone
	}
	s.Metadata = both
	s.Unset = slices.Compact(slices.Sorted(slices.Values(slices.Concat(s.Unset, older.Unset))))
	s.Touch = s.Touch || older.Touch
}
