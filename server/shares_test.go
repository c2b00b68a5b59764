package server_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/testkit"
	"github.com/turnstonedb/turnstone/server"
)

// tenants gives each token the namespace of its name, and "all" all of them.
func tenants(token string) (server.Grant, bool) {
	g := server.Grant{Scopes: []server.Scope{server.Read, server.Write, server.Maintain}, Namespaces: []string{token}}
	if token == "all" {
		g.Namespaces = []string{"*"}
	}
	return g, true
}

// as asks as the bearer of a token, about the namespace of its name.
func (h *host) as(token, method, path, body string) reply {
	h.Helper()
	return h.ask(method, path, body, "Authorization", "Bearer "+token, "Turnstone-Namespace", token)
}

// slowly begins a request of a tenant that announces a body and sends one byte of it, and another one when the server
// has ended it, until the test ends.
func (h *host) slowly(token, path string, length int) {
	h.Helper()
	ctx, stop := context.WithCancel(ctx)
	var asks sync.WaitGroup
	asks.Go(func() {
		for ctx.Err() == nil {
			c, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
			if err != nil {
				h.Error(err)
				return
			}
			end := context.AfterFunc(ctx, func() { c.Close() })
			fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: bearer %s\r\nTurnstone-Namespace: %[2]s\r\nContent-Length: %d\r\n\r\n ", path, token, length)
			_, _ = io.Copy(io.Discard, c)
			c.Close()
			end()
		}
	})
	h.Cleanup(func() { stop(); asks.Wait() })
}

// Requests that are slow, and announce much, keep nobody waiting but the bearer of their token.
func TestSV15_SlowRequestsOfOneTokenStopNoOther(t *testing.T) {
	h := serve(t, server.Options{Tokens: tenants, MaxRequests: 16, Patience: time.Second}, nil)
	for range 40 {
		h.slowly("slow", "/v1/list", 128<<20)
	}
	testkit.Until(t, "the requests have come", func() bool { return h.as("slow", "POST", "/v1/list", "{}").kind == "busy" })
	for _, token := range []string{"other", "third"} {
		for range 20 {
			if a := h.as(token, "POST", "/v1/list", "{}"); a.status != 200 {
				t.Fatalf("%+v", a)
			}
		}
	}
}

// A request is charged for what it takes decoded, before it is decoded.
func TestSV15_ARequestIsChargedForWhatItTakesDecoded(t *testing.T) {
	h := serve(t, server.Options{MaxRequestBytes: 1 << 20, MaxBodyBytes: 1, Patience: 10 * time.Second}, nil) // 2 MiB
	h.post("create", `{"id":"s"}`)
	keys := func(n int) string { return `{"session":"s","keys":[""` + strings.Repeat(`,""`, n) + `]}` }
	if a := h.ask("POST", "/v1/nodes-by-key", keys(45_000)); a.kind != "too-large" { // 132 KiB, which would take 2.2 MB
		t.Errorf("%d %.300s", a.status, a.body)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			a := h.ask("POST", "/v1/nodes-by-key", keys(20_000))
			for begun := time.Now(); a.kind == "busy" && time.Since(begun) < time.Minute; time.Sleep(time.Millisecond) {
				a = h.ask("POST", "/v1/nodes-by-key", keys(20_000))
			}
			if a.kind != "limit" {
				t.Errorf("%d %.300s", a.status, a.body)
			}
		})
	}
	wg.Wait()
	// All that was taken is there again.
	if a := h.ask("POST", "/v1/nodes-by-key", keys(30_000)); a.kind != "limit" {
		t.Errorf("%d %.300s", a.status, a.body)
	}
}

func TestSV15_UploadsAndWatchesHaveShares(t *testing.T) {
	h := serve(t, server.Options{Tokens: tenants, MaxUploads: 4, MaxWatches: 4, Share: 0.5, UploadTimeout: time.Minute}, nil)
	for _, token := range []string{"a", "b"} {
		if a := h.as(token, "POST", "/v1/create", `{"id":"s"}`); a.status != 200 {
			t.Fatalf("%+v", a)
		}
	}
	up := func(token string, n int) string {
		return h.as(token, "PUT", fmt.Sprint("/v1/attachment?session=s&more=1&upload=", n), "x").kind
	}
	if got := []string{up("a", 1), up("a", 2), up("a", 3), up("b", 1), up("b", 2), up("b", 3)}; fmt.Sprint(got) != fmt.Sprint([]string{"", "", "busy", "", "", "busy"}) {
		t.Errorf("uploads: %q", got)
	}
	if a := h.ask("PUT", "/v1/attachment?session=s&more=1&upload=9", "x", "Authorization", "Bearer all", "Turnstone-Namespace", "a"); a.kind != "busy" {
		t.Errorf("a namespace has more than its share: %+v", a)
	}
	h.as("a", "DELETE", "/v1/upload?upload=1", "")
	if got := []string{up("b", 3), up("a", 3)}; fmt.Sprint(got) != fmt.Sprint([]string{"busy", ""}) {
		t.Errorf("uploads: %q", got)
	}
	watch := func(token string) int {
		c, stop := context.WithCancel(ctx)
		t.Cleanup(stop)
		r, _ := http.NewRequestWithContext(c, "GET", h.url+"/v1/watch?session=s", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Turnstone-Namespace", token)
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { a.Body.Close() })
		return a.StatusCode
	}
	if got := []int{watch("a"), watch("a"), watch("a"), watch("b"), watch("b"), watch("b")}; fmt.Sprint(got) != "[200 200 503 200 200 503]" {
		t.Errorf("watches: %d", got)
	}
}

