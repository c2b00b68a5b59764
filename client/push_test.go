package client_test

import (
	"context"
	"crypto/rand"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/server"
)

// One token pushes between two namespaces of one server, which sends and takes a bundle at once, however few the token may
// have.
func TestPU2_ATokenPushesBetweenNamespacesOfOneServer(t *testing.T) {
	e := memory.New()
	s, err := server.New(server.Options{
		Open: func(ctx context.Context, namespace string, mustExist bool) (*turnstone.Store, error) {
			return turnstone.Open(ctx, e, &turnstone.Options{Namespace: namespace, MustExist: mustExist})
		},
		Tokens: func(string) (server.Grant, bool) {
			return server.Grant{Scopes: []server.Scope{server.Read, server.Write}, Namespaces: []string{"*"}}, true
		},
		MaxBundles: 1, Patience: 2 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s")
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
	of := func(namespace string) *client.Client {
		c, err := client.Open(ctx, "unix:"+path, &client.Options{Token: "t", Namespace: namespace})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
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
