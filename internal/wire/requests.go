package wire

import (
	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// Names of headers and of a media type.
const (
	// HeaderNamespace names the namespace, percent-encoded; that of the empty name is the default.
	HeaderNamespace = "Turnstone-Namespace"
	// HeaderExisting, if set, makes the server refuse the request rather than make a namespace that does not exist.
	HeaderExisting = "Turnstone-Existing"
	// HeaderRequest is the id that the caller gives a write. A write with the id of an earlier one is not made again. An
	// answer with the id says how the write ended. One without it says nothing of earlier attempts.
	HeaderRequest = "Turnstone-Request"
	// HeaderCall is an id of one attempt of a request. Its answer has the same id: an answer with another one, or
	// without any, is that to another request, and says nothing.
	HeaderCall = "Turnstone-Call"
	// HeaderServer names a process that serves: in an answer the one that has answered, in a write the one that is to
	// make it. All others refuse it.
	HeaderServer = "Turnstone-Server"
	// HeaderBase makes the server remember the body of a write. Its value is WholeBody, or the id of an earlier write
	// whose body the server remembers. In the second case the body of the request is a Difference from that earlier
	// body.
	HeaderBase = "Turnstone-Base"
	// WholeBody says that a body is no Difference.
	WholeBody = "none"
	// Problem is the media type of problems: RFC 9457.
	Problem = "application/problem+json"
)

// A Target is the session that a request is about.
type Target struct {
	Session string `json:"session"`
	// Incarnation, if set, is the session that Session must be: see turnstone.Info. Another one of that id is another
	// session.
	Incarnation string `json:"incarnation,omitempty"`
}

// Named returns the session that the request is about.
func (t Target) Named() (Target, bool) { return t, true }

// Some is the session that a request is about, if it is about one.
type Some struct {
	Session     *string `json:"session,omitempty"`
	Incarnation string  `json:"incarnation,omitempty"`
}

// SomeOf returns a target as Some.
func SomeOf(t Target) Some { return Some{&t.Session, t.Incarnation} }

// Named returns the session, and false if there is none.
func (s Some) Named() (Target, bool) {
	if s.Session == nil {
		return Target{}, false
	}
	return Target{*s.Session, s.Incarnation}, true
}

// Requests and results of the operations. The server has a table of the operations. A request or result that is not
// here is a type of package turnstone.
type (
	// None has no fields.
	None struct{}

	Created struct {
		turnstone.Info
		New bool `json:"new"` // it was made by the call
	}
	Load struct {
		Target
		turnstone.Scope
	}
	LoadNodes struct {
		Load
		// Behind, if set, is a node of the scope: only those that follow it are sent, to who was cut off after it.
		Behind graph.ID `json:"behind,omitzero"`
	}
	NodeRequest struct {
		Target
		Node graph.ID `json:"node,omitzero"`
		Key  string   `json:"key,omitempty"` // if there is no node
	}
	NodesByKey struct {
		Target
		Keys []string `json:"keys"`
	}
	Kept struct {
		Kept []head.Kept `json:"kept"`
	}
	At struct {
		Target
		At head.Revision `json:"at,omitzero"`
	}
	RecordRequest struct {
		Target
		Key string `json:"key"`
	}
	ListRecords struct {
		Some
		turnstone.RecordQuery
	}
	// ReadRefs asks for refs: records whose values are JSON objects with a revision. A ref may also have, in beside,
	// with what the keys of records begin that belong to it.
	ReadRefs struct {
		Target
		Refs []WantedRef `json:"refs"`
	}
	WantedRef struct {
		Key   string                  `json:"key"`
		Known turnstone.RecordVersion `json:"known,omitzero"` // of the record, if the parts of its revision are known
	}
	After struct {
		Target
		After head.Revision `json:"after,omitzero"`
	}
	StandingQueries struct {
		Sessions []turnstone.StandingQuery `json:"sessions"`
	}
	Standings struct {
		Sessions []turnstone.Standing `json:"sessions"`
	}
	// A Bundle asks for a bundle. Who was cut off asks for the bytes from an offset on.
	Bundle struct {
		Sessions []turnstone.Bundled `json:"sessions"`
		Offset   int64               `json:"offset,omitzero"`
		Before   string              `json:"before,omitempty"` // the SHA-256 of the bytes before the offset, in hexadecimal
	}
	Uploads struct {
		Uploads []turnstone.Upload `json:"uploads"`
	}
	AttachmentRequest struct {
		Target
		ID blob.ID `json:"id"`
	}
	Attachments struct {
		Attachments []turnstone.Attached `json:"attachments"`
	}
	LinkAttachment struct {
		AttachmentRequest
		From string `json:"from"` // the id of the session that has it
	}
	CommitRequest struct {
		Follow
		Target
		Commit
	}
	CommitAll struct {
		Follow
		Commits []SessionCommit `json:"commits"`
	}
	Results struct {
		Results []turnstone.Result `json:"results"`
	}
	ChangeRecords struct {
		Follow
		Target
		Changes []RecordChange `json:"changes"`
	}
	Versions struct {
		Versions []turnstone.RecordVersion `json:"versions"`
	}
	SaveMetadata struct {
		Target
		head.Metadata
		Empty []head.Field `json:"empty,omitempty"`
	}
	Tombstone struct {
		Target
		Nodes []graph.ID `json:"nodes"`
	}
	Keep struct {
		Target
		Name     string        `json:"name"`
		Revision head.Revision `json:"revision"`
	}
	Release struct {
		Target
		Name string `json:"name"`
	}
	Rename struct {
		Target
		To string `json:"to"`
	}
	// Delete removes the session Incarnation, whatever its id is, or without it the one that has the id Session.
	Delete struct {
		Session     string         `json:"session"`
		Incarnation string         `json:"incarnation,omitempty"`
		Expected    *head.Revision `json:"expected,omitempty"` // of an Incarnation only; without it, any
		Children    string         `json:"children,omitempty"` // a key of Policies
	}
	StartFeed struct {
		Keep    int64 `json:"keepNanoseconds"`
		Records bool  `json:"records,omitzero"`
	}
	Collect struct {
		Some
		DryRun bool    `json:"dryRun,omitzero"`
		Full   bool    `json:"full,omitzero"`
		Pace   float64 `json:"pace,omitzero"`
	}
	VacuumRequest struct {
		Some
		Pace         float64 `json:"pace,omitzero"`
		NoCompaction bool    `json:"noCompaction,omitzero"`
	}
	// Prune applies retention to all sessions, or sets the floor of one: then Revisions is how many it retains, and
	// the rest is zero.
	Prune struct {
		Some
		gc.PruneOptions
	}
	// Erase erases the session that has an id now.
	Erase struct {
		Session  string  `json:"session"`
		Children string  `json:"children,omitempty"` // a key of Policies
		Pace     float64 `json:"pace,omitzero"`
	}
	EraseNodes struct {
		Target
		Nodes []graph.ID `json:"nodes"`
		Pace  float64    `json:"pace,omitzero"`
	}
	Seal struct{ Some }
)

// RequestTurn is what the turn ids of commits begin with whose callers gave none: the id of the request, or a random
// text, follows. The logs that a server sends leave them out.
const RequestTurn = "turnstone/request/"

// Policies are the values of Delete.Children.
var Policies = map[string]turnstone.ChildPolicy{
	"keep": turnstone.KeepChildren, "refuse": turnstone.RefuseChildren, "cascade": turnstone.CascadeChildren,
}

// Actions are the values of RecordChange.Action.
var Actions = map[string]turnstone.RecordAction{
	"set": turnstone.SetRecord, "delete": turnstone.DeleteRecord, "check": turnstone.CheckRecord,
}

// Name returns the key of a value in Policies or Actions, or "" if there is none.
func Name[T comparable](names map[string]T, value T) string {
	for name, v := range names {
		if v == value {
			return name
		}
	}
	return ""
}
