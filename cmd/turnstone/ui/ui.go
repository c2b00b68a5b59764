// Package ui shows a store to people, in a browser: pages that the server makes, with a small script beside.
//
// What a store holds is hostile, and so are other pages of the same browser. A browser runs no script but that of the
// pages, because their policy forbids it (Content Security Policy, level 3). Package page renders what sessions hold. A
// visitor gives the token once, in a form; a cookie that no script can read stands for it. Only the pages themselves
// can ask for changes of the store, with POST. The tokens decide what is allowed, and the server of the store checks them
// again, except for searches and sums of usage, which Options has functions for.
package ui

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/page"
	"github.com/turnstonedb/turnstone/internal/wire"
	"github.com/turnstonedb/turnstone/search"
	"github.com/turnstonedb/turnstone/server"
)

// Options of a UI.
type Options struct {
	// Open opens a namespace as the bearer of a token. The UI closes what it returns.
	Open func(ctx context.Context, token, namespace string) (Store, error)
	// Tokens is that of the server: see server.Options.
	Tokens func(token string) (server.Grant, bool)
	// Search, if set, finds messages of a namespace.
	Search func(ctx context.Context, namespace, query string) ([]search.Result, error)
	// Usage returns what a namespace has used, and how it grew.
	Usage func(ctx context.Context, namespace string) (*Usage, error)
	// Forget, if set, is called after something was hidden or deleted: it takes the words of that out of the index.
	Forget func(ctx context.Context, namespace string) error
	// ReadOnly shows nothing that changes the store, and refuses it, whatever the token allows.
	ReadOnly bool
	// Patience is how long the form of a request may take to come. Default 30 seconds.
	Patience time.Duration
	// Secure says that browsers come by TLS.
	Secure bool
	// Loopback says that browsers are on this machine. Requests that name another host are refused: the name of a
	// hostile page may have become one of this machine (DNS rebinding).
	Loopback bool
}

// A Store is a namespace, as package client has it.
type Store interface {
	turnstone.Factory
	turnstone.Operator
	Close() error
}

// A UI serves pages below /ui/. It is safe for concurrent use.
type UI struct {
	o        Options
	mux      *http.ServeMux
	origin   *http.CrossOriginProtection
	visitors visitors
	paths    paths
}

// New returns a UI. Close it after use.
func New(o Options) *UI {
	o.Patience = cmp.Or(o.Patience, 30*time.Second)
	u := &UI{o: o, origin: http.NewCrossOriginProtection()}
	u.mux = u.routes()
	return u
}

// Close ends the visits.
func (u *UI) Close() error { return u.visitors.close() }

//go:embed assets
var assets embed.FS

func (u *UI) routes() *http.ServeMux {
	m := http.NewServeMux()
	files, err := fs.Sub(assets, "assets")
	if err != nil {
		panic(err) // They are in the program.
	}
	m.Handle("GET /ui/assets/", http.StripPrefix("/ui/assets/", http.FileServerFS(files)))
	m.HandleFunc("GET /ui/assets/conversation.css", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/css; charset=utf-8")
		_, _ = io.WriteString(w, page.Style) // If the browser is gone, nobody reads it.
	})
	m.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ui/", http.StatusSeeOther) })
	m.HandleFunc("POST /ui/login", u.login)
	m.HandleFunc("POST /ui/logout", u.logout)
	for path, f := range map[string]func(*visit) error{
		"GET /ui/{$}":        (*visit).sessions,
		"GET /ui/session":    (*visit).session,
		"GET /ui/nodes":      (*visit).nodes,
		"GET /ui/live":       (*visit).live,
		"GET /ui/history":    (*visit).history,
		"GET /ui/checkpoint": (*visit).checkpoint,
		"GET /ui/records":    (*visit).records,
		"GET /ui/work":       (*visit).work,
		"GET /ui/attachment": (*visit).attachment,
		"GET /ui/diff":       (*visit).diff,
		"GET /ui/store":      (*visit).store,
		"GET /ui/search":     (*visit).search,
		"GET /ui/usage":      (*visit).usage,
		"GET /ui/usage.svg":  (*visit).usageChart,
		"GET /ui/growth.svg": (*visit).growthChart,
		"GET /ui/help":       (*visit).help,
		"POST /ui/act":       (*visit).act,
		"POST /ui/maintain":  (*visit).maintain,
	} {
		m.Handle(path, u.handle(f))
	}
	m.Handle("/", u.handle(func(v *visit) error { return fmt.Errorf("%w: %s", wire.ErrRoute, v.r.URL.Path) }))
	return m
}

// policy is the Content Security Policy of all pages. Fragments that the script puts on a page go through the only
// trusted type that there is.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types fragments"

// ServeHTTP implements http.Handler.
func (u *UI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range map[string]string{
		"Content-Security-Policy":      policy,
		"X-Content-Type-Options":       "nosniff",
		"X-Frame-Options":              "DENY",
		"Referrer-Policy":              "no-referrer",
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Permissions-Policy":           "camera=(), geolocation=(), microphone=()",
		"Cache-Control":                "no-store",
	} {
		w.Header().Set(name, value)
	}
	if err := u.foreign(r); err != nil {
		fail(w, http.StatusForbidden, err)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 256<<10)
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(u.o.Patience)) // Not so in tests without a connection.
	if err := r.ParseForm(); err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	_ = rc.SetReadDeadline(time.Time{}) // It would end the work on the request as well.
	u.mux.ServeHTTP(w, r)
}

