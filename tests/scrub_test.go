package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// scrub scrubs a store and returns the report. The scrub has to succeed.
func scrub(t *testing.T, st *turnstone.Store, o turnstone.ScrubOptions) *turnstone.ScrubReport {
	t.Helper()
	r, err := st.Scrub(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Whatever record is altered, a scrub names its kind. It also reads what the hashes of segments and blobs say.
func TestVF9_AScrubFindsEachRecordThatIsAltered(t *testing.T) {
	testkit.OneGoroutine(t)
	e := full(t)
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
	if r := scrub(t, st, turnstone.ScrubOptions{}); len(r.Problems) > 0 || r.LastFound > 0 || !r.Ended || r.LastBegan.IsZero() || r.Records < 100 {
		t.Fatalf("%+v", r)
	} else if s, err := st.Stats(ctx); err != nil || !s.Scrubbed.Equal(r.LastBegan) {
		t.Errorf("%+v, %v", s, err)
	}
	all := pairs(t, e)
	check := func(p engine.Pair, value []byte, how string) {
		t.Helper()
		b := engine.Batch{Sets: []engine.Pair{{Key: p.Key, Value: value}}}
		if value == nil {
			b = engine.Batch{Deletes: [][]byte{p.Key}}
		}
		if err := e.Apply(ctx, &b); err != nil {
			t.Fatal(err)
		}
		r := scrub(t, st, turnstone.ScrubOptions{})
		if len(r.Problems) == 0 || r.LastFound != uint64(len(r.Problems)) {
			t.Errorf("%s of %x, %s: %+v", named[p.Key[4]], p.Key, how, r)
		}
		for _, err := range r.Problems {
			var corrupt *damage.CorruptError
			if !errors.As(err, &corrupt) || !strings.Contains(err.Error(), named[p.Key[4]]) {
				t.Errorf("%s of %x, %s: %v", named[p.Key[4]], p.Key, how, err)
			}
		}
		if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{p}}); err != nil {
			t.Fatal(err)
		}
	}
	for i, p := range someOfEach(all, testkit.Pick(len(all), 5, 1)) {
		if p.Key[4] == keys.Store {
			continue // It is read when the store is opened.
		}
		flipped := bytes.Clone(p.Value)
		flipped[i%len(flipped)] ^= 1 << (i % 8)
		check(p, flipped, "altered")
	}
	for _, p := range all {
		letter, value := p.Key[4], p.Key[len(p.Key)-1]
		if letter == keys.Segment && value == 1 || letter == keys.Blob && value == 0 { // what they hold
			body := bytes.Clone(p.Value[2 : len(p.Value)-4])
			body[len(body)-1] ^= 1
			check(p, codec.Encode(p.Key, letter, body), "altered with a right checksum")
		}
		if (letter == keys.Segment || letter == keys.Blob) && value == 1 {
			check(p, nil, "removed")
		}
	}
	if r := scrub(t, st, turnstone.ScrubOptions{}); len(r.Problems) > 0 {
		t.Errorf("all is as it was: %v", r.Problems)
	}
	verify(t, st)
}

// many makes a store that takes several slices of a scrub.
func many(t *testing.T) *memory.Engine {
	t.Helper()
	e := memory.New()
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
	s := create(t, st, turnstone.Request{ID: "s"})
	for i := range 2500 {
		commitTo(t, s, turnstone.Commit{Nodes: saying([]byte(fmt.Sprint(i)))})
	}
	return e
}

