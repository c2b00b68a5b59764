package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/wire"
	"github.com/turnstonedb/turnstone/persistencetest"
	"github.com/turnstonedb/turnstone/server"
)

// A cutter is a proxy that cuts connections off.
type cutter struct {
	to     string
	budget func() (up, down int64) // bytes of a connection in each direction; negative is as many as there are
	cuts   atomic.Int64
	open   atomic.Int64
	away   atomic.Bool // nothing is passed on

	mu    sync.Mutex // guards conns
	conns []net.Conn
}

// cutAll cuts all connections.
func (c *cutter) cutAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.conns {
		s.Close()
	}
}

// listen makes c listen at a new path, which it returns.
func (c *cutter) listen(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go c.pass(in)
		}
	}()
	return path
}

func (c *cutter) pass(in net.Conn) {
	defer in.Close()
	if c.away.Load() {
		return
	}
	out, err := net.Dial("unix", c.to)
	if err != nil {
		return
	}
	defer out.Close()
	c.open.Add(1)
	defer c.open.Add(-1)
	c.mu.Lock()
	c.conns = append(c.conns, in, out)
	c.mu.Unlock()
	up, down := c.budget()
	var both sync.WaitGroup
	one := func(to, from net.Conn, budget int64) {
		if budget < 0 {
			_, _ = io.Copy(to, from)
		} else if n, _ := io.CopyN(to, from, budget); n == budget {
			c.cuts.Add(1)
		}
		to.Close()
		from.Close()
	}
	both.Go(func() { one(out, in, up) })
	both.Go(func() { one(in, out, down) })
	both.Wait()
}

// often cuts half of all connections, anywhere in the first requests and answers.
func often() (up, down int64) {
	switch rand.IntN(4) {
	case 0:
		return rand.Int64N(3000), -1
	case 1:
		return -1, rand.Int64N(3000)
	}
	return -1, -1
}

// behind serves an engine behind a cutter, and returns a client.
func behind(t *testing.T, e engine.Engine, o turnstone.Options, budget func() (up, down int64)) (*client.Client, *cutter) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	stop := serve(t, path, e, o)
	c := &cutter{to: path, budget: budget}
	cl := connect(t, c.listen(t))
	t.Cleanup(func() {
		cl.Close()
		stop()
	})
	return cl, c
}

// Over connections that are cut off all the time a client keeps the whole contract: nothing that it is asked to do is done twice, and no outcome
// stays unknown.
func TestSV2_TheContractHoldsOverConnectionsThatAreCut(t *testing.T) {
	var cuts atomic.Int64
	t.Run("contract", func(t *testing.T) {
		persistencetest.Run(t, persistencetest.Config{New: func(t *testing.T, v turnstone.Validator) persistencetest.Backend {
			cl, c := behind(t, memory.New(), turnstone.Options{Validator: v}, often)
			t.Cleanup(func() { cuts.Add(c.cuts.Load()) })
			return persistencetest.Backend{Factory: cl}
		}})
	})
	if cuts.Load() < 100 {
		t.Errorf("only %d connections were cut", cuts.Load())
	}
}

// lossy is a budget that loses the answer to what follows lose.
type lossy struct{ lose atomic.Bool }

func (l *lossy) budget() (up, down int64) {
	if l.lose.CompareAndSwap(true, false) {
		return -1, 0
	}
	return -1, -1
}

