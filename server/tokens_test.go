package server_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/server"
)

func TestSV3_ATokenAllowsItsScopesInItsNamespaces(t *testing.T) {
	var file strings.Builder
	tokens := map[string]string{}
	for name, g := range map[string]server.Grant{
		"reader":     {Scopes: []server.Scope{server.Read}, Namespaces: []string{""}},
		"writer":     {Scopes: []server.Scope{server.Write}, Namespaces: []string{"", "a"}},
		"maintainer": {Scopes: []server.Scope{server.Maintain}, Namespaces: []string{"*"}},
	} {
		token, line, err := server.NewToken(g)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, token) {
			t.Error("the file tells the token")
		}
		tokens[name] = token
		fmt.Fprintf(&file, "# %s\n\n%s\n", name, line)
	}
	known, err := server.ReadTokens(strings.NewReader(file.String()))
	if err != nil {
		t.Fatal(err)
	}
	h := serve(t, server.Options{Tokens: known}, nil)
	routes := map[string]string{"POST /v1/list": "read", "POST /v1/create": "write", "POST /v1/gc": "maintain", "GET /v1/changes": "read", "GET /v1/watch": "read", "PUT /v1/attachment": "write"}
	allowed := map[string]map[string]string{"reader": {"read": "|"}, "writer": {"write": "|a|"}, "maintainer": {"maintain": "|a|b|"}}
	for route, scope := range routes {
		method, path, _ := strings.Cut(route, " ")
		for _, namespace := range []string{"", "a", "b"} {
			for name, token := range tokens {
				a := h.ask(method, path, "{}", "Authorization", "Bearer "+token, "Turnstone-Namespace", namespace)
				may := strings.Contains(allowed[name][scope], "|"+namespace+"|") || namespace == "" && allowed[name][scope] != ""
				if refused := a.status == 403 && a.kind == "scope"; refused == may {
					t.Errorf("%s as %s in %q: %d %s", route, name, namespace, a.status, a.body)
				}
			}
		}
		for _, header := range []string{"", "Bearer ", "Bearer none", "Basic " + tokens["reader"]} {
			if a := h.ask(method, path, "{}", "Authorization", header); a.status != 401 || a.kind != "token" || a.header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("%s with %q: %d %s", route, header, a.status, a.body)
			}
		}
	}
	if a := h.ask("GET", "/healthz", ""); a.status != 200 || a.body != "ok\n" {
		t.Errorf("%+v", a)
	}
}

func TestSV3_AFileOfTokensIsChecked(t *testing.T) {
	_, good, err := server.NewToken(server.Grant{Scopes: []server.Scope{server.Read}, Namespaces: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{
		"{", `{"sha256":"00","scopes":["read"],"namespaces":["a"]}`, strings.Replace(good, "read", "all", 1), strings.Replace(good, `"a"`, "", 1),
		strings.Replace(good, "scopes", "scope", 1), strings.Repeat("x", 100_000),
	} {
		if _, err := server.ReadTokens(strings.NewReader(good + "\n" + bad)); err == nil || !strings.HasPrefix(err.Error(), "server: tokens: ") {
			t.Errorf("%.60s is read: %v", bad, err)
		}
	}
	if _, _, err := server.NewToken(server.Grant{Scopes: []server.Scope{"all"}, Namespaces: []string{""}}); err == nil {
		t.Error("a token has a scope that there is not")
	}
}

func TestSV3_WhoMayOnlyReadMakesNoNamespace(t *testing.T) {
	grants := map[string]server.Grant{
		"r": {Scopes: []server.Scope{server.Read}, Namespaces: []string{"*"}},
		"w": {Scopes: []server.Scope{server.Read, server.Write}, Namespaces: []string{"*"}},
	}
	h := serve(t, server.Options{Tokens: func(token string) (server.Grant, bool) { g, ok := grants[token]; return g, ok }}, nil)
	as := func(token, namespace string) reply {
		return h.ask("POST", "/v1/list", "{}", "Authorization", "bearer "+token, "Turnstone-Namespace", namespace)
	}
	if a := as("r", "a"); a.kind != "store-not-found" || a.status != 404 {
		t.Errorf("%+v", a)
	}
	for _, namespace := range []string{"a", "%20a%20"} {
		if a := as("w", namespace); a.status != 200 {
			t.Errorf("%+v", a)
		}
	}
	if a := as("r", "a"); a.status != 200 {
		t.Errorf("%+v", a)
	}
	if a := as("w", "%zz"); a.kind != "request" {
		t.Errorf("%+v", a)
	}
}

func TestSV3_AWatchEndsWithItsToken(t *testing.T) {
	var revoked atomic.Bool
	h := serve(t, server.Options{Heartbeat: 10 * time.Millisecond, Tokens: func(string) (server.Grant, bool) {
		return server.Grant{Scopes: []server.Scope{server.Read, server.Write}, Namespaces: []string{""}}, !revoked.Load()
	}}, nil)
	h.post("create", `{"id":"s"}`, "Authorization", "Bearer t")
	r, _ := http.NewRequest("GET", h.url+"/v1/watch?session=s", nil)
	r.Header.Set("Authorization", "Bearer t")
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	revoked.Store(true)
	if _, err := io.Copy(io.Discard, a.Body); err != nil {
		t.Error(err)
	}
}
