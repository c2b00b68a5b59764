package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/internal/testkit"
	"github.com/turnstonedb/turnstone/server"
)

// When the server was restarted, a commit whose answer was lost is found again, with a turn id and without one. Of other
// writes nobody knows whether they were made.
func TestSV3_AfterARestartACommitIsFoundAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	e := memory.New()
	held := make(chan struct{})
	slow := turnstone.Options{Validator: func(context.Context, string, *turnstone.Commit) error { <-held; return nil }}
	stop := serve(t, path, unclosed{e}, slow)
	c := &storetest.Cutter{To: path, Budget: func() (int64, int64) { return -1, -1 }}
	through := c.Listen(t)
	cl := connect(t, through)
	s, _, err := cl.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error, 2)
	var turn turnstone.Result
	go func() {
		_, err := s.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "k"}}, Expected: turnstone.AnyRevision})
		results <- err
	}()
	turns := make(chan error, 1)
	go func() {
		var err error
		turn, err = s.Commit(ctx, turnstone.Commit{Turn: "t", Nodes: []turnstone.NewNode{{Kind: "k"}}, Expected: turnstone.AnyRevision})
		turns <- err
	}()
	testkit.Until(t, "both have connected", func() bool { return c.Open.Load() >= 2 })
	time.Sleep(50 * time.Millisecond) // Both are at the validator.
	c.Away.Store(true)                // Nothing reaches the server, and what it answers is lost.
	c.CutAll()
	close(held)
	stop()
	stop = serve(t, path, unclosed{e}, turnstone.Options{})
	defer stop()
	c.Away.Store(false)
	if err := <-results; err != nil {
		t.Errorf("without a turn id: %v", err)
	}
	for e, err := range s.Log(ctx, 0) {
		if err != nil || e.Turn != "" && e.Turn != "t" {
			t.Errorf("the log has a turn %q, %v", e.Turn, err)
		}
	}
	if err := <-turns; err != nil || turn.Revision == 0 || !turn.Replayed {
		t.Errorf("with a turn id: %+v, %v", turn, err)
	}
	st, err := s.Load(ctx, turnstone.Scope{})
	if err != nil || st.Revision != 2 {
		t.Errorf("the session is at %d, %v", st.Revision, err)
	}
}

