package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/server"
)

// socketName is the name of the socket in the directory of a store that `turnstone serve` listens on.
const socketName = "turnstone.http"

// A serving is what `turnstone serve` is told to do.
type serving struct {
	listen, tokens, cert, key string
	stdio, mustExist          bool
	maintain, scrub, idle     time.Duration
	limits                    server.Options
	ui, readOnly              bool
	own                       func(token string) (server.Grant, bool) // of `turnstone ui`, in place of tokens
	log                       io.Writer                               // what goes wrong in the background
	request, bodies           byteSize
}

func (a *app) serve() *cobra.Command {
	var s serving
	c := &cobra.Command{
		Use:   "serve",
		Short: "Serve the store over HTTP",
		Long: "Serve the store over HTTP, to package client and to clients in other languages. docs/http.md describes the protocol.\n" +
			"Without --listen it is served on the Unix socket " + socketName + " in the store's directory, to processes of this user.\n" +
			"A TCP port needs --tokens, and TLS unless it is on a loopback address. `turnstone token` makes a token.\n" +
			"A request names a namespace, which is made for who may write; the default is the one that the other commands use.\n" +
			"SIGHUP reads the tokens, the certificate and the list of databases again. An interrupt or SIGTERM ends watches, and waits for other requests.\n" +
			"With --stdio it serves who has started it, on the standard input and output, as `turnstone push` does through ssh.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.log = cmd.ErrOrStderr()
			if s.stdio {
				s.limits.IdleTimeout = -1
				return a.runServe(cmd.Context(), io.Discard, &s, newStdio(cmd.InOrStdin(), cmd.OutOrStdout()))
			}
			return a.runServe(cmd.Context(), cmd.OutOrStdout(), &s, nil)
		},
	}
	c.Flags().StringVar(&s.listen, "listen", "", "where: unix:PATH, or HOST:PORT; default unix:"+socketName+" in the store's directory")
	c.Flags().BoolVar(&s.stdio, "stdio", false, "serve one connection, on the standard input and output")
	c.Flags().BoolVar(&s.ui, "ui", false, "serve pages to look at the store, too, for browsers; they ask for a token")
	c.Flags().BoolVar(&s.readOnly, "ui-read-only", false, "serve pages that change nothing, whatever a token allows")
	c.Flags().BoolVar(&s.mustExist, "must-exist", false, "fail if there is no store, rather than make one")
	c.Flags().StringVar(&s.tokens, "tokens", "", "file of the tokens that are accepted, a line of 'turnstone token' each")
	c.Flags().StringVar(&s.cert, "tls-cert", "", "file of the certificate, in PEM")
	c.Flags().StringVar(&s.key, "tls-key", "", "file of the certificate's key, in PEM")
	c.Flags().DurationVar(&s.maintain, "maintain", 0, "collect and prune so often, for example 1h; default never")
	c.Flags().DurationVar(&s.scrub, "scrub", 0, "with --maintain, read all records again so often, as 'turnstone scrub' does, for example 720h; default never")
	c.Flags().DurationVar(&s.idle, "idle", 0, "end when no request has come, and none has gone on, for so long; default never")
	o := &s.limits
	c.Flags().Float64Var(&o.Share, "share", 0, "the part of requests, bytes, watches and uploads that one token gets at most, and one namespace; default 0.25")
	c.Flags().IntVar(&o.MaxConnections, "max-connections", 0, "connections at once; default half of the descriptors that the process may have")
	c.Flags().Int64Var(&o.MaxRequests, "max-requests", 0, "requests at once; others wait; default 256")
	c.Flags().Var(&s.request, "max-request-bytes", "the longest body of a request, but for attachments; default 128MiB")
	c.Flags().Var(&s.bodies, "max-body-bytes", "memory that the bodies of all requests take, as they come and decoded; default 512MiB, and 1GiB with tokens")
	c.Flags().IntVar(&o.MaxNamespaces, "max-namespaces", 0, "namespaces that are open at once; one that nobody uses makes room; default 1024")
	c.Flags().Int64Var(&o.MaxWatches, "max-watches", 0, "watches at once; default 1024")
	c.Flags().IntVar(&o.MaxUploads, "max-uploads", 0, "uploads that have begun and not ended; default 256")
	c.Flags().Int64Var(&o.MaxBundles, "max-bundles", 0, "bundles that are sent at once, and that come at once, each with up to 200 MB of memory; default 4 each")
	for _, other := range []string{"listen", "tokens", "tls-cert", "tls-key", "ui", "ui-read-only"} {
		c.MarkFlagsMutuallyExclusive("stdio", other)
	}
	c.Flags().DurationVar(&o.Patience, "patience", 0, "how long a request waits for others, and the server for who sends or takes nothing; default 30s")
	return c
}