// A write whose answer is lost is made once, although it has no turn id.
func TestSV2_AWriteWhoseAnswerIsLostIsMadeOnce(t *testing.T) {
	var l lossy
	cl, c := behind(t, memory.New(), turnstone.Options{}, l.budget)
	lost := func(f func() error) {
		t.Helper()
		cl.CloseIdle()
		l.lose.Store(true)
		before := c.cuts.Load()
		if err := f(); err != nil {
			t.Error(err)
		}
		if c.cuts.Load() == before {
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

// When the server was restarted, nobody knows whether it made a write whose answer was lost: only a turn id tells.
func TestSV3_AfterARestartOnlyATurnIDTells(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	e := memory.New()
	held := make(chan struct{})
	slow := turnstone.Options{Validator: func(context.Context, string, *turnstone.Commit) error { <-held; return nil }}
	stop := serve(t, path, unclosed{e}, slow)
	c := &cutter{to: path, budget: func() (int64, int64) { return -1, -1 }}
	through := c.listen(t)
	cl := connect(t, through)
	s, _, err := cl.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error, 2)
	var turn turnstone.Result
	go func() {
		_, err := s.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "k"}}, Expected: turnstone.AnyRevision})
		results <- err
	}()
	turns := make(chan error, 1)
	go func() {
		var err error
		turn, err = s.Commit(ctx, turnstone.Commit{Turn: "t", Nodes: []turnstone.NewNode{{Kind: "k"}}, Expected: turnstone.AnyRevision})
		turns <- err
	}()
	for c.open.Load() < 2 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond) // Both are at the validator.
	c.away.Store(true)                // Nothing reaches the server, and what it answers is lost.
	c.cutAll()
	close(held)
	stop()
	stop = serve(t, path, unclosed{e}, turnstone.Options{})
	defer stop()
	c.away.Store(false)
	if err := <-results; !errors.Is(err, turnstone.ErrOutcomeUnknown) {
		t.Errorf("without a turn id: %v", err)
	}
	if err := <-turns; err != nil || turn.Revision == 0 || !turn.Replayed {
		t.Errorf("with a turn id: %+v, %v", turn, err)
	}
	st, err := s.Load(ctx, turnstone.Scope{})
	if err != nil || st.Revision != 2 {
		t.Errorf("the session is at %d, %v", st.Revision, err)
	}
}

// unclosed is an engine that outlives its server.
type unclosed struct{ engine.Engine }

func (unclosed) Close() error { return nil }

