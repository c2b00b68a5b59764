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

// without returns the fields of a JSON object but for those named, as an object;
// nil if there are none. An object that can't be decoded has none.
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

// marshal writes v as JSON; < and > stay as they are.
func marshal(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(v) != nil {
		return nil // not with the values that are given to it
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

const (
	fieldLabel = "file."
	maxFields  = 24 // of a session's turnstone.MaxLabels; the others are the host's
)

// described are the objects whose fields say how a run went.
var described = []string{"info", "reward_info", "test_result", "model_stats", "metrics"}

// fieldLabels returns labels for the fields of a JSON object that are short texts,
// numbers or booleans: its own, and those of the objects that say how a run went.
func fieldLabels(raw []byte) map[string]string {
	labels := map[string]string{}
	var add func(raw []byte, prefix string, depth int)
	add = func(raw []byte, prefix string, depth int) {
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
				add(fields[name], prefix+name+".", depth+1)
			}
		}
	}
	add(raw, fieldLabel, 0)
	if len(labels) == 0 {
		return nil
	}
	return labels
}

// scalar returns a value that can be a label; "" if it can't.
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

// outside gives a conversation what its object says but for the messages.
func (c *Conversation) outside(raw []byte, messages ...string) {
	if c.Outside = without(raw, messages...); c.Outside != nil {
		c.Labels = fieldLabels(c.Outside)
	}
}

// when is a time in one of the forms that transcripts have: a text, with or without
// a time zone, or a number of seconds or milliseconds. What is none is the zero time.
type when struct{ time.Time }

// UnmarshalJSON never fails: times are beside the point of a transcript.
func (w *when) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999"} {
			if t, err := time.Parse(layout, s); err == nil {
				w.set(t)
				break
			}
		}
		return nil
	}
	if n, err := strconv.ParseFloat(string(b), 64); err == nil && n > 0 && n < 1e15 {
		if n > 1e11 { // seconds of that size are in the year 5138
			n /= 1000
		}
		w.set(time.UnixMilli(int64(n * 1000)))
	}
	return nil
}

// set takes a time that can be that of a conversation.
func (w *when) set(t time.Time) {
	if t.Year() >= 1990 && t.Before(time.Now().Add(24*time.Hour)) {
		w.Time = t.UTC()
	}
}

// first returns the first time that is known.
func first(all ...when) time.Time {
	for _, w := range all {
		if !w.IsZero() {
			return w.Time
		}
	}
	return time.Time{}
}
