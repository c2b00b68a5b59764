package client_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/server"
)

// serveSpaces serves namespaces of a store in memory to who has any token, one bundle each way at once. of returns a client
// of a namespace.
func serveSpaces(t *testing.T, patience time.Duration) (path string, of func(namespace string) *client.Client) {
	t.Helper()
	e := memory.New()
	s, err := server.New(server.Options{
		Open: func(ctx context.Context, namespace string, mustExist bool) (*turnstone.Store, error) {
			return turnstone.Open(ctx, e, &turnstone.Options{Namespace: namespace, MustExist: mustExist})
		},
		Tokens: func(string) (server.Grant, bool) {
			return server.Grant{Scopes: []server.Scope{server.Read, server.Write}, Namespaces: []string{"*"}}, true
		},
		MaxBundles: 1, Patience: patience,
	})
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	serving, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(serving, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
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
	r, err := turnstone.Push(ctx, a, b, turnstone.PushOptions{All: true})
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
	r, err := turnstone.Push(ctx, a, b, turnstone.PushOptions{All: true})
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
