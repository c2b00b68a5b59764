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
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tidwall/gjson"

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
	Name     string // the title that the file gives, or the beginning of the first user message
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
	// origin is a hash of the path of the file; empty for standard input.
	origin string
	// Mended counts the faults of the file that were mended, in the first conversation of the file.
	Mended map[Mend]int
	// Redacted counts the secrets of the file that were replaced, by the rules that found them, in its first
	// conversation.
	Redacted map[string]int

	tail   *tail       // what the next version of the file can go on from, if it is one of lines and of this conversation alone
	since  int         // index of the first event that is not in the version that tail is of; those before have no payloads
	asked  bool        // an event is a message of the user
	kin    kin         // how a session is recognized as this conversation
	began  time.Time   // when the conversation began; zero if the file does not say
	torn   int         // number of events that are bytes that can't be read
	gaps   gaps        // the bytes between the events in the file; nil if they are not known
	stamp  stamp       // identifies the content
	events hash.Cloner // whose sum is that of the digest of all events
}

// An Event is the content for one node.
type Event struct {
	Key     string // unique in the conversation; may be empty
	Kind    string
	Payload []byte
	Line    int // position in the file, for its order; 0-based
	// missing is the id of the event's parent if the file does not have that.
	missing string
	// Before is the index of the event that this one follows, which is an earlier one. It is -1 for the
	// beginning of a tree, and -2 for an event that goes on from the ForkKey of an attached conversation.
	Before int

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
	Again  bool // It may be read when it is tried again, because another process is at it now.
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
// read the beginning. The end of ctx ends it, even if r blocks; r may be read after that.
func Read(ctx context.Context, r io.Reader) ([]byte, error) {
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		data, err := read(r)
		done <- result{data, err}
	}()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r := <-done:
		return r.data, r.err
	}
}

