package tests

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
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
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// fill makes a store with something of everything.
func fill(t *testing.T, e engine.Engine) {
	t.Helper()
	st := openStore(t, e, &turnstone.Options{SealBytes: 5000, NoAutoSeal: true})
	defer st.Close()
	for i := range 10 {
		s := create(t, st, turnstone.Request{ID: fmt.Sprint("s", i), Metadata: head.Metadata{Labels: map[string]string{"n": fmt.Sprint(i)}}})
		at, err := s.PutAttachment(ctx, strings.NewReader(strings.Repeat("attached ", 1000*i)), -1, "text/plain", "a")
		if err != nil {
			t.Fatal(err)
		}
		for j := range 20 {
			commitAt(t, s, turnstone.Commit{
				Expected: head.Revision(j), Turn: fmt.Sprint("turn ", j), Usage: []head.Usage{{Model: "m", Input: 1}},
				Nodes:      []turnstone.NewNode{{Kind: "user", Key: fmt.Sprint("k", j), Payload: bytes.Repeat([]byte("text "), 10*j*i)}, {Kind: "tool", Attachments: []blob.Attachment{at}}},
				Checkpoint: map[string][]byte{"p": bytes.Repeat(fmt.Append(nil, j), 100)},
			})
		}
		n, err := s.NodeByKey(ctx, "k3")
		if err == nil {
			err = s.Tombstone(ctx, n.ID)
		}
		if err == nil && i%2 == 0 {
			err = s.Seal(ctx)
		}
		if err == nil && i > 5 {
			_, _, err = st.Create(ctx, turnstone.Request{ID: fmt.Sprint("fork", i), Parent: s.ID(), ForkNode: n.ID})
		}
		if err == nil && i == 9 {
			err = st.Delete(ctx, "s9", turnstone.KeepChildren)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	collect(t, st, gc.Options{})
}

// equalPairs fails unless a and b hold the same pairs, but for the notes of a copy and of maintenance.
func equalPairs(t *testing.T, a, b engine.Engine) {
	t.Helper()
	var all [2][]engine.Pair
	for i, e := range []engine.Engine{a, b} {
		for _, p := range pairs(t, e) {
			if p.Key[4] != keys.Copying && p.Key[4] != keys.Maintenance {
				all[i] = append(all[i], p)
			}
		}
	}
	if len(all[0]) == 0 || len(all[0]) != len(all[1]) {
		t.Fatalf("%d and %d pairs", len(all[0]), len(all[1]))
	}
	for i, p := range all[0] {
		if q := all[1][i]; !bytes.Equal(p.Key, q.Key) || !bytes.Equal(p.Value, q.Value) {
			t.Fatalf("pair %d differs: %x", i, p.Key)
		}
	}
}

func copyStore(t *testing.T, from, to engine.Engine) *turnstone.CopyReport {
	t.Helper()
	r, err := turnstone.Copy(ctx, from, to, turnstone.CopyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// From Badger to PostgreSQL and back, and to every other engine: the same store.
func TestACopyOnAnyEngineIsTheSameStore(t *testing.T) {
	testkit.Slow(t)
	for name, open := range storetest.Engines {
		t.Run(name, func(t *testing.T) {
			storetest.Some(t, name)
			var all []engine.Engine
			for _, open := range []func() (engine.Engine, error){storetest.Engines["badger"](t), open(t), storetest.Engines["badger"](t)} {
				e, err := open()
				if err != nil {
					t.Fatal(err)
				}
				defer e.Close()
				all = append(all, e)
			}
			fill(t, all[0])
			there := copyStore(t, all[0], all[1])
			back := copyStore(t, all[1], all[2])
			equalPairs(t, all[0], all[2])
			if there.Sessions != 13 || back.Sessions != 13 || there.Written != there.Records || there.Deleted != 0 {
				t.Errorf("%+v, %+v", there, back)
			}
			if r := copyStore(t, all[0], all[1]); r.Written != 0 || r.Deleted != 0 || r.Records != there.Records {
				t.Errorf("once more: %+v", r)
			}
			// What is new goes over, what is gone goes.
			st := openStore(t, all[0], &turnstone.Options{NoAutoSeal: true})
			s := session(t, st, "s1")
			commitAt(t, s, turnstone.Commit{Expected: 20, Nodes: []turnstone.NewNode{{Kind: "user"}}})
			remove(t, st, "s2")
			st.Close()
			if r := copyStore(t, all[0], all[1]); r.Written == 0 || r.Written > 30 || r.Deleted == 0 || r.Sessions != 12 {
				t.Errorf("after changes: %+v", r)
			}
			equalPairs(t, all[0], all[1])
		})
	}
}

// A copy that is interrupted anywhere can't be opened before it is whole, the
// first time and when it is brought up to date, and goes on, also when the source
// has changed since.
func TestACopyThatIsInterruptedAnywhereIsFinishedByTheNext(t *testing.T) {
	testkit.Slow(t)
	testkit.OneGoroutine(t)
	// bulk commits what does not compress, so that a copy has many batches.
	payloads := testkit.Pick(8, 5, 3)
	random := rand.NewChaCha8([32]byte{})
	bulk := func(e engine.Engine, id string) {
		st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
		defer st.Close()
		s := create(t, st, turnstone.Request{ID: id})
		for i := range payloads {
			payload := make([]byte, 400<<10)
			random.Read(payload)
			commitAt(t, s, turnstone.Commit{Expected: head.Revision(i), Nodes: []turnstone.NewNode{{Kind: "user", Payload: payload}}})
		}
	}
	from := memory.New()
	defer from.Close()
	fill(t, from)
	bulk(from, "bulk")
	interrupted := 0
	for n, done := 0, 0; done < 2; n++ {
		base := memory.New()
		if done == 1 { // now it is an update
			copyStore(t, from, base)
			bulk(from, fmt.Sprint("more ", n))
			st := openStore(t, from, nil)
			remove(t, st, "s1")
			st.Close()
		}
		faulty := &enginetest.Faulty{Engine: base, Plan: enginetest.CrashAfter(n)}
		_, err := turnstone.Copy(ctx, from, faulty, turnstone.CopyOptions{})
		if err == nil {
			done, n = done+1, -1
		} else {
			interrupted++
			st, err := turnstone.Open(ctx, base, &turnstone.Options{MustExist: true})
			if err != nil && !errors.Is(err, turnstone.ErrUnfinishedCopy) && !errors.Is(err, turnstone.ErrStoreNotFound) {
				t.Errorf("after %d calls: %v", n, err)
			}
			if err == nil {
				if v, err := st.Verify(ctx, turnstone.VerifyOptions{}); err != nil || !v.OK() {
					t.Fatalf("after %d calls what can be opened is no store: %v", n, err)
				}
				st.Close()
			}
		}
		if n%5 == 3 { // the source has changed since
			st := openStore(t, from, nil)
			if err := st.Seal(ctx); err != nil {
				t.Fatal(err)
			}
			remove(t, st, fmt.Sprint("more ", n-2))
			vacuum(t, st)
			st.Close()
		}
		copyStore(t, from, base)
		equalPairs(t, from, base)
		base.Close()
	}
	if interrupted < 10 {
		t.Errorf("%d interruptions", interrupted)
	}
}

// Copy refuses a source without a store, and a target that has another store or what is left of
// one. It ends at damage in the source, and writes nothing.
func TestCopyRefusesOtherStoresAndDamage(t *testing.T) {
	from, other, empty := memory.New(), memory.New(), memory.New()
	fill(t, from)
	fill(t, other)
	if _, err := turnstone.Copy(ctx, empty, from, turnstone.CopyOptions{}); !errors.Is(err, turnstone.ErrStoreNotFound) {
		t.Error(err)
	}
	if _, err := turnstone.Copy(ctx, from, other, turnstone.CopyOptions{}); !errors.Is(err, turnstone.ErrOtherStore) {
		t.Error(err)
	}
	// One that lost its record is another one still.
	var b engine.Batch
	for _, p := range pairs(t, other) {
		if p.Key[4] == keys.Store {
			b.Delete(p.Key)
		}
	}
	if err := other.Apply(ctx, &b); err != nil || b.Ops() != 1 {
		t.Fatal(err)
	}
	before := stored(t, other)
	if _, err := turnstone.Copy(ctx, from, other, turnstone.CopyOptions{}); !errors.Is(err, turnstone.ErrOtherStore) {
		t.Error(err)
	}
	if stored(t, other) != before {
		t.Error("it was changed")
	}
	// Damage is not passed over, and destroys no good copy.
	mirror, nothing := memory.New(), memory.New()
	copyStore(t, from, mirror)
	before = stored(t, mirror)
	flipOne(t, from)
	var corrupt *damage.CorruptError
	for _, to := range []engine.Engine{mirror, nothing} {
		if _, err := turnstone.Copy(ctx, from, to, turnstone.CopyOptions{}); !errors.As(err, &corrupt) {
			t.Error(err)
		}
	}
	if stored(t, mirror) != before || stored(t, nothing) != 0 {
		t.Error("something was written")
	}
}

// flipOne flips a bit of a pack.
func flipOne(t *testing.T, e engine.Engine) {
	t.Helper()
	for _, p := range pairs(t, e) {
		if p.Key[4] == keys.Segment {
			v := bytes.Clone(p.Value)
			v[len(v)/2] ^= 1
			if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: p.Key, Value: v}}}); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("there is nothing to damage")
}

// What is changed while it is copied is copied again; a source that never rests is
// refused as such, and no torn copy can be opened.
func TestACopyOfABusyStoreIsWholeOrRefused(t *testing.T) {
	testkit.Slow(t)
	testkit.OneGoroutine(t)
	for _, restless := range []bool{false, true} {
		for at := 1; at < 600; at += testkit.Pick(50, 120, 300) {
			base, to := memory.New(), memory.New()
			fill(t, base)
			st := openStore(t, base, &turnstone.Options{NoAutoSeal: true})
			changes, within := 0, false
			change := func(scan, n int) {
				if within || scan < 2 || n != at || changes > 0 && !restless {
					return
				}
				within = true
				changes++
				id := fmt.Sprint("new", changes)
				s := create(t, st, turnstone.Request{ID: id})
				for i := range 3 {
					commitAt(t, s, turnstone.Commit{Expected: head.Revision(i), Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte(id)}}})
				}
				err := s.Seal(ctx)
				if changes > 2 && err == nil {
					err = st.Delete(ctx, fmt.Sprint("new", changes-2), turnstone.KeepChildren)
				}
				if old, oerr := st.Session(ctx, "s1"); err == nil && oerr == nil { // changes that move no head
					n, kerr := old.NodeByKey(ctx, fmt.Sprint("k", 4+changes))
					err = errors.Join(kerr, old.Tombstone(ctx, n.ID), old.SaveMetadata(ctx, head.Metadata{Name: id}))
				}
				if err == nil {
					_, err = st.GC(ctx, gc.Options{})
				}
				if err != nil {
					t.Fatal(err)
				}
				within = false
			}
			scans := 0 // of everything: first that of the verification, then each pass of the copy
			from := &interceptor{Engine: base, scan: func(r engine.Range) func(engine.Pair) error {
				if r.Limit != 0 || len(r.Start) != 4 {
					return nil
				}
				scans++
				n := 0
				return func(engine.Pair) error {
					n++
					change(scans, n)
					return nil
				}
			}}
			r, err := turnstone.Copy(ctx, from, to, turnstone.CopyOptions{})
			switch {
			case changes == 0 && at < 300:
				t.Errorf("at %d nothing was changed", at)
			case restless && changes > 0 && !errors.Is(err, turnstone.ErrConflict):
				t.Errorf("at %d, restless: %v", at, err)
			case !restless && (err != nil || r.Sessions < 13):
				t.Errorf("at %d: %+v, %v", at, r, err)
			}
			if err == nil {
				equalPairs(t, base, to)
			}
			copied, oerr := turnstone.Open(ctx, to, &turnstone.Options{MustExist: true})
			if (oerr == nil) != (err == nil) {
				t.Errorf("at %d: copied: %v; opened: %v", at, err, oerr)
			}
			if oerr == nil {
				if v, err := copied.Verify(ctx, turnstone.VerifyOptions{}); err != nil || !v.OK() {
					t.Errorf("at %d: %v, %v", at, v, err)
				}
				copied.Close()
			}
			st.Close()
			copyStore(t, base, to)
			equalPairs(t, base, to)
		}
	}
}