func (a *app) token() *cobra.Command {
	var g server.Grant
	var ends age
	c := &cobra.Command{
		Use:   "token SCOPE…",
		Short: "Make a token for `turnstone serve`",
		Long: "Make a token that allows its bearer some of the scopes read, write and maintain (collections, vacuums, the feed,\n" +
			"and what deletes by prune and erase). The first line of the output is the token, which the bearer keeps secret. The\n" +
			"second is for the file that `turnstone serve --tokens` reads, and does not tell what the token is.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, s := range args {
				g.Scopes = append(g.Scopes, server.Scope(s))
			}
			if ends > 0 {
				g.Expires = time.Now().Add(time.Duration(ends)).UTC().Truncate(time.Second)
			}
			token, text, err := server.NewToken(g)
			if err != nil {
				return usageError{err}
			}
			p := printer{w: cmd.OutOrStdout()}
			p.printf("%s\n%s\n", token, text)
			return p.err
		},
	}
	c.Flags().StringArrayVar(&g.Namespaces, "namespace", []string{""}, "namespace that the token is for, or '*' for all; may be repeated; default the one that the other commands use")
	c.Flags().StringVar(&g.Name, "name", "", "whose token it is, for people")
	c.Flags().Var(&ends, "expires", "how long the token is good, for example 12h or 90d; default for ever")
	return c
}

// runServe serves the store until ctx ends, on l, or on the address that s says if l is nil.
func (a *app) runServe(ctx context.Context, out io.Writer, s *serving, l net.Listener) (err error) {
	o := s.limits
	o.MaxRequestBytes, o.MaxBodyBytes = int64(s.request), int64(s.bodies)
	o.Memory, o.Logger = a.options.Memory, slog.New(slog.NewTextHandler(os.Stderr, nil))
	address, err := a.check(s)
	if err != nil {
		return err
	}
	reload, err := s.secrets(&o)
	if err != nil {
		return err
	}
	if s.mustExist {
		if found, err := a.mayExist(); err != nil {
			return err
		} else if !found {
			return fmt.Errorf("%w at %s", turnstone.ErrStoreNotFound, a.shown())
		}
	}
	e, done, err := a.openFor(ctx, "")
	if err != nil {
		return err
	}
	defer func() { err = done(err) }()
	fs := &finders{ctx: ctx, log: o.Logger, places: make(chan struct{}, finding), all: map[string]*heldFinder{}, poked: map[string]bool{}}
	opening := func(ctx context.Context, namespace string, s *serving, o turnstone.Options) (*turnstone.Store, error) {
		at := e
		if a.databases != nil {
			var err error
			if at, err = a.locate(ctx, namespace); err != nil {
				return nil, err
			}
		}
		return a.namespace(ctx, at, namespace, s, o)
	}
	fs.open = func(ctx context.Context, namespace string) (*turnstone.Store, error) {
		return opening(ctx, namespace, &serving{log: s.log}, turnstone.Options{Memory: a.options.Memory, MustExist: true})
	}
	o.Open = func(ctx context.Context, namespace string, mustExist bool) (*turnstone.Store, error) {
		options := a.options
		options.MustExist = mustExist
		if o.Pages != nil && fs.path != nil {
			options.Observer = watching{fs, namespace}
			fs.poke(namespace) // of what was removed while nobody looked
		}
		return opening(ctx, namespace, s, options)
	}
	in, err := a.decrypted(ctx, e, "")
	if err != nil {
		return err
	}
	first, err := turnstone.Open(ctx, in, &turnstone.Options{Memory: a.options.Memory, MustExist: s.mustExist, Database: a.database("")}) // A store that can't be served is refused now.
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, first.Close()) }()
	var srv *server.Server
	if s.ui || s.readOnly {
		if path := a.indexPath(); path != "" && a.keyFile == "" && !a.onlyRead {
			fs.path = func(namespace string) string { return indexOf(path, namespace) }
		}
		pages := a.pages(s, fs, &o, address, func(ctx context.Context) (net.Conn, error) { return srv.Dial(ctx) })
		defer func() { err = errors.Join(err, pages.Close(), fs.Close()) }()
		o.Pages = pages
	}
	if srv, err = server.New(o); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.Close()) }()
	if l == nil {
		if l, err = listen(ctx, address, o.Logger); err != nil {
			return err
		}
	}
	defer l.Close()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hup:
				if err := reload(); err != nil {
					o.Logger.Error("the tokens and the certificate stay as they were", "error", err)
				}
				if a.databases != nil {
					if err := a.databases.Reload(); err != nil {
						o.Logger.Error("the list of databases stays as it was", "error", err)
					}
				}
			}
		}
	}()
	if s.idle > 0 {
		go func() {
			for pause := s.idle; ctx.Err() == nil; {
				time.Sleep(pause)
				if pause = s.idle - srv.Idle(); pause <= 0 {
					cancel()
				}
			}
		}()
	}
	p := printer{w: out}
	p.printf("serving %s on %s\n", a.shown(), shownAddress(l, s.cert != ""))
	if p.err != nil {
		return p.err
	}
	if err := srv.Serve(ctx, l); !errors.Is(err, errStdioEnded) {
		return err
	}
	return nil
}

