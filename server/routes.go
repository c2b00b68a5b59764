package server

import (
	_ "embed"
	"fmt"
	"net/http"
	"strings"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// openAPI describes all routes. `go test ./server -run OpenAPI -update` writes it.
//
//go:embed openapi.json
var openAPI []byte

// A plainRoute is a route that is no operation of a store.
type plainRoute struct {
	name, path string // of GET
	summary    string
	mediaType  string
	scope      Scope // none if no token is needed
	handle     func(*Server, *answer, *http.Request) error
}

var plainRoutes = []plainRoute{
	{"hello", "/v1/{$}", "Names the process that serves.", "application/json", "", (*Server).hello},
	{"openapi", "/v1/openapi.json", "This document.", "application/json", "", (*Server).openAPI},
	{"health", "/healthz", "Answers whether the server can read its default namespace.", "text/plain", "", (*Server).health},
	{"metrics", "/metrics", "Metrics in the text format of Prometheus.", "text/plain", Read, (*Server).metricsText},
}

// routes returns the handler of all routes.
func (s *Server) routes() *http.ServeMux {
	m := http.NewServeMux()
	methods := map[string][]string{} // by path
	for _, o := range operations {
		methods["/v1/"+o.name] = []string{http.MethodPost}
		m.Handle("POST /v1/"+o.name, s.handle(o.name, o.scope, s.enter, checked(nil, o.handle)))
	}
	for _, r := range streams {
		enter := s.enter
		if r.watch {
			enter = s.enterWatch
		}
		methods[r.path] = append(methods[r.path], r.method)
		m.Handle(r.method+" "+r.path, s.handle(r.name, r.scope, enter, checked(r.query, r.handle)))
	}
	for _, p := range plainRoutes {
		methods[strings.TrimSuffix(p.path, "{$}")] = []string{http.MethodGet}
		m.HandleFunc("GET "+p.path, func(w http.ResponseWriter, r *http.Request) {
			var err error
			if p.scope != "" { // It tells of all namespaces.
				_, err = s.allowed(r, p.scope, "*")
			}
			if err == nil {
				err = p.handle(s, w.(*answer), r)
			}
			if err != nil {
				s.fail(w.(*answer), r, err)
			}
		})
	}
	m.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		err := fmt.Errorf("%w: %s %q", wire.ErrRoute, r.Method, r.URL.Path)
		if allowed := methods[r.URL.Path]; allowed != nil {
			w.Header().Set("Allow", strings.Join(allowed, ", "))
			err = fmt.Errorf("%w: %s %q: want %s", wire.ErrMethod, r.Method, r.URL.Path, strings.Join(allowed, " or "))
		} else if s.o.Pages != nil && !strings.HasPrefix(r.URL.Path, "/v1/") {
			s.o.Pages.ServeHTTP(w, r)
			return
		}
		s.fail(w.(*answer), r, err)
	})
	return m
}

// hello answers which process serves.
func (s *Server) hello(w *answer, _ *http.Request) error {
	send(w, http.StatusOK, "application/json", &struct {
		Server string `json:"server"`
	}{s.id})
	return nil
}

// openAPI sends the description of all routes.
func (s *Server) openAPI(w *answer, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openAPI) // If the caller is gone, nobody reads it.
	return nil
}

// revision reads a revision in a query: a number, "any" or "zero".
func revision(text string) (r head.Revision, err error) {
	switch text {
	case "":
		return 0, nil
	case "any", "zero":
		text = `"` + text + `"`
	}
	if err := r.UnmarshalJSON([]byte(text)); err != nil {
		return 0, fmt.Errorf("%w: %w", wire.ErrRequest, err)
	}
	return r, nil
}
