package importer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// Options of Load.
type Options struct {
	// BySteps makes a commit of every step. Otherwise every turn is a commit, or
	// several where a checkpoint part changes within the turn, as each version of the
	// part is kept.
	BySteps bool
	// Replace deletes a session whose content differs from the conversation, and
	// imports the conversation anew. See Losses.
	Replace bool
	// Only, if it is not nil, has the Info.Incarnation of the sessions that Replace may delete, and the revision at which
	// each may go. A conversation of which another session would have to go, or a later revision, fails.
	Only map[string]head.Revision
	// Group is the group of new sessions. Those that are there keep theirs.
	Group string
	// Clock, if set, is the clock of the store. Load sets it, so that sessions and
	// commits get the times of the file.
	Clock *Clock
	// Progress, if set, is called when a conversation is done, with the number of its
	// payload bytes.
	Progress func(bytes int)
}

// Outcome says what became of a conversation.
type Outcome string

// Outcomes.
const (
	Imported  Outcome = "imported"  // a new session was made
	Grown     Outcome = "grown"     // new messages were added at the end of the session
	Branched  Outcome = "branched"  // the file was edited: its messages were added as a branch
	Updated   Outcome = "updated"   // no message is new, but something outside the messages changed
	Unchanged Outcome = "unchanged" // the session has the whole conversation already
	Replaced  Outcome = "replaced"  // the session was deleted and made anew
	Failed    Outcome = "failed"    // Result.Err says why
)

// A Result is what Load did with one conversation.
type Result struct {
	Conversation *Conversation
	Session      string // id of the session
	Outcome      Outcome
	Commits      int   // number of commits that were made
	Nodes        int   // number of events of the conversation
	Added        int   // number of nodes that were written
	Bytes        int   // payload bytes of the conversation; after Tails.Parse those of the new events
	Err          error // why Outcome is Failed
}

// Labels of imported sessions.
const (
	FormatLabel = ".import.format" // the name of the format, as in Formats
	FileLabel   = ".import.file"   // the base name of the file
	BranchLabel = ".import.branch" // the branch of git that the agent worked on last
	MirrorLabel = ".import.mirror" // what stores the lines of the file as the agent writes them, if anything does
	// ProjectLabel is the project of a session of Claude Code: the name of its folder in the folder "projects". Session
	// stores of the Claude Agent SDK find sessions by it.
	ProjectLabel = "claude.project"
)

// stampKey is the key of the record with the stamp of the last import. The last commit of an import
// sets the record, so the record and the layout are always of the same import.
const stampKey = ".import.stamp"

// fileStampKey returns the key of the record with the stamp of the last import from one file. A conversation may be
// in several files, of which one may have the end of what another one has the beginning of.
func (c *Conversation) fileStampKey() string { return stampKey + "/" + c.origin }

// linkedMark ends the stamp of a file whose events may go on from what other files brought to the session.
const linkedMark = ":linked"

// A loader is one run of Load.
type loader struct {
	Options
	st *turnstone.Store
}

// Load commits conversations to st.
//
// A new conversation becomes a session. Its turns become commits of the session, one after another.
// If an import is killed, the session has what was committed until then, and the next import of the
// conversation adds the rest. Imports may run at the same time: each adds what no other one has
// added yet.
//
// If a session holds the conversation already, Load adds to it the messages that are
// new. A message that was torn or missing in the file is added by a later import, when it
// is whole. If messages were edited, Load adds the edited ones as a branch and moves the
// leaf of the session to that branch. If the file has fewer messages than the session
// got from it, Load changes nothing. The name, the labels, the kept revisions and the
// forks of the session stay.
//
// If convs has several snapshots of one conversation, the one with the most events
// decides where the leaf of the session is, whatever their order.
//
// When ctx ends, Load returns the results of the conversations that it has tried.
func Load(ctx context.Context, st *turnstone.Store, convs []Conversation, o Options) []Result {
	order := inOrder(convs)
	l := &loader{Options: o, st: st}
	results := make([]Result, 0, len(order))
	for _, c := range order {
		if ctx.Err() != nil {
			break
		}
		c.seal()
		r := Result{Conversation: c, Session: c.ID, Nodes: len(c.Events), Bytes: c.PayloadBytes()}
		err := l.load(ctx, c, &r)
		if err != nil && ctx.Err() != nil {
			break // ctx ended the attempt: the conversation itself did not fail
		}
		if err != nil {
			r.Outcome, r.Err = Failed, fmt.Errorf("%s: %q: %w", c.File, c.ID, err)
		}
		results = append(results, r)
		if o.Progress != nil {
			o.Progress(r.Bytes)
		}
	}
	return results
}

// PayloadBytes returns the number of payload bytes of all events.
func (c *Conversation) PayloadBytes() int {
	n := 0
	for i := range c.Events {
		n += len(c.Events[i].Payload)
	}
	return n
}

