package tests

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/copying"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// databases are what hosts know by name.
type databases map[string]engine.Engine

func (d databases) open(_ context.Context, name string) (engine.Engine, error) {
	if e := d[name]; e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("no database is called %q", name)
}

func (d databases) options() *turnstone.Options { return &turnstone.Options{Database: d.open} }

// move moves the namespace "" from one of the databases to another one.
func (d databases) move(t *testing.T, from, to string) *turnstone.MoveReport {
	t.Helper()
	r, err := turnstone.Move(ctx, d[from], d[to], turnstone.MoveOptions{To: to})
	if err != nil {
		t.Fatalf("from %s to %s: %+v, %v", from, to, r, err)
	}
	return r
}

// left fails unless a database has nothing but the record that says where the namespace is.
func left(t *testing.T, e engine.Engine) {
	t.Helper()
	if ps := pairs(t, e); len(ps) != 1 || !bytes.Equal(ps[0].Key, keys.StoreKey("")) {
		t.Errorf("%d records are left", len(ps))
	}
}

// moved returns the pairs that move with a namespace.
func moved(t *testing.T, e engine.Engine) (out []engine.Pair) {
	t.Helper()
	for _, p := range pairs(t, e) {
		if !copying.Alone("", p.Key) {
			out = append(out, p)
		}
	}
	return out
}

// A namespace is in the other database with all of its records, and nothing but a record that says so stays behind. Stores
// that had it open go on there.
func TestMV1_AMovedNamespaceIsTheSame(t *testing.T) {
	d := databases{"a": memory.New(), "b": memory.New()}
	st := openStore(t, d["a"], d.options())
	fill(t, d["a"])
	before, id := moved(t, d["a"]), st.ID()
	r := d.move(t, "a", "b")
	if after := moved(t, d["b"]); !samePairs(before, after) || r.Records != len(before) || r.Written != len(before) || r.Removed != len(before) {
		t.Errorf("%d pairs, then %d: %+v", len(before), len(after), r)
	}
	left(t, d["a"])
	if st.ID() != id {
		t.Error("it is another store")
	}
	commitTo(t, session(t, st, "s1"), turnstone.Commit{Nodes: saying([]byte("in the other database"))})
	healthy(t, st)
	again := openStore(t, d["a"], d.options()) // the host's first database leads there
	if n, err := session(t, again, "s1").Info(ctx); err != nil || n.Revision != 21 {
		t.Error(n.Revision, err)
	}
	// Without Database a store says where the namespace is.
	var where *engine.MovedError
	if _, err := turnstone.Open(ctx, d["a"], nil); !errors.Is(err, engine.ErrMoved) || !errors.As(err, &where) || where.To != "b" {
		t.Error(err)
	}
	d.move(t, "b", "a")
	left(t, d["b"])
	commitTo(t, session(t, st, "s1"), turnstone.Commit{Nodes: saying([]byte("and back"))})
	for _, st := range []*turnstone.Store{st, again, openStore(t, d["b"], d.options()), openStore(t, d["a"], nil)} {
		if n, err := session(t, st, "s1").Info(ctx); err != nil || n.Revision != 22 {
			t.Error(n.Revision, err)
		}
		healthy(t, st)
	}
}

func samePairs(a, b []engine.Pair) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i].Key, b[i].Key) || !bytes.Equal(a[i].Value, b[i].Value) {
			return false
		}
	}
	return true
}

