// Package server serves stores over HTTP. docs/http.md describes what it serves, for those who write a client;
// package client is one.
//
// A Server is an http.Handler. Command `turnstone serve` runs one.
package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/cache"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// Options of a Server. The zero value of a field that has a default means that default.
type Options struct {
	// Open opens the store of a namespace at the first request to it. The server closes the store. If who asks may not
	// write, mustExist is true, and a namespace that does not exist is turnstone.ErrStoreNotFound.
	Open func(ctx context.Context, namespace string, mustExist bool) (*turnstone.Store, error)
	// Tokens, if set, returns what the bearer of a token may do, and false if there is no such token. It must be safe
	// for concurrent use. Without it, who can connect may do all.
	Tokens func(token string) (Grant, bool)
	// TLS, if set, makes Serve speak TLS.
	TLS *tls.Config
	// Memory is the budget of what the server keeps in memory: the last large commits, from which the next can be
	// differences. Default: the process's own.
	Memory *engine.MemoryBudget
	// MaxRequestBytes is how long the body of a request may be, but for that of an upload. Default 128 MiB.
	MaxRequestBytes int64
	// MaxRequests is how many requests the server works on at once; others wait. Default 256.
	MaxRequests int64
	// MaxBodyBytes is how many bytes of memory the bodies of these requests may take together, as they have come and
	// decoded; others wait. A share of it is at least twice MaxRequestBytes. Default 512 MiB, and 1 GiB with Tokens.
	MaxBodyBytes int64
	// MaxNamespaces is how many namespaces the server has open at most, beside the default one. One that no request is
	// about is closed when another one has to be opened. Default 1024.
	MaxNamespaces int
	// MaxWatches is how many watches there may be at once. Default 1024.
	MaxWatches int64
	// MaxUploads is how many uploads may have begun and not ended. Default 256.
	MaxUploads int
	// MaxBundles is how many bundles are sent at once, and how many come at once; others wait. Each takes up to 200 MB of
	// memory. Default 4.
	MaxBundles int64
	// MaxConnections is how many connections Serve has. When there are more, those that no request is on make room. A
	// quarter of them can have requests that are worked on, and a half watches, whatever MaxRequests and MaxWatches say.
	// Default: half of the descriptors that the process may have, so that the engine has the others, and 10,000 at most.
	MaxConnections int
	// Share is the part of MaxRequests, MaxBodyBytes, MaxWatches, MaxUploads and MaxBundles that one token gets at most,
	// and one namespace. Default a quarter. Without Tokens nobody can be told apart, and there are no shares.
	Share float64
	// Patience is how long a request waits for others, how long the server waits for the next bytes of a request or for
	// a reader to take some of an answer, how long a collection goes on that nobody waits for, and how long requests may
	// go on when the server stops. Default 30 seconds.
	Patience time.Duration
	// WriteTimeout ends a write, which goes on if the caller goes away. Default one minute.
	WriteTimeout time.Duration
	// UploadTimeout ends an upload of which nothing has come for so long. Default 10 minutes.
	UploadTimeout time.Duration
	// IdleTimeout is after how long without a request Serve closes a connection. Default 2 minutes; below zero never.
	IdleTimeout time.Duration
	// Heartbeat is how often a watch, and a collection, sends something. Default 15 seconds.
	Heartbeat time.Duration
	// Pages, if set, answers the requests whose path is none of the protocol's, such as those for the pages of
	// `turnstone serve --ui`. Tokens are its own business.
	Pages http.Handler
	// Logger is told of errors that are not the caller's. Default: none.
	Logger *slog.Logger
}

// A Server serves stores. It is safe for concurrent use.
type Server struct {
	o        Options
	id       string       // of this process, which remembers the writes that it has made
	seed     maphash.Seed // of hashes of requests
	mux      *http.ServeMux
	limits   limits
	writes   writes
	bodies   *bodies
	uploads  uploads
	conns    *connections
	metrics  *metrics
	stopping chan struct{} // closed when the server stops
	stop     sync.Once
	working  sync.WaitGroup // writes, which go on without their callers
	active   activity
	looked   health
	local    local

	mu     sync.Mutex // guards spaces
	spaces map[string]*space
}

