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
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// The types below are the lines that --json prints. The names and meanings of their
// fields don't change; fields may be added. Times are in RFC 3339, sizes in bytes, ids
// in hexadecimal. Empty optional fields are left out.

type sessionLine struct {
	ID       string            `json:"id"`
	Name     string            `json:"name,omitempty"`
	Model    string            `json:"model,omitempty"`
	Cwd      string            `json:"cwd,omitempty"`
	Group    string            `json:"group,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Parent   string            `json:"parent,omitempty"`
	ForkNode string            `json:"forkNode,omitempty"`
	Detached bool              `json:"detached,omitempty"`
	Summary  bool              `json:"summary,omitempty"`
	Created  time.Time         `json:"created"`
	Updated  time.Time         `json:"updated"`
	Revision uint64            `json:"revision"`
	Leaf     string            `json:"leaf,omitempty"`
	Commit   string            `json:"commit"`
	Nodes    uint64            `json:"nodes"`
	Bytes    uint64            `json:"bytes"`
	Usage    []usageLine       `json:"usage,omitempty"`
}

// lineOf returns the line of a session.
func lineOf(i *turnstone.Info) sessionLine {
	return sessionLine{
		ID: i.ID, Name: i.Name, Model: i.Model, Cwd: i.Cwd, Group: i.Group, Labels: i.Labels, Parent: i.Parent, ForkNode: hexID(i.ForkNode), Detached: i.Detached,
		Summary: i.Summary, Created: i.Created.UTC(), Updated: i.Updated.UTC(), Revision: uint64(i.Revision), Leaf: hexID(i.Leaf),
		Commit: i.Commit.String(), Nodes: i.Nodes, Bytes: i.Bytes, Usage: usageLines(i.Usage),
	}
}

// hexID returns the id in hexadecimal, or "" if it is zero.
func hexID(id graph.ID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}

type usageLine struct {
	Session     string `json:"session,omitempty"`
	Day         string `json:"day,omitempty"`
	Model       string `json:"model,omitempty"`
	Input       uint64 `json:"input"`
	Output      uint64 `json:"output"`
	CachedInput uint64 `json:"cachedInput"`
	CacheWrite  uint64 `json:"cacheWrite"`
	Reasoning   uint64 `json:"reasoning"`
}

func usageLines(all []head.Usage) []usageLine {
	var out []usageLine
	for _, u := range all {
		out = append(out, usageLineOf(u))
	}
	return out
}

func usageLineOf(u head.Usage) usageLine {
	return usageLine{Model: u.Model, Input: u.Input, Output: u.Output, CachedInput: u.CachedInput, CacheWrite: u.CacheWrite, Reasoning: u.Reasoning}
}

// A contentLine has bytes in one of three fields: Payload if they are JSON, Text if they
// are other UTF-8, and Base64 otherwise.
type contentLine struct {
	Payload json.RawMessage `json:"payload,omitempty"`
	Text    *string         `json:"text,omitempty"`
	Base64  []byte          `json:"base64,omitempty"`
}

func contentOf(b []byte) (l contentLine) {
	switch {
	case utf8.Valid(b) && json.Valid(b):
		l.Payload = b
	case utf8.Valid(b):
		text := string(b)
		l.Text = &text
	default:
		l.Base64 = b
	}
	return l
}

type nodeLine struct {
	Side      string `json:"side,omitempty"` // in the output of diff: common, a or b
	ID        string `json:"id"`
	Parent    string `json:"parent,omitempty"`
	Kind      string `json:"kind"`
	Key       string `json:"key,omitempty"`
	Revision  uint64 `json:"revision"`
	Inherited bool   `json:"inherited,omitempty"`
	contentLine
	Attachments []attachmentLine `json:"attachments,omitempty"`
}

type attachmentLine struct {
	ID        string `json:"id"`
	Size      int64  `json:"size"`
	MediaType string `json:"mediaType,omitempty"`
	Name      string `json:"name,omitempty"`
}

func nodeLineOf(n *turnstone.Node) nodeLine {
	l := nodeLine{ID: n.ID.String(), Parent: hexID(n.Parent), Kind: n.Kind, Key: n.Key, Revision: uint64(n.Revision), Inherited: n.Inherited, contentLine: contentOf(n.Payload)}
	for _, a := range n.Attachments {
		l.Attachments = append(l.Attachments, attachmentLine{ID: a.ID.String(), Size: a.Size, MediaType: a.MediaType, Name: a.Name})
	}
	return l
}

type commitLine struct {
	Session  string            `json:"session"`
	Revision uint64            `json:"revision"`
	Commit   string            `json:"commit"`
	Time     time.Time         `json:"time"`
	Turn     string            `json:"turn,omitempty"`
	Leaf     string            `json:"leaf,omitempty"`
	Nodes    int               `json:"nodes"`
	Parts    []partLine        `json:"parts,omitempty"`
	Usage    []usageLine       `json:"usage,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Pruned   bool              `json:"pruned,omitempty"`
}

type partLine struct {
	Name string `json:"name"`
	ID   string `json:"id"`
	Size int64  `json:"size"`
}

func commitLineOf(session string, e *turnstone.LogEntry) commitLine {
	l := commitLine{
		Session: session, Revision: uint64(e.Revision), Commit: e.Commit.String(), Time: e.Time.UTC(), Turn: e.Turn, Leaf: hexID(e.Leaf), Nodes: e.Nodes,
		Usage: usageLines(e.Usage), Labels: e.Labels, Pruned: e.Pruned,
	}
	for _, p := range e.Parts {
		l.Parts = append(l.Parts, partLine{Name: p.Name, ID: p.Blob.String(), Size: p.Size})
	}
	return l
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
	Usage       []usageLine         `json:"usage,omitempty"`
}

type kindLine struct {
	Records uint64 `json:"records"`
	Stored  uint64 `json:"stored"`
}

func statsLineOf(s *turnstone.Stats, allocated uint64) statsLine {
	l := statsLine{
		Format: s.Format, Sessions: s.Sessions, Commits: s.Commits, Nodes: s.Nodes, Blobs: s.Blobs, Sealed: s.Sealed, Loose: s.Loose, Deleted: s.Deleted,
		Payload: s.Payload, Checkpoints: s.Checkpoints, Records: s.Stored.Records, Stored: s.Stored.Total(), ByKind: map[string]kindLine{},
		Allocated: allocated, Usage: usageLines(s.Usage),
	}
	for kind, b := range s.ByKind {
		l.ByKind[kind] = kindLine{Records: b.Records, Stored: b.Total()}
	}
	return l
}

type keptLine struct {
	Name     string `json:"name"`
	Revision uint64 `json:"revision"`
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