// healthy fails unless the store verifies.
func healthy(t *testing.T, st *turnstone.Store) {
	t.Helper()
	r, err := st.Verify(ctx, turnstone.VerifyOptions{})
	if err != nil || len(r.Problems) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// While a namespace moves to and fro, stores commit, read, collect, delete and write records. What was acknowledged is
// there, and reads never show less than what was acknowledged before.
func TestMV2_NothingIsLostWhileANamespaceMoves(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) engine.Engine{
		"memory": func(*testing.T) engine.Engine { return memory.New() },
		"pebble": func(t *testing.T) engine.Engine {
			e, err := pebble.Open(t.TempDir(), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { e.Close() })
			return e
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := databases{"a": open(t), "b": open(t), "c": open(t)}
			const writers = 4
			var revisions [writers]atomic.Uint64 // acknowledged
			stop := make(chan struct{})
			var working sync.WaitGroup
			stores := make([]*turnstone.Store, writers)
			for i := range stores {
				stores[i] = openStore(t, d["a"], d.options())
				create(t, stores[i], turnstone.Request{ID: fmt.Sprint(i)})
			}
			for i, st := range stores {
				working.Go(func() { moveWork(t, st, stores, i, &revisions, stop) })
			}
			working.Go(func() { // maintenance beside it
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					case <-time.After(10 * time.Millisecond):
					}
					_, err := stores[n%writers].GC(ctx, gc.Options{})
					if err == nil {
						_, err = stores[n%writers].Vacuum(ctx, gc.VacuumOptions{})
					}
					if err != nil {
						t.Errorf("maintenance: %v", err)
						return
					}
				}
			})
			names := []string{"a", "b", "c"}
			at, visited := 0, map[int]bool{0: true}
			moves := testkit.Pick(60, 12, 4)
			for range moves {
				time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
				to := (at + 1 + rand.IntN(2)) % 3
				r := d.move(t, names[at], names[to])
				t.Logf("%+v", r)
				at, visited[to] = to, true
			}
			close(stop)
			working.Wait()
			st := openStore(t, d["a"], d.options())
			for i := range writers {
				n, err := session(t, st, fmt.Sprint(i)).Info(ctx)
				if want := head.Revision(revisions[i].Load()); err != nil || n.Revision < want || n.Revision > want+1 {
					t.Errorf("session %d has revision %d, and %d was acknowledged: %v", i, n.Revision, want, err)
				}
			}
			healthy(t, st)
			for i, name := range names {
				if i != at && visited[i] {
					left(t, d[name])
				}
			}
		})
	}
}

// moveWork commits to session i until stop is closed, and reads what the others have committed.
func moveWork(t *testing.T, st *turnstone.Store, stores []*turnstone.Store, i int, revisions *[4]atomic.Uint64, stop chan struct{}) {
	s, err := st.Session(ctx, fmt.Sprint(i))
	if err != nil {
		t.Error(err)
		return
	}
	for n := uint64(1); ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		c := turnstone.Commit{Expected: head.Revision(n - 1), Turn: fmt.Sprint(n), Nodes: saying(fmt.Append(nil, "turn ", n)), Checkpoint: map[string][]byte{"p": bytes.Repeat(fmt.Append(nil, n, i), 50)}}
		if r, err := s.Commit(ctx, c); err != nil || r.Replayed {
			t.Errorf("commit %d to session %d: %+v, %v", n, i, r, err)
			return
		}
		revisions[i].Store(n)
		_, err := s.ChangeRecords(ctx, turnstone.RecordChange{Key: fmt.Sprint("r", n%7), Action: turnstone.SetRecord, Value: fmt.Append(nil, n)})
		if err != nil {
			t.Errorf("records of session %d: %v", i, err)
			return
		}
		other := rand.IntN(len(stores))
		least := head.Revision(revisions[other].Load())
		page, err := st.List(ctx, turnstone.ListOptions{})
		if err != nil || len(page.Sessions) != len(stores) {
			t.Errorf("list: %d sessions, %v", len(page.Sessions), err)
			return
		}
		for _, info := range page.Sessions {
			if info.ID == fmt.Sprint(other) && info.Revision < least {
				t.Errorf("the list shows revision %d of session %d, and %d was acknowledged", info.Revision, other, least)
			}
		}
		o, err := st.Session(ctx, fmt.Sprint(other))
		if err == nil {
			var state *turnstone.State
			if state, err = o.Load(ctx, turnstone.Scope{Last: 2}); err == nil && state.Revision < least {
				t.Errorf("session %d has revision %d, and %d was acknowledged", other, state.Revision, least)
			}
		}
		if err != nil {
			t.Errorf("load: %v", err)
			return
		}
	}
}

