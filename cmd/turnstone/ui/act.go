package ui

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/wire"
	"github.com/turnstonedb/turnstone/server"
)

// An action changes a session.
type action struct {
	scope server.Scope
	sure  string // what is asked before it is done, or ""
	do    func(*visit, *subject) error
}

var actions = map[string]action{
	"fork":      {scope: server.Write, do: (*visit).fork},
	"rewind":    {scope: server.Write, do: (*visit).rewind},
	"keep":      {scope: server.Write, do: (*visit).keep},
	"release":   {scope: server.Write, sure: "The revision is kept no longer: what prunes may let its checkpoint go.", do: (*visit).release},
	"label":     {scope: server.Write, do: (*visit).label},
	"tombstone": {scope: server.Write, sure: "The message is hidden in this session for good. Its bytes stay until the next vacuum.", do: (*visit).tombstone},
	"erase":     {scope: server.Maintain, sure: "The message is hidden, and its content is removed from the files of the store. Nothing brings it back.", do: (*visit).erase},
	"delete":    {scope: server.Write, sure: "The session is deleted. Forks of it keep what they share with it.", do: (*visit).remove},
}

var errReadOnly = fmt.Errorf("%w: these pages only show", wire.ErrScope)

// act makes a change that the form of a page asks for.
func (v *visit) act() error {
	v.q = v.r.PostForm
	a, known := actions[v.q.Get("do")]
	switch {
	case !known:
		return fmt.Errorf("%w: there is no action %q", wire.ErrRequest, v.q.Get("do"))
	case v.o.ReadOnly:
		return errReadOnly
	case !v.grant.Allows(a.scope, v.Space):
		return fmt.Errorf("%w: the token does not have scope %s in namespace %q", wire.ErrScope, a.scope, v.Space)
	}
	s, err := v.subject()
	if err != nil {
		return err
	}
	if v.ask("act", a.sure, v.URL("session", "id", s.ID())) {
		return nil
	}
	return a.do(v, s)
}

// ask asks whether something is to be done that can't be taken back, unless the visitor has said so. It reports whether
// it has asked.
func (v *visit) ask(path, what, back string) bool {
	if what == "" || v.q.Has("sure") {
		return false
	}
	fields := url.Values{"sure": {"yes"}}
	for name, values := range v.q {
		fields[name] = values
	}
	v.render(200, "sure", view{Title: "Are you sure?", Body: map[string]any{"Path": path, "What": what, "Back": back, "Do": v.q.Get("do"), "Fields": fields}})
	return true
}

// to sends the browser to a page.
func (v *visit) to(path string, query ...string) error {
	http.Redirect(v.w, v.r, v.URL(path, query...), http.StatusSeeOther)
	return nil
}

// target returns the place that an action is about: a node, or else a revision.
func (v *visit) target(s *subject) (r turnstone.Request, leaf turnstone.Ref, err error) {
	if text := v.q.Get("node"); text != "" {
		if r.ForkNode, err = turnstone.ParseNodeID(text); err != nil {
			return r, leaf, err
		}
		return r, turnstone.RefTo(r.ForkNode), nil
	}
	r.ForkAt = s.At
	if s.At == 0 {
		r.ForkAt = s.About.Revision
	}
	state, err := s.Load(v.r.Context(), turnstone.Scope{At: r.ForkAt, Last: 1})
	if err != nil {
		return r, leaf, err
	}
	if state.Leaf.IsZero() {
		return r, turnstone.RefNone(), nil
	}
	return r, turnstone.RefTo(state.Leaf), nil
}

// fork makes a session that goes on from a place.
func (v *visit) fork(s *subject) error {
	r, _, err := v.target(s)
	if err != nil {
		return err
	}
	r.ID, r.Name, r.Parent = v.q.Get("name"), "", s.ID()
	_, created, err := v.db.Create(v.r.Context(), r)
	if err == nil && !created {
		err = fmt.Errorf("%w: %q", turnstone.ErrExists, r.ID)
	}
	if err != nil {
		return err
	}
	return v.to("session", "id", r.ID)
}

// rewind moves the leaf of a session back. The session must be as the page showed it.
func (v *visit) rewind(s *subject) error {
	shown, err := revision(v.q.Get("revision"))
	if err != nil {
		return err
	}
	_, leaf, err := v.target(s)
	if err != nil {
		return err
	}
	if shown == 0 {
		shown = turnstone.RevisionZero // It has no commit: nothing can be moved, and the commit says so.
	}
	if _, err := s.Commit(v.r.Context(), turnstone.Commit{Expected: shown, Leaf: leaf}); err != nil {
		return err
	}
	return v.to("session", "id", s.ID())
}

// keep keeps a revision under a name.
func (v *visit) keep(s *subject) error {
	at := s.At
	if at == 0 {
		at = s.About.Revision
	}
	if err := s.Keep(v.r.Context(), v.q.Get("name"), at); err != nil {
		return err
	}
	return v.to("history", "id", s.ID())
}

func (v *visit) release(s *subject) error {
	if err := s.Release(v.r.Context(), v.q.Get("name")); err != nil {
		return err
	}
	return v.to("history", "id", s.ID())
}

// label sets the name of a session, or a label: NAME=VALUE, and NAME= removes one.
func (v *visit) label(s *subject) error {
	var m head.Metadata
	var empty []head.Field
	if v.q.Has("called") {
		if m.Name = v.q.Get("called"); m.Name == "" {
			empty = append(empty, head.FieldName)
		}
	} else {
		name, value, ok := strings.Cut(v.q.Get("label"), "=")
		if !ok {
			return fmt.Errorf("%w: a label is NAME=VALUE, not %q", wire.ErrRequest, v.q.Get("label"))
		}
		m.Labels = map[string]string{name: value}
	}
	if err := s.SaveMetadata(v.r.Context(), m, empty...); err != nil {
		return err
	}
	return v.to("session", "id", s.ID())
}

// forgotten forgets what the pages remember of a session of which something was hidden or deleted.
func (v *visit) forgotten(s *subject) error {
	v.paths.forget(s.About.Incarnation)
	if v.o.Forget == nil {
		return nil
	}
	return v.o.Forget(v.r.Context(), v.Space)
}

func (v *visit) tombstone(s *subject) error {
	id, err := turnstone.ParseNodeID(v.q.Get("node"))
	if err != nil {
		return err
	}
	if err := s.Tombstone(v.r.Context(), id); err != nil {
		return err
	}
	if err := v.forgotten(s); err != nil {
		return err
	}
	return v.to("session", "id", s.ID())
}

// erase removes a node, and shows the receipt.
func (v *visit) erase(s *subject) error {
	id, err := turnstone.ParseNodeID(v.q.Get("node"))
	if err != nil {
		return err
	}
	erasure, err := s.Erase(v.r.Context(), turnstone.EraseOptions{}, id)
	if err := errors.Join(err, v.forgotten(s)); err != nil {
		return err
	}
	v.render(200, "erased", view{Title: "Erased", Body: &struct {
		*subject
		Node    string
		Erasure *turnstone.Erasure
	}{s, id.String(), erasure}})
	return nil
}

// remove deletes a session. Its forks keep their history.
func (v *visit) remove(s *subject) error {
	err := s.Delete(v.r.Context(), turnstone.AnyRevision, turnstone.KeepChildren)
	if err != nil && !errors.Is(err, turnstone.ErrSessionDeleted) {
		return err
	}
	if err := v.forgotten(s); err != nil {
		return err
	}
	return v.to("")
}