// New returns a server. Close it after use.
func New(o Options) (*Server, error) {
	if o.Open == nil {
		return nil, errors.New("server: Options.Open is nil")
	}
	o.MaxRequestBytes = cmp.Or(o.MaxRequestBytes, 128<<20)
	o.MaxRequests = cmp.Or(o.MaxRequests, 256)
	o.MaxBodyBytes = cmp.Or(o.MaxBodyBytes, 512<<20)
	o.MaxConnections = cmp.Or(o.MaxConnections, min(10_000, openFiles()/2))
	o.Share = cmp.Or(o.Share, 0.25)
	o.MaxNamespaces = cmp.Or(o.MaxNamespaces, 1024)
	o.MaxWatches = cmp.Or(o.MaxWatches, 1024)
	o.MaxUploads = cmp.Or(o.MaxUploads, 256)
	o.MaxBundles = cmp.Or(o.MaxBundles, 4)
	o.Patience = cmp.Or(o.Patience, 30*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, time.Minute)
	o.UploadTimeout = cmp.Or(o.UploadTimeout, 10*time.Minute)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 2*time.Minute)
	o.Heartbeat = cmp.Or(o.Heartbeat, 15*time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxRequestBytes < 0 || o.MaxRequests < 0 || o.MaxNamespaces < 0 || o.MaxWatches < 0 || o.MaxUploads < 0 || o.MaxBundles < 0 || o.Patience < 0 || o.WriteTimeout < 0 || o.UploadTimeout < 0 || o.Heartbeat < 0 || o.MaxConnections < 0 || o.Share < 0 {
		return nil, errors.New("server: an option is negative")
	}
	if o.Share > 1 {
		return nil, fmt.Errorf("server: a share of %g: want a part of 1", o.Share)
	}
	if o.Tokens == nil {
		o.Share = 1 // All requests are of one party.
	}
	o.MaxBodyBytes = max(o.MaxBodyBytes, int64(float64(2*o.MaxRequestBytes)/o.Share))
	// One token has no more connections in use than a share of all: those of requests, of as many that wait, and of
	// watches.
	o.MaxRequests, o.MaxWatches = min(o.MaxRequests, max(1, int64(o.MaxConnections/4))), min(o.MaxWatches, max(1, int64(o.MaxConnections/2)))
	s := &Server{
		o: o, id: rand.Text(), seed: maphash.MakeSeed(), limits: newLimits(&o), writes: newWrites(), bodies: cache.New[writeID, []byte](cache.Of(o.Memory).Bases), metrics: newMetrics(),
		conns: newConnections(o.MaxConnections), stopping: make(chan struct{}), spaces: map[string]*space{},
	}
	s.uploads, s.local = newUploads(s), newLocal(s)
	s.active.since = time.Now()
	s.mux = s.routes()
	return s, nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(wire.HeaderServer, s.id)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if id := r.Header.Get(wire.HeaderCall); id != "" && len(id) <= maxRequestID {
		w.Header().Set(wire.HeaderCall, id)
	}
	defer s.active.begin()()
	defer s.conns.use(r)()
	s.mux.ServeHTTP(&answer{ResponseWriter: w, rc: http.NewResponseController(w), patience: s.o.Patience, unread: r.ContentLength != 0}, r)
}

