package importer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/turnstonedb/turnstone"
)

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
		c.File, c.folder, c.origin = filepath.Base(p.file), filepath.Dir(p.path), hashPath(p.path)
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
