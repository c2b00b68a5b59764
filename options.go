package turnstone

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/commit"
)

// Options of Open. Nil and the zero value mean the defaults.
type Options struct {
	// Namespace separates stores on one engine: equal bytes are kept once per
	// namespace, never across. Default "".
	Namespace string
	// Validator, if set, is asked before every commit; an error refuses it. It is not asked about
	// changes of records that come without a commit, nor about what comes in a bundle. It must not call the session
	// that commits.
	Validator Validator
	// SealBytes is how much a session gathers, before compression, until its
	// commits are sealed into one segment. Default 192 KiB, at most MaxSeal. Vacuum
	// makes segments of seven times that, at most 1.25 MiB. Larger compresses better and makes reading
	// one old node slower, unless it is in the cache.
	SealBytes int
	// InlineBytes is how large a payload may be to be stored with the nodes around it,
	// with which it compresses well. A larger one is stored by itself, as a blob, once for
	// all nodes that have it, and so are what other sessions had lately and prompts:
	// payloads of more than 5 KiB among the first two nodes of a session. Default
	// 128 KiB; one of up to 5 KiB is always stored with its neighbours.
	InlineBytes int
	// NoAutoSeal leaves sealing to calls of Seal.
	NoAutoSeal bool
	// Memory is the budget of what the store keeps in memory, which it shares with all that are opened with the same
	// one. Half is for the contents of checkpoint parts, so that the next version can be stored as a delta: a part
	// whose last version is not there any more is stored whole. The other half is for histories that were read. Each
	// half may take what the other does not use. Default: the process's own, of 64 MiB.
	Memory *engine.MemoryBudget
	// MustExist makes Open fail with ErrStoreNotFound instead of creating the
	// namespace.
	MustExist bool
	// Upgrade makes Open raise the format of an existing store to the newest one that
	// this version of Turnstone writes. Then older versions can't open the store any
	// more, and there is no way back: docs/format.md has a table of versions. Without
	// it a store keeps its format, so that older and newer versions of Turnstone can
	// use it together. A new store has the newest format.
	Upgrade bool
	// Database returns the database of a name. The store calls it when its namespace has moved to that database: see
	// Move. It may return the same engine each time, and whoever sets it closes the engines. Without it, a store whose
	// namespace has moved fails with engine.ErrMoved.
	Database func(ctx context.Context, name string) (engine.Engine, error)
	// UploadTTL is how long an attachment that no commit refers to yet is kept.
	// Default 24 hours.
	UploadTTL time.Duration
	// PollEvery is how often Watch and WatchRecords look for what other stores and processes have
	// changed. Default half a second. On PostgreSQL WatchRecords hears of it at once, and Watch while the
	// feed is on.
	PollEvery time.Duration
	// TakeOverAfter is how long a collection or vacuum of another process or store may
	// show no progress before one of this store takes it over: the other process was
	// stopped, or has died. Until then they take turns. Default 5 seconds; negative: at
	// once. Taking over is safe at any time: the other one ends with gc.ErrSuperseded.
	TakeOverAfter time.Duration
	// Logger reports what happens in the background. Default: none.
	Logger *slog.Logger
	// Observer, if set, is told what the store does. See LogObserver.
	Observer Observer
	// Now is the clock. Default time.Now. Times are for people and for the
	// order of lists; nothing that must be right depends on them.
	Now func() time.Time
	// Random is the source of incarnations, salts and keys, for tests that must
	// be the same every time. Default crypto/rand.Reader. It must not fail. A
	// source that repeats itself makes the content of erased nodes guessable; it
	// gives no two sessions one identity.
	Random io.Reader

	formats *head.Formats // of a version of Turnstone that a test makes up; else head.Known
}

// A Validator refuses commits that the host considers incomplete, for example a
// tool call without its result. It is given a copy of the commit, payloads included:
// what it changes there has no effect.
type Validator func(ctx context.Context, session string, c *Commit) error

