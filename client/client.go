// Package client uses stores that a server has: a Client is a turnstone.Factory, and its sessions are
// turnstone.Persistence. So code that works on a store in its own process works on one behind `turnstone serve`, too.
//
//	c, err := client.Open(ctx, "unix:/var/lib/agent/turnstone.http", nil)
//	…
//	session, _, err := c.Create(ctx, turnstone.Request{ID: id})
//
// Errors are those of the store: errors.Is and errors.As find in them what they find in those of a store. Calls that
// reach no server fail with an error that matches engine.ErrUnavailable.
//
// A call whose answer is lost is made again for a while. The client gives every write an id. The server remembers these
// ids, and so makes no write twice. If the server was restarted meanwhile, nobody knows whether it made the write: a
// commit is made again all the same, and once, and any other write fails with an error that matches
// turnstone.ErrOutcomeUnknown.
package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/cache"
	"github.com/turnstonedb/turnstone/internal/socket"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// Options of a Client.
type Options struct {
	// Token is sent with each request. A server on a Unix socket needs none, as a rule.
	Token string
	// Namespace names the store.
	Namespace string
	// TLS is for servers whose certificate no authority of this machine has signed.
	TLS *tls.Config
	// MustExist makes Open fail if the store does not exist. Otherwise the first call makes one, if the token may write.
	MustExist bool
	// Patience is how long a call is made again when its answer is lost, or the server is busy or away. Default 10
	// seconds, at most 30: so long a server remembers what it did for sure.
	Patience time.Duration
	// Dial, if set, makes the connections, and the address is not looked at: server.Server.Dial connects with a server in
	// the same process.
	Dial func(ctx context.Context) (net.Conn, error)
	// Observer, if set, is told when a request begins, and when it has its answer or was given up. A request that is made
	// again is told of once. An upload is told of for each of its pieces, and a watch is not told of. Operations have the
	// names that a store gives them; those that a store does not observe have the name of the protocol. Items and Bytes
	// of an outcome are 0.
	Observer turnstone.Observer
	// Memory is the budget of what the client keeps in memory: the last large commits, from which the next are sent as
	// differences. Default: the process's own.
	Memory *engine.MemoryBudget
}

// ErrAddress means that Open can't use an address.
var ErrAddress = errors.New("client: no address of a server")

var errSilent = errors.New("client: the server does not answer")

// maxPatience is half of the time that servers remember writes.
const maxPatience = 30 * time.Second

// headerTimeout is how long an answer may take to begin. Servers give writes a minute, and tell at least so often
// that a collection goes on.
const headerTimeout = 90 * time.Second

// A Client is a connection with a server. It is safe for concurrent use.
type Client struct {
	o      Options
	base   string
	http   *http.Client
	server atomic.Pointer[string] // the id of the process that served last
	bases  *bases
	ended  context.Context
	end    context.CancelFunc
}

var _ turnstone.Factory = (*Client)(nil)