// Wherever a move is cut off, the namespace is in one database, stores go on, and the next move does the rest. It does
// not matter whether the source or the target fails, and whether the last batch has taken effect.
func TestMV3_AMoveThatIsCutOffLosesNothing(t *testing.T) {
	for _, cut := range []struct {
		name    string
		source  bool
		applied bool
	}{{"source", true, false}, {"source, applied", true, true}, {"target", false, false}, {"target, applied", false, true}} {
		t.Run(cut.name, func(t *testing.T) {
			for n, came := 1, true; came; n++ {
				d := databases{"a": memory.New(), "b": memory.New()}
				st := openStore(t, d["a"], d.options())
				s := create(t, st, turnstone.Request{ID: "s"}, []byte("one"), []byte("two"))
				came = false
				faulty := func(e engine.Engine) engine.Engine {
					return &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
						if c.N == n/2+1 && n%2 == 1 { // Something happens before the call, and it fails or not.
							commitBeside(t, s)
						}
						came = came || c.N == n/2+1
						return enginetest.Fault{Crash: c.N == n/2+1 && n%2 == 0, Applied: cut.applied}
					}}
				}
				from, to := d["a"], d["b"]
				if cut.source {
					from = faulty(from)
				} else {
					to = faulty(to)
				}
				_, err := turnstone.Move(ctx, from, to, turnstone.MoveOptions{To: "b", Pause: 40 * time.Millisecond})
				if crashed := n%2 == 0 && came; (err != nil) != crashed {
					t.Fatalf("call %d: %v", n/2+1, err)
				}
				was, err := s.Info(ctx)
				if err != nil {
					t.Fatal(err)
				}
				commitBeside(t, s)
				if _, err := turnstone.Move(ctx, d["a"], d["b"], turnstone.MoveOptions{To: "b"}); err != nil {
					t.Fatalf("again, after call %d: %v", n/2+1, err)
				}
				commitBeside(t, s)
				if now, err := s.Info(ctx); err != nil || now.Revision != was.Revision+2 {
					t.Errorf("revision %d, then %d: %v", was.Revision, now.Revision, err)
				}
				left(t, d["a"])
				healthy(t, st)
			}
		})
	}
}

func commitBeside(t *testing.T, s *turnstone.Session) {
	t.Helper()
	commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("beside")), Checkpoint: map[string][]byte{"p": []byte("beside")}})
}

// A batch that changes many keys notes where they begin, and all that begins so is compared.
func TestMV4_LargeBatchesAreCopiedAsWell(t *testing.T) {
	for _, same := range []bool{true, false} { // keys that begin alike, and keys that don't
		d := databases{"a": memory.New(), "b": memory.New()}
		st := openStore(t, d["a"], d.options())
		s := create(t, st, turnstone.Request{ID: "s"})
		done := false
		target := &enginetest.Faulty{Engine: d["b"], Plan: func(c enginetest.Call) enginetest.Fault {
			if c.Apply == 2 && !done { // while it copies
				done = true
				for i := range 3 {
					cs := turnstone.Commit{Expected: turnstone.AnyRevision}
					for j := range 250 {
						key := fmt.Sprintf("%s/%d/%d", bytes.Repeat([]byte("long"), 110), i, j)
						if !same {
							key = "." + key
						}
						cs.Records = append(cs.Records, turnstone.RecordChange{Key: key, Value: []byte("v")})
					}
					for j := range 200 {
						cs.Nodes = append(cs.Nodes, turnstone.NewNode{Kind: "k", Payload: random(6000, uint64(1000*i+j))})
					}
					commitTo(t, s, cs)
				}
			}
			return enginetest.Fault{}
		}}
		if r, err := turnstone.Move(ctx, d["a"], target, turnstone.MoveOptions{To: "b"}); err != nil || r.Changes < 3 {
			t.Fatalf("%+v, %v", r, err)
		}
		left(t, d["a"])
		healthy(t, st)
		if p, err := st.Records(ctx, turnstone.RecordQuery{Limit: 1000}); same && (err != nil || len(p.Records) != 750) {
			t.Errorf("%d records, %v", len(p.Records), err)
		}
		if n, err := s.Info(ctx); err != nil || n.Nodes != 600 {
			t.Errorf("%d nodes, %v", n.Nodes, err)
		}
	}
}

