// Package adaptertest compares a store of ours with a framework's own, by random calls: a helper for tests of adapters.
package adaptertest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// A Call makes one call of a store, with arguments that it chooses by the numbers, and returns what is to be the same for
// all stores.
type Call[S any] func(store S, r *rand.Rand) (any, error)

// Alike makes random calls of several stores, and fails the test at the first one of which they don't return the same:
// equal results (reflect.DeepEqual), or errors. Each store gets the same arguments.
func Alike[S any](t testing.TB, stores []S, steps int, seed uint64, calls map[string]Call[S]) {
	t.Helper()
	names := slices.Sorted(maps.Keys(calls))
	for step := range steps {
		name := names[rand.New(rand.NewPCG(seed, uint64(2*step))).IntN(len(names))]
		var first any
		var failed bool
		for i, s := range stores {
			result, err := calls[name](s, rand.New(rand.NewPCG(seed, uint64(2*step+1))))
			switch {
			case i == 0:
				first, failed = result, err != nil
			case failed != (err != nil) || err == nil && !reflect.DeepEqual(first, result):
				t.Fatalf("seed %d, step %d: %s of %T (failed: %v) and %T (%v):\n%+v\nand\n%+v", seed, step, name, stores[0], failed, s, err, first, result)
			}
		}
	}
}

// Apart fails the test unless an adapter keeps two tenants apart. open makes the adapter on a store of several tenants: on
// adapter.Tenants, on a wrapper around that, on a wrapper around its handles too, on a store that a host has made of several,
// and on Tenants of Tenants. use has the adapter store a text, under names that are the same in all calls, and returns the
// texts that the adapter then finds under these names. Apart also calls use for no tenant, which has to fail.
func Apart[S any](t testing.TB, open func(turnstone.Factory) S, use func(ctx context.Context, a S, text string) ([]string, error)) {
	t.Helper()
	for _, of := range []func(find) turnstone.Factory{
		func(f find) turnstone.Factory { return adapter.Tenants(f) },
		func(f find) turnstone.Factory { return around{adapter.Tenants(f)} },
		func(f find) turnstone.Factory { return watching{adapter.Tenants(f)} },
		func(f find) turnstone.Factory { return picking{adapter.Tenants(f), f} },
		func(f find) turnstone.Factory {
			all := adapter.Tenants(f)
			return adapter.Tenants(func(context.Context) (string, turnstone.Factory, error) { return "all", all, nil })
		},
	} {
		apart(t, of, open, use)
	}
}

// A find names the tenant of a call, and its store.
type find = func(context.Context) (string, turnstone.Factory, error)

// picking is a store of several tenants that a host has made, whose handles are those of the stores.
type picking struct {
	turnstone.Factory
	of find
}

func (p picking) Create(ctx context.Context, r turnstone.Request) (turnstone.Persistence, bool, error) {
	if _, s, _ := p.of(ctx); s != nil {
		return s.Create(ctx, r)
	}
	return p.Factory.Create(ctx, r) // It refuses that.
}

func (p picking) Session(ctx context.Context, id string) (turnstone.Persistence, error) {
	if _, s, _ := p.of(ctx); s != nil {
		return s.Session(ctx, id)
	}
	return p.Factory.Session(ctx, id)
}

// around is what a host may have around a store.
type around struct{ turnstone.Factory }

// watching is what a host may have around a store and its handles.
type watching struct{ turnstone.Factory }

type watched struct{ turnstone.Persistence }

func (w watching) Create(ctx context.Context, r turnstone.Request) (turnstone.Persistence, bool, error) {
	h, created, err := w.Factory.Create(ctx, r)
	return watched{h}, created, err
}

func (w watching) Session(ctx context.Context, id string) (turnstone.Persistence, error) {
	h, err := w.Factory.Session(ctx, id)
	return watched{h}, err
}

func (w watching) CommitAll(ctx context.Context, commits ...turnstone.SessionCommit) ([]turnstone.Result, error) {
	commits = slices.Clone(commits)
	for i := range commits {
		if h, is := commits[i].Session.(watched); is {
			commits[i].Session = h.Persistence
		}
	}
	return w.Factory.CommitAll(ctx, commits...)
}

func apart[S any](t testing.TB, of func(find) turnstone.Factory, open func(turnstone.Factory) S, use func(ctx context.Context, a S, text string) ([]string, error)) {
	t.Helper()
	type key struct{}
	stores := map[string]turnstone.Factory{}
	for _, name := range []string{"a", "b"} {
		s, err := turnstone.Open(t.Context(), memory.New(), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		stores[name] = s.Factory()
	}
	a := open(of(func(ctx context.Context) (string, turnstone.Factory, error) {
		name, _ := ctx.Value(key{}).(string)
		return name, stores[name], nil
	}))
	for i := range 6 {
		name := [...]string{"a", "b"}[i%2]
		got, err := use(context.WithValue(t.Context(), key{}, name), a, fmt.Sprintf("%s%d", name, i))
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 || !slices.Contains(got, fmt.Sprintf("%s%d", name, i)) {
			t.Errorf("what %s has stored is not found: %q", name, got)
		}
		for _, text := range got {
			if text[:1] != name {
				t.Errorf("%s sees %q", name, text)
			}
		}
	}
	if got, err := use(t.Context(), a, "nobody's"); err == nil {
		t.Errorf("nobody sees %q", got)
	}
}
