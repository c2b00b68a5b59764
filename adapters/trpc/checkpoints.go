package trpc

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"trpc.group/trpc-go/trpc-agent-go/graph"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/head"
)

const (
	graphRoot      = "trpc-graph"
	checkpointPart = "checkpoint" // the part with the checkpoint and its metadata
	checkpointKey  = "c/"         // and the id of a checkpoint: its record
	writesKey      = "w/"         // and the ids of a checkpoint and a task: the record of writes
	latestKey      = "latest"     // the record that names the latest checkpoint
	maxKeyName     = 200          // bytes of the id of a checkpoint or of a task within a key
)

// CheckpointOptions are options of Checkpoints.
type CheckpointOptions struct {
	// Retention is how many revisions of a namespace the store retains when it is pruned: each checkpoint is one, and
	// so are the writes of each task. Older checkpoints are gone then. Zero leaves it to whoever prunes.
	Retention head.Retention
}

// Checkpoints is a graph.CheckpointSaver. It is safe for concurrent use, in several processes.
//
// Each namespace of a lineage is a session, trpc-graph/LINEAGE/NAMESPACE. A checkpoint is a commit, and the store keeps
// it as the difference from the one before. Values are JSON, as the kit's saver for SQLite keeps them. No checkpoint is
// removed unless a prune does it.
type Checkpoints struct {
	store turnstone.Factory
	o     CheckpointOptions
}

var _ graph.CheckpointSaver = (*Checkpoints)(nil)

// NewCheckpoints returns a checkpoint saver on a store.
func NewCheckpoints(store turnstone.Factory, o CheckpointOptions) *Checkpoints {
	return &Checkpoints{store, o}
}

// saved is the content of checkpointPart.
type saved struct {
	Checkpoint *graph.Checkpoint         `json:"checkpoint"`
	Metadata   *graph.CheckpointMetadata `json:"metadata"`
}

// names is what a session has beside its id, in which long names are shortened.
type names struct {
	Lineage   string `json:"lineage"`
	Namespace string `json:"namespace"`
}

// place is the value of the record of a checkpoint.
type place struct {
	ID       string        `json:"id"`
	Revision head.Revision `json:"revision"`
	Time     time.Time     `json:"time"`
	Parent   string        `json:"parent,omitempty"`
	ParentNS string        `json:"parentNamespace,omitempty"`
}

// lineageOf returns the lineage, the namespace and the checkpoint that a config names.
func lineageOf(config map[string]any) (lineage, namespace, id string, err error) {
	if lineage = graph.GetLineageID(config); lineage == "" {
		return "", "", "", errors.New("trpc: lineage_id is required")
	}
	return lineage, graph.GetNamespace(config), graph.GetCheckpointID(config), nil
}

// Get implements graph.CheckpointSaver. It returns nil if there is no such checkpoint.
func (c *Checkpoints) Get(ctx context.Context, config map[string]any) (*graph.Checkpoint, error) {
	t, err := c.GetTuple(ctx, config)
	if t == nil {
		return nil, err
	}
	return t.Checkpoint, nil
}

// GetTuple implements graph.CheckpointSaver. Without the id of a checkpoint it returns the latest one, whose id config
// has then, as with the kit's savers. It returns nil if there is none.
func (c *Checkpoints) GetTuple(ctx context.Context, config map[string]any) (*graph.CheckpointTuple, error) {
	lineage, namespace, id, err := lineageOf(config)
	if err != nil {
		return nil, err
	}
	h, err := c.store.Session(ctx, graphID(lineage, namespace))
	if adapter.Gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	key := latestKey
	if id != "" {
		key = recordKey(checkpointKey, id)
	}
	var t *graph.CheckpointTuple
	p, _, err := placeOf(ctx, h, key)
	if err == nil && p.ID != "" {
		t, err = read(ctx, h, lineage, namespace, &p)
	}
	if err == nil && t == nil && id == "" && p.ID != "" { // A host whose clock is behind has put another one since, and a prune has taken this one.
		var some []*graph.CheckpointTuple
		if some, err = c.list(ctx, lineage, namespace, &graph.CheckpointFilter{Limit: 1}); len(some) > 0 {
			t = some[0]
		}
	}
	if adapter.Gone(err) {
		return nil, nil
	}
	if configurable, ok := config[graph.CfgKeyConfigurable].(map[string]any); ok && t != nil && id == "" {
		configurable[graph.CfgKeyCheckpointID] = t.Checkpoint.ID
	}
	return t, err
}

