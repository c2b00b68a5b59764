package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A nextVersion is an engine as a made-up next version of Turnstone would use it. That
// version knows the formats 1 and 2. In format 2 heads, commits and marks have another
// encoding, which its decoders read beside the first one, and which its encoders write in
// a store that has format 2. The engine does their work, so that the code above it, which
// is that of this version, can stand for the rest.
type nextVersion struct {
	engine.Engine
	format atomic.Uint64 // of the store when it was opened
}

var nextFormats = head.Formats{Oldest: 1, Newest: 2}

// toNext returns a record in the encoding of format 2.
func toNext(p engine.Pair) engine.Pair {
	if len(p.Value) == 0 || p.Value[0] != p.Key[4] || !bytes.ContainsAny(p.Value[:1], "scm") {
		return p
	}
	v := append(bytes.Clone(p.Value[:len(p.Value)-4]), 0xff) // one field more
	v[1] = 2
	return engine.Pair{Key: p.Key, Value: codec.EncodeTail(p.Key, v, 0)}
}

// fromNext returns the same record in the encoding of format 1.
func fromNext(p engine.Pair) engine.Pair {
	if len(p.Value) < 8 || p.Value[0] != p.Key[4] || !bytes.ContainsAny(p.Value[:1], "scm") || p.Value[1] != 2 {
		return p
	}
	v := bytes.Clone(p.Value[:len(p.Value)-5])
	v[1] = 1
	return engine.Pair{Key: p.Key, Value: codec.EncodeTail(p.Key, v, 0)}
}

func (e *nextVersion) Get(ctx context.Context, ks ...[]byte) ([][]byte, error) {
	vs, err := e.Engine.Get(ctx, ks...)
	for i := range vs {
		if vs[i] != nil {
			vs[i] = fromNext(engine.Pair{Key: ks[i], Value: vs[i]}).Value
			e.opened(ks[i], vs[i])
		}
	}
	return vs, err
}

// opened takes note of the store's format.
func (e *nextVersion) opened(key, value []byte) {
	if bytes.Equal(key, keys.StoreKey("")) {
		if s, err := head.DecodeStore(key, value, nextFormats); err == nil {
			e.format.Store(s.Format)
		}
	}
}

func (e *nextVersion) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		for p, err := range e.Engine.Scan(ctx, r) {
			if !yield(fromNext(p), err) {
				return
			}
		}
	}
}

func (e *nextVersion) Apply(ctx context.Context, b *engine.Batch) error {
	next := &engine.Batch{Deletes: b.Deletes}
	for _, g := range b.Guards {
		vs, err := e.Engine.Get(ctx, g.Key)
		if err != nil {
			return err
		}
		if vs[0] != nil && bytes.Equal(fromNext(engine.Pair{Key: g.Key, Value: vs[0]}).Value, g.Value) {
			g.Value = vs[0] // the same record, in the encoding that it has
		}
		next.Guards = append(next.Guards, g)
	}
	for _, p := range b.Sets {
		if e.format.Load() == 2 {
			p = toNext(p)
		}
		next.Sets = append(next.Sets, p)
	}
	err := e.Engine.Apply(ctx, next)
	for _, p := range b.Sets {
		if err == nil {
			e.opened(p.Key, p.Value)
		}
	}
	return err
}

// openNext opens the store of an engine with the next version of Turnstone.
func openNext(e engine.Engine, upgrade bool) (*turnstone.Store, error) {
	return turnstone.Open(ctx, &nextVersion{Engine: e}, withFormats(turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1, Upgrade: upgrade}, 1, 2))
}

// formatOf returns the format of the store on an engine.
func formatOf(t *testing.T, e engine.Engine) uint64 {
	t.Helper()
	vs, err := e.Get(ctx, keys.StoreKey(""))
	if err != nil {
		t.Fatal(err)
	}
	s, err := head.DecodeStore(keys.StoreKey(""), vs[0], nextFormats)
	if err != nil {
		t.Fatal(err)
	}
	return s.Format
}

