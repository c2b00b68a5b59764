package ui

import (
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/server"
)

// noStore is a store that nobody asks.
type noStore struct {
	turnstone.Factory
	turnstone.Operator
}

func (noStore) Close() error { return nil }

// Work that a visitor asks for may take longer than the form of the request may take to come.
func TestUI5_WorkMayTakeLongerThanItsForm(t *testing.T) {
	const patience = 200 * time.Millisecond
	u := New(Options{
		Open: func(context.Context, string, string) (Store, error) { return noStore{}, nil },
		Tokens: func(token string) (server.Grant, bool) {
			return server.Grant{Scopes: []server.Scope{server.Read}, Namespaces: []string{"*"}}, token == "right"
		},
		Usage: func(ctx context.Context, _ string) (*Usage, error) {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(3 * patience):
				return &Usage{Rows: []UsageRow{{Day: "2026-11-28", Model: "model-1", Input: 1}}}, nil
			}
		},
		Patience: patience,
	})
	defer u.Close()
	s := httptest.NewServer(u)
	defer s.Close()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar}
	a, err := browser.PostForm(s.URL+"/ui/login", url.Values{"token": {"right"}, "next": {"/ui/usage"}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil || a.StatusCode != http.StatusOK || !strings.Contains(string(text), "model-1") {
		t.Errorf("%d %v %s", a.StatusCode, err, text)
	}
	// A form that does not come is given up.
	r, w := io.Pipe()
	defer w.Close()
	a, err = browser.Post(s.URL+"/ui/login", "application/x-www-form-urlencoded", r)
	if err == nil {
		defer a.Body.Close()
		if a.StatusCode != http.StatusBadRequest {
			t.Errorf("a form that does not come: %d", a.StatusCode)
		}
	}
}
