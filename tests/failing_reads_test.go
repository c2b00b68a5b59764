package tests

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
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// fates are what others do to session a after a handle of it was opened and used.
var fates = map[string]func(t *testing.T, st *turnstone.Store){
	"living":  func(t *testing.T, st *turnstone.Store) { create(t, st, turnstone.Request{ID: "later"}) }, // the feed tells of it
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

// A target is what methods are called on in a test: a store, and a handle of its session a, which rich has filled.
type target struct {
	store   *turnstone.Store
	session *turnstone.Session
	state   *turnstone.State // of the session
	blob    blob.ID          // an attachment of it
	cursor  turnstone.Cursor // of the feed
	of      string           // Info.Incarnation of the session
	bundle  []byte           // of the session, from another store
}

// arguments returns an argument of each type that a method of a Session or a Store takes.
func (on *target) arguments(method string) map[reflect.Type]any {
	of := map[reflect.Type]any{}
	for _, v := range []any{
		on.state.Nodes[1].ID, on.blob, on.cursor, int64(-1), head.Revision(1), head.Retention(4),
		turnstone.FeedOptions{Keep: time.Hour, Records: true},
		turnstone.Scope{},
		turnstone.RecordQuery{},
		turnstone.ListOptions{},
		head.Metadata{Name: "another"},
		head.FieldModel,
		time.Second,
		turnstone.EraseOptions{},
		turnstone.KeepChildren,
		gc.Options{},
		gc.VacuumOptions{},
		gc.PruneOptions{Revisions: 2},
		turnstone.VerifyOptions{},
		turnstone.ScrubOptions{},
		turnstone.Bundled{ID: "a"},
		turnstone.StandingQuery{ID: "a", At: []head.Revision{1}},
		turnstone.UnbundleOptions{As: "new"},
		turnstone.RecordChange{Key: "new", Expect: turnstone.NoRecord, Value: []byte("v")},
		turnstone.Request{ID: "new", Parent: "a"},
	} {
		of[reflect.TypeOf(v)] = v
	}
	c := turnstone.Commit{Expected: on.state.Revision, Nodes: saying([]byte("more")), Checkpoint: map[string][]byte{"p": []byte("new")}}
	of[reflect.TypeOf(c)] = c
	both := turnstone.SessionCommit{Session: on.session, Commit: c}
	of[reflect.TypeOf(both)] = both
	of[reflect.TypeFor[string]()] = "key"
	of[reflect.TypeFor[any]()] = gc.Report{}
	of[reflect.TypeFor[error]()] = turnstone.ErrConflict
	of[reflect.TypeFor[io.Reader]()] = strings.NewReader("an attachment")
	of[reflect.TypeFor[io.Writer]()] = &bytes.Buffer{}
	switch method {
	case "Store.Session", "Store.Delete", "Store.Erase":
		of[reflect.TypeFor[string]()] = "a"
	case "Store.Unbundle":
		of[reflect.TypeFor[io.Reader]()] = bytes.NewReader(on.bundle)
	case "Store.SessionByIncarnation":
		of[reflect.TypeFor[string]()] = on.of
	}
	return of
}

// method returns a method by its name, of the store if that begins with "Store.".
func (on *target) method(name string) reflect.Value {
	if name, of := strings.CutPrefix(name, "Store."); of {
		return reflect.ValueOf(on.store).MethodByName(name)
	}
	return reflect.ValueOf(on.session).MethodByName(name)
}

// invoke calls a method, and returns its results as text, without the error, and the error. Of a sequence that may
// never end it takes a few elements.
func (on *target) invoke(ctx context.Context, name string) (text string, err error) {
	m, of := on.method(name), on.arguments(name)
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
		in = append(in, reflect.ValueOf(of[p]))
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
		case iter.Seq2[turnstone.Erased, error]:
			for e, eerr := range v {
				if err = eerr; err == nil {
					told = append(told, e)
				}
				break
			}
		case iter.Seq2[turnstone.Change, error]:
			for c, cerr := range v {
				if err = cerr; err == nil {
					told = append(told, c)
				}
				break
			}
		case iter.Seq2[turnstone.RecordUpdate, error]:
			for u, uerr := range v {
				if err = uerr; err == nil {
					told = append(told, u)
				}
				break
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

// Whatever read of whatever method of a Session or a Store fails, once or for ever, or when its context ends there,
// the method returns that error, or what it returns otherwise. That holds too when others have deleted or renamed the
// session, vacuumed it or made another one of its id.
func TestE4_AReadThatFailsIsThatErrorOrTheTruth(t *testing.T) {
	testkit.OneGoroutine(t)
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
	i, err := session(t, st, "a").Info(ctx)
	must(t, err)
	feed, err := st.Feed(ctx)
	must(t, err)
	var bundled bytes.Buffer
	_, err = st.Bundle(ctx, &bundled, turnstone.Bundled{ID: "a"})
	must(t, err)
	all := pairs(t, origin)
	names := []string{}
	for m := range reflect.TypeFor[*turnstone.Session]().Methods() {
		if m.Name != "ID" {
			names = append(names, m.Name)
		}
	}
	for m := range reflect.TypeFor[*turnstone.Store]().Methods() {
		if !slices.Contains([]string{"Close", "Factory", "Maintain"}, m.Name) { // they read nothing
			names = append(names, "Store."+m.Name)
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
					on := &target{store: st, session: session(t, st, "a"), state: state, blob: attached, cursor: feed.End, of: i.Incarnation, bundle: bundled.Bytes()}
					_, err = on.session.Load(ctx, turnstone.Scope{Last: 1})
					must(t, err)
					befall(t, openStore(t, m, &turnstone.Options{NoAutoSeal: true}))
					armed = true
					text, err = on.invoke(ctx, name)
					return text, reads, err
				}
				none := func(int, context.CancelFunc) error { return nil }
				truth, reads, want := once(none)
				again, _, _ := once(none)
				for n := 1; n <= reads; n += testkit.Pick(1, 1+reads/60, 1+reads/12) {
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
							var corrupt *damage.CorruptError
							switch {
							case errors.As(err, &corrupt) && !errors.Is(err, fault):
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
	if !slices.Contains(names, "Commit") || !slices.Contains(names, "Store.List") {
		t.Error("the methods of a Session and a Store were not found")
	}
}
