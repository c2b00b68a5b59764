package enginetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// A mutant is a correct engine with one defect. The suite must find the defect.
type mutant struct {
	*memory.Engine
	apply func(m *mutant, ctx context.Context, b *engine.Batch) error
	get   func(m *mutant, ctx context.Context, keys [][]byte) ([][]byte, error)
	scan  func(m *mutant, ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error]

	mu   sync.Mutex
	held map[string][]byte
}

func (m *mutant) Apply(ctx context.Context, b *engine.Batch) error {
	if m.apply != nil {
		return m.apply(m, ctx, b)
	}
	return m.Engine.Apply(ctx, b)
}

func (m *mutant) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	if m.get != nil {
		return m.get(m, ctx, keys)
	}
	return m.Engine.Get(ctx, keys...)
}

func (m *mutant) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	if m.scan != nil {
		return m.scan(m, ctx, r)
	}
	return m.Engine.Scan(ctx, r)
}

// checkGuards checks the guards of b without a lock.
func (m *mutant) checkGuards(ctx context.Context, b *engine.Batch) error {
	if err := b.Check(m.Limits()); err != nil {
		return err
	}
	for _, g := range b.Guards {
		vs, err := m.Engine.Get(ctx, g.Key)
		if err != nil {
			return err
		}
		if (vs[0] == nil) != (g.Value == nil) || !bytes.Equal(vs[0], g.Value) {
			return &engine.ConflictError{Key: g.Key}
		}
	}
	return nil
}