// Any number of namespaces may be asked for. Those that nobody uses make room, and the default one stays open.
func TestSV15_IdleNamespacesMakeRoom(t *testing.T) {
	var opened atomic.Int32 // how often the default one was
	e := memory.New()
	sv, err := server.New(server.Options{MaxNamespaces: 2, Open: func(ctx context.Context, namespace string, _ bool) (*turnstone.Store, error) {
		if namespace == "" {
			opened.Add(1)
		}
		return turnstone.Open(ctx, e, &turnstone.Options{Namespace: namespace})
	}})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(sv)
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
		_ = sv.Close()
	})
	h := &host{T: t, Server: sv, url: front.URL}
	in := func(namespace, body string) reply {
		return h.ask("POST", "/v1/create", body, "Turnstone-Namespace", namespace)
	}
	for i := range 20 {
		for _, namespace := range []string{fmt.Sprint("tenant-", i), "", fmt.Sprint("tenant-", i)} {
			if a := in(namespace, `{"id":"s"}`); a.status != 200 {
				t.Fatalf("%+v", a)
			}
		}
	}
	if n := opened.Load(); n != 1 {
		t.Errorf("the default namespace was opened %d times", n)
	}
	c, stop := context.WithCancel(ctx)
	for _, namespace := range []string{"tenant-0", "tenant-1"} {
		r, _ := http.NewRequestWithContext(c, "GET", h.url+"/v1/watch?session=s", nil)
		r.Header.Set("Turnstone-Namespace", namespace)
		a, err := http.DefaultClient.Do(r)
		if err != nil || a.StatusCode != 200 {
			t.Fatal(a, err)
		}
		defer a.Body.Close()
	}
	if a := in("tenant-3", `{"id":"s"}`); a.kind != "busy" {
		t.Errorf("%+v", a)
	}
	if a := in("", `{"id":"s"}`); a.status != 200 {
		t.Errorf("%+v", a)
	}
	if a := h.ask("GET", "/healthz", ""); a.status != 200 {
		t.Errorf("%+v", a)
	}
	stop()
	testkit.Until(t, "the server learns that the watches have ended", func() bool { return in("tenant-3", `{"id":"s"}`).status == 200 })
}

