package server

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone/internal/wire"
)

// A Scope is what a token allows.
type Scope string

// The scopes. None includes another one.
const (
	Read     Scope = "read"
	Write    Scope = "write"
	Maintain Scope = "maintain" // collections, vacuums, prune, erase, and the feed's switch
)

// A Grant is what the bearer of a token may do.
type Grant struct {
	// Name says whose token it is, for people.
	Name string `json:"name,omitempty"`
	// Scopes are what the bearer may do.
	Scopes []Scope `json:"scopes"`
	// Namespaces are where. "*" stands for all of them.
	Namespaces []string `json:"namespaces"`
	// Expires is when the token ends. Zero means never.
	Expires time.Time `json:"expires,omitzero"`
}

// Allows reports whether the bearer may do something in a namespace.
func (g Grant) Allows(scope Scope, namespace string) bool {
	return slices.Contains(g.Scopes, scope) && (slices.Contains(g.Namespaces, namespace) || slices.Contains(g.Namespaces, "*"))
}

func (g Grant) check() error {
	if len(g.Scopes) == 0 || len(g.Namespaces) == 0 {
		return errors.New("it has no scope or no namespace")
	}
	for _, s := range g.Scopes {
		if s != Read && s != Write && s != Maintain {
			return fmt.Errorf("there is no scope %q: want %s, %s or %s", s, Read, Write, Maintain)
		}
	}
	return nil
}

// line is a line of a file of tokens.
type line struct {
	SHA256 string `json:"sha256"` // of the token, in hex
	Grant
}

// NewToken returns a new token, and a line for a file of tokens that gives g to the bearer of the token. The line
// does not reveal the token.
func NewToken(g Grant) (token, text string, err error) {
	if err := g.check(); err != nil {
		return "", "", fmt.Errorf("server: token: %w", err)
	}
	token = "turnstone_" + rand.Text()
	b, err := json.Marshal(line{sum(token), g})
	return token, string(b), err
}

func sum(token string) string {
	h := sha256.Sum256([]byte(token))
	return hex.EncodeToString(h[:])
}

// ReadTokens reads a file of tokens, which has a line of NewToken for each, and returns a function for
// Options.Tokens. Empty lines, and those that begin with #, are passed over.
func ReadTokens(r io.Reader) (func(token string) (Grant, bool), error) {
	grants := map[string]Grant{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text := bytes.TrimSpace(lines.Bytes())
		if len(text) == 0 || text[0] == '#' {
			continue
		}
		var l line
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		err := d.Decode(&l)
		if err == nil {
			err = l.check()
		}
		if h, bad := hex.DecodeString(l.SHA256); err == nil && (bad != nil || len(h) != sha256.Size) {
			err = fmt.Errorf("%.80q is no SHA-256 in hex", l.SHA256)
		}
		if err != nil {
			return nil, fmt.Errorf("server: tokens: line %d: %w", n, err)
		}
		grants[strings.ToLower(l.SHA256)] = l.Grant
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("server: tokens: %w", err)
	}
	return func(token string) (Grant, bool) {
		g, ok := grants[sum(token)] // The time of a lookup may reveal a hash, but no token.
		return g, ok
	}, nil
}

// bearer returns the token of a request, or nothing.
func bearer(r *http.Request) string {
	kind, token, found := strings.Cut(r.Header.Get("Authorization"), " ")
	if !found || !strings.EqualFold(kind, "Bearer") {
		return ""
	}
	return token
}

// allowed returns what the bearer of the request's token may do. It fails if the bearer does not have a scope in a
// namespace.
func (s *Server) allowed(r *http.Request, scope Scope, namespace string) (Grant, error) {
	if s.o.Tokens == nil {
		return Grant{Scopes: []Scope{Read, Write, Maintain}, Namespaces: []string{"*"}}, nil
	}
	token := bearer(r)
	if token == "" {
		return Grant{}, fmt.Errorf("%w: the request has none in its header Authorization", wire.ErrToken)
	}
	g, ok := s.o.Tokens(token)
	switch {
	case !ok:
		return Grant{}, wire.ErrToken
	case !g.Expires.IsZero() && !time.Now().Before(g.Expires):
		return Grant{}, fmt.Errorf("%w: it ended at %s", wire.ErrToken, g.Expires.Format(time.RFC3339))
	}
	if !g.Allows(scope, namespace) {
		return Grant{}, fmt.Errorf("%w: the token does not have scope %s in namespace %q", wire.ErrScope, scope, namespace)
	}
	return g, nil
}