// Watches go on over connections that are cut, and over a server that is restarted: in order, without a gap or a double.
func TestSV6_WatchesGoOnOverARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	e := memory.New()
	stop := serve(t, path, unclosed{e}, turnstone.Options{})
	cl := connect(t, path)
	if err := cl.StartFeed(ctx, time.Hour); err != nil {
		t.Fatal(err)
	}
	feed, err := cl.Feed(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := cl.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	const commits = 60
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	commitsSeen, changesSeen := make(chan head.Revision, commits), make(chan turnstone.Change, commits+1)
	var both sync.WaitGroup
	both.Go(func() {
		for l, err := range s.Watch(watching, 0) {
			if err != nil {
				if watching.Err() == nil {
					t.Error(err)
				}
				return
			}
			commitsSeen <- l.Revision
		}
	})
	both.Go(func() {
		for c, err := range cl.Watch(watching, feed.End) {
			if err != nil {
				if watching.Err() == nil {
					t.Error(err)
				}
				return
			}
			changesSeen <- c
		}
	})
	for i := range commits {
		if i%20 == 10 {
			stop()
			stop = serve(t, path, unclosed{e}, turnstone.Options{})
		}
		if _, err := s.Commit(ctx, turnstone.Commit{Expected: head.Revision(i), Turn: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range commits {
		if r := <-commitsSeen; r != head.Revision(i+1) {
			t.Fatalf("revision %d after %d", r, i)
		}
	}
	if c := <-changesSeen; c.Kind != turnstone.ChangeCreated {
		t.Fatalf("%+v", c)
	}
	for i := range commits {
		if c := <-changesSeen; c.Revision != head.Revision(i+1) {
			t.Fatalf("change %+v after revision %d", c, i)
		}
	}
	cancel()
	both.Wait()
	cl.Close()
	stop()
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
	uploads := c.cuts.Load()
	var got bytes.Buffer
	if n, err := s.ReadAttachment(ctx, &got, a.ID); err != nil || n != int64(len(content)) || !bytes.Equal(got.Bytes(), content) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if uploads < 3 || c.cuts.Load() < uploads+3 {
		t.Errorf("%d connections were cut, then %d", uploads, c.cuts.Load())
	}
}

// What does not answer is unavailable, and what answers is told from a server of stores.
func TestSV4_AnAddressWithoutAServerIsUnavailable(t *testing.T) {
	_, err := client.Open(ctx, "unix:"+filepath.Join(t.TempDir(), "none"), &client.Options{Patience: time.Millisecond})
	if !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	limited, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := client.Open(limited, "unix:"+filepath.Join(t.TempDir(), "none"), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	begun := time.Now()
	if _, err := client.Open(ctx, other.URL, nil); err == nil || errors.Is(err, engine.ErrUnavailable) || time.Since(begun) > 5*time.Second {
		t.Errorf("%v after %v", err, time.Since(begun))
	}
	for _, bad := range []string{"", "host:80", "ftp://host", "http://", "http://user@host", "https://host?q"} {
		if _, err := client.Open(ctx, bad, nil); err == nil {
			t.Errorf("%q is taken for an address", bad)
		}
	}
}

// After Close every call fails at once.
func TestSV4_ACallEndsWithItsClient(t *testing.T) {
	cl, _ := behind(t, memory.New(), turnstone.Options{}, func() (int64, int64) { return -1, -1 })
	s, _, err := cl.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		for _, err := range s.Watch(ctx, 0) {
			ended <- err
		}
	}()
	time.Sleep(20 * time.Millisecond)
	cl.Close()
	if err := <-ended; !errors.Is(err, engine.ErrClosed) {
		t.Errorf("a watch ends with %v", err)
	}
	if _, err := s.Info(ctx); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("%v", err)
	}
}

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

// What a server, or a proxy, says to a write that is repeated tells nothing of the attempt before, unless it is the answer to the write.
func TestSV2_ARefusalOfARepeatedWriteTellsNothingOfTheFirst(t *testing.T) {
	for name, refuse := range map[string]func(w http.ResponseWriter){
		"proxy": func(w http.ResponseWriter) { http.Error(w, "no", http.StatusForbidden) },
		"token": func(w http.ResponseWriter) {
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
				refuse(w)
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

// Two servers behind one address make no write twice.
func TestSV3_TwoServersBehindAnAddressMakeAWriteOnce(t *testing.T) {
	e := memory.New()
	var servers [2]*server.Server
	for i := range servers {
		var err error
		if servers[i], err = server.New(server.Options{Open: func(ctx context.Context, _ string, _ bool) (*turnstone.Store, error) {
			return turnstone.Open(ctx, e, nil)
		}}); err != nil {
			t.Fatal(err)
		}
		defer servers[i].Close()
	}
	var lose atomic.Int32
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := servers[rand.IntN(2)]
		if r.URL.Path == "/v1/commit" && lose.Add(1)%3 == 0 {
			s.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		s.ServeHTTP(w, r)
	}))
	defer front.Close()
	cl, err := client.Open(ctx, front.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	p, _, err := cl.Create(ctx, turnstone.Request{ID: "s"})
	if err != nil {
		t.Fatal(err)
	}
	done, unknown := 0, 0
	for range 60 {
		switch _, err := p.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision}); {
		case err == nil:
			done++
		case errors.Is(err, turnstone.ErrOutcomeUnknown):
			unknown++
		default:
			t.Fatal(err)
		}
	}
	i, err := p.Info(ctx)
	if err != nil || int(i.Revision) < done || int(i.Revision) > done+unknown || done < 10 {
		t.Errorf("%d writes are done and %d unknown, and the session is at %d, %v", done, unknown, i.Revision, err)
	}
}

// A server that accepts and is silent is unavailable as well.
func TestSV4_AServerThatIsSilentIsUnavailable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	limited, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := client.Open(limited, "http://"+l.Addr().String(), &client.Options{Patience: time.Millisecond}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// A sequence goes on for a caller who takes longer than anybody waits.
func TestSV6_ASequenceGoesOnForASlowCaller(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	defer serve(t, path, memory.New(), turnstone.Options{})()
	c := &cutter{to: path, budget: func() (int64, int64) { return -1, 40_000 }}
	cl, err := client.Open(ctx, "unix:"+c.listen(t), &client.Options{Patience: 50 * time.Millisecond})
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

// A short writer takes half of what it is given.
type short struct{}

func (short) Write(b []byte) (int, error) { return len(b) / 2, nil }
