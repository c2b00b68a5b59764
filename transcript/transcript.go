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
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// A Message is one entry of a history.
type Message struct {
	// ID is the node that holds the message. Load sets it and Save ignores it.
	ID          graph.ID
	Kind        string // for example the role; 1 to turnstone.MaxKind bytes
	Payload     []byte // opaque, returned byte for byte
	Attachments []blob.Attachment
}

// A Snapshot is what a host saves. Save keeps no reference to it.
type Snapshot struct {
	// Messages is the whole history. For an attached fork it begins with the messages
	// that the fork inherited.
	Messages []Message
	// State has all of the host's settings by name, for example a system prompt. Nil
	// leaves the stored settings as they are.
	State map[string][]byte
	// Metadata is merged with the stored metadata, like Session.SaveMetadata does,
	// after the fields in Unset were emptied.
	turnstone.Metadata
	Unset []turnstone.Field
	// Usage is the number of tokens that were used since the last save.
	Usage []head.Usage
	// Turn, if set, makes the Usage count once, however often it is saved with the
	// same Turn. See Commit.Turn.
	Turn string
	// Base, if set, is the revision at which this history was loaded or saved last.
	// If the session has another revision, Save fails with *turnstone.ConflictError.
	// If the session does not exist any more, Save fails with
	// turnstone.ErrSessionNotFound. Without a Base the last save wins, and the
	// messages of other saves become a branch.
	Base head.Revision
}

// A Transcript is a session as Load returns it. The caller owns it.
type Transcript struct {
	turnstone.Info
	Messages []Message
	State    map[string][]byte
}

// Saved describes what a save did.
type Saved struct {
	Revision head.Revision // the Base of the next save
	Kept     int           // messages at the beginning that were already stored
	Added    int           // messages written
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

// List returns a page of sessions, the most recently updated one first. The order lags by up to a
// quarter of a second: see turnstone.Store.List.
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
// messages. n is at least 1; a negative n means all messages. The history of an
// attached fork begins with these messages, and its State is that of the last save
// that ended at one of them. A detached fork begins with an empty history and State,
// and only records where it comes from.
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
	if n > len(state.Nodes) || n == 0 {
		return false, &turnstone.InvalidError{Where: "fork of " + parent, Reason: fmt.Sprintf("it has %d messages, and can't be forked after %d", len(state.Nodes), n)}
	}
	r.Parent, r.ForkNode = parent, state.Nodes[n-1].ID
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

// Latest returns the history that was updated last. If several were within a quarter of a
// second, it may return another one of these, like List. If the store has no session, ok is false
// and err is nil.
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
		session, _, err = t.store().Create(ctx, turnstone.Request{ID: id, Metadata: s.Metadata})
	}
	return session, err
}

func (t *Transcripts) save(ctx context.Context, session turnstone.Persistence, s *Snapshot) (Saved, error) {
	info, err := session.Info(ctx)
	if err == nil && s.changes(&info.Metadata) {
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
	if s.Base != 0 && s.Base != state.Revision && !s.isStored(state, same) {
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
// it reached. The session already has the first messages of s; same is how
// many. They stay. A long history takes
// several commits, of which the last one moves the leaf.
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
		part := turnstone.Commit{Expected: expected, Nodes: nodes(rest[:n]), Leaf: oldLeaf}
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
func (s *Snapshot) check() error {
	for _, f := range s.Unset {
		if err := f.Check(); err != nil {
			return err
		}
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
func (s *Snapshot) changes(have *turnstone.Metadata) bool {
	return differs(s, turnstone.FieldName, have.Name, s.Name) || differs(s, turnstone.FieldModel, have.Model, s.Model) ||
		differs(s, turnstone.FieldCwd, have.Cwd, s.Cwd) || differs(s, turnstone.FieldGroup, have.Group, s.Group) ||
		differs(s, turnstone.FieldRetention, have.Retention, s.Retention) || s.changesLabels(have.Labels)
}

// changesLabels reports whether saving the labels of s changes have.
func (s *Snapshot) changesLabels(have map[string]string) bool {
	if slices.Contains(s.Unset, turnstone.FieldLabels) {
		for key := range have {
			if s.Labels[key] == "" {
				return true
			}
		}
	}
	for key, value := range s.Labels {
		if have[key] != value {
			return true
		}
	}
	return false
}

// differs reports whether saving s changes the field f. Its stored value is from, and
// its value in s is to.
func differs[T comparable](s *Snapshot, f turnstone.Field, from, to T) bool {
	var empty T
	if to == empty && !slices.Contains(s.Unset, f) {
		return false // an empty value that is not unset leaves the field as it is
	}
	return from != to
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
	newer.mergeMetadata(s)
	newer.Usage = head.AddUsage(s.Usage, newer.Usage)
	*s = newer
}

// mergeMetadata takes from older the fields that s neither sets nor unsets, merges the labels,
// and adds the fields that older unsets.
func (s *Snapshot) mergeMetadata(older *Snapshot) {
	stays := func(f turnstone.Field) bool { return !slices.Contains(s.Unset, f) }
	if s.Name == "" && stays(turnstone.FieldName) {
		s.Name = older.Name
	}
	if s.Model == "" && stays(turnstone.FieldModel) {
		s.Model = older.Model
	}
	if s.Cwd == "" && stays(turnstone.FieldCwd) {
		s.Cwd = older.Cwd
	}
	if s.Group == "" && stays(turnstone.FieldGroup) {
		s.Group = older.Group
	}
	if s.Retention == 0 && stays(turnstone.FieldRetention) {
		s.Retention = older.Retention
	}
	if older.Labels != nil && stays(turnstone.FieldLabels) {
		all := maps.Clone(older.Labels)
		maps.Copy(all, s.Labels)
		s.Labels = all
	}
	unset := slices.Clone(s.Unset)
	for _, f := range older.Unset {
		if stays(f) {
			unset = append(unset, f)
		}
	}
	s.Unset = unset
}
