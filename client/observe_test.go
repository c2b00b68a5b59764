package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// told is what an observer was told, a line for each operation that has ended.
type told struct {
	mu    sync.Mutex
	lines []string
}

func (o *told) Begin(ctx context.Context, op turnstone.Operation) (context.Context, func(turnstone.Outcome)) {
	return ctx, func(out turnstone.Outcome) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.lines = append(o.lines, fmt.Sprintf("%s %s %v", op.Name, op.Session, turnstone.KindOf(out.Err).Name))
	}
}

// ended returns the lines since the last call.
func (o *told) ended() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer func() { o.lines = nil }()
	return o.lines
}

func TestSV19_AnObserverIsToldOfEachRequest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	defer serve(t, path, memory.New(), turnstone.Options{})()
	var o told
	c, err := client.Open(t.Context(), "unix:"+path, &client.Options{Observer: &o})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	o.ended()
	ctx := t.Context()
	s, _, err := c.Create(ctx, turnstone.Request{ID: "chat/1"})
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.PutAttachment(ctx, strings.NewReader("bytes"), 5, "text/plain", "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("hello"), Attachments: []blob.Attachment{a}}}}); err != nil {
		t.Fatal(err)
	}
	large := turnstone.Commit{Checkpoint: map[string][]byte{"p": bytes.Repeat([]byte("x"), 1<<20)}} // in another way
	if _, err := s.Commit(ctx, large); !errors.Is(err, turnstone.ErrConflict) {
		t.Fatal(err)
	}
	for _, err := range s.Watch(ctx, 0) {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	if _, err := s.Load(ctx, turnstone.Scope{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ReadAttachment(ctx, io.Discard, a.ID); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(ctx, "chat/1", turnstone.KeepChildren); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Info(ctx); !errors.Is(err, turnstone.ErrSessionDeleted) {
		t.Error(err)
	}
	got := o.ended()
	want := []string{
		"create chat/1 ", "put_attachment chat/1 ", "put_attachment chat/1 ", "commit chat/1 ", "commit chat/1 conflict", "load chat/1 ",
		"read_attachment chat/1 ", "delete chat/1 ", "info chat/1 session-deleted",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	// Nobody answers: it is told once, with the error that the caller has.
	gone, err := client.Open(ctx, "unix:"+path+"-none", &client.Options{Observer: &o, Patience: 1})
	if err == nil {
		t.Error(gone.Close())
	}
	if got := o.ended(); !slices.Equal(got, []string{"list  unavailable"}) {
		t.Errorf("%q", got)
	}
}
