package search

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone"
)

// A QueryError says what is wrong with a query.
type QueryError struct {
	Query  string
	Part   string // that can't be used
	Reason string
}

func (e *QueryError) Error() string {
	return fmt.Sprintf("search: the query %q: %q: %s", e.Query, e.Part, e.Reason)
}

// Is reports whether target is turnstone.ErrInvalid.
func (e *QueryError) Is(target error) bool { return target == turnstone.ErrInvalid }

// A Query says what to find. All of its parts must be true of a node.
type Query struct {
	terms    []term
	patterns []*regexp.Regexp
	fields   map[string][]string // by their names; one of the values must be there
	since    time.Time
	until    time.Time
}

// A term is words that stand together.
type term struct {
	words  []string
	prefix bool // the last one is only the beginning of a word
	not    bool // they must not be there
}

// fields are the names of the fields that a query may have, beside since and until.
var fields = []string{"kind", "session", "group", "project", "model", "agent", "label"}

// maxParts is how many parts a query has at most.
const maxParts = 100

// minPrefix is how many characters a prefix has at least.
const minPrefix = 2

// Parse reads a query. Its parts stand between spaces:
//
//	word           a word, in small or capital letters, with or without accents
//	"two words"    words that stand together, in this order
//	pre*           words that begin so; at least 2 characters
//	-word          not this word; also before a phrase or a prefix
//	/regexp/       a regular expression (RE2) that the text matches
//	kind:tool      the kind of a node; also session:ID, group:G (and the groups below it), project:P (a part of the
//	               directory), model:M, agent:A, label:NAME=VALUE
//	since:2026-11  committed then or later: a date, a time (RFC 3339), or a duration before now, such as 36h
//	until:2026-12  committed before then
//
// If a field is there more than once, a node must have one of its values. A QueryError names the part that can't be
// used.
func Parse(text string, now time.Time) (*Query, error) {
	q := &Query{fields: map[string][]string{}}
	parts := 0
	for rest := strings.TrimSpace(text); rest != ""; rest = strings.TrimSpace(rest) {
		part, after, err := cut(rest)
		if err == "" {
			err = q.add(part, now)
		}
		if parts++; err == "" && parts > maxParts {
			err = fmt.Sprintf("a query has at most %d parts", maxParts)
		}
		if err != "" {
			return nil, &QueryError{text, part, err}
		}
		rest = after
	}
	if len(q.terms) == 0 && len(q.patterns) == 0 && len(q.fields) == 0 && q.since.IsZero() && q.until.IsZero() {
		return nil, &QueryError{text, "", "it asks for nothing"}
	}
	return q, nil
}

// cut returns the first part of a query, and the rest.
func cut(text string) (part, rest, problem string) {
	begin := 0
	if strings.HasPrefix(text, "-") {
		begin = 1
	}
	if i := strings.IndexAny(text, `:" `); i > 0 && text[i] == ':' {
		begin = i + 1
	}
	if begin < len(text) && (text[begin] == '"' || text[begin] == '/' && begin == 0) {
		mark := text[begin]
		for i := begin + 1; i < len(text); i++ {
			switch text[i] {
			case '\\':
				if mark == '/' {
					i++
				}
			case mark:
				return text[:i+1], text[i+1:], ""
			}
		}
		return text, "", fmt.Sprintf("the second %c is missing", mark)
	}
	if i := strings.IndexFunc(text, unicode.IsSpace); i > 0 {
		return text[:i], text[i:], ""
	}
	return text, "", ""
}

// add adds a part to a query, or says what is wrong with it.
func (q *Query) add(part string, now time.Time) (problem string) {
	if strings.HasPrefix(part, "/") {
		p, err := regexp.Compile(strings.ReplaceAll(part[1:len(part)-1], `\/`, "/"))
		if err != nil {
			return err.Error()
		}
		q.patterns = append(q.patterns, p)
		return ""
	}
	if name, value, ok := strings.Cut(part, ":"); ok && !strings.ContainsAny(name, `"-`) {
		return q.field(name, strings.Trim(value, `"`), now)
	}
	t := term{}
	part, t.not = strings.CutPrefix(part, "-")
	if !strings.HasPrefix(part, `"`) {
		part, t.prefix = strings.CutSuffix(part, "*")
	}
	words(part, func(w word) bool {
		t.words = append(t.words, w.text)
		return true
	})
	switch {
	case len(t.words) == 0:
		return "it has no letter and no digit"
	case t.prefix && utf8.RuneCountInString(part) < minPrefix:
		return fmt.Sprintf("a prefix has at least %d characters", minPrefix)
	}
	q.terms = append(q.terms, t)
	return ""
}

