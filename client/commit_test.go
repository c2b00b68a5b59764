package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/wire"
	"github.com/turnstonedb/turnstone/server"
)

// list returns a list of n items of 2,000 bytes, which begins with their number.
func list(n int) []byte {
	b := fmt.Appendf(nil, "%06d", n)
	for i := range n {
		item := make([]byte, 2000)
		rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)}).Read(item)
		b = append(b, item...)
	}
	return b
}

func commitList(s turnstone.Persistence, n int, turn string) (turnstone.Result, error) {
	content := list(n)
	defer clear(content) // It is the caller's.
	return s.Commit(ctx, turnstone.Commit{Expected: head.Revision(n - 1), Turn: turn, Checkpoint: map[string][]byte{"list": content}})
}

// commitLists makes the first n commits of a session, of which the last ones are differences.
func commitLists(t *testing.T, s turnstone.Persistence, n int) {
	t.Helper()
	for i := 1; i <= n; i++ {
		if _, err := commitList(s, i, ""); err != nil {
			t.Fatal(err)
		}
	}
}

// holds fails unless the first n revisions of a session have the first n lists.
func holds(t *testing.T, s turnstone.Persistence, n int) {
	t.Helper()
	for i := 1; i <= n; i++ {
		parts, err := s.Checkpoint(ctx, head.Revision(i))
		if err != nil || !bytes.Equal(parts["list"], list(i)) {
			t.Fatalf("revision %d has %d bytes, want %d: %v", i, len(parts["list"]), len(list(i)), err)
		}
	}
}

// A front is a server whose commits are counted, and can be lost.
type front struct {
	*testing.T
	engine engine.Engine
	url    string
	server atomic.Pointer[server.Server]
	bytes  atomic.Int64
	bases  atomic.Int64                     // commits that were differences
	next   atomic.Pointer[http.HandlerFunc] // handles the next commit
}

func newFront(t *testing.T) *front {
	f := &front{T: t, engine: unclosed{memory.New()}}
	f.restart()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/commit" {
			f.bytes.Add(r.ContentLength)
			if base := r.Header.Get("Turnstone-Base"); base != "" && base != "none" {
				f.bases.Add(1)
			}
			if next := f.next.Swap(nil); next != nil {
				(*next)(w, r)
				return
			}
		}
		f.server.Load().ServeHTTP(w, r)
	}))
	f.url = s.URL
	t.Cleanup(func() {
		s.Close()
		f.server.Load().Close()
	})
	return f
}

// restart puts another server in the place of the one that there is.
func (f *front) restart() {
	s, err := server.New(server.Options{Open: func(ctx context.Context, _ string, _ bool) (*turnstone.Store, error) {
		return turnstone.Open(ctx, f.engine, nil)
	}})
	if err != nil {
		f.Fatal(err)
	}
	if old := f.server.Swap(s); old != nil {
		if err := old.Close(); err != nil {
			f.Error(err)
		}
	}
}

// lose is a handler that loses the answer.
func (f *front) lose(_ http.ResponseWriter, r *http.Request) {
	f.server.Load().ServeHTTP(httptest.NewRecorder(), r)
	panic(http.ErrAbortHandler)
}

// refuseBase is a handler that does not know the base.
func refuseBase(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(wire.HeaderCall, r.Header.Get(wire.HeaderCall))
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(http.StatusPreconditionFailed)
	fmt.Fprint(w, `{"type":"x#base-not-found","matches":["base-not-found"],"detail":"it is gone"}`)
}

// connect returns a client and a session of it.
func (f *front) connect() (*client.Client, turnstone.Persistence) {
	cl, err := client.Open(ctx, f.url, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { cl.Close() })
	s, _, err := cl.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		f.Fatal(err)
	}
	return cl, s
}

func TestSV11_ACommitIsSentAsItsDifference(t *testing.T) {
	f := newFront(t)
	cl, s := f.connect()
	other, _, err := cl.Create(ctx, turnstone.Request{ID: "other"})
	if err != nil {
		t.Fatal(err)
	}
	const n = 40
	for i := 1; i <= n; i++ {
		for _, s := range []turnstone.Persistence{s, other} {
			if _, err := commitList(s, i, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	holds(t, s, n)
	holds(t, other, n)
	// The first three have less than 8 KiB, and the next one is whole.
	if f.bases.Load() != 2*(n-4) || f.bytes.Load() > 2*(n*3000+30_000) {
		t.Errorf("%d commits were sent as differences, and %d bytes", f.bases.Load(), f.bytes.Load())
	}
	if err := cl.Delete(ctx, "s", turnstone.KeepChildren); err != nil {
		t.Fatal(err)
	}
	if _, err := commitList(s, n+1, ""); !errors.Is(err, turnstone.ErrSessionDeleted) {
		t.Error(err)
	}
	// What differs much is sent whole.
	bases := f.bases.Load()
	for range 3 {
		if _, err := other.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Checkpoint: map[string][]byte{"random": noise(20_000)}}); err != nil {
			t.Error(err)
		}
	}
	if f.bases.Load() != bases {
		t.Error("random bytes are sent as differences")
	}
}

func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Int())
	}
	return b
}