// pairs returns what a correct scan yields.
func (m *mutant) pairs(ctx context.Context, r engine.Range) (out []engine.Pair, err error) {
	for p, err := range m.Engine.Scan(ctx, r) {
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

func writes(b *engine.Batch) *engine.Batch { return &engine.Batch{Sets: b.Sets, Deletes: b.Deletes} }

var mutants = map[string]func(dir string) (engine.Engine, error){
	"not serializable: guards are checked before the lock": broken(&mutant{apply: func(m *mutant, ctx context.Context, b *engine.Batch) error {
		if err := m.checkGuards(ctx, b); err != nil {
			return err
		}
		time.Sleep(100 * time.Microsecond)
		return m.Engine.Apply(ctx, writes(b))
	}}),
	"guards are ignored": broken(&mutant{apply: func(m *mutant, ctx context.Context, b *engine.Batch) error {
		return m.Engine.Apply(ctx, writes(b))
	}}),
	"half a batch is applied when a guard fails": broken(&mutant{apply: func(m *mutant, ctx context.Context, b *engine.Batch) error {
		err := m.Engine.Apply(ctx, b)
		if errors.Is(err, engine.ErrConflict) && len(b.Sets) > 0 {
			_ = m.Engine.Apply(ctx, &engine.Batch{Sets: b.Sets[:1]})
		}
		return err
	}}),
	"a batch becomes visible key by key": broken(&mutant{apply: func(m *mutant, ctx context.Context, b *engine.Batch) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if err := m.checkGuards(ctx, b); err != nil {
			return err
		}
		for _, p := range b.Sets {
			if err := m.Engine.Apply(ctx, &engine.Batch{Sets: []engine.Pair{p}}); err != nil {
				return err
			}
			time.Sleep(100 * time.Microsecond)
		}
		return m.Engine.Apply(ctx, &engine.Batch{Deletes: b.Deletes})
	}}),
	"the read-only anomaly: a scan is of a moment before the last write": broken(&mutant{scan: func(m *mutant, ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
		return func(yield func(engine.Pair, error) bool) {
			pairs, err := m.pairs(ctx, r)
			if err != nil {
				yield(engine.Pair{}, err)
				return
			}
			m.mu.Lock()
			old := m.held["scan"+string(r.Start)]
			fresh := old == nil && len(pairs) > 0 && bytes.HasPrefix(r.Start, []byte("ref/"))
			m.held["scan"+string(r.Start)] = []byte{1}
			m.mu.Unlock()
			if fresh { // as if its snapshot were older than the writer's condemnation
				return
			}
			for _, p := range pairs {
				if !yield(p, nil) {
					return
				}
			}
		}
	}}),
	"the pages of a scan are small, and of several moments": broken(&mutant{scan: func(m *mutant, ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
		return engine.Paged(r, func(r engine.Range) ([]engine.Pair, bool, error) {
			if r.Limit == 0 || r.Limit > engine.OnePage/2 {
				r.Limit = engine.OnePage / 2
			}
			page, err := m.pairs(ctx, r)
			time.Sleep(100 * time.Microsecond)
			return page, len(page) == r.Limit, err
		})
	}}),
	"a scan has no guard": broken(&mutant{scan: func(m *mutant, ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
		r.Guards = nil
		return m.Engine.Scan(ctx, r)
	}}),
	"the guard of a scan is looked at before its snapshot": broken(&mutant{scan: func(m *mutant, ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
		return func(yield func(engine.Pair, error) bool) {
			if err := r.Check(func(key []byte) ([]byte, error) {
				vs, err := m.Engine.Get(ctx, key)
				return append(vs, nil)[0], err
			}); err != nil {
				yield(engine.Pair{}, err)
				return
			}
			time.Sleep(100 * time.Microsecond)
			r.Guards = nil
			m.Engine.Scan(ctx, r)(yield)
		}
	}}),
	"memory of arguments is retained": broken(&mutant{apply: func(m *mutant, ctx context.Context, b *engine.Batch) error {
		err := m.Engine.Apply(ctx, b)
		if err == nil {
			m.mu.Lock()
			for _, p := range b.Sets {
				m.held[string(p.Key)] = p.Value
			}
			m.mu.Unlock()
		}
		return err
	}, get: fromHeld}),
	"memory of results is shared": broken(&mutant{get: func(m *mutant, ctx context.Context, keys [][]byte) ([][]byte, error) {
		vs, err := m.Engine.Get(ctx, keys...)
		m.mu.Lock()
		defer m.mu.Unlock()
		for i, v := range vs {
			if h := m.held[string(keys[i])]; h != nil && len(h) == len(v) && v != nil {
				vs[i] = h
			} else if v != nil {
				m.held[string(keys[i])] = v
			}
		}
		return vs, err
	}}),
	"order is lost": broken(&mutant{scan: func(m *mutant, ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
		return func(yield func(engine.Pair, error) bool) {
			pairs, err := m.pairs(ctx, r)
			if err != nil {
				yield(engine.Pair{}, err)
				return
			}
			slices.SortFunc(pairs, func(a, b engine.Pair) int {
				return strings.Compare(strings.ToLower(string(a.Key)), strings.ToLower(string(b.Key)))
			})
			for _, p := range pairs {
				if !yield(p, nil) {
					return
				}
			}
		}
	}}),
	"a scan goes on at the next prefix instead of the successor": broken(&mutant{scan: func(m *mutant, ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
		return engine.Paged(r, func(r engine.Range) ([]engine.Pair, bool, error) {
			if r.Start != nil && r.Start[len(r.Start)-1] == 0 && len(r.Start) > 1 {
				if r.Start = engine.PrefixEnd(r.Start[:len(r.Start)-1]); r.Start == nil {
					return nil, false, nil
				}
			}
			limit := r.Limit
			if limit == 0 || limit > 2 {
				r.Limit = 2
			}
			var page []engine.Pair
			for p, err := range m.Engine.Scan(ctx, r) {
				if err != nil {
					return nil, false, err
				}
				page = append(page, p)
			}
			return page, len(page) == 2 && limit != 2, nil
		})
	}}),
	"a scan ends early without an error": broken(&mutant{scan: func(m *mutant, ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
		if r.Limit == 0 || r.Limit > 2000 {
			r.Limit = 2000
		}
		return m.Engine.Scan(ctx, r)
	}}),
	"absent and empty are the same": broken(&mutant{get: func(m *mutant, ctx context.Context, keys [][]byte) ([][]byte, error) {
		vs, err := m.Engine.Get(ctx, keys...)
		for i := range vs {
			if vs[i] == nil {
				vs[i] = []byte{}
			}
		}
		return vs, err
	}}),
	"conflicts are spurious": broken(&mutant{apply: func(m *mutant, ctx context.Context, b *engine.Batch) error {
		if len(b.Guards) > 1 && !m.mu.TryLock() {
			return &engine.ConflictError{Key: b.Guards[0].Key}
		} else if len(b.Guards) > 1 {
			defer m.mu.Unlock()
			time.Sleep(50 * time.Microsecond)
		}
		return m.Engine.Apply(ctx, b)
	}}),
	"too large a batch is cut": broken(&mutant{apply: func(m *mutant, ctx context.Context, b *engine.Batch) error {
		if b.Ops() > m.Limits().BatchOps {
			b = &engine.Batch{Guards: b.Guards, Sets: b.Sets[:min(len(b.Sets), 10)]}
		}
		return m.Engine.Apply(ctx, b)
	}}),
	"a cancelled batch is applied": broken(&mutant{apply: func(m *mutant, ctx context.Context, b *engine.Batch) error {
		if err := m.Engine.Apply(context.WithoutCancel(ctx), b); err != nil {
			return err
		}
		return ctx.Err()
	}}),
	"reads are stale for a while": broken(&mutant{get: func(m *mutant, ctx context.Context, keys [][]byte) ([][]byte, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		vs, err := m.Engine.Get(ctx, keys...)
		if err != nil {
			return nil, err
		}
		for i, k := range keys {
			old, seen := m.held[string(k)]
			m.held[string(k)] = bytes.Clone(vs[i])
			if seen {
				vs[i] = old
			}
		}
		return vs, nil
	}}),
	"it forgets on reopening": func(string) (engine.Engine, error) { return memory.New(), nil },
	"it has no lock":          func(string) (engine.Engine, error) { return memory.New(), nil },
	"close is forgotten": func(string) (engine.Engine, error) {
		return unclosed{memory.New()}, nil
	},
}

type unclosed struct{ engine.Engine }

func (unclosed) Close() error { return nil }

func fromHeld(m *mutant, ctx context.Context, keys [][]byte) ([][]byte, error) {
	vs, err := m.Engine.Get(ctx, keys...)
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, v := range vs {
		if h := m.held[string(keys[i])]; h != nil && v != nil {
			vs[i] = bytes.Clone(h)
		}
	}
	return vs, err
}

func broken(m *mutant) func(string) (engine.Engine, error) {
	return func(string) (engine.Engine, error) {
		return &mutant{Engine: memory.New(), apply: m.apply, get: m.get, scan: m.scan, held: map[string][]byte{}}, nil
	}
}

// caughtBy names the case that has to fail each mutant.
var caughtBy = map[string]string{
	"not serializable: guards are checked before the lock": "NoWriteSkew",
	"guards are ignored":                                                 "GuardsSeeTheStateBeforeTheBatch",
	"half a batch is applied when a guard fails":                         "AFailedGuardLeavesNothing",
	"a batch becomes visible key by key":                                 "ABatchIsSeenWholeOrNotAtAll",
	"the read-only anomaly: a scan is of a moment before the last write": "NoReadOnlyAnomaly",
	"the pages of a scan are small, and of several moments":              "ScansFirstPageIsOneSnapshot",
	"memory of arguments is retained":                                    "NothingIsRetainedOrShared",
	"memory of results is shared":                                        "NothingIsRetainedOrShared",
	"order is lost":                                                      "ScanYieldsByteOrderWithinRange",
	"a scan goes on at the next prefix instead of the successor":         "ScanYieldsByteOrderWithinRange",
	"a scan ends early without an error":                                 "ScanReadsManyPagesCompletely",
	"a scan has no guard":                                                "AGuardOfAScanIsOfTheSameSnapshot",
	"the guard of a scan is looked at before its snapshot":               "AGuardOfAScanIsOfTheSameSnapshot",
	"absent and empty are the same":                                      "GetReturnsValuesInKeyOrderAndNilForAbsent",
	"conflicts are spurious":                                             "ConflictsAreNeverSpurious",
	"too large a batch is cut":                                           "LimitsAreAcceptedAndOneMoreIsRefused",
	"a cancelled batch is applied":                                       "AContextThatEndedLeavesNothing",
	"reads are stale for a while":                                        "ReadsFollowAcknowledgedWrites",
	"it forgets on reopening":                                            "AcknowledgedWritesSurviveReopening",
	"it has no lock":                                                     "ASecondOpenNamesTheHolder",
	"close is forgotten":                                                 "AClosedEngineRefuses",
}

func TestTheSuiteFailsMutants(t *testing.T) {
	for name, open := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := Driver{Open: open, Durable: strings.Contains(name, "reopening"), Exclusive: strings.Contains(name, "no lock")}
			i := slices.IndexFunc(cases, func(c testCase) bool { return c.name == caughtBy[name] })
			if i < 0 {
				t.Fatalf("no case is called %q", caughtBy[name])
			}
			if err := d.run(cases[i], t.TempDir()); err == nil || errors.Is(err, errSkip) {
				t.Errorf("%s passes it", cases[i].name)
			}
		})
	}
}

