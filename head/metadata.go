package head

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Metadata is what a host may say of a session at any time: see turnstone.Session.SaveMetadata. No label has an empty
// value.
type Metadata struct {
	Name  string `json:"name,omitempty"` // for people
	Model string `json:"model,omitempty"`
	Cwd   string `json:"cwd,omitempty"` // working directory
	// Group is the directory that the session is in: up to turnstone.MaxGroupDepth names between slashes, for
	// example "app/user". A name that may contain a slash has to be escaped.
	Group  string            `json:"group,omitempty"`
	Labels map[string]string `json:"labels,omitempty"` // a name that begins with a dot is not indexed: a list by it reads all sessions
	// Retention of this session, before that of a prune; 0 is none of its own.
	Retention Retention `json:"retention,omitzero"`
	// Custom is any JSON value, for what the other fields have no place for: a policy, or settings of the host. It
	// has up to turnstone.MaxCustom bytes, and is replaced as a whole. It is stored without spaces, with the members of
	// objects in the order of their names, each once; numbers stay as they are written.
	Custom json.RawMessage `json:"custom,omitempty"`
	// HostCreated and HostUpdated are when the host's own session was made and changed, between 1970 and 2262, for
	// example where it was before an import. Lists are in the order of Info.Updated, which is the store's.
	HostCreated time.Time `json:"hostCreated,omitzero"`
	HostUpdated time.Time `json:"hostUpdated,omitzero"`
}

// A Field names a field of Metadata, for SaveMetadata to empty.
type Field string

// The fields of Metadata.
const (
	FieldName        Field = "name"
	FieldModel       Field = "model"
	FieldCwd         Field = "cwd"
	FieldGroup       Field = "group"
	FieldLabels      Field = "labels" // all of them
	FieldRetention   Field = "retention"
	FieldCustom      Field = "custom"
	FieldHostCreated Field = "hostCreated"
	FieldHostUpdated Field = "hostUpdated"
	FieldAll         Field = "all" // every field: what is saved beside it is all that the session has then
)

// Known reports whether f names a field, or all.
func (f Field) Known() bool { return new(Metadata).empty(f) }

// empty empties a field, and reports whether there is one of that name.
func (m *Metadata) empty(f Field) bool {
	switch f {
	case FieldName:
		m.Name = ""
	case FieldModel:
		m.Model = ""
	case FieldCwd:
		m.Cwd = ""
	case FieldGroup:
		m.Group = ""
	case FieldLabels:
		m.Labels = nil
	case FieldRetention:
		m.Retention = 0
	case FieldCustom:
		m.Custom = nil
	case FieldHostCreated:
		m.HostCreated = time.Time{}
	case FieldHostUpdated:
		m.HostUpdated = time.Time{}
	case FieldAll:
		*m = Metadata{}
	default:
		return false
	}
	return true
}

// Merge empties fields of m, and then sets those that are set in change. Labels are merged one by one, and a change to
// the empty string removes a label. m shares no labels with what it was, and Custom with change.
func (m *Metadata) Merge(change *Metadata, fields ...Field) {
	for _, f := range fields {
		m.empty(f)
	}
	m.Name = cmp.Or(change.Name, m.Name)
	m.Model = cmp.Or(change.Model, m.Model)
	m.Cwd = cmp.Or(change.Cwd, m.Cwd)
	m.Group = cmp.Or(change.Group, m.Group)
	m.Labels = mergedLabels(m.Labels, change.Labels)
	m.Retention = cmp.Or(change.Retention, m.Retention)
	if len(change.Custom) > 0 {
		m.Custom = change.Custom
	}
	m.HostCreated = cmp.Or(change.HostCreated, m.HostCreated)
	m.HostUpdated = cmp.Or(change.HostUpdated, m.HostUpdated)
}