// namespace opens a namespace of the store that is served.
func (a *app) namespace(ctx context.Context, e engine.Engine, name string, s *serving, o turnstone.Options) (*turnstone.Store, error) {
	o.Namespace, o.Database = name, a.database(name)
	o.Logger = slog.New(slog.NewTextHandler(s.log, nil)).With("namespace", name)
	in, err := a.decrypted(ctx, e, name)
	if err != nil {
		return nil, err
	}
	st, err := turnstone.Open(ctx, in, &o)
	if err != nil || s.maintain == 0 {
		return st, err
	}
	if _, err := st.Maintain(turnstone.MaintainOptions{Every: s.maintain, ScrubEvery: s.scrub}); err != nil { // It ends when the store is closed.
		return nil, errors.Join(err, st.Close())
	}
	return st, nil
}

// check returns the address to listen on, or an error if what s asks for is not allowed.
func (a *app) check(s *serving) (address string, err error) {
	address = s.listen
	if (s.cert == "") != (s.key == "") {
		return "", usageError{errors.New("--tls-cert and --tls-key go together")}
	}
	if s.maintain < 0 || s.scrub < 0 || s.idle < 0 {
		return "", usageError{errors.New("--maintain, --scrub and --idle are not below zero")}
	}
	if s.scrub > 0 && s.maintain == 0 {
		return "", usageError{errors.New("--scrub needs --maintain")}
	}
	if address == "" && !s.stdio {
		dir, ok := directory(a.url)
		if !ok || a.listFile != "" {
			return "", usageError{errors.New("the store has no directory for a socket: say where to listen with --listen")}
		}
		address = "unix:" + filepath.Join(dir, socketName)
	}
	if s.stdio || strings.HasPrefix(address, "unix:") {
		if s.ui || s.readOnly {
			return "", usageError{errors.New("browsers come to a TCP port: --ui needs --listen HOST:PORT and --tokens")}
		}
		if s.cert != "" {
			return "", usageError{errors.New("a Unix socket has no TLS")}
		}
		return address, nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "", usageError{fmt.Errorf("--listen: %w; want unix:PATH or HOST:PORT", err)}
	}
	if s.tokens == "" && s.own == nil {
		return "", usageError{errors.New("a TCP port needs --tokens: any user of this machine, or of others, can connect")}
	}
	ip, err := netip.ParseAddr(host)
	if s.cert == "" && host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return "", usageError{fmt.Errorf("%s is no loopback address: it needs --tls-cert and --tls-key, or tokens would be readable on the way", host)}
	}
	return address, nil
}

// secrets sets what is read from the files of tokens and of the certificate. reload reads them again.
func (s *serving) secrets(o *server.Options) (reload func() error, err error) {
	var tokens atomic.Pointer[func(string) (server.Grant, bool)]
	var cert atomic.Pointer[tls.Certificate]
	reload = func() error {
		known, own := tokens.Load(), cert.Load()
		if s.tokens != "" {
			f, err := os.Open(s.tokens)
			if err != nil {
				return err
			}
			defer f.Close()
			read, err := server.ReadTokens(f)
			if err != nil {
				return fmt.Errorf("%s: %w", s.tokens, err)
			}
			known = &read
		}
		if s.cert != "" {
			c, err := tls.LoadX509KeyPair(s.cert, s.key)
			if err != nil {
				return err
			}
			own = &c
		}
		tokens.Store(known) // If either file can't be read, neither is set.
		cert.Store(own)
		return nil
	}
	o.Tokens = s.own
	if s.tokens != "" {
		o.Tokens = func(token string) (server.Grant, bool) { return (*tokens.Load())(token) }
	}
	if s.cert != "" {
		o.TLS = &tls.Config{
			MinVersion:     tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert.Load(), nil },
		}
	}
	return reload, reload()
}

// shownAddress returns what package client takes to connect with l.
func shownAddress(l net.Listener, secure bool) string {
	switch {
	case l.Addr().Network() == "unix":
		return "unix:" + l.Addr().String()
	case secure:
		return "https://" + l.Addr().String()
	}
	return "http://" + l.Addr().String()
}
