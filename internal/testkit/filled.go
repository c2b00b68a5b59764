package testkit

import (
	"encoding/json"
	"fmt"
	"reflect"
	"time"
)

// Fill sets every exported field of a struct, and of what it has, to a value that is not zero. n begins their
// numbers: values of two calls differ if n does by 1000. Fields of the types in own get those values. A type that Set
// knows no value for is a panic.
func Fill[T any](v *T, n int, own ...any) {
	f := filler{n: n, own: map[reflect.Type]any{}}
	for _, o := range own {
		f.own[reflect.TypeOf(o)] = o
	}
	f.fill(reflect.ValueOf(v).Elem(), reflect.TypeFor[T]().String())
}

type filler struct {
	n   int
	own map[reflect.Type]any
}

func (f *filler) fill(v reflect.Value, where string) {
	if own, ok := f.own[v.Type()]; ok {
		v.Set(reflect.ValueOf(own))
		return
	}
	f.n++
	if v.Type() == reflect.TypeFor[json.RawMessage]() {
		v.SetBytes(fmt.Appendf(nil, `{"<key>":[%d]}`, f.n))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(f.n))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(1 + f.n%250))
	case reflect.String:
		v.SetString(fmt.Sprint("text ", f.n))
	case reflect.Array:
		for i := range v.Len() {
			f.fill(v.Index(i), where)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		f.fill(v.Index(0), where)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		key.SetString("key")
		f.fill(value, where)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem(), where)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(int64(f.n), 5).UTC()))
			return
		}
		for i := range v.NumField() {
			t := v.Type().Field(i)
			if !t.IsExported() {
				panic(fmt.Sprintf("filled: %s.%s of type %v can't be set: give a value of %v", where, t.Name, t.Type, v.Type()))
			}
			f.fill(v.Field(i), where+"."+t.Name)
		}
	default:
		panic(fmt.Sprintf("filled: there is no value for %s of type %v", where, v.Type()))
	}
}