func read(r io.Reader) ([]byte, error) {
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

// binary reports whether a file with the given beginning is binary: a tenth of it is zero bytes, control
// characters and bytes that are not UTF-8, and no object begins in it. A crash can leave zero bytes in a transcript.
func binary(begin []byte) bool {
	begin = bytes.TrimLeft(begin[:min(len(begin), sniffed)], "\x00")
	strange := 0
	for i := 0; i < len(begin); {
		r, n := utf8.DecodeRune(begin[i:])
		if r == utf8.RuneError && n == 1 || r < ' ' && r != '\t' && r != '\n' && r != '\r' && r != 0x1b {
			strange++
		}
		i += n
	}
	return strange > 3 && strange*10 > len(begin) && !bytes.Contains(begin, []byte(`{"`))
}

// A parser collects the conversations of a file.
type parser struct {
	file string // the name that the user gave
	path string // identifies the file; empty for standard input
	stem string // the base name without the extensions of formats
	data []byte
	out  []Conversation
	bad  []*BadInput

	tail     *tail // of a file of lines that one conversation can go on from
	secrets  Secrets
	redacted map[string]int
}

// fail notes that a line can't be read; 0 is the file as a whole.
func (p *parser) fail(line int, format string, args ...any) {
	p.bad = append(p.bad, &BadInput{File: p.file, Line: line, Reason: fmt.Sprintf(format, args...)})
}

// Parse reads the content of a file in any of the formats. It returns all that it could
// read, and the places that it could not read. The name of the file is "-" for standard
// input. If ctx ends, Parse returns its error.
//
// Lines that are torn, joined, repeated, or linked to parents that are not there are mended; see Mend. If secrets is
// set, the secrets that it finds are replaced before anything else; Conversation.Redacted counts them.
func Parse(ctx context.Context, file string, data []byte, secrets Secrets) ([]Conversation, []*BadInput, error) {
	return newParser(file, secrets).read(ctx, data)
}

func (p *parser) read(ctx context.Context, data []byte) ([]Conversation, []*BadInput, error) {
	p.data = p.redact(data)
	if err := p.parse(ctx); err != nil {
		return nil, nil, err
	}
	convs, bad := p.conversations()
	return convs, bad, nil
}

func newParser(file string, secrets Secrets) *parser {
	p := &parser{file: file, stem: stem(file), path: fullPath(file), secrets: secrets}
	if file == "-" {
		p.file, p.stem = "stdin", "stdin"
	}
	return p
}

// conversations returns what was read, as far as it can be stored, and what could not be read.
func (p *parser) conversations() ([]Conversation, []*BadInput) {
	if len(p.out) > 0 {
		p.out[0].Redacted = p.redacted
	}
	seen := map[string]int{}
	out := p.out[:0]
	for i := range p.out {
		c := &p.out[i]
		c.File, c.origin = filepath.Base(p.file), hashPath(p.path)
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

// mark is the byte-order mark that some editors write at the beginning of a file.
const mark = "\ufeff"

// parse reads the data.
func (p *parser) parse(ctx context.Context) error {
	text := bytes.TrimRight(bytes.TrimPrefix(p.data, []byte(mark)), "\x00")
	trimmed := bytes.Trim(text, " \t\r\n\x00")
	switch {
	case len(trimmed) == 0:
		p.fail(0, "is empty")
	case binary(p.data):
		p.fail(0, "%v", errBinary)
	case trimmed[0] == '[' && valid(text):
		p.array(text)
	case trimmed[0] == '{' && valid(text) && p.object(text):
	default:
		return p.lines(ctx)
	}
	return nil
}

// object reads a file that is one conversation as a JSON object. It returns false if no format knows it.
func (p *parser) object(text []byte) bool {
	f := parseFields(text)
	t := formatOf(f)
	if t == nil || !t.is(t.whole, f) || t.inLines || strings.HasSuffix(p.path, ".jsonl") { // a file of lines may grow
		return false
	}
	p.whole(t, text, p.stem, 0)
	p.keepEnds(bytes.Index(p.data, text), len(text))
	return true
}

// array reads a file that is one JSON array: of conversations, or of what one consists of.
func (p *parser) array(text []byte) {
	first := gjson.GetBytes(text, "0")
	if !first.IsObject() {
		p.fail(0, "is an array, but not of messages or conversations")
		return
	}
	f := parseFields([]byte(first.Raw))
	switch t := formatOf(f); {
	case t == nil:
		p.fail(0, "%s", unknownFormat)
	case t.is(t.whole, f):
		n, begin, size := 0, 0, 0 // of the elements, and of the last one
		gjson.ParseBytes(text).ForEach(func(_, v gjson.Result) bool {
			if v.IsObject() {
				begin, size = v.Index, len(v.Raw)
				p.whole(t, text[begin:begin+size], fmt.Sprintf("%s/%d", p.stem, n), 0)
			} else {
				p.fail(0, "element %d: %v", n, errObject)
			}
			n++
			return true
		})
		p.keepEnds(bytes.Index(p.data, text)+begin, size)
		return
	case t.own != nil:
		t.own(p, text, p.stem, 0)
	default:
		p.elements(t, text, gjson.ParseBytes(text), p.stem, 0)
	}
	p.keepEnds(bytes.Index(p.data, text), len(text))
}

const unknownFormat = "unknown format; `turnstone import --help` lists those that are known"

// lines reads a file of JSON lines. The first object whose format is known decides the format of the file.
func (p *parser) lines(ctx context.Context) error {
	s := splitter{data: p.data, begin: len(p.data) - len(bytes.TrimPrefix(p.data, []byte(mark)))}
	if err := s.split(ctx); errors.Is(err, errObjects) {
		p.fail(0, "%v", err)
		return nil
	} else if err != nil {
		return err
	}
	var t *format
	whole := false
	for i := range s.pieces {
		if s.pieces[i].broken == "" && t == nil {
			f := parseFields(s.pieces[i].raw)
			if t = formatOf(f); t != nil {
				whole = t.is(t.whole, f)
			}
		}
	}
	switch {
	case t == nil && len(s.pieces) == 0:
		p.fail(0, "is not finished")
	case t == nil:
		p.fail(s.pieces[0].line, "%s", unknownFormat)
	case whole:
		for _, at := range s.pieces {
			switch {
			case at.broken != "":
				p.fail(at.line, "%s", at.broken)
			case !t.is(t.whole, parseFields(at.raw)):
				p.fail(at.line, "is no conversation, as other lines of the file are")
			default:
				p.whole(t, at.raw, fmt.Sprintf("%s/%d", p.stem, at.line-1), at.line)
			}
		}
	case t.own != nil: // Such a list is read as an array.
		var all [][]byte
		for _, at := range s.pieces {
			if at.broken != "" {
				p.fail(at.line, "%s", at.broken)
				continue
			}
			all = append(all, at.raw)
		}
		t.own(p, slices.Concat([]byte("["), bytes.Join(all, []byte(",")), []byte("]")), p.stem, 0)
	default:
		entries, err := p.entries(ctx, t, &s)
		if err != nil {
			return err
		}
		b := t.build(p.stem, entries)
		for m, n := range s.mended {
			b.talks[0].Mended[m] += n
		}
		p.take(b.talks, s.gaps)
		p.tail = tailOf(&s, b)
	}
	return nil
}

// entries reads the pieces of a file of lines.
func (p *parser) entries(ctx context.Context, t *format, s *splitter) ([]*entry, error) {
	entries := make([]*entry, len(s.pieces))
	for i := range s.pieces {
		if i%1000 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		entries[i] = t.entry(s.pieces[i], s.before+i)
		if parent := subagentOf(p.path); t == claude && parent != "" && entries[i].agent != "" {
			entries[i].session = parent
		}
	}
	return entries, nil
}

// take takes over conversations of a file. gaps has the bytes between their events, if they are one.
func (p *parser) take(talks []*talk, between gaps) {
	for _, k := range talks {
		if len(talks) == 1 {
			k.gaps = between
		}
		p.out = append(p.out, k.Conversation)
	}
}

// whole reads an object that is a conversation.
func (p *parser) whole(t *format, raw []byte, id string, line int) {
	if t.own != nil {
		t.own(p, raw, id, line)
		return
	}
	p.list(t, raw, id, line)
}

// list reads an object that has a conversation as a list.
func (p *parser) list(t *format, raw []byte, id string, line int) {
	f := parseFields(raw)
	of := &t.of
	c := p.elements(t, raw, f.get(split(t.items)...), cmp.Or(f.at(of.session), id), line)
	if c == nil {
		return
	}
	if t.unique && f.at(of.session) != "" {
		c.Identity = own(t.name, c.ID)
	}
	c.Name = cmp.Or(tidy(f.at(of.title)), c.Name)
	c.Model = cmp.Or(f.text("model"), c.Model, f.at(of.model))
	c.Totals = f.usage(c.Model, split(of.usage)...)
	c.began = f.time(split(of.time)...).Time
	if list, _, _ := strings.Cut(t.items, ","); f.has(list) {
		c.outside(raw, list)
	}
}

// elements reads the elements of a list in raw: an array, or the values of an object. The bytes of raw before,
// between and behind them are the gaps. It returns nil if an element can't be stored.
func (p *parser) elements(t *format, raw []byte, list gjson.Result, id string, line int) *Conversation {
	var entries []*entry
	between, end, ok, odd := gaps{}, 0, true, 0
	list.ForEach(func(_, v gjson.Result) bool {
		at := piece{line: line, raw: raw[v.Index : v.Index+len(v.Raw)]}
		ok = ok && p.fits(line, fmt.Sprintf("element %d ", len(entries)), at.raw)
		if !v.IsObject() {
			at.broken = MendUnknownKind
			odd++
		}
		between.set(len(entries), raw[end:v.Index])
		end = v.Index + len(v.Raw)
		entries = append(entries, t.entry(at, len(entries)))
		return true
	})
	if !ok {
		return nil
	}
	between.set(len(entries), raw[end:])
	talks := t.build(id, entries).talks
	if odd > 0 {
		talks[0].Mended[MendUnknownKind] += odd
	}
	p.take(talks, between)
	return &p.out[len(p.out)-len(talks)]
}

// keepEnds adds to the gaps of a file's only conversation what stands before and behind its text, of which the
// place in the file is given.
func (p *parser) keepEnds(begin, size int) {
	if len(p.out) != 1 || p.out[0].gaps == nil || size == len(p.data) {
		return
	}
	c := &p.out[0]
	last := len(c.Events)
	c.gaps.set(0, slices.Concat(p.data[:begin], c.gaps.before(0)))
	c.gaps.set(last, slices.Concat(c.gaps.before(last), p.data[begin+size:]))
}

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
	for _, text := range []*string{&c.ID, &c.Name, &c.Model, &c.Cwd} {
		*text = strings.ToValidUTF8(*text, "�")
	}
	c.ID = clip(c.ID, maxID)
	c.Model, c.Cwd = clip(c.Model, turnstone.MaxModel), clip(c.Cwd, turnstone.MaxText)
	c.setSteps()
	c.setTimes()
	for i := range c.Events[c.since:] {
		e := &c.Events[c.since+i]
		if e.Kind == Unreadable {
			c.torn++
		}
		clipModels(e.Usage)
	}
	clipModels(c.Totals)
}

// setSteps sets the kinds, turns and steps of the events, and the name of the
// conversation. Events before the first user message belong to its turn.
func (c *Conversation) setSteps() {
	afterTool := c.since > 0 && c.Events[c.since-1].Kind == "tool"
	for i := range c.Events[c.since:] {
		e := &c.Events[c.since+i]
		e.Kind = cmp.Or(clip(strings.ToValidUTF8(e.Kind, "�"), turnstone.MaxKind), "event")
		if e.Turn && c.Name == "" {
			c.Name = clip(strings.Join(strings.Fields(Text(e.Payload)), " "), 80)
		}
		fromUser := e.Turn
		e.Turn = fromUser && c.asked
		c.asked = c.asked || fromUser
		e.Step = e.Turn || e.Kind == "assistant" && afterTool
		afterTool = e.Kind == "tool"
	}
}

// setTimes gives events without a time that of the event before.
func (c *Conversation) setTimes() {
	at := c.began
	if c.since > 0 {
		at = c.Events[c.since-1].Time
	}
	for i := range c.Events[c.since:] {
		e := &c.Events[c.since+i]
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

var errObject = errors.New("is not a JSON object")

// decode decodes one JSON object into v. Its errors are for people.
func decode(raw []byte, v any) error {
	if t := bytes.TrimSpace(raw); (len(t) == 0 || t[0] != '{') && json.Valid(t) {
		return errObject
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