// Somebody may make a store in the target between the look and the first write.
func TestACopyLeavesAStoreThatIsMadeMeanwhile(t *testing.T) {
	from, to := memory.New(), memory.New()
	fill(t, from)
	first := true
	_, err := turnstone.Copy(ctx, from, &enginetest.Faulty{Engine: to, Plan: func(c enginetest.Call) enginetest.Fault {
		if c.Op == "Apply" && first {
			first = false
			fill(t, to)
		}
		return enginetest.Fault{}
	}}, turnstone.CopyOptions{})
	if !errors.Is(err, turnstone.ErrConflict) {
		t.Errorf("%v", err)
	}
	st, err := turnstone.Open(ctx, to, &turnstone.Options{MustExist: true})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if v, err := st.Verify(ctx, turnstone.VerifyOptions{}); err != nil || !v.OK() || v.Sessions != 12+1 {
		t.Errorf("%+v, %v", v, err)
	}
}

// What one copy writes while another one runs makes no torn store.
func TestTwoCopiesAtOnceMakeNoTornStore(t *testing.T) {
	testkit.Slow(t)
	testkit.OneGoroutine(t)
	older, newer := memory.New(), memory.New()
	fill(t, older)
	copyStore(t, older, newer)
	st := openStore(t, newer, &turnstone.Options{NoAutoSeal: true})
	for i := range 3 {
		s := create(t, st, turnstone.Request{ID: fmt.Sprint("more", i)})
		commitTo(t, s, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Payload: bytes.Repeat([]byte("x"), 400<<10)}}})
	}
	st.Close()
	for _, halfway := range []int{0, 1, 2} { // what there is at first: nothing, a copy of the older one begun, all of it
		for n := 1; ; n += max(1, n/testkit.Pick(6, 1, 1)) {
			to := memory.New()
			if halfway > 0 {
				copyStore(t, older, to)
			}
			if halfway == 1 {
				if _, err := turnstone.Copy(ctx, newer, &enginetest.Faulty{Engine: to, Plan: enginetest.CrashAfter(1)}, turnstone.CopyOptions{}); err == nil {
					t.Fatal("it was not interrupted")
				}
			}
			within := false
			_, err := turnstone.Copy(ctx, newer, &enginetest.Faulty{Engine: to, Plan: func(c enginetest.Call) enginetest.Fault {
				if c.N == n {
					within = true
					if _, err := turnstone.Copy(ctx, older, to, turnstone.CopyOptions{Overwrite: true}); err != nil && !errors.Is(err, turnstone.ErrConflict) {
						t.Errorf("call %d: the second one: %v", n, err)
					}
				}
				return enginetest.Fault{}
			}}, turnstone.CopyOptions{})
			if !within {
				break
			}
			if err != nil && !errors.Is(err, turnstone.ErrConflict) { // Both are copies of one store: neither is told of another one.
				t.Errorf("call %d: %v", n, err)
			}
			st, oerr := turnstone.Open(ctx, to, &turnstone.Options{MustExist: true})
			if oerr != nil {
				if err == nil || !errors.Is(oerr, turnstone.ErrUnfinishedCopy) {
					t.Errorf("call %d: %v, %v", n, err, oerr)
				}
				continue
			}
			if v, verr := st.Verify(ctx, turnstone.VerifyOptions{}); verr != nil || !v.OK() || err == nil && v.Sessions != 16 {
				t.Errorf("from %d, call %d: %v; %+v, %v", halfway, n, err, v, verr)
			}
			st.Close()
		}
	}
}

