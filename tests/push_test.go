package tests

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone"
)

// push pushes between two stores.
func push(t *testing.T, from, to turnstone.Peer, o turnstone.PushOptions) *turnstone.PushReport {
	t.Helper()
	r, err := turnstone.Push(ctx, from, to, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// pushAll pushes all sessions. Those that can't go on from what is pruned in the other store are made anew there.
func pushAll(t *testing.T, from, to turnstone.Peer, there *turnstone.Store) *turnstone.PushReport {
	t.Helper()
	r, err := turnstone.Push(ctx, from, to, turnstone.PushOptions{All: true})
	var all interface{ Unwrap() []error }
	if errors.As(err, &all) {
		for _, err := range all.Unwrap() {
			var of *turnstone.BundleError
			if !errors.Is(err, turnstone.ErrRevisionPruned) || !errors.As(err, &of) {
				t.Fatal(err)
			}
			remove(t, there, of.Session)
		}
		return push(t, from, to, turnstone.PushOptions{All: true})
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// sameHeads fails the test unless all sessions of from stand in to where they do in from.
func sameHeads(t *testing.T, from, to *turnstone.Store) {
	t.Helper()
	for _, want := range infosOf(t, from) {
		got, err := session(t, to, want.ID).Info(ctx)
		if err != nil || got.Commit != want.Commit || got.Revision != want.Revision {
			t.Fatalf("session %q: %d %s, want %d %s: %v", want.ID, got.Revision, got.Commit, want.Revision, want.Commit, err)
		}
	}
}

func ids(t *testing.T, st *turnstone.Store) (out []string) {
	for _, i := range infosOf(t, st) {
		out = append(out, i.ID)
	}
	slices.Sort(out)
	return out
}

// A push brings what the other store lacks, and a second one nothing.
func TestPU1_APushBringsWhatIsMissing(t *testing.T) {
	for seed := range randomHistories() {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			_, from := onMemory(t, &turnstone.Options{NoAutoSeal: true})
			_, to := onMemory(t, nil)
			p := newPast(t, from, seed)
			for range 5 {
				for range 5 + p.r.IntN(20) {
					p.step()
				}
				pushAll(t, from, to, to)
				sameHeads(t, from, to)
				if r := push(t, from, to, turnstone.PushOptions{All: true}); len(r.Sessions) > 0 || r.Same != len(ids(t, from)) || r.Bytes > 0 {
					t.Fatalf("a second push brought %+v of %d", r, len(ids(t, from)))
				}
				verify(t, to)
			}
			_, to = onMemory(t, nil)
			push(t, from, to, turnstone.PushOptions{All: true})
			sameThere(t, from, to, false, ids(t, from)...)
		})
	}
}
