package tests

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// An id is 64 lower-case hex digits as text, both ways, and the zero id is empty.
func TestJ1_IDsAreText(t *testing.T) {
	digits := strings.Repeat("0123456789abcdef", 4)
	for name, id := range map[string]any{"node": new(graph.ID), "blob": new(blob.ID), "commit": new(head.CommitID)} {
		u := id.(encoding.TextUnmarshaler)
		m := id.(encoding.TextMarshaler)
		for _, text := range []string{"", digits, ""} { // and back to zero
			if err := u.UnmarshalText([]byte(text)); err != nil {
				t.Errorf("%s id %q: %v", name, text, err)
			}
			if got, err := m.MarshalText(); err != nil || string(got) != text {
				t.Errorf("%s id %q comes back as %q, %v", name, text, got, err)
			}
			if zero := reflect.ValueOf(id).Elem().IsZero(); zero != (text == "") {
				t.Errorf("%s id %q is zero: %v", name, text, zero)
			}
		}
		for _, bad := range []string{"x", digits[1:], digits + "0", strings.ToUpper(digits), " " + digits[1:], "g" + digits[1:]} {
			if err := u.UnmarshalText([]byte(bad)); err == nil {
				t.Errorf("%s id %q was accepted", name, bad)
			}
		}
	}
	for name, parse := range map[string]func(string) (fmt.Stringer, error){
		"node":   func(s string) (fmt.Stringer, error) { return turnstone.ParseNodeID(s) },
		"blob":   func(s string) (fmt.Stringer, error) { return turnstone.ParseBlobID(s) },
		"commit": func(s string) (fmt.Stringer, error) { return turnstone.ParseCommitID(s) },
	} {
		if id, err := parse(digits); err != nil || id.String() != digits {
			t.Errorf("%s id: %v, %v", name, id, err)
		}
		for _, bad := range []string{"", "x", strings.ToUpper(digits), digits + "00"} {
			var invalid *turnstone.InvalidError
			if _, err := parse(bad); !errors.As(err, &invalid) || invalid.Where != name+" id" {
				t.Errorf("%s id %q: %v", name, bad, err)
			}
		}
	}
}

// States, results, nodes and infos are readable JSON, and come back as they were.
func TestJ2_WhatReadsReturnGoesThroughJSON(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	a, err := s.PutAttachment(ctx, strings.NewReader("x"), -1, "text/plain", "x")
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Commit(ctx, turnstone.Commit{
		Nodes:      []turnstone.NewNode{{Kind: "k", Payload: []byte("1"), Attachments: []blob.Attachment{a}}, {Kind: "k", Payload: []byte("2")}},
		Checkpoint: map[string][]byte{"p": []byte("part")},
	})
	if err != nil {
		t.Fatal(err)
	}
	state, err := s.Load(ctx, turnstone.Scope{})
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []any{r, *state, state.Nodes[0], info, a} {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		back := reflect.New(reflect.TypeOf(v))
		if err := json.Unmarshal(text, back.Interface()); err != nil || !reflect.DeepEqual(back.Elem().Interface(), v) {
			t.Errorf("%s comes back as %+v, %v, and was %+v", text, back.Elem(), err, v)
		}
		if id := r.Leaf.String(); v != any(a) && reflect.TypeOf(v) != reflect.TypeFor[turnstone.Node]() && !strings.Contains(string(text), id) {
			t.Errorf("%s does not have the leaf %s", text, id)
		}
	}
}
