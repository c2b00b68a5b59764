package turnstone

import (
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// Limits of requests. All are checked before any effect; exceeding one is a
// *LimitError.
const (
	MaxSessionID      = 512      // bytes of a session id; at least 1, UTF-8
	MaxKind           = 64       // bytes of a node's kind; at least 1, UTF-8
	MaxEventKey       = 512      // bytes of a node's key, UTF-8
	MaxTurnID         = 256      // bytes of a turn id, UTF-8
	MaxPayload        = 64 << 20 // bytes of a node's payload; more goes into an attachment
	MaxNodes          = graph.MaxNodes
	MaxAttachments    = graph.MaxAttachments // of a node
	MaxAttachmentText = 256                  // bytes of a media type, and of a name
	MaxParts          = head.MaxParts        // of a checkpoint
	MaxPartName       = 64                   // bytes; at least 1, UTF-8
	MaxPart           = 64 << 20             // bytes of a checkpoint part
	MaxModels         = 64                   // usage entries of a commit
	MaxModel          = 128                  // bytes of a model's name
	MaxTokens         = 1 << 40              // of one count of one commit
	MaxText           = 4096                 // bytes of a metadata field
	MaxLabels         = head.MaxLabels       // of a session
	MaxLabel          = 256                  // bytes of a label's name, and of its value
	MaxAncestors      = head.MaxAncestors    // forks of forks
	MaxBlob           = blob.MaxBytes        // bytes of an attachment
)

// A checker collects the first violation.
type checker struct{ err error }

func (c *checker) limit(what, where string, have, maximum int) {
	if c.err == nil && have > maximum {
		c.err = &LimitError{Limit: what, Where: where, Have: int64(have), Max: int64(maximum)}
	}
}

func (c *checker) text(what, where, s string, minimum, maximum int) {
	c.limit(what+" bytes", where, len(s), maximum)
	if c.err == nil && len(s) < minimum {
		c.err = invalid(where, "%s is empty", what)
	}
	if c.err == nil && !utf8.ValidString(s) {
		c.err = invalid(where, "%s is not UTF-8", what)
	}
}

func checkSessionID(id string) error {
	var c checker
	c.text("session id", "request", id, 1, MaxSessionID)
	return c.err
}

func checkMetadata(m *Metadata) error {
	var c checker
	c.text("name", "metadata", m.Name, 0, MaxText)
	c.text("model", "metadata", m.Model, 0, MaxModel)
	c.text("cwd", "metadata", m.Cwd, 0, MaxText)
	c.limit("labels", "metadata", len(m.Labels), MaxLabels)
	for k, v := range m.Labels {
		c.text("label name", "metadata", k, 1, MaxLabel)
		c.text("label value", "metadata", v, 0, MaxLabel)
	}
	return c.err
}

func checkCommit(in *Commit) error {
	var c checker
	c.text("turn id", "commit", in.Turn, 0, MaxTurnID)
	c.limit("nodes", "commit", len(in.Nodes), MaxNodes)
	keys := map[string]int{}
	for i := range in.Nodes {
		n := &in.Nodes[i]
		where := fmt.Sprintf("node %d", i)
		c.text("kind", where, n.Kind, 1, MaxKind)
		c.text("event key", where, n.Key, 0, MaxEventKey)
		c.limit("payload bytes", where, len(n.Payload), MaxPayload)
		c.limit("attachments", where, len(n.Attachments), MaxAttachments)
		for _, a := range n.Attachments {
			c.text("media type", where, a.MediaType, 0, MaxAttachmentText)
			c.text("attachment name", where, a.Name, 0, MaxAttachmentText)
			if c.err == nil && (a.ID.IsZero() || a.Size < 0 || a.Size > MaxBlob) {
				c.err = invalid(where, "attachment %q is no reference that PutAttachment returned", a.Name)
			}
		}
		if n.Key != "" {
			if first, dup := keys[n.Key]; dup && c.err == nil {
				c.err = invalid(where, "has the event key of node %d", first)
			}
			keys[n.Key] = i
		}
		if c.err != nil {
			return c.err
		}
	}
	c.limit("checkpoint parts", "commit", len(in.Checkpoint), MaxParts)
	for _, name := range slices.Sorted(maps.Keys(in.Checkpoint)) {
		c.text("part name", "checkpoint", name, 1, MaxPartName)
		c.limit("bytes", "checkpoint part "+name, len(in.Checkpoint[name]), MaxPart)
	}
	c.limit("dropped parts", "commit", len(in.Drop), MaxParts)
	for _, name := range in.Drop {
		if _, set := in.Checkpoint[name]; set && c.err == nil {
			c.err = invalid("checkpoint part "+name, "is both set and dropped")
		}
	}
	c.limit("usage entries", "commit", len(in.Usage), MaxModels)
	for i, u := range in.Usage {
		where := fmt.Sprintf("usage %d", i)
		c.text("model", where, u.Model, 0, MaxModel)
		for _, n := range []uint64{u.Input, u.Output, u.CachedInput, u.CacheWrite, u.Reasoning} {
			c.limit("tokens", where, int(min(n, MaxTokens+1)), MaxTokens)
		}
	}
	return c.err
}