// graphID returns the id of a session, or of the group of a lineage.
func graphID(names ...string) string {
	return adapter.Short(adapter.Join(graphRoot, names...), turnstone.MaxSessionID)
}

// recordKey returns the key of a record with a name of any length.
func recordKey(of, name string) string {
	return of + adapter.Short(adapter.Join("", name)[1:], maxKeyName)
}

// placeOf returns the value of a record, and its version. That of no record is zero.
func placeOf(ctx context.Context, h turnstone.Persistence, key string) (p place, version turnstone.RecordVersion, err error) {
	r, err := h.Record(ctx, key)
	if errors.Is(err, turnstone.ErrRecordNotFound) {
		return p, turnstone.NoRecord, nil
	}
	if err != nil {
		return p, "", err
	}
	if err := json.Unmarshal(r.Value, &p); err != nil {
		return p, "", fmt.Errorf("trpc: session %q: record %q is no checkpoint: %w", h.ID(), key, err)
	}
	return p, r.Version, nil
}

// read reads a checkpoint, or nothing if it was pruned.
func read(ctx context.Context, h turnstone.Persistence, lineage, namespace string, p *place) (*graph.CheckpointTuple, error) {
	parts, err := h.Checkpoint(ctx, p.Revision)
	pruned := errors.Is(err, turnstone.ErrRevisionPruned)
	if pruned { // The commits of writes after the last checkpoint have it still.
		parts, err = h.Checkpoint(ctx, 0)
	}
	if err != nil {
		return nil, err
	}
	var s saved
	if err := json.Unmarshal(parts[checkpointPart], &s); err != nil {
		return nil, fmt.Errorf("trpc: session %q: the checkpoint of revision %d: %w", h.ID(), p.Revision, err)
	}
	if pruned && (s.Checkpoint == nil || s.Checkpoint.ID != p.ID) {
		return nil, nil
	}
	t := &graph.CheckpointTuple{Config: graph.CreateCheckpointConfig(lineage, p.ID, namespace), Checkpoint: s.Checkpoint, Metadata: s.Metadata}
	if p.Parent != "" {
		t.ParentConfig = graph.CreateCheckpointConfig(lineage, p.Parent, p.ParentNS)
	}
	if t.PendingWrites, err = writesOf(ctx, h, p.ID); err != nil {
		return nil, err
	}
	return t, nil
}

