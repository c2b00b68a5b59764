package postgres_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/postgres"
	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A proxy stands between a client and a server, and cuts connections between two
// messages of the protocol (PostgreSQL manual, "Message Formats").
type proxy struct {
	dir    string
	target atomic.Pointer[string] // the server's socket
	silent atomic.Bool            // nothing gets through
	vacuum atomic.Bool            // VACUUM is made something that the server does not know

	mu     sync.Mutex
	counts [2]int // messages from the client, and from the server, since armed
	cut    [2]int // at which of them; -1: never
	hold   bool   // be silent from there on, and cut nothing
	conns  map[net.Conn]bool
}

const (
	client = 0
	server = 1
)

func newProxy(t *testing.T, socket string) *proxy {
	t.Helper()
	p := &proxy{dir: t.TempDir(), conns: map[net.Conn]bool{}}
	p.target.Store(&socket)
	p.arm(-1, -1)
	l, err := net.Listen("unix", filepath.Join(p.dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); p.hangUp() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("unix", *p.target.Load())
			if err != nil {
				from.Close()
				continue
			}
			p.mu.Lock()
			p.conns[from], p.conns[to] = true, true
			p.mu.Unlock()
			go p.pass(client, from, to, true)
			go p.pass(server, to, from, false)
		}
	}()
	return p
}

func (p *proxy) url() string { return "postgres:///postgres?host=" + p.dir + "&user=postgres" }

// arm cuts the connection before the messages of these numbers from now on.
func (p *proxy) arm(fromClient, fromServer int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts, p.cut, p.hold = [2]int{}, [2]int{fromClient, fromServer}, false
}

// passed returns how many messages came from each side since arm.
func (p *proxy) passed() [2]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

func (p *proxy) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
	clear(p.conns)
}

// pass forwards messages until the connection is cut.
func (p *proxy) pass(side int, from, to net.Conn, startup bool) {
	defer from.Close()
	defer to.Close()
	for ; ; startup = false {
		head := make([]byte, 5)
		if startup { // it has no type
			head = head[:4]
		}
		if _, err := io.ReadFull(from, head); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[len(head)-4:])-4)
		if _, err := io.ReadFull(from, body); err != nil {
			return
		}
		p.mu.Lock()
		now := p.counts[side] == p.cut[side]
		hold := p.hold
		p.counts[side]++
		p.mu.Unlock()
		if now && hold {
			p.silent.Store(true)
		} else if now {
			return
		}
		if p.silent.Load() {
			continue
		}
		if p.vacuum.Load() {
			body = bytes.Replace(body, []byte("VACUUM"), []byte("VACATE"), 1)
		}
		if _, err := to.Write(append(head, body...)); err != nil {
			return
		}
	}
}

// The connection is cut before every message of an Apply, either way, also of the
// first one of a connection, which prepares its statements: what was acknowledged
// stands, what failed otherwise than with an unknown outcome does not, and
// applying again settles it, once.
func TestConnectionsCutAtEveryStep(t *testing.T) {
	srv := pgtest.Shared(t)
	for name, fresh := range map[string]bool{"prepared": false, "first": true} {
		t.Run(name, func(t *testing.T) { cutAtEveryStep(t, srv, fresh) })
	}
}

func cutAtEveryStep(t *testing.T, srv *pgtest.Server, fresh bool) {
	p := newProxy(t, srv.Socket())
	o := &postgres.Options{Schema: pgtest.Schema(t)}
	open := func(url string) *postgres.Engine {
		e, err := postgres.Open(ctx, url, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		return e
	}
	direct, e := open(srv.URL("postgres")), open(p.url()+"&pool_max_conns=1")
	value := func(n int) []byte { return fmt.Append(nil, "value ", n) }
	n := 0
	apply := func() error { // moves a counter from n to n+1
		var b engine.Batch
		b.Guard([]byte("counter"), nil)
		if n > 0 {
			b.Guards[0].Value = value(n)
		}
		b.Set([]byte("counter"), value(n+1))
		b.Set(fmt.Append(nil, "set ", n), value(n))
		b.Delete(fmt.Append(nil, "set ", n-1))
		return e.Apply(ctx, &b)
	}
	for range 2 { // the second one has a value to guard, as all that follow
		if err := apply(); err != nil {
			t.Fatal(err)
		}
		n++
	}
	first := func() {
		if fresh {
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			e = open(p.url() + "&pool_max_conns=1")
		}
	}
	first()
	p.arm(-1, -1)
	if err := apply(); err != nil {
		t.Fatal(err)
	}
	n++
	messages := p.passed()
	if messages[client] < 10 || messages[server] < 10 {
		t.Fatalf("%v messages", messages)
	}
	outcomes := map[string]int{}
	for side := range 2 {
		for at := 0; at < messages[side]; at += testkit.Pick(1, 3, 9) {
			cut := [2]int{-1, -1}
			cut[side] = at
			first()
			p.arm(cut[0], cut[1])
			err := apply()
			p.arm(-1, -1)
			vs, gerr := direct.Get(ctx, []byte("counter"), fmt.Append(nil, "set ", n), fmt.Append(nil, "set ", n-1))
			if gerr != nil {
				t.Fatal(gerr)
			}
			stands := bytes.Equal(vs[0], value(n+1))
			if stands != (vs[1] != nil) || stands != (vs[2] == nil) {
				t.Fatalf("cut %v: half of it stands: %q", cut, vs)
			}
			switch {
			case err == nil && !stands:
				t.Errorf("cut %v: acknowledged, and lost", cut)
			case err != nil && !errors.Is(err, engine.ErrUnknown):
				t.Errorf("cut %v, after something was sent: %v", cut, err)
			}
			outcomes[fmt.Sprint("error ", err != nil, " stands ", stands)]++
			for try := 0; err != nil; try++ { // as the store does
				if err = apply(); errors.Is(err, engine.ErrConflict) {
					// The first attempt stands, or has taken effect since.
					if vs, gerr := direct.Get(ctx, []byte("counter")); gerr == nil && bytes.Equal(vs[0], value(n+1)) {
						err = nil
					}
				}
				if errors.Is(err, engine.ErrConflict) || try == 10 {
					t.Fatalf("cut %v: %v", cut, err)
				}
			}
			n++
			if vs, err := direct.Get(ctx, []byte("counter")); err != nil || !bytes.Equal(vs[0], value(n)) {
				t.Fatalf("cut %v: %q, %v", cut, vs[0], err)
			}
			if _, err := e.Get(ctx, []byte("counter")); err != nil { // reads may be cut, but go on
				if _, err = e.Get(ctx, []byte("counter")); err != nil {
					t.Error(err)
				}
			}
		}
	}
	t.Logf("%d messages from the client, %d from the server: %v", messages[client], messages[server], outcomes)
	if outcomes["error true stands true"] == 0 || outcomes["error true stands false"] == 0 {
		t.Errorf("the cuts did not reach both sides of COMMIT: %v", outcomes)
	}
}

// A database may have no VACUUM.
func TestVacuumIsNotEverywhere(t *testing.T) {
	p := newProxy(t, pgtest.Shared(t).Socket())
	e, err := postgres.Open(ctx, p.url(), &postgres.Options{Schema: pgtest.Schema(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, unknown := range []bool{true, false} {
		p.vacuum.Store(unknown)
		if err := errors.Join(e.Apply(ctx, set("1")), e.Vacuum(ctx)); err != nil {
			t.Errorf("VACUUM is unknown: %v: %v", unknown, err)
		}
	}
}
