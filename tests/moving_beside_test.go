package tests

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

var everyCall = flag.Bool("every-call", false, "TestMV9 stops operations at every call, and not at some")

// An ending is an operation on two databases that runs until one of its calls, waits there, and goes on when it is told.
type ending struct {
	calls, until int
	reached      chan struct{} // closed when it waits, or has ended
	goOn         chan struct{}
	ended        chan struct{}
}

// until runs op until its call n.
func until(n int, op func(a, b engine.Engine) error, a, b engine.Engine) *ending {
	e := &ending{until: n, reached: make(chan struct{}), goOn: make(chan struct{}), ended: make(chan struct{})}
	reached := sync.OnceFunc(func() { close(e.reached) })
	watch := func(of engine.Engine) engine.Engine {
		return &enginetest.Faulty{Engine: of, Plan: func(enginetest.Call) enginetest.Fault {
			if e.calls++; e.calls == n {
				reached()
				<-e.goOn
			}
			return enginetest.Fault{}
		}}
	}
	go func() {
		defer close(e.ended)
		defer reached()
		_ = op(watch(a), watch(b)) // It may be refused.
	}()
	<-e.reached
	return e
}

// finish lets the operation go on to its end. It reports whether it had waited.
func (e *ending) finish() bool {
	close(e.goOn)
	<-e.ended
	return e.calls >= e.until
}

// Two of these at once, each stopped at any of its calls while the other goes on: a move to a database, a move back,
// their cancellations. Nothing is lost, one database has the namespace, and it can be moved afterwards.
func TestMV9_MovesThatGetInEachOthersWayLoseNothing(t *testing.T) {
	testkit.Slow(t)
	move := func(back bool) func(a, b engine.Engine) error {
		return func(a, b engine.Engine) error {
			o := turnstone.MoveOptions{To: "b", Pause: 40 * time.Millisecond}
			if back {
				a, b, o.To = b, a, "a"
			}
			_, err := turnstone.Move(ctx, a, b, o)
			return err
		}
	}
	ops := map[string]func(a, b engine.Engine) error{
		"to b": move(false), "to a": move(true),
		"cancel to b": func(a, b engine.Engine) error { return turnstone.CancelMove(ctx, a, b, turnstone.MoveOptions{}) },
		"cancel to a": func(a, b engine.Engine) error { return turnstone.CancelMove(ctx, b, a, turnstone.MoveOptions{}) },
	}
	crash := func(e engine.Engine, after int) engine.Engine {
		return &enginetest.Faulty{Engine: e, Plan: enginetest.CrashAfter(after)}
	}
	starts := map[string]func(a, b engine.Engine){
		"in a":                    func(_, _ engine.Engine) {},
		"to b, cut off":           func(a, b engine.Engine) { _ = ops["to b"](a, crash(b, 2)) },
		"in b, with remains":      func(a, b engine.Engine) { _ = ops["to b"](crash(a, 3), b) },
		"back in a, cut off":      func(a, b engine.Engine) { _, _ = ops["to b"](a, b), ops["to a"](crash(a, 2), b) },
		"back in a, with remains": func(a, b engine.Engine) { _, _ = ops["to b"](a, b), ops["to a"](a, crash(b, 3)) },
	}
	runs, step := 0, testkit.Pick(2, 4, 12)
	if *everyCall {
		step = 1
	}
	for start, prepare := range starts {
		for first, one := range ops {
			for second, other := range ops {
				for n, more := 1, true; more; n += 1 + rand.IntN(2*step-1) {
					for k, again := 1, true; again; k += 1 + rand.IntN(2*step-1) {
						runs++
						d := databases{"a": memory.New(), "b": memory.New()}
						st := openStore(t, d["a"], d.options())
						s := create(t, st, turnstone.Request{ID: "s"}, []byte("x"))
						prepare(d["a"], d["b"])
						commitBeside(t, s)
						want := head.Revision(2)
						beside := func() { // A commit ends a pause, so there is not always one.
							if rand.IntN(2) == 0 {
								commitBeside(t, s)
								want++
							}
						}
						e := until(n, one, d["a"], d["b"])
						f := until(k, other, d["a"], d["b"])
						beside()
						more = e.finish()
						beside()
						again = f.finish() && more
						name := fmt.Sprintf("%s: %q stopped at call %d, %q at call %d", start, first, n, second, k)
						survived(t, name, d, st, s, want, ops)
						st.Close()
					}
				}
			}
		}
	}
	t.Logf("%d runs", runs)
}

