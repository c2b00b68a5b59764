package trpc_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"trpc.group/trpc-go/trpc-agent-go/memory"
	"trpc.group/trpc-go/trpc-agent-go/memory/extractor"
	"trpc.group/trpc-go/trpc-agent-go/memory/inmemory"
	"trpc.group/trpc-go/trpc-agent-go/model"
	"trpc.group/trpc-go/trpc-agent-go/session"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/trpc"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// finds is an extractor that makes a memory of each message of the user.
type finds struct{ failing bool }

func (f *finds) Extract(_ context.Context, messages []model.Message, _ []*memory.Entry) (out []*extractor.Operation, err error) {
	if f.failing {
		return nil, errors.New("no model")
	}
	for _, m := range messages {
		if m.Role == model.RoleUser {
			out = append(out, &extractor.Operation{Type: extractor.OperationAdd, Memory: m.Content})
		}
	}
	return out, nil
}
func (f *finds) ShouldExtract(*extractor.ExtractionContext) bool { return true }
func (f *finds) SetPrompt(string)                                {}
func (f *finds) SetModel(model.Model)                            {}
func (f *finds) Metadata() map[string]any                        { return nil }

// Close waits until the memories that an extractor finds are stored. The extractor finds them again if they could not be
// stored, and no prune deletes them.
func TestTR11_ExtractedMemoriesAreStored(t *testing.T) {
	st := storetest.URL(t, "mem:")
	of := &session.Session{AppName: "a", UserID: "u", ID: "s"}
	tell := func(s string) {
		e := say(len(of.Events), model.RoleUser, s, nil)
		of.Events = append(of.Events, *e)
	}
	tell("likes tea")
	f := &finds{failing: true}
	limit := 0
	enqueue := func(store turnstone.Factory) {
		t.Helper()
		m := trpc.NewMemory(store, limit, inmemory.WithExtractor(f))
		if err := m.EnqueueAutoMemoryJob(ctx, of); err != nil {
			t.Fatal(err)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	read := func() (out []string) {
		for _, e := range must(trpc.NewMemory(st.Factory(), 0).ReadMemories(ctx, memory.UserKey{AppName: "a", UserID: "u"}, 0)) {
			out = append(out, e.Memory.Memory)
		}
		slices.Sort(out)
		return out
	}
	enqueue(st.Factory())
	f.failing = false
	enqueue(failing{st.Factory()})
	if got := read(); len(got) != 0 {
		t.Errorf("%q", got)
	}
	enqueue(st.Factory())
	tell("takes trains")
	enqueue(st.Factory())
	enqueue(st.Factory())
	if _, err := st.Prune(ctx, gc.PruneOptions{Inactive: 1, Revisions: 1}); err != nil {
		t.Fatal(err)
	}
	if got := read(); !slices.Equal(got, []string{"likes tea", "takes trains"}) {
		t.Errorf("%q", got)
	}
	limit = 4
	for i := range 10 {
		tell(fmt.Sprint("says ", i))
	}
	enqueue(st.Factory())
	if got := read(); len(got) != 4 {
		t.Errorf("%q with a limit of 4", got)
	}
}

// slowly finds something for as long as another goroutine stores memories.
type slowly struct {
	finds
	busy atomic.Bool
	t    *testing.T
	also func()
}

func (s *slowly) Extract(ctx context.Context, messages []model.Message, known []*memory.Entry) ([]*extractor.Operation, error) {
	s.busy.Store(true)
	defer s.busy.Store(false)
	s.also()
	return s.finds.Extract(ctx, messages, known)
}

func (s *slowly) SetEnabledTools(map[string]struct{}) {
	if s.busy.Load() {
		s.t.Error("the extractor is set up while it works")
	}
}

// Nobody sets up an extractor while it works. What others store meanwhile stays, and the limit holds.
func TestTR11_AnExtractionLeavesWhatOthersStoreMeanwhile(t *testing.T) {
	store, of := storetest.Memory(t), memory.UserKey{AppName: "a", UserID: "u"}
	f := &slowly{t: t}
	m := trpc.NewMemory(store, 3, inmemory.WithExtractor(f))
	n := 0
	f.also = func() {
		for range 2 {
			n++
			if err := m.AddMemory(ctx, of, fmt.Sprint("other ", n%3), []string{"theirs"}); err != nil && !errors.Is(err, turnstone.ErrLimit) {
				t.Error(err)
			}
		}
		if _, err := m.SearchMemories(ctx, of, "other"); err != nil {
			t.Error(err)
		}
	}
	s := &session.Session{AppName: "a", UserID: "u", ID: "s"}
	for i, text := range []string{"other 1", "mine 1", "mine 2"} {
		s.Events = append(s.Events, *say(i, model.RoleUser, text, nil))
	}
	if err := m.EnqueueAutoMemoryJob(ctx, s); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	all := must(m.ReadMemories(ctx, of, 0))
	if len(all) != 3 {
		t.Errorf("%d memories with a limit of 3", len(all))
	}
	for _, e := range all {
		if e.Memory.Memory == "other 1" && !slices.Equal(e.Memory.Topics, []string{"theirs"}) {
			t.Errorf("what others had stored is %+v", e.Memory)
		}
	}
}

// replaces is an extractor that changes what a user has told before.
type replaces struct{ finds }

func (r *replaces) Extract(_ context.Context, _ []model.Message, known []*memory.Entry) (out []*extractor.Operation, err error) {
	for _, e := range known {
		out = append(out, &extractor.Operation{Type: extractor.OperationUpdate, MemoryID: e.ID, Memory: e.Memory.Memory + ", really"})
	}
	return out, nil
}

// does is an extractor that returns what the function what returns.
type does struct {
	finds
	what func(known []*memory.Entry) []*extractor.Operation
}

func (d *does) Extract(_ context.Context, _ []model.Message, known []*memory.Entry) ([]*extractor.Operation, error) {
	return d.what(known), nil
}

// When a user has as many memories as the limit, an extraction changes, deletes and adds those that the kit does.
func TestTR11_AnExtractionAtTheLimitDoesWhatTheKitDoes(t *testing.T) {
	add := func(texts ...string) (out []*extractor.Operation) {
		for _, text := range texts {
			out = append(out, &extractor.Operation{Type: extractor.OperationAdd, Memory: text})
		}
		return out
	}
	one := func(known []*memory.Entry) *memory.Entry {
		return slices.MinFunc(known, func(a, b *memory.Entry) int { return strings.Compare(a.Memory.Memory, b.Memory.Memory) })
	}
	for name, of := range map[string]struct {
		stored []string
		what   func(known []*memory.Entry) []*extractor.Operation
	}{
		"changes one and adds one too many": {[]string{"tea", "rain", "zebra"}, func(known []*memory.Entry) []*extractor.Operation {
			e := one(known)
			return append([]*extractor.Operation{{Type: extractor.OperationUpdate, MemoryID: e.ID, Memory: e.Memory.Memory + ", really"}}, add("volcano")...)
		}},
		"deletes one and adds one too many": {[]string{"tea", "rain"}, func(known []*memory.Entry) []*extractor.Operation {
			return append([]*extractor.Operation{{Type: extractor.OperationDelete, MemoryID: one(known).ID}}, add("first zebra", "second volcano", "third quartz")...)
		}},
		"adds too many": {nil, func([]*memory.Entry) []*extractor.Operation { return add("tea", "rain", "zebra", "volcano") }},
	} {
		options := []inmemory.ServiceOpt{
			inmemory.WithExtractor(&does{what: of.what}), inmemory.WithToolEnabled(memory.DeleteToolName, true), inmemory.WithMemoryLimit(3),
		}
		var got [2][]string
		for i, m := range []interface {
			memory.Service
			Close() error
		}{inmemory.NewMemoryService(options...), trpc.NewMemory(storetest.Memory(t), 3, options...)} {
			user := memory.UserKey{AppName: "a", UserID: "u"}
			for _, text := range of.stored {
				if err := m.AddMemory(ctx, user, text, nil); err != nil {
					t.Fatal(err)
				}
			}
			s := &session.Session{AppName: "a", UserID: "u", ID: "s"}
			s.Events = append(s.Events, *say(0, model.RoleUser, "hello", nil))
			if err := errors.Join(m.EnqueueAutoMemoryJob(ctx, s), m.Close()); err != nil {
				t.Fatal(err)
			}
			for _, e := range must(m.ReadMemories(ctx, user, 0)) {
				got[i] = append(got[i], e.Memory.Memory)
			}
			slices.Sort(got[i])
		}
		if !slices.Equal(got[0], got[1]) || len(got[0]) == 0 {
			t.Errorf("%s: %q, want %q", name, got[1], got[0])
		}
	}
}

// A memory that an extraction changes is not lost, also if the user has more memories than the limit.
func TestTR11_AnExtractionChangesMemoriesAtTheLimit(t *testing.T) {
	for limit := range 4 {
		store, of := storetest.Memory(t), memory.UserKey{AppName: "a", UserID: "u"}
		for i := range 3 {
			if err := trpc.NewMemory(store, 0).AddMemory(ctx, of, fmt.Sprint("likes tea ", i), nil); err != nil {
				t.Fatal(err)
			}
		}
		m := trpc.NewMemory(store, limit, inmemory.WithExtractor(&replaces{}))
		s := &session.Session{AppName: "a", UserID: "u", ID: "s", Hash: limit}
		s.Events = append(s.Events, *say(0, model.RoleUser, "likes tea", nil))
		if err := m.EnqueueAutoMemoryJob(ctx, s); err != nil {
			t.Fatal(err)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		all := must(m.ReadMemories(ctx, of, 0))
		for _, e := range all {
			if !strings.HasSuffix(e.Memory.Memory, ", really") {
				t.Errorf("limit %d: %q", limit, e.Memory.Memory)
			}
		}
		if len(all) != 3 {
			t.Errorf("limit %d: %d memories", limit, len(all))
		}
	}
}

// waits is an extractor. Each call tells busy that it has begun, and goes on when goOn is closed.
type waits struct {
	finds
	busy chan struct{}
	goOn chan struct{}
}

func (w *waits) Extract(ctx context.Context, messages []model.Message, known []*memory.Entry) ([]*extractor.Operation, error) {
	w.busy <- struct{}{}
	<-w.goOn
	return w.finds.Extract(ctx, messages, known)
}

// Extractions of several sessions run at once. A request that does its job itself, and has to wait for another job of the
// session, waits no longer than its context.
func TestTR11_SessionsAreExtractedAtOnce(t *testing.T) {
	w := &waits{busy: make(chan struct{}), goOn: make(chan struct{})}
	m := trpc.NewMemory(storetest.Memory(t), 0, inmemory.WithExtractor(w))
	for _, hash := range []int{-1, 1, 2} { // -1 is of the same goroutine as 0.
		if err := job(ctx, m, hash, fmt.Sprint("says ", hash)); err != nil {
			t.Fatal(err)
		}
		<-w.busy
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	var err error
	for n := 0; n < 1000 && err == nil; n++ { // until too many wait
		err = job(gone, m, -1, "says -1")
	}
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	go func() {
		for range w.busy { // those that wait
		}
	}()
	close(w.goOn)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	close(w.busy)
	if all := must(m.ReadMemories(ctx, memory.UserKey{AppName: "a", UserID: "u"}, 0)); len(all) != 3 {
		t.Errorf("%d memories", len(all))
	}
}

// setUp is an extractor. It notes in wrong whether somebody told it which tools there are while it worked.
type setUp struct {
	waits
	working atomic.Bool
	wrong   atomic.Bool
}

func (s *setUp) Extract(ctx context.Context, messages []model.Message, known []*memory.Entry) ([]*extractor.Operation, error) {
	s.working.Store(true)
	defer s.working.Store(false)
	return s.waits.Extract(ctx, messages, known)
}

func (s *setUp) SetEnabledTools(map[string]struct{}) {
	if s.working.Load() && !s.wrong.Swap(true) {
		close(s.goOn)
	}
}

// The extraction for a user who has more memories than the limit waits until the others are done.
func TestTR11_AnExtractorThatWorksIsNotSetUp(t *testing.T) {
	store, user := storetest.Memory(t), memory.UserKey{AppName: "a", UserID: "many"}
	before := trpc.NewMemory(store, 0)
	for _, text := range []string{"tea", "rain"} {
		if err := before.AddMemory(ctx, user, text, nil); err != nil {
			t.Fatal(err)
		}
	}
	e := &setUp{waits: waits{busy: make(chan struct{}, 2), goOn: make(chan struct{})}}
	m := trpc.NewMemory(store, 1, inmemory.WithExtractor(e))
	if err := m.Close(); err != nil { // From now on requests do their jobs themselves.
		t.Fatal(err)
	}
	job := func(ctx context.Context, user string, hash int) error {
		s := &session.Session{AppName: "a", UserID: user, ID: "s", Hash: hash}
		s.Events = append(s.Events, *say(0, model.RoleUser, "hello", nil))
		return m.EnqueueAutoMemoryJob(ctx, s)
	}
	other := make(chan error)
	go func() { other <- job(ctx, "other", 0) }()
	<-e.busy
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := job(short, "many", 1); !errors.Is(err, context.DeadlineExceeded) || e.wrong.Load() {
		t.Fatalf("it did not wait: %v", err)
	}
	close(e.goOn)
	if err := errors.Join(<-other, job(ctx, "many", 1)); err != nil || e.wrong.Load() {
		t.Error(err, e.wrong.Load())
	}
}

// cancels is an extractor that ends the request for which it works.
type cancels struct {
	finds
	request func()
	calls   int
}

func (c *cancels) Extract(ctx context.Context, messages []model.Message, all []*memory.Entry) ([]*extractor.Operation, error) {
	c.calls++
	c.request()
	return c.finds.Extract(ctx, messages, all)
}

// job asks for the memories of a session in which a user says something. Texts that are alike make one memory.
func job(ctx context.Context, m *trpc.Memory, hash int, text string) error {
	s := &session.Session{AppName: "a", UserID: "u", ID: fmt.Sprint(hash), Hash: hash}
	s.Events = append(s.Events, *say(0, model.RoleUser, text, nil))
	return m.EnqueueAutoMemoryJob(ctx, s)
}

// reads is a store. It calls after when it has found a session or none, and fails if that fails.
type reads struct {
	turnstone.Factory
	after func(context.Context) error
}

func (r reads) Session(ctx context.Context, id string) (turnstone.Persistence, error) {
	found, err := r.Factory.Session(ctx, id)
	if failed := r.after(ctx); failed != nil {
		return nil, failed
	}
	return found, err
}

// A request extracts memories itself, and ends meanwhile: what was extracted is stored. A request that has ended before, or
// that ends while the memories are read, extracts nothing, and does not wait for the store.
func TestTR11_AnExtractionOutlivesItsRequest(t *testing.T) {
	none, user := func() {}, memory.UserKey{AppName: "a", UserID: "u"}
	for name, ends := range map[string]struct{ before, reading, extracting, stuck bool }{
		"before": {before: true}, "while it reads": {reading: true}, "while the store does not answer": {stuck: true},
		"while it extracts": {extracting: true},
	} {
		t.Run(name, func(t *testing.T) {
			request, cancel := context.WithCancel(ctx)
			defer cancel()
			when := func(now bool) func() {
				if now {
					return cancel
				}
				return none
			}
			store, asked := storetest.Memory(t), &cancels{request: when(ends.extracting)}
			m := trpc.NewMemory(reads{store, func(ctx context.Context) error {
				if when(ends.reading || ends.stuck)(); ends.stuck {
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			}}, 0, inmemory.WithExtractor(asked))
			if err := m.Close(); err != nil { // From now on requests do their jobs themselves.
				t.Fatal(err)
			}
			when(ends.before)()
			if err := job(request, m, 0, "tea"); (err != nil) == ends.extracting || err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			if all := must(trpc.NewMemory(store, 0).ReadMemories(ctx, user, 0)); (len(all) == 1) != ends.extracting || asked.calls > 0 != ends.extracting {
				t.Errorf("%d memories, %d calls of the extractor", len(all), asked.calls)
			}
		})
	}
}

// failing is a store that makes no session.
type failing struct{ turnstone.Factory }

func (failing) Create(context.Context, turnstone.Request) (turnstone.Persistence, bool, error) {
	return nil, false, errors.New("the disk is full")
}