// Watches go on over connections that are cut, and over a server that is restarted: in order, without a gap or a
// double.
func TestSV6_WatchesGoOnOverARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	e := memory.New()
	stop := serve(t, path, unclosed{e}, turnstone.Options{})
	cl := connect(t, path)
	if err := cl.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour}); err != nil {
		t.Fatal(err)
	}
	feed, err := cl.Feed(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := cl.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	const commits = 60
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	commitsSeen, changesSeen := make(chan head.Revision, commits), make(chan turnstone.Change, commits+1)
	var both sync.WaitGroup
	both.Go(func() {
		for l, err := range s.Watch(watching, 0) {
			if err != nil {
				if watching.Err() == nil {
					t.Error(err)
				}
				return
			}
			commitsSeen <- l.Revision
		}
	})
	both.Go(func() {
		for c, err := range cl.Watch(watching, feed.End) {
			if err != nil {
				if watching.Err() == nil {
					t.Error(err)
				}
				return
			}
			changesSeen <- c
		}
	})
	for i := range commits {
		if i%20 == 10 {
			stop()
			stop = serve(t, path, unclosed{e}, turnstone.Options{})
		}
		if _, err := s.Commit(ctx, turnstone.Commit{Expected: head.Revision(i), Turn: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range commits {
		if r := <-commitsSeen; r != head.Revision(i+1) {
			t.Fatalf("revision %d after %d", r, i)
		}
	}
	if c := <-changesSeen; c.Kind != turnstone.ChangeCreated {
		t.Fatalf("%+v", c)
	}
	for i := range commits {
		if c := <-changesSeen; c.Revision != head.Revision(i+1) {
			t.Fatalf("change %+v after revision %d", c, i)
		}
	}
	cancel()
	both.Wait()
	cl.Close()
	stop()
}

// Two servers behind one address make no write twice.
func TestSV3_TwoServersBehindAnAddressMakeAWriteOnce(t *testing.T) {
	e := memory.New()
	var servers [2]*server.Server
	for i := range servers {
		var err error
		if servers[i], err = server.New(server.Options{Open: func(ctx context.Context, _ string, _ bool) (*turnstone.Store, error) {
			return turnstone.Open(ctx, e, nil)
		}}); err != nil {
			t.Fatal(err)
		}
		defer servers[i].Close()
	}
	var lose atomic.Int32
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := servers[rand.IntN(2)]
		if (r.URL.Path == "/v1/commit" || r.URL.Path == "/v1/change-records") && lose.Add(1)%3 == 0 {
			s.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		s.ServeHTTP(w, r)
	}))
	defer front.Close()
	cl, err := client.Open(ctx, front.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	p, _, err := cl.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	const commits, changes = 60, 30
	for range commits {
		if _, err := p.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision}); err != nil {
			t.Error(err)
		}
	}
	i, err := p.Info(ctx)
	if err != nil || i.Revision != commits {
		t.Errorf("%d commits are done, and the session is at %d, %v", commits, i.Revision, err)
	}
	// Changes of records are made once, or nobody knows whether they were.
	version, unknown := turnstone.NoRecord, 0
	for n := range changes {
		vs, err := p.ChangeRecords(ctx, turnstone.RecordChange{Key: "k", Value: fmt.Append(nil, n), Expect: version})
		switch {
		case err == nil:
			version = vs[0]
		case errors.Is(err, turnstone.ErrOutcomeUnknown):
			unknown++
			r, err := p.Record(ctx, "k")
			if err != nil && !errors.Is(err, turnstone.ErrRecordNotFound) {
				t.Fatal(err)
			}
			version = r.Version
		default:
			t.Fatal(err)
		}
	}
	if unknown == changes {
		t.Error("no change of records is known")
	}
}

// An erasure or a prune whose answer is cut off is not begun anew by a server that was restarted: another session may
// have the id by then. A collection is.
func TestSV3_WhatDeletesIsNotBegunAnewAfterARestart(t *testing.T) {
	f := newFront(t)
	cut := true
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		long := r.URL.Path == "/v1/erase" || r.URL.Path == "/v1/prune" || r.URL.Path == "/v1/gc"
		if !long || !cut {
			f.server.Load().ServeHTTP(w, r)
			return
		}
		cut = false
		made := httptest.NewRecorder()
		f.server.Load().ServeHTTP(made, r)
		for name, values := range made.Header() {
			w.Header()[name] = values
		}
		_, _ = w.Write([]byte("\n")) // It is at work.
		w.(http.Flusher).Flush()
		f.restart()
		st, err := turnstone.Open(ctx, f.engine, nil)
		if err != nil {
			t.Error(err)
			return
		}
		if _, _, err := st.Create(ctx, turnstone.Request{ID: "chat"}); err != nil {
			t.Error(err)
		}
		panic(http.ErrAbortHandler)
	}))
	defer front.Close()
	cl, err := client.Open(ctx, front.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, _, err := cl.Create(ctx, turnstone.Request{ID: "chat"}); err != nil {
		t.Fatal(err)
	}
	_, err = cl.Erase(ctx, "chat", turnstone.KeepChildren, turnstone.EraseOptions{})
	if !errors.Is(err, turnstone.ErrOutcomeUnknown) {
		t.Errorf("erase: %v", err)
	}
	if _, err := cl.Session(ctx, "chat"); err != nil {
		t.Errorf("the session that came since: %v", err)
	}
	cut = true
	if _, err := cl.Prune(ctx, gc.PruneOptions{Revisions: 1}); !errors.Is(err, turnstone.ErrOutcomeUnknown) {
		t.Errorf("prune: %v", err)
	}
	cut = true
	if r, err := cl.GC(ctx, gc.Options{}); err != nil || r == nil {
		t.Errorf("gc: %v", err)
	}
}