// inOrder returns the conversations in the order in which they are loaded. Parents come
// before their forks, which need the parent's session. The snapshots of one conversation
// come in the order of their numbers of events, as the last one decides where the leaf
// of the session is.
func inOrder(convs []Conversation) []*Conversation {
	order := make([]*Conversation, len(convs))
	parents := map[string]string{}
	snapshots := map[string][]*Conversation{}
	for i := range convs {
		c := &convs[i]
		order[i] = c
		parents[c.Identity] = c.Parent
		snapshots[c.Identity] = append(snapshots[c.Identity], c)
	}
	for _, same := range snapshots {
		slices.SortStableFunc(same, compareSnapshots)
	}
	for i, c := range order { // the snapshots of a conversation are sorted among their own places
		order[i] = snapshots[c.Identity][0]
		snapshots[c.Identity] = snapshots[c.Identity][1:]
	}
	depths := map[string]int{"": 0} // by identity
	depth := func(c *Conversation) int {
		var line []string
		at := c.Identity
		for known := false; !known && len(line) <= len(order); at = parents[at] {
			if _, known = depths[at]; known {
				break
			}
			line = append(line, at)
		}
		n := depths[at]
		for _, id := range slices.Backward(line) {
			n++
			depths[id] = n
		}
		return depths[c.Identity]
	}
	slices.SortStableFunc(order, func(a, b *Conversation) int { return cmp.Compare(depth(a), depth(b)) })
	return order
}

// compareSnapshots orders snapshots by their numbers of events that can be read, and torn ones before whole ones.
func compareSnapshots(a, b *Conversation) int {
	return cmp.Or(cmp.Compare(len(a.Events)-a.torn, len(b.Events)-b.torn), cmp.Compare(b.torn, a.torn))
}

// Sessions yields the sessions that o selects, the most recently updated first.
func Sessions(ctx context.Context, st *turnstone.Store, o turnstone.ListOptions) iter.Seq2[*turnstone.Info, error] {
	return func(yield func(*turnstone.Info, error) bool) {
		for o.Limit = 1000; ; {
			page, err := st.List(ctx, o)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range page.Sessions {
				if !yield(&page.Sessions[i], nil) {
					return
				}
			}
			if o.After = page.Next; o.After == "" {
				return
			}
		}
	}
}

// holders returns the sessions that hold conversations of an identity.
func (l *loader) holders(ctx context.Context, identity string) (all []*turnstone.Info, err error) {
	for s, err := range Sessions(ctx, l.st, turnstone.ListOptions{Labels: map[string]string{IdentityLabel: identity}}) {
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// errOthers: others have changed the session of a file since its tail was made, so Load has to read the whole file.
var errOthers = errors.New("the session was changed")

// find returns the session that holds c, compared with c, or nil if no session does.
func (l *loader) find(ctx context.Context, c *Conversation) (*held, error) {
	if c.since > 0 {
		h, err := l.again(ctx, c)
		if l.Replace || err == nil && h == nil || errors.Is(err, turnstone.ErrSessionNotFound) {
			err = errOthers
		}
		return h, err
	}
	all, err := l.holders(ctx, c.Identity)
	if err != nil {
		return nil, err
	}
	for _, i := range all {
		s, err := l.st.SessionByIncarnation(ctx, i.Incarnation) // whatever its id is by now
		if errors.Is(err, turnstone.ErrSessionNotFound) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		h, err := l.read(ctx, s, c)
		if err != nil {
			return nil, err
		}
		if h.kin(c) {
			return h, nil
		}
	}
	return nil, nil
}

// load imports one conversation: it makes a session of it, or adds to the session that holds it.
// If others change that session meanwhile, load tries again: as long as its tries make commits,
// and 100 times more. The outcome is that of the first try that made a commit.
func (l *loader) load(ctx context.Context, c *Conversation, r *Result) error {
	if err := c.check(); err != nil {
		return err
	}
	const tries = 100
	became := Outcome("")
	for left, commits := tries, 0; ; left-- {
		h, err := l.find(ctx, c)
		if errors.Is(err, errOthers) {
			if c, err = c.whole(ctx); err != nil {
				return err
			}
			r.Conversation, r.Nodes, r.Bytes = c, len(c.Events), c.PayloadBytes()
			continue
		}
		if err == nil && h == nil {
			if h, err = l.create(ctx, c); err == nil {
				became = cmp.Or(became, Imported)
			}
		}
		switch {
		case err != nil:
		case h.same:
			r.Session, r.Outcome = h.session.ID(), Unchanged
		case l.Replace && became == "":
			return l.replace(ctx, c, r, h)
		default:
			err = l.grow(ctx, c, r, h)
		}
		if r.Commits > commits {
			became = cmp.Or(became, r.Outcome)
			left, commits = tries, r.Commits
		}
		if left > 0 && beside(err) {
			continue
		}
		if r.Outcome = cmp.Or(became, r.Outcome); err == nil {
			c.keep(h)
		}
		return err
	}
}

// beside reports whether an error is one of imports and hosts that work on the same session.
func beside(err error) bool {
	return errors.Is(err, turnstone.ErrConflict) || errors.Is(err, turnstone.ErrRecordConflict) || errors.Is(err, turnstone.ErrSessionDeleted) || errors.Is(err, errTaken)
}

// check returns an error if the store would refuse an event, so that nothing of the conversation is
// stored then.
func (c *Conversation) check() error {
	for i := range c.Events[c.since:] {
		e := &c.Events[c.since+i]
		in := turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: e.Kind, Key: e.Key, Payload: e.Payload}}, Checkpoint: e.Checkpoint, Usage: e.Usage}
		if err := in.Check(); err != nil {
			return fmt.Errorf("message %d: %w", c.since+i, err)
		}
	}
	return nil
}

