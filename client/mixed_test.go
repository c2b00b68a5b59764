package client_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// A mixer gives every second request the answer to the one before.
type mixer struct {
	http.Handler
	mu   sync.Mutex // guards what follows
	n    int
	last *httptest.ResponseRecorder
}

func (m *mixer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := httptest.NewRecorder()
	m.Handler.ServeHTTP(answer, r)
	m.mu.Lock()
	mixed := answer
	if m.n++; m.n%2 == 0 && m.last != nil {
		mixed = m.last
	}
	m.last = answer
	m.mu.Unlock()
	maps.Copy(w.Header(), mixed.Header())
	w.WriteHeader(mixed.Code)
	_, _ = w.Write(mixed.Body.Bytes())
}

func TestSV12_TheAnswerToAnotherRequestIsNoAnswer(t *testing.T) {
	s := newServer(t, memory.New(), turnstone.Options{})
	web := httptest.NewServer(&mixer{Handler: s})
	t.Cleanup(func() {
		web.Close()
		s.Close()
	})
	c, err := client.Open(ctx, web.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	var sessions []turnstone.Persistence
	for n := range 3 {
		p, created, err := c.Create(ctx, turnstone.Request{ID: fmt.Sprint("s", n)})
		if err != nil || !created {
			t.Fatal(created, err)
		}
		sessions = append(sessions, p)
	}
	for revision := range 8 {
		for n, p := range sessions {
			text := fmt.Sprint("of ", n)
			r, err := p.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte(text)}}})
			if err != nil || int(r.Revision) != revision+1 {
				t.Fatalf("commit to %d: %+v, %v", n, r, err)
			}
			i, err := p.Info(ctx)
			if err != nil || i.ID != p.ID() {
				t.Fatalf("info of %d: %+v, %v", n, i, err)
			}
			st, err := p.Load(ctx, turnstone.Scope{})
			if err != nil || len(st.Nodes) != revision+1 {
				t.Fatalf("load of %d: %+v, %v", n, st, err)
			}
			for _, node := range st.Nodes {
				if string(node.Payload) != text {
					t.Errorf("%d has read %q", n, node.Payload)
				}
			}
		}
	}
}
