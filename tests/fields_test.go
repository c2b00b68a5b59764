package tests

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

func fullCommit() (c turnstone.Commit) {
	testkit.Fill(&c, 0, turnstone.RefNew(0), turnstone.SetRecord, turnstone.RecordVersion(strings.Repeat("ab", 16)))
	c.Nodes[0].Parent = turnstone.RefNone()
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
