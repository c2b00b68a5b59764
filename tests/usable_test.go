package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/transcript"
)

// returned calls f with args and returns the error that it gives, by itself or in a
// sequence, and what it panics with.
func returned(f reflect.Value, args []reflect.Value) (has bool, panicked any, err error) {
	defer func() { panicked = recover() }()
	out := f.Call(args)
	last := out[len(out)-1]
	if last.Kind() == reflect.Func && last.Type().CanSeq2() {
		has = true
		for _, v := range last.Seq2() {
			err, _ = v.Interface().(error)
		}
		return has, nil, err
	}
	if last.Type() == reflect.TypeFor[error]() {
		has = true
		err, _ = last.Interface().(error)
	}
	return has, nil, err
}

// No exported method or function panics for a nil or zero receiver, or for a nil
// context or other nil argument.
func TestI1_NothingNilPanics(t *testing.T) {
	contexts := reflect.TypeFor[context.Context]()
	// arguments are zero values, with a context or without one.
	arguments := func(f reflect.Type, c bool, ends context.Context) (args []reflect.Value, takes bool) {
		n := f.NumIn()
		if f.IsVariadic() {
			n--
		}
		for i := range n {
			if f.In(i) == contexts {
				takes = true
				if c {
					args = append(args, reflect.ValueOf(ends))
					continue
				}
			}
			args = append(args, reflect.Zero(f.In(i)))
		}
		return args, takes
	}
	check := func(name string, f reflect.Value, c, refused bool) {
		t.Helper()
		ends, cancel := context.WithTimeout(ctx, 100*time.Millisecond) // A watch goes on until then.
		defer cancel()
		args, takes := arguments(f.Type(), c, ends)
		has, panicked, err := returned(f, args)
		if panicked != nil {
			t.Errorf("%s: %v", name, panicked)
		}
		if (refused || takes && !c) && has && !errors.Is(err, turnstone.ErrInvalid) {
			t.Errorf("%s: %v, want an InvalidError", name, err)
		}
	}
	for _, of := range []reflect.Type{reflect.TypeFor[*turnstone.Store](), reflect.TypeFor[*turnstone.Session](), reflect.TypeFor[*turnstone.Commit]()} {
		for i := range of.NumMethod() {
			method := of.Method(i).Name
			for _, c := range []bool{true, false} {
				check(fmt.Sprintf("%s of a nil %v", method, of), reflect.Zero(of).MethodByName(method), c, true)
				zero := of != reflect.TypeFor[*turnstone.Commit]() // of which the zero value is a commit
				check(fmt.Sprintf("%s of a zero %v", method, of), reflect.New(of.Elem()).MethodByName(method), c, zero)
				st, err := turnstone.Open(ctx, memory.New(), nil)
				if err != nil {
					t.Fatal(err)
				}
				on := map[reflect.Type]any{
					of: st, reflect.TypeFor[*turnstone.Session](): create(t, st, turnstone.Request{ID: "s"}), reflect.TypeFor[*turnstone.Commit](): &turnstone.Commit{},
				}[of]
				check(fmt.Sprintf("%s of %v", method, of), reflect.ValueOf(on).MethodByName(method), c, false)
				if err := st.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	}
	for name, f := range map[string]any{"Open": turnstone.Open, "Copy": turnstone.Copy, "Update": turnstone.Update} {
		check(name, reflect.ValueOf(f), true, true)
		check(name, reflect.ValueOf(f), false, true)
	}
	var none context.Context
	if _, err := turnstone.Open(none, memory.New(), nil); !errors.Is(err, turnstone.ErrInvalid) {
		t.Errorf("Open without a context: %v", err)
	}
	s := create(t, openStore(t, memory.New(), &turnstone.Options{Observer: turnstone.LogObserver(nil)}), turnstone.Request{ID: "s"})
	if _, err := s.PutAttachment(ctx, nil, 0, "", ""); !errors.Is(err, turnstone.ErrInvalid) {
		t.Errorf("a nil reader: %v", err)
	}
	if _, err := s.ReadAttachment(ctx, nil, blob.ID{}); !errors.Is(err, turnstone.ErrInvalid) {
		t.Errorf("a nil writer: %v", err)
	}
}

func TestI2_AnyRevisionIsForCommitsOnly(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	if _, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: saying([]byte("x"))}); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func() error{
		"Scope.At":    func() error { _, err := s.Load(ctx, turnstone.Scope{At: turnstone.AnyRevision}); return err },
		"Scope.After": func() error { _, err := s.Load(ctx, turnstone.Scope{After: turnstone.AnyRevision}); return err },
		"Checkpoint":  func() error { _, err := s.Checkpoint(ctx, turnstone.AnyRevision); return err },
		"Keep":        func() error { return s.Keep(ctx, "x", turnstone.AnyRevision) },
		"Log": func() (err error) {
			for _, e := range s.Log(ctx, turnstone.AnyRevision) {
				err = e
			}
			return err
		},
	} {
		if err := call(); !errors.Is(err, turnstone.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	verify(t, st)
}

func TestI3_OptionsOutOfRangeAreRefused(t *testing.T) {
	for _, o := range []turnstone.Options{{SealBytes: -1}, {UploadTTL: -1}, {PollEvery: -1}, {Namespace: "\xff"}} {
		e := memory.New()
		if _, err := turnstone.Open(ctx, e, &o); !errors.Is(err, turnstone.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
		if _, err := turnstone.Open(ctx, e, &turnstone.Options{MustExist: true}); !errors.Is(err, turnstone.ErrStoreNotFound) {
			t.Errorf("%+v left something: %v", o, err)
		}
	}
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	for _, pace := range []float64{-1, -1e-9, 1 + 1e-9, 5, math.NaN(), math.Inf(1), math.Inf(-1)} {
		_, collect := st.GC(ctx, gc.Options{Pace: pace})
		_, dry := st.GC(ctx, gc.Options{Pace: pace, DryRun: true})
		_, vacuum := st.Vacuum(ctx, gc.VacuumOptions{Pace: pace})
		_, maintain := st.Maintain(turnstone.MaintainOptions{Pace: pace})
		for what, err := range map[string]error{"GC": collect, "dry run": dry, "Vacuum": vacuum, "Maintain": maintain} {
			if !errors.Is(err, turnstone.ErrInvalid) {
				t.Errorf("%s with pace %v: %v", what, pace, err)
			}
		}
	}
	for _, pace := range []float64{0, 0.1, 1} {
		if _, err := st.GC(ctx, gc.Options{Pace: pace, DryRun: true}); err != nil {
			t.Errorf("pace %v: %v", pace, err)
		}
	}
	for _, o := range []turnstone.MaintainOptions{{Every: -1}, {VacuumEvery: -time.Second}, {ScrubEvery: -1}, {ScrubRate: -1}} {
		if _, err := st.Maintain(o); !errors.Is(err, turnstone.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := st.List(ctx, turnstone.ListOptions{Limit: -1}); !errors.Is(err, turnstone.ErrInvalid) {
		t.Errorf("a negative limit: %v", err)
	}
	for _, policy := range []turnstone.ChildPolicy{-1, turnstone.CascadeChildren + 1} {
		if _, err := st.Erase(ctx, "s", policy, turnstone.EraseOptions{}); !errors.Is(err, turnstone.ErrInvalid) {
			t.Errorf("policy %d: %v", policy, err)
		}
	}
	if _, err := s.Info(ctx); err != nil {
		t.Error(err)
	}
}

// constant gives the same bytes for ever.
type constant byte

func (c constant) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(c)
	}
	return len(p), nil
}

// A random source that repeats gives no two sessions one incarnation, and no two
// uploads one id.
func TestI4_ARandomSourceThatRepeatsIsNoticed(t *testing.T) {
	e, st := onMemory(t, &turnstone.Options{Random: constant(0)})
	a := create(t, st, turnstone.Request{ID: "a"})
	if _, err := a.Commit(ctx, turnstone.Commit{Nodes: saying([]byte("of a"))}); err != nil {
		t.Fatal(err)
	}
	for _, r := range []turnstone.Request{{ID: "b"}, {ID: "b", Parent: "a"}} {
		if _, _, err := st.Create(ctx, r); !errors.Is(err, turnstone.ErrInvalid) {
			t.Errorf("%+v with the incarnation of another session: %v", r, err)
		}
	}
	// Uploads at the same time, each of several chunks.
	first, second := random(1<<20, 1), random(1<<20, 2)
	var inner blob.Attachment
	var innerErr error
	outer, err := a.PutAttachment(ctx, io.MultiReader(bytes.NewReader(first), readerFunc(func([]byte) (int, error) {
		inner, innerErr = a.PutAttachment(ctx, bytes.NewReader(second), -1, "", "")
		return 0, io.EOF
	})), -1, "", "")
	if err := errors.Join(err, innerErr); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Commit(ctx, turnstone.Commit{Expected: 1, Nodes: attaching(outer, inner)}); err != nil {
		t.Fatal(err)
	}
	// A source that begins anew with each start of the process draws again.
	for range 3 {
		st := openStore(t, e, &turnstone.Options{Random: rand.NewChaCha8([32]byte{1})})
		for range 3 {
			id := fmt.Sprint("s", rand.Uint64())
			s := create(t, st, turnstone.Request{ID: id})
			if _, err := s.Commit(ctx, turnstone.Commit{Nodes: saying([]byte(id))}); err != nil {
				t.Fatal(err)
			}
		}
	}
	verify(t, st)
	if state, err := a.Load(ctx, turnstone.Scope{}); err != nil || string(state.Nodes[0].Payload) != "of a" {
		t.Error(state, err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// The zero value of a driver's Engine is a closed one, and that of what works on a store
// refuses every call.
func TestI1_ZeroValuesAreClosed(t *testing.T) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // instead of for ever
	defer cancel()
	for _, name := range slices.Sorted(maps.Keys(storetest.Engines)) {
		e, err := storetest.Engines[name](t)()
		if err != nil {
			t.Fatal(err)
		}
		zero := reflect.New(reflect.TypeOf(e).Elem()).Interface().(engine.Engine)
		if _, err := turnstone.Open(ctx, zero, nil); !errors.Is(err, engine.ErrClosed) {
			t.Errorf("Open of a zero %s engine: %v", name, err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, tr := range []*transcript.Transcripts{{}, nil, transcript.New(nil)} {
		_, save := tr.Save(ctx, "s", transcript.Snapshot{})
		_, _, load := tr.Load(ctx, "s")
		for call, err := range map[string]error{"Save": save, "Load": load} {
			if !errors.Is(err, turnstone.ErrInvalid) {
				t.Errorf("%s without a store: %v", call, err)
			}
		}
	}
	var saver transcript.Saver
	saver.Save(transcript.Snapshot{})
	if err := saver.Flush(ctx); !errors.Is(err, turnstone.ErrInvalid) {
		t.Errorf("a zero Saver: %v", err)
	}
}