// versionsOf counts the records of an engine by the version of their encoding.
func versionsOf(t *testing.T, e engine.Engine) map[byte]int {
	t.Helper()
	n := map[byte]int{}
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		if bytes.ContainsAny(p.Value[:1], "scm") && p.Value[0] == p.Key[4] {
			n[p.Value[1]]++
		}
	}
	return n
}

// addTurns commits to all sessions of a store that has those of full.
func addTurns(st *turnstone.Store) error {
	page, err := st.List(ctx, turnstone.ListOptions{})
	if err != nil {
		return err
	}
	for _, i := range page.Sessions {
		s, err := st.Session(ctx, i.ID)
		if err == nil {
			_, err = s.Commit(ctx, turnstone.Commit{
				Expected: i.Revision, Nodes: []turnstone.NewNode{{Kind: "user", Payload: random(20_000, uint64(i.Revision))}},
				Checkpoint: map[string][]byte{"p": fmt.Appendf(nil, "at %d", i.Revision)},
			})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// maintain collects, vacuums and verifies.
func maintain(t *testing.T, what string, st *turnstone.Store) {
	t.Helper()
	if _, err := st.GC(ctx, gc.Options{Full: true}); err != nil {
		t.Errorf("%s: gc: %v", what, err)
	}
	if _, err := st.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
		t.Errorf("%s: vacuum: %v", what, err)
	}
	v, err := st.Verify(ctx, turnstone.VerifyOptions{})
	if err != nil || !v.OK() {
		t.Errorf("%s: verify: %v, %v", what, err, v)
	}
}

// FV6: two versions of Turnstone use a store together until it is upgraded; then the older
// one refuses, and loses nothing.
func TestFV6_AStoreKeepsItsFormatUntilItIsUpgraded(t *testing.T) {
	e := full(t)
	options := &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1}
	today := openStore(t, e, options)
	before, err := everything(today)
	if err != nil {
		t.Fatal(err)
	}
	next, err := openNext(e, false)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if got, err := everything(next); err != nil || got != before {
		t.Fatalf("the next version reads the store otherwise: %v", err)
	}
	for range 2 { // both write, in turns
		if err := addTurns(next); err != nil {
			t.Fatal(err)
		}
		if err := addTurns(today); err != nil {
			t.Fatal(err)
		}
		maintain(t, "this version", today)
		maintain(t, "the next version", next)
	}
	if f, n := formatOf(t, e), versionsOf(t, e); f != 1 || n[2] != 0 {
		t.Fatalf("format %d with %v records of each version: it was not to be upgraded", f, n)
	}
	if again, err := turnstone.Open(ctx, e, &turnstone.Options{Upgrade: true}); err != nil || formatOf(t, e) != 1 {
		t.Errorf("an upgrade to the format that the store has: %v", err)
	} else {
		again.Close()
	}

	if before, err = everything(today); err != nil {
		t.Fatal(err)
	}
	upgraded, err := openNext(e, true)
	if err != nil {
		t.Fatal(err)
	}
	defer upgraded.Close()
	if f := formatOf(t, e); f != 2 {
		t.Fatalf("format %d after the upgrade", f)
	}
	if got, err := everything(upgraded); err != nil || got != before {
		t.Errorf("the upgrade changed what is read: %v", err)
	}
	if err := addTurns(upgraded); err != nil {
		t.Fatal(err)
	}
	if n := versionsOf(t, e); n[2] == 0 || n[1] == 0 {
		t.Fatalf("%v records of each version", n)
	}
	maintain(t, "after the upgrade", upgraded)
	before, err = everything(upgraded)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string, err error) {
		t.Helper()
		var corrupt *damage.CorruptError
		if !errors.Is(err, damage.ErrNewer) || errors.Is(err, damage.ErrOlder) || errors.As(err, &corrupt) {
			t.Errorf("%s by the older version: %v", what, err)
		}
	}
	_, err = turnstone.Open(ctx, e, options)
	refused("open", err)
	_, err = turnstone.Open(ctx, e, &turnstone.Options{Upgrade: true})
	refused("upgrade", err)
	_, err = everything(today)
	refused("read", err)
	refused("commit", addTurns(today))
	_, err = today.GC(ctx, gc.Options{Full: true})
	refused("gc", err)
	_, err = today.Vacuum(ctx, gc.VacuumOptions{})
	refused("vacuum", err)
	_, err = today.Verify(ctx, turnstone.VerifyOptions{})
	refused("verify", err)
	if got, err := everything(upgraded); err != nil || got != before {
		t.Errorf("what the older version tried left something: %v", err)
	}
	maintain(t, "at the end", upgraded)
}