// Nobody makes a store on top of a copy that has begun.
func TestNoStoreIsMadeOverACopyThatHasBegun(t *testing.T) {
	from, to := memory.New(), memory.New()
	fill(t, from)
	_, err := turnstone.Open(ctx, &enginetest.Faulty{Engine: to, Plan: func(c enginetest.Call) enginetest.Fault {
		if c.Apply == 1 {
			if _, err := turnstone.Copy(ctx, from, &enginetest.Faulty{Engine: to, Plan: enginetest.CrashAfter(1)}, turnstone.CopyOptions{}); err == nil {
				t.Error("it was not interrupted")
			}
		}
		return enginetest.Fault{}
	}}, nil)
	if !errors.Is(err, turnstone.ErrUnfinishedCopy) {
		t.Error(err)
	}
}

// What was written to a copy is not removed by a copy that nobody thought of.
func TestACopyThatWasWrittenToIsNotOverwritten(t *testing.T) {
	from, to := memory.New(), memory.New()
	fill(t, from)
	copyStore(t, from, to)
	st := openStore(t, to, &turnstone.Options{NoAutoSeal: true})
	s := create(t, st, turnstone.Request{ID: "precious"})
	commitTo(t, s, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user"}}})
	st.Close()
	before := stored(t, to)
	if _, err := turnstone.Copy(ctx, from, to, turnstone.CopyOptions{}); !errors.Is(err, turnstone.ErrConflict) || stored(t, to) != before {
		t.Errorf("%v", err)
	}
	if _, err := turnstone.Copy(ctx, from, to, turnstone.CopyOptions{Overwrite: true}); err != nil {
		t.Error(err)
	}
	equalPairs(t, from, to)
	copyStore(t, from, to)
	// A record that was set, and one that was deleted, are no less.
	for i, c := range []turnstone.RecordChange{{Key: "precious", Value: []byte("set in the copy")}, {Key: "copied", Value: []byte("changed in the copy")}, {Key: "copied", Action: turnstone.DeleteRecord}} {
		source := openStore(t, from, &turnstone.Options{NoAutoSeal: true})
		page, err := source.List(ctx, turnstone.ListOptions{Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		id := page.Sessions[0].ID
		change(t, session(t, source, id), turnstone.RecordChange{Key: "copied"})
		source.Close()
		copyStore(t, from, to)
		st := openStore(t, to, &turnstone.Options{NoAutoSeal: true})
		change(t, session(t, st, id), c)
		st.Close()
		if _, err := turnstone.Copy(ctx, from, to, turnstone.CopyOptions{}); !errors.Is(err, turnstone.ErrConflict) {
			t.Errorf("change %d: %v", i, err)
		}
		if _, err := turnstone.Copy(ctx, from, to, turnstone.CopyOptions{Overwrite: true}); err != nil {
			t.Error(err)
		}
		equalPairs(t, from, to)
	}
	// A vacuum of the copy, which removes the records of deleted sessions, is no change of it.
	source := openStore(t, from, &turnstone.Options{NoAutoSeal: true})
	change(t, create(t, source, turnstone.Request{ID: "deleted"}), turnstone.RecordChange{Key: "k"})
	remove(t, source, "deleted")
	source.Close()
	copyStore(t, from, to)
	st = openStore(t, to, &turnstone.Options{NoAutoSeal: true})
	vacuum(t, st)
	st.Close()
	copyStore(t, from, to)
}

// A report counts what was written, not what was to be.
func TestTheReportOfAnInterruptedCopyCountsWhatWasWritten(t *testing.T) {
	from := memory.New()
	fill(t, from)
	to := &enginetest.Faulty{Engine: memory.New(), Plan: func(c enginetest.Call) enginetest.Fault {
		return enginetest.Fault{Crash: c.Apply == 2}
	}}
	if r, err := turnstone.Copy(ctx, from, to, turnstone.CopyOptions{}); err == nil || r.Written != 0 || r.Bytes != 0 || r.Records == 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// An attempt that comes late changes nothing, the first time or when a copy is
// brought up to date.
func TestALateAttemptOfACopyChangesNothing(t *testing.T) {
	testkit.Slow(t)
	testkit.OneGoroutine(t)
	from := memory.New()
	fill(t, from)
	for i := range 4 {
		update, often := i%2 == 1, i/2 == 1
		for n := 1; ; n++ {
			base := memory.New()
			if update {
				copyStore(t, from, base)
				st := openStore(t, from, &turnstone.Options{NoAutoSeal: true})
				s := create(t, st, turnstone.Request{ID: fmt.Sprint("more", n)})
				commitTo(t, s, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user"}}})
				st.Close()
			}
			var late *engine.Batch // its outcome is unknown, and it takes effect when everything is over
			copyStore(t, from, &enginetest.Faulty{Engine: base, Plan: func(c enginetest.Call) enginetest.Fault {
				if c.Apply == n {
					late = &engine.Batch{Guards: slices.Clone(c.Batch.Guards), Sets: slices.Clone(c.Batch.Sets), Deletes: slices.Clone(c.Batch.Deletes)}
					return enginetest.Fault{Err: engine.ErrUnknown}
				}
				if often && late != nil && c.Apply > n+1 { // it is tried before each but the next, too
					_ = base.Apply(ctx, late) // nobody learns of it
				}
				return enginetest.Fault{}
			}})
			if late == nil {
				if n < 4 {
					t.Errorf("%d attempts", n)
				}
				break
			}
			if err := base.Apply(ctx, late); !errors.Is(err, engine.ErrConflict) {
				t.Errorf("attempt %d, update %v: late, it ends with %v", n, update, err)
			}
			equalPairs(t, from, base)
			if st, err := turnstone.Open(ctx, base, &turnstone.Options{MustExist: true}); err != nil {
				t.Errorf("attempt %d, update %v: %v", n, update, err)
			} else {
				st.Close()
			}
		}
	}
}

// SP9
func TestAnEngineThatAStoreIsMovedToCantBeOpened(t *testing.T) {
	e, st := onMemory(t, nil)
	create(t, st, turnstone.Request{ID: "a"}, []byte("text"))
	mark := &engine.Batch{Sets: []engine.Pair{{Key: engine.UnfinishedKey, Value: []byte("a move")}}}
	if err := e.Apply(ctx, mark); err != nil {
		t.Fatal(err)
	}
	for _, o := range []*turnstone.Options{nil, {MustExist: true}, {Namespace: "another"}} {
		if _, err := turnstone.Open(ctx, e, o); !errors.Is(err, turnstone.ErrUnfinishedCopy) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if err := e.Apply(ctx, &engine.Batch{Deletes: [][]byte{engine.UnfinishedKey}}); err != nil {
		t.Fatal(err)
	}
	if s, err := openStore(t, e, nil).Session(ctx, "a"); err != nil || s == nil {
		t.Error(err)
	}
}

// A store without sessions is copied, with the feed on or off; so is an original from its copy, unless something was
// committed to it since.
func TestACopyOfAnEmptyStoreAndBackOntoTheOriginal(t *testing.T) {
	for _, feed := range []bool{false, true} {
		from, st := onMemory(t, nil)
		if feed {
			must(t, st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour}))
		}
		to := memory.New()
		copyStore(t, from, to)
		equalPairs(t, from, to)
		again := openStore(t, to, &turnstone.Options{MustExist: true})
		create(t, again, turnstone.Request{ID: "in the copy"}, []byte("x"))
		copyStore(t, to, from)
		equalPairs(t, from, to)

		create(t, st, turnstone.Request{ID: "in the original"}, []byte("x"))
		if _, err := turnstone.Copy(ctx, to, from, turnstone.CopyOptions{}); !errors.Is(err, turnstone.ErrConflict) {
			t.Errorf("a copy onto an original that was written to: %v", err)
		}
		session(t, st, "in the original")
	}
}