// foreign returns an error if another page makes a request.
func (u *UI) foreign(r *http.Request) error {
	if u.o.Loopback {
		host := (&url.URL{Host: r.Host}).Hostname()
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return fmt.Errorf("the request is for the host %q, which is not this machine", r.Host)
		}
	}
	return u.origin.Check(r)
}

// fail answers with a short text.
func fail(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprintln(w, err)
}

// A visit is a request of a visitor.
type visit struct {
	*UI
	w       http.ResponseWriter
	r       *http.Request
	visitor *visitor
	grant   server.Grant
	Space   string     // the namespace
	db      Store      // that namespace
	q       url.Values // the query, or the form of a POST
}

// handle returns a handler that lets f answer a request. The visit says who asks, and for which namespace. If f fails,
// the visitor sees a page with the error.
func (u *UI) handle(f func(*visit) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := &visit{UI: u, w: w, r: r}
		err := v.enter()
		if errors.Is(err, wire.ErrToken) {
			v.askToken(http.StatusUnauthorized, "")
			return
		}
		if err == nil {
			err = f(v)
		}
		if err != nil && r.Context().Err() == nil {
			p := wire.ErrorOf(err)
			v.render(p.Status, "error", view{Title: http.StatusText(p.Status), Body: err.Error()})
		}
	})
}

// enter finds out who asks, and for what. It fails with wire.ErrToken if there is no visitor, or its token has ended.
func (v *visit) enter() error {
	v.q, v.Space = v.r.Form, v.r.Form.Get("ns")
	var ok bool
	if v.visitor = v.visitors.find(v.cookie()); v.visitor == nil {
		return wire.ErrToken
	}
	v.grant, ok = v.o.Tokens(v.visitor.token)
	if !ok || !v.grant.Expires.IsZero() && !time.Now().Before(v.grant.Expires) {
		return wire.ErrToken
	}
	if !v.grant.Allows(server.Read, v.Space) {
		return fmt.Errorf("%w: the token does not have scope read in namespace %q", wire.ErrScope, v.Space)
	}
	var err error
	v.db, err = v.visitor.open(v.r.Context(), v.Space, v.o.Open)
	return err
}

// May reports whether the pages offer what needs a scope.
func (v *visit) May(scope server.Scope) bool { return !v.o.ReadOnly && v.grant.Allows(scope, v.Space) }

// Sees reports whether the visitor may look at what needs a scope.
func (v *visit) Sees(scope server.Scope) bool { return v.grant.Allows(scope, v.Space) }

// Searches reports whether messages can be found.
func (v *visit) Searches() bool { return v.o.Search != nil }

// SignedIn reports whether the visitor has given a token.
func (v *visit) SignedIn() bool { return v.visitor != nil }

// Offers reports whether there is anything that the visitor may do beside looking.
func (v *visit) Offers() bool { return v.May(server.Write) || v.May(server.Maintain) }

// URL returns the address of a page of the same namespace, with a query of names and values.
func (v *visit) URL(path string, query ...string) string { return v.url(path, pairs(query)) }

func (v *visit) url(path string, q url.Values) string {
	if v.Space != "" {
		q.Set("ns", v.Space)
	}
	if len(q) == 0 {
		return "/ui/" + path
	}
	return "/ui/" + path + "?" + q.Encode()
}

func pairs(query []string) url.Values {
	q := url.Values{}
	for i := 0; i+1 < len(query); i += 2 {
		if query[i+1] != "" {
			q.Set(query[i], query[i+1])
		}
	}
	return q
}

// A view is what a template shows.
type view struct {
	*visit
	Title  string
	Script bool
	Body   any
}

//go:embed pages
var sources embed.FS

var templates = func() map[string]*template.Template {
	layout := template.Must(template.New("layout.html").Funcs(functions).ParseFS(sources, "pages/layout.html", "pages/parts.html"))
	files, err := fs.Glob(sources, "pages/*.html")
	if err != nil {
		panic(err) // The pattern is good.
	}
	all := map[string]*template.Template{}
	for _, f := range files {
		name := f[len("pages/") : len(f)-len(".html")]
		all[name] = template.Must(template.Must(layout.Clone()).ParseFS(sources, f))
	}
	return all
}()

// render answers with a page.
func (v *visit) render(status int, name string, with view) {
	with.visit = v
	v.execute(status, templates[name], "layout.html", with)
}

// fragment answers with a part of a page.
func (v *visit) fragment(name string, body any) {
	v.execute(http.StatusOK, templates["layout"], name, view{visit: v, Body: body})
}

func (v *visit) execute(status int, t *template.Template, name string, with view) {
	var out bytes.Buffer
	if err := t.ExecuteTemplate(&out, name, with); err != nil {
		fail(v.w, http.StatusInternalServerError, err)
		return
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(status)
	_, _ = v.w.Write(out.Bytes()) // If the browser is gone, nobody reads it.
}
