package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/server"
)

var ctx = context.Background()

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

const (
	request  = "Turnstone-Request"
	instance = "Turnstone-Server"
)

func TestSV2_AWriteOfOneIDIsMadeOnce(t *testing.T) {
	h := serve(t, server.Options{}, nil)
	h.post("create", `{"id":"s"}`)
	commit := `{"session":"s","expected":"any","nodes":[{"kind":"k","payload":"x"}]}`
	first := h.post("commit", commit, request, "1")
	if again := h.post("commit", commit, request, "1"); again != first {
		t.Errorf("%s, then %s", first, again)
	}
	if other := h.post("commit", commit, request, "2"); other == first {
		t.Error("another id is the same write")
	}
	h.post("commit", commit, request, "1", "Turnstone-Namespace", "") // as without
	if a := h.ask("POST", "/v1/commit", commit, request, "1", "Turnstone-Namespace", "other"); a.kind != "session-not-found" {
		t.Errorf("in another namespace: %s", a.body)
	}
	h.refuses("commit", strings.Replace(commit, `"x"`, `"y"`, 1), "request", 400, request, "1")
	h.refuses("change-records", `{"session":"s","changes":[]}`, "request", 400, request, "1")
	h.refuses("commit", commit, "request", 400, request, strings.Repeat("i", 200))
	h.refuses("commit", commit, "restarted", 409, request, "3", instance, "another")
	if got := h.post("info", `{"session":"s"}`); !strings.Contains(got, `"revision":2`) {
		t.Error(got)
	}
	// What had no effect is tried again.
	h.refuses("commit", `{"session":"t","expected":0}`, "session-not-found", 404, request, "4")
	h.post("create", `{"id":"t"}`)
	h.post("commit", `{"session":"t","expected":0}`, request, "4", instance, h.ask("GET", "/v1/", "").header.Get(instance))
}

// Many requests with one id, at once: one is made, and all get its answer.
func TestSV2_RequestsOfOneIDWaitForEachOther(t *testing.T) {
	h := serve(t, server.Options{}, nil)
	h.post("create", `{"id":"s"}`)
	var all sync.WaitGroup
	answers := make([]string, 50)
	for i := range answers {
		all.Go(func() {
			a, err := h.do("POST", "/v1/commit", strings.NewReader(`{"session":"s","expected":"any"}`), request, fmt.Sprint(i%5))
			if err != nil || a.status != 200 {
				t.Error(a, err)
			}
			answers[i] = a.body
		})
	}
	all.Wait()
	for i, a := range answers {
		if a != answers[i%5] {
			t.Errorf("%s, and %s", a, answers[i%5])
		}
	}
	if got := h.post("info", `{"session":"s"}`); !strings.Contains(got, `"revision":5`) {
		t.Error(got)
	}
}

func TestSV2_AWriteGoesOnWhenItsCallerGoesAway(t *testing.T) {
	validating, goOn := make(chan struct{}), make(chan struct{})
	h := serve(t, server.Options{}, func(h *host) {
		h.store.Validator = func(ctx context.Context, _ string, _ *turnstone.Commit) error {
			close(validating)
			<-goOn
			return ctx.Err()
		}
	})
	h.post("create", `{"id":"s"}`)
	leaving, leave := context.WithCancel(ctx)
	r, _ := http.NewRequestWithContext(leaving, "POST", h.url+"/v1/commit", strings.NewReader(`{"session":"s"}`))
	r.Header.Set(request, "1")
	gone := make(chan error)
	go func() {
		a, err := http.DefaultClient.Do(r)
		if err == nil {
			a.Body.Close()
		}
		gone <- err
	}()
	<-validating
	leave()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	close(goOn)
	if got := h.post("commit", `{"session":"s"}`, request, "1"); !strings.Contains(got, `"revision":1`) {
		t.Error(got)
	}
}

