package importer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/turnstonedb/turnstone"
)

// Options of Load.
type Options struct {
	// BySteps commits every step; else every turn, or less where a checkpoint part
	// changes within a turn: each version is kept.
	BySteps bool
	// Replace deletes a session that has other content and imports the conversation
	// anew. See Losses.
	Replace bool
	// Clock, if set, is the clock of the store: commits get the times of the file.
	Clock *Clock
	// Progress, if set, is called with every conversation's payload bytes when
	// it is done.
	Progress func(bytes int)
}

// Outcome says what became of a conversation.
type Outcome string

// Outcomes.
const (
	Imported  Outcome = "imported"  // it is a new session
	Grown     Outcome = "grown"     // the session goes on with what is new
	Branched  Outcome = "branched"  // the file was edited: the session has it as a branch
	Updated   Outcome = "updated"   // only what stands outside the messages is new
	Unchanged Outcome = "unchanged" // the session has all of it
	Replaced  Outcome = "replaced"  // the session was deleted, and is a new one
	Failed    Outcome = "failed"
)

// A Result is what Load did with one conversation.
type Result struct {
	Conversation *Conversation
	Session      string // id of the session
	Outcome      Outcome
	Commits      int
	Nodes        int // of the conversation
	Added        int // of those, how many were written
	Bytes        int
	Err          error // of Failed
}

const (
	staging     = "importing:" // before the id of a session that is not complete
	digestLabel = "import.digest"
)

// A loader is one run of Load.
type loader struct {
	Options
	st       *turnstone.Store
	sessions map[string][]string // ids of sessions by the identity of what they hold
}

