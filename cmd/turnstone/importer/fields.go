package importer

import (
	"strings"

	"github.com/tidwall/gjson"

	"github.com/turnstonedb/turnstone/head"
)

// fields is a JSON object of a transcript: a line, or an element of a list.
type fields struct {
	raw    string
	names  []string
	values []gjson.Result
	inner  map[string]*fields // objects among the values that were looked into
}

// parseFields reads the fields of an object, which is valid JSON.
func parseFields(raw []byte) *fields { return fieldsOf(string(raw)) }

func fieldsOf(raw string) *fields {
	f := &fields{raw: raw, names: make([]string, 0, 16), values: make([]gjson.Result, 0, 16), inner: map[string]*fields{}}
	gjson.Parse(f.raw).ForEach(func(name, value gjson.Result) bool {
		f.names, f.values = append(f.names, name.Str), append(f.values, value)
		return true
	})
	return f
}

// get returns the first of the fields at the paths that is there and not null. A path is names with dots
// between them, as in "message.usage".
func (f *fields) get(paths ...string) gjson.Result {
	for _, path := range paths {
		name, rest, deep := strings.Cut(path, ".")
		for i := range f.names {
			if f.names[i] != name {
				continue
			}
			v := f.values[i]
			switch {
			case deep && v.IsObject(): // It is scanned once, however many of its fields are asked for.
				if f.inner[name] == nil {
					f.inner[name] = fieldsOf(v.Raw)
				}
				outer := v.Index
				if v = f.inner[name].get(rest); v.Index > 0 {
					v.Index += outer
				}
			case deep:
				v = v.Get(rest)
			}
			if v.Type != gjson.Null {
				return v
			}
		}
	}
	return gjson.Result{}
}

// has reports whether all fields are there, whatever their values.
func (f *fields) has(names ...string) bool {
next:
	for _, name := range names {
		for i := range f.names {
			if f.names[i] == name {
				continue next
			}
		}
		return false
	}
	return true
}

// text returns the first of the fields at the paths that is text or a number, or "".
func (f *fields) text(paths ...string) string {
	for _, path := range paths {
		if s := str(f.get(path)); s != "" {
			return s
		}
	}
	return ""
}

// str returns a value that is text or a number, or "".
func str(r gjson.Result) string {
	if r.Type == gjson.String || r.Type == gjson.Number {
		return r.String()
	}
	return ""
}

// time returns the first of the fields at the paths that is a time.
func (f *fields) time(paths ...string) when {
	var w when
	for _, path := range paths {
		if r := f.get(path); r.Exists() && w.IsZero() {
			_ = w.UnmarshalJSON([]byte(r.Raw)) // takes anything else for no time
		}
	}
	return w
}

// usage returns the first of the fields at the paths that is usage, as that of a model.
func (f *fields) usage(model string, paths ...string) []head.Usage {
	for _, path := range paths {
		u := usageOf(f.get(path))
		if out := u.of(model); out != nil {
			return out
		}
	}
	return nil
}

// blocks calls each for each object of the lists at the paths.
func (f *fields) blocks(each func(gjson.Result), paths ...string) {
	for _, path := range paths {
		if list := f.get(path); list.IsArray() {
			list.ForEach(func(_, v gjson.Result) bool {
				each(v)
				return true
			})
		}
	}
}
