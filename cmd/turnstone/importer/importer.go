// Package importer reads the transcripts of agents in several formats and commits them
// to a store.
//
// Parse turns a file into conversations. It reports what it can't read with file, line
// and reason. Load commits the conversations, with one commit for each turn or step. A
// new conversation becomes visible as a whole or not at all.
//
// If a session already holds a conversation, Load compares them event by event, like
// package transcript compares a history. It writes the events that are new, adds edited
// events as a branch, and removes nothing from the session. So a transcript can be
// imported again and again while the agent writes it. The session is the same as if the
// whole file had been imported once.
package importer

import (
	"bufio"
	"bytes"
	"cmp"
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

// A Conversation is the content for one session.
type Conversation struct {
	// ID is the id that the session gets if no other session has it.
	ID string
	// Identity distinguishes the conversation from all others. See identity.go.
	Identity string
	Format   string
	File     string
	Name     string // the beginning of the first user message
	Model    string // the last model that the file names
	Cwd      string
	// Parent is the Identity of the parent conversation, which may be in another file.
	// ForkKey is the key of the parent's event where this conversation begins. An
	// attached conversation goes on from that event. Any other conversation begins
	// empty.
	Parent   string
	ForkKey  string
	Attached bool
	Agent    string // for a sub-agent: its name in the events of the parent
	// Labels are short fields of the file outside the messages. They become labels of
	// the session.
	Labels map[string]string
	Events []Event // parents before children
	// Outside is a JSON object with the fields of this conversation outside its
	// messages. Shared is a JSON object with the fields that all conversations of the
	// file share. They are nil if there are no such fields.
	Outside, Shared []byte
	// Totals is the usage of the whole conversation, if the file reports it. The part
	// of it that the events don't report is committed with the last event.
	Totals []head.Usage
	// Partial says that places of the file could not be read. Events may be missing.
	Partial bool

	kin   kin            // how a session is recognized as this conversation
	began time.Time      // when the conversation began; zero if the file does not say
	gaps  map[int]string // the bytes before each line; see layout.Gaps
	stamp stamp          // identifies the content
}

// An Event is the content for one node.
type Event struct {
	Key     string // unique in the conversation; may be empty
	Kind    string
	Payload []byte
	Line    int // position in the file, for its order; 0-based
	// Parent is the key of the parent event; "" means the event before in Events.
	// If Root is set, the event has no parent in this conversation, and Parent may be
	// the ForkKey of an attached conversation.
	Parent string
	Root   bool

	Turn bool      // begins a turn
	Step bool      // begins a step: a burst of the assistant with the results of its tools
	Time time.Time // zero if the file does not say
	// Side says that the event is not part of the conversation itself, for example a
	// progress report. It is never the leaf of the session.
	Side       bool
	Usage      []head.Usage
	Checkpoint map[string][]byte
}

// A BadInput is a place in a file that can't be read.
type BadInput struct {
	File   string // the name that the user gave
	Line   int    // 1-based; 0 for the file as a whole
	Reason string
}

func (e *BadInput) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Reason)
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Reason)
}

// maxFile is the largest size of a file after expansion, in bytes.
const maxFile = 2 << 30

var (
	errTooLarge = fmt.Errorf("is larger than %d bytes", int64(maxFile))
	errBinary   = errors.New("is binary data, not a transcript")
)

// Read returns the content of r. It expands gzip. It refuses binary data after it has
// read the beginning.
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
	if begin, _ := in.Peek(sniffed); binary(begin) { // ReadAll returns the error of Peek again
		return nil, errBinary
	}
	data, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = errTooLarge
	}
	return data, err
}

// sniffed is the number of bytes by which binary decides.
const sniffed = 4 << 10

// binary reports whether a file with the given beginning is binary. Text has no zero
// bytes, few control characters, and few bytes that are not UTF-8.
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

// A parser collects the conversations of a file.
type parser struct {
	file string         // the name that the user gave
	path string         // identifies the file; empty for standard input
	stem string         // the base name without the extensions of formats
	gaps map[int]string // for a file of lines, the bytes before each line; see layout.Gaps
	out  []Conversation
	bad  []*BadInput
}

// fail notes that a line can't be read; 0 is the file as a whole.
func (p *parser) fail(line int, format string, args ...any) {
	p.bad = append(p.bad, &BadInput{File: p.file, Line: line, Reason: fmt.Sprintf(format, args...)})
}