func (q *Query) field(name, value string, now time.Time) (problem string) {
	switch {
	case value == "":
		return "it has no value"
	case name == "since" || name == "until":
		at, err := moment(value, now)
		if err != nil {
			return err.Error()
		}
		if name == "since" {
			q.since = at
		} else {
			q.until = at
		}
		return ""
	case !slices.Contains(fields, name):
		return fmt.Sprintf("there is no field %s: want one of %s, since, until; text with a colon stands between quotes", name, strings.Join(fields, ", "))
	case name == "label" && !strings.Contains(value, "="):
		return "a label is NAME=VALUE"
	}
	q.fields[name] = append(q.fields[name], value)
	return ""
}

// moment reads a date, a time, or a duration before now.
func moment(text string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02", "2006-01", "2006"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("it is no date, no time (RFC 3339), and no duration")
}

// candidates returns the query for FTS5 that finds all nodes that may match, in the given sessions if there are any. It
// returns "" if every node may match.
func (q *Query) candidates(sessions []int64) string {
	var all, not []string
	for _, t := range q.terms {
		phrase := `"` + strings.Join(t.words, " ") + `"`
		if t.prefix {
			phrase += " *"
		}
		if t.not {
			not = append(not, phrase)
		} else {
			all = append(all, phrase)
		}
	}
	if kinds := q.fields["kind"]; len(kinds) > 0 {
		all = append(all, "("+strings.Join(tokens(kinds, kindToken), " OR ")+")")
	}
	if len(sessions) > 0 {
		all = append(all, "("+strings.Join(tokens(sessions, sessionToken), " OR ")+")")
	}
	if len(all) == 0 {
		return ""
	}
	out := strings.Join(all, " AND ")
	if len(not) > 0 {
		out = "(" + out + ") NOT (" + strings.Join(not, " OR ") + ")"
	}
	return out
}

func tokens[V any](values []V, of func(V) string) (out []string) {
	for _, v := range values {
		out = append(out, `"`+of(v)+`"`)
	}
	return out
}

// A match says where a text has what a query asks for, and how well it matches.
type match struct {
	spans  [][2]int // where it is, in order
	score  float64
	length int // in words
}

// match reports whether a text is as the query says.
func (q *Query) match(text string) (m match, ok bool) {
	counts := make([]int, len(q.terms))
	var last []word // as many as the longest term has
	longest := 1
	for _, t := range q.terms {
		longest = max(longest, len(t.words))
	}
	words(text, func(w word) bool {
		m.length++
		if last = append(last, w); len(last) > longest {
			last = last[1:]
		}
		for i := range q.terms {
			t := &q.terms[i]
			if !t.ends(last) {
				continue
			}
			counts[i]++
			if !t.not && len(m.spans) < maxSpans {
				m.spans = append(m.spans, [2]int{last[len(last)-len(t.words)].from, w.to})
			}
		}
		return true
	})
	for i, t := range q.terms {
		if (counts[i] > 0) == t.not {
			return m, false
		}
		if !t.not {
			m.score += saturated(counts[i], m.length)
		}
	}
	for _, p := range q.patterns {
		at := p.FindAllStringIndex(text, maxSpans)
		if len(at) == 0 {
			return m, false
		}
		m.score += saturated(len(at), m.length)
		for _, span := range at {
			m.spans = append(m.spans, [2]int{span[0], span[1]})
		}
	}
	slices.SortFunc(m.spans, func(a, b [2]int) int { return a[0] - b[0] })
	return m, true
}

// maxSpans is how many places of a text are noted.
const maxSpans = 20

// ends reports whether the term stands at the end of some words.
func (t *term) ends(last []word) bool {
	if len(last) < len(t.words) {
		return false
	}
	last = last[len(last)-len(t.words):]
	for i, w := range t.words {
		if t.prefix && i == len(t.words)-1 {
			if !strings.HasPrefix(last[i].text, w) {
				return false
			}
		} else if last[i].text != w {
			return false
		}
	}
	return true
}

// saturated is the weight of a term in a text, as Okapi BM25 has it with k = 1.2 and b = 0.75 (Robertson and Zaragoza,
// "The Probabilistic Relevance Framework", 2009): the more often it is there the better, but less and less so.
func saturated(count, length int) float64 {
	const k, b, usual = 1.2, 0.75, 100
	f := float64(count)
	return f * (k + 1) / (f + k*(1-b+b*float64(length)/usual))
}
