package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A delayed engine keeps its nth batch, whose outcome is unknown, until land is called.
type delayed struct {
	engine.Engine
	n    int
	kept *engine.Batch
	then func() // called when the batch is kept
}

func (d *delayed) Apply(ctx context.Context, b *engine.Batch) error {
	if d.n--; d.n == 0 {
		d.kept = b
		d.then()
		return engine.ErrUnknown
	}
	return d.Engine.Apply(ctx, b)
}

func (d *delayed) land() error { return d.Engine.Apply(ctx, d.kept) }

// What StartFeed and StopFeed have done stands, even if a batch of an earlier call, whose outcome was unknown, comes
// later.
func TestWA8_NoEarlierCallComesAfterAStartOrAnEnd(t *testing.T) {
	start := func(keep time.Duration) func(context.Context, *turnstone.Store) error {
		return func(ctx context.Context, st *turnstone.Store) error {
			return st.StartFeed(ctx, turnstone.FeedOptions{Keep: keep})
		}
	}
	stop := func(ctx context.Context, st *turnstone.Store) error { return st.StopFeed(ctx) }
	finish := func(ctx context.Context, st *turnstone.Store) error { _, err := st.GC(ctx, gc.Options{}); return err }
	type call struct {
		name string
		do   func(context.Context, *turnstone.Store) error
		keep time.Duration
	}
	hour, day := call{"start for an hour", start(time.Hour), time.Hour}, call{"start for a day", start(24 * time.Hour), 24 * time.Hour}
	end := call{"stop", stop, 0}
	late := 0
	for state, prepare := range map[string]func(engine.Engine, *turnstone.Store){
		"never on":      func(engine.Engine, *turnstone.Store) {},
		"on":            func(_ engine.Engine, st *turnstone.Store) { startFeed(t, st) },
		"begun in part": func(e engine.Engine, _ *turnstone.Store) { cutOff(t, e, false) },
		"ended in part": func(e engine.Engine, st *turnstone.Store) { startFeed(t, st); cutOff(t, e, true) },
		"off again":     func(_ engine.Engine, st *turnstone.Store) { startFeed(t, st); stop(ctx, st) },
	} {
		for _, first := range []call{hour, day, end, {"collection", finish, 0}} {
			for _, then := range [][]call{{hour}, {day}, {end}, {hour, end}, {end, hour}, {day, hour}} {
				for _, gives := range []bool{false, true} { // up, when its batch is kept
					for n, kept := 1, true; kept; n++ {
						name := fmt.Sprintf("%s; %s, batch %d is kept, gives up: %v; then %v", state, first.name, n, gives, then)
						mem, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
						s := create(t, st, turnstone.Request{ID: "s"}, []byte("x"))
						prepare(mem, st)
						limited, cancel := context.WithCancel(ctx)
						d := &delayed{Engine: mem, then: func() {
							if gives {
								cancel()
							}
						}}
						other := openStore(t, d, &turnstone.Options{NoAutoSeal: true})
						d.n = n
						err := first.do(limited, other)
						cancel()
						if kept = d.kept != nil; !kept {
							break
						}
						if err != nil && !gives {
							t.Fatalf("%s: %v", name, err)
						}
						for _, c := range then {
							if err := c.do(ctx, st); err != nil {
								t.Fatalf("%s: %v", name, err)
							}
						}
						if d.land() == nil {
							late++
						}
						collect(t, st, gc.Options{})
						keep := then[len(then)-1].keep
						f, err := st.Feed(ctx)
						switch {
						case keep == 0 && !errors.Is(err, turnstone.ErrFeedOff):
							t.Fatalf("%s: the feed is on: %v", name, err)
						case keep > 0 && (err != nil || f.Keep != keep):
							t.Fatalf("%s: %v, %v", name, f.Keep, err)
						}
						commitTo(t, s, turnstone.Commit{})
						told := 0
						if keep > 0 {
							got, err := changes(st, f.End)
							if err != nil {
								t.Fatalf("%s: %v", name, err)
							}
							told = len(got)
						} else {
							told = letters(t, mem)[keys.Pending]
						}
						if want := min(1, int(keep)); told != want {
							t.Fatalf("%s: the next commit told %d changes, want %d", name, told, want)
						}
						verify(t, st)
					}
				}
			}
		}
	}
	if late == 0 {
		t.Error("no batch came late")
	}
}

