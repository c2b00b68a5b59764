// Package importer reads the transcripts of agents in the formats that are
// about, and commits them to a store.
//
// Parse turns a file into conversations: what it can't read it names with file,
// line and reason. Load commits them, one commit per turn or per step; a new
// conversation becomes visible whole or not at all.
//
// A conversation that a session holds already is compared with the session, event
// by event, as package transcript compares a history: what is new is written, what
// was edited becomes a branch, and nothing that is in the session is taken away.
// So a transcript can be imported again and again while the agent writes it, and
// the session is the same as if the whole file had been imported once.
package importer

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// A Conversation is one session to be.
type Conversation struct {
	// ID is the id that the session gets if no other session has it.
	ID string
	// Identity tells the conversation from all others, see identity.go.
	Identity string
	Format   string
	File     string
	Name     string // for people: how it begins
	Model    string // the last one that the file names
	Cwd      string
	// Parent is the Identity of the conversation that this one belongs to, which
	// may be in no file at hand. ForkKey is the key of the event of Parent where it
	// begins. Attached conversations go on from there, others start empty.
	Parent   string
	ForkKey  string
	Attached bool
	Agent    string // of a sub-agent: the name by which its parent's events know it
	// Labels are fields of the file that stand outside the messages, short enough
	// for labels of the session.
	Labels map[string]string
	Events []Event // parents before children
	// Outside is a JSON object of what the file says of this conversation outside
	// its messages, Shared of what it says of all its conversations. Nil: nothing.
	Outside, Shared []byte
	// Totals is what was used in all, where the file counts for the conversation
	// and not only for each message. What the events do not account for is added
	// with the last of them.
	Totals []head.Usage
	// Partial says that places of the file could not be read, so that the
	// conversation may have holes.
	Partial bool

	kin   kin            // how a session is recognized as this conversation
	began time.Time      // if the file says so
	gaps  map[int]string // what stands between the lines, where that is not one line feed
	stamp stamp          // of the content
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

	Turn bool      // begins a turn
	Step bool      // begins a step: a burst of the assistant with the results of its tools
	Time time.Time // zero if the file does not say
	// Side events are off the line of work, such as progress reports: the leaf
	// does not rest on one.
	Side       bool
	Usage      []head.Usage
	Checkpoint map[string][]byte
}

// A BadInput is a place of a file that can't be read.
type BadInput struct {
	File   string // as the user named it
	Line   int    // 1-based; 0 for the file as a whole
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

var (
	errTooLarge = fmt.Errorf("is larger than %d bytes", int64(maxFile))
	errBinary   = errors.New("is binary data, no transcript")
)

// Read returns the content of r, expanded if it is gzip. Of binary data it reads
// only the beginning.
func Read(r io.Reader) ([]byte, error) {
	if f, ok := r.(*os.File); ok {
		if i, err := f.Stat(); err == nil && i.Mode().IsRegular() && i.Size() > maxFile {
			return nil, errTooLarge
		}
	}
	in := bufio.NewReaderSize(r, sniffed)
	if begin, _ := in.Peek(2); bytes.Equal(begin, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, err
		}
		in = bufio.NewReaderSize(z, sniffed)
	}
	if begin, _ := in.Peek(sniffed); binary(begin) { // an error of Peek is ReadAll's as well
		return nil, errBinary
	}
	data, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = errTooLarge
	}
	return data, err
}

// sniffed is how many bytes of a file decide whether it is binary.
const sniffed = 4 << 10

// binary reports whether a file that begins so is no text: text has no zero bytes,
// and few that are not UTF-8 or control characters.
func binary(begin []byte) bool {
	begin = begin[:min(len(begin), sniffed)]
	strange := 0
	for i := 0; i < len(begin); {
		r, n := utf8.DecodeRune(begin[i:])
		if r == 0 {
			return true
		}
		if r == utf8.RuneError && n == 1 || r < ' ' && r != '\t' && r != '\n' && r != '\r' && r != 0x1b {
			strange++
		}
		i += n
	}
	return strange > 3 && strange*10 > len(begin)
}

// A parser collects what a file holds.
type parser struct {
	file string         // as the user named it
	path string         // that identifies the file; empty for standard input
	stem string         // its base name without the endings of formats
	gaps map[int]string // what stands before each line, and behind the last, where that is not one line feed
	out  []Conversation
	bad  []*BadInput
}