// A scrub that ends early, or whose process dies at any of its writes, is gone on with where it was last noted, and
// what it has found so far counts.
func TestVF9_AScrubGoesOnWhereItStopped(t *testing.T) {
	testkit.OneGoroutine(t)
	e := many(t)
	before := pairs(t, e)
	damaged := before[len(before)/4]
	if damaged.Key[4] != keys.Segment && damaged.Key[4] != keys.Blob {
		t.Fatalf("%q", damaged.Key[4])
	}
	damaged.Value[len(damaged.Value)-1] ^= 1
	if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{damaged}}); err != nil {
		t.Fatal(err)
	}
	clock := time.Unix(1_800_000_000, 0).UTC()
	for name, plan := range map[string]func() func(enginetest.Call) enginetest.Fault{
		"no fault":   func() func(enginetest.Call) enginetest.Fault { return nil },
		"crash":      func() func(enginetest.Call) enginetest.Fault { return enginetest.CrashAfter(1) },
		"lost reply": func() func(enginetest.Call) enginetest.Fault { return lost(true) },
		"lost call":  func() func(enginetest.Call) enginetest.Fault { return lost(false) },
	} {
		e := cloned(t, e)
		records, problems, calls := 0, 0, 0
		var r *turnstone.ScrubReport
		for calls = 0; r == nil || r.LastBegan.IsZero(); calls++ {
			o := turnstone.Options{NoAutoSeal: true, Now: func() time.Time { return clock.Add(time.Duration(calls) * time.Hour) }}
			st := openStore(t, &enginetest.Faulty{Engine: e, Plan: plan()}, &o)
			var err error
			r, err = st.Scrub(ctx, turnstone.ScrubOptions{For: 1})
			if err != nil && !errors.Is(err, engine.ErrClosed) {
				t.Fatalf("%s: %v", name, err)
			}
			records, problems = records+r.Records, problems+len(r.Problems)
			st.Close()
		}
		if calls < 3 || records < len(before) || records > len(before)+1 || problems != 1 || r.LastFound != 1 || !r.LastBegan.Equal(clock) || r.Ended && r.Err() == nil {
			t.Errorf("%s: %d calls read %d records of %d and found %d problems: %+v", name, calls, records, len(before), problems, r)
		}
	}
}

// lost returns a plan that loses the reply of each first attempt of a batch.
func lost(applied bool) func(enginetest.Call) enginetest.Fault {
	return func(c enginetest.Call) enginetest.Fault {
		if c.Op != "Apply" || c.Apply%2 == 0 {
			return enginetest.Fault{}
		}
		return enginetest.Fault{Err: engine.ErrUnknown, Applied: applied}
	}
}

// Two processes that scrub a store share the work. A damaged scrub record is reported, and costs a pass.
func TestVF9_ScrubsOfTwoProcessesGoOnWithOneAnother(t *testing.T) {
	testkit.OneGoroutine(t)
	e := many(t)
	a, b := openStore(t, e, nil), openStore(t, e, nil)
	records := 0
	for i := 0; ; i++ {
		r := scrub(t, []*turnstone.Store{a, b}[i%2], turnstone.ScrubOptions{For: 1})
		if records += r.Records; r.Ended {
			break
		}
	}
	if n := len(pairs(t, e)); records < n-1 || records > n {
		t.Errorf("%d records of %d were read", records, n)
	}
	// One of them is overtaken within a call: what it has read counts for nothing, and nothing fails.
	f := &enginetest.Faulty{Engine: e}
	f.Plan = func(c enginetest.Call) enginetest.Fault {
		if c.Op == "Scan" {
			f.Plan = nil
			for range 2 {
				scrub(t, a, turnstone.ScrubOptions{For: 1})
			}
		}
		return enginetest.Fault{}
	}
	slow := openStore(t, f, nil)
	if r := scrub(t, slow, turnstone.ScrubOptions{For: 1}); r.Began.IsZero() || len(r.Problems) > 0 {
		t.Errorf("%+v", r)
	}
	scrub(t, slow, turnstone.ScrubOptions{})
	key := keys.New("", [32]byte{}).Scrub()
	if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: key, Value: []byte("S\x01damaged")}}}); err != nil {
		t.Fatal(err)
	}
	if r := scrub(t, a, turnstone.ScrubOptions{}); len(r.Problems) != 1 || !strings.Contains(r.Problems[0].Error(), "scrub record") || !r.Ended {
		t.Errorf("%+v", r)
	}
	if r := scrub(t, a, turnstone.ScrubOptions{}); len(r.Problems) != 0 {
		t.Errorf("%+v", r)
	}
}

