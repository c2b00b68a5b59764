package wire_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// FuzzReader reads anything, and what it could read again as it is written.
func FuzzReader(f *testing.F) {
	for _, c := range []turnstone.Commit{
		{},
		{Expected: turnstone.AnyRevision, Turn: "t", Nodes: []turnstone.NewNode{{Kind: "k", Payload: []byte("text")}, {Kind: "k", Payload: []byte{0xff}, Parent: turnstone.RefNew(0)}}},
		{Checkpoint: map[string][]byte{"a": bytes.Repeat([]byte("x"), 2000), "b": nil}, Records: []turnstone.RecordChange{{Key: "k", Value: []byte{0xfe}}, {Key: "l", Action: turnstone.DeleteRecord}}},
	} {
		var b bytes.Buffer
		if err := wire.Write(&b, &wire.CommitRequest{Target: wire.Target{Session: "s"}, Commit: wire.CommitOf(&c)}); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Add([]byte("{\"session\":\"s\",\"follow\":99999999999}\n"))
	f.Add([]byte("{\"nodes\":[{\"payload\":[0,9223372036854775807]},{\"payload\":[9223372036854775807,9223372036854775807]}],\"follow\":1}\nx"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var first wire.CommitRequest
		if wire.Decode(b, &first, free) != nil {
			return
		}
		var out bytes.Buffer
		if err := wire.Write(&out, &first); err != nil {
			t.Fatal(err)
		}
		var again wire.CommitRequest
		d := wire.NewReader(iotest.OneByteReader(&out))
		if err := d.Read(&again); err != nil {
			t.Fatal(err)
		}
		if err := d.Read(&again); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if a, b := first.Commit.Public(), again.Commit.Public(); fmt.Sprint(a) != fmt.Sprint(b) {
			t.Errorf("%v\n%v", a, b)
		}
	})
}

// An error matches on the other side what it matched, has the same text, and is typed.
func TestSV5_ErrorsGoThroughAsTheyAre(t *testing.T) {
	node := graph.ID{1}
	for _, err := range []error{
		&turnstone.ConflictError{Session: "s", Expected: turnstone.AnyRevision, Revision: 3, Node: node},
		&turnstone.TurnConflictError{Session: "s", Turn: "t", Revision: 1, Alone: true},
		&turnstone.RecordConflictError{Session: "s", Key: "k", Expected: turnstone.NoRecord, Version: "v"},
		&turnstone.LimitError{Limit: "l", Where: "w", Have: 2, Max: 1},
		&turnstone.InvalidError{Where: "w", Reason: "r"},
		&damage.CorruptError{Object: "o", Err: damage.ErrHash},
		&damage.FormatError{Object: "o", Have: 9, Want: 1},
		fmt.Errorf("%w: %w", turnstone.ErrOutcomeUnknown, &turnstone.ConflictError{Session: "s"}),
		fmt.Errorf("session %q: %w", "s", turnstone.ErrSessionDeleted),
		turnstone.ErrUploadExpired, engine.ErrNoSpace, engine.ErrUnavailable, context.Canceled, context.DeadlineExceeded, io.ErrClosedPipe,
	} {
		var b bytes.Buffer
		if werr := wire.Write(&b, wire.ErrorOf(err)); werr != nil {
			t.Fatal(werr)
		}
		got := wire.ReadError(wire.Problem+"; charset=utf-8", b.Bytes())
		if got == nil || got.Error() != err.Error() {
			t.Fatalf("%v is %v", err, got)
		}
		for _, target := range []error{
			turnstone.ErrConflict, turnstone.ErrTurnConflict, turnstone.ErrRecordConflict, turnstone.ErrLimit, turnstone.ErrInvalid, damage.ErrHash, damage.ErrMissing, damage.ErrFormat, damage.ErrNewer,
			turnstone.ErrOutcomeUnknown, turnstone.ErrSessionDeleted, turnstone.ErrUploadExpired, turnstone.ErrBlobNotFound, engine.ErrNoSpace, engine.ErrUnavailable, context.Canceled, context.DeadlineExceeded,
		} {
			if errors.Is(err, target) != errors.Is(got, target) {
				t.Errorf("%v: errors.Is(…, %v) is %v", err, target, errors.Is(got, target))
			}
		}
		for _, target := range []any{
			new(*turnstone.ConflictError), new(*turnstone.TurnConflictError), new(*turnstone.RecordConflictError), new(*turnstone.LimitError), new(*turnstone.InvalidError), new(*damage.FormatError),
		} {
			other := reflect.New(reflect.TypeOf(target).Elem()).Interface()
			if errors.As(err, target) != errors.As(got, other) || !reflect.DeepEqual(target, other) {
				t.Errorf("%v: %v is %v", err, target, other)
			}
		}
		var corrupt *damage.CorruptError
		if errors.As(err, &corrupt) && (!errors.As(got, &corrupt) || corrupt.Object != "o" || corrupt.Error() != err.Error()) {
			t.Errorf("%v is %v", err, corrupt)
		}
	}
	for _, body := range []string{"", "<html>", "{}", `{"detail":"x"}`} {
		if e := wire.ReadError(wire.Problem, []byte(body)); e != nil {
			t.Errorf("%q is %v", body, e)
		}
	}
	if wire.ReadError("text/html", []byte(`{"type":"x"}`)) != nil {
		t.Error("a page is a problem")
	}
}

// A document that says that much follows it makes nobody allocate so much.
func TestSV5_WhatDoesNotComeIsNotAllocated(t *testing.T) {
	var m wire.CommitRequest
	allocated := testing.AllocsPerRun(1, func() {
		if err := wire.NewReader(strings.NewReader("{\"session\":\"s\",\"follow\":99999999999}\nabc")).Read(&m); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Error(err)
		}
	})
	if allocated > 100 {
		t.Errorf("%v allocations", allocated)
	}
}

