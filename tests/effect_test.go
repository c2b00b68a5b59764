package tests

import (
	"context"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/effect"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// A host runs a turn of three effects, one of them with a large result, and commits it. It is killed at each call of
// the engine, before or after the call takes effect, or the reply of the call is lost; then it runs the turn again. It
// repeats no effect whose result was recorded, and commits what the recorded results say.
func TestEF5_AHostThatIsKilledRepeatsNoRecordedEffect(t *testing.T) {
	kinds := map[string]enginetest.Fault{
		"killed before": {Crash: true}, "killed after": {Crash: true, Applied: true},
		"reply lost": {Err: engine.ErrUnknown, Applied: true}, "not made": {Err: engine.ErrUnknown}, "late": {Err: engine.ErrUnknown, Late: true},
	}
	for kind, fault := range kinds {
		for n := 1; ; n++ {
			met := killHost(t, fmt.Sprintf("%s, call %d", kind, n), n, fault)
			if !met {
				if n < 10 {
					t.Fatalf("%s: the host makes %d calls", kind, n-1)
				}
				break
			}
		}
	}
}

// killHost kills the host at the n-th call, and reports whether it got there.
func killHost(t *testing.T, what string, n int, fault enginetest.Fault) (met bool) {
	t.Helper()
	inner := memory.New()
	setup := openStore(t, inner, &turnstone.Options{NoAutoSeal: true})
	create(t, setup, turnstone.Request{ID: "s"})
	ran, recorded := map[string]int{}, map[string]string{}
	host := func(st *turnstone.Store) error {
		s, err := st.Session(ctx, "s")
		if err != nil {
			return err
		}
		if i, err := s.Info(ctx); err != nil || i.Revision > 0 { // The turn stands.
			return err
		}
		var nodes []turnstone.NewNode
		for _, id := range []string{"model", "tool", "pay"} {
			result, err := effect.Do(ctx, s, "turn", id, func(context.Context) ([]byte, error) {
				if _, ok := recorded[id]; ok {
					t.Errorf("%s: effect %s is repeated", what, id)
				}
				ran[id]++
				out := fmt.Append(nil, id, " ", ran[id])
				if id == "tool" {
					out = append(out, make([]byte, 100_000)...)
				}
				return out, nil
			})
			if err != nil {
				return err
			}
			if was, ok := recorded[id]; ok && was != string(result) {
				t.Errorf("%s: effect %s had another result", what, id)
			}
			recorded[id] = string(result)
			nodes = append(nodes, turnstone.NewNode{Kind: id, Payload: result[:len(id)+2]})
		}
		_, err = effect.Commit(ctx, s, turnstone.Commit{Turn: "turn", Nodes: nodes})
		return err
	}
	f := &enginetest.Faulty{Engine: inner, Plan: func(c enginetest.Call) enginetest.Fault {
		if c.N != n {
			return enginetest.Fault{}
		}
		met = true
		out := fault
		if c.Op != "Apply" && !fault.Crash {
			out = enginetest.Fault{Err: engine.ErrUnavailable}
		}
		return out
	}}
	st, err := turnstone.Open(ctx, f, &turnstone.Options{NoAutoSeal: true})
	if err == nil {
		err = host(st)
	}
	if err != nil && !met {
		t.Fatalf("%s: %v", what, err)
	}
	after := openStore(t, inner, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
	for _, id := range []string{"model", "tool", "pay"} { // What stands was recorded, whether the host got to know or not.
		if result, err := effect.Get(ctx, session(t, after, "s"), "turn", id); err == nil {
			recorded[id] = string(result)
		}
	}
	if err := host(after); err != nil {
		t.Errorf("%s: again: %v", what, err)
	}
	if err := effect.Drop(ctx, session(t, after, "s"), "turn"); err != nil { // as a host does that finds the turn to stand
		t.Error(err)
	}
	state, err := session(t, after, "s").Load(ctx, turnstone.Scope{})
	if err != nil || state.Revision != 1 || len(state.Nodes) != 3 {
		t.Fatalf("%s: %+v, %v", what, state, err)
	}
	for _, n := range state.Nodes {
		if want := recorded[n.Kind][:len(n.Kind)+2]; string(n.Payload) != want {
			t.Errorf("%s: the turn has %q, and recorded was %q", what, n.Payload, want)
		}
	}
	all, err := session(t, after, "s").Records(ctx, turnstone.RecordQuery{})
	if err != nil || len(all.Records) != 1 || all.Records[0].Key != ".effect.done/turn" {
		t.Errorf("%s: %+v are left, %v", what, all.Records, err)
	}
	return met
}