// Limits of requests. All are checked before any effect; exceeding one is a
// *LimitError.
const (
	MaxNamespace      = 512      // bytes of Options.Namespace, UTF-8
	MaxDatabase       = 128      // bytes of the name of a database; at least 1, UTF-8
	MaxSessionID      = 512      // bytes of a session id; at least 1, UTF-8
	MaxKind           = 64       // bytes of a node's kind; at least 1, UTF-8
	MaxEventKey       = 512      // bytes of a node's key, UTF-8
	MaxTurnID         = 256      // bytes of a turn id, UTF-8
	MaxPayload        = 64 << 20 // bytes of a node's payload; more goes into an attachment
	MaxNodes          = 4096     // nodes of a commit, tombstones of a commit and of a call of Tombstone, keys of NodesByKey
	MaxSessions       = 64       // sessions of a call of CommitAll
	MaxAttachments    = 64       // attachments of a node
	MaxAttachmentText = 256      // bytes of a media type, and of an attachment's name
	MaxBlob           = 4 << 30  // bytes of an attachment
	MaxParts          = 1024     // parts of a checkpoint, of which each commit writes a line, of Commit.Drop and of Scope.Parts
	MaxPartName       = 64       // bytes of a part's name; at least 1, UTF-8
	MaxPart           = 64 << 20 // bytes of a checkpoint part
	MaxModels         = 64       // usage entries of a commit
	MaxSessionModels  = 256      // models in the usage totals of a session
	MaxModel          = 128      // bytes of a model's name
	MaxTokens         = 1 << 40  // tokens in one count of one commit
	MaxCost           = 1 << 46  // billionths of a US dollar in one usage entry of one commit
	MaxText           = 4096     // bytes of a name, and of a working directory
	MaxGroup          = 512      // bytes of a session's group, UTF-8
	MaxGroupDepth     = 8        // names in a group
	MaxCustom         = 16 << 10 // bytes of Metadata.Custom
	MaxCustomLevels   = 64       // arrays and objects of Metadata.Custom within each other
	MaxLabels         = 64       // labels of a session and of a commit
	MaxLabel          = 256      // bytes of a label's name, of its value, and of the name of a kept revision
	MaxCommitLabel    = 4096     // bytes of the value of a commit's label
	MaxKept           = 1000     // revisions of a session that are kept by name
	MaxRecordKey      = 512      // bytes of a record's key; at least 1, UTF-8 without zero bytes
	MaxRecord         = 64 << 10 // bytes of a record's value
	MaxRecords        = 256      // records that a commit or a call of ChangeRecords changes, and of Scope.Records
	MaxPage           = 1000     // sessions of a page of List, records of a page of Records
	MaxWatchedRecords = 10_000   // records that a call of WatchRecords watches
	MaxSeal           = 1 << 20  // bytes of Options.SealBytes: a segment fits a batch even if nothing of it compresses

	// MaxCommitBytes is how many bytes of keys and values a commit may write,
	// compressed. Checkpoint parts and payloads above 5 KiB count up to 1 MiB: more
	// of them is stored ahead of the commit. A batch of an engine holds more: sealing
	// adds an index to the commit, and erasure the salts of its nodes.
	MaxCommitBytes = 1792 << 10
	// MaxCommitWrites is how many values of the engine a commit may write: two for each record, two for each
	// attachment, one for each tombstone, two or more for each payload that is stored apart and each
	// checkpoint part that is new, three for each label, group and parent of the
	// session, and about six.
	MaxCommitWrites = 10_000
	// MaxCommitNodeBytes is how many bytes the nodes of a commit may take before
	// compression: texts, payloads that are not stored apart, 160 bytes a node, 64 an
	// attachment, and 64.
	MaxCommitNodeBytes = 32 << 20
)

// A checker checks a request and keeps the first error that it finds.
type checker struct {
	err   error
	of    string // what is checked, for example "node"
	index int    // the number of the node or entry that is checked, from 1; 0 if there is only one
}

// at sets what the checks after it are about.
func (c *checker) at(of string, index int) { c.of, c.index = of, index }

func (c *checker) where() string {
	if c.index > 0 {
		return fmt.Sprintf("%s %d", c.of, c.index-1)
	}
	return c.of
}

func (c *checker) limit(what string, have, maximum int) {
	if c.err == nil && have > maximum {
		c.err = &LimitError{Limit: what, Where: c.where(), Have: int64(have), Max: int64(maximum)}
	}
}

func (c *checker) invalid(reason string, args ...any) {
	if c.err == nil {
		c.err = invalid(c.where(), reason, args...)
	}
}

