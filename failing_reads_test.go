package turnstone_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testscale"
	"github.com/turnstonedb/turnstone/record"
)

// fates are what others do to session a after a handle of it was opened and used.
var fates = map[string]func(t *testing.T, st *turnstone.Store){
	"living":  func(*testing.T, *turnstone.Store) {},
	"renamed": func(t *testing.T, st *turnstone.Store) { must(t, rename(ctx, st, "a", "b")) },
	"deleted": func(t *testing.T, st *turnstone.Store) { must(t, st.Delete(ctx, "a", turnstone.KeepChildren)) },
	"vacuumed": func(t *testing.T, st *turnstone.Store) {
		must(t, st.Delete(ctx, "a", turnstone.CascadeChildren)) // with forks, vacuum leaves records of it
		vacuum(t, st)
	},
	"re-created": func(t *testing.T, st *turnstone.Store) {
		must(t, st.Delete(ctx, "a", turnstone.CascadeChildren))
		vacuum(t, st)
		create(t, st, turnstone.Request{ID: "a"}, []byte("another"))
	},
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// arguments returns an argument of each type that a method of a Session takes, for session a of rich.
func arguments(st *turnstone.State, attached blob.ID) map[reflect.Type]func() any {
	of := map[reflect.Type]func() any{}
	for _, make := range []func() any{
		func() any { return st.Nodes[1].ID },
		func() any { return attached },
		func() any { return "key" },
		func() any { return int64(-1) },
		func() any { return head.Revision(1) },
		func() any { return turnstone.Retention(4) },
		func() any { return turnstone.Scope{} },
		func() any { return turnstone.RecordQuery{} },
		func() any { return turnstone.Metadata{Name: "another"} },
		func() any { return turnstone.FieldModel },
		func() any { return turnstone.EraseOptions{} },
		func() any { return gc.Options{} },
		func() any { return gc.VacuumOptions{} },
		func() any { return turnstone.RecordChange{Key: "new", Expect: turnstone.NoRecord, Value: []byte("v")} },
		func() any {
			return turnstone.Commit{Expected: st.Revision, Nodes: saying([]byte("more")), Checkpoint: map[string][]byte{"p": []byte("new")}}
		},
	} {
		of[reflect.TypeOf(make())] = make
	}
	of[reflect.TypeFor[io.Reader]()] = func() any { return strings.NewReader("an attachment") }
	of[reflect.TypeFor[io.Writer]()] = func() any { return &bytes.Buffer{} }
	return of
}

// invoke calls a method, and returns its results as text, without the error, and the error. Of a sequence that may never end
// it takes a few elements.
func invoke(ctx context.Context, m reflect.Value, of map[reflect.Type]func() any) (text string, err error) {
	var in []reflect.Value
	for i := range m.Type().NumIn() {
		p := m.Type().In(i)
		switch {
		case i == 0 && p == reflect.TypeFor[context.Context]():
			in = append(in, reflect.ValueOf(ctx))
			continue
		case i == m.Type().NumIn()-1 && m.Type().IsVariadic():
			p = p.Elem()
		}
		if of[p] == nil {
			panic(fmt.Sprintf("arguments has none of type %v", p))
		}
		in = append(in, reflect.ValueOf(of[p]()))
	}
	var told []any
	for _, r := range m.Call(in) {
		switch v := r.Interface().(type) {
		case error:
			err = v
		case iter.Seq2[turnstone.LogEntry, error]:
			for e, eerr := range v {
				if err = eerr; err != nil || len(told) == 5 {
					break
				}
				told = append(told, e)
			}
		case iter.Seq2[turnstone.Node, error]:
			for n, nerr := range v {
				if err = nerr; err != nil {
					break
				}
				told = append(told, n)
			}
		default:
			if v != nil && r.Kind() == reflect.Func {
				panic(fmt.Sprintf("a result of type %v", r.Type()))
			}
			told = append(told, v)
		}
	}
	b, jerr := json.Marshal(told)
	if jerr != nil {
		panic(jerr)
	}
	return string(b), err
}

// Whatever read of whatever method of a Session fails, once or for ever, or when its context ends there, the method returns that error, or
// what it returns otherwise. That holds too when others have deleted or renamed the session, vacuumed it or made another one of its id.
func TestE4_AReadThatFailsIsThatErrorOrTheTruth(t *testing.T) {
	oneGoroutine(t)
	origin, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	rich(t, st)
	state, err := session(t, st, "a").Load(ctx, turnstone.Scope{})
	must(t, err)
	var attached blob.ID
	for _, n := range state.Nodes {
		for _, a := range n.Attachments {
			attached = a.ID
		}
	}
	of := arguments(state, attached)
	all := pairs(t, origin)
	names := []string{}
	for m := range reflect.TypeFor[*turnstone.Session]().Methods() {
		if m.Name != "ID" {
			names = append(names, m.Name)
		}
	}
	for fate, befall := range fates {
		for _, name := range names {
			t.Run(name+" "+fate, func(t *testing.T) {
				t.Parallel()
				// once calls the method on a handle of a copy of the store, and counts the reads.
				once := func(plan func(read int, cancel context.CancelFunc) error) (text string, reads int, err error) {
					m := memory.New()
					var b engine.Batch
					for _, p := range all {
						b.Set(p.Key, p.Value)
					}
					must(t, m.Apply(ctx, &b))
					ctx, cancel := context.WithCancel(ctx)
					defer cancel()
					armed := false
					st := openStore(t, &enginetest.Faulty{Engine: m, Plan: func(c enginetest.Call) (f enginetest.Fault) {
						if armed && (c.Op == "Get" || c.Op == "Scan") {
							reads++
							f.Err = plan(reads, cancel)
						}
						return f
					}}, &turnstone.Options{NoAutoSeal: true})
					s := session(t, st, "a")
					_, err = s.Load(ctx, turnstone.Scope{Last: 1})
					must(t, err)
					befall(t, openStore(t, m, &turnstone.Options{NoAutoSeal: true}))
					armed = true
					text, err = invoke(ctx, reflect.ValueOf(s).MethodByName(name), of)
					return text, reads, err
				}
				none := func(int, context.CancelFunc) error { return nil }
				truth, reads, want := once(none)
				again, _, _ := once(none)
				for n := 1; n <= reads; n += testscale.Pick(1, 1, 7) {
					for _, lasting := range []bool{false, true} {
						for _, fault := range []error{engine.ErrUnavailable, engine.ErrCorrupt, context.Canceled} {
							got, _, err := once(func(read int, cancel context.CancelFunc) error {
								if read != n && !(lasting && read > n) {
									return nil
								}
								if fault == context.Canceled {
									cancel()
								}
								return fault
							})
							var damage *record.CorruptError
							switch {
							case errors.As(err, &damage) && !errors.Is(err, fault):
								t.Errorf("%v of read %d, lasting: %v: damage where there is none: %v", fault, n, lasting, err)
							case errors.Is(err, fault):
							case err != nil && want != nil && err.Error() == want.Error():
							case err == nil && want == nil && (got == truth || truth != again):
							default:
								t.Errorf("%v of read %d, lasting: %v: %v, %.200s; otherwise it is %v, %.200s", fault, n, lasting, err, got, want, truth)
							}
						}
					}
				}
			})
		}
	}
	if !slices.Contains(names, "Commit") {
		t.Error("the methods of a Session were not found")
	}
}