// FV6: a collection or vacuum of a version that is too old for the format deletes nothing once
// the store is upgraded, also when it is at work then. A record of a kind that the old version
// does not know could keep a blob.
func TestFV6_ACollectorThatIsTooOldEnds(t *testing.T) {
	testkit.OneGoroutine(t)
	source := full(t)
	if err := addTurns(openStore(t, source, &turnstone.Options{NoAutoSeal: true})); err != nil {
		t.Fatal(err)
	}
	cycleKey := keys.CycleKey("")
	for what, collect := range map[string]func(*turnstone.Store) error{
		"gc":     func(st *turnstone.Store) error { _, err := st.GC(ctx, gc.Options{}); return err },
		"vacuum": func(st *turnstone.Store) error { _, err := st.Vacuum(ctx, gc.VacuumOptions{}); return err },
	} {
		cut := 0
		for n := 1; ; n++ {
			e := copyOf(t, source)
			upgraded, opened, calls := false, false, 0
			st := openStore(t, &enginetest.Faulty{
				Engine: e,
				Plan: func(c enginetest.Call) enginetest.Fault {
					if opened {
						calls++
					}
					if opened && calls == n {
						next, err := openNext(e, true)
						if err != nil {
							t.Error(err)
						} else {
							next.Close()
						}
						upgraded = true
					}
					return enginetest.Fault{}
				},
				Done: func(c enginetest.Call, err error) {
					if upgraded && err == nil && c.Op == "Apply" && slices.ContainsFunc(c.Batch.Guards, func(p engine.Pair) bool { return bytes.Equal(p.Key, cycleKey) }) {
						t.Errorf("%s upgraded before call %d: the old collector wrote in call %d", what, n, c.N)
					}
				},
			}, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
			opened = true
			err := collect(st)
			if !upgraded {
				break
			}
			switch {
			case errors.Is(err, gc.ErrSuperseded), errors.Is(err, damage.ErrNewer):
				cut++
			case err != nil:
				t.Errorf("%s upgraded before call %d: %v", what, n, err)
			}
			if err := collect(st); !errors.Is(err, damage.ErrNewer) {
				t.Errorf("%s after the upgrade: %v", what, err)
			}
		}
		if cut < 10 {
			t.Errorf("%s was cut off %d times", what, cut)
		}
	}

	// A record of a new kind is of the new format, and no damage.
	e := copyOf(t, source)
	old := openStore(t, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
	next, err := openNext(e, true)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	key := append(keys.Prefix(""), 'N', 1)
	if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: key, Value: codec.EncodeTail(key, []byte{'N', 2, 7}, 0)}}}); err != nil {
		t.Fatal(err)
	}
	_, verify := old.Verify(ctx, turnstone.VerifyOptions{})
	_, stats := old.Stats(ctx)
	for what, err := range map[string]error{"Verify": verify, "Stats": stats} {
		var corrupt *damage.CorruptError
		if !errors.Is(err, damage.ErrNewer) || errors.As(err, &corrupt) {
			t.Errorf("%s of a store with a record of a new kind: %v", what, err)
		}
	}
}