// Serve serves what comes to l, until ctx ends. Then it ends watches, lets other requests go on for Options.Patience,
// and returns nil.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	h := &http.Server{
		Handler: s, TLSConfig: s.o.TLS, ReadHeaderTimeout: s.o.Patience, IdleTimeout: s.o.IdleTimeout, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(s.o.Logger.Handler(), slog.LevelWarn), ConnState: s.conns.changed, ConnContext: s.conns.known,
	}
	failed := make(chan error, 1)
	go func() {
		if s.o.TLS != nil {
			failed <- h.ServeTLS(l, "", "")
			return
		}
		failed <- h.Serve(l)
	}()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	s.stop.Do(func() { close(s.stopping) })
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.o.Patience)
	defer cancel()
	if h.Shutdown(limited) != nil {
		return h.Close()
	}
	return nil
}

// Close ends watches and uploads, waits for writes, and closes the stores. Requests that come later are refused as
// busy.
func (s *Server) Close() error {
	s.stop.Do(func() { close(s.stopping) })
	s.uploads.close()
	s.mu.Lock() // No write begins from here on.
	spaces := s.spaces
	s.spaces = nil
	s.mu.Unlock()
	s.working.Wait()
	err := s.local.http.Close()
	for _, sp := range spaces {
		err = errors.Join(err, sp.close())
	}
	s.bodies.Clear()
	return err
}

// work runs f in the background, and Close waits for it. It reports false if the server stops.
func (s *Server) work(f func()) bool {
	return s.begin(func() { s.working.Go(f) })
}

// finish runs f, and Close waits for it. It reports false if the server stops.
func (s *Server) finish(f func()) bool {
	if !s.begin(func() { s.working.Add(1) }) {
		return false
	}
	defer s.working.Done()
	f()
	return true
}

// begin calls f, unless the server stops. Close waits for what f adds to s.working.
func (s *Server) begin(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spaces == nil {
		return false
	}
	f()
	return true
}

var errStops = fmt.Errorf("%w: it stops", wire.ErrBusy)

// Idle returns for how long there has been no request, and 0 while there is one.
func (s *Server) Idle() time.Duration {
	s.active.mu.Lock()
	defer s.active.mu.Unlock()
	if s.active.requests > 0 {
		return 0
	}
	return time.Since(s.active.since)
}

// activity counts requests.
type activity struct {
	mu       sync.Mutex
	requests int
	since    time.Time // when requests became 0
}

func (a *activity) begin() (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.requests--
		a.since = time.Now()
	}
}

// stopped reports whether the server stops.
func (s *Server) stopped() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}

// A request is one that is allowed.
type request struct {
	*http.Request
	w     *answer
	party party
	space *space
	scope Scope
	write *written
}

// handle returns the handler of a route: it finds out whether the request is allowed, and f answers it, or returns an
// error before it has begun to.
func (s *Server) handle(name string, scope Scope, enter admission, f func(*Server, *request) error) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w := rw.(*answer)
		begun := time.Now()
		defer func() { s.metrics.answered(name, w, time.Since(begun)) }()
		if err := s.serve(&request{Request: r, w: w, scope: scope}, enter, f); err != nil {
			s.fail(w, r, err)
		}
	})
}

func (s *Server) serve(r *request, enter admission, f func(*Server, *request) error) error {
	namespace, err := namespaceOf(r.Request)
	if err != nil {
		return err
	}
	g, err := s.allowed(r.Request, r.scope, namespace)
	if err != nil {
		return err
	}
	if err := checkMedia(r.Request); err != nil {
		return err
	}
	r.party = party{bearer(r.Request), namespace}
	leave, err := enter(r.Context(), r.party)
	if err != nil {
		return err
	}
	defer leave()
	create := g.Allows(Write, namespace) && r.Header.Get(wire.HeaderExisting) == ""
	if r.space, err = s.space(r.Context(), namespace, create); err != nil {
		return err
	}
	defer s.leave(r.space)
	return f(s, r)
}

// namespaceOf returns the namespace that a request names.
func namespaceOf(r *http.Request) (string, error) {
	name, err := url.PathUnescape(r.Header.Get(wire.HeaderNamespace))
	if err != nil {
		return "", fmt.Errorf("%w: the header %s: %w", wire.ErrRequest, wire.HeaderNamespace, err)
	}
	return name, nil
}