// What happens to a store while it is scrubbed is no damage.
func TestVF9_WhatHappensWhileAScrubReadsIsNoDamage(t *testing.T) {
	st := openStore(t, full(t), &turnstone.Options{SealBytes: 500})
	stop := make(chan struct{})
	var working sync.WaitGroup
	for _, id := range []string{"x", "y"} {
		working.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				s := create(t, st, turnstone.Request{ID: id})
				for j := range 20 {
					commitTo(t, s, turnstone.Commit{Nodes: saying(random(3000, uint64(i*20+j)))})
				}
				remove(t, st, id)
				if i%4 == 0 {
					if _, err := st.Vacuum(ctx, gc.VacuumOptions{NoCompaction: true}); err != nil && !errors.Is(err, gc.ErrSuperseded) {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for range testkit.Pick(200, 30, 5) {
		if r := scrub(t, st, turnstone.ScrubOptions{}); len(r.Problems) > 0 {
			t.Errorf("%v", r.Problems)
			break
		}
	}
	close(stop)
	working.Wait()
}

// A scrub reads as many bytes in a second as it may.
func TestVF9_AScrubKeepsItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := openStore(t, many(t), nil)
		begin := time.Now()
		r := scrub(t, st, turnstone.ScrubOptions{Rate: 1000})
		took, least := time.Since(begin), time.Duration(r.Bytes-1<<20)*time.Millisecond // the last slice needs no rest
		if took < least || took > time.Duration(r.Bytes)*time.Millisecond {
			t.Errorf("%d bytes took %v", r.Bytes, took)
		}
		for _, o := range []turnstone.ScrubOptions{{Rate: -1}, {For: -1}} {
			if _, err := st.Scrub(ctx, o); !errors.Is(err, turnstone.ErrInvalid) {
				t.Errorf("%+v: %v", o, err)
			}
		}
	})
}

// Maintenance scrubs as often as it is told to, goes on with a scrub that was cut off, and reports what it finds.
func TestVF9_MaintenanceScrubs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := many(t)
		o := turnstone.MaintainOptions{Every: 1000 * time.Hour, ScrubEvery: 24 * time.Hour, ScrubRate: 1 << 20}
		var reports []turnstone.Maintained
		o.Report = func(m turnstone.Maintained) {
			if m.Scrub != nil {
				reports = append(reports, m)
			}
		}
		begin := time.Now()
		maintain := func(d time.Duration) {
			st := openStore(t, e, nil)
			stop, err := st.Maintain(o)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(d)
			stop()
			st.Close()
		}
		maintain(100 * time.Millisecond) // The first slice is read at once.
		if len(reports) != 0 {
			t.Fatalf("%+v", reports)
		}
		maintain(50 * time.Hour)
		if len(reports) != 3 {
			t.Fatalf("%d scrubs in 50 hours", len(reports))
		}
		for i, m := range reports {
			if at := m.Scrub.LastBegan.Sub(begin) - time.Duration(i)*24*time.Hour; m.Err != nil || at < 0 || at > 3*time.Minute {
				t.Errorf("scrub %d began %v late: %+v", i, at, m)
			}
		}
		all := pairs(t, e)
		p := all[slices.IndexFunc(all, func(p engine.Pair) bool { return p.Key[4] == keys.Segment })]
		p.Value[len(p.Value)-1] ^= 1
		if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{p}}); err != nil {
			t.Fatal(err)
		}
		maintain(24 * time.Hour)
		var corrupt *damage.CorruptError
		if len(reports) != 4 || !errors.As(reports[3].Err, &corrupt) || len(reports[3].Scrub.Problems) != 1 {
			t.Errorf("%+v", reports[3:])
		}
	})
}