// Parse reads the content of a file in any of the formats. It returns all that it could
// read, and the places that it could not read. The name of the file is "-" for standard
// input.
func Parse(file string, data []byte) ([]Conversation, []*BadInput) {
	p := &parser{file: file, stem: stem(file), path: fullPath(file)}
	if file == "-" {
		p.file, p.stem = "stdin", "stdin"
	}
	if binary(data) {
		p.fail(0, "%v", errBinary)
		return nil, p.bad
	}
	p.parse(data)
	partial := len(p.bad) > 0
	seen := map[string]int{}
	out := p.out[:0]
	for i := range p.out {
		c := &p.out[i]
		c.File, c.Partial = filepath.Base(p.file), partial
		if partial {
			c.gaps = nil // they don't fit, because lines are missing
		}
		if seen[c.ID]++; seen[c.ID] > 1 { // the file has the id twice
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

// parse reads the content of a text file.
func (p *parser) parse(data []byte) {
	text := bytes.TrimPrefix(data, []byte(mark))
	switch trimmed := bytes.TrimSpace(text); {
	case len(trimmed) == 0:
		p.fail(0, "is empty")
	case trimmed[0] == '[' && json.Valid(text):
		p.array(text)
	case trimmed[0] == '{' && json.Valid(text):
		p.object(text)
	default:
		p.lines(text)
	}
	if p.gaps != nil && len(text) < len(data) {
		p.gaps[0] = mark + p.gaps[0]
	}
}

// mark is the byte-order mark that some editors write at the beginning of a file.
const mark = "\ufeff"

// storable reports whether a conversation is within the limits of a session, and notes
// what is not. The check is here so that it fails before anything is written.
func (p *parser) storable(c *Conversation) bool {
	for _, part := range [][]byte{c.Outside, c.Shared} {
		if len(part) > turnstone.MaxPart {
			p.fail(0, "%s: the fields outside the messages have %d bytes, more than the limit of %d", c.ID, len(part), turnstone.MaxPart)
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

// fits reports whether a payload is within the limit of a node, and notes if it is not.
// what is how the message names the payload.
func (p *parser) fits(line int, what string, payload []byte) bool {
	if len(payload) <= turnstone.MaxPayload {
		return true
	}
	p.fail(line, "%shas %d bytes, more than the limit of %d", what, len(payload), turnstone.MaxPayload)
	return false
}

// stem returns the base name of a file without the extensions of formats.
func stem(file string) string {
	s := filepath.Base(file)
	for _, ending := range []string{".gz", ".jsonl", ".json", ".traj"} {
		s = strings.TrimSuffix(s, ending)
	}
	return clip(strings.ToValidUTF8(s, "�"), 200)
}

// clip returns at most n bytes of s. It cuts between characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

// finish sets the fields that all formats derive in the same way, and clips fields to
// the limits of a session.
func (c *Conversation) finish() {
	c.ID = clip(c.ID, maxID)
	c.Model, c.Cwd = clip(c.Model, turnstone.MaxModel), clip(c.Cwd, turnstone.MaxText)
	c.setSteps()
	c.setTimes()
	for i := range c.Events {
		clipModels(c.Events[i].Usage)
	}
	clipModels(c.Totals)
}

// setSteps sets the kinds, turns and steps of the events, and the name of the
// conversation. Events before the first user message belong to its turn.
func (c *Conversation) setSteps() {
	afterTool, afterUser := false, false
	for i := range c.Events {
		e := &c.Events[i]
		e.Kind = cmp.Or(clip(strings.ToValidUTF8(e.Kind, "�"), turnstone.MaxKind), "event")
		if e.Turn && c.Name == "" {
			c.Name = clip(strings.Join(strings.Fields(Text(e.Payload)), " "), 80)
		}
		fromUser := e.Turn
		e.Turn = fromUser && afterUser
		afterUser = afterUser || fromUser
		e.Step = e.Turn || e.Kind == "assistant" && afterTool
		afterTool = e.Kind == "tool"
	}
}

// setTimes gives events without a time that of the event before.
func (c *Conversation) setTimes() {
	at := c.began
	for i := range c.Events {
		e := &c.Events[i]
		if e.Time.IsZero() {
			e.Time = at
		}
		at = e.Time
		if c.began.IsZero() {
			c.began = at
		}
	}
}

func clipModels(all []head.Usage) {
	for i := range all {
		all[i].Model = clip(strings.ToValidUTF8(all[i].Model, "�"), turnstone.MaxModel)
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
		// The file may be one line of a format that has these fields with other types.
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
	var first element
	if err := json.Unmarshal(items[0], &first); err != nil {
		p.fail(0, "array whose elements are not messages or conversations")
		return
	}
	switch first.format() {
	case "tau":
		p.tau(items)
	case "chats":
		for i, it := range items {
			p.chat(fmt.Sprintf("%s/%d", p.stem, i), it, 0)
		}
	case "messages":
		if c, ok := p.messages(p.stem, "openai", items, 0); ok {
			p.out = append(p.out, c)
		}
	case "openhands":
		c := Conversation{ID: p.stem, Format: "openhands"}
		if p.openhandsEvents(&c, items, 0) {
			p.out = append(p.out, c)
		}
	case "cline":
		p.clineEvents(items)
	default:
		p.fail(0, "unknown format: array of objects without role, messages or traj")
	}
}

// An element has the fields that distinguish the elements of arrays.
type element struct {
	Traj        json.RawMessage `json:"traj"`
	Messages    json.RawMessage `json:"messages"`
	Role        *string         `json:"role"`
	Action      json.RawMessage `json:"action"`
	Observation json.RawMessage `json:"observation"`
	Say         json.RawMessage `json:"say"`
	Ask         json.RawMessage `json:"ask"`
}

// format returns the format of arrays that begin with such an element, or "".
func (e *element) format() string {
	switch {
	case e.Traj != nil:
		return "tau"
	case e.Messages != nil:
		return "chats"
	case e.Role != nil:
		return "messages"
	case e.Action != nil || e.Observation != nil:
		return "openhands"
	case e.Say != nil || e.Ask != nil:
		return "cline"
	}
	return ""
}

var errObject = errors.New("is not a JSON object")

// decode decodes one JSON object into v. Its errors are for people.
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
		return fmt.Errorf("field %q has the wrong type: JSON %s", te.Field, te.Value)
	}
	return err
}

// compact returns raw without insignificant white space.
func compact(raw json.RawMessage) []byte {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return raw // can't happen: raw was parsed before
	}
	return b.Bytes()
}
