package server_test

import (
	"context"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/testkit"
	"github.com/turnstonedb/turnstone/server"
)

// A store is not closed below a write, for which no http.Server waits here.
func TestSV8_CloseWaitsForWrites(t *testing.T) {
	validating, goOn := make(chan struct{}), make(chan struct{})
	h := serve(t, server.Options{}, func(h *host) {
		h.store.Validator = func(context.Context, string, *turnstone.Commit) error {
			close(validating)
			<-goOn
			return nil
		}
	})
	h.post("create", `{"id":"s"}`)
	commit, closed := make(chan int, 1), make(chan error, 1)
	go func() {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest("POST", "/v1/commit", strings.NewReader(`{"session":"s"}`)))
		commit <- rec.Code
	}()
	<-validating
	go func() {
		closed <- h.Close()
		close(closed)
	}()
	select {
	case err := <-closed:
		t.Errorf("Close returns beside a write: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(goOn)
	if code := <-commit; code != 200 {
		t.Errorf("the write is answered with %d", code)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

func TestSV8_AServerThatStopsEndsWatchesAndLetsRequestsGoOn(t *testing.T) {
	validating, goOn := make(chan struct{}), make(chan struct{})
	s, err := server.New(server.Options{Open: func(ctx context.Context, namespace string, _ bool) (*turnstone.Store, error) {
		return turnstone.Open(ctx, memory.New(), &turnstone.Options{Validator: func(context.Context, string, *turnstone.Commit) error {
			close(validating)
			<-goOn
			return nil
		}})
	}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{T: t, Server: s, url: "http://" + l.Addr().String()}
	serving, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(serving, l) }()
	h.post("create", `{"id":"s"}`)
	w, err := http.Get(h.url + "/v1/watch?session=s")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	commit := make(chan reply, 1)
	go func() {
		a, err := h.do("POST", "/v1/commit", strings.NewReader(`{"session":"s"}`))
		if err != nil {
			t.Error(err)
		}
		commit <- a
	}()
	<-validating
	stop()
	if _, err := io.Copy(io.Discard, w.Body); err != nil {
		t.Errorf("the watch ends with %v", err)
	}
	select {
	case err := <-ended:
		t.Errorf("the server ends beside a commit: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(goOn)
	if a := <-commit; a.status != 200 {
		t.Errorf("%+v", a)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	rec := httptest.NewRecorder()
	s.ServeHTTP(rec, httptest.NewRequest("POST", "/v1/list", nil))
	if rec.Code != 503 {
		t.Errorf("a closed server answers %d", rec.Code)
	}
}

// A stalling engine does not answer a scan while it stalls, until its context ends.
type stalling struct {
	engine.Engine
	stalls    atomic.Bool
	cancelled atomic.Int32
}

func (e *stalling) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	if !e.stalls.Load() {
		return e.Engine.Scan(ctx, r)
	}
	return func(yield func(engine.Pair, error) bool) {
		<-ctx.Done()
		e.cancelled.Add(1)
		yield(engine.Pair{}, ctx.Err())
	}
}

// A collection goes on for who asks for it again, tells that it does, and ends when nobody waits.
func TestSV9_ACollectionEndsWhenNobodyWaitsForIt(t *testing.T) {
	slow := &stalling{}
	h := serve(t, server.Options{Patience: 100 * time.Millisecond, Heartbeat: 10 * time.Millisecond}, func(h *host) {
		slow.Engine = h.engine
		h.engine = slow
	})
	h.post("create", `{"id":"s"}`)
	for _, name := range []string{"gc", "vacuum"} {
		first := h.post(name, `{}`, request, name)
		if again := h.post(name, `{}`, request, name); !strings.HasSuffix(first, "{\"end\":true}\n") || again != first {
			t.Errorf("%s, then %s", first, again)
		}
	}
	h.refuses("gc", `{"pace":7}`, "invalid", 422)

	slow.stalls.Store(true)
	wait := func() (beats string) {
		t.Helper()
		limited, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		r, _ := http.NewRequestWithContext(limited, "POST", h.url+"/v1/gc", strings.NewReader(`{"full":true}`))
		r.Header.Set(request, "slow")
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		b, _ := io.ReadAll(a.Body)
		return string(b)
	}
	if beats := wait(); strings.Count(beats, "\n") < 3 {
		t.Errorf("%q in 300 ms", beats)
	}
	wait() // at once again: it goes on
	if n := slow.cancelled.Load(); n != 0 {
		t.Errorf("%d scans were cancelled while somebody waited", n)
	}
	testkit.Until(t, "the scan is cancelled", func() bool { return slow.cancelled.Load() > 0 })
}

func TestSV9_AServerThatStopsEndsCollections(t *testing.T) {
	slow := &stalling{}
	h := serve(t, server.Options{}, func(h *host) {
		slow.Engine = h.engine
		h.engine = slow
	})
	h.post("create", `{"id":"s"}`)
	slow.stalls.Store(true)
	ended := make(chan reply, 1)
	go func() {
		a, err := h.do("POST", "/v1/gc", strings.NewReader("{}"))
		if err != nil {
			t.Error(err)
		}
		ended <- a
	}()
	testkit.Until(t, "the collection has come", func() bool { return h.Idle() == 0 })
	time.Sleep(20 * time.Millisecond)
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if a := <-ended; !strings.Contains(a.body, "#canceled") {
		t.Errorf("%+v", a)
	}
}