// What the engine can't read is a problem of the scrub, which goes on behind it and finds the next one.
func TestVF9_AScrubGoesOnBehindWhatTheEngineCantRead(t *testing.T) {
	testkit.OneGoroutine(t)
	dir := t.TempDir() + "/store"
	e, err := pebble.Open(dir, nil)
	must(t, err)
	st := openStore(t, e, nil)
	for i := range 30 {
		s := create(t, st, turnstone.Request{ID: fmt.Sprint("s", i)})
		for j := range 10 {
			commitTo(t, s, turnstone.Commit{Nodes: saying(random(4000, uint64(i*10+j)))})
		}
	}
	must(t, e.Vacuum(ctx))
	whole := scrub(t, st, turnstone.ScrubOptions{})
	must(t, errors.Join(st.Close(), e.Close()))
	tables, err := filepath.Glob(dir + "/*.sst")
	must(t, err)
	for _, table := range tables {
		data, err := os.ReadFile(table)
		must(t, err)
		if len(data) < 200_000 {
			continue
		}
		for _, at := range []int{len(data) / 4, len(data) * 3 / 4} {
			data[at] ^= 4
		}
		must(t, os.WriteFile(table, data, 0o600))
	}
	e, err = pebble.Open(dir, nil)
	must(t, err)
	defer e.Close()
	st = openStore(t, e, nil)
	defer st.Close()
	for range 2 { // The second pass finds the same.
		r := scrub(t, st, turnstone.ScrubOptions{})
		if !r.Ended || len(r.Problems) < 1 || r.Records < whole.Records/2 || r.Records > whole.Records-2 { // Where blocks begin differs.
			t.Errorf("%d of %d records were read: %+v", r.Records, whole.Records, r)
		}
		for _, err := range r.Problems {
			var corrupt *damage.CorruptError
			if !errors.As(err, &corrupt) {
				t.Error(err)
			}
		}
	}
}

// A spoilt engine can't read the keys from one on, up to another.
type spoilt struct {
	engine.Engine
	from, to []byte
}

func (e spoilt) bad(key []byte) bool {
	return bytes.Compare(key, e.from) >= 0 && bytes.Compare(key, e.to) < 0
}

func (e spoilt) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	if slices.ContainsFunc(keys, e.bad) {
		return nil, engine.ErrCorrupt
	}
	return e.Engine.Get(ctx, keys...)
}

func (e spoilt) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		for p, err := range e.Engine.Scan(ctx, r) {
			if e.bad(p.Key) {
				yield(engine.Pair{}, engine.ErrCorrupt)
				return
			}
			if !yield(p, err) {
				return
			}
		}
	}
}

// Wherever that place is, little more than it is left out.
func TestVF9_AScrubLeavesOutLittleMoreThanTheEngineCantRead(t *testing.T) {
	e := full(t)
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
	s := create(t, st, turnstone.Request{ID: "long"})
	for i := range 300 {
		commitTo(t, s, turnstone.Commit{Nodes: saying([]byte(fmt.Sprint(i)))})
		if i%10 == 0 {
			change(t, s, turnstone.RecordChange{Key: fmt.Sprint("alice ", i), Value: []byte("v")})
		}
	}
	scrub(t, st, turnstone.ScrubOptions{})
	all := pairs(t, e)
	places := []int{0, 1, 2, len(all) / 3, len(all) / 2, len(all) - 12, len(all) - 2, len(all) - 1}
	for i := range all {
		if i > 0 && all[i].Key[4] != all[i-1].Key[4] { // the first of each kind
			places = append(places, i, i+1)
		}
	}
	read, each := 0, testkit.Pick(1, 2, 8)
	for k, at := range places {
		if k%each != 0 {
			continue
		}
		for _, n := range []int{1, 10} {
			f := spoilt{e, all[at].Key, []byte("\xff")}
			if at+n < len(all) {
				f.to = all[at+n].Key
			}
			st, err := turnstone.Open(ctx, f, nil)
			if err != nil || f.bad(keys.ScrubKey("")) {
				continue // The store can't be opened, or nothing can be noted.
			}
			defer st.Close()
			records, problems := 0, 0
			for ended := false; !ended; {
				r := scrub(t, st, turnstone.ScrubOptions{For: 1})
				records, problems, ended = records+r.Records, problems+len(r.Problems), r.Ended
				vs, err := e.Get(ctx, keys.ScrubKey(""))
				if must(t, err); bytes.Contains(vs[0], []byte("ali")) {
					t.Fatalf("%q", vs[0])
				}
			}
			// Longer keys than are counted go together, and keys with text are read again by the next call.
			if n := min(n, len(all)-at); problems == 0 || problems > 3 || records > len(all)-n+60 || records < len(all)-n-8 {
				t.Errorf("%d from %d (%q) of %d: %d were read, %d problems", n, at, all[at].Key[4], len(all), records, problems)
			}
			read++
		}
	}
	if read < 40/each {
		t.Errorf("%d places", read)
	}
}