// text checks a text; what is its name, and of its limit that with " bytes".
func (c *checker) text(what, s string, minimum, maximum int) {
	if len(s) > maximum {
		c.limit(what+" bytes", len(s), maximum)
	}
	if len(s) < minimum {
		c.invalid("%s is empty", what)
	}
	if !utf8.ValidString(s) {
		c.invalid("%s is not UTF-8", what)
	}
}

func checkSessionID(id string) error {
	c := checker{of: "request"}
	c.text("session id", id, 1, MaxSessionID)
	return c.err
}

// CheckMetadata returns m as a session stores it, Custom in one form and times in UTC, or the error with which
// Session.SaveMetadata refuses it or the fields to empty.
func CheckMetadata(m head.Metadata, empty ...head.Field) (head.Metadata, error) {
	c := checker{of: "metadata"}
	for _, f := range empty {
		if !f.Known() {
			c.invalid("no field is called %q", string(f))
		}
	}
	c.text("name", m.Name, 0, MaxText)
	c.text("model", m.Model, 0, MaxModel)
	c.text("cwd", m.Cwd, 0, MaxText)
	c.group(m.Group)
	c.limit("labels", len(m.Labels), MaxLabels)
	for k, v := range m.Labels {
		c.text("label name", k, 1, MaxLabel)
		c.text("label value", v, 0, MaxLabel)
	}
	m.Custom = c.custom(m.Custom)
	m.HostCreated = c.time("hostCreated", m.HostCreated)
	m.HostUpdated = c.time("hostUpdated", m.HostUpdated)
	return m, c.err
}