func TestSV11_CommitsAtOnceAreEachStoredAsTheyAre(t *testing.T) {
	_, s := newFront(t).connect()
	var all sync.WaitGroup
	want := make([][]byte, 8)
	for i := range want {
		want[i] = append(list(20), byte(i))
		all.Go(func() {
			for range 10 {
				if _, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Checkpoint: map[string][]byte{fmt.Sprint(i): want[i]}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	parts, err := s.Checkpoint(ctx, 0)
	for i := range want {
		if err != nil || !bytes.Equal(parts[fmt.Sprint(i)], want[i]) {
			t.Errorf("part %d: %v", i, err)
		}
	}
}

func TestSV11_WhatABaseIsLostForIsSentWhole(t *testing.T) {
	f := newFront(t)
	_, s := f.connect()
	n := 8
	commitLists(t, s, n)
	commit := func(turn string, next http.HandlerFunc) (turnstone.Result, error) {
		n++
		if next != nil {
			f.next.Store(&next)
		}
		return commitList(s, n, turn)
	}
	restarted := func(w http.ResponseWriter, r *http.Request) {
		defer f.restart()
		f.lose(w, r)
	}
	for _, turn := range []string{"", "t"} {
		f.restart()
		if r, err := commit(turn, nil); err != nil || r.Replayed {
			t.Errorf("after a restart: %+v, %v", r, err)
		}
		if turn != "" {
			turn = "lost"
		}
		if r, err := commit(turn, f.lose); err != nil || r.Replayed {
			t.Errorf("lost: %+v, %v", r, err)
		}
		bases := f.bases.Load()
		if _, err := commit("", nil); err != nil || f.bases.Load() != bases+1 {
			t.Errorf("then: %v", err)
		}
		if turn != "" {
			turn = "restarted"
		}
		if r, err := commit(turn, restarted); err != nil || !r.Replayed {
			t.Errorf("lost, and the server restarted, of turn %q: %+v, %v", turn, r, err)
		}
	}
	if _, err := commit("", nil); err != nil {
		t.Error(err)
	}
	holds(t, s, n)
	// A refusal that says nothing of an earlier attempt leaves it open.
	refuse := http.HandlerFunc(refuseBase)
	_, err := commit("", func(w http.ResponseWriter, r *http.Request) {
		f.next.Store(&refuse)
		f.lose(w, r)
	})
	if !errors.Is(err, turnstone.ErrOutcomeUnknown) {
		t.Errorf("refused by somebody else: %v", err)
	}
}

// The first of two servers makes a commit, and its answer is lost. The second one does not know the base, so the
// client sends the whole body, which comes to the first one.
func TestSV11_WhatOneServerMadeAsADifferenceIsNotRefusedAsAWhole(t *testing.T) {
	f := newFront(t)
	_, s := f.connect()
	const n = 8
	commitLists(t, s, n)
	refuse := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Turnstone-Request", r.Header.Get("Turnstone-Request")) // It has ended with that.
		refuseBase(w, r)
	})
	lose := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.next.Store(&refuse)
		f.lose(w, r)
	})
	f.next.Store(&lose)
	bases := f.bases.Load()
	if r, err := commitList(s, n+1, "turn"); err != nil || !r.Replayed || f.bases.Load() != bases+2 {
		t.Errorf("%+v, %v, %d differences", r, err, f.bases.Load()-bases)
	}
	holds(t, s, n+1)
}

func TestSV11_ACommitThatFailsLeavesNoBase(t *testing.T) {
	f := newFront(t)
	_, s := f.connect()
	const n = 8
	commitLists(t, s, n)
	bases := f.bases.Load()
	if _, err := commitList(s, n, ""); !errors.Is(err, turnstone.ErrConflict) || f.bases.Load() != bases+1 {
		t.Error(err)
	}
	for i, want := range []int64{0, 1} { // The first one is whole, and the next one differs from it.
		if _, err := commitList(s, n+1+i, ""); err != nil || f.bases.Load() != bases+1+want {
			t.Errorf("commit %d after it: %v, %d differences", i, err, f.bases.Load()-bases-1)
		}
	}
	holds(t, s, n+2)
}

// Over connections that are cut all the time, each commit is stored once, and as it is.
func TestSV11_DifferencesOverConnectionsThatAreCut(t *testing.T) {
	cl, c := behind(t, memory.New(), turnstone.Options{}, func() (up, down int64) {
		switch rand.IntN(3) {
		case 0:
			return rand.Int64N(4000), -1
		case 1:
			return -1, rand.Int64N(2000)
		}
		return -1, -1
	})
	s, _, err := cl.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	const n = 60
	for i := 1; i <= n; i++ {
		if r, err := commitList(s, i, ""); err != nil || r.Revision != head.Revision(i) {
			t.Fatal(r, err)
		}
		cl.CloseIdle()
	}
	holds(t, s, n)
	if c.Cuts.Load() < 10 {
		t.Errorf("only %d connections were cut", c.Cuts.Load())
	}
}
