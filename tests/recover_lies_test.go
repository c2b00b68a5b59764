package tests

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
	"github.com/turnstonedb/turnstone/recovery"
)

// Records that have a right checksum and something wrong in them, and records as they were before, take no other
// session along: each comes, or is named. Nothing is shown that never was.
func TestRV8_RecordsThatLieOrAreOldAreNoMoreThanLosses(t *testing.T) {
	for seed := range uint64(cmp.Or(*histories, testkit.Pick(30, 15, 3))) {
		r := rand.New(rand.NewPCG(seed, 49))
		e, st := onMemory(t, &turnstone.Options{NoAutoSeal: true, Random: rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 48}), Now: ticking()})
		p := newPast(t, st, seed)
		ever := map[string]bool{} // contents of nodes
		see := func() {
			for _, id := range ids(t, st) {
				for _, content := range shown(t, st, id) {
					ever[content] = true
				}
			}
		}
		for range 30 {
			p.step()
			see()
		}
		older := map[string][]byte{}
		for _, p := range pairs(t, e) {
			older[string(p.Key)] = p.Value
		}
		for range 20 {
			p.step()
			see()
		}
		alive := ids(t, st)
		now := map[string]bool{}
		var wrong engine.Batch
		for _, p := range pairs(t, e) {
			now[string(p.Key)] = true
			switch was, had := older[string(p.Key)]; {
			case had && !bytes.Equal(was, p.Value) && r.IntN(20) == 0:
				wrong.Set(p.Key, was)
			case r.IntN(40) == 0:
				body := bytes.Clone(p.Value[2 : len(p.Value)-4])
				if len(body) > 0 {
					body[r.IntN(len(body))] ^= 1 << r.IntN(8)
				}
				wrong.Set(p.Key, codec.Encode(p.Key, p.Key[4], body))
			}
		}
		for key, was := range older {
			if !now[key] && r.IntN(20) == 0 {
				wrong.Set([]byte(key), was)
			}
		}
		must(t, e.Apply(ctx, &wrong))
		got, report := recovered(t, e)
		there := map[string]bool{}
		for _, id := range ids(t, got) {
			there[id] = true
			for n, content := range shown(t, got, id) {
				if !ever[content] {
					t.Errorf("seed %d: session %q shows node %s, %.80s", seed, id, n, content)
				}
			}
		}
		var missing []string
		for _, id := range alive {
			if !there[id] && !slices.ContainsFunc(report.Lost, func(l recovery.Loss) bool { return l.Session == id }) {
				missing = append(missing, id)
			}
		}
		// A record that is old may have the id that a session had before it was renamed: the loss has that id, then.
		former := slices.DeleteFunc(slices.Clone(report.Lost), func(l recovery.Loss) bool {
			return l.Session == "" || slices.Contains(alive, l.Session)
		})
		if len(missing) > len(unnamed(report))+len(former) {
			t.Errorf("seed %d: sessions %q are missing: %v", seed, missing, report.Lost)
		}
		if t.Failed() {
			t.FailNow()
		}
	}
}

// If all records of a session are damaged, and nothing says its id, it is named all the same. A store that is recovered
// to and is damaged itself is no loss of the other one.
func TestRV2_ASessionOfWhichNothingCanBeReadIsNamed(t *testing.T) {
	e, st := onMemory(t, nil)
	for _, id := range []string{"a", "b"} {
		create(t, st, turnstone.Request{ID: id}, []byte("text of "+id))
	}
	inc := incarnationOf(session(t, st, "a"))
	hash := historiesOf(st).Space.Session("a")
	var wrong engine.Batch
	for _, p := range pairs(t, e) {
		if bytes.Contains(p.Key, inc[:]) || bytes.Contains(p.Key, hash[:]) {
			wrong.Set(p.Key, flipped(p.Value))
		}
	}
	must(t, e.Apply(ctx, &wrong))
	got, r := recovered(t, e)
	if len(r.Lost) != 1 || !strings.HasPrefix(r.Lost[0].Session, "recovered-") || r.Lost[0].What != "all of it" || !slices.Equal(ids(t, got), []string{"b"}) {
		t.Errorf("%v, %v", r.Lost, ids(t, got))
	}
	other, to := onMemory(t, nil)
	create(t, to, turnstone.Request{ID: "b"}, []byte("another"))
	spoil(t, other, commitsOf(t, to, "b"))
	r, err := recovery.Run(ctx, e, openStore(t, other, nil), recovery.Options{})
	if err == nil || len(r.Lost) != 1 {
		t.Errorf("%v, %v", err, r.Lost)
	}
}

// What the store has noted as erased is not shown, whichever older records are back.
func TestRV8_WhatWasErasedStaysSo(t *testing.T) {
	e, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	s := create(t, st, turnstone.Request{ID: "s"}, []byte("one"))
	secret := commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("secret"))}).Nodes[0]
	commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("three"))})
	create(t, st, turnstone.Request{ID: "whole"}, []byte("secret as well"))
	older := pairs(t, e)
	_, err := s.Erase(ctx, turnstone.EraseOptions{}, secret)
	must(t, err)
	_, err = st.Erase(ctx, "whole", turnstone.KeepChildren, turnstone.EraseOptions{})
	must(t, err)
	for seed := range testkit.Pick[uint64](200, 60, 10) {
		r := rand.New(rand.NewPCG(seed, 50))
		now := memory.New()
		must(t, copyPairs(t, e, now))
		for _, p := range older {
			if r.IntN(2) == 0 {
				must(t, now.Apply(ctx, &engine.Batch{Sets: []engine.Pair{p}}))
			}
		}
		for _, p := range pairs(t, now) {
			if p.Key[4] == keys.Tombstone && r.IntN(2) == 0 {
				must(t, now.Apply(ctx, &engine.Batch{Deletes: [][]byte{p.Key}}))
			}
		}
		got, report := recovered(t, now)
		for _, id := range ids(t, got) {
			for _, content := range shown(t, got, id) {
				if strings.Contains(content, fmt.Sprintf("%x", "secret")) {
					t.Fatalf("seed %d: session %q: %s: %+v", seed, id, content, report)
				}
			}
		}
	}
}