// writesOf returns the writes of all tasks of a checkpoint, in their sequence.
func writesOf(ctx context.Context, h turnstone.Persistence, id string) (out []graph.PendingWrite, err error) {
	for q := (turnstone.RecordQuery{Prefix: recordKey(writesKey, id) + "/", Limit: turnstone.MaxPage}); ; {
		page, err := h.Records(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Records {
			n, err := h.NodeByKey(ctx, string(r.Value))
			if errors.Is(err, turnstone.ErrNodeNotFound) {
				continue // A prune has removed it.
			}
			if err != nil {
				return nil, err
			}
			var writes []graph.PendingWrite
			if err := json.Unmarshal(n.Payload, &writes); err != nil {
				return nil, fmt.Errorf("trpc: session %q: node %s has no writes: %w", h.ID(), n.ID, err)
			}
			out = append(out, writes...)
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	slices.SortStableFunc(out, func(a, b graph.PendingWrite) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return out, nil
}

// List implements graph.CheckpointSaver: the newest checkpoints first. Without a namespace it lists those of all
// namespaces of the lineage.
func (c *Checkpoints) List(ctx context.Context, config map[string]any, filter *graph.CheckpointFilter) ([]*graph.CheckpointTuple, error) {
	lineage, namespace, _, err := lineageOf(config)
	if err != nil {
		return nil, err
	}
	namespaces := []string{namespace}
	if namespace == "" {
		if namespaces, err = c.namespaces(ctx, lineage); err != nil {
			return nil, err
		}
	}
	var out []*graph.CheckpointTuple
	for _, ns := range namespaces {
		some, err := c.list(ctx, lineage, ns, filter)
		if err != nil && !adapter.Gone(err) {
			return nil, err
		}
		out = append(out, some...)
	}
	slices.SortStableFunc(out, func(a, b *graph.CheckpointTuple) int { return b.Checkpoint.Timestamp.Compare(a.Checkpoint.Timestamp) })
	if filter != nil && filter.Limit > 0 {
		out = out[:min(len(out), filter.Limit)]
	}
	return out, nil
}

// namespaces returns the namespaces of a lineage.
func (c *Checkpoints) namespaces(ctx context.Context, lineage string) (out []string, err error) {
	found, err := adapter.Listed(ctx, c.store, graphID(lineage))
	for _, i := range found {
		var of names
		if json.Unmarshal(i.Custom, &of) == nil && i.ID == graphID(lineage, of.Namespace) { // Somebody else may put sessions into the group.
			out = append(out, of.Namespace)
		}
	}
	return out, err
}

// list returns the checkpoints of a namespace that a filter lets pass, the newest first.
func (c *Checkpoints) list(ctx context.Context, lineage, namespace string, filter *graph.CheckpointFilter) (out []*graph.CheckpointTuple, err error) {
	h, err := c.store.Session(ctx, graphID(lineage, namespace))
	if err != nil {
		return nil, err
	}
	places, err := placesOf(ctx, h)
	if err != nil {
		return nil, err
	}
	if filter != nil && graph.GetCheckpointID(filter.Before) != "" {
		i := slices.IndexFunc(places, func(p place) bool { return p.ID == graph.GetCheckpointID(filter.Before) })
		if i < 0 {
			return nil, nil
		}
		before := places[i].Time
		places = slices.DeleteFunc(places, func(p place) bool { return !p.Time.Before(before) })
	}
	for i := range places {
		t, err := read(ctx, h, lineage, namespace, &places[i])
		if err != nil {
			return nil, err
		}
		if t == nil || filter != nil && !has(t.Metadata, filter.Metadata) {
			continue
		}
		if out = append(out, t); filter != nil && len(out) == filter.Limit {
			break
		}
	}
	return out, nil
}

// placesOf returns the records of checkpoints, the newest first.
func placesOf(ctx context.Context, h turnstone.Persistence) (out []place, err error) {
	for q := (turnstone.RecordQuery{Prefix: checkpointKey, Limit: turnstone.MaxPage}); ; {
		page, err := h.Records(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Records {
			var p place
			if err := json.Unmarshal(r.Value, &p); err != nil {
				return nil, fmt.Errorf("trpc: session %q: record %q is no checkpoint: %w", h.ID(), r.Key, err)
			}
			out = append(out, p)
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	slices.SortFunc(out, func(a, b place) int { return cmp.Or(b.Time.Compare(a.Time), cmp.Compare(b.Revision, a.Revision)) })
	return out, nil
}

// has reports whether metadata have all fields that are wanted.
func has(m *graph.CheckpointMetadata, wanted map[string]any) bool {
	for name, value := range wanted {
		text, err := json.Marshal(value) // It was stored as JSON, which has one type of numbers.
		var as any
		if err != nil || json.Unmarshal(text, &as) != nil || m == nil || m.Extra == nil || !reflect.DeepEqual(m.Extra[name], as) {
			return false
		}
	}
	return true
}

// Put implements graph.CheckpointSaver.
func (c *Checkpoints) Put(ctx context.Context, r graph.PutRequest) (map[string]any, error) {
	return c.PutFull(ctx, graph.PutFullRequest{Config: r.Config, Checkpoint: r.Checkpoint, Metadata: r.Metadata, NewVersions: r.NewVersions})
}

// PutFull implements graph.CheckpointSaver: the checkpoint and its writes are stored together, or nothing. After an
// error that matches turnstone.ErrOutcomeUnknown it may be stored; putting it again replaces it.
func (c *Checkpoints) PutFull(ctx context.Context, r graph.PutFullRequest) (map[string]any, error) {
	lineage, namespace, _, err := lineageOf(r.Config)
	switch {
	case err != nil:
		return nil, err
	case r.Checkpoint == nil:
		return nil, errors.New("trpc: checkpoint cannot be nil")
	case r.Checkpoint.ID == "":
		return nil, errors.New("trpc: the checkpoint has no id")
	}
	content, err := adapter.JSON(&saved{r.Checkpoint, r.Metadata})
	if err != nil {
		return nil, fmt.Errorf("trpc: checkpoint %q: %w", r.Checkpoint.ID, err)
	}
	p := place{ID: r.Checkpoint.ID, Time: r.Checkpoint.Timestamp, Parent: r.Checkpoint.ParentCheckpointID}
	commit := turnstone.Commit{Turn: rand.Text(), Checkpoint: map[string][]byte{checkpointPart: content}}
	if commit.Nodes, commit.Records, err = writes(p.ID, r.PendingWrites, func(w *graph.PendingWrite) string { return w.TaskID }); err != nil {
		return nil, err
	}
	for {
		h, err := c.made(ctx, lineage, namespace)
		if err != nil {
			return nil, err
		}
		if p.ParentNS, err = c.parentNamespace(ctx, h, lineage, namespace, p.Parent); err == nil {
			err = put(ctx, h, commit, p)
		}
		switch {
		case err == nil:
			return graph.CreateCheckpointConfig(lineage, p.ID, namespace), nil
		case errors.Is(err, turnstone.ErrOutcomeUnknown):
			return nil, err
		case adapter.Gone(err), errors.Is(err, turnstone.ErrConflict), errors.Is(err, turnstone.ErrRecordConflict):
			continue // Somebody else has put one, or deleted the lineage.
		}
		return nil, err
	}
}

// made returns the session of a namespace, which is made if there is none.
func (c *Checkpoints) made(ctx context.Context, lineage, namespace string) (turnstone.Persistence, error) {
	id, group := graphID(lineage, namespace), graphID(lineage)
	h, err := c.store.Session(ctx, id)
	if !adapter.Gone(err) {
		return h, err
	}
	custom, err := adapter.JSON(names{lineage, namespace})
	if err != nil {
		return nil, err
	}
	h, _, err = c.store.Create(ctx, turnstone.Request{ID: id, Metadata: head.Metadata{Group: group, Retention: c.o.Retention, Custom: custom}})
	return h, err
}

// put commits a checkpoint on top of the head, and makes it the latest one unless a newer one is.
func put(ctx context.Context, h turnstone.Persistence, commit turnstone.Commit, p place) error {
	i, err := h.Info(ctx)
	if err != nil {
		return err
	}
	latest, version, err := placeOf(ctx, h, latestKey)
	if err != nil {
		return err
	}
	if p.ID != latest.ID {
		// A checkpoint begins a path of its own, with its writes and those of the tasks after it: they stay as long as the
		// head has it, and go when it is pruned.
		if commit.Nodes = slices.Clone(commit.Nodes); len(commit.Nodes) > 0 {
			commit.Nodes[0].Parent = turnstone.RefNone()
		} else {
			commit.Leaf = turnstone.RefNone()
		}
	}
	commit.Expected, p.Revision = i.Revision, i.Revision+1
	value, err := json.Marshal(&p)
	if err != nil {
		return err
	}
	commit.Records = append(slices.Clone(commit.Records), turnstone.RecordChange{Key: recordKey(checkpointKey, p.ID), Value: value})
	if p.Time.After(latest.Time) || p.ID == latest.ID || latest.ID == "" {
		commit.Records = append(commit.Records, turnstone.RecordChange{Key: latestKey, Value: value, Expect: version})
	}
	_, err = h.Commit(ctx, commit)
	return err
}

// parentNamespace returns the namespace that has the parent of a checkpoint, or "" if none has it.
func (c *Checkpoints) parentNamespace(ctx context.Context, h turnstone.Persistence, lineage, own, parent string) (string, error) {
	if parent == "" {
		return "", nil
	}
	if p, _, err := placeOf(ctx, h, recordKey(checkpointKey, parent)); err != nil || p.ID != "" {
		return own, err
	}
	namespaces, err := c.namespaces(ctx, lineage)
	if err != nil {
		return "", err
	}
	for _, ns := range namespaces {
		other, err := c.store.Session(ctx, graphID(lineage, ns))
		if err == nil {
			var p place
			if p, _, err = placeOf(ctx, other, recordKey(checkpointKey, parent)); p.ID != "" {
				return ns, nil
			}
		}
		if err != nil && !adapter.Gone(err) {
			return "", err
		}
	}
	return "", nil
}

// writes turns pending writes into what a commit stores: for each task a node with its writes, and a record that names
// the node.
func writes(id string, all []graph.PendingWrite, task func(*graph.PendingWrite) string) (nodes []turnstone.NewNode, records []turnstone.RecordChange, err error) {
	by := map[string][]graph.PendingWrite{}
	var order []string
	for i := range all {
		w := all[i]
		w.TaskID = task(&w)
		if w.Sequence == 0 {
			w.Sequence = int64(i)
		}
		if by[w.TaskID] == nil {
			order = append(order, w.TaskID)
		}
		by[w.TaskID] = append(by[w.TaskID], w)
	}
	for _, t := range order {
		payload, err := adapter.JSON(by[t])
		if err != nil {
			return nil, nil, fmt.Errorf("trpc: the writes of task %q: %w", t, err)
		}
		key := rand.Text()
		nodes = append(nodes, turnstone.NewNode{Kind: "writes", Key: key, Payload: payload})
		records = append(records, turnstone.RecordChange{Key: recordKey(writesKey, id) + "/" + recordKey("", t), Value: []byte(key)})
	}
	return nodes, records, nil
}

// PutWrites implements graph.CheckpointSaver. Writes of a task replace those that the task has put before.
func (c *Checkpoints) PutWrites(ctx context.Context, r graph.PutWritesRequest) error {
	lineage, namespace, id, err := lineageOf(r.Config)
	if err != nil {
		return err
	}
	if id == "" {
		return errors.New("trpc: checkpoint_id is required")
	}
	nodes, records, err := writes(id, r.Writes, func(*graph.PendingWrite) string { return r.TaskID })
	if err != nil || len(nodes) == 0 {
		return err
	}
	for {
		h, err := c.made(ctx, lineage, namespace)
		if err == nil {
			_, err = h.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Turn: rand.Text(), Nodes: nodes, Records: records})
		}
		if !adapter.Gone(err) || errors.Is(err, turnstone.ErrOutcomeUnknown) {
			return err
		}
	}
}

// DeleteLineage implements graph.CheckpointSaver. One that does not exist is no error.
func (c *Checkpoints) DeleteLineage(ctx context.Context, lineage string) error {
	namespaces, err := c.namespaces(ctx, lineage)
	for _, ns := range namespaces {
		if err == nil {
			err = c.store.Delete(ctx, graphID(lineage, ns), turnstone.KeepChildren)
		}
	}
	return err
}

// Close implements graph.CheckpointSaver. The store stays open.
func (c *Checkpoints) Close() error { return nil }