// Of several processes that maintain a store one scrubs, and another one goes on when it is gone.
func TestVF9_OneOfSeveralProcessesScrubs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := many(t)
		records, ended, found := 0, 0, 0
		maintain := func(d time.Duration, processes int) {
			var stops []func()
			var telling sync.Mutex
			for range processes {
				st := openStore(t, e, &turnstone.Options{Observer: scrubs(func(o *turnstone.ScrubReport) {
					telling.Lock()
					defer telling.Unlock()
					records += o.Records
				})})
				stop, err := st.Maintain(turnstone.MaintainOptions{Every: 1000 * time.Hour, ScrubEvery: 24 * time.Hour, ScrubRate: 10_000, Report: func(m turnstone.Maintained) {
					telling.Lock()
					defer telling.Unlock()
					if m.Scrub != nil && m.Scrub.Ended {
						ended++
					}
					if m.Scrub != nil && m.Err != nil {
						found++
					}
				}})
				must(t, err)
				stops = append(stops, stop, func() { st.Close() })
			}
			time.Sleep(d)
			for _, stop := range stops {
				stop()
			}
		}
		maintain(12*time.Hour, 4)
		if n := len(pairs(t, e)); ended != 1 || records < n-1 || records > n*3/2 {
			t.Errorf("%d ends, %d records of %d", ended, records, n)
		}
		// What is found is told, also if the process ends before the pass, or before the call that has found it.
		time.Sleep(24 * time.Hour)
		all := pairs(t, e)
		p := all[slices.IndexFunc(all, func(p engine.Pair) bool { return p.Key[4] == keys.Segment })]
		p.Value[len(p.Value)-1] ^= 1
		must(t, e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{p}}))
		ended = 0
		maintain(9*time.Second, 1)
		if found != 1 || ended != 0 {
			t.Errorf("%d problems were told, %d ends", found, ended)
		}
		maintain(time.Hour, 1) // The end says that the pass has found something.
		if found != 2 || ended != 1 {
			t.Errorf("%d problems were told, %d ends", found, ended)
		}
	})
}

// scrubs is an observer of scrubs.
type scrubs func(*turnstone.ScrubReport)

func (f scrubs) Begin(ctx context.Context, _ turnstone.Operation) (context.Context, func(turnstone.Outcome)) {
	return ctx, func(o turnstone.Outcome) {
		if o.Scrub != nil {
			f(o.Scrub)
		}
	}
}

// The scrub record has no text of a caller, belongs to its disk and not to a copy, and keeps no copy from its end.
func TestVF9_TheScrubRecordIsNobodyElses(t *testing.T) {
	e := many(t)
	st := openStore(t, e, nil)
	s := create(t, st, turnstone.Request{ID: "secrets"})
	for i := range 40 {
		var changes []turnstone.RecordChange
		for j := range 50 {
			changes = append(changes, turnstone.RecordChange{Key: fmt.Sprintf("alice@example.org/%d", i*50+j), Value: []byte("v")})
		}
		change(t, s, changes...)
	}
	for {
		r := scrub(t, st, turnstone.ScrubOptions{For: 1})
		vs, err := e.Get(ctx, keys.ScrubKey(""))
		if err != nil || bytes.Contains(vs[0], []byte("alice")) {
			t.Fatalf("%q, %v", vs, err)
		}
		if r.Ended {
			break
		}
	}
	to := memory.New()
	f := &enginetest.Faulty{Engine: e}
	f.Done = func(c enginetest.Call, _ error) {
		if c.Op == "Scan" {
			scrub(t, st, turnstone.ScrubOptions{})
		}
	}
	if _, err := turnstone.Copy(ctx, f, to, turnstone.CopyOptions{}); err != nil {
		t.Fatal(err)
	}
	if s, err := openStore(t, to, nil).Stats(ctx); err != nil || !s.Scrubbed.IsZero() {
		t.Errorf("%+v, %v", s, err)
	}
	scrub(t, openStore(t, to, nil), turnstone.ScrubOptions{})
	if _, err := turnstone.Copy(ctx, e, to, turnstone.CopyOptions{}); err != nil {
		t.Error(err)
	}
	if s, err := openStore(t, to, nil).Stats(ctx); err != nil || s.Scrubbed.IsZero() {
		t.Errorf("%+v, %v", s, err)
	}
}
