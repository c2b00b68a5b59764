package tests

import (
	"context"
	"io"
	"iter"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
)

// A beside engine calls do before one of its Gets and Scans.
type beside struct {
	engine.Engine
	calls, at int
	do        func()
}

func (b *beside) Get(ctx context.Context, keys ...[]byte) ([][]byte, error) {
	b.count()
	return b.Engine.Get(ctx, keys...)
}

func (b *beside) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	b.count()
	return b.Engine.Scan(ctx, r)
}

func (b *beside) count() {
	if b.calls++; b.calls == b.at {
		b.do()
	}
}

// Another process commits and seals what it has committed, at any moment while a handle that has
// not seen the last commits is used.
func TestR12_WhatIsSealedBesideIsNoDamage(t *testing.T) {
	calls := map[string]func(*turnstone.Store, *turnstone.Session) error{
		"load": func(_ *turnstone.Store, s *turnstone.Session) error {
			_, err := s.Load(ctx, turnstone.Scope{})
			return err
		},
		"commit": func(_ *turnstone.Store, s *turnstone.Session) error {
			_, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Turn: "new", Nodes: saying([]byte("new"))})
			return err
		},
		"tombstone": func(_ *turnstone.Store, s *turnstone.Session) error {
			first, err := s.Load(ctx, turnstone.Scope{At: 1})
			if err == nil {
				err = s.Tombstone(ctx, first.Nodes[0].ID)
			}
			return err
		},
		"keep": func(_ *turnstone.Store, s *turnstone.Session) error { return s.Keep(ctx, "name", 1) },
		"node": func(_ *turnstone.Store, s *turnstone.Session) error {
			_, err := s.NodeByKey(ctx, "k")
			return err
		},
		"bundle": func(st *turnstone.Store, _ *turnstone.Session) error {
			_, err := st.Bundle(ctx, io.Discard, turnstone.Bundled{ID: "a", Since: 2})
			return err
		},
		"standings": func(st *turnstone.Store, _ *turnstone.Session) error {
			_, err := st.Standings(ctx, turnstone.StandingQuery{ID: "a", At: []head.Revision{1, 2}})
			return err
		},
		"delete": func(st *turnstone.Store, _ *turnstone.Session) error {
			return st.Delete(ctx, "a", turnstone.KeepChildren)
		},
		"rename": func(st *turnstone.Store, _ *turnstone.Session) error { return rename(ctx, st, "a", "b") },
	}
	for name, call := range calls {
		for at := 1; ; at++ {
			e := memory.New()
			st := openStore(t, e, nil)
			other := create(t, st, turnstone.Request{ID: "a"})
			commitTo(t, other, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Key: "k"}}})
			b := &beside{Engine: e, at: -1}
			there := openStore(t, b, nil)
			here := session(t, there, "a")
			for range 2 {
				commitTo(t, other, turnstone.Commit{Nodes: saying([]byte("more"))})
			}
			b.calls, b.at = 0, at
			b.do = func() {
				commitTo(t, other, turnstone.Commit{Nodes: saying([]byte("beside"))})
				if _, err := st.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			err := call(there, here)
			if b.calls < at {
				break
			}
			if err != nil {
				t.Errorf("%s, before call %d: %v", name, at, err)
			}
		}
	}
}