func TestSV8_ALineHasALimit(t *testing.T) {
	line := append(append([]byte(`{"session":"`), bytes.Repeat([]byte("s"), 33<<20)...), "\"}\n"...)
	var m wire.CommitRequest
	if err := wire.Decode(line, &m, free); !errors.Is(err, wire.ErrDocument) {
		t.Error(err)
	}
	if err := wire.NewReader(bytes.NewReader(line)).Read(&m); !errors.Is(err, wire.ErrDocument) {
		t.Error(err)
	}
}

// A name in another case, or twice, is refused, wherever it is; names of labels are the caller's.
func TestSV5_NamesAreThoseOfTheSchemaAndThereOnce(t *testing.T) {
	for text, good := range map[string]bool{
		`{"session":"s","labels":{"a":"1","A":"2"},"nodes":[{"kind":"u","payload":"x"}]}`: true,
		`{"session":"s","Expected":1}`:                                false,
		`{"session":"s","expected":1,"expected":1}`:                   false,
		`{"session":"s","nodes":[{"kind":"u","Payload":"x"}]}`:        false,
		`{"session":"s","nodes":[{"kind":"u","kind":"v"}]}`:           false,
		`{"session":"s","labels":{"a":"1","a":"2"}}`:                  false,
		`{"session":"s","records":[{"key":"k","VALUE":"v"}]}`:         false,
		`{"session":"s","usage":[{"model":"m","input":1}]}`:           true,
		`{"session":"s","usage":[{"model":"m","Input":1}]}`:           false,
		`{"session":"s","nodes":[{"kind":"u","payload":"x","no":1}]}`: false,
	} {
		var m struct {
			wire.Follow
			wire.Target
			wire.Commit
		}
		if err := wire.Decode([]byte(text), &m, free); (err == nil) != good || err != nil && !errors.Is(err, wire.ErrDocument) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// free charges nothing.
func free(int64) error { return nil }