// Open connects with a server at an address: "unix:" and the path of a socket, "https://host:port", or
// "http://host:port" for one on this machine. "ssh://user@host:port/dir" is the store in the directory /dir, or in dir of
// the user's home if it is /~/dir: the command ssh starts `turnstone serve --stdio` there, or, with
// "?command=path", another path of it. Open fails if no server answers, and if the server does not know the
// token. An address that is none is ErrAddress, before anything is done.
func Open(ctx context.Context, address string, o *Options) (*Client, error) {
	c := &Client{}
	if o != nil {
		c.o = *o
	}
	c.o.Patience = cmp.Or(c.o.Patience, 10*time.Second)
	c.bases = cache.New[wire.Target, base](cache.Of(c.o.Memory).Bases)
	if c.o.Patience < 0 || c.o.Patience > maxPatience {
		return nil, fmt.Errorf("client: Patience is %v, want up to %v", c.o.Patience, maxPatience)
	}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: c.o.TLS, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 64, IdleConnTimeout: 90 * time.Second,
		DisableCompression: true, ResponseHeaderTimeout: headerTimeout, ExpectContinueTimeout: 5 * time.Second, WriteBufferSize: 64 << 10, ReadBufferSize: 64 << 10,
	}
	d := &net.Dialer{Timeout: 10 * time.Second}
	t.DialContext = d.DialContext
	if c.o.Dial != nil {
		c.base = "http://turnstone"
		t.Proxy = nil
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return c.o.Dial(ctx) }
	} else if path, unix := strings.CutPrefix(address, "unix:"); unix && path != "" {
		c.base = "http://turnstone"
		t.Proxy = nil
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return socket.Dial(ctx, path) }
	} else if strings.HasPrefix(address, "ssh://") {
		dial, err := sshDialer(address, c.o.MustExist)
		if err != nil {
			return nil, err
		}
		c.base = "http://turnstone"
		t.Proxy, t.IdleConnTimeout = nil, 0 // The process there has what was uploaded in part.
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
	} else {
		u, err := url.Parse(address)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
			return nil, fmt.Errorf("%w: %q: want unix:PATH, https://HOST:PORT, http://HOST:PORT or ssh://HOST/DIR", ErrAddress, address)
		}
		if ip, _ := netip.ParseAddr(u.Hostname()); u.Scheme == "http" && c.o.Token != "" && u.Hostname() != "localhost" && !ip.IsLoopback() {
			return nil, fmt.Errorf("%w: %s would show the token to everybody on the way: want https", ErrAddress, address)
		}
		if u.Scheme == "http" {
			t.Proxy = nil
		}
		c.base = strings.TrimSuffix(address, "/")
	}
	c.http = &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if strings.ContainsFunc(c.o.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.New("client: the token has characters that no token has")
	}
	c.ended, c.end = context.WithCancel(context.Background())
	limited, cancel := context.WithTimeoutCause(ctx, c.o.Patience+d.Timeout, errSilent)
	defer cancel()
	var err error
	if strings.HasPrefix(address, "ssh://") { // What ssh says against it once, it would say again.
		hello := func(answer *http.Response) error { _, err := io.Copy(io.Discard, answer.Body); return err }
		if _, _, err = c.once(limited, &ask{method: "GET", path: "/v1/"}, "", hello); err != nil && ctx.Err() == nil {
			_ = c.Close()
			return nil, openError(err)
		}
	}
	if err == nil {
		_, err = c.List(limited, turnstone.ListOptions{Limit: 1})
	}
	switch {
	case err == nil, errors.Is(err, wire.ErrScope), errors.Is(err, turnstone.ErrStoreNotFound) && !c.o.MustExist: // A token may be for writing only, or the store not be made yet.
		return c, nil
	case ctx.Err() == nil && limited.Err() != nil:
		err = fmt.Errorf("%w: %w", engine.ErrUnavailable, errSilent)
	}
	return nil, errors.Join(err, c.Close())
}

// Close ends the calls of the client, and closes its connections.
func (c *Client) Close() error {
	c.end()
	c.http.CloseIdleConnections()
	c.bases.Clear()
	return nil
}

// An ask is a request that can be made again.
type ask struct {
	method, path string
	query        url.Values
	session      string // that the body names, if it does
	body         [][]byte
	id           string // of a write: the server remembers the write by it
	anywhere     bool   // of a write: any server may make it again, because commits have turn ids, or that of the request
	base         string // of a write: makes the server remember the body, see wire.HeaderBase
	begun        string // of a write whose answer was cut off: the server that is at it
	bad          error  // why it can't be made
}

// do makes a request until there is an answer, and passes that to read, which returns an error if the answer is cut
// off.
func (c *Client) do(ctx context.Context, a *ask, read func(*http.Response) error) (err error) {
	if ctx == nil {
		return &turnstone.InvalidError{Where: "context", Reason: "it is nil"}
	}
	if err := cmp.Or(a.bad, ctx.Err()); err != nil {
		return err
	}
	if o := c.o.Observer; o != nil && !strings.HasPrefix(a.path, "/v1/watch") && a.path != "/v1/changes" {
		var end func(turnstone.Outcome)
		if ctx, end = o.Begin(ctx, a.operation()); end != nil {
			defer func() { end(turnstone.Outcome{Err: err}) }()
		}
	}
	server := a.begun // that has to make it
	if s := c.server.Load(); s != nil && a.id != "" && !a.anywhere && server == "" {
		server = *s
	}
	begun := time.Now()
	sent := a.begun != "" // A server may have begun with it.
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		answer, lost, err := c.once(ctx, a, server, read)
		if err == nil {
			return nil
		}
		var p *wire.Error
		switch {
		case lost:
			sent = true
		case errors.Is(err, wire.ErrBusy):
		case errors.Is(err, wire.ErrRestarted) && !sent: // Nobody has begun with it: this server may.
			server = answer.Get(wire.HeaderServer)
		case answer != nil && sent && a.id != "" && answer.Get(wire.HeaderRequest) != a.id: // It says nothing of the attempt before.
			return unknown(err)
		case errors.As(err, &p), errors.Is(err, errForeign):
			return err
		}
		if ctx.Err() != nil || c.ended.Err() != nil || time.Since(begun) > c.o.Patience {
			return c.gaveUp(ctx, a, sent, err)
		}
		select {
		case <-ctx.Done():
		case <-c.ended.Done():
		case <-time.After(pause):
		}
	}
}

