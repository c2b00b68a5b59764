package client_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// The answer to a write is lost, and nobody listens for a moment: that a connection is refused says nothing of the
// write.
func TestSV4_ARefusedConnectionAfterALostAnswerIsWaitedFor(t *testing.T) {
	for _, turn := range []string{"", "t"} {
		s := newServer(t, memory.New(), turnstone.Options{})
		path := filepath.Join(t.TempDir(), "s")
		var lose atomic.Bool
		var listener atomic.Pointer[net.Listener]
		var front http.Server
		listen := func() {
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Error(err)
				return
			}
			listener.Store(&l)
			go func() { _ = front.Serve(l) }()
		}
		front.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/commit") || !lose.CompareAndSwap(true, false) {
				s.ServeHTTP(w, r)
				return
			}
			s.ServeHTTP(httptest.NewRecorder(), r)
			(*listener.Load()).Close()
			time.AfterFunc(200*time.Millisecond, listen)
			panic(http.ErrAbortHandler)
		})
		listen()
		cl := connect(t, path)
		p, _, err := cl.Create(ctx, turnstone.Request{ID: "a"})
		if err != nil {
			t.Fatal(err)
		}
		lose.Store(true)
		r, err := p.Commit(ctx, turnstone.Commit{Turn: turn, Nodes: []turnstone.NewNode{{Kind: "k"}}})
		if err != nil || r.Revision != 1 || lose.Load() {
			t.Errorf("turn %q: %+v, %v", turn, r, err)
		}
		cl.Close()
		front.Close()
		s.Close()
	}
}
