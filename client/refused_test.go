package client_test

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// Text that is not UTF-8 is refused, as a store does it, and not changed on the way.
func TestSV1_TextThatIsNotUTF8IsRefused(t *testing.T) {
	cl, _ := behind(t, memory.New(), turnstone.Options{}, func() (int64, int64) { return -1, -1 })
	for _, id := range []string{"a\xff", "\\\xff"} {
		if _, _, err := cl.Create(ctx, turnstone.Request{ID: id}); !errors.Is(err, turnstone.ErrInvalid) {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, id := range []string{"a\ufffd", `a\ufffd`, "a/b", ".", "..", "a b?c#d%2F", "<&>\u2028\x01"} {
		s, _, err := cl.Create(ctx, turnstone.Request{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		if i, err := s.Info(ctx); err != nil || i.ID != id {
			t.Errorf("%q is %q, %v", id, i.ID, err)
		}
		a, err := s.PutAttachment(ctx, bytes.NewReader([]byte("x")), 1, "", id)
		if err != nil || a.Name != id {
			t.Errorf("%q is %q, %v", id, a.Name, err)
		}
	}
}

func TestSV1_WhatCanNotBeSentIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	defer serve(t, path, memory.New(), turnstone.Options{})()
	for _, namespace := range []string{" a ", "a", "a\nb", "ü%20"} {
		cl, err := client.Open(ctx, "unix:"+path, &client.Options{Namespace: namespace})
		if err != nil {
			t.Fatal(err)
		}
		if _, created, err := cl.Create(ctx, turnstone.Request{ID: "s"}); err != nil || !created {
			t.Errorf("namespace %q is another one: %v", namespace, err)
		}
		cl.Close()
	}
	for address, token := range map[string]string{"http://203.0.113.1:1": "t", "http://127.0.0.1:1": "a b"} {
		if _, err := client.Open(ctx, address, &client.Options{Token: token}); err == nil || errors.Is(err, engine.ErrUnavailable) {
			t.Errorf("the token %q is sent to %s: %v", token, address, err)
		}
	}
	cl := connect(t, path)
	s, _, err := cl.Create(ctx, turnstone.Request{ID: "t"})
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{0, 1, 3, 5} {
		if _, err := s.PutAttachment(ctx, bytes.NewReader([]byte("four")), size, "", ""); !errors.Is(err, blob.ErrSize) {
			t.Errorf("four bytes as %d: %v", size, err)
		}
	}
	a, err := s.PutAttachment(ctx, bytes.NewReader([]byte("four")), 4, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.ReadAttachment(ctx, short{}, a.ID); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("%v", err)
	}
}
