package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/badger"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
)

var ctx = context.Background()

// ours is Turnstone as it is shipped, at its defaults.
type ours struct {
	engine   engine.Engine
	store    *turnstone.Store
	sessions sync.Map // *turnstone.Session by id
}

func openTurnstone(kind string) func(dir string, bulk bool) (Store, error) {
	return func(dir string, bulk bool) (Store, error) {
		e, err := openEngine(kind, dir, bulk)
		if err != nil {
			return nil, err
		}
		return newOurs(e)
	}
}

// openEngine opens the engine of a contestant: pebble, pebble-process, badger or
// memory.
func openEngine(kind, dir string, bulk bool) (engine.Engine, error) {
	switch kind {
	case "memory":
		return memory.New(), nil
	case "badger":
		o := badger.Options{}
		if bulk {
			o.Durability = badger.Process
		}
		return badger.Open(dir, &o)
	}
	o := pebble.Options{}
	if bulk || kind == "pebble-process" {
		o.Durability = pebble.Process
	}
	return pebble.Open(dir, &o)
}

// engineOf returns the kind of engine of the contestant, which is Turnstone.
func engineOf(c *Contestant) string {
	return strings.ReplaceAll(strings.TrimPrefix(c.Name, "turnstone "), " ", "-")
}

func newOurs(e engine.Engine) (*ours, error) {
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return &ours{engine: e, store: st}, nil
}

func (o *ours) Close() error { return errors.Join(o.store.Close(), o.engine.Close()) }

func (o *ours) session(id string) (*turnstone.Session, error) {
	if s, ok := o.sessions.Load(id); ok {
		return s.(*turnstone.Session), nil
	}
	s, err := o.store.Session(ctx, id)
	if err == nil {
		o.sessions.Store(id, s)
	}
	return s, err
}

func (o *ours) Commit(id string, commits int, t *Turn) error {
	var s *turnstone.Session
	var err error
	if commits == 0 {
		r := turnstone.Request{ID: id}
		if t.Label != "" {
			r.Labels = map[string]string{labelName: t.Label}
		}
		if s, _, err = o.store.Create(ctx, r); err == nil {
			o.sessions.Store(id, s)
		}
	} else {
		s, err = o.session(id)
	}
	if err != nil {
		return err
	}
	c := turnstone.Commit{Expected: head.Revision(commits), Turn: fmt.Sprint("turn-", commits), Usage: t.Usage}
	c.Nodes = make([]turnstone.NewNode, len(t.Nodes))
	for i, n := range t.Nodes {
		c.Nodes[i] = turnstone.NewNode{Kind: n.Kind, Key: n.Key, Payload: n.Payload}
	}
	if t.Part != nil {
		c.Checkpoint = map[string][]byte{"execution": t.Part}
	}
	result, err := s.Commit(ctx, c)
	if err == nil && result.Replayed {
		err = fmt.Errorf("turn %d of %q was there already: a replay is no commit", commits, id)
	}
	return err
}

const labelName = "project"

func (o *ours) Load(id string) (Path, error) { return o.read(id, turnstone.Scope{}) }

func (o *ours) Last(id string, n int) (Path, error) { return o.read(id, turnstone.Scope{Last: n}) }

func (o *ours) LastAt(id string, commits, n int) (Path, error) {
	return o.read(id, turnstone.Scope{At: head.Revision(commits), Last: n})
}

func (o *ours) PartAt(id string, commits int) ([]byte, error) {
	s, err := o.session(id)
	if err != nil {
		return nil, err
	}
	parts, err := s.Checkpoint(ctx, head.Revision(commits))
	return parts["execution"], err
}

func (o *ours) read(id string, scope turnstone.Scope) (Path, error) {
	s, err := o.store.Session(ctx, id)
	if err != nil {
		return Path{}, err
	}
	state, err := s.Load(ctx, scope)
	if err != nil {
		return Path{}, err
	}
	p := Path{Payloads: make([][]byte, len(state.Nodes)), IDs: make([]string, len(state.Nodes))}
	for i := range state.Nodes {
		p.Payloads[i], p.IDs[i] = state.Nodes[i].Payload, state.Nodes[i].ID.String()
	}
	return p, nil
}

func (o *ours) One(id, node string) ([]byte, error) {
	s, err := o.session(id)
	if err != nil {
		return nil, err
	}
	n, err := turnstone.ParseNodeID(node)
	if err != nil {
		return nil, err
	}
	found, err := s.Node(ctx, n)
	return found.Payload, err
}

func (o *ours) ByKey(id, key string) ([]byte, error) {
	s, err := o.session(id)
	if err != nil {
		return nil, err
	}
	found, err := s.NodeByKey(ctx, key)
	return found.Payload, err
}

func (o *ours) Fork(id, fork string) error {
	_, _, err := o.store.Create(ctx, turnstone.Request{ID: fork, Parent: id})
	return err
}

func (o *ours) List(after string, limit int) ([]string, string, error) {
	return o.list(turnstone.ListOptions{After: after, Limit: limit})
}

func (o *ours) ListLabel(label string, limit int) ([]string, error) {
	ids, _, err := o.list(turnstone.ListOptions{Limit: limit, Labels: map[string]string{labelName: label}})
	return ids, err
}

func (o *ours) list(options turnstone.ListOptions) ([]string, string, error) {
	page, err := o.store.List(ctx, options)
	ids := make([]string, len(page.Sessions))
	for i := range page.Sessions {
		ids[i] = page.Sessions[i].ID
	}
	return ids, page.Next, err
}

func (o *ours) Delete(id string) error { return o.store.Delete(ctx, id, turnstone.KeepChildren) }

func (o *ours) Reclaim() error {
	_, err := o.store.GC(ctx, gc.Options{})
	return err
}

func (o *ours) Compact() error {
	_, err := o.store.Vacuum(ctx, gc.VacuumOptions{})
	return err
}
