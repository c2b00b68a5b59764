package adapter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// kept are the types that values of state may have beside those that JSON has: bool, string, float64, int, []any and
// map[string]any. Such a value is stored with the name of its type.
var kept = map[string]reflect.Type{}

func init() {
	for _, v := range []any{
		int8(0), int16(0), int32(0), int64(0), uint(0), uint8(0), uint16(0), uint32(0), uint64(0), float32(0),
		[]byte{},
		time.Time{},
		time.Duration(0), json.Number(""),
		[]string{},
		[]bool{},
		[]int{},
		[]int64{},
		[]float64{},
		map[string]string{},
		map[string]bool{},
		map[string]int{},
		map[string]int64{},
		map[string]float64{},
	} {
		t := reflect.TypeOf(v)
		kept[t.String()] = t
	}
}

// typeField and valueField are the fields of a value that is stored with its type. A map that has the first one is
// stored as if it were of another type.
const typeField, valueField = "$type", "value"

// Marshal returns a value of state as JSON from which Unmarshal returns the same one, of the same type. It refuses what
// is of a type that is not among those that are kept, and text that is not UTF-8. A number with a fraction or an exponent
// is a float64, and another one is an int.
func Marshal(v any) ([]byte, error) { return appendValue(nil, v) }

func appendValue(b []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case string:
		return appendText(b, v)
	case int:
		return strconv.AppendInt(b, int64(v), 10), nil
	case float64:
		return appendFloat(b, v)
	case []any:
		if v != nil {
			return appendItems(b, v)
		}
	case map[string]any:
		if _, taken := v[typeField]; v != nil && !taken {
			return appendMap(b, v)
		}
		if v != nil {
			b = append(b, `{"`+typeField+`":"map[string]interface {}","`+valueField+`":`...)
			b, err := appendMap(b, v)
			return append(b, '}'), err
		}
	}
	t := reflect.TypeOf(v)
	if kept[t.String()] != t && t != reflect.TypeFor[[]any]() && t != reflect.TypeFor[map[string]any]() {
		return nil, fmt.Errorf("a value of type %T is not kept by JSON: use bool, string, int, float64, []any, map[string]any, or one of the types that the adapter lists", v)
	}
	value, err := JSON(v)
	if err != nil {
		return nil, err
	}
	b = append(b, `{"`+typeField+`":"`+t.String()+`","`+valueField+`":`...)
	return append(append(b, value...), '}'), nil
}

func appendItems(b []byte, items []any) (_ []byte, err error) {
	b = append(b, '[')
	for i, item := range items {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendValue(b, item); err != nil {
			return nil, fmt.Errorf("item %d: %w", i, err)
		}
	}
	return append(b, ']'), nil
}

func appendMap(b []byte, m map[string]any) (_ []byte, err error) {
	b = append(b, '{')
	for i, k := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendText(b, k); err != nil {
			return nil, err
		}
		if b, err = appendValue(append(b, ':'), m[k]); err != nil {
			return nil, fmt.Errorf("%q: %w", k, err)
		}
	}
	return append(b, '}'), nil
}

func appendText(b []byte, text string) ([]byte, error) {
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("the text %.80q is not UTF-8", text)
	}
	quoted, err := json.Marshal(text)
	return append(b, quoted...), err
}

func appendFloat(b []byte, f float64) ([]byte, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, fmt.Errorf("JSON has no number %v", f)
	}
	text := strconv.FormatFloat(f, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return append(b, text...), nil
}

// Unmarshal returns the value that Marshal was given, or any that JSON has.
func Unmarshal(b []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return typed(v)
}

func typed(v any) (any, error) {
	switch v := v.(type) {
	case json.Number:
		if !strings.ContainsAny(v.String(), ".eE") {
			if i, err := strconv.Atoi(v.String()); err == nil {
				return i, nil
			}
		}
		return v.Float64()
	case []any:
		for i := range v {
			var err error
			if v[i], err = typed(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		if name, ok := v[typeField].(string); ok && len(v) == 2 {
			return ofType(name, v[valueField])
		}
		for k := range v {
			var err error
			if v[k], err = typed(v[k]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// ofType returns a value that was stored with the name of its type.
func ofType(name string, v any) (any, error) {
	switch {
	case name == reflect.TypeFor[[]any]().String() && v == nil:
		return []any(nil), nil
	case name == reflect.TypeFor[map[string]any]().String():
		m, ok := v.(map[string]any)
		if v != nil && !ok {
			return nil, fmt.Errorf("a value of type %s is a %T", name, v)
		}
		for k := range m {
			var err error
			if m[k], err = typed(m[k]); err != nil {
				return nil, err
			}
		}
		return m, nil
	}
	t, ok := kept[name]
	if !ok {
		return nil, fmt.Errorf("there is no type %.80q", name)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	out := reflect.New(t)
	if err := json.Unmarshal(b, out.Interface()); err != nil {
		return nil, err
	}
	return out.Elem().Interface(), nil
}

// JSON is json.Marshal, but refuses text that is not UTF-8, which that would change.
func JSON(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	// Where a text is not UTF-8, json.Marshal writes an escape that it writes for nothing else.
	for at := 0; ; {
		i := bytes.Index(b[at:], []byte(`\ufffd`))
		if i < 0 {
			return b, nil
		}
		at += i
		escaped := 0
		for at-escaped > 0 && b[at-escaped-1] == '\\' {
			escaped++
		}
		if escaped%2 == 0 {
			return nil, errors.New("a text is not UTF-8: " + strconv.Quote(string(b[max(0, at-40):at])))
		}
		at++
	}
}
