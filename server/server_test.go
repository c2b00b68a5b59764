package server_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/server"
)

// A namespace that can't be opened, and that nobody waits for any more, does not make the server ill. An engine that
// fails does.
func TestHealthIsThatOfTheDefaultNamespace(t *testing.T) {
	var ill atomic.Bool
	h := serve(t, server.Options{}, func(h *host) {
		h.engine = &enginetest.Faulty{Engine: h.engine, Plan: func(enginetest.Call) (f enginetest.Fault) {
			if ill.Load() {
				f.Err = engine.ErrUnavailable
			}
			return f
		}}
	})
	h.ask("POST", "/v1/list", "{}", "Turnstone-Namespace", strings.Repeat("x", 1000)) // too long
	if a := h.ask("GET", "/healthz", ""); a.status != 200 {
		t.Errorf("%+v", a)
	}
	ill.Store(true)
	for deadline := time.Now().Add(5 * time.Second); h.ask("GET", "/healthz", "").status != 503; {
		if time.Now().After(deadline) {
			t.Fatal("the server is well, and its engine is not")
		}
	}
}

func TestMetricsTellOfRequests(t *testing.T) {
	h := serve(t, server.Options{}, nil)
	h.post("list", "{}")
	h.refuses("info", `{"session":"none"}`, "session-not-found", 404)
	got := h.ask("GET", "/metrics", "").body
	for _, want := range []string{
		`turnstone_http_requests_total{operation="list",status="200"} 1`, `turnstone_http_requests_total{operation="info",status="404"} 1`,
		`turnstone_http_problems_total{operation="info",problem="session-not-found"} 1`, `turnstone_http_request_seconds_count{operation="list"} 1`, "go_goroutines",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is missing", want)
		}
	}
}

// A host is a server under test.
type host struct {
	*testing.T
	*server.Server
	url    string
	engine engine.Engine
	store  turnstone.Options
}

// serve serves an engine in memory.
func serve(t *testing.T, o server.Options, edit func(*host)) *host {
	t.Helper()
	h := &host{T: t, engine: memory.New()}
	if edit != nil {
		edit(h)
	}
	o.Open = func(ctx context.Context, namespace string, mustExist bool) (*turnstone.Store, error) {
		so := h.store
		so.Namespace, so.MustExist = namespace, mustExist
		return turnstone.Open(ctx, h.engine, &so)
	}
	var err error
	if h.Server, err = server.New(o); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(h.Server)
	h.url = s.URL
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		s.CloseClientConnections()
		s.Close()
	})
	return h
}

// reply is the answer to a request.
type reply struct {
	status int
	header http.Header
	body   string
	kind   string // of the problem, if there is one
}

func (h *host) do(method, path string, body io.Reader, headers ...string) (reply, error) {
	r, err := http.NewRequest(method, h.url+path, body)
	if err != nil {
		return reply{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	out := reply{status: a.StatusCode, header: a.Header, body: string(b)}
	var p struct{ Type string }
	if json.Unmarshal(b, &p) == nil {
		_, out.kind, _ = strings.Cut(p.Type, "#")
	}
	return out, err
}

func (h *host) ask(method, path, body string, headers ...string) reply {
	h.Helper()
	a, err := h.do(method, path, strings.NewReader(body), headers...)
	if err != nil {
		h.Fatal(err)
	}
	return a
}

// post asks for an operation that is to succeed.
func (h *host) post(name, body string, headers ...string) string {
	h.Helper()
	a := h.ask("POST", "/v1/"+name, body, headers...)
	if a.status != http.StatusOK {
		h.Fatalf("%s %s: %d %s", name, body, a.status, a.body)
	}
	return a.body
}

func (h *host) refuses(name, body, kind string, status int, headers ...string) {
	h.Helper()
	if a := h.ask("POST", "/v1/"+name, body, headers...); a.kind != kind || a.status != status {
		h.Errorf("%s %.200s: %d %s, want %d %s", name, body, a.status, a.body, status, kind)
	}
}