func (p *parser) fail(line int, format string, args ...any) {
	p.bad = append(p.bad, &BadInput{File: p.file, Line: line, Reason: fmt.Sprintf(format, args...)})
}

// Parse reads the content of a file, whose format it finds out. It returns all
// that can be read and all that can't. The file is "-" for standard input.
func Parse(file string, data []byte) ([]Conversation, []*BadInput) {
	p := &parser{file: file, stem: stem(file), path: fullPath(file)}
	if file == "-" {
		p.file, p.stem = "stdin", "stdin"
	}
	if binary(data) {
		p.fail(0, "%v", errBinary)
		return nil, p.bad
	}
	whole := data
	data = bytes.TrimPrefix(data, []byte(mark))
	switch trimmed := bytes.TrimSpace(data); {
	case len(trimmed) == 0:
		p.fail(0, "is empty")
	case trimmed[0] == '[' && json.Valid(data):
		p.array(data)
	case trimmed[0] == '{' && json.Valid(data):
		p.object(data)
	default:
		p.lines(data)
	}
	partial := len(p.bad) > 0
	if p.gaps != nil && len(whole) > len(data) {
		p.gaps[0] = mark + p.gaps[0]
	}
	seen := map[string]int{}
	out := p.out[:0]
	for i := range p.out {
		c := &p.out[i]
		if c.File, c.Partial = filepath.Base(p.file), partial; partial {
			c.gaps = nil // between lines that are missing
		}
		if seen[c.ID]++; seen[c.ID] > 1 { // the file gives an id twice
			c.ID = fmt.Sprintf("%s~%d", c.ID, seen[c.ID])
		}
		c.finish()
		p.identify(c)
		if p.storable(c) {
			out = append(out, *c)
		}
	}
	return out, p.bad
}

// mark is the byte-order mark that some editors begin a file with.
const mark = "\ufeff"

// storable complains about what of a conversation is larger than a session takes.
// It is said here, before anything is written.
func (p *parser) storable(c *Conversation) bool {
	for _, part := range [][]byte{c.Outside, c.Shared} {
		if len(part) > turnstone.MaxPart {
			p.fail(0, "%s: what stands outside the messages has %d bytes, more than the limit of %d", c.ID, len(part), turnstone.MaxPart)
			return false
		}
	}
	for i := range c.Events {
		for name, part := range c.Events[i].Checkpoint {
			if len(part) > turnstone.MaxPart {
				p.fail(0, "%s: the %s of message %d has %d bytes, more than the limit of %d", c.ID, name, i, len(part), turnstone.MaxPart)
				return false
			}
		}
	}
	return true
}

// fits complains about a payload that is larger than a node takes.
func (p *parser) fits(line int, what string, payload []byte) bool {
	if len(payload) <= turnstone.MaxPayload {
		return true
	}
	p.fail(line, "%shas %d bytes, more than the limit of %d", what, len(payload), turnstone.MaxPayload)
	return false
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
	c.ID = clip(c.ID, maxID)
	c.Model, c.Cwd = clip(c.Model, turnstone.MaxModel), clip(c.Cwd, turnstone.MaxText)
	sawTool, sawUser := false, false
	at := c.began
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
		for j := range e.Usage {
			e.Usage[j].Model = clip(strings.ToValidUTF8(e.Usage[j].Model, "�"), turnstone.MaxModel)
		}
		if e.Time.IsZero() { // it came with the one before
			e.Time = at
		}
		at = e.Time
		if c.began.IsZero() {
			c.began = at
		}
	}
	for i := range c.Totals {
		c.Totals[i].Model = clip(strings.ToValidUTF8(c.Totals[i].Model, "�"), turnstone.MaxModel)
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
		Traj        json.RawMessage `json:"traj"`
		Messages    json.RawMessage `json:"messages"`
		Role        *string         `json:"role"`
		Action      json.RawMessage `json:"action"`
		Observation json.RawMessage `json:"observation"`
		Say         json.RawMessage `json:"say"`
		Ask         json.RawMessage `json:"ask"`
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
	case first.Action != nil || first.Observation != nil:
		c := Conversation{ID: p.stem, Format: "openhands"}
		if p.openhandsEvents(&c, items, 0) {
			p.out = append(p.out, c)
		}
	case first.Say != nil || first.Ask != nil:
		p.clineEvents(items)
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