// Load commits conversations to st.
//
// A new one is written under another id and gets its own when it is complete, so it
// is visible whole or not at all; what an import that was killed left behind is
// removed by the next one. One that a session holds already adds to the session what
// is new: a line that was torn or is not there yet follows with a later import, an
// edited one makes a branch on which the session goes on, and importing less than
// the session has changes nothing. Names, labels, kept revisions and forks stay. Of
// several snapshots of a conversation the one with most events decides where the
// session goes on, whatever their order.
//
// When ctx ends, Load returns the results of what was tried until then.
func Load(ctx context.Context, st *turnstone.Store, convs []Conversation, o Options) []Result {
	order := inOrder(convs)
	l := &loader{Options: o, st: st}
	results := make([]Result, 0, len(order))
	if err := l.index(ctx); err != nil {
		if len(order) > 0 && ctx.Err() == nil {
			results = append(results, Result{Conversation: order[0], Outcome: Failed, Err: err})
		}
		return results
	}
	for _, c := range order {
		if ctx.Err() != nil {
			break
		}
		c.seal()
		r := Result{Conversation: c, Session: c.ID, Nodes: len(c.Events)}
		for i := range c.Events {
			r.Bytes += len(c.Events[i].Payload)
		}
		err := l.load(ctx, c, &r)
		if err != nil && ctx.Err() != nil {
			break // it was not refused: it may be tried again
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

// inOrder returns the conversations in the order in which they are loaded: parents
// first, as a fork needs what it forks from, and of the snapshots of a conversation
// the fullest last, as that is where the session is to go on.
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
		slices.SortStableFunc(same, func(a, b *Conversation) int {
			if a.Partial != b.Partial && len(a.Events) == len(b.Events) {
				if a.Partial {
					return -1
				}
				return 1
			}
			return cmp.Compare(len(a.Events), len(b.Events))
		})
	}
	for i, c := range order { // the places of a conversation's snapshots stay, the snapshots are sorted
		order[i] = snapshots[c.Identity][0]
		snapshots[c.Identity] = snapshots[c.Identity][1:]
	}
	depth := func(c *Conversation) (n int) {
		for p := c.Parent; p != "" && n < len(order); p = parents[p] {
			n++
		}
		return n
	}
	slices.SortStableFunc(order, func(a, b *Conversation) int { return cmp.Compare(depth(a), depth(b)) })
	return order
}

// index finds the sessions that hold imported conversations.
func (l *loader) index(ctx context.Context) error {
	l.sessions = map[string][]string{}
	for o := (turnstone.ListOptions{Limit: 1000}); ; {
		page, err := l.st.List(ctx, o)
		if err != nil {
			return err
		}
		for i := range page.Sessions {
			s := &page.Sessions[i]
			if id := s.Labels[identityLabel]; id != "" && !strings.HasPrefix(s.ID, staging) {
				l.sessions[id] = append(l.sessions[id], s.ID)
			}
		}
		if o.After = page.Next; o.After == "" {
			return nil
		}
	}
}

// find returns the session that holds c with what it has, or nil if there is none.
func (l *loader) find(ctx context.Context, c *Conversation) (*held, error) {
	for _, id := range l.sessions[c.Identity] {
		s, err := l.st.Session(ctx, id)
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

func (l *loader) load(ctx context.Context, c *Conversation, r *Result) error {
	const tries = 100 // others commit as well
	for try := 1; ; try++ {
		h, err := l.find(ctx, c)
		if err != nil {
			return err
		}
		switch {
		case h == nil:
			err = l.create(ctx, c, r, "")
		case h.mark == c.stamp:
			r.Session, r.Outcome = h.session.ID(), Unchanged
		case l.Replace:
			err = l.create(ctx, c, r, h.session.ID())
		default:
			err = l.grow(ctx, c, r, h)
		}
		if try < tries && (errors.Is(err, turnstone.ErrConflict) || errors.Is(err, turnstone.ErrSessionDeleted)) {
			continue
		}
		return err
	}
}

// create makes the session of c, in place of the one called old if that is not empty.
func (l *loader) create(ctx context.Context, c *Conversation, r *Result, old string) error {
	id := cmp.Or(old, c.ID)
	if old == "" {
		if _, err := l.st.Session(ctx, id); err == nil {
			id = c.suffixed()
		} else if !errors.Is(err, turnstone.ErrSessionNotFound) {
			return err
		}
	}
	temp := staging + c.ID
	defer l.Clock.set(present)
	l.Clock.set(c.began)
	if err := l.st.Delete(ctx, temp, turnstone.KeepChildren); err != nil {
		return err
	}
	h, err := l.begin(ctx, c, temp)
	if err == nil {
		_, last := h.end(c)
		err = l.commit(ctx, c, r, h, plan{last: last})
	}
	l.Clock.set(c.ended())
	if err == nil && old != "" {
		err = l.st.Delete(ctx, old, turnstone.KeepChildren)
	}
	if err == nil {
		err = l.st.Rename(ctx, temp, id)
	}
	l.Clock.set(present)
	if err != nil {
		// The caller's context may be what ended the import.
		return errors.Join(err, l.st.Delete(context.WithoutCancel(ctx), temp, turnstone.KeepChildren))
	}
	if r.Session, r.Outcome = id, Imported; old != "" {
		r.Outcome = Replaced
	} else {
		l.sessions[c.Identity] = append(l.sessions[c.Identity], id)
	}
	return nil
}

// begin creates the session called id for c, with nothing in it.
func (l *loader) begin(ctx context.Context, c *Conversation, id string) (*held, error) {
	req := turnstone.Request{ID: id, Metadata: turnstone.Metadata{Name: c.Name, Model: c.Model, Cwd: c.Cwd, Labels: c.labels()}}
	if c.Parent != "" {
		if err := l.descend(ctx, c, &req); err != nil {
			return nil, err
		}
	}
	s, _, err := l.st.Create(ctx, req)
	if err != nil {
		return nil, err
	}
	return l.read(ctx, s, c)
}

// descend has req name the session that c belongs to, and the node where c begins.
func (l *loader) descend(ctx context.Context, c *Conversation, req *turnstone.Request) error {
	ids := l.sessions[c.Parent]
	if len(ids) == 0 && !c.Attached {
		req.Labels["import.parent"] = c.Parent // not at hand
		return nil
	}
	if len(ids) == 0 {
		return fmt.Errorf("it goes on from %q, which was not imported", c.Parent)
	}
	parent, err := l.st.Session(ctx, ids[0])
	if err != nil {
		return err
	}
	state, err := parent.Load(ctx, turnstone.Scope{Full: true})
	if err != nil {
		return err
	}
	req.Parent, req.Detached = ids[0], !c.Attached
	if c.ForkKey == "" {
		req.ForkNode = spawned(state.Nodes, c.Agent)
		return nil
	}
	for i := range state.Nodes { // the last one: earlier ones were edited
		if base(state.Nodes[i].Key) == base(c.ForkKey) {
			req.ForkNode = state.Nodes[i].ID
		}
	}
	if req.ForkNode.IsZero() {
		return fmt.Errorf("it goes on from line %q of %q, which has no such line", c.ForkKey, c.Parent)
	}
	return nil
}

// labels are those that the import gives a session.
func (c *Conversation) labels() map[string]string {
	out := map[string]string{
		digestLabel: c.stamp.String(), identityLabel: c.Identity, "import.file": clip(strings.ToValidUTF8(c.File, "�"), turnstone.MaxLabel), "import.format": c.Format,
	}
	for k, v := range c.Labels {
		out[k] = v
	}
	return out
}

// A Loss is a session that Options.Replace deletes.
type Loss struct {
	turnstone.Info
	Kept     int // revisions that are kept by name
	Children int // sessions that come from it, which stay whole and lose their parent
}

// Losses returns the sessions that Load would delete for convs with Options.Replace.
func Losses(ctx context.Context, st *turnstone.Store, convs []Conversation) ([]Loss, error) {
	l := &loader{st: st}
	if err := l.index(ctx); err != nil {
		return nil, err
	}
	var out []Loss
	seen := map[string]bool{}
	for i := range convs {
		convs[i].seal()
		h, err := l.find(ctx, &convs[i])
		if err != nil {
			return nil, err
		}
		if h == nil || h.mark == convs[i].stamp || seen[h.session.ID()] {
			continue
		}
		seen[h.session.ID()] = true
		loss := Loss{Info: h.info}
		kept, err := h.session.Kept(ctx)
		if err != nil {
			return nil, err
		}
		loss.Kept = len(kept)
		for o := (turnstone.ListOptions{Parent: h.info.ID, Limit: 1000}); ; {
			page, err := st.List(ctx, o)
			if err != nil {
				return nil, err
			}
			loss.Children += len(page.Sessions)
			if o.After = page.Next; o.After == "" {
				break
			}
		}
		out = append(out, loss)
	}
	return out, nil
}
