package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// The types below, and types of the library, are the lines that --json prints. The names and meanings
// of their fields don't change; fields may be added. Times are in RFC 3339, sizes in bytes, ids
// in hexadecimal. Empty optional fields are left out.

type usageLine struct {
	Session string `json:"session,omitempty"`
	Day     string `json:"day,omitempty"`
	Project string `json:"project,omitempty"`
	Agent   string `json:"agent,omitempty"`
	Branch  string `json:"branch,omitempty"`
	head.Usage
	Unpriced bool `json:"unpriced,omitempty"` // the cost lacks that of models without a price
}

type nodeLine struct {
	Side string `json:"side,omitempty"` // in the output of diff: common, a or b
	turnstone.Node
	Payload json.RawMessage `json:"payload,omitempty"` // see asContent
	Text    *string         `json:"text,omitempty"`
	Base64  []byte          `json:"base64,omitempty"`
}

// asContent returns bytes as JSON if that is what they are, as text if they are other UTF-8, and
// otherwise to be encoded in base64.
func asContent(b []byte) (asJSON json.RawMessage, text *string, base64 []byte) {
	switch {
	case utf8.Valid(b) && json.Valid(b):
		return b, nil, nil
	case utf8.Valid(b):
		s := string(b)
		return nil, &s, nil
	default:
		return nil, nil, b
	}
}

func nodeLineOf(n *turnstone.Node) nodeLine {
	l := nodeLine{Node: *n}
	l.Payload, l.Text, l.Base64 = asContent(n.Payload)
	return l
}

type commitLine struct {
	Session string `json:"session"`
	turnstone.LogEntry
}

type verifyLine struct {
	Sessions     int      `json:"sessions"`
	Commits      int      `json:"commits"`
	Nodes        int      `json:"nodes"`
	Blobs        int      `json:"blobs"`
	Unreferenced int      `json:"unreferenced"`
	Condemned    int      `json:"condemned"`
	Records      int      `json:"records"`
	Problems     []string `json:"problems"`
	More         int      `json:"more,omitempty"` // number of problems that are not listed
}

func verifyLineOf(v *turnstone.Verification) verifyLine {
	l := verifyLine{
		Sessions: v.Sessions, Commits: v.Commits, Nodes: v.Nodes, Blobs: v.Blobs, Unreferenced: v.Unreferenced, Condemned: v.Condemned, Records: v.Records,
		Problems: []string{}, More: v.More,
	}
	for _, problem := range v.Problems {
		l.Problems = append(l.Problems, problem.Error())
	}
	return l
}

// A scrubLine is the line of JSON that scrub prints.
type scrubLine struct {
	turnstone.ScrubReport
	Problems []string `json:"problems"`
}

func scrubLineOf(r *turnstone.ScrubReport) scrubLine {
	l := scrubLine{*r, []string{}}
	for _, problem := range r.Problems {
		l.Problems = append(l.Problems, problem.Error())
	}
	return l
}

type statsLine struct {
	Format      uint64              `json:"format"`
	Sessions    int                 `json:"sessions"`
	Commits     int                 `json:"commits"`
	Nodes       uint64              `json:"nodes"`
	Blobs       int                 `json:"blobs"`
	Sealed      int                 `json:"sealed"`
	Loose       int                 `json:"loose"`
	Deleted     int                 `json:"deleted"`
	Payload     uint64              `json:"payload"`
	Checkpoints uint64              `json:"checkpoints"`
	Records     uint64              `json:"records"`
	Stored      uint64              `json:"stored"`
	ByKind      map[string]kindLine `json:"byKind"`
	Allocated   uint64              `json:"allocated,omitempty"` // what the files of an embedded store take on disk
	Scrubbed    time.Time           `json:"scrubbed,omitzero"`
	Spoilt      uint64              `json:"spoilt,omitempty"`
	Maintenance []head.Maintenance  `json:"maintenance,omitempty"`
	Usage       []head.Usage        `json:"usage,omitempty"`
}

type kindLine struct {
	Records uint64 `json:"records"`
	Stored  uint64 `json:"stored"`
}

func statsLineOf(s *turnstone.Stats, allocated uint64) statsLine {
	l := statsLine{
		Format: s.Format, Sessions: s.Sessions, Commits: s.Commits, Nodes: s.Nodes, Blobs: s.Blobs, Sealed: s.Sealed, Loose: s.Loose, Deleted: s.Deleted,
		Payload: s.Payload, Checkpoints: s.Checkpoints, Records: s.Stored.Records, Stored: s.Stored.Total(), ByKind: map[string]kindLine{},
		Allocated: allocated, Scrubbed: s.Scrubbed, Spoilt: s.Spoilt, Maintenance: s.Maintenance, Usage: s.Usage,
	}
	for kind, b := range s.ByKind {
		l.ByKind[kind] = kindLine{Records: b.Records, Stored: b.Total()}
	}
	return l
}

// asJSON writes v as one line of JSON. It escapes characters that a terminal would act
// on. A reader of JSON sees no difference.
func asJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	var out strings.Builder
	for _, r := range b.String() {
		if r == 0x7f || r >= 0x80 && active(r) {
			fmt.Fprintf(&out, `\u%04x`, r)
		} else {
			out.WriteRune(r)
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// active reports whether a terminal may act on r instead of showing it.
func active(r rune) bool {
	return r < 0x20 && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// jsonFlag adds the flag --json to a command.
func jsonFlag(c *cobra.Command, on *bool) {
	c.Flags().BoolVar(on, "json", false, "print JSON, one object a line")
}
