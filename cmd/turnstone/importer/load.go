package importer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/turnstonedb/turnstone"
)

// Options of Load.
type Options struct {
	// BySteps commits every step; else every turn.
	BySteps bool
	// Replace imports anew what exists with other content.
	Replace bool
	// Progress, if set, is called with every conversation's payload bytes when
	// it is done.
	Progress func(bytes int)
}

// Outcome says what became of a conversation.
type Outcome string

// Outcomes.
const (
	Imported  Outcome = "imported"
	Unchanged Outcome = "unchanged"
	Failed    Outcome = "failed"
)

// A Result is what Load did with one conversation.
type Result struct {
	Conversation *Conversation
	Outcome      Outcome
	Commits      int
	Nodes        int
	Bytes        int
	Err          error // of Failed
}

// ErrOtherContent: a session of that id exists and holds something else.
var ErrOtherContent = errors.New("a session of this id exists with other content")

// OrderPart is the checkpoint part that says in which order the nodes of an
// imported session stood in their file, if that is not the order of the nodes:
// a JSON array of positions.
const OrderPart = "import-order"

const (
	staging     = "importing:" // before the id of a session that is not complete
	digestLabel = "import.digest"
	// A longer turn becomes several commits, so that each fits an engine's batch:
	// a large payload is stored apart and counts for little.
	maxCommit = 1 << 20 // payload bytes, of which each node counts …
	maxCounts = 8 << 10 // … so many at most
	maxNodes  = 2000
)

// Load commits conversations to st. Each is written under another id and gets
// its own when it is complete, so it is visible whole or not at all; what an
// import that was killed left behind is removed by the next one. Importing the
// same content again changes nothing.
func Load(ctx context.Context, st *turnstone.Store, convs []Conversation, o Options) []Result {
	order := make([]*Conversation, len(convs))
	for i := range convs {
		order[i] = &convs[i]
	}
	// Parents first: a fork needs what it forks from.
	depth := map[string]int{}
	byID := map[string]*Conversation{}
	for _, c := range order {
		byID[c.ID] = c
	}
	for _, c := range order {
		for p, n := c, 0; p != nil && n < len(order); p, n = byID[p.Parent], n+1 {
			depth[c.ID] = n
		}
	}
	slices.SortStableFunc(order, func(a, b *Conversation) int { return cmp.Compare(depth[a.ID], depth[b.ID]) })
	results := make([]Result, 0, len(order))
	for _, c := range order {
		r := Result{Conversation: c, Nodes: len(c.Events)}
		for i := range c.Events {
			r.Bytes += len(c.Events[i].Payload)
		}
		r.Commits, r.Err = load(ctx, st, c, o)
		switch {
		case r.Err != nil:
			r.Outcome = Failed
		case r.Commits < 0:
			r.Outcome, r.Commits = Unchanged, 0
		default:
			r.Outcome = Imported
		}
		results = append(results, r)
		if o.Progress != nil {
			o.Progress(r.Bytes)
		}
	}
	return results
}

