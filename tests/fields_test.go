package tests

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

func fullCommit() (c turnstone.Commit) {
	testkit.Fill(&c, 0, turnstone.RefNew(0), turnstone.SetRecord, turnstone.RecordVersion(strings.Repeat("ab", 16)))
	c.Nodes[0].Parent = turnstone.RefNone()
	c.Stored = map[string]blob.ID{"another part": blob.Sum(nil)} // A part is set once.
	return c
}

// A validator is given all that a commit has, and a copy: what it does to that has no effect.
func TestC12_AValidatorIsGivenEveryFieldAndACopy(t *testing.T) {
	want, own := fullCommit(), fullCommit()
	asked := false
	st := openStore(t, memory.New(), &turnstone.Options{Validator: func(_ context.Context, _ string, c *turnstone.Commit) error {
		if asked = true; !reflect.DeepEqual(*c, want) {
			t.Errorf("%+v\nwant\n%+v", *c, want)
		}
		clobber(reflect.ValueOf(c).Elem())
		return errors.New("refused")
	}})
	s := create(t, st, turnstone.Request{ID: "a"})
	if _, err := s.Commit(ctx, own); !errors.Is(err, turnstone.ErrRejected) || !asked {
		t.Errorf("asked: %v, %v", asked, err)
	}
	if !reflect.DeepEqual(own, want) {
		t.Errorf("the validator has changed the caller's commit: %+v", own)
	}
}

// Each text of a request has a limit and is UTF-8, whatever field has it: one that was stored without would make every
// list fail that comes upon it.
func TestC10_EveryTextIsLimited(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	request := turnstone.Request{ID: "a"}
	testkit.Fill(&request.Metadata, 0)
	everyText(t, "Request", request, func(r turnstone.Request) error {
		_, _, err := st.Create(ctx, r)
		return err
	})
	everyText(t, "Metadata", request.Metadata, func(m head.Metadata) error { return s.SaveMetadata(ctx, m) })
	everyText(t, "Commit", fullCommit(), func(c turnstone.Commit) error { return c.Check() })
}

// everyText calls f with full once for each of its texts, which is no UTF-8 or too long then.
func everyText[T any](t *testing.T, name string, full T, f func(T) error) {
	t.Helper()
	texts := 0
	for n := 0; ; n++ {
		for _, bad := range []string{"\xff", strings.Repeat("a", 2<<20)} {
			v, left := full, n
			field := setText(reflect.ValueOf(&v).Elem(), name, bad, &left)
			if field == "" {
				if texts < 5 {
					t.Errorf("%s has %d texts", name, texts)
				}
				return
			}
			texts++
			if err := f(v); !errors.Is(err, turnstone.ErrInvalid) && !errors.Is(err, turnstone.ErrLimit) {
				t.Errorf("%s of %d bytes: %v", field, len(bad), err)
			}
		}
	}
}

// setText sets the text that comes after left others, and returns its name, or "" if there is none. What v refers to is
// copied before.
func setText(v reflect.Value, name, text string, left *int) string {
	switch v.Kind() {
	case reflect.String:
		if *left--; *left == -1 {
			v.SetString(text)
			return name
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				if field := setText(v.Field(i), name+"."+v.Type().Field(i).Name, text, left); field != "" {
					return field
				}
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 || v.Len() == 0 {
			return ""
		}
		own := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(own, v)
		v.Set(own)
		return setText(v.Index(0), name, text, left)
	case reflect.Map:
		for _, key := range v.MapKeys() {
			value := v.MapIndex(key)
			own := reflect.MakeMap(v.Type())
			if *left--; *left == -1 {
				own.SetMapIndex(reflect.ValueOf(text).Convert(key.Type()), value)
				v.Set(own)
				return name + " (key)"
			}
			if value.Kind() != reflect.String {
				continue
			}
			if *left--; *left == -1 {
				own.SetMapIndex(key, reflect.ValueOf(text).Convert(value.Type()))
				v.Set(own)
				return name + " (value)"
			}
		}
	}
	return ""
}

// clobber sets everything that a value refers to to zero.
func clobber(v reflect.Value) {
	switch v.Kind() {
	case reflect.Slice:
		for i := range v.Len() {
			clobber(v.Index(i))
			v.Index(i).SetZero()
		}
	case reflect.Map:
		v.Clear()
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				clobber(v.Field(i))
			}
		}
	}
}

func TestRC5_RecordsOnlyRefusesEveryOtherField(t *testing.T) {
	_, st := onMemory(t, nil)
	s := create(t, st, turnstone.Request{ID: "a"})
	full := reflect.ValueOf(fullCommit())
	for i := range full.NumField() {
		name := full.Type().Field(i).Name
		in := turnstone.SessionCommit{Session: s, RecordsOnly: true}
		in.Records = []turnstone.RecordChange{{Key: "k", Value: []byte("v")}}
		if name == "Records" {
			continue
		}
		reflect.ValueOf(&in.Commit).Elem().Field(i).Set(full.Field(i))
		if _, err := st.CommitAll(ctx, in); !errors.Is(err, turnstone.ErrInvalid) {
			t.Errorf("with %s: %v", name, err)
		}
	}
}
