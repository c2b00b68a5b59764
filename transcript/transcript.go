// Package transcript keeps whole message histories in a session store, for hosts
// that save the full list of messages: after each turn, on every added message,
// or as one snapshot of history and settings that is restored at the start.
//
// What is stored is the difference. A save that adds messages writes those; one
// that changes nothing writes nothing; one that edits or shortens the history
// makes a branch, and what was there before stays in the session's graph. So a
// host that knows nothing but "save this list" gets the log, the forks, the
// checks and the deduplication of the sessions beneath, which stay ordinary
// ones: the command and every call of package turnstone work on them.
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
	// ID is the node that holds the message. Load sets it, Save does not look
	// at it.
	ID          graph.ID
	Kind        string // for example the role; 1 to turnstone.MaxKind bytes
	Payload     []byte // opaque, returned byte for byte
	Attachments []blob.Attachment
}

// A Snapshot is what a host saves. Nothing of it is kept after the call.
type Snapshot struct {
	// Messages is the whole history, for an attached fork with what it inherited.
	Messages []Message
	// State is the host's settings by name, such as a system prompt: all of
	// them. Nil leaves what is stored.
	State map[string][]byte
	// Metadata is merged, as by Session.SaveMetadata, after the fields of Unset were
	// emptied.
	turnstone.Metadata
	Unset []turnstone.Field
	// Usage is what was used since the last save.
	Usage []head.Usage
	// Turn, if set, makes the Usage count once, however often this is saved
	// under the same id; see Commit.Turn.
	Turn string
	// Base, if set, is the revision that this history was loaded at or saved
	// as. If the session has moved on since, Save fails with
	// *turnstone.ConflictError, and if it is gone with
	// turnstone.ErrSessionNotFound. Without it the last save wins; what another
	// one wrote is a branch then.
	Base head.Revision
}

// A Transcript is a session as Load returns it. It is the caller's.
type Transcript struct {
	turnstone.Info
	Messages []Message
	State    map[string][]byte
}

// Saved says what a save did.
type Saved struct {
	Revision head.Revision // the Base of the next save
	Kept     int           // messages at the beginning that were stored already
	Added    int           // messages written
}

// Transcripts are the histories in a store. They hold no state of their own, and
// are safe for concurrent use, also by several processes where the store is.
// The zero value has none: all calls return an error that matches turnstone.ErrInvalid.
type Transcripts struct{ factory turnstone.Factory }

// New returns the histories in the store behind f, for example Store.Factory.
func New(f turnstone.Factory) *Transcripts { return &Transcripts{factory: f} }

// store returns where the histories are.
func (t *Transcripts) store() turnstone.Factory {
	if t == nil || t.factory == nil {
		return (*turnstone.Store)(nil).Factory()
	}
	return t.factory
}

// List returns sessions, the most recently updated first.
func (t *Transcripts) List(ctx context.Context, o turnstone.ListOptions) (turnstone.Page, error) {
	return t.store().List(ctx, o)
}

// Create makes an empty session, so that its id stands for something stored from
// the start. It reports whether it was made; one that exists stays as it is.
func (t *Transcripts) Create(ctx context.Context, r turnstone.Request) (created bool, err error) {
	_, created, err = t.store().Create(ctx, r)
	return created, err
}

// Fork makes the session that r describes, with parent, from the first n messages
// of the parent's history, at least one; a negative n means all. An attached
// fork's history begins with those, and its State is that of the last save whose
// end is among them; a detached one's history and State are empty, and it only
// records where it comes from.
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

// Load returns the history of a session. One that does not exist is no error:
// ok is false then.
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

// Latest returns the history that was updated last, if there is any.
func (t *Transcripts) Latest(ctx context.Context) (tr *Transcript, ok bool, err error) {
	for {
		page, err := t.store().List(ctx, turnstone.ListOptions{Limit: 1})
		if err != nil || len(page.Sessions) == 0 {
			return nil, false, err
		}
		if tr, ok, err = t.Load(ctx, page.Sessions[0].ID); ok || err != nil {
			return tr, ok, err
		} // else it was deleted meanwhile
	}
}

// errMoved: somebody committed between two reads.
var errMoved = errors.New("the session moved")

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

// equal reports whether a and b are the same but for the node that holds them.
func equal(a, b Message) bool {
	return a.Kind == b.Kind && bytes.Equal(a.Payload, b.Payload) && slices.Equal(a.Attachments, b.Attachments)
}