// FV6: wherever an upgrade is cut off, the store has one format or the other and all that it
// had, and an upgrade does the rest.
func TestFV6_AnUpgradeCanBeCutOffAnywhere(t *testing.T) {
	source := full(t)
	before, err := everything(openStore(t, source, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1}))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]int{}
	for n := 1; ; n++ {
		reached := false
		for name, fault := range map[string]enginetest.Fault{
			"a crash before the call":            {Crash: true},
			"a crash after the call":             {Crash: true, Applied: true},
			"an error":                           {Err: engine.ErrUnavailable},
			"an unknown outcome, without effect": {Err: engine.ErrUnknown},
			"an unknown outcome, with effect":    {Err: engine.ErrUnknown, Applied: true},
			"an unknown outcome, late":           {Err: engine.ErrUnknown, Late: true},
		} {
			e := copyOf(t, source)
			st, err := openNext(&enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
				if c.N != n {
					return enginetest.Fault{}
				}
				reached = true
				return fault
			}}, true)
			if err == nil {
				st.Close()
				if f := formatOf(t, e); f != 2 {
					t.Errorf("call %d, %s: no error, and format %d", n, name, f)
				}
			}
			f := formatOf(t, e)
			seen[f]++
			if f == 1 { // still that of today
				if got, err := everything(openStore(t, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})); err != nil || got != before {
					t.Errorf("call %d, %s: this version reads %v", n, name, err)
				}
			}
			again, err := openNext(e, true)
			if err != nil {
				t.Fatalf("call %d, %s: %v", n, name, err)
			}
			if got, err := everything(again); err != nil || got != before || formatOf(t, e) != 2 {
				t.Errorf("call %d, %s: after another upgrade to format %d: %v", n, name, formatOf(t, e), err)
			}
			again.Close()
		}
		if !reached {
			break
		}
	}
	if seen[1] == 0 || seen[2] == 0 {
		t.Errorf("cut off in formats %v", seen)
	}
}

// FV6: hosts of both versions commit all the time while the store is upgraded. What they were
// told is committed is there.
func TestFV6_HostsCommitWhileAStoreIsUpgraded(t *testing.T) {
	turns := testkit.Pick(300, 60, 20)
	e := memory.New()
	today := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
	next, err := openNext(e, false)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	acknowledged := make([]int, 4)
	var hosts sync.WaitGroup
	begun := make(chan struct{}, len(acknowledged))
	for host := range acknowledged {
		hosts.Go(func() {
			signal := sync.OnceFunc(func() { begun <- struct{}{} })
			defer signal()
			st := today
			if host%2 == 1 {
				st = next
			}
			s, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint(host)})
			if err != nil {
				t.Error(err)
				return
			}
			for i := range turns {
				if i == turns/4 {
					signal()
				}
				_, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: saying(fmt.Append(nil, i))})
				if errors.Is(err, damage.ErrNewer) && st == today {
					return // it is too old for the store
				}
				if err != nil {
					t.Error(err)
					return
				}
				acknowledged[host]++
			}
		})
	}
	for range acknowledged {
		<-begun
	}
	upgraded, err := openNext(e, true)
	if err != nil {
		t.Fatal(err)
	}
	defer upgraded.Close()
	for host := range acknowledged { // and the upgraded one beside them
		s, err := upgraded.Session(ctx, fmt.Sprint(host))
		if err == nil {
			_, err = s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: saying([]byte("upgraded"))})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	hosts.Wait()
	for host, n := range acknowledged {
		s, err := upgraded.Session(ctx, fmt.Sprint(host))
		if err != nil {
			t.Fatal(err)
		}
		state, err := s.Load(ctx, turnstone.Scope{})
		if err != nil || len(state.Nodes) != n+1 {
			t.Errorf("host %d: %d of %d nodes, %v", host, len(state.Nodes), n+1, err)
		}
	}
	maintain(t, "at the end", upgraded)
}

// copyOf returns an engine with the same records.
func copyOf(t *testing.T, e engine.Engine) *memory.Engine {
	t.Helper()
	out := memory.New()
	var b engine.Batch
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		b.Set(p.Key, p.Value)
	}
	if err := out.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
	return out
}