// Changes that come just before batches have to wait are copied, however many they are.
func TestMV4_ManyChangesBeforeThePauseAreCopied(t *testing.T) {
	d := databases{"a": memory.New(), "b": memory.New()}
	st := openStore(t, d["a"], d.options())
	s := create(t, st, turnstone.Request{ID: "s"})
	const commits = 1500 // The mover reads a thousand notes at a time.
	done := false
	source := &enginetest.Faulty{Engine: d["a"], Plan: func(c enginetest.Call) enginetest.Fault {
		if !done && c.Apply > 0 && bytes.Equal(c.Batch.Sets[0].Key, keys.StoreKey("")) {
			record, err := head.DecodeStore(c.Batch.Sets[0].Key, c.Batch.Sets[0].Value, head.Known)
			if err != nil {
				t.Error(err)
			}
			if done = record.Move.Phase == head.Paused; done {
				for range commits {
					commitBeside(t, s)
				}
			}
		}
		return enginetest.Fault{}
	}}
	r, err := turnstone.Move(ctx, source, d["b"], turnstone.MoveOptions{To: "b"})
	if err != nil || r.Changes < commits {
		t.Fatalf("%+v, %v", r, err)
	}
	if i, err := s.Info(ctx); err != nil || i.Revision != commits {
		t.Errorf("revision %d: %v", i.Revision, err)
	}
	healthy(t, st)
}

