package adapter

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// kept has the types that a value of state may have, by their names. A value may also be a slice of these types, or a map
// of them by strings.
var kept = map[string]reflect.Type{}

func init() {
	for _, v := range []any{
		false, "", 0, int8(0), int16(0), int32(0), int64(0), uint(0), uint8(0), uint16(0), uint32(0), uint64(0), float32(0), 0.0,
		time.Time{},
		time.Duration(0), json.Number(""),
		json.RawMessage{},
	} {
		t := reflect.TypeOf(v)
		kept[t.String()] = t
	}
	kept[anyType.String()] = anyType
}

var anyType = reflect.TypeFor[any]()

// typeOf returns the type of a name, or nil if no value of it is kept.
func typeOf(name string) reflect.Type {
	if t := kept[name]; t != nil {
		return t
	}
	if of, ok := strings.CutPrefix(name, "[]"); ok {
		if t := typeOf(of); t != nil {
			return reflect.SliceOf(t)
		}
	} else if of, ok := strings.CutPrefix(name, "map[string]"); ok {
		if t := typeOf(of); t != nil {
			return reflect.MapOf(reflect.TypeFor[string](), t)
		}
	}
	return nil
}

// hasAny reports whether a type is any, or has any as the type of its elements, at whatever depth.
func hasAny(t reflect.Type) bool {
	for t != anyType {
		if _, whole := kept[t.String()]; whole || t.Kind() != reflect.Slice && t.Kind() != reflect.Map {
			return false
		}
		t = t.Elem()
	}
	return true
}

// typeField and valueField are the fields of the JSON object that stands for a value whose type JSON does not show. A map
// that has the key typeField itself is stored in such an object as well.
const typeField, valueField = "$type", "value"

// maxDepth is how deep a value may be.
const maxDepth = 1000

// Marshal returns a value of state as JSON. Unmarshal returns the same value from it, of the same type. A float64 is
// written with a fraction or an exponent, and an int without. Marshal refuses types that are not kept, and text that is
// not UTF-8.
func Marshal(v any) ([]byte, error) { return appendValue(nil, v, 0) }

func appendValue(b []byte, v any, depth int) ([]byte, error) {
	if depth++; depth > maxDepth {
		return nil, fmt.Errorf("the value is deeper than %d levels, or has itself as a part", maxDepth)
	}
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
			return appendItems(b, reflect.ValueOf(v), depth)
		}
	case map[string]any:
		if _, taken := v[typeField]; v != nil && !taken {
			return appendMap(b, reflect.ValueOf(v), depth)
		}
	}
	of := reflect.ValueOf(v)
	t := of.Type()
	if typeOf(t.String()) != t {
		return nil, fmt.Errorf("a value of type %T is not kept by JSON: use bool, string, int, float64, []any, map[string]any, or one of the types that the adapter lists", v)
	}
	b = append(b, `{"`+typeField+`":"`+t.String()+`","`+valueField+`":`...)
	var err error
	switch {
	case !hasAny(t):
		var value []byte
		value, err = JSON(v)
		b = append(b, value...)
	case of.IsNil():
		b = append(b, "null"...)
	case t.Kind() == reflect.Slice:
		b, err = appendItems(b, of, depth)
	default:
		b, err = appendMap(b, of, depth)
	}
	return append(b, '}'), err
}

func appendItems(b []byte, items reflect.Value, depth int) (_ []byte, err error) {
	b = append(b, '[')
	for i := range items.Len() {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendValue(b, items.Index(i).Interface(), depth); err != nil {
			return nil, fmt.Errorf("item %d: %w", i, err)
		}
	}
	return append(b, ']'), nil
}

