// Package persistencetest tests implementations of turnstone.Persistence and
// turnstone.Factory against their contract. It serves Turnstone on any engine, and
// hosts that implement the interfaces themselves:
//
//	func TestPersistence(t *testing.T) {
//		persistencetest.Run(t, persistencetest.Config{New: func(t *testing.T, v turnstone.Validator) persistencetest.Backend { … }})
//	}
//
// Tests are named for the behaviours that docs/contract.md lists.
package persistencetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A Backend is an empty factory under test.
type Backend struct {
	Factory turnstone.Factory
	// Reopen closes the factory and opens it on the same data again. It is nil if
	// the data does not outlive the process.
	Reopen func() turnstone.Factory
}

// Config says how to make backends.
type Config struct {
	// New returns an empty backend and removes it when t ends. The backend calls v,
	// if not nil, before each commit.
	New func(t *testing.T, v turnstone.Validator) Backend
}

// Run runs the suite.
func Run(t *testing.T, c Config) {
	for _, group := range [][]behaviour{commits, turns, together, loads, states, watches, recordWatches, metadata, forks, removals, attachments, records, recordReads, leases, queues, lanes, drafts, maintenance, operations, effects} {
		for _, b := range group {
			t.Run(b.name, func(t *testing.T) {
				if testkit.Race && b.large {
					t.Skip("one goroutine: there is nothing for the race detector")
				}
				t.Parallel()
				s := &suite{T: t, validator: b.validator}
				s.Backend = c.New(t, func(ctx context.Context, id string, in *turnstone.Commit) error {
					if s.validator == nil {
						return nil
					}
					return s.validator(ctx, id, in)
				})
				b.test(s)
			})
		}
	}
}

// A behaviour is one rule of the contract and the test of it.
type behaviour struct {
	name      string
	large     bool // one goroutine with much to do
	test      func(*suite)
	validator turnstone.Validator
}

// A suite runs one test on one backend.
type suite struct {
	*testing.T
	Backend
	validator turnstone.Validator
}

var ctx = context.Background()

// twice runs check. If the backend is durable, twice reopens it and runs check again.
func (s *suite) twice(check func()) {
	s.Helper()
	check()
	if s.Reopen != nil {
		s.Factory = s.Reopen()
		check()
	}
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *suite) is(err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Fatalf("error %v, want one that matches %q", err, want)
	}
}

func (s *suite) equal(what string, got, want any) {
	s.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		s.Fatalf("%s = %.300s, want %.300s", what, g, w)
	}
}

// create makes a session that must not exist yet.
func (s *suite) create(r turnstone.Request) turnstone.Persistence {
	s.Helper()
	p, created, err := s.Factory.Create(ctx, r)
	s.must(err)
	if !created {
		s.Fatalf("session %q existed", r.ID)
	}
	return p
}

func (s *suite) session(id string) turnstone.Persistence {
	s.Helper()
	p, err := s.Factory.Session(ctx, id)
	s.must(err)
	return p
}

// texts returns nodes with these payloads, each the child of the one before.
func texts(payloads ...string) []turnstone.NewNode {
	out := make([]turnstone.NewNode, len(payloads))
	for i, p := range payloads {
		out[i] = turnstone.NewNode{Kind: "text", Payload: []byte(p)}
	}
	return out
}

func (s *suite) commit(p turnstone.Persistence, c turnstone.Commit) turnstone.Result {
	s.Helper()
	r, err := p.Commit(ctx, c)
	s.must(err)
	return r
}

// grow commits one turn for each payload, beginning at revision from, and returns
// the ids of the nodes.
func (s *suite) grow(p turnstone.Persistence, from head.Revision, payloads ...string) []graph.ID {
	s.Helper()
	var ids []graph.ID
	for i, text := range payloads {
		r := s.commit(p, turnstone.Commit{Expected: from + head.Revision(i), Nodes: texts(text)})
		ids = append(ids, r.Nodes...)
	}
	return ids
}

func (s *suite) load(p turnstone.Persistence, sc turnstone.Scope) *turnstone.State {
	s.Helper()
	st, err := p.Load(ctx, sc)
	s.must(err)
	s.streams(p, sc, st.Nodes)
	return st
}

// streams checks that a scope's nodes are yielded one at a time as Load has returned them, and from
// the other end in the opposite order. It also ends a sequence early.
func (s *suite) streams(p turnstone.Persistence, sc turnstone.Scope, want []turnstone.Node) {
	s.Helper()
	for range 2 {
		at := 0
		for n, err := range p.Nodes(ctx, sc) {
			s.must(err)
			if at >= len(want) || !reflect.DeepEqual(n, want[at]) {
				s.Fatalf("%+v of %q: node %d of %d is yielded as %.300v", sc, p.ID(), at, len(want), n)
			}
			at++
		}
		if at != len(want) {
			s.Fatalf("%+v of %q: %d of %d nodes are yielded", sc, p.ID(), at, len(want))
		}
		for n, err := range p.Nodes(ctx, sc) {
			s.must(err)
			s.equal("first node", n.ID, want[0].ID)
			break
		}
		want = slices.Clone(want)
		slices.Reverse(want)
		sc.Reverse = true
	}
}

// reads checks the payloads that a scope selects. Unless the scope is Full, each
// node's parent must be the node before it.
func (s *suite) reads(p turnstone.Persistence, sc turnstone.Scope, want ...string) {
	s.Helper()
	st := s.load(p, sc)
	got := make([]string, len(st.Nodes))
	for i, n := range st.Nodes {
		got[i] = string(n.Payload)
		if !sc.Full && i > 0 && n.Parent != st.Nodes[i-1].ID {
			s.Fatalf("node %d (%.40s) is not linked to the one before", i, n.Payload)
		}
	}
	if !slices.Equal(got, want) {
		s.Fatalf("%+v of %q reads %.300q, want %.300q", sc, p.ID(), got, want)
	}
}

// pattern returns n bytes that depend on seed and compress badly.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	x := uint32(seed) + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// refused checks that err matches want and names what was refused.
func (s *suite) refused(err, want error, what string) {
	s.Helper()
	s.is(err, want)
	if !bytes.Contains([]byte(err.Error()), []byte(what)) {
		s.Fatalf("error %q does not name %q", err, what)
	}
}