func TestFaultyDoesWhatItsPlanSays(t *testing.T) {
	e := &Faulty{Engine: memory.New(), Plan: func(c Call) Fault {
		switch c.Apply {
		case 1:
			return Fault{Err: engine.ErrUnknown}
		case 2:
			return Fault{Err: engine.ErrUnknown, Applied: true}
		case 3:
			return Fault{Err: engine.ErrUnknown, Late: true}
		case 5:
			return Fault{Crash: true, Applied: true}
		}
		return Fault{}
	}}
	for i, want := range []error{engine.ErrUnknown, engine.ErrUnknown, engine.ErrUnknown, nil, engine.ErrClosed, engine.ErrClosed} {
		if err := put(e, fmt.Sprint(i), "x"); !errors.Is(err, want) {
			t.Fatalf("Apply %d: %v, want %v", i, err, want)
		}
	}
	if err := expect(e.Engine, `["" "x" "x" "x" "x" ""]`, "0", "1", "2", "3", "4", "5"); err != nil {
		t.Fatal(err)
	}
}

func TestFaultyFailsScansInTheMiddleAndTellsWhatWasRead(t *testing.T) {
	base := memory.New()
	for i := range 5 {
		if err := put(base, fmt.Sprint(i), "x"); err != nil {
			t.Fatal(err)
		}
	}
	var told []string
	e := &Faulty{
		Engine: base,
		Plan: func(c Call) Fault {
			return map[int]Fault{
				2: {Err: engine.ErrUnavailable, Pairs: 3},
				3: {Err: engine.ErrUnavailable, Pairs: 9},
				5: {Err: engine.ErrUnavailable},
				6: {Crash: true, Pairs: 2},
			}[c.N]
		},
		Done: func(c Call, err error) { told = append(told, fmt.Sprint(c.Op, " ", c.Read, " ", err)) },
	}
	scan := func(atMost int) (n int, err error) {
		for _, err := range e.Scan(t.Context(), engine.Range{}) {
			if err != nil {
				return n, err
			}
			if n++; n == atMost {
				break
			}
		}
		return n, nil
	}
	if vs, err := e.Get(t.Context(), []byte("0"), []byte("1")); err != nil || len(vs) != 2 {
		t.Error(vs, err)
	}
	for i, c := range []struct {
		atMost, want int
		err          error
	}{{9, 3, engine.ErrUnavailable}, {9, 5, engine.ErrUnavailable}, {2, 2, nil}} {
		if n, err := scan(c.atMost); n != c.want || !errors.Is(err, c.err) {
			t.Errorf("scan %d: %d pairs, %v", i, n, err)
		}
	}
	if err := e.Vacuum(t.Context()); !errors.Is(err, engine.ErrUnavailable) {
		t.Error(err)
	}
	if n, err := scan(9); n != 2 || !errors.Is(err, engine.ErrClosed) {
		t.Errorf("the scan in which it crashes: %d pairs, %v", n, err)
	}
	if _, err := e.Get(t.Context(), []byte("0")); !errors.Is(err, engine.ErrClosed) {
		t.Error(err)
	}
	unavailable, crashed := engine.ErrUnavailable.Error(), engine.ErrClosed.Error()+": crashed"
	want := []string{
		"Get 2 <nil>", "Scan 3 " + unavailable, "Scan 5 " + unavailable, "Scan 2 <nil>",
		"Vacuum 0 " + unavailable, "Scan 2 " + crashed, "Get 1 " + crashed,
	}
	if !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}
