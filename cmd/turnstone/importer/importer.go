// Package importer reads the transcripts of agents in the formats that are
// about, and commits them to a store.
//
// Parse turns a file into conversations: what it can't read it names with file,
// line and reason. Load commits them, one commit per turn or per step; a
// conversation becomes visible whole or not at all.
package importer

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/turnstonedb/turnstone"
)

// A Conversation is one session to be.
type Conversation struct {
	ID     string // of the session
	Format string
	File   string
	Name   string // for people: how it begins
	Model  string
	Cwd    string
	// Parent is the ID of the session that this one belongs to, which may be
	// in no file at hand. ForkKey is the key of the event of Parent where it
	// begins. Attached conversations go on from there, others start empty.
	Parent   string
	ForkKey  string
	Attached bool
	Labels   map[string]string
	Events   []Event // parents before children
	Usage    bool    // whether the format says what was used
}

// An Event is one node to be.
type Event struct {
	Key     string // unique in the conversation; may be empty
	Kind    string
	Payload []byte
	Line    int // position in the file, for its order; 0-based
	// Parent is the key of the event before; "" means the one before in
	// Events. With Root there is none in this conversation; Parent may then be
	// the ForkKey of an attached one.
	Parent string
	Root   bool

	Turn bool // begins a turn
	Step bool // begins a step: a burst of the assistant with the results of its tools
	// Side events are off the line of work, such as progress reports: the leaf
	// does not rest on one.
	Side       bool
	Usage      []turnstone.Usage
	Checkpoint map[string][]byte
}

// A BadInput is a place of a file that can't be read.
type BadInput struct {
	File   string
	Line   int // 1-based; 0 for the file as a whole
	Reason string
}

func (e *BadInput) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Reason)
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Reason)
}

// maxFile bounds a file after expansion, in bytes.
const maxFile = 2 << 30

// Read returns the content of r, expanded if it is gzip.
func Read(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err == nil && len(data) > 2 && data[0] == 0x1f && data[1] == 0x8b {
		var z *gzip.Reader
		if z, err = gzip.NewReader(bytes.NewReader(data)); err == nil {
			data, err = io.ReadAll(io.LimitReader(z, maxFile+1))
		}
	}
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("larger than %d bytes", int64(maxFile))
	}
	return data, err
}

// A parser collects what a file holds.
type parser struct {
	file string // as the user named it
	stem string // its base name without the endings of formats
	out  []Conversation
	bad  []*BadInput
}

func (p *parser) fail(line int, format string, args ...any) {
	p.bad = append(p.bad, &BadInput{File: p.file, Line: line, Reason: fmt.Sprintf(format, args...)})
}

// Parse reads the content of a file, whose format it finds out. It returns all
// that can be read and all that can't.
func Parse(file string, data []byte) ([]Conversation, []*BadInput) {
	p := &parser{file: file, stem: stem(file)}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	switch trimmed := bytes.TrimSpace(data); {
	case len(trimmed) == 0:
		p.fail(0, "is empty")
	case trimmed[0] == '[' && json.Valid(trimmed):
		p.array(trimmed)
	case trimmed[0] == '{' && json.Valid(trimmed):
		p.object(trimmed)
	default:
		p.lines(data)
	}
	seen := map[string]bool{}
	for i := range p.out {
		c := &p.out[i]
		c.File = filepath.Base(p.file)
		c.finish()
		if seen[c.ID] {
			p.fail(0, "two conversations are called %q", c.ID)
		}
		seen[c.ID] = true
	}
	return p.out, p.bad
}

func stem(file string) string {
	s := filepath.Base(file)
	for _, ending := range []string{".gz", ".jsonl", ".json", ".traj"} {
		s = strings.TrimSuffix(s, ending)
	}
	return clip(strings.ToValidUTF8(s, "�"), 200)
}

// clip returns at most n bytes of s, cut between characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

// finish derives what all formats derive alike.
func (c *Conversation) finish() {
	c.ID = clip(c.ID, turnstone.MaxSessionID-len(staging))
	c.Model, c.Cwd = clip(c.Model, turnstone.MaxModel), clip(c.Cwd, turnstone.MaxText)
	sawTool, sawUser := false, false
	for i := range c.Events {
		e := &c.Events[i]
		e.Kind = clip(strings.ToValidUTF8(e.Kind, "�"), turnstone.MaxKind)
		if e.Kind == "" {
			e.Kind = "event"
		}
		// What stands before the first user message goes into its turn.
		first := e.Turn && !sawUser
		sawUser = sawUser || e.Turn
		if first {
			e.Turn = false
		}
		e.Step = e.Turn || e.Kind == "assistant" && sawTool
		sawTool = e.Kind == "tool"
		if c.Name == "" && (e.Turn || first) {
			c.Name = clip(strings.Join(strings.Fields(Text(e.Payload)), " "), 80)
		}
		if len(e.Usage) > 0 {
			c.Usage = true
		}
		for j := range e.Usage {
			e.Usage[j].Model = clip(strings.ToValidUTF8(e.Usage[j].Model, "�"), turnstone.MaxModel)
		}
	}
}

// object reads a file that is one JSON object.
func (p *parser) object(data []byte) {
	var top struct {
		Simulations json.RawMessage `json:"simulations"`
		History     json.RawMessage `json:"history"`
		Trajectory  json.RawMessage `json:"trajectory"`
		Messages    json.RawMessage `json:"messages"`
		Instruction json.RawMessage `json:"instruction"`
	}
	if err := json.Unmarshal(data, &top); err != nil {
		// A single line of a line format can have these names with other types.
		p.lines(data)
		return
	}
	switch {
	case top.Simulations != nil:
		p.tau2(data)
	case top.History != nil && top.Instruction == nil:
		p.swe(data)
	case top.Messages != nil && top.Messages[0] == '[':
		p.chat(p.stem, data, 0)
	default:
		p.lines(data)
	}
}

// array reads a file that is one JSON array.
func (p *parser) array(data []byte) {
	var items []json.RawMessage
	if err := json.Unmarshal(data, &items); err != nil {
		p.fail(0, "%v", err)
		return
	}
	if len(items) == 0 {
		p.fail(0, "is an empty array")
		return
	}
	var first struct {
		Traj     json.RawMessage `json:"traj"`
		Messages json.RawMessage `json:"messages"`
		Role     *string         `json:"role"`
	}
	if err := json.Unmarshal(items[0], &first); err != nil {
		p.fail(0, "array of something that is no message and no conversation")
		return
	}
	switch {
	case first.Traj != nil:
		p.tau(items)
	case first.Messages != nil:
		for i, it := range items {
			p.chat(fmt.Sprintf("%s/%d", p.stem, i), it, 0)
		}
	case first.Role != nil:
		if c, ok := p.messages(p.stem, "openai", items, 0); ok {
			p.out = append(p.out, c)
		}
	default:
		p.fail(0, "unknown format: array of objects without role, messages or traj")
	}
}

var errObject = errors.New("is not a JSON object")

// decode reads one JSON object into v.
func decode(raw []byte, v any) error {
	t := bytes.TrimSpace(raw)
	if len(t) == 0 || t[0] != '{' {
		if json.Valid(t) {
			return errObject
		}
	}
	err := json.Unmarshal(raw, v)
	var te *json.UnmarshalTypeError
	if errors.As(err, &te) {
		return fmt.Errorf("field %q is a JSON %s where something else belongs", te.Field, te.Value)
	}
	return err
}

// compact returns raw without insignificant space.
func compact(raw json.RawMessage) []byte {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return raw // it was parsed before
	}
	return b.Bytes()
}