// Connections that nobody uses make room for others, whether they have sent anything or not.
func TestSV15_ConnectionsWithoutRequestsMakeRoom(t *testing.T) {
	store := turnstone.Options{}
	e := memory.New()
	s, err := server.New(server.Options{MaxConnections: 16, Open: func(ctx context.Context, namespace string, _ bool) (*turnstone.Store, error) {
		return turnstone.Open(ctx, e, &store)
	}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serving, stop := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- s.Serve(serving, l) }()
	var dialled []net.Conn
	defer func() {
		for _, c := range dialled {
			c.Close()
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	dial := func(text string) net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		dialled = append(dialled, c)
		_, _ = io.WriteString(c, text)
		return c
	}
	ask := func(c net.Conn) string {
		body := `{"id":"s"}`
		fmt.Fprintf(c, "POST /v1/create HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(line)
	}
	watch := dial("GET /v1/watch?session=s HTTP/1.1\r\nHost: x\r\n\r\n") // not found: idle
	time.Sleep(10 * time.Millisecond)
	inUse := dial("POST /v1/list HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{")
	time.Sleep(10 * time.Millisecond)
	for i := range 40 {
		dial("POST /v1/list HTT")
		if got := ask(dial("")); got != "HTTP/1.1 200 OK" {
			t.Fatalf("connection %d: %s", i, got)
		}
	}
	fmt.Fprint(inUse, "}")
	if line, err := bufio.NewReader(inUse).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Errorf("the one with a request: %q, %v", line, err)
	}
	// The first one, which has had its answer, has made room.
	_ = watch.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.Copy(io.Discard, watch); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection that was idle longest is open")
	}
}

func TestSV3_ATokenExpires(t *testing.T) {
	ends := time.Now().Add(time.Hour)
	grants := map[string]server.Grant{}
	for name, at := range map[string]time.Time{"over": time.Now().Add(-time.Second), "good": ends, "ever": {}} {
		token, line, err := server.NewToken(server.Grant{Scopes: []server.Scope{server.Read, server.Write}, Namespaces: []string{"*"}, Expires: at})
		if err != nil {
			t.Fatal(err)
		}
		known, err := server.ReadTokens(strings.NewReader(line))
		if err != nil {
			t.Fatal(err)
		}
		grants[name], _ = known(token)
	}
	if !grants["good"].Expires.Equal(ends) {
		t.Errorf("%+v", grants)
	}
	h := serve(t, server.Options{Tokens: func(token string) (server.Grant, bool) { g, ok := grants[token]; return g, ok }}, nil)
	for name, want := range map[string]string{"over": "token", "good": "", "ever": ""} {
		if a := h.ask("POST", "/v1/list", "{}", "Authorization", "Bearer "+name); a.kind != want {
			t.Errorf("%s: %+v", name, a)
		}
	}
}

// Metrics tell of all namespaces, so a token for one does not read them.
func TestSV3_MetricsAreForWhoMayReadAllNamespaces(t *testing.T) {
	h := serve(t, server.Options{Tokens: tenants}, nil)
	if a := h.as("a", "GET", "/metrics", ""); a.kind != "scope" {
		t.Errorf("%+v", a)
	}
	if a := h.ask("GET", "/metrics", "", "Authorization", "Bearer all"); a.status != 200 {
		t.Errorf("%+v", a)
	}
}

// What two tokens have of the bytes leaves some to a third.
func TestSV15_TwoTokensDoNotTakeAllBytes(t *testing.T) {
	// The same proportions as the defaults: 128 MiB, 512 MiB.
	h := serve(t, server.Options{Tokens: tenants, MaxRequestBytes: 1 << 20, MaxBodyBytes: 4 << 20, Patience: 8 * time.Second}, nil)
	for _, token := range []string{"a", "b", "c"} {
		h.as(token, "POST", "/v1/create", `{"id":"s"}`)
	}
	for _, token := range []string{"a", "b"} {
		for range 2 {
			c, err := net.Dial("tcp", h.url[len("http://"):])
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			go func() {
				_, _ = c.Write([]byte("POST /v1/list HTTP/1.1\r\nHost: x\r\nAuthorization: bearer " + token + "\r\nTurnstone-Namespace: " + token + "\r\nContent-Length: 1048575\r\n\r\n"))
				_, _ = c.Write(make([]byte, 1<<20-2)) // all but the last byte
			}()
		}
	}
	time.Sleep(time.Second)
	begun := time.Now()
	if a := h.as("c", "POST", "/v1/list", "{}"); a.status != 200 || time.Since(begun) > time.Second {
		t.Error(time.Since(begun))
		t.Errorf("a third token: %d %s", a.status, a.body)
	}
}

// The watches of one token leave connections to others.
func TestSV15_WatchesOfOneTokenLeaveConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, server.Options{Tokens: tenants, MaxConnections: 100, Patience: time.Second}, l)
	ask := func(ctx context.Context, token, method, path string) (*http.Response, error) {
		r, _ := http.NewRequestWithContext(ctx, method, "http://"+l.Addr().String()+path, http.NoBody)
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Turnstone-Namespace", token)
		return (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	}
	if _, err := ask(ctx, "b", "POST", "/v1/list"); err != nil {
		t.Fatal(err)
	}
	c, stop := context.WithCancel(ctx)
	defer stop()
	for range 100 {
		r, err := ask(c, "a", "GET", "/v1/watch-records")
		if err != nil || r.StatusCode != 200 {
			break
		}
	}
	for range 5 {
		if _, err := ask(ctx, "b", "POST", "/v1/list"); err != nil {
			t.Errorf("another token: %v", err)
		}
	}
}

// pipes is a listener whose connections come from a channel.
type pipes struct {
	came chan net.Conn
	once sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	c, ok := <-p.came
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.came) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "x", Net: "unix"} }

// A connection that makes room ends as slowly as its other side likes, and nobody waits for that.
func TestSV15_WhoDoesNotReadTheEndOfAConnectionStopsNobody(t *testing.T) {
	cert := httptest.NewUnstartedServer(nil)
	cert.StartTLS()
	defer cert.Close()
	p := &pipes{came: make(chan net.Conn)}
	s := serveOn(t, server.Options{TLS: &tls.Config{Certificates: cert.TLS.Certificates}, MaxConnections: 1}, p)
	ours, theirs := net.Pipe()
	p.came <- theirs
	c := tls.Client(ours, &tls.Config{InsecureSkipVerify: true})
	go func() { _ = c.Handshake() }()
	time.Sleep(time.Second)
	defer ours.Close()
	far, other := net.Pipe()
	defer far.Close()
	p.came <- other // makes room
	time.Sleep(100 * time.Millisecond)
	begun := time.Now()
	s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/v1/", nil))
	if d := time.Since(begun); d > time.Second {
		t.Errorf("a request on another connection took %v", d)
	}
}

// serveOn serves an engine in memory on a listener.
func serveOn(t *testing.T, o server.Options, l net.Listener) *server.Server {
	e := memory.New()
	o.Open = func(ctx context.Context, namespace string, mustExist bool) (*turnstone.Store, error) {
		return turnstone.Open(ctx, e, &turnstone.Options{Namespace: namespace, MustExist: mustExist})
	}
	s, err := server.New(o)
	if err != nil {
		t.Fatal(err)
	}
	c, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(c, l) })
	t.Cleanup(func() {
		stop()
		_ = s.Close()
		_ = l.Close()
		wg.Wait()
	})
	return s
}
