package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/internal/wire"
	"github.com/turnstonedb/turnstone/persistencetest"
	"github.com/turnstonedb/turnstone/server"
)

// Over connections that are cut off all the time a client keeps the whole contract: nothing that it is asked to do is
// done twice, and no outcome stays unknown.
func TestSV2_TheContractHoldsOverConnectionsThatAreCut(t *testing.T) {
	if testing.Short() {
		t.Skip("the contract waits for connections that are made again")
	}
	var cuts atomic.Int64
	t.Run("contract", func(t *testing.T) {
		persistencetest.Run(t, persistencetest.Config{New: func(t *testing.T, v turnstone.Validator) persistencetest.Backend {
			cl, c := behind(t, memory.New(), turnstone.Options{Validator: v}, storetest.Often)
			t.Cleanup(func() { cuts.Add(c.Cuts.Load()) })
			return persistencetest.Backend{Factory: cl}
		}})
	})
	if cuts.Load() < 100 {
		t.Errorf("only %d connections were cut", cuts.Load())
	}
}

// A write whose answer is lost is made once, although it has no turn id.
func TestSV2_AWriteWhoseAnswerIsLostIsMadeOnce(t *testing.T) {
	var l lossy
	cl, c := behind(t, memory.New(), turnstone.Options{}, l.budget)
	lost := func(f func() error) {
		t.Helper()
		cl.CloseIdle()
		l.lose.Store(true)
		before := c.Cuts.Load()
		if err := f(); err != nil {
			t.Error(err)
		}
		if c.Cuts.Load() == before {
			t.Error("no connection was cut")
		}
	}
	var s turnstone.Persistence
	lost(func() (err error) {
		var created bool
		if s, created, err = cl.Create(ctx, turnstone.Request{ID: "s"}); !created {
			t.Error("the session was not made by the call")
		}
		return err
	})
	lost(func() error {
		r, err := s.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "k"}}})
		if r.Revision != 1 || r.Replayed {
			t.Errorf("%+v", r)
		}
		return err
	})
	lost(func() error {
		_, err := s.ChangeRecords(ctx, turnstone.RecordChange{Key: "k", Value: []byte("v"), Expect: turnstone.NoRecord})
		return err
	})
	lost(func() error { return s.Keep(ctx, "name", 1) })
	lost(func() error {
		a, err := s.PutAttachment(ctx, bytes.NewReader(make([]byte, 9<<20)), -1, "", "")
		if a.Size != 9<<20 {
			t.Errorf("%+v", a)
		}
		return err
	})
	lost(func() error { return cl.Delete(ctx, "s", turnstone.KeepChildren) })
}

// An attachment of many pieces goes on where it was cut off, in both directions.
func TestSV7_AttachmentsGoOnWhereTheyWereCutOff(t *testing.T) {
	cl, c := behind(t, memory.New(), turnstone.Options{}, func() (int64, int64) {
		return 1_500_000 + rand.Int64N(1_000_000), 1_500_000 + rand.Int64N(1_000_000)
	})
	s, _, err := cl.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, 30<<20)
	rand.NewChaCha8([32]byte{}).Read(content)
	a, err := s.PutAttachment(ctx, io.MultiReader(bytes.NewReader(content[:1<<20]), bytes.NewReader(content[1<<20:])), int64(len(content)), "application/x", "n")
	if err != nil {
		t.Fatal(err)
	}
	uploads := c.Cuts.Load()
	var got bytes.Buffer
	if n, err := s.ReadAttachment(ctx, &got, a.ID); err != nil || n != int64(len(content)) || !bytes.Equal(got.Bytes(), content) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if uploads < 3 || c.Cuts.Load() < uploads+3 {
		t.Errorf("%d connections were cut, then %d", uploads, c.Cuts.Load())
	}
}

// What a server, or a proxy, says to a write that is repeated tells nothing of the attempt before, unless it is the
// answer to the write.
func TestSV2_ARefusalOfARepeatedWriteTellsNothingOfTheFirst(t *testing.T) {
	for name, refuse := range map[string]func(w http.ResponseWriter, r *http.Request){
		"proxy": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) },
		"token": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(wire.HeaderCall, r.Header.Get(wire.HeaderCall))
			w.Header().Set("Content-Type", wire.Problem)
			w.WriteHeader(http.StatusUnauthorized)
			_ = wire.Write(w, wire.ErrorOf(wire.ErrToken))
		},
		"conflict": nil, // the answer to the write
	} {
		s, err := server.New(server.Options{Open: func(ctx context.Context, _ string, _ bool) (*turnstone.Store, error) {
			return turnstone.Open(ctx, memory.New(), nil)
		}})
		if err != nil {
			t.Fatal(err)
		}
		var lose, lost atomic.Bool
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case lost.CompareAndSwap(true, false) && refuse != nil:
				refuse(w, r)
				return
			case lose.CompareAndSwap(true, false):
				lost.Store(true)
				s.ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			}
			s.ServeHTTP(w, r)
		}))
		cl, err := client.Open(ctx, front.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		p, _, err := cl.Create(ctx, turnstone.Request{ID: "s"})
		if err != nil {
			t.Fatal(err)
		}
		lose.Store(true)
		_, err = p.Commit(ctx, turnstone.Commit{})
		if refuse == nil {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			lose.Store(true)
			if _, err = p.Commit(ctx, turnstone.Commit{}); !errors.Is(err, turnstone.ErrConflict) || errors.Is(err, turnstone.ErrOutcomeUnknown) {
				t.Errorf("%s: %v", name, err)
			}
		} else if !errors.Is(err, turnstone.ErrOutcomeUnknown) {
			t.Errorf("%s: %v", name, err)
		}
		cl.Close()
		front.Close()
		s.Close()
	}
}

// A sequence goes on for a caller who takes longer than anybody waits.
func TestSV6_ASequenceGoesOnForASlowCaller(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	defer serve(t, path, memory.New(), turnstone.Options{})()
	c := &storetest.Cutter{To: path, Budget: func() (int64, int64) { return -1, 40_000 }}
	cl, err := client.Open(ctx, "unix:"+c.Listen(t), &client.Options{Patience: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	s, _, err := cl.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	payload := make([]byte, 20_000)
	for range 6 {
		if _, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "k", Payload: payload}}}); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for _, err := range s.Nodes(ctx, turnstone.Scope{}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
		time.Sleep(80 * time.Millisecond)
	}
	if n != 6 {
		t.Errorf("%d nodes", n)
	}
}
