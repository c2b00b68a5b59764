package wire

import (
	"slices"
	"strings"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
)

// A Node is a turnstone.Node.
type Node struct {
	Follow
	turnstone.Node
	Payload Bytes `json:"payload"`
}

// NodeOf returns n as a message.
func NodeOf(n turnstone.Node) *Node { return &Node{Node: n, Payload: Bytes{Content: n.Payload}} }

// Public returns n as the node that it is.
func (n *Node) Public() turnstone.Node {
	out := n.Node
	out.Payload = n.Payload.Content
	return out
}

// Each implements carrier.
func (n *Node) Each(f func(*Bytes)) { f(&n.Payload) }

// A Part is a part of a checkpoint, with its content.
type Part struct {
	Name    string `json:"name"`
	Content Bytes  `json:"content"`
}

func partsOf(m map[string][]byte) []Part {
	out := make([]Part, 0, len(m))
	for name, content := range m {
		out = append(out, Part{name, Bytes{Content: content}})
	}
	slices.SortFunc(out, func(a, b Part) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func contents(parts []Part) map[string][]byte {
	if parts == nil {
		return nil
	}
	out := make(map[string][]byte, len(parts))
	for _, p := range parts {
		out[p.Name] = p.Content.Content
	}
	return out
}

func eachPart(parts []Part, f func(*Bytes)) {
	for i := range parts {
		f(&parts[i].Content)
	}
}

// A Checkpoint is what Persistence.Checkpoint returns.
type Checkpoint struct {
	Follow
	Parts []Part `json:"parts"`
}

// CheckpointOf returns parts as a message.
func CheckpointOf(parts map[string][]byte) *Checkpoint { return &Checkpoint{Parts: partsOf(parts)} }

// Public returns the contents of the parts, by their names.
func (c *Checkpoint) Public() map[string][]byte { return contents(c.Parts) }

// Each implements carrier.
func (c *Checkpoint) Each(f func(*Bytes)) { eachPart(c.Parts, f) }

// A Record is a turnstone.Record.
type Record struct {
	Follow
	turnstone.Record
	Value Bytes `json:"value"`
}

// RecordOf returns r as a message.
func RecordOf(r turnstone.Record) *Record { return &Record{Record: r, Value: Bytes{Content: r.Value}} }

// Public returns r as the record that it is.
func (r *Record) Public() turnstone.Record {
	out := r.Record
	out.Value = r.Value.Content
	return out
}

// Each implements carrier.
func (r *Record) Each(f func(*Bytes)) { f(&r.Value) }

// A RecordPage is a turnstone.RecordPage.
type RecordPage struct {
	Follow
	turnstone.RecordPage
	Records []*Record `json:"records"`
}

// PageOf returns p as a message.
func PageOf(p turnstone.RecordPage) *RecordPage {
	out := &RecordPage{RecordPage: p, Records: []*Record{}}
	for _, r := range p.Records {
		out.Records = append(out.Records, RecordOf(r))
	}
	return out
}

// Public returns p as the page that it is.
func (p *RecordPage) Public() turnstone.RecordPage {
	out := p.RecordPage
	for _, r := range p.Records {
		out.Records = append(out.Records, r.Public())
	}
	return out
}

// Each implements carrier.
func (p *RecordPage) Each(f func(*Bytes)) {
	for _, r := range p.Records {
		r.Each(f)
	}
}

// A State is a turnstone.State without its nodes, which follow one by one.
type State struct {
	turnstone.State
	Nodes    int       `json:"nodes"` // how many follow
	Contents []Part    `json:"contents,omitempty"`
	Records  []*Record `json:"records,omitempty"`
}

// StateOf returns st as a message.
func StateOf(st *turnstone.State) *State {
	out := &State{State: *st, Nodes: len(st.Nodes)}
	if st.Contents != nil {
		out.Contents = partsOf(st.Contents)
	}
	for _, r := range st.Records {
		out.Records = append(out.Records, RecordOf(r))
	}
	slices.SortFunc(out.Records, func(a, b *Record) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// Public returns st as the state that it is, without nodes.
func (st *State) Public() *turnstone.State {
	out := st.State
	out.Nodes, out.Contents = nil, contents(st.Contents)
	if st.Records != nil {
		out.Records = map[string]turnstone.Record{}
	}
	for _, r := range st.Records {
		out.Records[r.Key] = r.Public()
	}
	return &out
}

// Each implements carrier.
func (st *State) Each(f func(*Bytes)) {
	eachPart(st.Contents, f)
	for _, r := range st.Records {
		r.Each(f)
	}
}

// A NewNode is a turnstone.NewNode.
type NewNode struct {
	turnstone.NewNode
	Payload Bytes `json:"payload"`
}

// A RecordChange is a turnstone.RecordChange.
type RecordChange struct {
	turnstone.RecordChange
	Action string `json:"action"` // a key of Actions
	Value  *Bytes `json:"value,omitempty"`
}

func changesOf(changes []turnstone.RecordChange) []RecordChange {
	var out []RecordChange
	for _, c := range changes {
		m := RecordChange{RecordChange: c, Action: Name(Actions, c.Action)}
		if len(c.Value) > 0 {
			m.Value = &Bytes{Content: c.Value}
		}
		out = append(out, m)
	}
	return out
}

// publicChanges returns changes as the values that they are. One whose action is unknown is refused by its number.
func publicChanges(changes []RecordChange) []turnstone.RecordChange {
	var out []turnstone.RecordChange
	for _, m := range changes {
		c := m.RecordChange
		action, known := Actions[m.Action]
		if !known {
			action = -1
		}
		c.Action, c.Value = action, nil
		if m.Value != nil {
			c.Value = m.Value.Content
		}
		out = append(out, c)
	}
	return out
}

func eachChange(changes []RecordChange, f func(*Bytes)) {
	for _, c := range changes {
		if c.Value != nil {
			f(c.Value)
		}
	}
}

// ChangesOf returns changes of records as a message.
func ChangesOf(t Target, changes []turnstone.RecordChange) *ChangeRecords {
	return &ChangeRecords{Target: t, Changes: changesOf(changes)}
}

// Public returns c as the changes that it is.
func (c *ChangeRecords) Public() []turnstone.RecordChange { return publicChanges(c.Changes) }

// Each implements carrier.
func (c *ChangeRecords) Each(f func(*Bytes)) { eachChange(c.Changes, f) }

// A Commit is a turnstone.Commit.
type Commit struct {
	turnstone.Commit
	Nodes      []NewNode      `json:"nodes,omitempty"`
	Checkpoint []Part         `json:"checkpoint,omitempty"`
	Records    []RecordChange `json:"records,omitempty"`
}

// CommitOf returns c as a message.
func CommitOf(c *turnstone.Commit) Commit {
	out := Commit{Commit: *c, Checkpoint: partsOf(c.Checkpoint), Records: changesOf(c.Records)}
	for _, n := range c.Nodes {
		out.Nodes = append(out.Nodes, NewNode{n, Bytes{Content: n.Payload}})
	}
	return out
}

// Public returns c as the commit that it is.
func (c *Commit) Public() turnstone.Commit {
	out := c.Commit
	out.Nodes, out.Checkpoint, out.Records = nil, contents(c.Checkpoint), publicChanges(c.Records)
	for _, n := range c.Nodes {
		n.NewNode.Payload = n.Payload.Content
		out.Nodes = append(out.Nodes, n.NewNode)
	}
	return out
}

// Each implements carrier.
func (c *Commit) Each(f func(*Bytes)) {
	for i := range c.Nodes {
		f(&c.Nodes[i].Payload)
	}
	eachPart(c.Checkpoint, f)
	eachChange(c.Records, f)
}

// A SessionCommit is a turnstone.SessionCommit.
type SessionCommit struct {
	Some                           // none with Create
	Create      *turnstone.Request `json:"create,omitempty"`
	RecordsOnly bool               `json:"recordsOnly,omitzero"`
	Commit
}

// Each implements carrier.
func (c *CommitAll) Each(f func(*Bytes)) {
	for i := range c.Commits {
		c.Commits[i].Each(f)
	}
}

// An Item is one of several messages that answer a request. Only one field is set. The last item has End or Problem;
// without it, the answer was cut off.
type Item struct {
	Follow
	State    *State              `json:"state,omitempty"`
	At       *head.Revision      `json:"at,omitempty"` // of nodes: the revision that they are of, to ask for the rest of them
	Node     *Node               `json:"node,omitempty"`
	Ref      *Ref                `json:"ref,omitempty"`
	Beside   *RecordPage         `json:"beside,omitempty"` // of the ref before it
	Entry    *turnstone.LogEntry `json:"entry,omitempty"`
	Progress *gc.Progress        `json:"progress,omitempty"`
	Report   *gc.Report          `json:"report,omitempty"`
	Vacuum   *gc.VacuumReport    `json:"vacuum,omitempty"`
	Prune    *gc.PruneReport     `json:"prune,omitempty"`
	Erasure  *turnstone.Erasure  `json:"erasure,omitempty"`
	Verified *Verification       `json:"verified,omitempty"`
	Stats    *turnstone.Stats    `json:"stats,omitempty"`
	Upgraded *turnstone.Upgraded `json:"upgraded,omitempty"`
	Problem  *Error              `json:"problem,omitempty"`
	End      bool                `json:"end,omitzero"`
}

// Each implements carrier.
func (i *Item) Each(f func(*Bytes)) {
	if i.State != nil {
		i.State.Each(f)
	}
	if i.Node != nil {
		i.Node.Each(f)
	}
	if i.Ref != nil {
		i.Ref.Record.Each(f)
		eachPart(i.Ref.Parts, f)
	}
	if i.Beside != nil {
		i.Beside.Each(f)
	}
}

// A Ref is a record that names a revision, with the checkpoint of that: as git calls a name that leads to a commit.
type Ref struct {
	Record *Record `json:"record"`
	Known  bool    `json:"known,omitzero"` // who asks has the parts, and they are left out
	Parts  []Part  `json:"parts,omitempty"`
}

// RefOf returns a ref whose parts are not known.
func RefOf(r turnstone.Record, parts map[string][]byte) *Ref {
	return &Ref{Record: RecordOf(r), Parts: partsOf(parts)}
}

// A Verification is a turnstone.Verification.
type Verification struct {
	turnstone.Verification
	Problems []*Error `json:"problems,omitempty"`
}

// VerificationOf returns v as a message.
func VerificationOf(v *turnstone.Verification) *Verification {
	out := &Verification{Verification: *v}
	for _, err := range v.Problems {
		out.Problems = append(out.Problems, ErrorOf(err))
	}
	return out
}

// Public returns v as the verification that it is.
func (v *Verification) Public() *turnstone.Verification {
	out := v.Verification
	out.Problems = nil
	for _, e := range v.Problems {
		out.Problems = append(out.Problems, e)
	}
	return &out
}

// An Attachment is what an upload is of.
type Attachment = blob.Attachment

// Progress says how much of an upload has come.
type Progress struct {
	Offset     int64                     `json:"offset"`
	Attachment *Attachment               `json:"attachment,omitempty"` // once all of it has come and is stored
	Bundle     *turnstone.UnbundleReport `json:"bundle,omitempty"`     // once all of it has come and its sessions are there
}