func TestSV3_ATokenAllowsItsScopesInItsNamespaces(t *testing.T) {
	var file strings.Builder
	tokens := map[string]string{}
	for name, g := range map[string]server.Grant{
		"reader":     {Scopes: []server.Scope{server.Read}, Namespaces: []string{""}},
		"writer":     {Scopes: []server.Scope{server.Write}, Namespaces: []string{"", "a"}},
		"maintainer": {Scopes: []server.Scope{server.Maintain}, Namespaces: []string{"*"}},
	} {
		token, line, err := server.NewToken(g)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, token) {
			t.Error("the file tells the token")
		}
		tokens[name] = token
		fmt.Fprintf(&file, "# %s\n\n%s\n", name, line)
	}
	known, err := server.ReadTokens(strings.NewReader(file.String()))
	if err != nil {
		t.Fatal(err)
	}
	h := serve(t, server.Options{Tokens: known}, nil)
	routes := map[string]string{"POST /v1/list": "read", "POST /v1/create": "write", "POST /v1/gc": "maintain", "GET /v1/changes": "read", "GET /metrics": "read", "GET /v1/watch": "read", "PUT /v1/attachment": "write"}
	allowed := map[string]map[string]string{"reader": {"read": "|"}, "writer": {"write": "|a|"}, "maintainer": {"maintain": "|a|b|"}}
	for route, scope := range routes {
		method, path, _ := strings.Cut(route, " ")
		for _, namespace := range []string{"", "a", "b"} {
			for name, token := range tokens {
				a := h.ask(method, path, "{}", "Authorization", "Bearer "+token, "Turnstone-Namespace", namespace)
				may := strings.Contains(allowed[name][scope], "|"+namespace+"|") || namespace == "" && allowed[name][scope] != ""
				if refused := a.status == 403 && a.kind == "scope"; refused == may {
					t.Errorf("%s as %s in %q: %d %s", route, name, namespace, a.status, a.body)
				}
			}
		}
		for _, header := range []string{"", "Bearer ", "Bearer none", "Basic " + tokens["reader"]} {
			if a := h.ask(method, path, "{}", "Authorization", header); a.status != 401 || a.kind != "token" || a.header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("%s with %q: %d %s", route, header, a.status, a.body)
			}
		}
	}
	if a := h.ask("GET", "/healthz", ""); a.status != 200 || a.body != "ok\n" {
		t.Errorf("%+v", a)
	}
}