// custom checks a JSON value, and returns it as it is stored. Null is none.
func (c *checker) custom(value []byte) []byte {
	c.limit("custom bytes", len(value), MaxCustom)
	if c.err != nil || len(value) == 0 {
		return nil
	}
	var v any
	in := json.NewDecoder(bytes.NewReader(value))
	in.UseNumber() // as it is written, however large
	if err := in.Decode(&v); err != nil || !json.Valid(value) || !utf8.Valid(value) {
		c.invalid("custom is no JSON in UTF-8")
		return nil
	}
	c.limit("levels of custom", levels(v), MaxCustomLevels)
	if c.err != nil || v == nil {
		return nil
	}
	var out bytes.Buffer
	to := json.NewEncoder(&out)
	to.SetEscapeHTML(false)
	_ = to.Encode(v) // what was decoded can be encoded
	c.limit("custom bytes", out.Len()-1, MaxCustom)
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// levels returns how many arrays and objects of a JSON value are within each other.
func levels(v any) (n int) {
	switch v := v.(type) {
	case []any:
		for _, of := range v {
			n = max(n, levels(of))
		}
	case map[string]any:
		for _, of := range v {
			n = max(n, levels(of))
		}
	default:
		return 0
	}
	return n + 1
}

// time checks a time, and returns it as it is stored.
func (c *checker) time(what string, t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	if t.Unix() < 0 || t.Year() > 2261 {
		c.invalid("%s is %v, not between 1970 and 2262", what, t)
		return t
	}
	return time.Unix(0, t.UnixNano()).UTC()
}

// group checks a group: names between slashes, or nothing.
func (c *checker) group(path string) {
	c.text("group", path, 0, MaxGroup)
	c.limit("names of a group", strings.Count(path, "/")+1, MaxGroupDepth)
	if path != "" && strings.Contains("/"+path+"/", "//") {
		c.invalid("group %q has an empty name", path)
	}
}

func (c *checker) positive(what string, n int64) {
	if n <= 0 {
		c.invalid("%s is %d", what, n)
	}
}

// checkRevision fails for AnyRevision where what names a revision.
func checkRevision(where, what string, r head.Revision) error {
	if r == AnyRevision {
		return invalid(where, "%s is AnyRevision, which is no revision of a session", what)
	}
	return nil
}

func checkPace(where string, pace float64) error {
	if !(pace >= 0 && pace <= 1) { // NaN is neither
		return invalid(where, "Pace is %v, not between 0 and 1", pace)
	}
	return nil
}

func (p ChildPolicy) check() error {
	if p < KeepChildren || p > CascadeChildren {
		return invalid("child policy", "%d is none of KeepChildren, RefuseChildren, CascadeChildren", p)
	}
	return nil
}

// Check reports what Session.Commit refuses before it looks at the session:
// limits that are exceeded, contradictions.
func (in *Commit) Check() error {
	if in == nil {
		return invalid("commit", "it is nil")
	}
	c := checker{of: "commit"}
	c.text("turn id", in.Turn, 0, MaxTurnID)
	c.limit("nodes", len(in.Nodes), MaxNodes)
	c.limit("checkpoint parts", len(in.Checkpoint)+len(in.Stored), MaxParts)
	c.limit("dropped parts", len(in.Drop), MaxParts)
	c.limit("usage entries", len(in.Usage), MaxModels)
	if c.err != nil {
		return c.err
	}
	var keys map[string]int
	for i := range in.Nodes {
		n := &in.Nodes[i]
		c.at("node", i+1)
		c.text("kind", n.Kind, 1, MaxKind)
		c.text("event key", n.Key, 0, MaxEventKey)
		c.limit("payload bytes", len(n.Payload), MaxPayload)
		c.limit("attachments", len(n.Attachments), MaxAttachments)
		for _, a := range n.Attachments {
			c.text("media type", a.MediaType, 0, MaxAttachmentText)
			c.text("attachment name", a.Name, 0, MaxAttachmentText)
			if a.ID.IsZero() || a.Size < 0 || a.Size > MaxBlob {
				c.invalid("attachment %q is no reference that PutAttachment returned", a.Name)
			}
		}
		if n.Key != "" {
			if _, dup := keys[n.Key]; dup {
				if first, found := in.keyBefore(i); found {
					c.invalid("has the event key of node %d", first)
				}
			}
			if keys == nil {
				keys = make(map[string]int, len(in.Nodes))
			}
			keys[n.Key] = i
		}
	}
	if len(in.Checkpoint) > 0 || len(in.Stored) > 0 || len(in.Drop) > 0 {
		c.checkpoint(in)
	}
	for i, u := range in.Usage {
		c.at("usage", i+1)
		c.text("model", u.Model, 0, MaxModel)
		for _, n := range [...]uint64{u.Input, u.Output, u.CachedInput, u.CacheWrite, u.Reasoning} {
			c.limit("tokens", int(min(n, MaxTokens+1)), MaxTokens)
		}
		c.limit("cost", int(min(u.Cost, MaxCost+1)), MaxCost)
	}
	c.at("commit", 0)
	c.limit("tombstones", len(in.Tombstone), MaxNodes)
	c.text("name", in.Keep, 0, MaxLabel)
	c.limit("labels", len(in.Labels), MaxLabels)
	for name, value := range in.Labels {
		c.text("label name", name, 1, MaxLabel)
		c.text("label value", value, 0, MaxCommitLabel)
	}
	if len(in.Records) > 0 {
		c.records(in.Records)
	}
	return c.err
}

// keyBefore returns the number of the new node before the i-th one on its path that has its event key.
func (in *Commit) keyBefore(i int) (first int, found bool) {
	for at := i; ; {
		switch p := in.Nodes[at].Parent.ref; {
		case p.Kind == commit.RefNew && p.Index >= 0 && p.Index < at:
			at = p.Index
		case p == (commit.Ref{}) && at > 0:
			at--
		default:
			return 0, false
		}
		if in.Nodes[at].Key == in.Nodes[i].Key {
			return at, true
		}
	}
}

func (c *checker) checkpoint(in *Commit) {
	for _, name := range slices.Sorted(maps.Keys(in.Checkpoint)) {
		c.at("checkpoint", 0)
		c.text("part name", name, 1, MaxPartName)
		c.at("checkpoint part "+name, 0)
		c.limit("bytes", len(in.Checkpoint[name]), MaxPart)
	}
	if len(in.Stored) > 0 {
		c.stored(in)
	}
	for _, name := range in.Drop {
		c.at("drop", 0)
		c.text("part name", name, 0, MaxPartName)
		c.at("checkpoint part "+name, 0)
		_, set := in.Checkpoint[name]
		if _, stored := in.Stored[name]; set || stored {
			c.invalid("is both set and dropped")
		}
	}
}

// stored checks the parts whose contents are stored already.
func (c *checker) stored(in *Commit) {
	for _, name := range slices.Sorted(maps.Keys(in.Stored)) {
		c.at("checkpoint", 0)
		c.text("part name", name, 1, MaxPartName)
		c.at("checkpoint part "+name, 0)
		if _, set := in.Checkpoint[name]; set {
			c.invalid("is set twice")
		}
		if in.Stored[name].IsZero() {
			c.invalid("has no id")
		}
	}
}