// digest identifies the content of a conversation.
func (c *Conversation) digest() string {
	h := sha256.New()
	for i := range c.Events {
		e := &c.Events[i]
		fmt.Fprintf(h, "%q %q %q %v %d %d\n", e.Key, e.Kind, e.Parent, e.Root, e.Line, len(e.Payload))
		h.Write(e.Payload)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// load returns the number of commits, or -1 when the session was there.
func load(ctx context.Context, st *turnstone.Store, c *Conversation, o Options) (int, error) {
	digest := c.digest()
	existing, err := st.Session(ctx, c.ID)
	replace := err == nil
	if err == nil {
		info, err := existing.Info(ctx)
		if err != nil {
			return 0, err
		}
		if info.Labels[digestLabel] == digest {
			return -1, nil
		}
		if !o.Replace {
			return 0, fmt.Errorf("%q: %w", c.ID, ErrOtherContent)
		}
	} else if !errors.Is(err, turnstone.ErrSessionNotFound) {
		return 0, err
	}
	temp := staging + c.ID
	if err := st.Delete(ctx, temp, turnstone.KeepChildren); err != nil {
		return 0, err
	}
	r, err := request(ctx, st, c, temp, digest)
	if err != nil {
		return 0, err
	}
	ses, _, err := st.Create(ctx, r)
	if err != nil {
		return 0, err
	}
	n, err := commitAll(ctx, ses, c, r.ForkNode, o)
	if err == nil && replace {
		err = st.Delete(ctx, c.ID, turnstone.KeepChildren)
	}
	if err == nil {
		err = st.Rename(ctx, temp, c.ID)
	}
	if err != nil {
		// The caller's context may be what ended the import.
		return 0, errors.Join(err, st.Delete(context.WithoutCancel(ctx), temp, turnstone.KeepChildren))
	}
	return n, nil
}

func request(ctx context.Context, st *turnstone.Store, c *Conversation, id, digest string) (turnstone.Request, error) {
	r := turnstone.Request{ID: id, Metadata: turnstone.Metadata{Name: c.Name, Model: c.Model, Cwd: c.Cwd, Labels: map[string]string{
		digestLabel: digest, "import.file": clip(c.File, turnstone.MaxLabel), "import.format": c.Format,
	}}}
	for k, v := range c.Labels {
		r.Labels[k] = v
	}
	if c.Parent == "" {
		return r, nil
	}
	parent, err := st.Session(ctx, c.Parent)
	if errors.Is(err, turnstone.ErrSessionNotFound) && !c.Attached {
		r.Labels["import.parent"] = clip(c.Parent, turnstone.MaxLabel) // not at hand
		return r, nil
	}
	if err != nil {
		return r, err
	}
	r.Parent, r.Detached = c.Parent, !c.Attached
	key := c.ForkKey
	if key == "" {
		full, err := parent.Load(ctx, turnstone.Scope{Full: true})
		if err != nil {
			return r, err
		}
		payloads := map[string][]byte{}
		for _, n := range full.Nodes {
			if n.Key != "" {
				payloads[n.Key] = n.Payload
			}
		}
		key = spawned(payloads, strings.TrimPrefix(c.ID, c.Parent+"/"))
	}
	if key != "" {
		n, err := parent.NodeByKey(ctx, key)
		if err != nil {
			return r, err
		}
		r.ForkNode = n.ID
	}
	return r, nil
}

// commitAll commits the events in order.
func commitAll(ctx context.Context, ses *turnstone.Session, c *Conversation, fork turnstone.NodeID, o Options) (int, error) {
	ids := map[string]turnstone.NodeID{} // of committed events, by key
	var last turnstone.NodeID            // of the last event
	leaf := fork                         // of the last event on the line of work
	commits := 0
	for start := 0; start < len(c.Events); {
		end, size := start, 0
		for end < len(c.Events) && end-start < maxNodes && size <= maxCommit {
			if e := &c.Events[end]; end > start && (e.Turn || o.BySteps && e.Step) {
				break
			}
			size += min(len(c.Events[end].Payload), maxCounts)
			end++
		}
		in := turnstone.Commit{Expected: turnstone.Revision(commits)}
		fresh := map[string]int{}
		leafAt := -1
		for i := start; i < end; i++ {
			e := &c.Events[i]
			n := turnstone.NewNode{Kind: e.Kind, Key: e.Key, Payload: e.Payload}
			switch j, ok := fresh[e.Parent]; {
			case e.Root && c.Attached && e.Parent == c.ForkKey:
				n.Parent = turnstone.At(fork)
			case e.Root || i == 0 && fork.IsZero():
				n.Parent = turnstone.NoNode()
			case e.Parent == "" && i == start && i > 0:
				n.Parent = turnstone.At(last)
			case e.Parent == "":
			case ok:
				n.Parent = turnstone.New(j)
			case ids[e.Parent] != turnstone.NodeID{}:
				n.Parent = turnstone.At(ids[e.Parent])
			default:
				n.Parent = turnstone.NoNode()
			}
			in.Nodes = append(in.Nodes, n)
			if e.Key != "" {
				fresh[e.Key] = i - start
			}
			if !e.Side {
				leafAt = i - start
			}
			in.Usage = append(in.Usage, e.Usage...)
			for name, part := range e.Checkpoint {
				if in.Checkpoint == nil {
					in.Checkpoint = map[string][]byte{}
				}
				in.Checkpoint[name] = part
			}
		}
		in.Usage = merge(in.Usage)
		switch {
		case leafAt >= 0:
			in.Leaf = turnstone.New(leafAt)
		case !leaf.IsZero():
			in.Leaf = turnstone.At(leaf)
		}
		if end == len(c.Events) {
			if err := addOrder(&in, c); err != nil {
				return commits, err
			}
		}
		res, err := ses.Commit(ctx, in)
		if err != nil {
			return commits, err
		}
		commits++
		for key, i := range fresh {
			ids[key] = res.Nodes[i]
		}
		last = res.Nodes[len(res.Nodes)-1]
		leaf = res.Leaf
		start = end
	}
	return commits, nil
}

// merge adds up what was used, by model.
func merge(all []turnstone.Usage) []turnstone.Usage {
	var out []turnstone.Usage
	for _, u := range all {
		if i := slices.IndexFunc(out, func(v turnstone.Usage) bool { return v.Model == u.Model }); i >= 0 {
			out[i].Add(u)
		} else {
			out = append(out, u)
		}
	}
	return out
}

// addOrder adds OrderPart when events are not in the order of their file.
func addOrder(in *turnstone.Commit, c *Conversation) error {
	lines := make([]int, len(c.Events))
	for i := range c.Events {
		lines[i] = c.Events[i].Line
	}
	if slices.IsSorted(lines) {
		return nil
	}
	b, err := json.Marshal(lines)
	if in.Checkpoint == nil {
		in.Checkpoint = map[string][]byte{}
	}
	in.Checkpoint[OrderPart] = b
	return err
}

// InFileOrder puts nodes, all that an imported session added itself in the
// order of its commits, into the order of their file.
func InFileOrder(nodes []turnstone.Node, part []byte) error {
	if part == nil {
		return nil
	}
	var lines []int
	if err := json.Unmarshal(part, &lines); err != nil {
		return fmt.Errorf("checkpoint part %s: %w", OrderPart, err)
	}
	if len(lines) > len(nodes) {
		return nil // some are tombstoned: the positions no longer fit
	}
	imported := nodes[:len(lines)] // what was committed later stays behind
	at := make([]int, len(imported))
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, func(a, b int) int { return cmp.Compare(lines[a], lines[b]) })
	sorted := make([]turnstone.Node, len(imported))
	for i, j := range at {
		sorted[i] = imported[j]
	}
	copy(imported, sorted)
	return nil
}