// Starts at once all end, whatever each says of how long changes are kept: none undoes what another one is at.
func TestWA8_StartsAtOnceAllEnd(t *testing.T) {
	mem, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	for i := range 50 {
		create(t, st, turnstone.Request{ID: fmt.Sprint(i)})
	}
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var starts sync.WaitGroup
	for i := range 4 {
		f := &enginetest.Faulty{Engine: mem, Plan: func(enginetest.Call) enginetest.Fault { return enginetest.Fault{Latency: 50 * time.Microsecond} }}
		other := openStore(t, f, &turnstone.Options{NoAutoSeal: true})
		starts.Go(func() {
			if err := other.StartFeed(limited, turnstone.FeedOptions{Keep: time.Duration(i+1) * time.Hour}); err != nil {
				t.Error(err)
			}
		})
	}
	starts.Wait()
	verify(t, st)
}

// A start that a full disk has cut off holds up no collection.
func TestWA8_ACollectionWorksWhereThereIsNoSpaceToStart(t *testing.T) {
	mem, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	for i, id := range []string{"a", "b"} {
		create(t, st, turnstone.Request{ID: id}, random(200<<10, uint64(i)))
	}
	cutOff(t, mem, false)
	full := openStore(t, &enginetest.Faulty{Engine: mem, Plan: func(c enginetest.Call) enginetest.Fault {
		if c.Batch != nil && !c.Batch.Reclaim {
			return enginetest.Fault{Err: engine.ErrNoSpace}
		}
		return enginetest.Fault{}
	}}, &turnstone.Options{NoAutoSeal: true})
	if err := full.Delete(ctx, "a", turnstone.KeepChildren); err != nil {
		t.Fatal(err)
	}
	if r, err := full.GC(ctx, gc.Options{}); err != nil || r.Deleted == 0 {
		t.Errorf("%+v, %v", r, err)
	}
	collect(t, st, gc.Options{}) // With space it goes on.
	if _, err := st.Feed(ctx); err != nil {
		t.Error(err)
	}
}

// Heads that are damaged are passed over, by name: the feed is on, or off, for all others. Whoever looks after the
// feed next looks at them again.
func TestWA8_DamagedHeadsArePassedOverUntilTheyAreWhole(t *testing.T) {
	for _, ends := range []bool{false, true} {
		for name, again := range map[string]func(*turnstone.Store) error{
			"again":      func(st *turnstone.Store) error { return turnFeed(st, !ends) },
			"collection": func(st *turnstone.Store) error { _, err := st.GC(ctx, gc.Options{}); return err },
		} {
			for _, lost := range []bool{false, true} { // the reply of the last batch
				mem, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
				for i := range 14 {
					create(t, st, turnstone.Request{ID: fmt.Sprint(i)}, []byte("x"))
				}
				if ends {
					startFeed(t, st)
				}
				harm, whole := &engine.Batch{}, &engine.Batch{}
				for i := range 12 {
					at := spaceOf(st).Head(spaceOf(st).Session(fmt.Sprint(i)))
					vs, err := mem.Get(ctx, at)
					if err != nil {
						t.Fatal(err)
					}
					whole.Set(at, vs[0])
					bad := bytes.Clone(vs[0])
					bad[len(bad)-1] ^= 1
					harm.Set(at, bad)
				}
				if err := mem.Apply(ctx, harm); err != nil {
					t.Fatal(err)
				}
				f := &enginetest.Faulty{Engine: mem}
				st = openStore(t, f, &turnstone.Options{NoAutoSeal: true})
				applies := 0
				f.Plan = func(c enginetest.Call) enginetest.Fault {
					if c.Op == "Apply" {
						applies++
					}
					// Each second batch takes effect, and its reply is lost.
					if lost && c.Op == "Apply" && applies%2 == 0 {
						return enginetest.Fault{Err: engine.ErrUnknown, Applied: true}
					}
					return enginetest.Fault{}
				}
				var corrupt *damage.CorruptError
				err := turnFeed(st, !ends)
				if !errors.As(err, &corrupt) || !strings.Contains(corrupt.Object, "head of session \"") || !errors.Is(err, turnstone.ErrIncomplete) ||
					errors.Is(err, turnstone.ErrOutcomeUnknown) || !strings.Contains(err.Error(), "and 2 more") {
					t.Errorf("ends %v, a reply is lost: %v: %v", ends, lost, err)
				}
				f.Plan = nil
				feed, err := st.Feed(ctx)
				if ends != errors.Is(err, turnstone.ErrFeedOff) {
					t.Errorf("ends %v: %v", ends, err)
				}
				if again(st) == nil {
					t.Errorf("%s, ends %v: it does not look again", name, ends)
				}
				if err := mem.Apply(ctx, whole); err != nil {
					t.Fatal(err)
				}
				if err := again(st); err != nil {
					t.Errorf("%s, ends %v: %v", name, ends, err)
				}
				for i := range 14 {
					commitTo(t, session(t, st, fmt.Sprint(i)), turnstone.Commit{})
				}
				if ends {
					if l := letters(t, mem); l[keys.Pending]+l[keys.Change]+l[keys.FeedEnd] != 0 {
						t.Errorf("%s: %v", name, l)
					}
				} else if got, err := changes(st, feed.End); err != nil || len(got) != 14 {
					t.Errorf("%s: %d changes, %v", name, len(got), err)
				}
				verify(t, st)
			}
		}
	}
}