// errTaken: a session was made while one of its id was to be made.
var errTaken = errors.New("the id of the session is taken")

// create makes an empty session for c. Its id is that of the conversation, or one with a suffix if
// another conversation has that.
func (l *loader) create(ctx context.Context, c *Conversation) (*held, error) {
	for _, id := range []string{c.ID, c.suffixed(c.Identity), c.suffixed(c.Identity + "\x00" + c.stamp.all)} {
		_, err := l.st.Session(ctx, id)
		if errors.Is(err, turnstone.ErrSessionNotFound) {
			return l.make(ctx, c, id, true)
		}
		if err != nil {
			return nil, err
		}
		if h, err := l.find(ctx, c); err != nil || h != nil {
			return nil, cmp.Or(err, errTaken) // by another import of c, meanwhile
		}
	}
	return nil, errTaken
}

// make makes an empty session for c. If known is not set, no import finds it.
func (l *loader) make(ctx context.Context, c *Conversation, id string, known bool) (*held, error) {
	req := turnstone.Request{ID: id, Metadata: head.Metadata{Name: c.Name, Model: c.Model, Cwd: c.Cwd, Group: l.Group, Labels: c.labels(), HostCreated: c.began, HostUpdated: c.ended()}}
	if !known {
		delete(req.Labels, IdentityLabel)
	}
	if c.Parent != "" {
		if err := l.descend(ctx, c, &req); err != nil {
			return nil, err
		}
	}
	l.Clock.set(c.began)
	defer l.Clock.set(noTime)
	s, created, err := l.st.Create(ctx, req)
	if err == nil && !created {
		err = errTaken
	}
	if err != nil {
		return nil, err
	}
	h, err := l.read(ctx, s, c)
	if err == nil && l.Only != nil {
		l.Only[h.info.Incarnation] = turnstone.AnyRevision // This run has made it, and may replace it.
	}
	return h, err
}

// descend sets the parent session in req, and the node of the parent where c begins.
func (l *loader) descend(ctx context.Context, c *Conversation, req *turnstone.Request) error {
	all, err := l.holders(ctx, c.Parent)
	if err != nil {
		return err
	}
	if len(all) == 0 && !c.Attached {
		req.Labels[".import.parent"] = c.Parent // the parent was not imported
		return nil
	}
	if len(all) == 0 {
		return fmt.Errorf("the conversation goes on from %q, which was not imported", c.Parent)
	}
	parent, err := l.st.Session(ctx, all[0].ID)
	if err != nil {
		return err
	}
	state, err := parent.Load(ctx, turnstone.Scope{Full: true})
	if err != nil {
		return err
	}
	req.Parent, req.Detached = all[0].ID, !c.Attached
	if c.ForkKey == "" {
		req.ForkNode = spawned(state.Nodes, c.Agent)
		return nil
	}
	for i := range state.Nodes { // of several versions of a message, the last one
		if base(state.Nodes[i].Key) == base(c.ForkKey) {
			req.ForkNode = state.Nodes[i].ID
		}
	}
	if req.ForkNode.IsZero() {
		return fmt.Errorf("the conversation goes on from line %q of %q, which has no such line", c.ForkKey, c.Parent)
	}
	return nil
}

// labels returns the labels that an import gives to the session of c.
func (c *Conversation) labels() map[string]string {
	out := map[string]string{
		IdentityLabel: c.Identity, FileLabel: clip(strings.ToValidUTF8(c.File, "�"), turnstone.MaxLabel), FormatLabel: c.Format,
	}
	if folder, name := filepath.Split(c.folder); c.Format == claude.name && c.Agent == "" && filepath.Base(folder) == "projects" && len(name) <= turnstone.MaxLabel && utf8.ValidString(name) {
		out[ProjectLabel] = name
	}
	for k, v := range c.Labels {
		out[k] = v
	}
	return out
}