// Save makes the session's history that of the snapshot, and creates the session
// if there is none. A reader sees the history before or after. What was
// tombstoned is not in the stored history: a host that has it still adds it again.
//
// After an error the history is as it was for readers, unless the error matches
// turnstone.ErrOutcomeUnknown; metadata may have been saved, and if
// Saved.Revision is not 0, the save had got so far: that is the Base to go on
// from. Saving again is always safe, and with a Turn counts no usage twice.
//
// What is stored is read to find out: a save takes as long as a load.
func (t *Transcripts) Save(ctx context.Context, id string, s Snapshot) (Saved, error) {
	if err := s.check(); err != nil {
		return Saved{}, err
	}
	for {
		session, err := t.store().Session(ctx, id)
		if errors.Is(err, turnstone.ErrSessionNotFound) && s.Base == 0 {
			session, _, err = t.store().Create(ctx, turnstone.Request{ID: id, Metadata: s.Metadata})
		}
		if err != nil {
			return Saved{}, err
		}
		saved, err := t.save(ctx, session, &s)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, turnstone.ErrTurnConflict): // its usage was counted, with less of the history
			s.Usage, s.Turn = nil, ""
			continue
		case errors.Is(err, turnstone.ErrConflict) && s.Base == 0, errors.Is(err, turnstone.ErrSessionDeleted):
			continue // somebody else committed, or deleted it
		}
		return saved, err
	}
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
	same := 0
	for same < min(len(s.Messages), len(state.Nodes)) && equal(s.Messages[same], messageOf(&state.Nodes[same])) {
		same++
	}
	// What is stored already, as by a save whose outcome was not known, is no conflict.
	stands := same == len(s.Messages) && same == len(state.Nodes) && (s.State == nil || s.stateIs(state.Parts))
	if s.Base != 0 && s.Base != state.Revision && !stands {
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

// stateIs reports whether parts have what s would set.
func (s *Snapshot) stateIs(parts []head.Part) bool {
	for _, p := range parts {
		if content, ok := s.State[p.Name]; !ok || blob.Sum(content) != p.Blob {
			return false
		}
	}
	return len(parts) == len(s.State)
}

// commit makes the history and the state of a session, whose first same messages
// stay, those of s, and returns the revision that it reached.
func commit(ctx context.Context, session turnstone.Persistence, state *turnstone.State, same int, s *Snapshot) (head.Revision, error) {
	in := turnstone.Commit{Expected: state.Revision, Usage: s.Usage}
	if s.State != nil {
		in.Checkpoint = maps.Clone(s.State)
		for _, p := range state.Parts {
			if content, stays := s.State[p.Name]; !stays {
				in.Drop = append(in.Drop, p.Name)
			} else if blob.Sum(content) == p.Blob {
				delete(in.Checkpoint, p.Name)
			}
		}
	}
	rest := s.Messages[same:]
	if len(rest) == 0 && same == len(state.Nodes) && len(in.Checkpoint) == 0 && len(in.Drop) == 0 && len(s.Usage) == 0 {
		return state.Revision, nil
	}
	before, end := turnstone.RefNone(), turnstone.RefNone() // of the history as it is to be, so far, and as it was
	if same > 0 {
		before = turnstone.RefTo(state.Nodes[same-1].ID)
	}
	if !state.Leaf.IsZero() {
		end = turnstone.RefTo(state.Leaf)
	}
	for {
		n := fits(rest)
		now := turnstone.Commit{Expected: in.Expected, Nodes: nodes(rest[:n]), Leaf: end} // the leaf moves when all are there
		if n > 0 {
			now.Nodes[0].Parent = before
			before = turnstone.RefNew(n - 1)
		}
		if n == len(rest) {
			now.Leaf, now.Checkpoint, now.Drop, now.Usage, now.Turn = before, in.Checkpoint, in.Drop, in.Usage, s.Turn
		}
		r, err := session.Commit(ctx, now)
		if err != nil {
			return in.Expected, err
		}
		if n == len(rest) {
			return r.Revision, nil
		}
		rest, before, in.Expected = rest[n:], turnstone.RefTo(r.Nodes[n-1]), r.Revision
	}
}

// check reports what of s could not be committed, whatever is stored.
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

// fits returns how many messages go into one commit, at least one if there is
// any: a large payload is stored apart and counts for little, an attachment has
// index entries.
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
	if differs(s, turnstone.FieldName, have.Name, s.Name) || differs(s, turnstone.FieldModel, have.Model, s.Model) ||
		differs(s, turnstone.FieldCwd, have.Cwd, s.Cwd) || differs(s, turnstone.FieldRetention, have.Retention, s.Retention) {
		return true
	}
	if slices.Contains(s.Unset, turnstone.FieldLabels) {
		for key := range have.Labels {
			if s.Labels[key] == "" {
				return true
			}
		}
	}
	for key, value := range s.Labels {
		if have.Labels[key] != value {
			return true
		}
	}
	return false
}

// differs reports whether saving s changes a field from what it is; to is its value
// in s.
func differs[T comparable](s *Snapshot, f turnstone.Field, from, to T) bool {
	var empty T
	if to == empty && !slices.Contains(s.Unset, f) {
		return false // it stays
	}
	return from != to
}

// Clear empties the history and the state of a session and keeps the session. It
// reports whether there is one. What was there stays in the graph until the
// session is deleted, or its nodes are tombstoned.
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

// Delete removes a session. Sessions that forked from it stay whole. It reports
// whether there was one.
func (t *Transcripts) Delete(ctx context.Context, id string) (existed bool, err error) {
	if _, err := t.store().Session(ctx, id); errors.Is(err, turnstone.ErrSessionNotFound) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	return true, t.store().Delete(ctx, id, turnstone.KeepChildren)
}

// merge makes s what saving s and then newer would leave.
func (s *Snapshot) merge(newer Snapshot) {
	if newer.State == nil {
		newer.State = s.State
	}
	stays := func(f turnstone.Field) bool { return !slices.Contains(newer.Unset, f) }
	if newer.Name == "" && stays(turnstone.FieldName) {
		newer.Name = s.Name
	}
	if newer.Model == "" && stays(turnstone.FieldModel) {
		newer.Model = s.Model
	}
	if newer.Cwd == "" && stays(turnstone.FieldCwd) {
		newer.Cwd = s.Cwd
	}
	if newer.Retention == 0 && stays(turnstone.FieldRetention) {
		newer.Retention = s.Retention
	}
	newer.Base = max(newer.Base, s.Base)
	if newer.Turn == "" {
		newer.Turn = s.Turn
	}
	if s.Labels != nil && stays(turnstone.FieldLabels) {
		all := maps.Clone(s.Labels)
		maps.Copy(all, newer.Labels)
		newer.Labels = all
	}
	unset := slices.Clone(newer.Unset)
	for _, f := range s.Unset {
		if stays(f) {
			unset = append(unset, f)
		}
	}
	newer.Unset = unset
	newer.Usage = head.AddUsage(s.Usage, newer.Usage)
	*s = newer
}