// operation returns what an observer is told of a request.
func (a *ask) operation() turnstone.Operation {
	o := turnstone.Operation{Name: strings.ReplaceAll(strings.TrimPrefix(a.path, "/v1/"), "-", "_"), Session: cmp.Or(a.session, a.query.Get("session"))}
	switch {
	case a.path == "/v1/attachment" && a.method == http.MethodGet:
		o.Name = turnstone.OpReadAttachment
	case a.path == "/v1/attachment", a.path == "/v1/upload":
		o.Name = turnstone.OpPutAttachment
	}
	return o
}

// gaveUp returns the error for a request that got no answer.
func (c *Client) gaveUp(ctx context.Context, a *ask, sent bool, err error) error {
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case c.ended.Err() != nil:
		err = errClosed
	default:
		err = fmt.Errorf("%w: %w", engine.ErrUnavailable, err)
	}
	if a.id != "" && sent {
		return unknown(err)
	}
	return err
}

func unknown(err error) error { return fmt.Errorf("%w: %w", turnstone.ErrOutcomeUnknown, err) }

// once makes a request. lost tells that the server may have begun with it, and that its answer did not come.
func (c *Client) once(ctx context.Context, a *ask, server string, read func(*http.Response) error) (header http.Header, lost bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ended, cancel)()
	body := &pieces{rest: slices.Clone(a.body)}
	defer body.end()
	r, err := c.request(ctx, a, server, body)
	if err != nil {
		return nil, false, err
	}
	r.Header.Set(wire.HeaderCall, rand.Text())
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, body.end(), strip(err)
	}
	defer answer.Body.Close()
	if !answers(answer, r) {
		return nil, true, fmt.Errorf("%w: its header %s is %q", errMixed, wire.HeaderCall, answer.Header.Get(wire.HeaderCall))
	}
	if s := answer.Header.Get(wire.HeaderServer); s != "" {
		c.server.Store(&s)
	}
	if answer.StatusCode/100 == 2 {
		err := read(answer)
		return answer.Header, err != nil, err
	}
	lost, err = problem(answer)
	return answer.Header, lost, err
}

// errMixed means that an answer is not that to the request: something between client and server has mixed them up.
var errMixed = errors.New("client: the answer is not that to the request")

// answers reports whether an answer is that to a request, or that of a proxy, which tells nothing but a failure.
func answers(answer *http.Response, r *http.Request) bool {
	id := answer.Header.Get(wire.HeaderCall)
	return id == r.Header.Get(wire.HeaderCall) || id == "" && answer.StatusCode/100 != 2 && !wire.IsProblem(answer.Header.Get("Content-Type"))
}

// errForeign means that what has answered is no server of this protocol.
var errForeign = errors.New("client: the answer is none of a server of stores")

// problem returns the error that an answer reports. lost reports that a proxy has answered in place of the server.
func problem(answer *http.Response) (lost bool, err error) {
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		return true, err
	}
	kind := answer.Header.Get("Content-Type")
	if p := wire.ReadError(kind, body); p != nil {
		return false, p
	}
	lost = wire.IsProblem(kind) || answer.StatusCode >= 500 || answer.StatusCode == http.StatusTooManyRequests
	return lost, fmt.Errorf("%w: %s, %.200q", errForeign, answer.Status, body)
}

// request returns an HTTP request.
func (c *Client) request(ctx context.Context, a *ask, server string, body *pieces) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, a.method, c.base+a.path, nil)
	if err != nil {
		return nil, err
	}
	r.URL.RawQuery = a.query.Encode()
	if a.body != nil {
		size := 0
		for _, p := range a.body {
			size += len(p)
		}
		if size > 0 { // else http.Request would not know it
			r.Body, r.ContentLength = body, int64(size)
			if a.method == http.MethodPut {
				// A server that has this piece already says so without reading it, and closes the connection: who sends meanwhile
				// may not get the answer.
				r.Header.Set("Expect", "100-continue")
			}
		}
		r.Header.Set("Content-Type", wire.ContentType)
	}
	for name, value := range map[string]string{
		wire.HeaderNamespace: url.PathEscape(c.o.Namespace), wire.HeaderRequest: a.id, wire.HeaderServer: server, wire.HeaderBase: a.base,
	} {
		if value != "" {
			r.Header.Set(name, value)
		}
	}
	if c.o.MustExist {
		r.Header.Set(wire.HeaderExisting, "1")
	}
	if c.o.Token != "" {
		r.Header.Set("Authorization", "Bearer "+c.o.Token)
	}
	return r, nil
}

