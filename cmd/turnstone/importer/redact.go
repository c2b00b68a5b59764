package importer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"
)

// A Secret is a password, a key or the like that a text has.
type Secret struct {
	Rule string // what found it
	Text string
}

// Secrets returns the secrets in a text.
type Secrets func(text string) []Secret

// redact replaces the secrets in a transcript, or in an object of it, each by the name of the rule that found it, and
// counts them. What has no secrets stays byte for byte.
func (p *parser) redact(data []byte) []byte {
	if p.secrets == nil {
		return data
	}
	if valid(bytes.TrimPrefix(data, []byte(mark))) {
		return p.redactObject(data, true)
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	for i, l := range lines {
		lines[i] = p.redactObject(l, valid(l))
	}
	return bytes.Join(lines, nil)
}

// Redact replaces the secrets in a payload, each by the name of the rule that found it.
func Redact(payload []byte, secrets Secrets) []byte {
	p := parser{secrets: secrets}
	return p.redact(payload)
}

// Between stands between the values of an object in the text that is searched for its secrets.
const Between = "\x00\n"

// redactObject replaces the secrets in JSON, or in bytes that may be broken. Strings are read without their escape
// sequences, and what is JSON in a string, such as the arguments of a tool, is read as well. All of them are searched
// at once, as lines of NAME=VALUE, because many secrets are known by what stands beside them.
func (p *parser) redactObject(data []byte, whole bool) []byte {
	var text strings.Builder
	gather(&text, data, 0)
	found := p.secrets(text.String())
	if !whole { // What looks like the space between strings may be a string.
		for _, s := range p.secrets(string(data)) {
			s.Text, _, _ = strings.Cut(s.Text, `"`)
			s.Text, _, _ = strings.Cut(s.Text, `\`)
			found = append(found, s)
		}
	}
	found = slices.DeleteFunc(found, func(s Secret) bool { return s.Text == "" })
	if len(found) == 0 {
		return data
	}
	slices.SortStableFunc(found, func(a, b Secret) int { return cmp.Compare(len(b.Text), len(a.Text)) }) // One may be a part of another.
	data = p.mask(data, found, 0)
	if !whole {
		data = []byte(p.replace(string(data), found))
	}
	return data
}

// maxInner is how deep JSON in strings of JSON is read.
const maxInner = 4

// inner reports whether a string is JSON itself.
func inner(s string, depth int) bool {
	t := strings.TrimSpace(s)
	return depth < maxInner && t != "" && (t[0] == '{' || t[0] == '[') && valid([]byte(t))
}

// gather writes the strings of JSON as text.
func gather(text *strings.Builder, data []byte, depth int) {
	literals(data, func(_, end int, s string) {
		switch after := bytes.TrimLeft(data[end:], " \t\r\n"); {
		case inner(s, depth):
			gather(text, []byte(s), depth+1)
		case bytes.HasPrefix(after, []byte(":")):
			text.WriteString(s + "=")
		default:
			text.WriteString(s + Between)
		}
	})
}

// mask replaces the secrets in the strings of JSON.
func (p *parser) mask(data []byte, found []Secret, depth int) []byte {
	var out []byte
	done := 0
	literals(data, func(at, end int, s string) {
		is := s
		if inner(s, depth) {
			is = string(p.mask([]byte(s), found, depth+1))
		} else {
			is = p.replace(s, found)
		}
		if is != s {
			out = append(append(out, data[done:at]...), marshal(is)...)
			done = end
		}
	})
	return append(out, data[done:]...)
}

// replace replaces the secrets in a text.
func (p *parser) replace(text string, found []Secret) string {
	for _, s := range found {
		n := strings.Count(text, s.Text)
		if n == 0 {
			continue
		}
		text = strings.ReplaceAll(text, s.Text, "[redacted: "+s.Rule+"]")
		if p.redacted == nil {
			p.redacted = map[string]int{}
		}
		p.redacted[s.Rule] += n
	}
	return text
}

// literals calls f with the strings of JSON, and where each begins and ends. In broken bytes the last one may have no
// end, and is left out.
func literals(data []byte, f func(at, end int, s string)) {
	for at := 0; ; {
		i := bytes.IndexByte(data[at:], '"')
		if i < 0 {
			return
		}
		at += i
		end := at + 1
		for end < len(data) && data[end] != '"' {
			if data[end] == '\\' {
				end++
			}
			end++
		}
		if end++; end > len(data) {
			return
		}
		var s string
		if plain := data[at+1 : end-1]; bytes.IndexByte(plain, '\\') < 0 {
			s = string(plain)
		} else if json.Unmarshal(data[at:end], &s) != nil {
			s = string(plain)
		}
		f(at, end, s)
		at = end
	}
}
