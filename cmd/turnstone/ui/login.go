package ui

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone/internal/wire"
)

const (
	maxVisitors = 256            // The one that came longest ago makes room.
	maxSpaces   = 16             // namespaces that one visitor has open; any other makes room
	visitLasts  = 12 * time.Hour // Then the token is asked for again.
)

// visitors are those who gave a token. They are forgotten when the process ends.
type visitors struct {
	mu    sync.Mutex
	all   map[string]*visitor // by what their cookie says
	order []string
}

// A visitor is a browser that has given a token.
type visitor struct {
	token string
	ends  time.Time

	mu     sync.Mutex
	spaces map[string]Store
}

// add returns what the cookie of a new visitor says.
func (v *visitors) add(token string) string {
	id := rand.Text()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.all == nil {
		v.all = map[string]*visitor{}
	}
	v.all[id] = &visitor{token: token, ends: time.Now().Add(visitLasts), spaces: map[string]Store{}}
	v.order = append(v.order, id)
	if len(v.order) > maxVisitors {
		v.drop(v.order[0])
	}
	return id
}

// find returns the visitor of a cookie, or nil.
func (v *visitors) find(id string) *visitor {
	v.mu.Lock()
	defer v.mu.Unlock()
	one := v.all[id]
	if one != nil && time.Now().After(one.ends) {
		v.drop(id)
		return nil
	}
	return one
}

func (v *visitors) remove(id string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drop(id)
}

// drop forgets a visitor. The caller holds v.mu.
func (v *visitors) drop(id string) {
	one := v.all[id]
	if one == nil {
		return
	}
	delete(v.all, id)
	for i, other := range v.order {
		if other == id {
			v.order = append(v.order[:i:i], v.order[i+1:]...)
			break
		}
	}
	_ = one.close() // Nothing of it is unsaved.
}

func (v *visitors) close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	var err error
	for _, one := range v.all {
		err = errors.Join(err, one.close())
	}
	v.all, v.order = nil, nil
	return err
}

// open returns a namespace of a visitor.
func (v *visitor) open(ctx context.Context, namespace string, open func(ctx context.Context, token, namespace string) (Store, error)) (Store, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if db := v.spaces[namespace]; db != nil {
		return db, nil
	}
	if v.spaces == nil {
		return nil, wire.ErrToken // The visit has just ended.
	}
	db, err := open(ctx, v.token, namespace)
	if err != nil {
		return nil, err
	}
	for name, other := range v.spaces {
		if len(v.spaces) < maxSpaces {
			break
		}
		_ = other.Close()
		delete(v.spaces, name)
	}
	v.spaces[namespace] = db
	return db, nil
}

func (v *visitor) close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	var err error
	for _, db := range v.spaces {
		err = errors.Join(err, db.Close())
	}
	v.spaces = nil
	return err
}

// cookieName is the name of the cookie. Browsers send a cookie to all ports of a host, so it has the port.
func (u *UI) cookieName(r *http.Request) string {
	if u.o.Secure {
		return "__Host-turnstone"
	}
	_, port, _ := net.SplitHostPort(r.Host)
	return "turnstone-" + port
}

// cookie returns what the visitor's cookie says, or "".
func (v *visit) cookie() string {
	c, err := v.r.Cookie(v.cookieName(v.r))
	if err != nil {
		return ""
	}
	return c.Value
}

// askToken answers with the form for a token.
func (v *visit) askToken(status int, problem string) {
	next := v.r.URL.RequestURI()
	if v.r.Method != http.MethodGet {
		next = v.r.PostFormValue("next")
	}
	v.render(status, "login", view{Title: "Sign in", Body: map[string]string{"Next": within(next), "Problem": problem}})
}

// within returns an address if it is of a page below /ui/, or else that of the first page.
func within(address string) string {
	if !strings.HasPrefix(address, "/ui/") || strings.ContainsAny(address, "\\\r\n") {
		return "/ui/"
	}
	return address
}

// login takes a token, and gives a cookie for it.
func (u *UI) login(w http.ResponseWriter, r *http.Request) {
	v := &visit{UI: u, w: w, r: r}
	token := strings.TrimSpace(r.PostFormValue("token"))
	g, ok := u.o.Tokens(token)
	if !ok || !g.Expires.IsZero() && !time.Now().Before(g.Expires) {
		v.askToken(http.StatusUnauthorized, "The server does not know this token, or its time has ended.")
		return
	}
	u.visitors.remove(v.cookie())
	http.SetCookie(w, &http.Cookie{
		Name: u.cookieName(r), Value: u.visitors.add(token), Path: "/", MaxAge: int(visitLasts / time.Second),
		HttpOnly: true, Secure: u.o.Secure, SameSite: http.SameSiteStrictMode,
	})
	next := within(r.PostFormValue("next"))
	if len(g.Namespaces) == 1 && g.Namespaces[0] != "*" && next == "/ui/" { // There is nothing for it elsewhere.
		v.Space = g.Namespaces[0]
		next = v.URL("")
	}
	http.Redirect(w, r, next, http.StatusSeeOther)
}

// logout ends a visit.
func (u *UI) logout(w http.ResponseWriter, r *http.Request) {
	v := &visit{UI: u, w: w, r: r}
	u.visitors.remove(v.cookie())
	http.SetCookie(w, &http.Cookie{Name: u.cookieName(r), Path: "/", MaxAge: -1, HttpOnly: true, Secure: u.o.Secure, SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, "/ui/", http.StatusSeeOther)
}
