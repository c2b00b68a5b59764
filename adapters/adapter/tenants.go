package adapter

import (
	"context"
	"errors"
	"iter"
	"reflect"
	"slices"
	"sync"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/gc"
)

// Tenants returns a Factory of many stores, for adapters that serve several tenants. Each call goes to the store of the
// tenant that find names by the context of the call. That store is as a rule a namespace of its own: see
// turnstone.Options and client.Options. find has to return an error, which the call returns, if the call is for nobody: an
// empty name is refused. It is called often, by several goroutines. It has to return the same store for a tenant as long as
// an adapter uses handles of that store: a handle works only with the store that made it.
//
// A handle of a session belongs to the tenant for whom it was made. An adapter that remembers handles needs Handles.
func Tenants(find func(ctx context.Context) (tenant string, store turnstone.Factory, err error)) turnstone.Factory {
	return tenants(find)
}

type tenants func(context.Context) (string, turnstone.Factory, error)

// storeOf returns the store that a call goes to, if that is a store or a client itself: an adapter may remember its handles.
// It returns nil for any other Factory, which may serve several tenants without saying whose a handle is.
func storeOf(ctx context.Context, store turnstone.Factory) (turnstone.Factory, error) {
	for {
		of, several := store.(tenants)
		if !several {
			break
		}
		var err error
		if store, err = of.store(ctx); err != nil {
			return nil, err
		}
	}
	if _, is := store.(*client.Client); is || reflect.TypeOf(store) == reflect.TypeOf((*turnstone.Store)(nil).Factory()) {
		return store, nil
	}
	return nil, nil
}

// owned is a handle of one of several tenants.
type owned struct{ turnstone.Persistence }

var errNobody = errors.New("adapter: the call is for nobody: the function of Tenants has returned no name or no store")

func (of tenants) store(ctx context.Context) (turnstone.Factory, error) {
	name, s, err := of(ctx)
	if err == nil && (name == "" || s == nil) {
		err = errNobody
	}
	return s, err
}

func (of tenants) Create(ctx context.Context, r turnstone.Request) (turnstone.Persistence, bool, error) {
	s, err := of.store(ctx)
	if err != nil {
		return nil, false, err
	}
	h, created, err := s.Create(ctx, r)
	if err != nil {
		return nil, false, err
	}
	return owned{h}, created, nil
}

func (of tenants) Session(ctx context.Context, id string) (turnstone.Persistence, error) {
	h, err := through(ctx, of, func(s turnstone.Factory) (turnstone.Persistence, error) { return s.Session(ctx, id) })
	if err != nil {
		return nil, err
	}
	return owned{h}, nil
}

func (of tenants) CommitAll(ctx context.Context, commits ...turnstone.SessionCommit) ([]turnstone.Result, error) {
	commits = slices.Clone(commits)
	for i := range commits {
		if h, is := commits[i].Session.(owned); is {
			commits[i].Session = h.Persistence
		}
	}
	return through(ctx, of, func(s turnstone.Factory) ([]turnstone.Result, error) { return s.CommitAll(ctx, commits...) })
}

func (of tenants) List(ctx context.Context, o turnstone.ListOptions) (turnstone.Page, error) {
	return through(ctx, of, func(s turnstone.Factory) (turnstone.Page, error) { return s.List(ctx, o) })
}

func (of tenants) Records(ctx context.Context, q turnstone.RecordQuery) (turnstone.RecordPage, error) {
	return through(ctx, of, func(s turnstone.Factory) (turnstone.RecordPage, error) { return s.Records(ctx, q) })
}

func (of tenants) WatchRecords(ctx context.Context, prefix string) iter.Seq2[turnstone.RecordUpdate, error] {
	return each(ctx, of, func(s turnstone.Factory) iter.Seq2[turnstone.RecordUpdate, error] { return s.WatchRecords(ctx, prefix) })
}