// A copy of the store, in a third database, can neither take over what is moved to the other one nor give it up.
func TestMV9_ACopyOfTheStoreDoesNotMeddle(t *testing.T) {
	for n := 1; n <= 3; n++ { // before it is copied, paused, and moved; and before the target gets its store record
		for _, cancel := range []bool{false, true} {
			d := databases{"a": memory.New(), "b": memory.New(), "copy": memory.New()}
			st := openStore(t, d["a"], d.options())
			s := create(t, st, turnstone.Request{ID: "s"}, []byte("x"))
			if _, err := turnstone.Copy(ctx, d["a"], d["copy"], turnstone.CopyOptions{}); err != nil {
				t.Fatal(err)
			}
			commitBeside(t, s)
			sets := 0
			watch := func(e engine.Engine) engine.Engine {
				return &enginetest.Faulty{Engine: e, Done: func(c enginetest.Call, _ error) {
					if !recordSet(c) {
						return
					}
					if sets++; sets == n {
						var err error
						if cancel {
							err = turnstone.CancelMove(ctx, d["copy"], d["b"], turnstone.MoveOptions{})
						} else {
							_, err = turnstone.Move(ctx, d["copy"], d["b"], turnstone.MoveOptions{To: "b"})
						}
						if n > 1 && !cancel && !errors.Is(err, turnstone.ErrConflict) {
							t.Errorf("%d, cancel %v: %v", n, cancel, err)
						}
					}
				}}
			}
			_, err := turnstone.Move(ctx, watch(d["a"]), d["b"], turnstone.MoveOptions{To: "b"})
			if i, failed := s.Info(ctx); failed != nil || i.Revision != 2 {
				t.Errorf("%d, cancel %v: revision %d, %v; the move: %v", n, cancel, i.Revision, failed, err)
			}
			commitBeside(t, s)
			verify(t, st)
		}
	}
}

// survived fails unless one database has the namespace, with so many commits of its session, and it can be moved.
func survived(t *testing.T, name string, d databases, st *turnstone.Store, s *turnstone.Session, want head.Revision, ops map[string]func(a, b engine.Engine) error) {
	t.Helper()
	check := func() {
		t.Helper()
		if i, err := s.Info(ctx); err != nil || i.Revision != want {
			t.Fatalf("%s: revision %d of %d: %v", name, i.Revision, want, err)
		}
		verify(t, st)
	}
	check()
	here := ""
	for _, at := range []string{"a", "b"} {
		w, err := turnstone.Where(ctx, d[at], "")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if w.Here {
			here += at
		}
	}
	if len(here) != 1 {
		t.Fatalf("%s: it is in %q", name, here)
	}
	if w, err := turnstone.Where(ctx, d[here], ""); err != nil || w.To == "" { // It was given up. If that was refused, once more.
		other := map[string]string{"a": "b", "b": "a"}[here]
		err = errors.Join(err, ops["cancel to "+other](d["a"], d["b"]))
		if vs, failed := d[other].Get(ctx, keys.CopyingKey("")); vs[0] != nil || errors.Join(err, failed) != nil {
			t.Fatalf("%s: there is no move, and a part of a copy in the other database: %v, %v", name, err, failed)
		}
	}
	to := map[string]string{"a": "to b", "b": "to a"}[here]
	if err := ops[to](d["a"], d["b"]); err != nil {
		t.Fatalf("%s: then %q: %v", name, to, err)
	}
	check()
	left(t, d[here])
}
