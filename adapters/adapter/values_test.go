package adapter

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

// Values come back as they were, of the type that they had.
func TestST4_ValuesKeepTheirTypes(t *testing.T) {
	values := []any{
		nil, true, "", "é\ufffd\u2028\x00<&", `\ufffd`, `\\ufffd`, 0, -1, math.MaxInt64, math.MinInt64, 0.0, 3.0, -0.5, 1e300, math.SmallestNonzeroFloat64, 1e21, 123456789.0,
		[]any{},
		[]any(nil),
		map[string]any{},
		map[string]any(nil),
		[]any{1, 1.0, nil, []any{"a"}, map[string]any{"b": int64(1)}},
		map[string]any{"$type": "int64", "value": 1},
		map[string]any{"$type": 5},
		map[string]any{"$type": nil, "value": map[string]any{"$type": "x"}},
		int8(-1), int16(2), int32(3), int64(1<<62 + 1), uint(4), uint8(5), uint16(6), uint32(7), uint64(math.MaxUint64), float32(0.1),
		[]byte{},
		[]byte{0, 255},
		[]byte(nil), time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC), 5 * time.Second, json.Number("12345678901234567890.10"),
		[]string{"a", ""},
		[]string(nil),
		[]bool{true},
		[]int{1},
		[]int64{1 << 60},
		[]float64{1, 0.1},
		map[string]string{"a": "b"},
		map[string]bool{"a": false},
		map[string]int{"a": 1},
		map[string]int64{"a": 1 << 60},
		map[string]float64{"a": 1},
		map[string]string{},
	}
	for _, v := range values {
		for _, v := range []any{v, []any{v}, map[string]any{"k": v}, map[string]any{"$type": v}} {
			b, err := Marshal(v)
			if err != nil {
				t.Errorf("%#v: %v", v, err)
				continue
			}
			if got, err := Unmarshal(b); err != nil || !reflect.DeepEqual(got, v) {
				t.Errorf("%s: %#v, want %#v: %v", b, got, v, err)
			}
			var plain any
			if err := json.Unmarshal(b, &plain); err != nil || !Untyped(plain) && !reflect.DeepEqual(plain, v) {
				t.Errorf("%s: %#v, want %#v: %v", b, plain, v, err)
			}
		}
	}
	// What others have written is read as JSON.
	for text, want := range map[string]any{`12345678901234567890`: 12345678901234567890.0, `{"$type":1,"value":2}`: map[string]any{"$type": 1, "value": 2}, `1E2`: 100.0} {
		if got, err := Unmarshal([]byte(text)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %#v, %v", text, got, err)
		}
	}
}

// What would come back as another value is refused, wherever it is.
func TestST5_WhatJSONWouldChangeIsRefused(t *testing.T) {
	type own struct{ A int }
	for _, v := range []any{own{1}, &own{}, new(int), []own{}, math.NaN(), math.Inf(1), "\xff", make(chan int), map[int]string{}, []string{"\xff"}, time.Month(1), json.Number("x"), [2]int{}, complex(1, 1), []error{}, []own{}, map[string]own{}, [][]error{}, []map[string]any{{"a": own{}}}} {
		for _, v := range []any{v, []any{1, v}, map[string]any{"k": v}} {
			if b, err := Marshal(v); err == nil {
				t.Errorf("%#v: %s", v, b)
			}
		}
	}
	cycle := map[string]any{}
	cycle["self"] = []any{cycle}
	if _, err := Marshal(cycle); err == nil || !strings.Contains(err.Error(), "itself") {
		t.Errorf("%.100s", err)
	}
	if _, err := Marshal(map[string]any{"a": []any{0, own{}}}); err == nil || !strings.Contains(err.Error(), `"a": item 1: a value of type adapter.own`) {
		t.Error(err)
	}
	if _, err := Marshal(map[string]any{"\xff": 1}); err == nil {
		t.Error("no error")
	}
	for _, text := range []string{`{`, `1e999`, `{"a":[1e999]}`} {
		if got, err := Unmarshal([]byte(text)); err == nil {
			t.Errorf("%s: %#v", text, got)
		}
	}
	// What others write with such names is theirs.
	for _, text := range []string{`{"$type":"own","value":1}`, `{"$type":"int8","value":300}`, `{"$type":"[]string","value":[1]}`, `{"$type":"map[string]interface {}","value":1}`, `{"$type":"interface {}","value":0}`} {
		var want any
		_ = json.Unmarshal([]byte(text), &want)
		got, err := Unmarshal([]byte(`{"a":[` + text + `]}`))
		if m, ok := got.(map[string]any); err != nil || !ok || fmt.Sprint(m["a"].([]any)[0]) != fmt.Sprint(want) {
			t.Errorf("%s: %#v, %v", text, got, err)
		}
	}
	type part struct {
		Text *string
		Raw  json.RawMessage
		Any  map[string]any
	}
	bad, good := "a\xff", "\ufffd"
	for _, v := range []any{part{Text: &bad}, part{Any: map[string]any{"\xff": 1}}, part{Any: map[string]any{"a": []any{&bad}}}, part{Raw: json.RawMessage("\"\xff\"")}} {
		if b, err := JSON(v); err == nil {
			t.Errorf("%s", b)
		}
	}
	for _, v := range []any{part{Text: &good}, part{Raw: json.RawMessage(`"\ufffd"`)}, part{Any: map[string]any{"a": json.RawMessage(`"\ufffd"`)}}} {
		if _, err := JSON(v); err != nil {
			t.Error(err)
		}
	}
	for v, ok := range map[any]bool{"a\xff": false, "\ufffd": true, `\ufffd`: true, `\\ufffd`: true, "\\\xff": false, "x": true} {
		if _, err := JSON(v); (err == nil) != ok {
			t.Errorf("%q: %v", v, err)
		}
	}
}
