package tests

import (
	"bytes"
	"context"
	"errors"
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
	verify(t, st)
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
		verify(t, st)
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
			verify(t, st)
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
	verify(t, st)
	s := session(t, st, "s3")
	cut := &enginetest.Faulty{Engine: d["a"], Plan: enginetest.CrashAfter(2)}
	if _, err := turnstone.Move(ctx, d["b"], cut, turnstone.MoveOptions{To: "a"}); err == nil {
		t.Fatal("it was not cut off")
	}
	commitBeside(t, s)
	d.move(t, "b", "a")
	commitBeside(t, s)
	verify(t, st)
}

// A notifying is an engine that can notify those who have it open.
type notifying struct {
	engine.Engine
	mu    sync.Mutex
	heard map[int]func(string)
	last  int
}

func (n *notifying) Notify(topic string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, heard := range n.heard {
		heard(topic)
	}
}

func (n *notifying) Listen(ctx context.Context, heard func(string)) error {
	n.mu.Lock()
	n.last++
	id := n.last
	n.heard[id] = heard
	n.mu.Unlock()
	heard("")
	<-ctx.Done()
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.heard, id)
	return ctx.Err()
}

// listeners returns how many listen.
func (n *notifying) listeners() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.heard)
}

// Who watches records hears of other processes in the database that the namespace has moved to, and no longer in the one
// that it has left.
func TestMV6_NotificationsFollowTheNamespace(t *testing.T) {
	a, b := &notifying{Engine: memory.New(), heard: map[int]func(string){}}, &notifying{Engine: memory.New(), heard: map[int]func(string){}}
	d := databases{"a": a, "b": b}
	o := d.options()
	o.PollEvery = time.Hour
	st := openStore(t, d["a"], o)
	s := create(t, st, turnstone.Request{ID: "s"})
	watching, stop := context.WithCancel(ctx)
	defer stop()
	seen := make(chan string, 100)
	go func() {
		for u, err := range s.WatchRecords(watching, "") {
			if err != nil {
				return
			}
			for _, r := range u.Records {
				seen <- string(r.Value)
			}
		}
	}()
	set := func(by *turnstone.Store, value string) {
		t.Helper()
		change(t, session(t, by, "s"), setting("k", value, ""))
		for got := range seen {
			if got == value {
				break
			}
		}
	}
	testkit.Until(t, "the store listens", func() bool { return a.listeners() == 1 })
	set(openStore(t, a, d.options()), "in a")
	d.move(t, "a", "b")
	commitBeside(t, s) // The store finds out.
	testkit.Until(t, "the store listens in the other database", func() bool { return a.listeners() == 0 && b.listeners() == 1 })
	set(openStore(t, b, nil), "in b")
}