// A start after an end that damage holds up begins another feed.
func TestWA8_AStartAfterAnEndThatDamageHoldsUp(t *testing.T) {
	mem, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	for _, id := range []string{"a", "b"} {
		create(t, st, turnstone.Request{ID: id}, []byte("x"))
	}
	begin := startFeed(t, st)
	space := spaceOf(st)
	b := &engine.Batch{}
	b.Set(space.Head(space.Session("a")), []byte("no head"))
	if err := mem.Apply(ctx, b); err != nil {
		t.Fatal(err)
	}
	st = openStore(t, mem, &turnstone.Options{NoAutoSeal: true})
	if err := st.StopFeed(ctx); !errors.Is(err, turnstone.ErrIncomplete) {
		t.Fatal(err)
	}
	if err := st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour}); !errors.Is(err, turnstone.ErrIncomplete) {
		t.Error(err)
	}
	f := feedOf(t, st)
	if _, err := changes(st, begin); !errors.Is(err, turnstone.ErrCursorExpired) {
		t.Errorf("a cursor of the feed that ended: %v", err)
	}
	commitTo(t, session(t, st, "b"), turnstone.Commit{})
	if got, err := changes(st, f.End); err != nil || len(got) != 1 {
		t.Errorf("%d changes, %v", len(got), err)
	}
}

// A watch of the same store hears of an end at once.
func TestWA8_AWatchEndsWithTheFeed(t *testing.T) {
	_, st := onMemory(t, &turnstone.Options{NoAutoSeal: true, PollEvery: time.Hour})
	begin := startFeed(t, st)
	s := create(t, st, turnstone.Request{ID: "s"})
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for c, err := range st.Watch(limited, begin) {
		if err != nil {
			if !errors.Is(err, turnstone.ErrFeedOff) {
				t.Error(err)
			}
			break
		}
		if c.Revision == 1 {
			time.AfterFunc(10*time.Millisecond, func() {
				if err := st.StopFeed(ctx); err != nil {
					t.Error(err)
				}
			})
		} else if c.Kind == turnstone.ChangeCreated {
			commitTo(t, s, turnstone.Commit{})
		}
	}
}

// Verify does not take a feed that is begun and ended beside it for damage.
func TestWA13_VerifyBesideAFeedThatIsBegunAndEnded(t *testing.T) {
	mem := memory.New()
	st := openStore(t, mem, &turnstone.Options{NoAutoSeal: true})
	create(t, st, turnstone.Request{ID: "s"}, []byte("x"))
	pending := spaceOf(st).All(keys.Pending)
	n := 0
	beside := openStore(t, &interceptor{Engine: mem, scan: func(r engine.Range) func(engine.Pair) error {
		if r.Limit != 1 || string(r.Start) != string(pending.Start) {
			return func(engine.Pair) error { return nil }
		}
		startFeed(t, st)
		n++
		create(t, st, turnstone.Request{ID: fmt.Sprint("n", n)})
		return func(engine.Pair) error { return st.StopFeed(ctx) }
	}}, &turnstone.Options{NoAutoSeal: true})
	verify(t, beside)
	if n == 0 {
		t.Error("nothing was begun")
	}
}

// The record of a feed that is off says no more than none does, but for how often it was written: nobody misses it.
func TestVF1_TheRecordOfAFeedThatIsOffIsNotMissed(t *testing.T) {
	mem, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	s := create(t, st, turnstone.Request{ID: "s"}, []byte("x"))
	startFeed(t, st)
	if err := st.StopFeed(ctx); err != nil {
		t.Fatal(err)
	}
	b := &engine.Batch{}
	b.Delete(spaceOf(st).Feed())
	if err := mem.Apply(ctx, b); err != nil {
		t.Fatal(err)
	}
	verify(t, st)
	commitTo(t, s, turnstone.Commit{})
	if _, err := st.Feed(ctx); !errors.Is(err, turnstone.ErrFeedOff) || letters(t, mem)[keys.Pending] != 0 {
		t.Error(err)
	}
	startFeed(t, st)
	verify(t, st)
}