func (of tenants) StartFeed(ctx context.Context, o turnstone.FeedOptions) error {
	_, err := through(ctx, of, func(s turnstone.Factory) (none, error) { return none{}, s.StartFeed(ctx, o) })
	return err
}

func (of tenants) StopFeed(ctx context.Context) error {
	_, err := through(ctx, of, func(s turnstone.Factory) (none, error) { return none{}, s.StopFeed(ctx) })
	return err
}

func (of tenants) Feed(ctx context.Context) (turnstone.Feed, error) {
	return through(ctx, of, func(s turnstone.Factory) (turnstone.Feed, error) { return s.Feed(ctx) })
}

func (of tenants) Watch(ctx context.Context, after turnstone.Cursor) iter.Seq2[turnstone.Change, error] {
	return each(ctx, of, func(s turnstone.Factory) iter.Seq2[turnstone.Change, error] { return s.Watch(ctx, after) })
}

func (of tenants) Delete(ctx context.Context, id string, policy turnstone.ChildPolicy) error {
	_, err := through(ctx, of, func(s turnstone.Factory) (none, error) { return none{}, s.Delete(ctx, id, policy) })
	return err
}

func (of tenants) GC(ctx context.Context, o gc.Options) (*gc.Report, error) {
	return through(ctx, of, func(s turnstone.Factory) (*gc.Report, error) { return s.GC(ctx, o) })
}

func (of tenants) Vacuum(ctx context.Context, o gc.VacuumOptions) (*gc.VacuumReport, error) {
	return through(ctx, of, func(s turnstone.Factory) (*gc.VacuumReport, error) { return s.Vacuum(ctx, o) })
}

type none struct{}

func through[T any](ctx context.Context, of tenants, f func(turnstone.Factory) (T, error)) (T, error) {
	s, err := of.store(ctx)
	if err != nil {
		var zero T
		return zero, err
	}
	return f(s)
}

func each[T any](ctx context.Context, of tenants, f func(turnstone.Factory) iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		s, err := of.store(ctx)
		if err != nil {
			var zero T
			yield(zero, err)
			return
		}
		f(s)(yield)
	}
}

// remembered is what an adapter remembers of sessions, by their stores and ids. It has at most maxRemembered entries.
type remembered[T any] struct {
	mu sync.Mutex // guards of
	of map[place]T
}

type place struct {
	store turnstone.Factory // of storeOf
	id    string
}

// maxRemembered is of how many sessions something is remembered.
const maxRemembered = 10_000

func (m *remembered[T]) get(at place) (v T, found bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, found = m.of[at]
	return v, found
}

func (m *remembered[T]) set(at place, v T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of == nil || len(m.of) >= maxRemembered {
		m.of = map[place]T{}
	}
	m.of[at] = v
}

func (m *remembered[T]) forget(at ...place) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range at {
		delete(m.of, p)
	}
}

// Handles remembers the sessions of a store that were used, so that a call of a server need not ask for one first. It does so
// for a store, for a client, and for Tenants of these. With any other Factory it asks each time. It is safe for concurrent use.
type Handles struct {
	store turnstone.Factory
	known remembered[turnstone.Persistence]
}

// NewHandles returns the handles of a store.
func NewHandles(store turnstone.Factory) *Handles { return &Handles{store: store} }

// With calls f with the session of an id. It calls f again if that session was deleted, and there is another one by now.
func (h *Handles) With(ctx context.Context, id string, f func(turnstone.Persistence) error) error {
	store, err := storeOf(ctx, h.store)
	if err != nil {
		return err
	}
	at := place{store, id}
	if p, found := h.known.get(at); found {
		err := f(p)
		if !Gone(err) || errors.Is(err, turnstone.ErrOutcomeUnknown) {
			return err
		}
		h.known.forget(at)
	}
	p, err := h.store.Session(ctx, id)
	if err != nil {
		return err
	}
	if store != nil {
		h.known.set(at, p)
	}
	return f(p)
}