// strip removes the address from an error: it says which call it was already.
func strip(err error) error {
	var e *url.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}

// pieces is a body. http.Transport may go on reading it when the request has ended, and the pieces are the caller's:
// end prevents that.
type pieces struct {
	mu   sync.Mutex // guards the fields below
	rest [][]byte
	sent bool // some of it was read
}

func (p *pieces) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = true
	for len(p.rest) > 0 && len(p.rest[0]) == 0 {
		p.rest = p.rest[1:]
	}
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.rest[0])
	p.rest[0] = p.rest[0][n:]
	return n, nil
}

func (p *pieces) Close() error { return nil }

// end makes p empty, and reports whether some of it was read.
func (p *pieces) end() (sent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rest = nil
	return p.sent
}

// read makes an operation that changes nothing.
func read[Out any](ctx context.Context, c *Client, name string, in any) (*Out, error) {
	return call[Out](ctx, c, name, in, "", false)
}

// write makes an operation once. If anywhere is set, it may be made more than once.
func write[Out any](ctx context.Context, c *Client, name string, in any, anywhere bool) (*Out, error) {
	return call[Out](ctx, c, name, in, rand.Text(), anywhere)
}

func call[Out any](ctx context.Context, c *Client, name string, in any, id string, anywhere bool) (*Out, error) {
	return one[Out](ctx, c, asking(name, id, anywhere, in))
}

// one makes a request whose answer is one document.
func one[Out any](ctx context.Context, c *Client, a *ask) (out *Out, err error) {
	err = c.do(ctx, a, func(answer *http.Response) error {
		out = new(Out)
		return wire.NewReader(answer.Body).Read(out)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// items makes an operation whose answer is several items. It calls begin, and then f for each item until that reports
// false. When the answer is cut off, it does so again. id, if set, makes the server go on with what it was at. If
// anywhere is set, another server may begin anew.
func items(ctx context.Context, c *Client, name, id string, anywhere bool, in any, begin func(), f func(*wire.Item) bool) error {
	a := asking(name, id, anywhere, in)
	for p := (patient{c: c}); ; {
		again, err := sequence(ctx, c, a, begin, f)
		if !again {
			return err
		}
		if !p.wait(ctx) {
			if a.begun != "" {
				err = unknown(err)
			}
			return err
		}
	}
}

func asking(name, id string, anywhere bool, in any) *ask {
	body, err := wire.Encode(in)
	a := &ask{method: "POST", path: "/v1/" + name, body: body, id: id, anywhere: anywhere, bad: err}
	switch of := in.(type) {
	case interface{ Named() (wire.Target, bool) }:
		t, _ := of.Named()
		a.session = t.Session
	case *turnstone.Request:
		a.session = of.ID
	case *wire.Delete:
		a.session = of.Session
	}
	return a
}

// A patient waits between requests for the rest of a sequence.
type patient struct {
	c     *Client
	since time.Time // of the last progress
}

// wait waits a moment. It reports false if there was no progress for Options.Patience.
func (p *patient) wait(ctx context.Context) bool {
	if p.since.IsZero() {
		p.since = time.Now()
	}
	select {
	case <-ctx.Done():
	case <-p.c.ended.Done():
	case <-time.After(min(max(time.Since(p.since)/4, 5*time.Millisecond), 500*time.Millisecond)):
	}
	return time.Since(p.since) < p.c.o.Patience
}

// sequence is items for an answer that is not asked for again when it is cut off. Then again is true.
func sequence(ctx context.Context, c *Client, a *ask, begin func(), f func(*wire.Item) bool) (again bool, err error) {
	var failed error
	err = c.do(ctx, a, func(answer *http.Response) error {
		if begin(); a.id != "" && !a.anywhere {
			a.begun = answer.Header.Get(wire.HeaderServer)
		}
		for d := wire.NewReader(answer.Body); ; {
			i := new(wire.Item)
			switch failed = d.Read(i); {
			case failed != nil:
				failed = cut(failed)
				return nil
			case i.Problem != nil:
				failed = i.Problem
				return nil
			case i.End, !f(i):
				return nil
			}
		}
	})
	var p *wire.Error
	switch {
	case err != nil || failed == nil || errors.As(failed, &p):
		return false, errors.Join(err, failed)
	case ctx.Err() != nil, c.ended.Err() != nil:
		return false, c.gaveUp(ctx, a, a.begun != "", failed)
	}
	return true, fmt.Errorf("%w: the answer is cut off: %w", engine.ErrUnavailable, failed)
}

var errClosed = fmt.Errorf("client: %w", engine.ErrClosed)

// cut returns the error of an answer that has ended too soon.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
