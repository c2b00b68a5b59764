package importer

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone"
)

// without returns a JSON object without the named fields. It returns nil if no field is
// left or raw is not an object.
func without(raw []byte, names ...string) []byte {
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil {
		return nil
	}
	for _, name := range names {
		delete(fields, name)
	}
	if len(fields) == 0 {
		return nil
	}
	return marshal(fields)
}

// marshal returns v as JSON. It does not escape < and >.
func marshal(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(v) != nil {
		return nil // can't happen: v consists of JSON that was parsed
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

const (
	fieldLabel = ".file." // prefix of labels that come from fields of a file
	maxFields  = 24       // number of such labels; the rest of turnstone.MaxLabels is left to hosts
)

// described are the objects whose fields say how a run went.
var described = []string{"info", "reward_info", "test_result", "model_stats", "metrics"}

// fieldLabels returns labels for the fields of a JSON object that are short strings,
// numbers or booleans, and for such fields of the objects named in described. It returns
// nil if there are none.
func fieldLabels(raw []byte) map[string]string {
	labels := map[string]string{}
	addLabels(labels, raw, fieldLabel, 0)
	if len(labels) == 0 {
		return nil
	}
	return labels
}

// addLabels adds the labels for an object. Their keys begin with prefix.
func addLabels(labels map[string]string, raw []byte, prefix string, depth int) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		key := prefix + name
		if value := scalar(fields[name]); value != "" && len(labels) < maxFields && len(key) <= turnstone.MaxLabel {
			labels[key] = value
		}
	}
	for _, name := range described {
		if fields[name] != nil && depth < 3 {
			addLabels(labels, fields[name], prefix+name+".", depth+1)
		}
	}
}

// scalar returns a value as a label, or "" if it can't be one.
func scalar(raw json.RawMessage) string {
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return ""
	}
	out := ""
	switch v := v.(type) {
	case string:
		out = v
	case bool:
		out = strconv.FormatBool(v)
	case json.Number:
		out = v.String()
	}
	if len(out) > turnstone.MaxLabel || !utf8.ValidString(out) {
		return ""
	}
	return out
}

// outside sets Outside to the fields of the conversation's object without the messages,
// and Labels accordingly.
func (c *Conversation) outside(raw []byte, messages ...string) {
	if c.Outside = without(raw, messages...); c.Outside != nil {
		c.Labels = fieldLabels(c.Outside)
	}
}

// when is a time in one of the forms that transcripts have: a string with or without a
// time zone, or a number of seconds or milliseconds.
type when struct{ time.Time }

// timeLayouts are the forms of times as strings.
var timeLayouts = []string{
	time.RFC3339Nano,
	"2006-01-02T15:04:05.999999999",
	"2006-01-02 15:04:05.999999999Z07:00",
	"2006-01-02 15:04:05.999999999",
}

// UnmarshalJSON takes anything else for the zero time and never fails, because times are
// not essential to a transcript.
func (w *when) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		w.parse(s)
		return nil
	}
	if n, err := strconv.ParseFloat(string(b), 64); err == nil && n > 0 && n < 1e15 {
		if n > 1e11 { // as seconds, this would be the year 5138
			n /= 1000
		}
		w.set(time.UnixMilli(int64(n * 1000)))
	}
	return nil
}

func (w *when) parse(s string) {
	for _, layout := range timeLayouts {
		if t, err := time.Parse(layout, s); err == nil {
			w.set(t)
			return
		}
	}
}

// set sets w to t if a conversation can have that time: not long ago, and not in the
// future.
func (w *when) set(t time.Time) {
	if t.Year() >= 1990 && t.Before(time.Now().Add(24*time.Hour)) {
		w.Time = t.UTC()
	}
}

// firstTime returns the first time that is known.
func firstTime(all ...when) time.Time {
	for _, w := range all {
		if !w.IsZero() {
			return w.Time
		}
	}
	return time.Time{}
}