func TestSV3_AFileOfTokensIsChecked(t *testing.T) {
	_, good, err := server.NewToken(server.Grant{Scopes: []server.Scope{server.Read}, Namespaces: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{
		"{", `{"sha256":"00","scopes":["read"],"namespaces":["a"]}`, strings.Replace(good, "read", "all", 1), strings.Replace(good, `"a"`, "", 1),
		strings.Replace(good, "scopes", "scope", 1), strings.Repeat("x", 100_000),
	} {
		if _, err := server.ReadTokens(strings.NewReader(good + "\n" + bad)); err == nil || !strings.HasPrefix(err.Error(), "server: tokens: ") {
			t.Errorf("%.60s is read: %v", bad, err)
		}
	}
	if _, _, err := server.NewToken(server.Grant{Scopes: []server.Scope{"all"}, Namespaces: []string{""}}); err == nil {
		t.Error("a token has a scope that there is not")
	}
}

func TestSV5_WhatIsMalformedIsRefusedBeforeAnyEffect(t *testing.T) {
	h := serve(t, server.Options{MaxRequestBytes: 4096}, nil)
	h.post("create", `{"id":"s"}`)
	for _, body := range []string{
		`{`, `[]`, `"x"`, `{"session":"s"} {}`, `{"session":"s"}x`, "{\"session\":\"s\"}\n{}", `{"session":"s","unknown":1}`, `{"session":1}`, `{"session":"s","expected":-1}`,
		`{"session":"s","nodes":[{"kind":"k","payload":[0]}]}`, `{"session":"s","nodes":[{"kind":"k","payload":[0,1]}]}`, `{"session":"s","nodes":[{"kind":"k","payload":[-1,1]}]}`,
		"{\"session\":\"s\",\"follow\":3,\"nodes\":[{\"kind\":\"k\",\"payload\":[2,2]}]}\nabc", "{\"session\":\"s\",\"follow\":-1}\n",
		"{\"session\":\"s\",\"follow\":1}\nab", `{"session":"s","nodes":[{"kind":"k","payload":"","parent":true}]}`,
	} {
		h.refuses("commit", body, "malformed", 400)
	}
	h.refuses("commit", "{\"session\":\"s\",\"follow\":9}\nab", "request", 400) // cut off
	h.refuses("commit", `{"session":"s","nodes":[{"kind":"","payload":""}]}`, "invalid", 422)
	h.refuses("commit", `{"session":"s","records":[{"key":"k","action":"burn"}]}`, "invalid", 422)
	h.refuses("delete", `{"session":"s","children":"eat"}`, "invalid", 422)
	h.refuses("commit", `{"session":"s","turn":"`+strings.Repeat("t", 5000)+`"}`, "too-large", 413)
	a, err := h.do("POST", "/v1/commit", io.MultiReader(strings.NewReader(`{"session":"s","turn":"`+strings.Repeat("t", 5000)+`"}`)))
	if err != nil || a.status != 413 {
		t.Errorf("of unknown length: %+v, %v", a, err)
	}
	if got := h.post("info", `{"session":"s"}`); !strings.Contains(got, `"revision":0`) {
		t.Error(got)
	}
	for _, path := range []string{"/", "/v1/none", "/v2/commit"} {
		if a := h.ask("POST", path, "{}"); a.status != 404 || a.kind != "no-operation" {
			t.Errorf("%s: %+v", path, a)
		}
	}
	for _, path := range []string{"/v1/watch?session=s&after=x", "/v1/attachment?session=s&offset=-1&id=" + strings.Repeat("0", 64), "/v1/upload"} {
		if a := h.ask("GET", path, ""); a.status != 400 || a.kind != "request" {
			t.Errorf("%s: %+v", path, a)
		}
	}
	h.post("commit", "{\"session\":\"s\",\"follow\":4,\"nodes\":[{\"kind\":\"k\",\"payload\":[1,3]},{\"kind\":\"k\",\"payload\":[0,1]}]}\n\x00\xff\x01\x02")
	if got := h.post("nodes", `{"session":"s"}`); !strings.Contains(got, "\xff\x01\x02") || !strings.Contains(got, `"\u0000"`) {
		t.Errorf("%q", got)
	}
}

// A session that is named with of is that session, and no other one of its id.
func TestSV1_OfNamesTheSessionItself(t *testing.T) {
	h := serve(t, server.Options{}, nil)
	of := func() string {
		var i struct{ Of string }
		if err := json.Unmarshal([]byte(h.post("create", `{"id":"s"}`)), &i); err != nil || i.Of == "" {
			t.Fatal(err)
		}
		return i.Of
	}
	first := of()
	h.post("delete", `{"session":"s"}`)
	h.refuses("info", `{"session":"s"}`, "session-not-found", 404)
	h.refuses("info", `{"session":"s","of":"`+first+`"}`, "session-deleted", 410)
	if second := of(); second == first {
		t.Fatal("it is the same session")
	}
	h.refuses("commit", `{"session":"s","of":"`+first+`"}`, "session-deleted", 410)
	h.post("commit", `{"session":"s"}`)
	h.refuses("watch", `{}`, "no-operation", 404)
	if a := h.ask("GET", "/v1/watch?session=s&of="+first, ""); a.kind != "session-deleted" {
		t.Errorf("%+v", a)
	}
}

func TestSV8_TooManyRequestsAreBusy(t *testing.T) {
	goOn := make(chan struct{})
	h := serve(t, server.Options{MaxRequests: 1, MaxWatches: 1, MaxUploads: 1, Patience: 50 * time.Millisecond}, func(h *host) {
		h.store.Validator = func(context.Context, string, *turnstone.Commit) error { <-goOn; return nil }
	})
	h.post("create", `{"id":"s"}`)
	first := make(chan reply)
	go func() {
		a, err := h.do("POST", "/v1/commit", strings.NewReader(`{"session":"s"}`))
		if err != nil {
			t.Error(err)
		}
		first <- a
	}()
	for h.Idle() > 0 {
		time.Sleep(time.Millisecond)
	}
	for a := h.ask("POST", "/v1/list", "{}"); a.status != 503; a = h.ask("POST", "/v1/list", "{}") {
		time.Sleep(time.Millisecond) // The commit has not begun.
	}
	a := h.ask("POST", "/v1/list", "{}")
	if a.kind != "busy" || a.header.Get("Retry-After") == "" {
		t.Errorf("%+v", a)
	}
	close(goOn)
	if a := <-first; a.status != 200 {
		t.Errorf("%+v", a)
	}
	h.post("list", "{}")

	watching, stop := context.WithCancel(ctx)
	defer stop()
	r, _ := http.NewRequestWithContext(watching, "GET", h.url+"/v1/watch?session=s", nil)
	w, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	if a := h.ask("GET", "/v1/watch?session=s", ""); a.kind != "busy" {
		t.Errorf("%+v", a)
	}
	if a := h.ask("PUT", "/v1/attachment?session=s&upload=1&more=1", "x"); a.status != 200 {
		t.Errorf("%+v", a)
	}
	if a := h.ask("PUT", "/v1/attachment?session=s&upload=2", "x"); a.kind != "busy" {
		t.Errorf("%+v", a)
	}
	if a := h.ask("DELETE", "/v1/upload?upload=1", ""); a.status != 204 {
		t.Errorf("%+v", a)
	}
	if a := h.ask("PUT", "/v1/attachment?session=s&upload=2", "x"); a.status != 200 {
		t.Errorf("%+v", a)
	}
}

// Who sends or takes nothing is cut off, so that nobody holds what others need.
func TestSV8_WhoSendsNothingIsCutOff(t *testing.T) {
	h := serve(t, server.Options{MaxRequests: 1, Patience: 100 * time.Millisecond}, nil)
	c, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "POST /v1/list HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
	answer, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || !strings.Contains(answer, "400") {
		t.Errorf("%q, %v", answer, err)
	}
	h.post("list", "{}")
}

func TestSV7_AnUploadGoesOnWhereItIs(t *testing.T) {
	h := serve(t, server.Options{UploadTimeout: 300 * time.Millisecond}, nil)
	h.post("create", `{"id":"s"}`)
	put := func(query, body string) reply {
		t.Helper()
		return h.ask("PUT", "/v1/attachment?session=s&mediaType=text/plain&"+query, body)
	}
	if a := put("upload=1&more=1", "one "); a.status != 200 || !strings.Contains(a.body, `"offset":4`) {
		t.Errorf("%+v", a)
	}
	if a := put("upload=1&offset=3", "x"); a.kind != "upload-offset" || !strings.Contains(a.body, `"offset":4`) {
		t.Errorf("%+v", a)
	}
	if a := put("upload=1&offset=4&name=other", "x"); a.kind != "request" {
		t.Errorf("%+v", a)
	}
	if a := h.ask("GET", "/v1/upload?upload=1", ""); a.body != `{"offset":4}`+"\n" {
		t.Errorf("%+v", a)
	}
	a := put("upload=1&offset=4", "two")
	if a.status != 200 || !strings.Contains(a.body, `"size":7`) {
		t.Errorf("%+v", a)
	}
	if again := h.ask("GET", "/v1/upload?upload=1", ""); again.body != a.body {
		t.Errorf("%+v", again)
	}
	var p struct{ Attachment struct{ ID string } }
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Fatal(err)
	}
	if a := h.ask("GET", "/v1/attachment?session=s&offset=4&id="+p.Attachment.ID, ""); a.body != "two" {
		t.Errorf("%+v", a)
	}
	if a := h.ask("GET", "/v1/attachment?session=s&offset=8&id="+p.Attachment.ID, ""); a.kind != "request" {
		t.Errorf("%+v", a)
	}
	if a := put("upload=2&offset=4", "two"); a.kind != "upload-not-found" {
		t.Errorf("%+v", a)
	}
	if a := put("upload=3&size=2", "abc"); a.kind != "size" || a.status != 422 {
		t.Errorf("%+v", a)
	}
	if a := put("upload=4&more=1", "a"); a.status != 200 {
		t.Errorf("%+v", a)
	}
	for a = h.ask("GET", "/v1/upload?upload=4", ""); a.status == 200; a = h.ask("GET", "/v1/upload?upload=4", "") {
		time.Sleep(10 * time.Millisecond)
	}
	if a.kind != "upload-not-found" {
		t.Errorf("%+v", a)
	}
}

// What is damaged is not ended as if it were whole.
func TestSV7_ADamagedAttachmentIsCutOff(t *testing.T) {
	var faults *enginetest.Faulty
	h := serve(t, server.Options{}, func(h *host) {
		faults = &enginetest.Faulty{Engine: h.engine}
		h.engine = faults
	})
	h.post("create", `{"id":"s"}`)
	content := make([]byte, 8<<20)
	for i := range content {
		content[i] = byte(i * i >> 7 * i >> 11)
	}
	a, err := h.do("PUT", "/v1/attachment?session=s&upload=1", bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	var p struct{ Attachment struct{ ID string } }
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Fatal(err)
	}
	path := "/v1/attachment?session=s&id=" + p.Attachment.ID
	if a, err := h.do("GET", path, nil); err != nil || a.body != string(content) {
		t.Fatal(len(a.body), err)
	}
	n := 0
	faults.Plan = func(c enginetest.Call) (f enginetest.Fault) {
		if c.Op == "Get" {
			if n++; n > 4 {
				f.Err = engine.ErrUnavailable
			}
		}
		return f
	}
	if a, err := h.do("GET", path, nil); err == nil && a.status == 200 {
		t.Errorf("%d bytes end as if they were all", len(a.body))
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
	for slow.cancelled.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
}

// What json.Unmarshal would change is refused, and not changed.
func TestSV5_TextThatIsNotUTF8IsRefused(t *testing.T) {
	h := serve(t, server.Options{}, nil)
	for _, body := range []string{"{\"id\":\"a\xff\"}", `{"id":"\ud800"}`, `{"id":"\udc00\ud800"}`, `{"id":"\ud800\u0041"}`, "{\"id\":{\"a\":\"\xff\"}}"} {
		h.refuses("create", body, "malformed", 400)
	}
	h.post("create", `{"id":"\ud83d\ude00\\ud800 \ufffd"}`)
	if got := h.post("list", "{}"); !strings.Contains(got, "\U0001F600\\\\ud800 \ufffd") {
		t.Error(got)
	}
	if a := h.ask("GET", "/%ff", ""); a.kind != "no-operation" {
		t.Errorf("%+v", a)
	}
}

// A short request can't make the server take much memory.
func TestSV8_ARequestOfTooManyObjectsIsRefused(t *testing.T) {
	h := serve(t, server.Options{}, nil)
	for name, body := range map[string]string{
		"commit-all": `{"commits":[{}` + strings.Repeat(",{}", 100_000) + `]}`, "commit": `{"session":"s","tombstone":[""` + strings.Repeat(`,""`, 2_000_000) + `]}`,
	} {
		h.refuses(name, body, "malformed", 400)
	}
	h.post("create", `{"id":"s"}`)
	h.refuses("commit", "{\"session\":\"s\",\"follow\":2,\"checkpoint\":[{\"name\":\"a\",\"content\":[0,2]},{\"name\":\"b\",\"content\":[0,1]}]}\nab", "malformed", 400)
}

// Who takes nothing of an answer is cut off, also where the answer is one document.
func TestSV8_WhoTakesNothingIsCutOff(t *testing.T) {
	h := serve(t, server.Options{MaxRequests: 1, Patience: 100 * time.Millisecond}, nil)
	h.post("create", `{"id":"s"}`)
	part := strings.Repeat("x", 30<<20)
	h.post("commit", fmt.Sprintf("{\"session\":\"s\",\"follow\":%d,\"checkpoint\":[{\"name\":\"a\",\"content\":[0,%[1]d]}]}\n", len(part))+part)
	c, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	body := `{"session":"s"}`
	fmt.Fprintf(c, "POST /v1/checkpoint HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	time.Sleep(20 * time.Millisecond)
	for deadline := time.Now().Add(5 * time.Second); h.ask("POST", "/v1/list", "{}").status != 200; {
		if time.Now().After(deadline) {
			t.Fatal("the request goes on for ever")
		}
	}
}

func TestSV3_WhoMayOnlyReadMakesNoNamespace(t *testing.T) {
	grants := map[string]server.Grant{
		"r": {Scopes: []server.Scope{server.Read}, Namespaces: []string{"*"}},
		"w": {Scopes: []server.Scope{server.Read, server.Write}, Namespaces: []string{"*"}},
	}
	h := serve(t, server.Options{MaxNamespaces: 2, Tokens: func(token string) (server.Grant, bool) { g, ok := grants[token]; return g, ok }}, nil)
	as := func(token, namespace string) reply {
		return h.ask("POST", "/v1/list", "{}", "Authorization", "bearer "+token, "Turnstone-Namespace", namespace)
	}
	if a := as("r", "a"); a.kind != "store-not-found" || a.status != 404 {
		t.Errorf("%+v", a)
	}
	for _, namespace := range []string{"a", "%20a%20"} {
		if a := as("w", namespace); a.status != 200 {
			t.Errorf("%+v", a)
		}
	}
	if a := as("r", "a"); a.status != 200 {
		t.Errorf("%+v", a)
	}
	if a := as("w", "third"); a.kind != "busy" {
		t.Errorf("%+v", a)
	}
	if a := as("w", "%zz"); a.kind != "request" {
		t.Errorf("%+v", a)
	}
}

// A namespace that can't be opened, and that nobody waits for any more, does not make the server ill. An engine that fails does.
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

func TestSV3_AWatchEndsWithItsToken(t *testing.T) {
	var revoked atomic.Bool
	h := serve(t, server.Options{Heartbeat: 10 * time.Millisecond, Tokens: func(string) (server.Grant, bool) {
		return server.Grant{Scopes: []server.Scope{server.Read, server.Write}, Namespaces: []string{""}}, !revoked.Load()
	}}, nil)
	h.post("create", `{"id":"s"}`, "Authorization", "Bearer t")
	r, _ := http.NewRequest("GET", h.url+"/v1/watch?session=s", nil)
	r.Header.Set("Authorization", "Bearer t")
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	revoked.Store(true)
	if _, err := io.Copy(io.Discard, a.Body); err != nil {
		t.Error(err)
	}
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
	for h.Idle() > 0 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond)
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if a := <-ended; !strings.Contains(a.body, "#canceled") {
		t.Errorf("%+v", a)
	}
}

// A request that goes on with an upload gets its turn, whatever the one before waits for.
func TestSV7_ARequestTakesAnUploadOver(t *testing.T) {
	h := serve(t, server.Options{Patience: 20 * time.Second}, nil)
	h.post("create", `{"id":"s"}`)
	in, out := io.Pipe()
	defer out.Close()
	cut := make(chan error, 1)
	go func() {
		a, err := h.do("PUT", "/v1/attachment?session=s&upload=1", in)
		if err == nil && a.status == 200 {
			err = errors.New("the request that was cut off has ended the upload")
		} else {
			err = nil
		}
		cut <- err
	}()
	fmt.Fprint(out, "one ")
	for h.ask("GET", "/v1/upload?upload=1", "").body != `{"offset":4}`+"\n" {
		time.Sleep(time.Millisecond)
	}
	begun := time.Now()
	if a := h.ask("PUT", "/v1/attachment?session=s&upload=1&offset=4", "two"); a.status != 200 || !strings.Contains(a.body, `"size":7`) {
		t.Errorf("%+v", a)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	if err := <-cut; err != nil {
		t.Error(err)
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
