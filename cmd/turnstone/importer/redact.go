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
// counts them. Strings of JSON are read without their escape sequences; those without secrets stay byte for byte.
func (p *parser) redact(data []byte) []byte {
	if p.secrets == nil {
		return data
	}
	if valid(data) {
		return p.redactStrings(data, 0)
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	for i, l := range lines {
		if valid(l) {
			lines[i] = p.redactStrings(l, 0)
		} else { // It is torn, or was never JSON.
			lines[i] = []byte(p.redactText(string(l), 0))
		}
	}
	return bytes.Join(lines, nil)
}

// redactStrings replaces the secrets in the strings of JSON.
func (p *parser) redactStrings(data []byte, depth int) []byte {
	var out []byte
	done := 0
	for at := bytes.IndexByte(data, '"'); at >= 0; {
		end := at + 1
		for data[end] != '"' {
			if data[end] == '\\' {
				end++
			}
			end++
		}
		end++
		var text string
		if plain := data[at+1 : end-1]; bytes.IndexByte(plain, '\\') < 0 {
			text = string(plain)
		} else if json.Unmarshal(data[at:end], &text) != nil {
			text = string(plain) // can't happen: it is valid JSON
		}
		if is := p.redactText(text, depth); is != text {
			out = slices.Concat(out, data[done:at], marshal(is))
			done = end
		}
		if at = bytes.IndexByte(data[end:], '"'); at >= 0 {
			at += end
		}
	}
	return append(out, data[done:]...)
}

// shortest is how long a text is that can be a secret.
const shortest = 12

// redactText replaces the secrets in a text, which may be JSON itself, as the arguments of tools are.
func (p *parser) redactText(text string, depth int) string {
	if len(text) < shortest {
		return text
	}
	if depth < 3 && (text[0] == '{' || text[0] == '[') && valid([]byte(text)) {
		return string(p.redactStrings([]byte(text), depth+1))
	}
	found := p.secrets(text)
	slices.SortStableFunc(found, func(a, b Secret) int { return cmp.Compare(len(b.Text), len(a.Text)) }) // One may be a part of another.
	for _, s := range found {
		n := strings.Count(text, s.Text)
		if s.Text == "" || n == 0 {
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