func appendMap(b []byte, m reflect.Value, depth int) (_ []byte, err error) {
	b = append(b, '{')
	names := make([]string, 0, m.Len())
	for _, k := range m.MapKeys() {
		names = append(names, k.String())
	}
	slices.Sort(names)
	for i, k := range names {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendText(b, k); err != nil {
			return nil, err
		}
		if b, err = appendValue(append(b, ':'), m.MapIndex(reflect.ValueOf(k)).Interface(), depth); err != nil {
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
		return v, eachTyped(v, nil)
	case map[string]any:
		if name, ok := v[typeField].(string); ok && len(v) == 2 {
			if value, found := v[valueField]; found {
				if of, err := ofType(name, value); err == nil {
					return of, nil
				} // Somebody else has written this map, and $type means something else there.
			}
		}
		return v, eachTyped(nil, v)
	}
	return v, nil
}

// eachTyped replaces the values of a list, or of a map.
func eachTyped(list []any, m map[string]any) (err error) {
	for i := range list {
		if list[i], err = typed(list[i]); err != nil {
			return err
		}
	}
	for k := range m {
		if m[k], err = typed(m[k]); err != nil {
			return err
		}
	}
	return nil
}

// Untyped reports whether Unmarshal may return another value than v for the JSON from which json.Unmarshal has made v.
func Untyped(v any) bool {
	switch v := v.(type) {
	case float64:
		return true
	case []any:
		return slices.ContainsFunc(v, Untyped)
	case map[string]any:
		for k, value := range v {
			if k == typeField || Untyped(value) {
				return true
			}
		}
	}
	return false
}

// ofType returns a value that was stored with the name of its type.
func ofType(name string, v any) (any, error) {
	t := typeOf(name)
	if t == nil || t == anyType {
		return nil, fmt.Errorf("there is no type %.80q", name)
	}
	out := reflect.New(t).Elem()
	if !hasAny(t) {
		b, err := json.Marshal(v)
		if err == nil {
			err = json.Unmarshal(b, out.Addr().Interface())
		}
		return out.Interface(), err
	}
	list, isList := v.([]any)
	m, isMap := v.(map[string]any)
	switch {
	case v == nil:
		return out.Interface(), nil
	case t.Kind() == reflect.Slice && isList:
		out.Set(reflect.MakeSlice(t, 0, len(list)))
	case t.Kind() == reflect.Map && isMap:
		out.Set(reflect.MakeMapWithSize(t, len(m)))
	default:
		return nil, fmt.Errorf("a value of type %s is a %T", name, v)
	}
	if err := eachTyped(list, m); err != nil {
		return nil, err
	}
	for _, item := range list {
		of, err := assignable(item, t.Elem())
		if err != nil {
			return nil, err
		}
		out = reflect.Append(out, of)
	}
	for k, item := range m {
		of, err := assignable(item, t.Elem())
		if err != nil {
			return nil, err
		}
		out.SetMapIndex(reflect.ValueOf(k), of)
	}
	return out.Interface(), nil
}

func assignable(v any, t reflect.Type) (reflect.Value, error) {
	of := reflect.ValueOf(v)
	if !of.IsValid() && t == anyType {
		return reflect.Zero(t), nil
	}
	if !of.IsValid() || !of.Type().AssignableTo(t) {
		return of, fmt.Errorf("a %T is no %s", v, t)
	}
	return of, nil
}

// JSON is json.Marshal, but refuses text that is not UTF-8, which that would change.
func JSON(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	// json.Marshal writes \ufffd for bytes that are not UTF-8. A json.RawMessage of the caller may have the same escape.
	if !utf8.Valid(b) || bytes.Contains(b, []byte(`\ufffd`)) {
		if err := checkTexts(reflect.ValueOf(v), 0); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// checkTexts returns an error if a text within a value is not UTF-8.
func checkTexts(v reflect.Value, depth int) error {
	if depth++; depth > maxDepth || !v.IsValid() {
		return nil // json.Marshal has refused what has no end.
	}
	switch v.Kind() {
	case reflect.String:
		if !utf8.ValidString(v.String()) {
			return fmt.Errorf("the text %.80q is not UTF-8", v.String())
		}
	case reflect.Pointer, reflect.Interface:
		return checkTexts(v.Elem(), depth)
	case reflect.Slice, reflect.Array:
		if v.Type() == reflect.TypeFor[json.RawMessage]() && !utf8.Valid(v.Bytes()) {
			return errors.New("JSON that is not UTF-8")
		}
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return nil
		}
		for i := range v.Len() {
			if err := checkTexts(v.Index(i), depth); err != nil {
				return err
			}
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			if err := cmp.Or(checkTexts(k, depth), checkTexts(v.MapIndex(k), depth)); err != nil {
				return err
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if err := checkTexts(v.Field(i), depth); err != nil {
				return err
			}
		}
	}
	return nil
}