// mergedLabels returns labels with changes applied. The result shares no memory with its arguments, and is nil if it
// has no labels.
func mergedLabels(labels, changes map[string]string) map[string]string {
	out := make(map[string]string, len(labels)+len(changes))
	for _, m := range []map[string]string{labels, changes} {
		for k, v := range m {
			if out[k] = v; v == "" {
				delete(out, k)
			}
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// Retention says how many of a session's latest revisions can be read as they
// were. 0 leaves it to Prune; a session's own number comes before that of gc.PruneOptions.
// Pruning drops the checkpoints of older revisions. It also drops the side branches that
// older revisions lead to, and neither newer ones nor those that are kept by name. It never
// drops nodes of the active path.
type Retention uint64

// KeepAll retains every revision.
const KeepAll = ^Retention(0)

// MarshalJSON returns a number, or "all" for KeepAll, which is beyond the integers that all readers of JSON have.
func (r Retention) MarshalJSON() ([]byte, error) {
	if r == KeepAll {
		return []byte(`"all"`), nil
	}
	return json.Marshal(uint64(r))
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *Retention) UnmarshalJSON(text []byte) error {
	if bytes.Equal(text, []byte(`"all"`)) {
		*r = KeepAll
		return nil
	}
	if err := json.Unmarshal(text, (*uint64)(r)); err != nil {
		return fmt.Errorf("%.80s is no retention: want a number, or \"all\"", text)
	}
	return nil
}

// About is the record of what a session is: what Create sets for good, and its metadata. Saving it moves no revision.
type About struct {
	ID          string
	Incarnation Incarnation
	Metadata
	Parent   Incarnation // zero if it has none; the parent may be gone
	ForkNode graph.ID    // node of the parent
	Detached bool
	Summary  bool // a summarisation session
	Created  time.Time
	Updated  time.Time // by saving metadata; commits have their own time
}

// In reports whether the session is in a group or in one below it. All sessions are in the group "".
func (a *About) In(group string) bool {
	return group == "" || a.Group == group || strings.HasPrefix(a.Group, group+"/")
}

// LastUpdate returns when a session whose head is h was committed to or its metadata were saved last.
func (a *About) LastUpdate(h *Head) time.Time {
	if h.Time.After(a.Updated) {
		return h.Time
	}
	return a.Updated
}

// Encode returns a's record for key.
func (a *About) Encode(key []byte) []byte {
	body := a.Body()
	if len(body) <= plainAbout {
		return codec.Encode(key, keys.About, codec.Plain(body))
	}
	return codec.Encode(key, keys.About, codec.Compress(nil, body, codec.Medium))
}

// Body returns the body of a's record, before it is compressed.
func (a *About) Body() []byte {
	e := codec.Encoder{B: make([]byte, 0, 256)}
	e.Array(17)
	e.Text(a.ID)
	e.Bytes(a.Incarnation[:])
	e.Text(a.Name)
	e.Text(a.Model)
	e.Text(a.Cwd)
	e.Text(a.Group)
	if a.Parent == (Incarnation{}) {
		e.Null()
	} else {
		e.Bytes(a.Parent[:])
	}
	e.ID(a.ForkNode)
	e.Bool(a.Detached)
	e.Bool(a.Summary)
	e.Uint(uint64(a.Retention))
	appendLabels(&e, a.Labels)
	appendTime(&e, a.Created)
	appendTime(&e, a.Updated)
	if len(a.Custom) == 0 {
		e.Null()
	} else {
		e.Bytes(a.Custom)
	}
	for _, t := range []time.Time{a.HostCreated, a.HostUpdated} {
		if t.IsZero() {
			e.Null()
		} else {
			appendTime(&e, t)
		}
	}
	return e.B
}

const (
	maxAbout   = 1 << 20 // bytes before compression, more than the limits of the fields allow
	plainAbout = 256     // bytes up to which the record is not compressed: it saves little, and lists read many
)

// DecodeAbout decodes the record of key.
func DecodeAbout(key, value []byte) (*About, error) {
	data, err := codec.Decode(key, value, keys.About)
	if err != nil {
		return nil, err
	}
	body, err := codec.Decompress(data, nil, maxAbout)
	if err != nil {
		return nil, err
	}
	return DecodeAboutBody(body)
}

// DecodeAboutBody decodes what Body returns.
func DecodeAboutBody(body []byte) (*About, error) {
	d := codec.Decoder{B: body}
	var a About
	d.Shape(17)
	a.ID = d.Text()
	d.Fixed(a.Incarnation[:])
	a.Name, a.Model, a.Cwd, a.Group = d.Text(), d.Text(), d.Text(), d.Text()
	if !d.Null() {
		d.Fixed(a.Parent[:])
	}
	a.ForkNode = d.ID()
	a.Detached, a.Summary = d.Bool(), d.Bool()
	a.Retention = Retention(d.Uint())
	a.Labels = decodeLabels(&d)
	a.Created, a.Updated = decodeTime(&d), decodeTime(&d)
	if !d.Null() {
		if a.Custom = slices.Clone(d.Bytes()); !json.Valid(a.Custom) {
			d.Fail("metadata that are no JSON")
		}
	}
	for _, t := range []*time.Time{&a.HostCreated, &a.HostUpdated} {
		if !d.Null() {
			*t = decodeTime(&d)
		}
	}
	return &a, d.Done()
}
