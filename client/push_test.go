package client_test

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/push"
	"github.com/turnstonedb/turnstone/server"
)

// serveSpaces serves namespaces of a store in memory to who has any token, one bundle each way at once. of returns a client
// of a namespace.
func serveSpaces(t *testing.T, patience time.Duration) (path string, of func(namespace string) *client.Client) {
	t.Helper()
	path = storetest.Serve(t, memory.New(), server.Options{
		Tokens: func(string) (server.Grant, bool) {
			return server.Grant{Scopes: []server.Scope{server.Read, server.Write}, Namespaces: []string{"*"}}, true
		},
		MaxBundles: 1, Patience: patience,
	})
	return path, func(namespace string) *client.Client {
		c, err := client.Open(ctx, "unix:"+path, &client.Options{Token: "t", Namespace: namespace})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
}

// One token pushes between two namespaces of one server, which sends and takes a bundle at once, however few the token may
// have.
func TestPU2_ATokenPushesBetweenNamespacesOfOneServer(t *testing.T) {
	_, of := serveSpaces(t, 2*time.Second)
	a, b := of("a"), of("b")
	session, _, err := a.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	payload := make([]byte, 8<<20)
	_, _ = rand.Read(payload)
	for i := range 3 { // more than is buffered on the way
		if _, err := session.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "k", Payload: append(payload, byte(i))}}}); err != nil {
			t.Fatal(err)
		}
	}
	r, err := push.Sessions(ctx, a, b, push.Options{All: true})
	if err != nil || len(r.Sessions) != 1 || r.Sessions[0].To != 3 {
		t.Errorf("%+v, %v", r, err)
	}
}

// An upload whose sender is gone makes room for the next one, and one that found no place takes one later.
func TestPU2_ABundleWhoseSenderIsGoneMakesRoom(t *testing.T) {
	path, of := serveSpaces(t, time.Second)
	a, b := of("a"), of("b")
	if _, _, err := a.Create(ctx, turnstone.Request{ID: "s"}); err != nil {
		t.Fatal(err)
	}
	ask := func(method, route string) int {
		t.Helper()
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nTurnstone-Namespace: b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", method, route)
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		return r.StatusCode
	}
	if got := ask("PUT", "/v1/bundle?upload=gone&offset=0&more=1"); got != http.StatusOK {
		t.Fatal(got)
	}
	r, err := push.Sessions(ctx, a, b, push.Options{All: true})
	if err != nil || len(r.Sessions) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if got := ask("PUT", "/v1/bundle?upload=next&offset=0&more=1"); got != http.StatusOK {
		t.Error(got)
	}
	if got := ask("DELETE", "/v1/upload?upload=next"); got != http.StatusNoContent {
		t.Error(got)
	}
}

// Whoever must find a namespace makes none.
func TestPU5_AClientThatMustFindAStoreMakesNone(t *testing.T) {
	path, of := serveSpaces(t, time.Second)
	for range 2 {
		if _, err := client.Open(ctx, "unix:"+path, &client.Options{Token: "t", Namespace: "none", MustExist: true}); !errors.Is(err, turnstone.ErrStoreNotFound) {
			t.Fatal(err)
		}
	}
	of("none")
	if _, err := client.Open(ctx, "unix:"+path, &client.Options{Token: "t", Namespace: "none", MustExist: true}); err != nil {
		t.Error(err)
	}
}

// The rest of a bundle is sent to who has the bytes before it, and to nobody else.
func TestPU2_TheRestOfABundleIsThatOfTheSameBundle(t *testing.T) {
	path, of := serveSpaces(t, time.Second)
	session, _, err := of("b").Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := session.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "k", Payload: []byte("hello")}}}); err != nil {
		t.Fatal(err)
	}
	var whole bytes.Buffer
	if _, err := of("b").Bundle(ctx, &whole, turnstone.Bundled{ID: "s"}); err != nil {
		t.Fatal(err)
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(whole.Bytes()[:100]))
	for _, c := range []struct {
		offset int
		before string
		status int
	}{
		{0, "", 200}, {100, sum, 200}, {101, sum, 409}, {100, "", 409}, {whole.Len() + 1, sum, 409}, {-1, sum, 400},
	} {
		body := fmt.Sprintf(`{"sessions":[{"id":"s"}],"offset":%d,"before":"%s"}`, c.offset, c.before)
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST /v1/bundle HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nTurnstone-Namespace: b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r.Body)
		conn.Close()
		if r.StatusCode != c.status || c.status == 200 && (err != nil || !bytes.Equal(got, whole.Bytes()[c.offset:])) {
			t.Errorf("%s: %d, %d bytes, %v", body, r.StatusCode, len(got), err)
		}
	}
}

// What only a store of this process can do with a bundle is refused, rather than left out.
func TestPU5_AClientRefusesTheOptionsOfAStore(t *testing.T) {
	c := storetest.Served(t).(*client.Client)
	for _, o := range []turnstone.UnbundleOptions{{MaxBytes: 1}, {Exact: true}, {IDs: map[string]string{"a": "b"}}} {
		if _, err := c.Unbundle(ctx, bytes.NewReader(nil), o); !errors.Is(err, turnstone.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