// A move that can't be made says why, and changes nothing. One that was begun can be given up.
func TestMV5_AMoveIsRefusedOrGivenUp(t *testing.T) {
	d := databases{"a": memory.New(), "b": memory.New(), "c": memory.New()}
	st := openStore(t, d["a"], d.options())
	s := create(t, st, turnstone.Request{ID: "s"}, []byte("x"))
	before := pairs(t, d["a"])
	move := func(to engine.Engine, o turnstone.MoveOptions) error {
		_, err := turnstone.Move(ctx, d["a"], to, o)
		return err
	}
	other, err := turnstone.Open(ctx, d["c"], nil)
	if err != nil {
		t.Fatal(err)
	}
	other.Close()
	copied := memory.New()
	if _, err := turnstone.Copy(ctx, d["a"], copied, turnstone.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	var limit *turnstone.LimitError
	for name, c := range map[string]struct {
		err  error
		want error
	}{
		"another store":    {move(d["c"], turnstone.MoveOptions{To: "c"}), turnstone.ErrOtherStore},
		"a copy":           {move(copied, turnstone.MoveOptions{To: "b"}), turnstone.ErrConflict},
		"itself":           {move(d["a"], turnstone.MoveOptions{To: "a"}), turnstone.ErrConflict},
		"no name":          {move(d["b"], turnstone.MoveOptions{}), turnstone.ErrInvalid},
		"no target":        {move(nil, turnstone.MoveOptions{To: "b"}), turnstone.ErrInvalid},
		"another name":     {move(d["b"], turnstone.MoveOptions{To: "b", Namespace: "no such"}), turnstone.ErrStoreNotFound},
		"nothing to stop":  {turnstone.CancelMove(ctx, d["a"], d["b"], turnstone.MoveOptions{}), nil},
		"a name too large": {move(d["b"], turnstone.MoveOptions{To: string(make([]byte, turnstone.MaxDatabase+1))}), turnstone.ErrLimit},
	} {
		if !errors.Is(c.err, c.want) || c.want == turnstone.ErrLimit && !errors.As(c.err, &limit) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
	if after := pairs(t, d["a"]); !samePairs(before, after) || len(pairs(t, d["b"])) > 0 {
		t.Error("a refused move has changed something")
	}
	cut := &enginetest.Faulty{Engine: d["b"], Plan: enginetest.CrashAfter(2)}
	if _, err := turnstone.Move(ctx, d["a"], cut, turnstone.MoveOptions{To: "b"}); err == nil {
		t.Fatal("it was not cut off")
	}
	commitBeside(t, s)
	if w, err := turnstone.Where(ctx, d["a"], ""); err != nil || w != (turnstone.Whereabouts{Here: true, To: "b"}) {
		t.Errorf("%+v, %v", w, err)
	}
	if _, err := turnstone.Open(ctx, d["b"], d.options()); !errors.Is(err, turnstone.ErrUnfinishedCopy) {
		t.Error(err)
	}
	if err := move(memory.New(), turnstone.MoveOptions{To: "c"}); !errors.Is(err, turnstone.ErrConflict) {
		t.Errorf("to another database meanwhile: %v", err)
	}
	if _, err := turnstone.Copy(ctx, d["a"], memory.New(), turnstone.CopyOptions{}); !errors.Is(err, turnstone.ErrConflict) {
		t.Errorf("a copy meanwhile: %v", err)
	}
	if _, err := turnstone.Copy(ctx, copied, d["b"], turnstone.CopyOptions{Overwrite: true}); !errors.Is(err, turnstone.ErrConflict) {
		t.Errorf("a copy of a copy to the other database: %v", err)
	}
	cutCopy := &enginetest.Faulty{Engine: memory.New(), Plan: enginetest.CrashAfter(2)}
	if _, err := turnstone.Copy(ctx, copied, cutCopy, turnstone.CopyOptions{}); err == nil {
		t.Error("the copy was not cut off")
	}
	o := turnstone.MoveOptions{To: "b"}
	if err := turnstone.CancelMove(ctx, d["a"], cutCopy.Engine, o); !errors.Is(err, turnstone.ErrConflict) {
		t.Errorf("the copy was taken for a move: %v", err)
	}
	if err := move(cutCopy.Engine, o); !errors.Is(err, turnstone.ErrConflict) {
		t.Errorf("a move to where a copy was begun: %v", err)
	}
	healthy(t, st)
	if err := turnstone.CancelMove(ctx, d["a"], d["b"], turnstone.MoveOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := len(pairs(t, d["b"])); n > 0 {
		t.Errorf("%d records are left", n)
	}
	for _, p := range pairs(t, d["a"]) {
		if p.Key[4] == keys.Touched {
			t.Error("a note is left")
		}
		if bytes.Equal(p.Key, keys.StoreKey("")) && bytes.Equal(p.Value, before[0].Value) {
			t.Error("the store record has come back: a batch that comes late would be applied")
		}
	}
	commitBeside(t, s)
	d.move(t, "a", "b")
	var where *engine.MovedError
	if err := turnstone.CancelMove(ctx, d["a"], d["b"], turnstone.MoveOptions{}); !errors.As(err, &where) || where.To != "b" {
		t.Errorf("after the move: %v", err)
	}
	if err := move(memory.New(), turnstone.MoveOptions{To: "c"}); !errors.As(err, &where) || where.To != "b" {
		t.Errorf("to another database afterwards: %v", err)
	}
	if _, err := turnstone.Copy(ctx, d["b"], d["a"], turnstone.CopyOptions{Overwrite: true}); !errors.Is(err, turnstone.ErrConflict) {
		t.Errorf("a copy to where it was: %v", err)
	}
	commitBeside(t, s)
	healthy(t, st)
}

// Who watches a session, or records, sees what is committed after the namespace has moved.
func TestMV6_WatchesFollowTheNamespace(t *testing.T) {
	d := databases{"a": memory.New(), "b": memory.New()}
	o := d.options()
	o.PollEvery = 10 * time.Millisecond
	st := openStore(t, d["a"], o)
	s := create(t, st, turnstone.Request{ID: "s"}, []byte("x"))
	watching, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	seen := make(chan head.Revision, 100)
	go func() {
		defer close(seen)
		for c, err := range s.Watch(watching, 0) {
			if err != nil {
				return
			}
			seen <- c.Revision
		}
	}()
	<-seen
	d.move(t, "a", "b")
	commitBeside(t, session(t, openStore(t, d["b"], nil), "s")) // another process
	if r, ok := <-seen; !ok || r != 2 {
		t.Errorf("revision %d, %v", r, ok)
	}
}

// What is moved to an encrypted database is encrypted there. Notes of changes are encrypted as well.
func TestMV7_ANamespaceIsEncryptedOnItsWay(t *testing.T) {
	base := memory.New()
	d := databases{"a": memory.New(), "b": encrypted(t, base, "")}
	st := openStore(t, d["a"], d.options())
	fill(t, d["a"])
	before := moved(t, d["a"])
	d.move(t, "a", "b")
	if !samePairs(before, moved(t, d["b"])) {
		t.Error("the pairs are others")
	}
	for _, p := range pairs(t, base) {
		if bytes.Contains(p.Value, []byte("text text")) {
			t.Fatal("it is not encrypted")
		}
	}
	healthy(t, st)
	s := session(t, st, "s3")
	cut := &enginetest.Faulty{Engine: d["a"], Plan: enginetest.CrashAfter(2)}
	if _, err := turnstone.Move(ctx, d["b"], cut, turnstone.MoveOptions{To: "a"}); err == nil {
		t.Fatal("it was not cut off")
	}
	commitBeside(t, s)
	d.move(t, "b", "a")
	commitBeside(t, s)
	healthy(t, st)
}

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

// recordSet reports whether a call sets the store record.
func recordSet(c enginetest.Call) bool {
	return c.Apply > 0 && len(c.Batch.Sets) == 1 && bytes.Equal(c.Batch.Sets[0].Key, keys.StoreKey(""))
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
			healthy(t, st)
		}
	}
}

// A mover that fails lets commits go on, and one that was given up before it had begun removes what it has written.
func TestMV3_AMoverThatFailsLetsCommitsGoOn(t *testing.T) {
	d := databases{"a": memory.New(), "b": memory.New()}
	st := openStore(t, d["a"], d.options())
	s := create(t, st, turnstone.Request{ID: "s"}, []byte("x"))
	full, sets := false, 0
	source := &enginetest.Faulty{Engine: d["a"], Plan: func(c enginetest.Call) enginetest.Fault {
		if recordSet(c) {
			if sets++; sets == 2 {
				commitBeside(t, s)
				full = true
			}
		}
		return enginetest.Fault{}
	}}
	target := &enginetest.Faulty{Engine: d["b"], Plan: func(c enginetest.Call) (f enginetest.Fault) {
		if full && c.Apply > 0 {
			f.Err = engine.ErrNoSpace
		}
		return f
	}}
	if _, err := turnstone.Move(ctx, source, target, turnstone.MoveOptions{To: "b", Pause: time.Hour}); !errors.Is(err, engine.ErrNoSpace) {
		t.Fatal(err)
	}
	commitBeside(t, s) // which would wait for an hour
	if w, err := turnstone.Where(ctx, d["a"], ""); err != nil || w.Paused || w.To != "b" {
		t.Errorf("%+v, %v", w, err)
	}
	if err := turnstone.CancelMove(ctx, d["a"], d["b"], turnstone.MoveOptions{}); err != nil || len(pairs(t, d["b"])) > 0 {
		t.Error(err, len(pairs(t, d["b"])))
	}
	cancelled := false
	source = &enginetest.Faulty{Engine: d["a"], Done: func(c enginetest.Call, _ error) {
		if recordSet(c) && !cancelled {
			cancelled = true
			if err := turnstone.CancelMove(ctx, d["a"], d["b"], turnstone.MoveOptions{}); err != nil {
				t.Error(err)
			}
		}
	}}
	if _, err := turnstone.Move(ctx, source, d["b"], turnstone.MoveOptions{To: "b"}); !errors.Is(err, turnstone.ErrConflict) || len(pairs(t, d["b"])) > 0 {
		t.Error(err, len(pairs(t, d["b"])))
	}
	d.move(t, "a", "b")
	commitBeside(t, s)
	healthy(t, st)
}

// survived fails unless one database has the namespace, with so many commits of its session, and it can be moved.
func survived(t *testing.T, name string, d databases, st *turnstone.Store, s *turnstone.Session, want head.Revision, ops map[string]func(a, b engine.Engine) error) {
	t.Helper()
	check := func() {
		t.Helper()
		if i, err := s.Info(ctx); err != nil || i.Revision != want {
			t.Fatalf("%s: revision %d of %d: %v", name, i.Revision, want, err)
		}
		healthy(t, st)
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
