package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
)

// This file refuses what encoding/json would take for something else: a name that an object has twice, of which it
// would use the last one, and one in another case than the field's.

var (
	unmarshaler = reflect.TypeFor[json.Unmarshaler]()
	fieldsOf    sync.Map // of reflect.Type: map[string]reflect.Type
)

// checkNames checks the names in a line for a message of type t.
func checkNames(line []byte, t reflect.Type) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	return checkValue(d, t)
}

// checkValue checks the next value, which is for type t, or for one that reads the value itself if t is nil.
func checkValue(d *json.Decoder, t reflect.Type) error {
	t = plain(t)
	token, err := d.Token()
	if err != nil {
		return err
	}
	switch token {
	case json.Delim('['):
		for d.More() {
			if err := checkValue(d, elementOf(t, reflect.Slice, reflect.Array)); err != nil {
				return err
			}
		}
		_, err = d.Token()
	case json.Delim('{'):
		err = checkObject(d, t)
	}
	return err
}

// checkObject checks the rest of an object.
func checkObject(d *json.Decoder, t reflect.Type) error {
	seen := map[string]bool{}
	var fields map[string]reflect.Type
	if t != nil && t.Kind() == reflect.Struct {
		fields = fieldsBy(t)
	}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return err
		}
		name, _ := token.(string)
		if seen[name] {
			return fmt.Errorf("the field %.100q is there twice", name)
		}
		seen[name] = true
		of := elementOf(t, reflect.Map)
		if fields != nil {
			var known bool
			if of, known = fields[name]; !known {
				return fmt.Errorf("unknown field %.100q", name)
			}
		}
		if err := checkValue(d, of); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

// plain returns what a pointer is to, and nil for a type that reads its value itself.
func plain(t reflect.Type) reflect.Type {
	for t != nil {
		switch {
		case t.Implements(unmarshaler) || reflect.PointerTo(t).Implements(unmarshaler):
			return nil
		case t.Kind() != reflect.Pointer:
			return t
		}
		t = t.Elem()
	}
	return nil
}

// elementOf returns the type of the elements of t, if t is of one of the kinds.
func elementOf(t reflect.Type, kinds ...reflect.Kind) reflect.Type {
	if t != nil {
		for _, k := range kinds {
			if t.Kind() == k {
				return t.Elem()
			}
		}
	}
	return nil
}

// fieldsBy returns the types of the fields of a struct, by their names in JSON.
func fieldsBy(t reflect.Type) map[string]reflect.Type {
	if known, ok := fieldsOf.Load(t); ok {
		return known.(map[string]reflect.Type)
	}
	out := map[string]reflect.Type{}
	depth := map[string]int{} // Of fields of one name, the one that is embedded least deeply is meant.
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() || f.Anonymous && name == "" && plain(f.Type) != nil && plain(f.Type).Kind() == reflect.Struct {
			continue
		}
		if name == "" {
			name = f.Name
		}
		if at, known := depth[name]; !known || len(f.Index) < at {
			out[name], depth[name] = f.Type, len(f.Index)
		}
	}
	fieldsOf.Store(t, out)
	return out
}
